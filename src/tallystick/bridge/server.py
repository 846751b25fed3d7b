"""Serve model queries to programs outside our process, within limits.

The bridge asks no model itself. Each token has its own function to ask, given by the caller that
issued it, and that goes through the run's one door: `tallystick.bridge.door`. Everything here is on
one event loop, the one that the door belongs to.

A client may be hostile. The size of what it sends is limited before it is read, and each wait for
it has a time limit. Nothing is logged: a log is where tokens get lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from tallystick.bridge.protocol import (
    BridgeAnswer,
    BridgeHead,
    BridgeLeft,
    BridgeQuery,
    BridgeRefused,
    batch_body,
    error_body,
    parse_head,
    query_body,
    read_batch,
    read_query,
    refusal_of,
    reply_bytes,
)
from tallystick.bridge.sockets import Listener, tcp_listener, unix_listener
from tallystick.bridge.tokens import TTL_MS, Grant, IssuedToken, TokenBook, TokenScope
from tallystick.core.errors import InvalidLimit, UsageError

# Limits of a client: sizes, times, and how often it asks.


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeLimits:
    """Limits of one bridge. `connections` is for each place it listens, the next four for a token.

    `request_ms` counts from the end of the head to the reply. `queries_per_second` is the pace at
    which `burst` queries are given back; a batch takes one for each query in it. Raise
    `InvalidLimit` for a value below 1, or a `burst` smaller than a batch.
    """

    connections: int = 64
    under_way: int = 16
    batch_max: int = 10
    queries_per_second: int = 50
    burst: int = 100
    head_bytes: int = 16_384
    body_bytes: int = 4 * 1024 * 1024
    request_ms: int = 30_000
    head_ms: int = 5_000
    body_ms: int = 10_000
    write_ms: int = 5_000
    idle_ms: int = 15_000
    linger_ms: int = 1_000
    close_ms: int = 5_000

    def __post_init__(self) -> None:
        for each in fields(self):
            given = getattr(self, each.name)
            if isinstance(given, bool) or not isinstance(given, int) or given < 1:
                raise InvalidLimit(field=each.name, given=given, why="a whole number from 1 up")
        if self.burst < self.batch_max:
            why = f"at least a batch, which is {self.batch_max:,}"
            raise InvalidLimit(field="burst", given=self.burst, why=why)

    def pace(self, clock: Callable[[], float]) -> Pace:
        return Pace(per_second=self.queries_per_second, burst=self.burst, clock=clock)


class Pace:
    """A limit on how often a token may ask: `burst` queries at once, then so many in a second."""

    def __init__(self, *, per_second: int, burst: int, clock: Callable[[], float]) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._held = float(burst)
        self._at = clock()

    def take(self, count: int) -> None:
        """Take `count` queries off the allowance.

        Raise `BridgeRefused` with the time to wait, and take nothing, if fewer are left.
        """
        now = self._clock()
        self._held = min(self._burst, self._held + (now - self._at) * self._per_second)
        self._at = now
        if count > self._held:
            wait_ms = int((count - self._held) * 1000 / self._per_second) + 1
            raise BridgeRefused(
                "LlmCallFailed",
                f"asked too often: {self._per_second:,} queries in a second; wait {wait_ms:,} ms",
                status=429,
                retry_after_ms=wait_ms,
            )
        self._held -= count


# The queries of a request: within the rights of its token, in parallel, and with a time limit.
#
# The bridge only answers the client. Each query records its own end, even if nobody waits for it.


Ask = Callable[[BridgeQuery], Awaitable[BridgeAnswer]]
Outcome = BridgeAnswer | BridgeRefused
_Task = asyncio.Future[BridgeAnswer]
_ENDED = "the run was cancelled, or the token revoked"


@dataclass(eq=False, kw_only=True)
class TokenQueries:
    """The queries of one token: the function that asks, its limits, and the tasks in progress."""

    scope: TokenScope
    ask: Ask | None
    pace: Pace
    slots: asyncio.Semaphore
    tasks: set[_Task] = field(default_factory=set)

    def check(self) -> None:
        """Raise `BridgeRefused` if no request is possible: too deep, or without a model."""
        scope = self.scope
        if scope.depth > scope.depth_max:
            said = f"{scope.depth} runs are above this one; at most {scope.depth_max} are allowed"
            raise BridgeRefused("RecursionDepthExceeded", said)
        if self.ask is None:
            raise BridgeRefused("LlmNotConfigured", "there is no model to ask here")

    def cancel_tasks(self) -> None:
        """Cancel the tasks in progress."""
        for task in tuple(self.tasks):
            task.cancel()

    async def enter(self, *, ends_at: float) -> None:
        """Wait for a place among the requests that the token may have in progress.

        Raise `BridgeRefused` if there is none before `ends_at`, in the loop's time.
        """
        try:
            async with asyncio.timeout_at(ends_at):
                await self.slots.acquire()
        except TimeoutError:
            said = "this token has the largest number of requests in progress already"
            raise BridgeRefused("LlmCallFailed", said, status=429, retry_after_ms=1_000) from None

    async def ask_all(
        self, queries: Sequence[BridgeQuery], *, ends_at: float, tasks: list[_Task]
    ) -> tuple[list[tuple[Outcome, int]], BridgeLeft]:
        """Ask all queries; return the outcomes in order with their milliseconds, and what is left.

        A query that fails has its refusal as outcome. One without an answer at `ends_at` is
        cancelled, and refused with `ExecutionTimeout`. What is left is what the last query to end
        had left: those before it still counted its reservation. Tasks are added to `tasks` as they
        begin, so that the caller can pass them to `exit` if this raises. Raise `BridgeRefused`,
        before any task begins, if the pace does not allow the queries.
        """
        self.pace.take(len(queries))
        loop = asyncio.get_running_loop()
        began = loop.time()
        took: dict[_Task, float] = {}
        for query in queries:
            task = asyncio.ensure_future(self._one(query))
            task.add_done_callback(lambda task: took.setdefault(task, loop.time()))
            task.add_done_callback(self.tasks.discard)
            self.tasks.add(task)
            tasks.append(task)
        if not tasks:
            return [], BridgeLeft()
        try:
            await asyncio.wait(tasks, timeout=max(0.0, ends_at - began))
        finally:
            for each in tasks:
                each.cancel()
        now = loop.time()
        found = [(_outcome(each), round((took.get(each, now) - began) * 1000)) for each in tasks]
        known = [_outcome(each).left for each in took]
        left = next((each for each in reversed(known) if each is not None), BridgeLeft())
        return found, left

    def exit(self, tasks: Sequence[_Task]) -> None:
        """Give the place back when all tasks have ended.

        A task that does not end when it is cancelled still uses it.
        """
        pending = set(tasks)

        def on_end(task: _Task) -> None:
            pending.discard(task)
            if not task.cancelled():
                # Retrieve it, or asyncio logs it as never retrieved. The client was answered
                # already, or is gone.
                task.exception()
            if not pending:
                self.slots.release()

        if not pending:
            self.slots.release()
        for each in tasks:
            each.add_done_callback(on_end)

    async def _one(self, query: BridgeQuery) -> BridgeAnswer:
        assert self.ask is not None
        scope = self.scope
        if scope.models is not None and query.model not in (None, *scope.models):
            said = f"model: {(query.model or '')[:80]!r} is not for this program"
            raise BridgeRefused("ConfigError", said)
        cap, wanted = scope.tokens_out_max, query.max_tokens
        if cap is not None and wanted is not None and wanted > cap:
            raise BridgeRefused("ConfigError", f"max_tokens: {wanted:,}; at most {cap:,} here")
        return await self.ask(dataclasses.replace(query, cap=cap))


def _outcome(task: _Task) -> Outcome:
    if not task.done():
        return BridgeRefused("ExecutionTimeout", "no answer within the time of a request")
    if task.cancelled():
        return BridgeRefused("Cancelled", _ENDED)
    error = task.exception()
    return task.result() if error is None else refusal_of(error)


# The bridge: a server of model queries for programs outside our process.


# Variables in the environment of the program that asks.
# The variable by which the client inside a program finds the bridge. The sandbox gives the token.
ADDRESS = "TALLYSTICK_BRIDGE"
_ROUTES = {"/health": "GET", "/query": "POST", "/query_batched": "POST"}
_PAUSE_SECONDS = 0.05
_READ_BYTES = 65_536


class _Exchange:
    """One request on a connection. `clean` says that nothing of it is left to be read."""

    def __init__(
        self,
        head: BridgeHead,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        ends_at: float,
    ) -> None:
        self.head = head
        self.reader = reader
        self.writer = writer
        self.ends_at = ends_at
        # A POST without a length may have a body all the same, so its rest is unknown.
        self.clean = head.length == 0 or (head.length is None and head.method == "GET")


class Bridge:
    """Serves model queries of programs over sockets. Use it as an async context manager.

    All its methods are called on the event loop that it serves on. Where it serves with a
    `session`, only tokens of that one are accepted.
    """

    def __init__(
        self,
        *,
        limits: BridgeLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = BridgeLimits() if limits is None else limits
        self._clock = clock
        self._tokens = TokenBook(clock=clock)
        # Weak keys: when the book forgets an expired grant, its queries are forgotten, too.
        self._asking: weakref.WeakKeyDictionary[Grant, TokenQueries] = weakref.WeakKeyDictionary()
        self._listeners: list[Listener] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._closed = False

    async def __aenter__(self) -> Bridge:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    # -- tokens --------------------------------------------------------------------------------

    def issue(
        self,
        scope: TokenScope,
        *,
        ask: Ask | None,
        ttl_ms: int = TTL_MS,
        parent: Grant | None = None,
    ) -> IssuedToken:
        """Make a token that asks by `ask`; with None, its holder gets `LlmNotConfigured`.

        `ask` is called once for each query, several of them at a time. Raise `UsageError` if the
        scope has no session, or if `parent` is of another session or not valid any more. Raise
        `InvalidLimit` for a limit of the scope, or `ttl_ms`, that is below its minimum.
        """
        issued = self._tokens.issue(scope, ttl_ms=ttl_ms, parent=parent)
        self._asking[issued.grant] = TokenQueries(
            scope=issued.grant.scope,
            ask=ask,
            pace=self.limits.pace(self._clock),
            slots=asyncio.Semaphore(self.limits.under_way),
        )
        return issued

    def revoke(self, grant: Grant) -> None:
        """End a token and those under it, and cancel their queries in progress."""
        for each in {grant, *self._tokens.revoke(grant)}:
            asking = self._asking.get(each)
            if asking is not None:
                asking.cancel_tasks()

    # -- where it listens ----------------------------------------------------------------------

    def listen_unix(self, path: Path, *, session: str | None, uid: int | None = None) -> Listener:
        """Listen on a socket of mode 0600 in a private directory, which is made if missing.

        With a session, only its tokens are accepted. `uid` makes another user the owner of both.
        Raise `UsageError` if the bridge is closed, the directory is not private, or the socket
        cannot be made.
        """
        self._check_open()
        return self._listen(unix_listener(path, session=session, uid=uid))

    def listen_tcp(self, *, session: str | None, port: int = 0) -> Listener:
        """Listen on 127.0.0.1, where everybody on this machine can connect. Port 0 is any free one.

        Raise `UsageError` if the bridge is closed or the port is taken.
        """
        self._check_open()
        return self._listen(tcp_listener(session=session, port=port))

    def listen_on(self, sock: socket.socket, *, session: str | None) -> Listener:
        """Listen on a socket that listens already, perhaps an inherited one.

        The bridge owns it from then; the listener has no address. Raise `UsageError` if the bridge
        is closed.
        """
        self._check_open()
        return self._listen(Listener(sock=sock, session=session))

    def serve(self, sock: socket.socket, *, session: str | None) -> None:
        """Serve one socket that is connected already. The bridge owns it from then; it may be idle.

        Raise `UsageError` if the bridge is closed.
        """
        self._check_open()
        sock.setblocking(False)
        self._begin(sock, session, idle_ms=None)

    def pair(self, *, session: str | None) -> socket.socket:
        """Return one end of a connection that is served, for one process to inherit.

        The caller closes that end. Raise `UsageError` if the bridge is closed.
        """
        self._check_open()
        ours, theirs = socket.socketpair()
        self.serve(ours, session=session)
        return theirs

    async def close(self) -> None:
        """Stop listening, and end all connections and queries in progress.

        Tasks that do not end within `close_ms` are left to themselves. The files of its sockets are
        removed. Closing twice is harmless.
        """
        self._closed = True
        held: list[asyncio.Future[None] | asyncio.Future[BridgeAnswer]] = [*self._connections]
        held += [each.task for each in self._listeners if each.task is not None]
        held += [task for asking in self._asking.values() for task in asking.tasks]
        for task in held:
            task.cancel()
        if held:
            # Give each the time to record its end. One that resists its cancel is not waited for.
            await asyncio.wait(held, timeout=self.limits.close_ms / 1000)
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("bridge: it is closed")

    def _listen(self, listener: Listener) -> Listener:
        listener.sock.setblocking(False)
        listener.task = asyncio.get_running_loop().create_task(self._accept(listener))
        self._listeners.append(listener)
        return listener

    # -- connections ---------------------------------------------------------------------------

    async def _accept(self, listener: Listener) -> None:
        """Accept as many connections as may be open, until this task is cancelled.

        Others wait in the socket's backlog, at no cost to us. After an error of the system, pause
        and try again.
        """
        loop = asyncio.get_running_loop()
        free = asyncio.Semaphore(self.limits.connections)
        while True:
            await free.acquire()
            try:
                sock, _ = await loop.sock_accept(listener.sock)
            except OSError:
                # No descriptor is free, or the client is gone. Without a pause, the first would
                # make this loop spin.
                free.release()
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            task = self._begin(sock, listener.session, idle_ms=self.limits.idle_ms)
            task.add_done_callback(lambda task: free.release())

    def _begin(
        self, sock: socket.socket, session: str | None, *, idle_ms: int | None
    ) -> asyncio.Task[None]:
        work = self._serve(sock, session, idle_ms)
        task = asyncio.get_running_loop().create_task(work)
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        return task

    async def _serve(self, sock: socket.socket, session: str | None, idle_ms: int | None) -> None:
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await asyncio.open_connection(sock=sock, limit=self.limits.head_bytes)
            # With a limit of 0, all that is written has left this process when `drain` returns.
            writer.transport.set_write_buffer_limits(high=0)
            while True:
                if not await self._request(reader, writer, session, idle_ms):
                    break
                # A client that sends many at once does not keep the others waiting.
                await asyncio.sleep(0)
        except (OSError, EOFError, TimeoutError):
            # The client went away, or took too long.
            pass
        finally:
            if writer is None:
                sock.close()
            else:
                writer.transport.abort()

    async def _request(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        session: str | None,
        idle_ms: int | None,
    ) -> bool:
        """Serve one request. Return True if another one may come on the connection.

        A refusal is a reply, too. Raise `OSError`, `EOFError` or `TimeoutError` if the client went
        away, or sent nothing or read nothing for too long.
        """
        async with asyncio.timeout(None if idle_ms is None else idle_ms / 1000):
            begun = await reader.read(1)
        if not begun:
            return False
        exchange: _Exchange | None = None
        status, retry_after_ms = 200, None
        try:
            head = await self._head(begun, reader)
            ends_at = asyncio.get_running_loop().time() + self.limits.request_ms / 1000
            exchange = _Exchange(head, reader, writer, ends_at)
            body = await self._answer(exchange, session)
        except BridgeRefused as error:
            status, body, retry_after_ms = error.status, error_body(error), error.retry_after_ms
        goes_on = exchange is not None and exchange.clean and exchange.head.keep_alive
        writer.write(reply_bytes(status, body, keep_alive=goes_on, retry_after_ms=retry_after_ms))
        async with asyncio.timeout(self.limits.write_ms / 1000):
            await writer.drain()
        if not goes_on:
            await self._linger(reader, writer)
        return goes_on

    async def _linger(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """End our side, and read what the client still sends, so that the reply arrives.

        Stop after `linger_ms`, or after as many bytes as a body may have.

        To close a connection with unread data resets it, and the client could lose the reply.
        """
        left = self.limits.body_bytes
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.limits.linger_ms / 1000):
                writer.write_eof()
                while left > 0 and (more := await reader.read(_READ_BYTES)):
                    left -= len(more)

    async def _head(self, begun: bytes, reader: asyncio.StreamReader) -> BridgeHead:
        if not begun.isalpha():
            raise BridgeRefused("CommandParseFailed", "the request line is malformed")
        try:
            async with asyncio.timeout(self.limits.head_ms / 1000):
                rest = await reader.readuntil(b"\r\n\r\n")
        except TimeoutError:
            said = "the head of the request did not come"
            raise BridgeRefused("ExecutionTimeout", said, status=408) from None
        except asyncio.LimitOverrunError:
            said = f"the head of a request has at most {self.limits.head_bytes:,} bytes"
            raise BridgeRefused("ConfigError", said, status=431) from None
        return parse_head((begun + rest).removesuffix(b"\r\n\r\n"))

    async def _body(self, exchange: _Exchange) -> bytes:
        length = exchange.head.length
        if length is None:
            raise BridgeRefused("NotSupported", "a body needs its Content-Length", status=411)
        if length > self.limits.body_bytes:
            said = f"a body of {length:,} bytes; at most {self.limits.body_bytes:,}"
            raise BridgeRefused("ConfigError", said, status=413)
        if exchange.head.expects:
            exchange.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            async with asyncio.timeout(self.limits.body_ms / 1000):
                body = await exchange.reader.readexactly(length)
        except TimeoutError:
            said = "the body of the request did not come"
            raise BridgeRefused("ExecutionTimeout", said, status=408) from None
        except asyncio.IncompleteReadError:
            said = "the body is shorter than its Content-Length"
            raise BridgeRefused("CommandParseFailed", said) from None
        exchange.clean = True
        return body

    # -- requests ------------------------------------------------------------------------------

    async def _answer(self, exchange: _Exchange, session: str | None) -> dict[str, object]:
        """Return the body of the reply to a request. The request's own is read after its token.

        Raise `BridgeRefused` if the path, the method, the token or the body is not valid. Raise it
        too if the token has no place or no pace left, or if a single query failed.
        """
        head = exchange.head
        method = _ROUTES.get(head.path)
        if method is None:
            said = "there is /query, /query_batched and /health"
            raise BridgeRefused("NotSupported", said, status=404)
        if head.method != method:
            raise BridgeRefused("NotSupported", f"{head.path} is for {method}", status=405)
        if head.path == "/health":
            return {"status": "ok"}
        grant = self._tokens.find(head.token, session=session)
        if grant is None:
            said = "X-Session-Token: missing, unknown, expired, revoked, or of another session"
            raise BridgeRefused("InvalidSessionToken", said)
        asking = self._asking[grant]
        asking.check()
        await asking.enter(ends_at=exchange.ends_at)
        tasks: list[asyncio.Future[BridgeAnswer]] = []
        try:
            return await self._answer_queries(exchange, grant, asking, tasks)
        finally:
            asking.exit(tasks)

    async def _answer_queries(
        self,
        exchange: _Exchange,
        grant: Grant,
        asking: TokenQueries,
        tasks: list[asyncio.Future[BridgeAnswer]],
    ) -> dict[str, object]:
        body = await self._body(exchange)
        single = exchange.head.path == "/query"
        queries = [read_query(body)] if single else read_batch(body, most=self.limits.batch_max)
        if not grant.holds(self._clock()):
            # The token expired or was revoked while the body arrived.
            raise BridgeRefused(
                "InvalidSessionToken",
                "X-Session-Token: it expired or was revoked while the body arrived",
            )
        loop = asyncio.get_running_loop()
        began = loop.time()
        outcomes, left = await asking.ask_all(queries, ends_at=exchange.ends_at, tasks=tasks)
        time_ms = round((loop.time() - began) * 1000)
        if not single:
            return batch_body(outcomes, left, time_ms=time_ms)
        ((outcome, _),) = outcomes
        if isinstance(outcome, BridgeRefused):
            raise outcome
        return query_body(outcome, time_ms=time_ms)
