"""A model's server for a fan-out: each reply takes 100 ms and costs a cent, and it keeps the bill.

    python bench/fan_out_server.py        prints its port; POST /v1/chat/completions, GET /bill

A request whose last message begins with `item` is one call of the fan-out; any other is a turn, and
is answered with a program that makes the fan-out, then with an answer. Whoever asks for a stream
gets one. `usage.cost` is what OpenRouter adds; who does not know it does not mind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from typing import Any

__all__ = ["CALLS", "SECONDS", "USAGE", "USD_EACH", "program"]

CALLS = 1_000
SECONDS = 0.1
USD_EACH = 0.01
# At 100 dollars for a million tokens of output and nothing for input, this is a cent.
USAGE = {"prompt_tokens": 10, "completion_tokens": 100, "total_tokens": 110}
_SHARED = {"id": "chatcmpl-1", "created": 1, "model": "m"}
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


def program(calls: int = CALLS) -> str:
    """A turn that makes the whole fan-out in one call."""
    return (
        f"```repl\nfound = llm_query_batched([f'item {{n}}' for n in range({calls})])\n"
        f"print(len([each for each in found if each == 'ok']))\n```"
    )


class _Bill:
    """What was billed, in calls; turns are free, so that the fan-out alone is compared."""

    def __init__(self) -> None:
        self.calls = 0
        self.turns = 0

    def reply(self, asked: dict[str, Any]) -> tuple[str, float]:
        """The text of a reply, and how long it takes."""
        content = asked["messages"][-1]["content"]
        text = content if isinstance(content, str) else str(content[-1].get("text", ""))
        if text.startswith("item"):
            self.calls += 1
            return "ok", SECONDS
        self.turns += 1
        return (program(), 0.0) if self.turns == 1 else ("FINAL(done)", 0.0)


def _whole(text: str) -> bytes:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "stop",
    }
    usage = {**USAGE, "cost": USD_EACH if text == "ok" else 0}
    body = {**_SHARED, "object": "chat.completion", "choices": [choice], "usage": usage}
    data = json.dumps(body).encode()
    return _HEAD % len(data) + data


def _streamed(text: str) -> bytes:
    def chunk(data: bytes) -> bytes:
        return b"%x\r\n%s\r\n" % (len(data), data)

    def event(**more: object) -> bytes:
        return chunk(f"data: {json.dumps({**_SHARED, **more})}\n\n".encode())

    choice = {"index": 0, "delta": {"content": text}, "finish_reason": "stop"}
    said = event(choices=[choice], usage=None) + event(choices=[], usage=USAGE)
    return _STREAM + said + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


async def _serve() -> None:
    bill = _Bill()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                if head.startswith(b"get "):
                    data = json.dumps({"calls": bill.calls, "turns": bill.turns}).encode()
                    bill.calls = bill.turns = 0
                    writer.write(_HEAD % len(data) + data)
                    continue
                length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
                asked = json.loads(await reader.readexactly(int(length)))
                text, seconds = bill.reply(asked)
                if seconds:
                    await asyncio.sleep(seconds)
                writer.write(_streamed(text) if asked.get("stream") else _whole(text))
        writer.close()

    # As many as knock at once; the default of a hundred makes the others wait a second each.
    server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=4 * CALLS)
    print(server.sockets[0].getsockname()[1], flush=True)
    # Whoever started it ends it by letting go of its input.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(_serve())
