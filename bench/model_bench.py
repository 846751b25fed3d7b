"""Models over HTTP: what asking one costs beside the bare client doing the same.

Question: is a turn at most 2 ms of processor time above httpx sending the same bytes and reading
the same stream?

Sketch before measuring. A streamed reply of 100 events costs httpx 3 to 10 ms: a parsed chunk for
each, and a read and a wake-up for those that come alone. On top come an event to decode (3 us) and
its JSON (2 us), a layer of iteration (2 us), a request to encode (50 us), the scrubbing of the key
(50 us) and two timeouts: about 1 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.measure import Bench, Row, World

from tallystick.core.machine.prompt import Message
from tallystick.model import openai
from tallystick.model.endpoint import Endpoint, Secret
from tallystick.model.http import HttpModel
from tallystick.model.port import ModelRequest

__all__ = ["BENCHES"]

_EVENTS = 100
_TURNS = 20
_ROUNDS = 21
_TEXT = "What do these lines say?\n" * 80
_PROMPT = (
    Message(role="system", part="system", text=_TEXT),
    Message(role="user", part="task", text=_TEXT),
    Message(role="assistant", part="reply:1", text=_TEXT),
    Message(role="user", part="result:2", text=_TEXT),
)
_REQUEST = ModelRequest(messages=_PROMPT, temperature=0.0)


# -- the server, in a process of its own --------------------------------------------------------


def _events() -> list[bytes]:
    """A streamed reply as OpenAI sends it, each event a chunk."""

    def event(value: object) -> bytes:
        data = f"data: {json.dumps(value)}\n\n".encode()
        return f"{len(data):x}\r\n".encode() + data + b"\r\n"

    shared = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    made = []
    for number in range(_EVENTS):
        finish = "stop" if number == _EVENTS - 1 else None
        choice = {"index": 0, "delta": {"content": f" word{number}"}, "finish_reason": finish}
        made.append(event({**shared, "choices": [choice], "usage": None}))
    usage = {"prompt_tokens": 2_000, "completion_tokens": 100, "total_tokens": 2_100}
    made.append(event({**shared, "choices": [], "usage": usage}))
    return [*made, b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"]


async def _serve() -> None:
    events = _events()
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                asked = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = asked.partition(b"content-length:")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length))
                writer.write(head)
                for event in events:
                    writer.write(event)
                    await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def _server() -> Iterator[str]:
    with subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.kill()


# -- the two clients ----------------------------------------------------------------------------


async def _measured(url: str) -> list[tuple[float, float]]:
    """Processor milliseconds a turn: bare and ours, by turns, so a busy moment falls on both."""
    import httpx

    endpoint = Endpoint(
        provider="bench", dialect="openai", base_url=url, model="m", key=Secret("k" * 40)
    )
    wire = openai.wire(endpoint, _REQUEST)
    headers = {"authorization": "Bearer " + "k" * 40, "content-type": "application/json"}
    timeout = httpx.Timeout(300.0, connect=10.0)
    model = HttpModel(endpoint)

    async with httpx.AsyncClient(timeout=timeout, trust_env=False) as client:

        async def bare() -> None:
            read = 0
            where = f"{url}{wire.path}"
            async with client.stream("POST", where, content=wire.body, headers=headers) as answer:
                async for piece in answer.aiter_bytes():
                    read += len(piece)
            assert read > 10_000

        async def ours() -> None:
            async with model.admitted():
                reply = await model.ask(_REQUEST)
            assert (reply.usage.tokens_out, reply.finish) == (100, "stop")

        pairs = []
        for _ in range(_ROUNDS + 1):
            took = [0.0, 0.0]
            for number in range(2 * _TURNS):
                began = time.process_time()
                await (bare, ours)[number % 2]()
                took[number % 2] += (time.process_time() - began) * 1000 / _TURNS
            pairs.append((took[0], took[1]))
    await model.close()
    return pairs[1:]  # the first round connects and imports


def model_turn(world: World) -> Iterable[Row]:
    with _server() as url:
        pairs = world.do(_measured(url))
    bare = sorted(pair[0] for pair in pairs)[_ROUNDS // 2]
    yield Row(
        bench="model-turn",
        name="processor time of a model turn above bare httpx",
        unit="ms",
        samples=[ours - plain for plain, ours in pairs],
        target=2.0,
        against=f"bare httpx, a stream of {_EVENTS} events: {bare:.2f} ms",
    )
    yield Row(
        bench="model-turn",
        name="processor time of a model turn to bare httpx",
        unit="x",
        samples=[ours / plain for plain, ours in pairs],
    )


BENCHES: dict[str, Bench] = {"model-turn": model_turn}

if __name__ == "__main__":
    asyncio.run(_serve())
