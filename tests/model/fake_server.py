"""A server of both wire formats that does as it is told, request by request, down to the byte.

A behaviour is a function from what was asked to steps: bytes to send, seconds to wait, or an end.
What no behaviour is set for is answered well. Connections are kept open between requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any

from tallystick.core.machine.prompt import Message
from tallystick.model.endpoint import Dialect, Endpoint, Secret
from tallystick.model.http import HttpModel
from tallystick.model.port import ModelError, ModelReply, ModelRequest

KEY = "sk-fake-0123456789abcdefXYZ"
TEXT = "Hello there."
DIALECTS: tuple[Dialect, ...] = ("openai", "anthropic")
REQUEST = ModelRequest(messages=(Message(role="user", part="task", text="Say hello."),))


class End(Enum):
    """How a connection ends before its time."""

    CLOSE = "close"
    RESET = "reset"
    STALL = "stall"


Step = bytes | float | End


@dataclass
class Seen:
    """One request, and when its client went away."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    closed: threading.Event = field(default_factory=threading.Event)
    closed_at: float = 0.0

    @property
    def json(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self.body)
        return said

    @property
    def key(self) -> str:
        bearer = self.headers.get("authorization", "").removeprefix("Bearer ")
        return self.headers.get("x-api-key", bearer)

    @property
    def dialect(self) -> Dialect:
        return "anthropic" if self.path.endswith("/messages") else "openai"

    @property
    def stream(self) -> bool:
        return bool(self.json.get("stream"))


Behaviour = Callable[[Seen], Iterable[Step]]


class FakeServer:
    """Listens on the loopback address while inside. Its loop runs in a thread of its own."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.connections = 0
        self.arrived = threading.Event()
        self._behaviours: deque[Behaviour] = deque()
        self._always: Behaviour = ok()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None

    def will(self, *behaviours: Behaviour) -> None:
        """Do these for the next requests, in this order."""
        self._behaviours.extend(behaviours)

    def always(self, behaviour: Behaviour) -> None:
        self._always = behaviour

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    def __enter__(self) -> FakeServer:
        self._thread.start()
        assert self._ready.wait(5)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._loop is not None
        assert self._stopped is not None
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(5)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        tasks: set[asyncio.Task[None]] = set()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            task = asyncio.ensure_future(self._connection(reader, writer, self.connections))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopped.wait()
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        try:
            while True:
                seen = await _request(reader, number)
                self.seen.append(seen)
                self.arrived.set()
                behaviour = self._behaviours.popleft() if self._behaviours else self._always
                if await self._perform(behaviour(seen), seen, reader, writer):
                    return
        except _NotHttp:
            writer.write(head(400) + b"not HTTP")
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            for seen in self.seen:
                if seen.connection == number and not seen.closed.is_set():
                    seen.closed_at = time.monotonic()
                    seen.closed.set()
            writer.close()

    async def _perform(
        self,
        steps: Iterable[Step],
        seen: Seen,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Take the steps. True if the connection is over."""
        for step in steps:
            if isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
            elif isinstance(step, float):
                # Whoever leaves while we wait is noticed.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(step):
                        if not await reader.read(1):
                            return True
            elif step is End.STALL:
                await reader.read(1)
                return True
            elif step is End.RESET:
                _reset(writer)
                return True
            else:
                return True
        return False


class _NotHttp(Exception):
    """Somebody speaks TLS, perhaps."""


async def _request(reader: asyncio.StreamReader, connection: int) -> Seen:
    begin = await reader.readexactly(1)
    if not begin.isalpha():
        raise _NotHttp
    head = (begin + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    method, path, _ = first.split(" ")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        if name:
            headers[name.lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Seen(method=method, path=path, headers=headers, body=body, connection=connection)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a reset instead of an end: unsent and unread bytes are lost."""
    connected = writer.get_extra_info("socket")
    assert connected is not None
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


# -- what replies are made of -------------------------------------------------------------------

OPENAI_USAGE: dict[str, object] = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
ANTHROPIC_USAGE: dict[str, object] = {"input_tokens": 11, "output_tokens": 3}


def usage_of(dialect: Dialect) -> dict[str, object]:
    return OPENAI_USAGE if dialect == "openai" else ANTHROPIC_USAGE


def head(status: int = 200, *, content_type: str = "application/json", **headers: object) -> bytes:
    lines = [f"HTTP/1.1 {status} Said", f"content-type: {content_type}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([line for line in lines if not line.endswith(": ")] + ["", ""]).encode(
        "latin-1"
    )


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def events(stream: Iterable[tuple[str, object]]) -> list[bytes]:
    """Server-sent events, one piece each."""
    made = []
    for name, value in stream:
        data = value if isinstance(value, str) else json.dumps(value)
        made.append(f"{f'event: {name}' + chr(10) if name else ''}data: {data}\n\n".encode())
    return made


def openai_body(text: str | None, *, finish: str, usage: object, model: str) -> dict[str, object]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": finish,
            }
        ],
        "usage": usage,
    }


def openai_stream(
    texts: Iterable[str], *, finish: str, usage: object, model: str, report_last: bool = True
) -> Iterator[tuple[str, object]]:
    def piece(choices: list[object], usage: object = None) -> tuple[str, object]:
        return "", {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1_700_000_000,
            "model": model,
            "choices": choices,
            "usage": usage,
        }

    def choice(delta: dict[str, object], finish: str | None = None) -> list[object]:
        return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]

    begun: object = None
    if isinstance(usage, Mapping) and not report_last:
        begun = {**usage, "completion_tokens": 1}
    yield piece(choice({"role": "assistant", "content": ""}), begun)
    for text in texts:
        yield piece(choice({"content": text}))
    yield piece(choice({}, finish))
    if report_last:
        yield piece([], usage)
    yield "", "[DONE]"


def anthropic_body(text: str, *, finish: str, usage: object, model: str) -> dict[str, object]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": text}],
        "stop_reason": finish,
        "stop_sequence": None,
        "usage": usage,
    }


def anthropic_stream(
    texts: Iterable[str], *, finish: str, usage: object, model: str, report_last: bool = True
) -> Iterator[tuple[str, object]]:
    begun: object = usage
    if isinstance(usage, Mapping) and "output_tokens" in usage:
        begun = {**usage, "output_tokens": 1}
    message = anthropic_body("", finish=finish, usage=begun, model=model)
    message |= {"content": [], "stop_reason": None}
    yield "message_start", {"type": "message_start", "message": message}
    block = {"type": "text", "text": ""}
    yield "content_block_start", {"type": "content_block_start", "index": 0, "content_block": block}
    yield "ping", {"type": "ping"}
    for text in texts:
        delta = {"type": "text_delta", "text": text}
        yield "content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}
    yield "content_block_stop", {"type": "content_block_stop", "index": 0}
    stop = {"stop_reason": finish, "stop_sequence": None}
    last = usage if report_last else None
    yield "message_delta", {"type": "message_delta", "delta": stop, "usage": last}
    yield "message_stop", {"type": "message_stop"}


def pieces_of(
    seen: Seen, text: str, *, finish: str, usage: object, model: str, report_last: bool = True
) -> list[bytes]:
    """The events of a streamed reply, three characters of text in each.

    Without `report_last`, usage is reported when the stream starts and never again.
    """
    texts = [text[at : at + 3] for at in range(0, len(text), 3)]
    make = openai_stream if seen.dialect == "openai" else anthropic_stream
    return events(make(texts, finish=finish, usage=usage, model=model, report_last=report_last))


# -- behaviours ---------------------------------------------------------------------------------

_REPORTED = object()


def ok(
    text: str = TEXT,
    *,
    finish: str = "",
    usage: object = _REPORTED,
    model: str = "",
    stream: bool | None = None,
    report_last: bool = True,
) -> Behaviour:
    """A good reply, streamed if it was asked so, or as `stream` says."""

    def steps(seen: Seen) -> Iterable[Step]:
        told = usage_of(seen.dialect) if usage is _REPORTED else usage
        why = finish or ("stop" if seen.dialect == "openai" else "end_turn")
        served = model or seen.json["model"]
        if seen.stream if stream is None else stream:
            yield head(content_type="text/event-stream; charset=utf-8", transfer_encoding="chunked")
            pieces = pieces_of(
                seen, text, finish=why, usage=told, model=served, report_last=report_last
            )
            for piece in pieces:
                yield chunk(piece)
            yield chunk(b"")
        else:
            make = openai_body if seen.dialect == "openai" else anthropic_body
            yield from whole(json.dumps(make(text, finish=why, usage=told, model=served)).encode())(
                seen
            )

    return steps


def whole(
    data: bytes, *, status: int = 200, content_type: str = "application/json", **headers: object
) -> Behaviour:
    """One body with its length."""

    def steps(seen: Seen) -> Iterable[Step]:
        yield head(status, content_type=content_type, content_length=len(data), **headers) + data

    return steps


def error_body(seen: Seen, message: str, *, type_: str, code: str | None = None) -> bytes:
    error: dict[str, object] = {"type": type_, "message": message}
    if seen.dialect == "openai":
        return json.dumps({"error": {**error, "code": code, "param": None}}).encode()
    return json.dumps({"type": "error", "error": error, "request_id": "req_1"}).encode()


def status(
    code: int,
    message: str = "no",
    *,
    type_: str = "some_error",
    name: str | None = None,
    **headers: Any,
) -> Behaviour:
    """An error as this provider writes it."""

    def steps(seen: Seen) -> Iterable[Step]:
        data = error_body(seen, message, type_=type_, code=name)
        yield from whole(data, status=code, **headers)(seen)

    return steps


def html(code: int = 200) -> Behaviour:
    page = b"<!DOCTYPE html><html><head><title>Welcome</title></head></html>"
    return whole(page, status=code, content_type="text/html; charset=utf-8")


def empty() -> Behaviour:
    return whole(b"")


def malformed() -> Behaviour:
    return whole(b'{"id": "chatcmpl-1", "choices": [{"mess')


def wrong_type() -> Behaviour:
    return whole(b"\x00\x01\x02", content_type="application/octet-stream")


def no_choices() -> Behaviour:
    return whole(b'{"object": "chat.completion"}')


def redirect(location: str) -> Behaviour:
    return whole(b"", status=307, location=location)


def streamed(*steps: Step, keep: int | None = None, ended: bool = False) -> Behaviour:
    """The beginning of a stream (`keep` events; all but the last two by default), then steps."""

    def made(seen: Seen) -> Iterable[Step]:
        why = "stop" if seen.dialect == "openai" else "end_turn"
        pieces = pieces_of(seen, TEXT, finish=why, usage=usage_of(seen.dialect), model="m")
        yield head(content_type="text/event-stream", transfer_encoding="chunked")
        for piece in pieces[: 4 if keep is None else keep]:
            yield chunk(piece)
        if ended:
            yield chunk(b"")
        yield from steps

    return made


def stalled() -> Behaviour:
    """A stream that says no more and stays open."""
    return streamed(End.STALL)


def cut() -> Behaviour:
    """A stream that ends as HTTP has it, without its own end marker."""
    return streamed(ended=True)


def cut_in_a_chunk() -> Behaviour:
    return streamed(b"40\r\ndata: {", End.CLOSE)


def reset_in_a_stream() -> Behaviour:
    return streamed(0.02, End.RESET)


def reset() -> Behaviour:
    return lambda seen: [End.RESET]


def hang_up() -> Behaviour:
    """The connection is closed with no answer at all."""
    return lambda seen: [End.CLOSE]


def silence() -> Behaviour:
    return lambda seen: [End.STALL]


def trickle(seconds: float = 0.02) -> Behaviour:
    """A byte at a time, for ever: never silent, never done."""

    def steps(seen: Seen) -> Iterable[Step]:
        yield head(content_type="text/event-stream", transfer_encoding="chunked")
        while True:
            yield chunk(b":")
            yield seconds

    return steps


def huge() -> Behaviour:
    """More than anybody reads, in events that are each well made."""

    def steps(seen: Seen) -> Iterable[Step]:
        yield head(content_type="text/event-stream", transfer_encoding="chunked")
        first, *_ = pieces_of(seen, "", finish="stop", usage=None, model="m")
        yield chunk(first)
        texts = ["x" * 60_000] * 200
        make = openai_stream if seen.dialect == "openai" else anthropic_stream
        for piece in events(make(texts, finish="stop", usage=None, model="m")):
            yield chunk(piece)
        yield chunk(b"")

    return steps


def huge_body() -> Behaviour:
    return whole(b'{"choices": "' + b"x" * (9 * 1024 * 1024) + b'"}')


def in_stream(error: object) -> Behaviour:
    """An error in the midst of a stream that had begun well."""

    def steps(seen: Seen) -> Iterable[Step]:
        yield head(content_type="text/event-stream", transfer_encoding="chunked")
        for piece in pieces_of(seen, TEXT, finish="stop", usage=None, model="m")[:3]:
            yield chunk(piece)
        named = ("error", {"type": "error", "error": error})
        yield chunk(events([("", {"error": error}) if seen.dialect == "openai" else named])[0])
        yield chunk(b"")

    return steps


# -- asking -------------------------------------------------------------------------------------


def endpoint(server: FakeServer, dialect: Dialect = "openai", **changes: Any) -> Endpoint:
    """An endpoint at the server. A test that waits for a deadline sets it."""
    settings: dict[str, Any] = {
        "provider": "fake",
        "dialect": dialect,
        "base_url": server.url,
        "model": "m",
        "key": Secret(KEY),
        "connect_seconds": 2.0,
        "silence_seconds": 5.0,
        "total_seconds": 10.0,
    }
    return Endpoint(**(settings | changes))


async def ask_once(where: Endpoint, request: ModelRequest = REQUEST) -> ModelReply:
    model = HttpModel(where)
    try:
        async with model.admitted():
            return await model.ask(request)
    finally:
        await model.close()


def replied(where: Endpoint, request: ModelRequest = REQUEST) -> ModelReply:
    return asyncio.run(ask_once(where, request))


def failed(where: Endpoint, request: ModelRequest = REQUEST) -> ModelError:
    try:
        reply = replied(where, request)
    except ModelError as error:
        return error
    raise AssertionError(f"there is a reply: {reply}")
