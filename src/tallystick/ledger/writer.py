"""One writer for each ledger file of a process: a thread, and many submissions to a transaction.

Rule 1: what waits when the thread is free goes into one transaction, each submission in a savepoint
of its own. One that is refused fails alone. The transaction waits for the disk if one of them is
forced, so many runs share one wait.
Rule 2: a future is done only when its transaction is. If that fails, all of its submissions fail,
none is tried again, and the next transaction starts from nothing.
Rule 3: what was submitted is written. It cannot be cancelled: what comes behind it builds on it.
Rule 4: whoever submits more than the queue holds waits, in the thread that submits. What is called
when a future is done is called in the writer's thread: it may submit, and must not wait.

A failed write may be on the disk all the same, if the disk failed after it was written. Whoever
goes on has to look where the run stands.

Transactions of other stores on the same file are made in their own thread, with the same connection
and in turn. So nobody in one process waits for SQLite's lock, which is polled; only other processes
do. Reading needs neither.

The thread is a daemon: it starts with the first submission and ends with the last ledger on its
file. At the end of the process it writes what is queued; who submits later than that writes in his
own thread. In the child of a fork there is none, and nothing is queued: that is the parent's.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from queue import Empty, SimpleQueue

from tallystick.core.errors import UsageError
from tallystick.ledger.file import LEDGER
from tallystick.storage import system
from tallystick.storage.sqlite_connection import SqliteConnection
from tallystick.storage.sqlite_errors import fails_alone
from tallystick.storage.sqlite_file import Transactions

# What a submission does in its part of the transaction.
Work = Callable[[sqlite3.Connection], None]

# One submission may be larger than all of it: it waits until it is alone.
QUEUE_MAX = 1_024
QUEUE_BYTES_MAX = 32 << 20
_BATCH_MAX = 256
_BATCH_BYTES_MAX = 16 << 20
_EXIT_SECONDS = 10.0


class _Submission:
    """Work, and who waits for it."""

    __slots__ = ("busy_seconds", "bytes", "forced", "future", "path", "work")

    def __init__(
        self, work: Work, *, forced: bool, bytes: int, path: Path, busy_seconds: float
    ) -> None:
        self.work = work
        self.forced = forced
        self.bytes = bytes
        self.path = path
        self.busy_seconds = busy_seconds
        self.future: Future[None] = Future()
        # Rule 3. A future that runs cannot be cancelled.
        self.future.set_running_or_notify_cancel()


class Writer:
    """Writes for all who use one file in this process. The thread lives while somebody does."""

    def __init__(self, path: Path, *, busy_seconds: float) -> None:
        self.connection = SqliteConnection(
            path, LEDGER, busy_seconds=busy_seconds, query_only=False
        )
        self._transactions = Transactions(self.connection)
        self._users: dict[int, weakref.ref[object]] = {}
        self.reset()

    def reset(self) -> None:
        """Begin without a thread and with nothing to do, as in the child of a fork."""
        self._gate = threading.Condition(threading.Lock())
        self._inbox: SimpleQueue[_Submission | None] = SimpleQueue()
        self._kept: _Submission | None = None
        self._thread: threading.Thread | None = None
        self._last: Future[None] | None = None
        self._turns: deque[object] = deque()
        self._open = 0
        self._open_bytes = 0

    # -- users ----------------------------------------------------------------------------------

    def enter(self, user: object) -> None:
        """Be used. A user that is forgotten without leaving has left."""
        mine, key = weakref.ref(self), id(user)

        def gone(_: weakref.ref[object]) -> None:
            # Takes no lock: it may run in any thread, at any moment.
            writer = mine()
            if writer is not None:
                writer._users.pop(key, None)
                writer._inbox.put(None)

        with self._gate:
            self._users.setdefault(key, weakref.ref(user, gone))

    def leave(self, user: object) -> None:
        """Wait for what is queued. The last one ends the thread and closes the file."""
        with self._gate:
            self._users.pop(id(user), None)
            thread = self._thread
            if thread is not None:
                self._inbox.put(None)
        last_write = self._last
        if last_write is not None:
            wait([last_write])
        with self._gate:
            if thread is not None:
                self._gate.wait_for(lambda: self._users or self._thread is not thread)
            last = not self._users
        if last:
            if thread is not None:
                thread.join()
            self.connection.close()

    def end(self, give_up: float) -> None:
        """At the end of the process: let the thread finish, but wait no longer than that."""
        thread = self._thread
        if thread is not None:
            self._inbox.put(None)
            thread.join(max(0.0, give_up - time.monotonic()))

    # -- writing --------------------------------------------------------------------------------

    def submit(
        self, work: Work, *, forced: bool, bytes: int, path: Path, busy_seconds: float
    ) -> Future[None]:
        """Queue work. Waits while the queue is full, except in the writer's own thread."""
        item = _Submission(work, forced=forced, bytes=bytes, path=path, busy_seconds=busy_seconds)
        with self._gate:
            if not self._is_mine and (self._turns or self._is_full(bytes)):
                self._wait_for_room(bytes)
            threaded = self._started()
            if threaded:
                self._inbox.put(item)
                self._last = item.future
                self._open += 1
                self._open_bytes += bytes
        if not threaded:
            _tell([item], self._written([item]))
        return item.future

    @property
    def _is_mine(self) -> bool:
        """Whether the writer waits for this thread, or is it."""
        return self.connection.is_mine or threading.current_thread() is self._thread

    def check_not_mine(self) -> None:
        """Refuse a thread that would wait for itself."""
        self.connection.check_not_mine()
        if threading.current_thread() is self._thread:
            raise UsageError(f"{self.connection.path}: its writer cannot wait for itself")

    def transaction(
        self, *, forced: bool, busy_seconds: float
    ) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        """A transaction in the thread of the caller: all of it, or nothing."""
        return self._transactions.one(forced=forced, busy_seconds=busy_seconds)

    def alone(
        self, *, busy_seconds: float
    ) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        """The writing connection outside of any transaction."""
        return self._transactions.none(busy_seconds=busy_seconds)

    # -- the thread -----------------------------------------------------------------------------

    def _started(self) -> bool:
        """See to it that there is a thread, if there can be one: at the very end there cannot."""
        if self._thread is None and not _ending.is_set():
            self._thread = threading.Thread(target=self._run, name="tally-writer", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:
                self._thread = None
        return self._thread is not None

    def _is_full(self, bytes: int) -> bool:
        if not self._open:
            return False
        return self._open >= QUEUE_MAX or self._open_bytes + bytes > QUEUE_BYTES_MAX

    def _wait_for_room(self, bytes: int) -> None:
        """In the order they came, or a large one would wait for ever."""
        turn = object()
        self._turns.append(turn)
        try:
            self._gate.wait_for(lambda: self._turns[0] is turn and not self._is_full(bytes))
        finally:
            self._turns.remove(turn)
            self._gate.notify_all()

    def _run(self) -> None:
        while not self._ended():
            self._next()
        self.connection.close()

    def _ended(self) -> bool:
        """Whether nothing is left to do, and nobody uses this any more."""
        if self._users and not _ending.is_set():
            return False
        with self._gate:
            wanted = self._users and not _ending.is_set()
            if wanted or self._kept is not None or not self._inbox.empty():
                return False
            self._thread = None
            self._gate.notify_all()
            return True

    def _next(self) -> None:
        """Wait for a submission, and write it with those that came meanwhile."""
        first, self._kept = self._kept or self._inbox.get(), None
        if first is None:
            return  # somebody left
        batch = [first]
        failed = self._written(batch, more=True)
        with self._gate:
            self._open -= len(batch)
            self._open_bytes -= sum(item.bytes for item in batch)
            self._gate.notify_all()
        _tell(batch, failed)
        with self._gate:
            # A future keeps its callbacks after they were called, and those may lead to a ledger.
            # If the thread kept it, a ledger that is forgotten would never leave its writer.
            if self._last is batch[-1].future:
                self._last = None

    def _fill(self, batch: list[_Submission]) -> None:
        """Take as many more as one transaction may hold."""
        size = sum(item.bytes for item in batch)
        with contextlib.suppress(Empty):
            while len(batch) < _BATCH_MAX:
                item = self._inbox.get_nowait()
                if item is None:
                    continue
                size += item.bytes
                if size > _BATCH_BYTES_MAX:
                    self._kept = item
                    break
                batch.append(item)

    # -- transactions ---------------------------------------------------------------------------

    def _written(
        self, batch: list[_Submission], *, more: bool = False
    ) -> dict[_Submission, BaseException]:
        """Write submissions in one transaction. Returns those that failed, each with why."""
        failed: dict[_Submission, BaseException] = {}
        busy_seconds = batch[0].busy_seconds
        try:
            with self.connection.held() as db:
                if more:
                    # Only now: while another had the connection, more have come.
                    self._fill(batch)
                busy_seconds = max(item.busy_seconds for item in batch)
                forced = any(item.forced for item in batch)
                with self._transactions.of(db, forced=forced, busy_seconds=busy_seconds):
                    _do_each(db, batch, failed)
        except _AllRefused:
            pass
        except BaseException as error:
            failed = dict.fromkeys(batch, error)
        return {item: _told(item, error, busy_seconds) for item, error in failed.items()}


class _AllRefused(Exception):
    """Nothing of a transaction is left to be committed."""


def _do_each(
    db: sqlite3.Connection, batch: Sequence[_Submission], failed: dict[_Submission, BaseException]
) -> None:
    """Each in its savepoint. What is wrong with the file itself ends all of them."""
    if len(batch) == 1:
        batch[0].work(db)
        return
    for item in batch:
        db.execute("SAVEPOINT submission")
        try:
            item.work(db)
        except BaseException as error:
            if not fails_alone(error) or not db.in_transaction:
                raise
            failed[item] = error
            db.execute("ROLLBACK TO submission")
        db.execute("RELEASE submission")
    if len(failed) == len(batch):
        raise _AllRefused


def _tell(batch: Sequence[_Submission], failed: dict[_Submission, BaseException]) -> None:
    for item in batch:
        error = failed.get(item)
        # What a callback raises is nothing to those who wait behind it.
        with contextlib.suppress(BaseException):
            if error is None:
                item.future.set_result(None)
            else:
                item.future.set_exception(error)


def _told(item: _Submission, error: BaseException, busy_seconds: float) -> BaseException:
    """The error for one who waits: its own, since it will be raised in another thread."""
    ours = LEDGER.errors.of(error, item.path, waited_seconds=busy_seconds)
    if ours is not error:
        ours.__cause__ = error
    return ours


# -- one for each file -------------------------------------------------------------------------

_guard = threading.Lock()
_writers: weakref.WeakValueDictionary[tuple[str, int, int], Writer] = weakref.WeakValueDictionary()
_ending = threading.Event()


def writer_of(path: Path, user: object, *, busy_seconds: float) -> Writer:
    """The writer of a file, by whatever links it was reached. The file is made if there is none."""
    found = LEDGER.make(path)
    # By its place and by what is there: a file that was replaced is another.
    key = (os.path.realpath(path), found.st_dev, found.st_ino)
    with _guard:
        writer = _writers.get(key)
        if writer is None:
            writer = _writers[key] = Writer(path, busy_seconds=busy_seconds)
    writer.enter(user)
    return writer


def _forked() -> None:
    # The thread stayed in the parent, which also writes what was queued.
    global _guard
    _guard = threading.Lock()
    for writer in list(_writers.values()):
        writer.reset()


@atexit.register
def _at_exit() -> None:
    """Write what is queued, and end. From here on, whoever submits writes for itself."""
    _ending.set()
    give_up = time.monotonic() + _EXIT_SECONDS
    with _guard:
        writers = list(_writers.values())
    for writer in writers:
        writer.end(give_up)


system.register_at_fork(after_in_child=_forked)
