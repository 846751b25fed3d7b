"""Keep attachments beside a ledger: small ones in its file, large ones in files next to it.

The directory is named after the ledger's file, as SQLite names its log: two ledgers in one
directory must not sweep each other's files.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from tallystick.attachments import rows
from tallystick.attachments.files import BlobFiles
from tallystick.attachments.port import AttachmentIoFailed, Attachments, Persistence, Transaction
from tallystick.attachments.rows import SqliteManifest
from tallystick.attachments.store import WAIT_SECONDS, StoredAttachments
from tallystick.storage.clock import now_ms
from tallystick.storage.owner import FileOwners
from tallystick.storage.transaction import sqlite_of


class Database(Protocol):
    """The part of a ledger's file that attachments need."""

    @property
    def path(self) -> Path:
        """The path of the file. Large attachments are in a directory beside it."""

    def reading(self) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        """Give a connection that reads one committed state."""

    def writing(self, *, forced: bool) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        """Give the connection of one transaction, which is undone if the block raises.

        A forced one is on the disk when it ends. They do not nest in one thread.
        """

    def sweep(self) -> None:
        """Remove deleted bytes from the log too, unless a reader still needs it."""


class SqliteAttachments(StoredAttachments):
    """Keeps attachments across processes. `close` gives up the ownership of open intents.

    The tables are made with the first transaction that writes. Every method that opens the ledger's
    file can raise that ledger's errors, and `AttachmentError` for tables of another version.
    """

    def __init__(
        self,
        database: Database,
        *,
        clock: Callable[[], int] = now_ms,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        root = database.path.with_name(f"{database.path.name}-attachments")
        self.files = BlobFiles(root)
        owners = FileOwners(root / "owners", failed=AttachmentIoFailed.of)
        super().__init__(blobs=self.files, owners=owners, clock=clock, wait_seconds=wait_seconds)
        self._database = database
        self._made = False

    def __enter__(self) -> SqliteAttachments:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @property
    def persistence(self) -> Persistence:
        return Persistence.DURABLE

    # -- transactions --------------------------------------------------------------------------

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection | None]:
        """Give a connection that reads the tables in one state; None if there are none yet."""
        with self._database.reading() as db:
            self._made = self._made or rows.has_tables(db, create=False)
            yield db if self._made else None

    @contextlib.contextmanager
    def writing(self, *, forced: bool) -> Iterator[sqlite3.Connection]:
        self._begin()
        with self._database.writing(forced=forced) as db:
            yield db

    @contextlib.contextmanager
    def looking(self) -> Iterator[SqliteManifest | None]:
        with self.reading() as db:
            yield None if db is None else SqliteManifest(db)

    @contextlib.contextmanager
    def changing(self, *, forced: bool) -> Iterator[SqliteManifest]:
        with self.writing(forced=forced) as db:
            yield SqliteManifest(db)

    @contextlib.contextmanager
    def changing_within(self, within: Transaction) -> Iterator[SqliteManifest]:
        if within is None:
            with self.changing(forced=False) as found:
                yield found
        else:
            if not self._made:
                # Not remembered: that transaction may yet be rolled back.
                rows.has_tables(sqlite_of(within), create=True)
            yield SqliteManifest(sqlite_of(within))

    def scrub(self) -> None:
        """Remove deleted bytes from the ledger's log too, as far as no reader still needs them."""
        self._database.sweep()

    def staged_files(self) -> Iterable[tuple[str, Path]]:
        return self.files.staged()

    def _begin(self) -> None:
        """Make the tables in a transaction of their own, unless this object has seen them."""
        if not self._made:
            with self._database.writing(forced=False) as db:
                rows.has_tables(db, create=True)
            self._made = True

    def _stage_large(
        self, chunks: Iterable[bytes | memoryview], *, in_memory: bool
    ) -> tuple[Path, str, int]:
        return self.files.write(chunks, owner=self.owner(), in_memory=in_memory)


_: type[Attachments] = SqliteAttachments
