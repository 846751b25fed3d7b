"""The ledger in one SQLite file, for many runs, threads and processes."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType

from tallystick.core.chain import Draft, Head, Sealed
from tallystick.core.entry import is_of_fork
from tallystick.core.errors import LedgerCorrupt
from tallystick.ledger import custody
from tallystick.ledger.port import Also, ExportHeader, RunRow, TransferLedger
from tallystick.ledger.sqlite_file import LedgerFile
from tallystick.ledger.sqlite_rows import Rows, insert, put, remove, without_bodies
from tallystick.ledger.writer import Work

__all__ = ["SqliteLedger"]

_BUSY_SECONDS = 10.0
_BATCH_ENTRIES = 512
_BATCH_BYTES = 1 << 20


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
        self._rows = Rows(path)
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

    def claim(self, run: str, *, create: bool, grown_from: str | None = None) -> int:
        with self._file.writing(forced=False) as db:
            found = self._rows.row(db, run)
            row = custody.claimed(found, run, create=create, grown_from=grown_from)
            put(db, row)
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
            custody.required(self._rows.row(db, run), run)
        return self._entries(run, start, sys.maxsize if stop is None else stop)

    def runs(self) -> Sequence[RunRow]:
        with self._file.reading() as db:
            return self._rows.rows(db)

    def forks_of(self, run: str) -> Sequence[str]:
        with self._file.reading() as db:
            return self._rows.forks_of(db, run)

    def remove(self, run: str, *, also: Also | None = None) -> None:
        with self._file.writing(forced=True) as db:
            custody.required(self._rows.row(db, run), run)
            custody.check_removable(run, self._rows.forks_of(db, run))
            remove(db, run)
            if also is not None:
                also(db)
        self._file.sweep()

    def release(self, run: str) -> RunRow:
        with self._file.writing(forced=True) as db:
            row = custody.released(self._rows.row(db, run), run)
            put(db, row)
        return row

    def adopt(
        self, header: ExportHeader, entries: Iterator[Sealed], *, also: Also | None = None
    ) -> None:
        with self._file.writing(forced=True) as db:
            known = custody.known_head(self._rows.row(db, header.run), header)
            for ancestor in header.ancestors:
                here = custody.shared_head(
                    self._rows.row(db, ancestor.run),
                    ancestor,
                    run=header.run,
                    hash_at=partial(self._rows.hash_at, db),
                )
                shared = islice(entries, ancestor.count)
                fresh = custody.without_known(shared, known=here, of=ancestor.run, run=header.run)
                for place in fresh:
                    insert(db, ancestor.run, [place])
                if here is not None:
                    put(db, custody.shared_row(ancestor))
            if known is not None:
                fresh = custody.without_known(entries, known=known, of=header.run, run=header.run)
                for place in fresh:
                    insert(db, header.run, [place])
                put(db, custody.adopted(header))
            if also is not None:
                also(db)

    def erase(self, run: str, seqs: Sequence[int]) -> None:
        with self._file.writing(forced=True) as db:
            row = custody.required(self._rows.row(db, run), run)
            fork = is_of_fork(self._rows.header_at(db, run, 0))
            custody.check_erasable(row, seqs, fork=fork)
            without_bodies(db, run, seqs)
        self._file.sweep()

    def reclaim(self) -> tuple[int, int]:
        """Give back the room of what was erased or removed. Returns the bytes before and after.

        Everything that is left is written anew, in one transaction of SQLite's (VACUUM): killed at
        any moment, the file is as it was or as it becomes, and nothing is lost. While it goes on it
        takes as much room again twice, beside the file and where SQLite keeps temporary files, and
        nobody writes. Raises `LedgerLocked` if others read or write for too long; asked again, it
        does the rest.
        """
        return self._file.rewrite()

    def _append(
        self, run: str, drafts: Sequence[Draft], *, expected: Head, fence: int, also: Also | None
    ) -> tuple[Work, int, Head]:
        """What an append does in its transaction, how many bytes it is, and the head after it."""
        entries, head = custody.seal_all(run, drafts, head=expected, salts=self._salts)

        def work(db: sqlite3.Connection) -> None:
            row = custody.appended(
                self._rows.row(db, run), run, expected=expected, fence=fence, head=head
            )
            insert(db, run, list(enumerate(entries, start=expected.count)))
            # Written even when it is the same: a commit that changes nothing would not be forced.
            put(db, row)
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
        with (
            self._file.reading() as db,
            contextlib.closing(self._rows.entries(db, run, start)) as entries,
        ):
            try:
                for entry in entries:
                    batch.append(entry)
                    room -= len(entry.body or b"")
                    if room <= 0 or len(batch) == most:
                        break
            except (LedgerCorrupt, sqlite3.DatabaseError):
                # What comes before it is still to be had; the next call begins with it.
                if not batch:
                    raise
        return batch


_: type[TransferLedger] = SqliteLedger
