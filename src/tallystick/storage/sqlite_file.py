"""Make transactions on the SQLite file of a store, which threads and processes share.

The log is a WAL, so readers never wait and a commit is one append. A forced commit waits for the
disk. One that is not forced is with the operating system, where it survives the death of this
process.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from tallystick.storage.sqlite_connection import FileKind, SqliteConnection
from tallystick.storage.sqlite_errors import code_of

# Transactions on the writing connection: whole or nothing, as strong as asked.
#
# After a failed `fsync` the log is started anew before anything is added to it. The system reports
# such a failure once and then takes the lost pages for written: later commits would seem to be on
# the disk, after a hole. So everything that was committed is copied into the file itself, and
# that is waited for.


class Transactions:
    """Transactions of one connection, one after the other.

    `one` and `none` wait for another thread's transaction, without a limit, and raise `UsageError`
    inside one of this thread. Errors of SQLite are raised as they are. After a failed `fsync`, a
    transaction raises the store's `unavailable` as long as a reader keeps the log in use.
    """

    def __init__(self, connection: SqliteConnection) -> None:
        self.connection = connection
        self._set_up: sqlite3.Connection | None = None
        self._forcing: bool | None = None
        self._busy_seconds = connection.busy_seconds
        self._suspect = False

    @contextlib.contextmanager
    def one(self, *, forced: bool, busy_seconds: float) -> Iterator[sqlite3.Connection]:
        """Make one transaction, alone on the connection, and give that connection.

        It is rolled back if the block raises or the commit fails. A `forced` one waits for the
        disk. `busy_seconds` is the wait for other processes.
        """
        with self.connection.held() as db, self.of(db, forced=forced, busy_seconds=busy_seconds):
            yield db

    @contextlib.contextmanager
    def of(self, db: sqlite3.Connection, *, forced: bool, busy_seconds: float) -> Iterator[None]:
        """Make one transaction on the connection `db` that the caller holds, as `one` does."""
        with self._noting_failures():
            self._set(db, forced=forced, busy_seconds=busy_seconds)
            if self._suspect:
                self._repair(db)
            try:
                db.execute("BEGIN IMMEDIATE")
                yield
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def none(self, *, busy_seconds: float) -> Iterator[sqlite3.Connection]:
        """Give the connection outside of any transaction. Each statement commits itself, forced."""
        with self.connection.held() as db, self._noting_failures():
            self._set(db, forced=True, busy_seconds=busy_seconds)
            yield db

    @contextlib.contextmanager
    def _noting_failures(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if code_of(error) == sqlite3.SQLITE_IOERR_FSYNC:
                self._suspect = True
            raise

    def _set(self, db: sqlite3.Connection, *, forced: bool, busy_seconds: float) -> None:
        """Set how strong the next commit is, and the wait for others.

        SQLite allows that outside a transaction only.
        """
        if self._set_up is not db:
            self._set_up, self._forcing = db, None
            self._busy_seconds = self.connection.busy_seconds
        if self._forcing is not forced:
            db.execute(f"PRAGMA synchronous = {'FULL' if forced else 'NORMAL'}")
            self._forcing = forced
        if self._busy_seconds != busy_seconds:
            db.execute(f"PRAGMA busy_timeout = {int(busy_seconds * 1000)}").fetchall()
            self._busy_seconds = busy_seconds

    def _repair(self, db: sqlite3.Connection) -> None:
        if not checkpointed(db, "RESTART"):
            why = "its disk failed, and what was written can only be secured when nobody reads it"
            connection = self.connection
            raise connection.kind.errors.unavailable(where=str(connection.path), why=why)
        self._suspect = False


def checkpointed(db: sqlite3.Connection, how: str = "TRUNCATE") -> bool:
    """Copy the log into the file. Return False if another connection keeps that from being whole.

    `how` is the mode of SQLite: `TRUNCATE` empties the log too, `RESTART` starts it anew.
    """
    busy, *_ = db.execute(f"PRAGMA wal_checkpoint({how})").fetchone()
    return not busy


# Instructions of SQLite between two looks whether a watched statement is still wanted: well below a
# millisecond.
_WATCHED_STEPS = 10_000


class _Watch(threading.local):
    """The check that ends the work of this thread on a file, if any."""

    unwanted: Callable[[], bool] | None = None


class SqliteFile:
    """A file that is read on one connection and written on another, shared by threads.

    Readers never wait for a writer. A forced commit waits for the disk; another one survives the
    death of this process and no more. `kept=False` closes the file after each transaction.

    The methods raise the errors of the store (`FileKind.errors`). A writer waits `busy_seconds` for
    other processes. Threads of this process take turns, and wait without a limit.
    """

    def __init__(
        self, path: Path, kind: FileKind, *, busy_seconds: float, kept: bool = True
    ) -> None:
        self.path = path
        self.busy_seconds = busy_seconds
        self._kind = kind
        self._reader = SqliteConnection(
            path, kind, busy_seconds=busy_seconds, query_only=True, kept=kept
        )
        self._watch = _Watch()
        self._writer = Transactions(
            SqliteConnection(path, kind, busy_seconds=busy_seconds, query_only=False, kept=kept)
        )

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Give a connection that reads one committed state.

        A reading inside another one of this thread has the same state. Inside `writing` it does not
        see what that transaction has changed. Raise `TimeoutError` as `interruptible` says.
        """
        self._check_wanted()
        with self._translating_errors():
            mine = self._reader.mine
            if mine is not None:
                yield mine
                return
            with self._reader.held() as db:
                watched = self._watch.unwanted
                if watched is not None:
                    db.set_progress_handler(watched, _WATCHED_STEPS)
                db.execute("BEGIN")
                try:
                    yield db
                finally:
                    if watched is not None:
                        db.set_progress_handler(None, 0)
                    db.execute("COMMIT")

    @contextlib.contextmanager
    def writing(
        self, *, forced: bool = True, busy_seconds: float | None = None
    ) -> Iterator[sqlite3.Connection]:
        """Give the connection of one transaction: it commits at the end, or undoes all on an error.

        `busy_seconds` is the wait for other processes, by default that of the file. Raise
        `UsageError` inside another one of this thread: they do not nest. Raise `TimeoutError` as
        `interruptible` says.
        """
        self._check_wanted()
        with (
            self._translating_errors(),
            self._writer.one(
                forced=forced,
                busy_seconds=self.busy_seconds if busy_seconds is None else busy_seconds,
            ) as db,
        ):
            yield db

    def rewrite(self, *, later_if: Collection[int] = (sqlite3.SQLITE_BUSY,)) -> bool:
        """Write the file anew and empty its log, so that what was removed is in neither.

        Return False if a reader needs an older state, or `VACUUM` fails with one of the primary
        codes in `later_if`: then call it again later. Raise `UsageError` inside `writing`.
        """
        # Our own reader would be the first to hold on to an older state.
        with (
            self._translating_errors(),
            self._reader.kept_closed(),
            self._writer.none(busy_seconds=self.busy_seconds) as db,
        ):
            if not checkpointed(db):
                return False
            try:
                db.execute("VACUUM")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in later_if:
                    raise
                return False
            # The new pages are in the log until nobody needs the old ones.
            return checkpointed(db)

    @contextlib.contextmanager
    def interruptible(self, unwanted: Callable[[], bool]) -> Iterator[None]:
        """End the work of this thread soon after `unwanted` returns True. Other threads go on.

        A statement that reads is interrupted, and `reading` and `writing` start nothing more: both
        raise `TimeoutError`. A transaction that writes is never interrupted, and `rewrite` is not
        refused. A `reading` that began before this is not interrupted. Inside another
        `interruptible`, only the inner one counts.
        """
        before, self._watch.unwanted = self._watch.unwanted, unwanted
        try:
            yield
        finally:
            self._watch.unwanted = before

    def _check_wanted(self) -> None:
        if self._watch.unwanted is not None and self._watch.unwanted():
            raise self._unwanted()

    def _unwanted(self) -> TimeoutError:
        return TimeoutError(f"{self.path}: no caller waits for this any more")

    def close(self) -> None:
        """Close the file, after waiting for other threads that use it. The next use opens it again.

        Raise `UsageError` inside `reading` or `writing` of this thread.
        """
        self._reader.close()
        self._writer.connection.close()

    @contextlib.contextmanager
    def _translating_errors(self) -> Iterator[None]:
        try:
            with self._kind.translated(self.path, waited_seconds=self.busy_seconds):
                yield
        except Exception as error:
            # SQLite reports an interrupt as an error of the file, which would read as damage.
            cause = error.__cause__
            if isinstance(cause, sqlite3.Error) and code_of(cause) == sqlite3.SQLITE_INTERRUPT:
                raise self._unwanted() from cause
            raise
