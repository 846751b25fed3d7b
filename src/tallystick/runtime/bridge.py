"""The bridge: a server by which programs outside our process ask models.

It asks no model itself. Each token has its own way to ask, given by whoever issued it, and that way
goes through the run's one door: `tallystick.runtime.bridge_door`. Everything here is on one event
loop, the one that the door belongs to.

A client may be hostile. What it sends is bounded before it is read, and what it makes us wait for
has a time. Nothing is logged: a log is where tokens get lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tallystick.core.errors import UsageError
from tallystick.runtime.bridge_asking import Ask, Asking
from tallystick.runtime.bridge_limits import BridgeLimits
from tallystick.runtime.bridge_protocol import (
    BridgeAnswer,
    BridgeHead,
    BridgeRefused,
    batch_body,
    error_body,
    parse_head,
    query_body,
    read_batch,
    read_query,
    reply_bytes,
)
from tallystick.runtime.bridge_sockets import Listener, tcp_listener, unix_listener
from tallystick.runtime.bridge_tokens import TTL_MS, Grant, IssuedToken, TokenBook, TokenScope

__all__ = ["ADDRESS", "TOKEN", "Bridge", "environment_of"]

# What a program inside finds in its environment.
ADDRESS, TOKEN = "TALLYSTICK_BRIDGE", "TALLYSTICK_BRIDGE_TOKEN"
_ROUTES = {"/health": "GET", "/query": "POST", "/query_batched": "POST"}
_PAUSE_SECONDS = 0.05
_READ_BYTES = 65_536


def environment_of(address: str, token: IssuedToken) -> dict[str, str]:
    """What a program is given so that the client in it finds the bridge."""
    return {ADDRESS: address, TOKEN: token.text}


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
        # A POST without a length may have a body all the same.
        self.clean = head.length == 0 or (head.length is None and head.method == "GET")


class Bridge:
    """Serves model queries of programs over sockets. Use it as an async context manager."""

    def __init__(
        self,
        *,
        limits: BridgeLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = BridgeLimits() if limits is None else limits
        self._clock = clock
        self._tokens = TokenBook(clock=clock)
        self._asking: weakref.WeakKeyDictionary[Grant, Asking] = weakref.WeakKeyDictionary()
        self._listeners: list[Listener] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._closed = False

    async def __aenter__(self) -> Bridge:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
        """Make a token that asks by `ask`; with None its holder is told `LlmNotConfigured`."""
        issued = self._tokens.issue(scope, ttl_ms=ttl_ms, parent=parent)
        self._asking[issued.grant] = Asking(
            scope=issued.grant.scope,
            ask=ask,
            pace=self.limits.pace(self._clock),
            slots=asyncio.Semaphore(self.limits.under_way),
        )
        return issued

    def revoke(self, grant: Grant) -> None:
        """End a token and those under it, and cancel what they have under way."""
        for each in {grant, *self._tokens.revoke(grant)}:
            asking = self._asking.get(each)
            if asking is not None:
                asking.leave()

    def revoke_all(
        self, *, session: str, run: str | None = None, program: int | None = None
    ) -> None:
        """End the tokens of a session, or of a run or a program of it."""
        for each in self._tokens.matching(session=session, run=run, program=program):
            self.revoke(each)

    # -- where it listens ----------------------------------------------------------------------

    def listen_unix(self, path: Path, *, session: str | None, uid: int | None = None) -> Listener:
        """Listen on a socket of mode 0600 in a private directory, which is made if missing.

        With a session, only its tokens are taken. `uid` gives both to another user.
        """
        self._check_open()
        return self._listen(unix_listener(path, session=session, uid=uid))

    def listen_tcp(self, *, session: str | None, port: int = 0) -> Listener:
        """Listen on 127.0.0.1, where everybody on this machine can connect. Port 0 is any."""
        self._check_open()
        return self._listen(tcp_listener(session=session, port=port))

    def listen_on(self, sock: socket.socket, *, session: str | None) -> Listener:
        """Listen on a socket that listens already, an inherited one perhaps. It is ours then."""
        self._check_open()
        return self._listen(Listener(sock=sock, session=session))

    def serve(self, sock: socket.socket, *, session: str | None) -> None:
        """Serve one socket that is connected already. It is ours then, and may be idle."""
        self._check_open()
        sock.setblocking(False)
        self._begin(sock, session, idle_ms=None)

    def pair(self, *, session: str | None) -> socket.socket:
        """One end of a connection that is served, for one process to inherit."""
        self._check_open()
        ours, theirs = socket.socketpair()
        self.serve(ours, session=session)
        return theirs

    async def close(self) -> None:
        """End all connections and what is under way. Closing twice is harmless."""
        self._closed = True
        held: list[asyncio.Future[None] | asyncio.Future[BridgeAnswer]] = [*self._connections]
        held += [each.task for each in self._listeners if each.task is not None]
        held += [task for asking in self._asking.values() for task in asking.tasks]
        for task in held:
            task.cancel()
        if held:
            # Each writes down how it ended. One that does not let itself be left is left.
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
        """Take as many connections as may be open. The others wait where they cost nothing."""
        loop = asyncio.get_running_loop()
        free = asyncio.Semaphore(self.limits.connections)
        while True:
            await free.acquire()
            try:
                sock, _ = await loop.sock_accept(listener.sock)
            except OSError:
                # No descriptor is free, or whoever connected is gone.
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
            # Then whatever is written has left when `drain` returns.
            writer.transport.set_write_buffer_limits(high=0)
            while True:
                if not await self._request(reader, writer, session, idle_ms):
                    break
                # A client that sends many at once does not keep the others waiting.
                await asyncio.sleep(0)
        except (OSError, EOFError, TimeoutError):
            # It went away, or kept us waiting.
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
        """Serve one request. Returns whether another one may come on the connection."""
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
            body = await self._answered(exchange, session)
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
        """Let the reply arrive: to close on a client that still sends could take it away."""
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

    async def _answered(self, exchange: _Exchange, session: str | None) -> dict[str, object]:
        """What a request is answered. Its body is not read before its token is known."""
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
            return await self._asked(exchange, grant, asking, tasks)
        finally:
            asking.exit(tasks)

    async def _asked(
        self,
        exchange: _Exchange,
        grant: Grant,
        asking: Asking,
        tasks: list[asyncio.Future[BridgeAnswer]],
    ) -> dict[str, object]:
        body = await self._body(exchange)
        single = exchange.head.path == "/query"
        queries = [read_query(body)] if single else read_batch(body, most=self.limits.batch_max)
        if not grant.holds(self._clock()):
            # It ended while the body came.
            raise BridgeRefused("InvalidSessionToken", "X-Session-Token: it has just ended")
        loop = asyncio.get_running_loop()
        began = loop.time()
        outcomes, left = await asking.asked(queries, ends_at=exchange.ends_at, tasks=tasks)
        time_ms = round((loop.time() - began) * 1000)
        if not single:
            return batch_body(outcomes, left, time_ms=time_ms)
        ((outcome, _),) = outcomes
        if isinstance(outcome, BridgeRefused):
            raise outcome
        return query_body(outcome, time_ms=time_ms)
