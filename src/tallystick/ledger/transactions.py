"""Transactions on the writing connection: whole or nothing, as strong as asked.

After a failed wait for the disk the log is started anew before anything is added to it. The system
reports such a failure once and then takes the lost pages for written: later commits would seem to
be on the disk, behind a hole. So everything that was committed is copied into the file itself, and
that is waited for.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from tallystick.core.errors import LedgerUnavailable
from tallystick.ledger.access import Access
from tallystick.ledger.sqlite_errors import code_of

__all__ = ["Transactions"]


class Transactions:
    """Transactions of one connection, one after the other."""

    def __init__(self, path: Path, *, busy_seconds: float) -> None:
        self.access = Access(path, busy_seconds=busy_seconds, query_only=False)
        self._set_up: sqlite3.Connection | None = None
        self._forcing: bool | None = None
        self._busy_seconds = busy_seconds
        self._suspect = False

    @contextlib.contextmanager
    def one(self, *, forced: bool, busy_seconds: float) -> Iterator[sqlite3.Connection]:
        """One transaction, when it is its turn."""
        with self.access.held() as db, self.of(db, forced=forced, busy_seconds=busy_seconds):
            yield db

    @contextlib.contextmanager
    def of(self, db: sqlite3.Connection, *, forced: bool, busy_seconds: float) -> Iterator[None]:
        """One transaction of the connection, by whoever holds it."""
        with self._watched():
            self._set(db, forced=forced, busy_seconds=busy_seconds)
            if self._suspect:
                self._mend(db)
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
        """The connection outside of any transaction."""
        with self.access.held() as db, self._watched():
            self._set(db, forced=True, busy_seconds=busy_seconds)
            yield db

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if code_of(error) == sqlite3.SQLITE_IOERR_FSYNC:
                self._suspect = True
            raise

    def _set(self, db: sqlite3.Connection, *, forced: bool, busy_seconds: float) -> None:
        """How strong the next commit is. Not allowed inside a transaction, so no part of one."""
        if self._set_up is not db:
            self._set_up, self._forcing, self._busy_seconds = db, None, self.access.busy_seconds
        if self._forcing is not forced:
            db.execute(f"PRAGMA synchronous = {'FULL' if forced else 'NORMAL'}")
            self._forcing = forced
        if self._busy_seconds != busy_seconds:
            db.execute(f"PRAGMA busy_timeout = {int(busy_seconds * 1000)}").fetchall()
            self._busy_seconds = busy_seconds

    def _mend(self, db: sqlite3.Connection) -> None:
        busy, *_ = db.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        if busy:
            why = "its disk failed, and what was written can only be secured when nobody reads it"
            raise LedgerUnavailable(path=str(self.access.path), why=why)
        self._suspect = False
