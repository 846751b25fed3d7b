"""Open the SQLite files of stores: private, recognised, and safe across forks.

A connection is opened when it is first used, and threads take turns with it. A file of another
kind, or of an unknown version, is refused by name and left as it is.

No connection crosses a fork. SQLite keeps its locks by process and its notes on them in memory. A
child that inherits the notes believes it has locks that only its parent has. What it commits is
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tallystick.core.errors import UsageError
from tallystick.storage import system
from tallystick.storage.private_file import force_directory, make_private, open_new
from tallystick.storage.sqlite_errors import Translates

_PAUSE_SECONDS = 0.01
_FORK_SECONDS = 10.0
_STATEMENTS_MAX = 256
_CARRIED = (
    "it was in use when this process was forked, and a connection cannot be shared with the parent"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKind:
    """One kind of file: how it is recognised and made, and the errors of its store.

    `versions` are those that can be read. A new file gets the first, and so does an older one when
    it is first opened to be written, in the transaction of `upgrade`. `newer` makes the error for
    another version. `prepare` is called once with each new connection, outside of a transaction and
    before there are tables; `fill` once in the transaction that makes them. `name` and `instead`
    are for the error on systems that cannot have such a file.

    A new file has pages of `page_bytes`. Its log is copied into it when it has `log_pages`. None
    leaves the defaults of SQLite: 4,096 bytes, and 1,000 pages.
    """

    name: str
    instead: str = ""
    application_id: int
    versions: tuple[int, ...]
    schema: Sequence[str]
    errors: Translates
    newer: Callable[[str, int], Exception]
    prepare: Callable[[sqlite3.Connection], None] = lambda db: None
    fill: Callable[[sqlite3.Connection], None] = lambda db: None
    upgrade: Callable[[sqlite3.Connection], None] | None = None
    page_bytes: int | None = None
    log_pages: int | None = None

    def make(self, path: Path) -> os.stat_result:
        """Make a private, empty file if there is none, with its directories, and return its `stat`.

        Raise `NotSupportedHere` on a system without file locks, and `OSError` if it cannot be made.
        """
        system.require_posix(self.name, instead=self.instead)
        make_private(path.parent, forced=True)
        # Made by us first, so that it never exists with wider rights. One that is there is not
        # opened: closing it would drop the locks that another connection of this process has on it.
        with contextlib.suppress(FileExistsError):
            os.close(open_new(path))
            # Its name has to survive a power cut too.
            force_directory(path.parent)
        return os.stat(path)

    @contextlib.contextmanager
    def translated(self, path: Path, *, waited_seconds: float) -> Iterator[None]:
        """Translate an error of SQLite or the system in the block into one of the store.

        So is text that cannot be decoded. Every `OSError` of the block counts, also one that is not
        about the file. Other exceptions pass as they are.
        """
        try:
            yield
        except Exception as error:
            ours = self.errors.of(error, path, waited_seconds=waited_seconds)
            if ours is error:
                raise
            raise ours from error

    def recognizes(self, db: sqlite3.Connection, path: Path) -> bool:
        """Return True if a file is of this kind, False if it is empty. Raise for anything else.

        The errors are those of the store: `newer` for another version, `foreign` for another kind.
        """
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if application == self.application_id:
            if version not in self.versions:
                raise self.newer(str(path), version)
            return True
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application or version or tables:
            raise self.errors.foreign(where=str(path))
        return False

    def bring_up_to_date(self, db: sqlite3.Connection) -> None:
        """Give an older file the present version, in a transaction of its own.

        Do nothing without `upgrade`. An error leaves the transaction open: close the connection.
        """
        if self.upgrade is None or self._is_current(db):
            return
        db.execute("BEGIN IMMEDIATE")
        # Another process may have been quicker.
        if not self._is_current(db):
            self.upgrade(db)
            db.execute(f"PRAGMA user_version = {self.versions[0]}")
        db.execute("COMMIT")

    def _is_current(self, db: sqlite3.Connection) -> bool:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        return bool(version == self.versions[0])

    def set_up(self, db: sqlite3.Connection) -> None:
        """Make the tables of a new file and note its version, in the transaction of the caller."""
        for statement in self.schema:
            db.execute(statement)
        self.fill(db)
        db.execute(f"PRAGMA application_id = {self.application_id}")
        db.execute(f"PRAGMA user_version = {self.versions[0]}")


class SqliteConnection:
    """A connection that threads take turns with. `kept=False` closes it after each use.

    A turn is waited for without a limit. Errors of SQLite and the system are raised as they are:
    `FileKind.translated` translates them. Opening raises what `FileKind.make` and
    `FileKind.recognizes` raise, and the store's `unavailable` for a file that was in use at a fork.
    """

    def __init__(
        self,
        path: Path,
        kind: FileKind,
        *,
        busy_seconds: float,
        query_only: bool,
        kept: bool = True,
    ) -> None:
        self.path = path
        self.kind = kind
        self.busy_seconds = busy_seconds
        self.query_only = query_only
        self._kept = kept
        self._guard = threading.Lock()
        self._holder: int | None = None
        self._connection: sqlite3.Connection | None = None
        self._opened_as: Path | None = None
        self._file: tuple[int, int] | None = None
        with _opening:
            _connections.add(self)

    @property
    def is_mine(self) -> bool:
        """True if this very thread is using the connection, and would wait for itself."""
        return self._holder == threading.get_ident()

    @property
    def is_open(self) -> bool:
        """True if the file is open, in use or not."""
        return self._connection is not None

    @property
    def mine(self) -> sqlite3.Connection | None:
        """The connection if this very thread is using it and it is open, else None."""
        return self._connection if self.is_mine else None

    def check_not_mine(self) -> None:
        """Raise `UsageError` if this thread would wait for itself."""
        if self.is_mine:
            raise UsageError(
                f"{self.path}: this thread is in a transaction of it, and cannot wait for another"
            )

    @contextlib.contextmanager
    def held(self) -> Iterator[sqlite3.Connection]:
        """Give the connection, to be used alone while inside. It is opened if it is closed.

        Raise `UsageError` if this thread is using it already.
        """
        with self._turn():
            try:
                yield self._open_connection()
            finally:
                if not self._kept:
                    self._close()

    @contextlib.contextmanager
    def kept_closed(self) -> Iterator[None]:
        """Close the file, after another thread's use, and keep others from opening it while inside.

        If this thread uses it, it stays open.
        """
        if self.is_mine:
            yield
            return
        with self._turn():
            self._close()
            yield

    def close(self) -> None:
        """Close the file, after another thread's use, without a limit. The next use opens it again.

        Raise `UsageError` if this thread is using it.
        """
        with self._turn():
            self._close()

    def before_fork(self, give_up: float) -> bool:
        """Close the file and keep it closed until `after_fork_in_parent`.

        Return False, and change nothing, if this thread uses it, or another one still does at
        `give_up`, a time of `time.monotonic()`.
        """
        wait = max(0.0, give_up - time.monotonic())
        if self.is_mine or not self._guard.acquire(timeout=wait):
            return False
        self._close()
        return True

    def after_fork_in_parent(self) -> None:
        """Let threads use the connection again. Call it only if `before_fork` returned True."""
        self._guard.release()

    def after_fork_in_child(self, *, closed: bool) -> None:
        """Make the connection usable in the child.

        If it was in use (not `closed`), every later opening of its file in the child raises the
        store's `unavailable`.
        """
        self._guard = threading.Lock()
        self._holder = None
        if not closed and self._connection is not None and self._file is not None:
            import ctypes

            _carried.add(self._file)
            # Never closed in the child, not even at its end: that would undo what the parent does.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
            self._connection = None

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        self.check_not_mine()
        with self._guard:
            self._holder = threading.get_ident()
            try:
                yield
            finally:
                self._holder = None

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            with _opening:
                self._connection = self._open()
        return self._connection

    def _open(self) -> sqlite3.Connection:
        """Open and prepare the file.

        Raise the store's `unavailable` if it was carried over a fork, and `OSError` (EROFS) if it
        is to be written on a disk that cannot be.
        """
        found = self.kind.make(self.path)
        self._file = (found.st_dev, found.st_ino)
        if self._file in _carried:
            raise self.kind.errors.unavailable(where=str(self.path), why=_CARRIED)
        if self._opened_as is None:
            # Opened again after a fork, it is the same file wherever the process has gone.
            self._opened_as = self.path.absolute()
        unchanging = self._is_unchanging(self._opened_as)
        if unchanging and not self.query_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        db = sqlite3.connect(
            f"{self._opened_as.as_uri()}?immutable=1" if unchanging else self._opened_as,
            uri=unchanging,
            timeout=self.busy_seconds,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_STATEMENTS_MAX,
        )
        try:
            if unchanging:
                self._recognizes(db)
                self.kind.prepare(db)
            else:
                self._prepare(db)
        except BaseException:
            db.close()
            raise
        return db

    @staticmethod
    def _is_unchanging(path: Path) -> bool:
        """Return True if the file is whole without its log, on a disk that cannot be written.

        SQLite then reads it only if it is opened as immutable: otherwise it makes another file
        beside it.
        """
        log = path.with_name(f"{path.name}-wal")
        return system.is_read_only(path) and not (log.exists() and log.stat().st_size)

    def _recognizes(self, db: sqlite3.Connection) -> bool:
        """Return True if a file is of this kind, False if it is empty. Raise for anything else."""
        # In a transaction, or the answers could come from before and after another process made
        # the tables.
        db.execute("BEGIN")
        found = self.kind.recognizes(db, self.path)
        db.execute("COMMIT")
        return found

    def _prepare(self, db: sqlite3.Connection) -> None:
        """Set the connection up, make the tables of a new file, and upgrade one to be written.

        Raise the store's error for a file of another kind or version, which is left as it is.
        """
        # The file is checked before anything is set: a foreign file stays as it is.
        fresh = not self._recognizes(db)
        if fresh and self.kind.page_bytes is not None:
            # Of no effect where another process has made the file meanwhile.
            db.execute(f"PRAGMA page_size = {self.kind.page_bytes}").fetchall()
        self._write_ahead(db)
        if self.kind.log_pages is not None:
            db.execute(f"PRAGMA wal_autocheckpoint = {self.kind.log_pages}").fetchall()
        # What is deleted is overwritten: an erased body is not left in a free page.
        db.execute("PRAGMA secure_delete = ON").fetchall()
        self.kind.prepare(db)
        if fresh:
            db.execute("BEGIN IMMEDIATE")
            if not self.kind.recognizes(db, self.path):
                self.kind.set_up(db)
            db.execute("COMMIT")
        if self.query_only:
            db.execute("PRAGMA query_only = ON")
        else:
            self.kind.bring_up_to_date(db)

    def _write_ahead(self, db: sqlite3.Connection) -> None:
        """Choose write-ahead logging, and try again for `busy_seconds` while others have the file.

        SQLite does not wait here if several processes make one file. After that, its error is
        raised, and any other at once.
        """
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


# -- forks -------------------------------------------------------------------------------------

_connections: weakref.WeakSet[SqliteConnection] = weakref.WeakSet()
# Files for which this process inherited SQLite's notes from its parent.
_carried: set[tuple[int, int]] = set()
# One fork at a time. No connection is made or opened while `_opening` is held.
_forking = threading.Lock()
_opening = threading.RLock()
_at_fork: dict[SqliteConnection, bool] = {}


def _before_fork() -> None:
    _forking.acquire()
    give_up = time.monotonic() + _FORK_SECONDS
    while True:
        _stop(_still_running(), give_up)
        _opening.acquire()
        # Some may have been made meanwhile. Wait for the open ones like for the others. One that is
        # not open may be waiting for `_opening`, which it cannot get until the fork is made.
        made = _still_running()
        if time.monotonic() >= give_up or not any(each.is_open for each in made):
            _stop(made, 0.0)
            return
        _opening.release()


def _still_running() -> list[SqliteConnection]:
    with _opening:
        return [each for each in _connections if each not in _at_fork]


def _stop(connections: list[SqliteConnection], give_up: float) -> None:
    # Writing connections first, as threads take them: some hold one and then ask to read.
    for each in sorted(connections, key=lambda each: each.query_only):
        _at_fork[each] = each.before_fork(give_up)


def _after_fork_in_parent() -> None:
    for each, closed in _at_fork.items():
        if closed:
            each.after_fork_in_parent()
    _end_fork()


def _after_fork_in_child() -> None:
    for each, closed in _at_fork.items():
        each.after_fork_in_child(closed=closed)
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
