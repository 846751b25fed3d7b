"""The rows of a ledger's file: what they hold is checked as it is read.

A row that holds what we never write is damage, and said to be: `LedgerCorrupt`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Sequence
from pathlib import Path

from tallystick.core.chain import GENESIS, Head, Sealed
from tallystick.core.entry import FORKED, Root, root_of
from tallystick.core.errors import LedgerCorrupt
from tallystick.ledger.port import RunRow

__all__ = ["Rows", "insert", "put", "remove", "without_bodies"]

_ROW = "SELECT id, created_at, count, hash, fence, moved, imported FROM run"
_COLUMNS = "entry.seq, entry.header, entry.hash, body.seq, salt, body"
_WITH_BODY = "LEFT JOIN body ON body.run = entry.run AND body.seq = entry.seq"
_ENTRIES = f"""
    SELECT {_COLUMNS} FROM entry {_WITH_BODY}
    WHERE entry.run = ? AND entry.seq >= ? ORDER BY entry.seq
"""
# The id and the first entry of all that may be forks. What only looks like one is sorted out later.
_FORKS = f"""
    SELECT run.id, {_COLUMNS} FROM run
    JOIN entry ON entry.run = run.id AND entry.seq = 0 {_WITH_BODY}
    WHERE instr(entry.header, CAST('"{FORKED}"' AS BLOB)) ORDER BY run.id
"""
_ROW_TYPES = (str, int, int, bytes, int, int, int)

_FoundEntry = tuple[int, bytes, bytes, int | None, bytes | None, bytes | None]


class Rows:
    """Reads the rows of one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def row(self, db: sqlite3.Connection, run: str) -> RunRow | None:
        found = db.execute(f"{_ROW} WHERE id = ?", (run,)).fetchone()
        return None if found is None else self._as_row(found)

    def rows(self, db: sqlite3.Connection) -> list[RunRow]:
        return [self._as_row(found) for found in db.execute(f"{_ROW} ORDER BY id")]

    def entries(
        self, db: sqlite3.Connection, run: str, start: int
    ) -> Generator[Sealed, None, None]:
        """The entries from a place on. To be closed before the connection is let go of."""
        cursor = db.execute(_ENTRIES, (run, start))
        try:
            for seq, found in enumerate(cursor, start):
                yield self._as_entry(found, run, seq)
        finally:
            cursor.close()

    def hash_at(self, db: sqlite3.Connection, run: str, seq: int) -> str | None:
        """The hash of the entry at a place."""
        found = db.execute("SELECT hash FROM entry WHERE run = ? AND seq = ?", (run, seq))
        row = found.fetchone()
        return row[0].hex() if row is not None and type(row[0]) is bytes else None

    def header_at(self, db: sqlite3.Connection, run: str, seq: int) -> bytes:
        """The header of the entry at a place, nothing if there is none."""
        found = db.execute("SELECT header FROM entry WHERE run = ? AND seq = ?", (run, seq))
        row = found.fetchone()
        return row[0] if row is not None and type(row[0]) is bytes else b""

    def forks_of(self, db: sqlite3.Connection, run: str) -> list[str]:
        """The runs that grew from a run, or are about to. What cannot be read says nothing."""
        begun = db.execute("SELECT id, hash FROM run WHERE count = 0 AND hash <> ?", (GENESIS,))
        found = [
            fork
            for fork, root in begun.fetchall()
            if db.execute("SELECT 1 FROM entry WHERE run = ? AND hash = ?", (run, root)).fetchone()
        ]
        for fork, *columns in db.execute(_FORKS).fetchall():
            try:
                first = self._as_entry(tuple(columns), fork, 0)
            except LedgerCorrupt:
                continue
            root = root_of(first, run=fork)
            if isinstance(root, Root) and root.fork is not None and root.fork.parent == run:
                found.append(fork)
        return sorted(found)

    def _as_entry(self, found: _FoundEntry, run: str, seq: int) -> Sealed:
        place, header, entry_hash, body_place, salt, body = found
        if place != seq:
            raise self._corrupt(f"run {run} has no entry {seq}")
        if body_place is None:
            raise self._corrupt(f"entry {seq} of run {run} has lost its body")
        if type(header) is not bytes or type(entry_hash) is not bytes:
            raise self._corrupt(f"entry {seq} of run {run} is not made of bytes")
        if type(salt) is not type(body) or not isinstance(body, bytes | None):
            raise self._corrupt(f"the body of entry {seq} of run {run} is not made of bytes")
        return Sealed(header=header, hash=entry_hash.hex(), salt=salt, body=body)

    def _as_row(self, found: tuple[str, int, int, bytes, int, int, int]) -> RunRow:
        if tuple(map(type, found)) != _ROW_TYPES:
            raise self._corrupt(f"the row of run {found[0]!r} holds what no row does")
        run, created_at, count, entry_hash, fence, moved, imported = found
        return RunRow(
            run=run,
            head=Head(count=count, hash=entry_hash.hex()),
            fence=fence,
            created_at=created_at,
            moved=bool(moved),
            imported=bool(imported),
        )

    def _corrupt(self, why: str) -> LedgerCorrupt:
        return LedgerCorrupt(path=str(self._path), why=why)


def insert(db: sqlite3.Connection, run: str, places: Sequence[tuple[int, Sealed]]) -> None:
    """Add entries at their places."""
    db.executemany(
        "INSERT INTO entry VALUES (?, ?, ?, ?)",
        [(run, seq, entry.header, bytes.fromhex(entry.hash)) for seq, entry in places],
    )
    db.executemany(
        "INSERT INTO body VALUES (?, ?, ?, ?)",
        [(run, seq, entry.salt, entry.body) for seq, entry in places],
    )


def put(db: sqlite3.Connection, row: RunRow) -> None:
    """Set the row of a run."""
    db.execute(
        "REPLACE INTO run VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            row.run,
            row.created_at,
            row.head.count,
            bytes.fromhex(row.head.hash),
            row.fence,
            row.moved,
            row.imported,
        ),
    )


def without_bodies(db: sqlite3.Connection, run: str, seqs: Sequence[int]) -> None:
    """Remove the bodies of entries."""
    db.executemany(
        "UPDATE body SET salt = NULL, body = NULL WHERE run = ? AND seq = ?",
        [(run, seq) for seq in seqs],
    )


def remove(db: sqlite3.Connection, run: str) -> None:
    """Remove all of a run."""
    db.execute("DELETE FROM body WHERE run = ?", (run,))
    db.execute("DELETE FROM entry WHERE run = ?", (run,))
    db.execute("DELETE FROM run WHERE id = ?", (run,))
