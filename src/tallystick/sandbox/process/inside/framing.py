"""Frames between the host and a running program: one kind byte, a length, and a body.

The host sends what to run and the answers; the program sends requests and at last a result. The
program's side may send anything at all: the reader names the greatest body it takes.
"""

from __future__ import annotations

import socket
import struct

__all__ = [
    "BIND",
    "CALL",
    "HEAD",
    "REPLY",
    "RESULT",
    "RUN",
    "read_exactly",
    "read_frame",
    "write_frame",
]

HEAD = struct.Struct("<BI")
BIND, RUN, CALL, REPLY, RESULT = range(1, 6)
_unpack, _pack, _len = HEAD.unpack, HEAD.pack, len


def read_exactly(sock: socket.socket, count: int) -> bytes:
    """Read so many bytes. Raises `EOFError` if there are fewer."""
    buffer = bytearray(count)
    view, got = memoryview(buffer), 0
    while got < count:
        read = sock.recv_into(view[got:])
        if not read:
            raise EOFError("the other side is gone")
        got += read
    return bytes(buffer)


def read_frame(sock: socket.socket) -> tuple[int, bytes]:
    """The next frame, of whatever length: for the side that reads from the host."""
    kind, length = _unpack(read_exactly(sock, HEAD.size))
    return kind, read_exactly(sock, length)


def write_frame(sock: socket.socket, kind: int, body: bytes) -> None:
    """Send a frame."""
    head = _pack(kind, _len(body))
    if _len(body) < 65_536:
        sock.sendall(head + body)
        return
    sock.sendall(head)
    sock.sendall(body)
