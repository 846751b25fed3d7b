"""Messages and frames between the host, the launcher and the processes of a box.

Messages are JSON objects, with descriptors, over sockets that keep messages apart. What comes from
a program's side may be forged, so sizes are limited, and anything that is not a message is refused.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
import struct
from collections.abc import Iterable, Mapping
from typing import Any

_BYTES_MAX = 65_536
_DESCRIPTORS_MAX = 8
_CREDENTIALS = struct.Struct("=iII")
_dumps, _loads = json.dumps, json.loads


class ConnectionLost(Exception):
    """The connection is closed, timed out, or something that is not a message arrived."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a new connection that keeps messages apart."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(to: socket.socket, message: Mapping[str, Any], descriptors: Iterable[int] = ()) -> None:
    """Send a message. Raise `ConnectionLost` if the other end is closed, or does not take it.

    The descriptors stay open here.
    """
    packed = array.array("i", descriptors)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)] if packed else []
    try:
        to.sendmsg([_dumps(message).encode()], ancillary, socket.MSG_NOSIGNAL)
    except OSError as error:
        raise ConnectionLost(str(error)) from None


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return the next message and its descriptors, which the caller must close.

    Raise `ConnectionLost` if there is none.
    """
    message, descriptors, _ = receive_from(sock)
    return message, descriptors


def receive_plain(sock: socket.socket) -> dict[str, Any]:
    """Return the next message, and close descriptors that come with it.

    Raise `ConnectionLost` if there is none.
    """
    message, descriptors, _ = receive_from(sock)
    close_quietly(descriptors)
    return message


def receive_from(sock: socket.socket) -> tuple[dict[str, Any], list[int], int | None]:
    """Return the next message, its descriptors, and the process id of its sender.

    The id is None unless the socket has `SO_PASSCRED`. Raise `ConnectionLost` if there is no
    message.
    """
    room = socket.CMSG_SPACE(4 * _DESCRIPTORS_MAX) + socket.CMSG_SPACE(_CREDENTIALS.size)
    try:
        data, ancillary, _, _ = sock.recvmsg(_BYTES_MAX, room, socket.MSG_CMSG_CLOEXEC)
    except OSError as error:
        raise ConnectionLost(str(error)) from None
    descriptors: list[int] = []
    sender = None
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            got = array.array("i")
            got.frombytes(content[: len(content) - len(content) % got.itemsize])
            descriptors += got
        elif (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            sender = _CREDENTIALS.unpack(content[: _CREDENTIALS.size])[0]
    try:
        message = _loads(data) if data else None
    except (ValueError, RecursionError):
        message = None
    if type(message) is not dict:
        close_quietly(descriptors)
        raise ConnectionLost("the connection is closed" if not data else "no message")
    return message, descriptors, sender


def close_quietly(descriptors: Iterable[int]) -> None:
    """Close descriptors; ignore those that are closed already."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


# Frames between the host and a running program: one kind byte, a length, and a body.
#
# The host sends the program and the answers to its requests. The program's side sends requests, and
# its result last. That side may send anything, so the host limits the length of a body itself.


HEAD = struct.Struct("<BI")
BIND, RUN, CALL, REPLY, RESULT = range(1, 6)
_unpack, _pack, _len = HEAD.unpack, HEAD.pack, len


def read_exactly(sock: socket.socket, count: int) -> bytes:
    """Read exactly `count` bytes. Raise `EOFError` if the connection ends before."""
    buffer = bytearray(count)
    view, got = memoryview(buffer), 0
    while got < count:
        read = sock.recv_into(view[got:])
        if not read:
            raise EOFError("the other side is gone")
        got += read
    return bytes(buffer)


def read_frame(sock: socket.socket) -> tuple[int, bytes]:
    """Read the next frame, of any length: only for frames from the host.

    Raise `EOFError` if the connection ends.
    """
    kind, length = _unpack(read_exactly(sock, HEAD.size))
    return kind, read_exactly(sock, length)


def write_frame(sock: socket.socket, kind: int, body: bytes) -> None:
    """Send a frame; wait while its buffer is full. Raise `OSError` if the other side is gone."""
    head = _pack(kind, _len(body))
    # A short body goes out in one call with its head. A long one is not copied for that.
    if _len(body) < 65_536:
        sock.sendall(head + body)
        return
    sock.sendall(head)
    sock.sendall(body)
