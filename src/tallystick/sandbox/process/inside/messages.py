"""Messages and frames between the host, the launcher and what runs in a box.

They go over sockets that keep messages apart. Whoever reads from a program's side reads what a
program may have written: sizes are bounded, and what is no message is none.
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


class Torn(Exception):
    """The other side is gone, or did not send a message."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection that keeps messages apart."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(to: socket.socket, message: Mapping[str, Any], descriptors: Iterable[int] = ()) -> None:
    """Send a message. Raises `Torn` if nobody is there to read it."""
    packed = array.array("i", descriptors)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)] if packed else []
    try:
        to.sendmsg([_dumps(message).encode()], ancillary, socket.MSG_NOSIGNAL)
    except OSError as error:
        raise Torn(str(error)) from None


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next message and its descriptors. Raises `Torn` at the end."""
    message, descriptors, _ = receive_from(sock)
    return message, descriptors


def receive_plain(sock: socket.socket) -> dict[str, Any]:
    """The next message from where no descriptors are wanted: those that come are closed."""
    message, descriptors, _ = receive_from(sock)
    close_quietly(descriptors)
    return message


def receive_from(sock: socket.socket) -> tuple[dict[str, Any], list[int], int | None]:
    """The same with the sender's process id, if the socket was told to pass it on."""
    room = socket.CMSG_SPACE(4 * _DESCRIPTORS_MAX) + socket.CMSG_SPACE(_CREDENTIALS.size)
    try:
        data, ancillary, _, _ = sock.recvmsg(_BYTES_MAX, room, socket.MSG_CMSG_CLOEXEC)
    except OSError as error:
        raise Torn(str(error)) from None
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
        raise Torn("the connection is closed" if not data else "no message")
    return message, descriptors, sender


def close_quietly(descriptors: Iterable[int]) -> None:
    """Close what may be closed already."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


# Frames between the host and a running program: one kind byte, a length, and a body.
#
# The host sends what to run and the answers; the program sends requests and at last a result. The
# program's side may send anything at all: the reader names the greatest body it takes.


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
