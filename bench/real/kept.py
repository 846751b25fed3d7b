"""Replies that were given before, in a file: equal requests are answered without the model.

Configurations of a runtime differ in few of their requests. With the replies of the others kept,
only what differs costs time, and a model that answers a little differently each time (a cache of
prompts, several threads) gives every configuration the same reply to the same request.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

__all__ = ["KeptReplies"]

_TABLE = """
CREATE TABLE IF NOT EXISTS replies (
    asked TEXT PRIMARY KEY, kind TEXT NOT NULL, reply BLOB NOT NULL, seconds REAL NOT NULL,
    at REAL NOT NULL
)
"""
_WAIT_S = 60.0


class KeptReplies:
    """Replies by the digest of the path and the whole body of their request.

    Several processes may use one file at once. Only replies with status 200 belong here: another
    one may be gone at the next attempt. With `alone`, the model is not asked for others: such a
    request is refused, and counted in `missed`.
    """

    def __init__(self, path: Path, *, alone: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self.alone = alone
        self.missed = 0
        self._guard = threading.Lock()
        self.served = 0
        # What the model took for the replies that were served, which a run without the file pays.
        self.seconds = 0.0
        with closing(self._open()) as opened, opened:
            opened.execute(_TABLE)

    def find(self, path: str, body: bytes) -> tuple[str, bytes] | None:
        """Return the media type and the bytes of a kept reply, or None."""
        with closing(self._open()) as opened:
            row = opened.execute(
                "SELECT kind, reply, seconds FROM replies WHERE asked = ?", (_key(path, body),)
            ).fetchone()
        if row is None:
            with self._guard:
                self.missed += 1
            return None
        with self._guard:
            self.served += 1
            self.seconds += row[2]
        return row[0], row[1]

    def keep(self, path: str, body: bytes, kind: str, reply: bytes, *, seconds: float) -> None:
        """Keep a reply, unless another process has kept one since: the first one stays."""
        row = (_key(path, body), kind, reply, seconds, time.time())
        with closing(self._open()) as opened, opened:
            opened.execute("INSERT OR IGNORE INTO replies VALUES (?, ?, ?, ?, ?)", row)

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=_WAIT_S)


def _key(path: str, body: bytes) -> str:
    return hashlib.sha256(path.encode() + b"\0" + body).hexdigest()
