"""Connections to a ledger's file: opened private and known, their errors and transactions.

No connection crosses a fork. SQLite keeps its locks by process and its notes on them in memory: a
child that inherits the notes believes it has locks that only its parent has, and what it commits is
lost when the parent closes the file. So a fork waits until no connection is in use and closes them
all; either side opens its own again. A file whose connection stayed in use is refused in the child.

Rejected: looking at the process id at each use. It is noticed too late, when the notes are there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from tallystick.core.errors import (
    LedgerCorrupt,
    LedgerError,
    LedgerFormatUnknown,
    LedgerFull,
    LedgerLocked,
    LedgerReadOnly,
    LedgerUnavailable,
    NotALedger,
    UsageError,
)
from tallystick.storage import system

# What SQLite and the system say is wrong with a ledger's file, in the package's own errors.
#
# They are translated here and nowhere else, each into one line that says what to do.


# What is wrong with one statement and leaves the transaction around it as it was.
_OF_ONE_STATEMENT = (
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_MISUSE,
    sqlite3.SQLITE_RANGE,
    sqlite3.SQLITE_TOOBIG,
)


@contextlib.contextmanager
def translated(path: Path, *, waited_seconds: float) -> Iterator[None]:
    """Raise what is raised inside as an error of the ledger at `path`."""
    try:
        yield
    except Exception as error:
        ours = translation(error, path, waited_seconds=waited_seconds)
        if ours is error:
            raise
        raise ours from error


def translation(error: BaseException, path: Path, *, waited_seconds: float) -> BaseException:
    """The ledger's error for a foreign one. Any other is returned as it is."""
    match error:
        case sqlite3.Error():
            return _of_sqlite(error, str(path), waited_seconds)
        case UnicodeDecodeError():
            # SQLite quotes the damaged schema in its message, which then is no text.
            return LedgerCorrupt(path=str(path), why="it holds no readable text")
        case OSError():
            return _of_system(error, str(path))
        case _:
            return error


def code_of(error: BaseException) -> int | None:
    """SQLite's extended code of an error, None if it is none of SQLite's."""
    if isinstance(error, sqlite3.Error):
        return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR))
    return None


def fails_alone(error: BaseException) -> bool:
    """Whether others in the same transaction can go on: neither file nor disk is to blame."""
    code = code_of(error)
    return code is None or code & 0xFF in _OF_ONE_STATEMENT


def _of_sqlite(error: sqlite3.Error, path: str, waited_seconds: float) -> LedgerError:
    match (code_of(error) or 0) & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return LedgerLocked(path=path, waited_seconds=waited_seconds)
        case sqlite3.SQLITE_FULL:
            return LedgerFull(path=path)
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return LedgerReadOnly(path=path)
        case sqlite3.SQLITE_NOTADB:
            return NotALedger(path=path)
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_CANTOPEN:
            return LedgerUnavailable(path=path, why=str(error))
        case _:
            # Our statements are fixed: what SQLite cannot make of them lies in the file.
            return LedgerCorrupt(path=path, why=str(error))


def _of_system(error: OSError, path: str) -> LedgerError:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return LedgerFull(path=path)
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return LedgerReadOnly(path=path)
        case errno.EEXIST | errno.ENOTDIR:
            return LedgerUnavailable(path=path, why="what should be a directory is none")
        case _:
            return LedgerUnavailable(path=path, why=error.strerror or str(error))


_FAULTS_MAX = 20


def integrity_faults(db: sqlite3.Connection) -> list[str]:
    """Return what SQLite finds wrong with a file, its tables and its indexes: the first of it."""
    found = [str(each) for (each,) in db.execute(f"PRAGMA integrity_check({_FAULTS_MAX})")]
    return [] if found == ["ok"] else found


# One connection to a ledger's file, under a lock: opened when it is first used, private, known.


FORMAT = 1
# A ledger that has a total. Versions that do not know that it binds them refuse to open the file,
# so they cannot spend without it. A ledger gets this format when its total is recorded.
FORMAT_WITH_TOTAL = 2
_FORMATS = (FORMAT, FORMAT_WITH_TOTAL)
# "TLLY": tells a ledger from every other SQLite file, whose `user_version` may well be 1 too.
APPLICATION_ID = 0x544C4C59
_PAUSE_SECONDS = 0.01
_FORK_SECONDS = 10.0
_SCHEMA = (
    """CREATE TABLE run (
        id TEXT PRIMARY KEY, created_at INTEGER NOT NULL, count INTEGER NOT NULL,
        hash BLOB NOT NULL, fence INTEGER NOT NULL, moved INTEGER NOT NULL,
        imported INTEGER NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE entry (
        run TEXT NOT NULL, seq INTEGER NOT NULL, header BLOB NOT NULL, hash BLOB NOT NULL,
        PRIMARY KEY (run, seq)
    ) WITHOUT ROWID""",
    # Salt and body are NULL once they were erased. A row that is missing is damage, not erasure. It
    # has a rowid, since bodies are large: in the tree of their key they cost 25 % more to read.
    """CREATE TABLE body (
        run TEXT NOT NULL, seq INTEGER NOT NULL, salt BLOB, body BLOB, PRIMARY KEY (run, seq)
    )""",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)
_CARRIED = (
    "it was in use when this process was forked, and a connection cannot be shared with the parent"
)


def made(path: Path) -> os.stat_result:
    """See to it that there is a file, private to the user, and say which one it is."""
    system.require_posix("a ledger in a file", instead="use MemoryLedger() for runs in memory")
    _make_directory(path.parent)
    # Made by us first, so that it never exists with wider rights. One that is there is not
    # opened: closing it would drop the locks that another connection of this process has on it.
    with contextlib.suppress(FileExistsError):
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | system.CLOEXEC
        os.close(os.open(path, flags, 0o600))
        # Its name, too, is to survive the power.
        _force_directory(path.parent)
    return os.stat(path)


def _make_directory(path: Path) -> None:
    """Make a directory and those above it, private, each forced into the one that holds it."""
    if path.is_dir():
        return
    # Somebody else may just have made it.
    if path.exists() and not path.is_dir():
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


class Access:
    """A connection that threads take turns with."""

    def __init__(self, path: Path, *, busy_seconds: float, query_only: bool) -> None:
        self.path = path
        self.busy_seconds = busy_seconds
        self.query_only = query_only
        self._guard = threading.Lock()
        self._holder: int | None = None
        self._connection: sqlite3.Connection | None = None
        self._opened_as: Path | None = None
        self._file: tuple[int, int] | None = None
        with _opening:
            _accesses.add(self)

    @property
    def is_mine(self) -> bool:
        """Whether this very thread is using the connection now, and would wait for itself."""
        return self._holder == threading.get_ident()

    def check_not_mine(self) -> None:
        """Refuse a thread that would wait for itself."""
        if self.is_mine:
            raise UsageError(
                f"{self.path}: this thread is in a transaction of it, and cannot wait for another"
            )

    @contextlib.contextmanager
    def held(self) -> Iterator[sqlite3.Connection]:
        """Use the connection, alone."""
        self.check_not_mine()
        with self._guard:
            self._holder = threading.get_ident()
            try:
                yield self._connected()
            finally:
                self._holder = None

    def close(self) -> None:
        """Let go of the file. Used again, it is opened again."""
        self.check_not_mine()
        with self._guard:
            self._close()

    def before_fork(self, give_up: float) -> bool:
        """Close it and keep it closed. False if it stays in use."""
        wait = max(0.0, give_up - time.monotonic())
        if self.is_mine or not self._guard.acquire(timeout=wait):
            return False
        self._close()
        return True

    def after_fork_in_parent(self) -> None:
        self._guard.release()

    def after_fork_in_child(self, *, closed: bool) -> None:
        self._guard = threading.Lock()
        self._holder = None
        if not closed and self._connection is not None and self._file is not None:
            import ctypes

            _carried.add(self._file)
            # Never closed here, not even when the child ends: it would undo what the parent does.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
            self._connection = None

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            with _opening:
                self._connection = self._open()
        return self._connection

    def _open(self) -> sqlite3.Connection:
        found = made(self.path)
        self._file = (found.st_dev, found.st_ino)
        if self._file in _carried:
            raise LedgerUnavailable(path=str(self.path), why=_CARRIED)
        if self._opened_as is None:
            # Opened again after a fork, it is the same file wherever the process has gone.
            self._opened_as = self.path.absolute()
        db = sqlite3.connect(
            self._opened_as,
            timeout=self.busy_seconds,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            self._prepare(db)
        except BaseException:
            db.close()
            raise
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        # Looked at before anything is set: what is not ours stays as it is. In a transaction,
        # or the answers could come from before and after another process made the tables.
        db.execute("BEGIN")
        fresh = not self._recognized(db)
        db.execute("COMMIT")
        self._write_ahead(db)
        # What is deleted is overwritten: an erased body is not left in a free page.
        db.execute("PRAGMA secure_delete = ON").fetchall()
        if fresh:
            db.execute("BEGIN IMMEDIATE")
            if not self._recognized(db):
                for statement in _SCHEMA:
                    db.execute(statement)
            db.execute("COMMIT")
        if self.query_only:
            db.execute("PRAGMA query_only = ON")

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
        """Whether the file is a ledger, False if it is empty. Anything else is refused."""
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if application == APPLICATION_ID:
            if version not in _FORMATS:
                known = " and ".join(str(each) for each in _FORMATS)
                raise LedgerFormatUnknown(path=str(self.path), found=version, known=known)
            return True
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application or version or tables:
            raise NotALedger(path=str(self.path))
        return False


# -- forks -------------------------------------------------------------------------------------

_accesses: weakref.WeakSet[Access] = weakref.WeakSet()
# Files that SQLite has notes on which are the parent's.
_carried: set[tuple[int, int]] = set()
# One fork at a time. No connection is made or opened while `_opening` is held.
_forking = threading.Lock()
_opening = threading.RLock()
_at_fork: dict[Access, bool] = {}


def _before_fork() -> None:
    _forking.acquire()
    _stop_all(time.monotonic() + _FORK_SECONDS)
    _opening.acquire()
    # Those that were made meanwhile. Not waited for: they may be waiting to be opened.
    _stop_all(time.monotonic())


def _stop_all(give_up: float) -> None:
    with _opening:
        there = [access for access in _accesses if access not in _at_fork]
    # Writing connections first, as threads take them: some hold one and then ask to read.
    for access in sorted(there, key=lambda access: access.query_only):
        _at_fork[access] = access.before_fork(give_up)


def _after_fork_in_parent() -> None:
    for access, closed in _at_fork.items():
        if closed:
            access.after_fork_in_parent()
    _end_fork()


def _after_fork_in_child() -> None:
    for access, closed in _at_fork.items():
        access.after_fork_in_child(closed=closed)
    _end_fork()


def _end_fork() -> None:
    _at_fork.clear()
    _opening.release()
    _forking.release()


system.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)


# Transactions on the writing connection: whole or nothing, as strong as asked.
#
# After a failed wait for the disk the log is started anew before anything is added to it. The
# system reports such a failure once and then takes the lost pages for written: later commits would
# seem to be on the disk, behind a hole. So everything that was committed is copied into the file
# itself, and that is waited for.


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
        with self._errors_translated():
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
        with self.access.held() as db, self._errors_translated():
            self._set(db, forced=True, busy_seconds=busy_seconds)
            yield db

    @contextlib.contextmanager
    def _errors_translated(self) -> Iterator[None]:
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
