"""The ledger in one SQLite file, for many runs, threads and processes."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType

from tallystick.core.chain import Draft, Head, Sealed
from tallystick.core.errors import LedgerCorrupt
from tallystick.ledger import custody
from tallystick.ledger.port import Also, ExportHeader, RunRow, TransferLedger
from tallystick.ledger.sqlite_file import LedgerFile
from tallystick.ledger.writer import Work

__all__ = ["SqliteLedger"]

_BUSY_SECONDS = 10.0
_BATCH_ENTRIES = 512
_BATCH_BYTES = 1 << 20
_ROW = "SELECT id, created_at, count, hash, fence, moved, imported FROM run"
_ENTRIES = """
    SELECT entry.seq, header, hash, body.seq, salt, body
    FROM entry LEFT JOIN body ON body.run = entry.run AND body.seq = entry.seq
    WHERE entry.run = ? AND entry.seq >= ? ORDER BY entry.seq
"""
_ROW_TYPES = (str, int, int, bytes, int, int, int)


class SqliteLedger:
    """Keeps runs across processes. Made private to the user: file 0600, directory 0700.

    A writer waits `busy_seconds` for another process, then raises `LedgerLocked`.
    """

    def __init__(
        self,
        path: Path,
        *,
        salts: custody.Salts = os.urandom,
        busy_seconds: float = _BUSY_SECONDS,
    ) -> None:
        self._file = LedgerFile(path, busy_seconds=busy_seconds)
        self._salts = salts

    def __enter__(self) -> SqliteLedger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def file(self) -> LedgerFile:
        """The file itself, for stores that keep their tables in it."""
        return self._file

    def close(self) -> None:
        """Let go of the file. Used again, the ledger opens it again."""
        self._file.close()

    def claim(self, run: str, *, create: bool) -> int:
        with self._file.writing(forced=False) as db:
            row = custody.claimed(self._row(db, run), run, create=create)
            _put(db, row)
        return row.fence

    def submit(
        self,
        run: str,
        drafts: Sequence[Draft],
        *,
        expected: Head,
        fence: int,
        forced: bool,
        also: Also | None = None,
    ) -> tuple[Head, Future[None]]:
        """Waits while the writer has too much to do: see `ledger/writer.py`."""
        work, size, head = self._append(run, drafts, expected=expected, fence=fence, also=also)
        return head, self._file.submit(work, forced=forced, bytes=size)

    def append(
        self,
        run: str,
        drafts: Sequence[Draft],
        *,
        expected: Head,
        fence: int,
        forced: bool,
        also: Also | None = None,
    ) -> Head:
        work, size, head = self._append(run, drafts, expected=expected, fence=fence, also=also)
        self._file.write(work, forced=forced, bytes=size)
        return head

    def read(self, run: str, *, start: int = 0, stop: int | None = None) -> Iterator[Sealed]:
        with self._file.reading() as db:
            custody.required(self._row(db, run), run)
        return self._entries(run, start, sys.maxsize if stop is None else stop)

    def runs(self) -> Sequence[RunRow]:
        with self._file.reading() as db:
            return [self._as_row(found) for found in db.execute(f"{_ROW} ORDER BY id")]

    def remove(self, run: str, *, also: Also | None = None) -> None:
        with self._file.writing(forced=True) as db:
            custody.required(self._row(db, run), run)
            db.execute("DELETE FROM body WHERE run = ?", (run,))
            db.execute("DELETE FROM entry WHERE run = ?", (run,))
            db.execute("DELETE FROM run WHERE id = ?", (run,))
            if also is not None:
                also(db)
        self._file.sweep()

    def release(self, run: str) -> RunRow:
        with self._file.writing(forced=True) as db:
            row = custody.released(self._row(db, run), run)
            _put(db, row)
        return row

    def adopt(
        self, header: ExportHeader, entries: Iterator[Sealed], *, also: Also | None = None
    ) -> None:
        with self._file.writing(forced=True) as db:
            known = custody.known_head(self._row(db, header.run), header)
            if known is not None:
                for place in custody.without_known(entries, known=known, run=header.run):
                    _insert(db, header.run, [place])
                _put(db, custody.adopted(header))
            if also is not None:
                also(db)

    def erase(self, run: str, seqs: Sequence[int]) -> None:
        with self._file.writing(forced=True) as db:
            custody.check_place(custody.required(self._row(db, run), run), seqs)
            db.executemany(
                "UPDATE body SET salt = NULL, body = NULL WHERE run = ? AND seq = ?",
                [(run, seq) for seq in seqs],
            )
        self._file.sweep()

    def _append(
        self, run: str, drafts: Sequence[Draft], *, expected: Head, fence: int, also: Also | None
    ) -> tuple[Work, int, Head]:
        """What an append does in its transaction, how many bytes it is, and the head after it."""
        entries, head = custody.seal_all(run, drafts, head=expected, salts=self._salts)

        def work(db: sqlite3.Connection) -> None:
            row = custody.appended(
                self._row(db, run), run, expected=expected, fence=fence, head=head
            )
            _insert(db, run, list(enumerate(entries, start=expected.count)))
            # Written even when it is the same: a commit that changes nothing would not be forced.
            _put(db, row)
            if also is not None:
                also(db)

        size = sum(len(entry.header) + len(entry.body or b"") for entry in entries)
        return work, size, head

    def _entries(self, run: str, seq: int, stop: int) -> Iterator[Sealed]:
        """Batch by batch, so that whoever reads slowly keeps neither lock nor memory."""
        while seq < stop and (batch := self._batch(run, seq, min(stop - seq, _BATCH_ENTRIES))):
            yield from batch
            seq += len(batch)

    def _batch(self, run: str, start: int, most: int = _BATCH_ENTRIES) -> list[Sealed]:
        batch: list[Sealed] = []
        room = _BATCH_BYTES
        with self._file.reading() as db:
            cursor = db.execute(_ENTRIES, (run, start))
            try:
                for found in cursor:
                    entry = self._as_entry(found, run, start + len(batch))
                    batch.append(entry)
                    room -= len(entry.body or b"")
                    if room <= 0 or len(batch) == most:
                        break
            except (LedgerCorrupt, sqlite3.DatabaseError):
                # What comes before it is still to be had; the next call begins with it.
                if not batch:
                    raise
            finally:
                cursor.close()
        return batch

    def _as_entry(
        self,
        found: tuple[int, bytes, bytes, int | None, bytes | None, bytes | None],
        run: str,
        seq: int,
    ) -> Sealed:
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

    def _row(self, db: sqlite3.Connection, run: str) -> RunRow | None:
        found = db.execute(f"{_ROW} WHERE id = ?", (run,)).fetchone()
        return None if found is None else self._as_row(found)

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
        return LedgerCorrupt(path=str(self.path), why=why)


def _insert(db: sqlite3.Connection, run: str, places: Sequence[tuple[int, Sealed]]) -> None:
    db.executemany(
        "INSERT INTO entry VALUES (?, ?, ?, ?)",
        [(run, seq, entry.header, bytes.fromhex(entry.hash)) for seq, entry in places],
    )
    db.executemany(
        "INSERT INTO body VALUES (?, ?, ?, ?)",
        [(run, seq, entry.salt, entry.body) for seq, entry in places],
    )


def _put(db: sqlite3.Connection, row: RunRow) -> None:
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


_: type[TransferLedger] = SqliteLedger
