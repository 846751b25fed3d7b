"""Memories for tests: a clock that is set, randomness that comes again, and notes in a word."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tallystick.memory.note import NewNote
from tallystick.memory.store.projection import PROJECTION_TABLES
from tallystick.memory.store.records import NotesRecalled
from tallystick.memory.store.sqlite import SqliteMemory

__all__ = [
    "START",
    "Clock",
    "Entropy",
    "a_note",
    "open_memory",
    "quick_folder",
    "raw_bytes",
    "record_access",
    "tables",
]

START = 1_700_000_000_000


# Where a file is written without waiting for a disk, if there is such a place.
_QUICK = next((path for path in ("/dev/shm",) if os.access(path, os.W_OK)), None)


@contextlib.contextmanager
def quick_folder() -> Iterator[Path]:
    """A folder for what is not about the disk: waiting for one is most of the time of a law."""
    with tempfile.TemporaryDirectory(dir=_QUICK) as folder:
        yield Path(folder)


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self, now: int = START) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


class Entropy:
    """Bytes that look random and are the same in every test."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._count = 0

    def __call__(self, count: int) -> bytes:
        self._count += 1
        return hashlib.sha256(b"%d %d" % (self._seed, self._count)).digest()[:count]


def open_memory(folder: Path, *, clock: Clock | None = None, seed: int = 0) -> SqliteMemory:
    return SqliteMemory(folder / "memory.db", clock=clock or Clock(), entropy=Entropy(seed))


def a_note(content: str = "the kettle is on", **fields: Any) -> NewNote:
    return NewNote(**{"agent_id": "ada", "content": content, **fields})


def raw_bytes(folder: Path) -> bytes:
    """Everything that stands in the files of a memory: pages, free pages, its log."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return b"\0".join(path.read_bytes() for path in files)


def tables(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """The rows of all projections, and of the index which note has which term."""
    db = sqlite3.connect(path)
    try:
        found = {
            table: db.execute(f"SELECT * FROM {table} ORDER BY {order}").fetchall()
            for table, order in PROJECTION_TABLES.items()
        }
        db.execute("CREATE VIRTUAL TABLE temp.spoken USING fts5vocab(main, words, instance)")
        found["words"] = db.execute("SELECT term, doc FROM spoken ORDER BY term, doc").fetchall()
    finally:
        db.close()
    return found


def record_access(memory: SqliteMemory, ids: Sequence[str]) -> int:
    """Record that notes were recalled, without a ranking. Return the position of the entry."""
    with memory.writing() as writer:
        seq, _ = writer.append(NotesRecalled(ids=tuple(dict.fromkeys(ids)), at=writer.at))
        return seq
