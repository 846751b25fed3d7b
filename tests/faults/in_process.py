"""Kills this process as it makes the n-th call that others can see: where calls cannot be traced.

Coarser than system calls: a transaction is begun or committed, a file of an attachment is made,
written, forced, named or removed, something is sent or received. What SQLite does inside a commit
is not seen.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import sqlite3
from collections.abc import Callable
from typing import Any

__all__ = ["die_at"]

_FILES = ("open", "write", "fsync", "rename", "unlink", "mkdir")
_SOCKETS = ("connect", "send", "sendall", "recv", "recv_into", "close")
_STATEMENTS = ("BEGIN IMMEDIATE", "COMMIT")


def die_at(place: int | None, told: Callable[[str], None]) -> None:
    """Count from here on, and die at a place. Says each call by its name before it is made."""
    count = itertools.count(1)

    def seen(name: str) -> None:
        number = next(count)
        told(name)
        if number == place:
            os.kill(os.getpid(), signal.SIGKILL)

    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
            if sql in _STATEMENTS:
                seen(sql)
            return super().execute(sql, *rest)

    def connect(*given: Any, **named: Any) -> sqlite3.Connection:
        return _connect(*given, **named, factory=Connection)

    _connect = sqlite3.connect
    _replace(sqlite3, "connect", connect)
    for name in _FILES:
        _replace(os, name, _watched(getattr(os, name), f"os.{name}", seen))
    for name in _SOCKETS:
        _replace(socket.socket, name, _watched(getattr(socket.socket, name), name, seen))


def _watched(
    call: Callable[..., Any], name: str, seen: Callable[[str], None]
) -> Callable[..., Any]:
    def made(*given: Any, **named: Any) -> Any:
        # What this process says on its output is not seen by anybody who matters.
        if name != "os.write" or given[0] != 1:
            seen(name)
        return call(*given, **named)

    return made


def _replace(owner: Any, name: str, made: Callable[..., Any]) -> None:
    setattr(owner, name, made)
