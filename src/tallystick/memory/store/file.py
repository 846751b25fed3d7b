"""The file under a memory: private, of a known format, one connection to read and one to write.

WAL, so readers never wait and a commit is one append. A commit that is forced waits for the disk,
which is one fsync; one that is not survives the death of this process and no more.

A connection does not cross a fork: whoever inherits one is refused, and opens a memory of its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tallystick.memory.errors import (
    MemoryCorrupt,
    MemoryFormatUnknown,
    MemoryFull,
    MemoryLocked,
    MemoryReadOnly,
    MemoryUnavailable,
    NotAMemory,
    StorageFailed,
)
from tallystick.storage import system

FORMAT = 1
# "TLMM": tells a memory from a ledger and from every other SQLite file.
APPLICATION_ID = 0x544C4D4D
_PAUSE_SECONDS = 0.01
_CACHE_KIB = 16_384
_FORKED = "it was opened before this process was forked; open it again in the child"


class MemoryFile:
    """A memory's file, shared by threads. Opened when first used; `schema` makes a new one."""

    def __init__(
        self,
        path: Path,
        *,
        schema: Sequence[str],
        made: Callable[[sqlite3.Connection], None],
        busy_seconds: float,
    ) -> None:
        self.path = path
        self.busy_seconds = busy_seconds
        self._schema = schema
        self._made = made
        self._process = os.getpid()
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._reading = threading.RLock()
        self._writing = threading.Lock()

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Look at what is committed: one state of it, whatever is written meanwhile."""
        with self._translated(), self._reading:
            self._check_process()
            if self._reader is None:
                self._reader = self._open()
                self._reader.execute("PRAGMA query_only = ON")
            db = self._reader
            if db.in_transaction:
                yield db
                return
            db.execute("BEGIN")
            try:
                yield db
            finally:
                db.execute("COMMIT")

    @contextlib.contextmanager
    def writing(self, *, forced: bool = True) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it, or nothing."""
        with self._translated(), self.alone() as db:
            db.execute(f"PRAGMA synchronous = {'FULL' if forced else 'NORMAL'}")
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def alone(self) -> Iterator[sqlite3.Connection]:
        """The writing connection, outside a transaction."""
        with self._translated(), self._writing:
            self._check_process()
            if self._writer is None:
                self._writer = self._open()
            yield self._writer

    def rewrite(self) -> bool:
        """Write the file anew and empty its log, so that what was removed is in neither.

        False if somebody reads an older state and it could not be done yet.
        """
        with self._translated(), self._reading:
            # Ours would be the first to hold on to an older state.
            if self._reader is not None and not self._reader.in_transaction:
                self._reader.close()
                self._reader = None
            with self.alone() as db:
                if not _checkpointed(db):
                    return False
                try:
                    db.execute("VACUUM")
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                        raise
                    return False
                # The new pages are in the log until nobody needs the old ones.
                return _checkpointed(db)

    def close(self) -> None:
        """Let go of the file. Used again, it is opened again."""
        if self._process != os.getpid():
            return
        with self._reading:
            if self._reader is not None:
                self._reader.close()
                self._reader = None
        with self._writing:
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    # -- opening -------------------------------------------------------------------------------

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise MemoryUnavailable(path=str(self.path), why=_FORKED)

    def _open(self) -> sqlite3.Connection:
        _make_file(self.path)
        db = sqlite3.connect(
            self.path.absolute(),
            timeout=self.busy_seconds,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        try:
            self._prepare(db)
        except BaseException:
            db.close()
            raise
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        # Looked at before anything is set: what is not ours stays as it is.
        db.execute("BEGIN")
        fresh = not self._recognized(db)
        db.execute("COMMIT")
        self._write_ahead(db)
        # What is deleted is overwritten; what is sorted or rewritten leaves no file behind.
        db.execute("PRAGMA secure_delete = ON").fetchall()
        db.execute("PRAGMA temp_store = MEMORY")
        db.execute("PRAGMA trusted_schema = OFF")
        db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        if fresh:
            db.execute("PRAGMA synchronous = FULL")
            db.execute("BEGIN IMMEDIATE")
            try:
                if not self._recognized(db):
                    for statement in self._schema:
                        db.execute(statement)
                    self._made(db)
                    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                    db.execute(f"PRAGMA user_version = {FORMAT}")
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    def _write_ahead(self, db: sqlite3.Connection) -> None:
        """Choose the log. When several processes make one file, SQLite does not wait here."""
        give_up = time.monotonic() + self.busy_seconds
        while True:
            try:
                db.execute("PRAGMA journal_mode = WAL").fetchall()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                    raise
                time.sleep(_PAUSE_SECONDS)
            else:
                return

    def _recognized(self, db: sqlite3.Connection) -> bool:
        """Whether the file is a memory, False if it is empty. Anything else is refused."""
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if application == APPLICATION_ID:
            if version != FORMAT:
                raise MemoryFormatUnknown(path=str(self.path), found=version, known=FORMAT)
            return True
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application or version or tables:
            raise NotAMemory(path=str(self.path))
        return False

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _of_sqlite(error, str(self.path), self.busy_seconds) from error
        except UnicodeDecodeError as error:
            why = "it holds no readable text"
            raise MemoryCorrupt(path=str(self.path), why=why) from error
        except OSError as error:
            raise _of_system(error, str(self.path)) from error


def _checkpointed(db: sqlite3.Connection) -> bool:
    busy, *_ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def _make_file(path: Path) -> None:
    """See to it that there is a file, private to the user."""
    system.require_posix("a memory in a file")
    _make_directory(path.parent)
    # Made by us first, so that it never exists with wider rights.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | system.CLOEXEC, 0o600))
        # Its name, too, is to survive the power.
        _force_directory(path.parent)


def _make_directory(path: Path) -> None:
    if path.is_dir():
        return
    if path.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    _make_directory(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    _force_directory(path.parent)


def _force_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | system.DIRECTORY | system.CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _of_sqlite(error: sqlite3.Error, path: str, waited_seconds: float) -> StorageFailed:
    code = int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR))
    match code & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return MemoryLocked(path=path, waited_seconds=waited_seconds)
        case sqlite3.SQLITE_FULL:
            return MemoryFull(path=path)
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return MemoryReadOnly(path=path)
        case sqlite3.SQLITE_NOTADB:
            return NotAMemory(path=path)
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_CANTOPEN:
            return MemoryUnavailable(path=path, why=str(error))
        case _:
            # Our statements are fixed: what SQLite cannot make of them lies in the file.
            return MemoryCorrupt(path=path, why=str(error))


def _of_system(error: OSError, path: str) -> StorageFailed:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return MemoryFull(path=path)
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return MemoryReadOnly(path=path)
        case errno.EEXIST | errno.ENOTDIR:
            return MemoryUnavailable(path=path, why="what should be a directory is none")
        case _:
            return MemoryUnavailable(path=path, why=error.strerror or str(error))
