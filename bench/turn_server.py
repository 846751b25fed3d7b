"""A model's server for runs of ten turns: it sends the program of the turn that is asked for.

    python bench/turn_server.py        prints its port; POST /v1/chat/completions

The turn is the number of replies that the request holds. Whoever asks for a stream gets one, an
event for each word, in pieces of 40 events.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

__all__ = ["TURNS", "reply"]

TURNS = 10
_WORDS = "Let me look at the rows once more, with another factor this time, and add them up.\n"
_USAGE = {"prompt_tokens": 300, "completion_tokens": 60, "total_tokens": 360}
_SHARED = {"id": "chatcmpl-1", "created": 1, "model": "m"}
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_PIECE_EVENTS = 40


def reply(turn: int) -> str:
    """The reply to turn 0 to 9; the last one answers."""
    if turn == TURNS - 1:
        return f"{_WORDS}```python\nFINAL(sum(rows))\n```"
    program = f"rows = [i * {turn + 1} for i in range(500)]\nprint(sum(rows))"
    return f"{_WORDS}```python\n{program}\n```"


def _whole(text: str) -> bytes:
    message = {"role": "assistant", "content": text, "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    body = {**_SHARED, "object": "chat.completion", "choices": [choice], "usage": _USAGE}
    data = json.dumps(body).encode()
    return _HEAD % len(data) + data


def _pieces(text: str) -> list[bytes]:
    """The chunks of a streamed reply, an event for each word."""
    shared = {**_SHARED, "object": "chat.completion.chunk"}
    events = []
    words = [f"{word} " for line in text.splitlines(True) for word in line.split(" ")]
    # The blank that was added goes again: it would follow the end of a line.
    deltas: list[tuple[str, str | None]] = [
        (word[:-1] if word.endswith("\n ") else word, None) for word in words
    ]
    for content, finish in [*deltas, ("", "stop")]:
        choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
        events.append({**shared, "choices": [choice], "usage": None})
    events.append({**shared, "choices": [], "usage": _USAGE})
    lines = [b"data: %s\n\n" % json.dumps(event).encode() for event in events]
    lines.append(b"data: [DONE]\n\n")
    starts = range(0, len(lines), _PIECE_EVENTS)
    pieces = [b"".join(lines[start : start + _PIECE_EVENTS]) for start in starts]
    return [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces]


def _asked(body: bytes) -> tuple[int, bool]:
    """The turn that a request is for, and whether it wants a stream."""
    request: dict[str, Any] = json.loads(body)
    turn = sum(message["role"] == "assistant" for message in request["messages"])
    return turn, bool(request.get("stream"))


async def _serve() -> None:
    wholes = [_whole(reply(turn)) for turn in range(TURNS)]
    streams = [_pieces(reply(turn)) for turn in range(TURNS)]

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
                turn, streamed = _asked(await reader.readexactly(int(length)))
                if not streamed:
                    writer.write(wholes[turn])
                    continue
                writer.write(_STREAM)
                for piece in streams[turn]:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                writer.write(b"0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve())
