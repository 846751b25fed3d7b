"""The file under a SQLite ledger: read on one connection, written on another.

WAL, so readers never wait and a commit is one append. `synchronous` is chosen per transaction:
NORMAL leaves the commit with the operating system, where it survives the death of this process;
FULL waits for the disk, and since the log is one file it carries every commit before it.

Each object reads on a connection of its own, so that nobody who reads waits for the disk. All
objects of a process on one file write on one connection, that of its writer.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

from tallystick.core.errors import LedgerLocked
from tallystick.ledger.access import APPLICATION_ID, FORMAT, Access
from tallystick.ledger.sqlite_errors import translated
from tallystick.ledger.writer import Work, Writer, writer_of

__all__ = ["APPLICATION_ID", "FORMAT", "LedgerFile"]


class LedgerFile:
    """A ledger's file, shared by threads. Opened when it is first used."""

    def __init__(self, path: Path, *, busy_seconds: float) -> None:
        self.path = path
        self._busy_seconds = busy_seconds
        self._reader = Access(path, busy_seconds=busy_seconds, query_only=True)
        self._writer: Writer | None = None

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Look at what is committed. Waits for no writer, here or in another process."""
        with self._translated(), self._reader.held() as db:
            yield db

    @contextlib.contextmanager
    def writing(self, *, forced: bool) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it, or nothing. Ends when the commit is as strong as asked."""
        with (
            self._translated(),
            self._written().transaction(forced=forced, busy_seconds=self._busy_seconds) as db,
        ):
            yield db

    def submit(self, work: Work, *, forced: bool, bytes: int) -> Future[None]:
        """Have work done in a transaction of the writer's thread, with that of others."""
        with self._translated():
            return self._written().submit(
                work, forced=forced, bytes=bytes, path=self.path, busy_seconds=self._busy_seconds
            )

    def write(self, work: Work, *, forced: bool, bytes: int) -> None:
        """Submit, and wait for it. Raises what it failed with."""
        with self._translated():
            writer = self._written()
            writer.check_not_mine()
            future = writer.submit(
                work, forced=forced, bytes=bytes, path=self.path, busy_seconds=self._busy_seconds
            )
        # What it failed with was translated where it failed.
        future.result()

    def sweep(self) -> None:
        """Take what was removed out of the log too, as far as no reader still needs it."""
        with self._translated(), self._written().alone(busy_seconds=self._busy_seconds) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def rewrite(self) -> tuple[int, int]:
        """Make the file as small as what it holds. Raises `LedgerLocked` if it cannot be done now.

        Returns its bytes, those of its log included, before and after.
        """
        with self._translated(), self._written().alone(busy_seconds=self._busy_seconds) as db:
            before = self._size()
            self._checkpointed(db)
            db.execute("VACUUM")
            # The new pages are in the log until nobody needs the old ones.
            self._checkpointed(db)
            return before, self._size()

    def close(self) -> None:
        """Wait for what was submitted, and let go of the file."""
        writer = self._writer
        if writer is not None:
            writer.check_not_mine()
            self._writer = None
            writer.leave(self)
        self._reader.close()

    def _checkpointed(self, db: sqlite3.Connection) -> None:
        busy, *_ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise LedgerLocked(path=str(self.path), waited_seconds=self._busy_seconds)

    def _size(self) -> int:
        log = self.path.with_name(f"{self.path.name}-wal")
        return sum(each.stat().st_size for each in (self.path, log) if each.exists())

    def _written(self) -> Writer:
        # Two threads that come here together get the same one.
        writer = self._writer
        if writer is None:
            self._writer = writer = writer_of(self.path, self, busy_seconds=self._busy_seconds)
        return writer

    def _translated(self) -> contextlib.AbstractContextManager[None]:
        return translated(self.path, waited_seconds=self._busy_seconds)
