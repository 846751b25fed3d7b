"""The writer of a ledger file: one thread per file and process, with many writes per transaction.

Rule 1: submissions that wait when the thread is free share one transaction, each in a savepoint of
its own. One that is refused fails alone. The transaction waits for the disk if one of them is
forced, so many runs share one wait.
Rule 2: a future is done only when its transaction is. If that fails, all of its submissions fail,
none is tried again, and the next transaction starts from nothing.
Rule 3: a submission cannot be cancelled, because later ones build on it.
Rule 4: a thread that submits while the queue is full waits there. The callbacks of a future run in
the writer's thread: they may submit, and must not wait.

A failed write may be on the disk nevertheless, if the disk failed after it was written. To resume,
read the head of the run again.

Other stores on the same file run their transactions in their own thread, on the same connection and
in turn. So nothing in one process waits for SQLite's lock, which is polled; only other processes
do. Reading needs neither.

The thread is a daemon. It starts with the first submission and ends with the last ledger on its
file. At the end of the process it writes what is queued; later submissions are written in the
thread that submits. The child of an `os.fork` starts without a thread and with an empty queue: what
was queued is written by the parent.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
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

# The part of a transaction that belongs to one submission.
Work = Callable[[sqlite3.Connection], None]

# A single submission may be larger than the queue: it waits until the queue is empty.
QUEUE_MAX = 1_024
QUEUE_BYTES_MAX = 32 << 20
_BATCH_MAX = 256
_BATCH_BYTES_MAX = 16 << 20
# At the end of the process, wait this long for the queued writes of all files together.
_EXIT_SECONDS = 10.0


class _Submission:
    """Work to do in a transaction, and the future of its caller."""

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
        # A running future cannot be cancelled (rule 3).
        self.future.set_running_or_notify_cancel()


class Writer:
    """The one writer of a file in this process. Its thread runs while a ledger uses it.

    Its methods raise the errors of SQLite and the system; only futures get those of the ledger.
    """

    def __init__(self, path: Path, *, busy_seconds: float) -> None:
        self.connection = SqliteConnection(
            path, LEDGER, busy_seconds=busy_seconds, query_only=False
        )
        self._transactions = Transactions(self.connection)
        self._users: dict[int, weakref.ref[object]] = {}
        self.reset()

    def reset(self) -> None:
        """Forget the thread and all submissions, as in the child of a fork."""
        self._gate = threading.Condition(threading.Lock())
        self._inbox: SimpleQueue[_Submission | None] = SimpleQueue()
        self._next_item: _Submission | None = None
        self._thread: threading.Thread | None = None
        self._last: Future[None] | None = None
        self._turns: deque[object] = deque()
        self._open = 0
        self._open_bytes = 0

    # -- users ----------------------------------------------------------------------------------

    def enter(self, user: object) -> None:
        """Register a user of this writer; twice is once.

        A user that is garbage-collected has left.
        """
        mine, key = weakref.ref(self), id(user)

        def forget(_: weakref.ref[object]) -> None:
            # Takes no lock: it may run in any thread, at any moment.
            writer = mine()
            if writer is not None:
                writer._users.pop(key, None)
                writer._inbox.put(None)

        with self._gate:
            self._users.setdefault(key, weakref.ref(user, forget))

    def leave(self, user: object) -> None:
        """Wait for what is queued, without a limit.

        If this was the last user, end the thread and close. Call it neither in the writer's thread
        nor in a transaction.
        """
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
        """Let the thread finish, but wait no longer than until `give_up` on the monotonic clock.

        It ends by itself only once the process is ending or no user is left.
        """
        thread = self._thread
        if thread is not None:
            self._inbox.put(None)
            thread.join(max(0.0, give_up - time.monotonic()))

    # -- writing --------------------------------------------------------------------------------

    def submit(
        self, work: Work, *, forced: bool, bytes: int, path: Path, busy_seconds: float
    ) -> Future[None]:
        """Queue work and return its future. Wait while the queue is full.

        A thread that the writer is, or waits for, does not wait.

        The future gets the result or the error in the writer's thread. If there can be no thread
        any more, the work is done at once in the thread of the caller. `path` is the name in its
        errors.
        """
        item = _Submission(work, forced=forced, bytes=bytes, path=path, busy_seconds=busy_seconds)
        with self._gate:
            if not self._is_mine and (self._turns or self._is_full(bytes)):
                self._wait_for_room(bytes)
            threaded = self._ensure_thread()
            if threaded:
                self._inbox.put(item)
                self._last = item.future
                self._open += 1
                self._open_bytes += bytes
        if not threaded:
            _resolve_futures([item], self._write([item]))
        return item.future

    @property
    def _is_mine(self) -> bool:
        """True if this thread is the writer's own, or one that the writer waits for."""
        return self.connection.is_mine or threading.current_thread() is self._thread

    def check_not_mine(self) -> None:
        """Raise `UsageError` in a thread that would wait for itself."""
        self.connection.check_not_mine()
        if threading.current_thread() is self._thread:
            raise UsageError(f"{self.connection.path}: its writer cannot wait for itself")

    def transaction(
        self, *, forced: bool, busy_seconds: float
    ) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        """Run one transaction in the thread of the caller: all of it, or nothing.

        Waits for its turn on the connection. Raise `UsageError` if this thread is using it already.
        """
        return self._transactions.one(forced=forced, busy_seconds=busy_seconds)

    def alone(
        self, *, busy_seconds: float
    ) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        """Give the writing connection, outside of any transaction, and to this thread alone.

        Raise `UsageError` if this thread is using it already.
        """
        return self._transactions.none(busy_seconds=busy_seconds)

    # -- the thread -----------------------------------------------------------------------------

    def _ensure_thread(self) -> bool:
        """Start the thread if there is none. Return False if none can be started any more."""
        if self._thread is None and not _ending.is_set():
            self._thread = threading.Thread(target=self._run, name="tally-writer", daemon=True)
            try:
                # It serves all later transactions, so it takes nothing of this context along.
                contextvars.Context().run(self._thread.start)
            except RuntimeError:
                self._thread = None
        return self._thread is not None

    def _is_full(self, bytes: int) -> bool:
        if not self._open:
            return False
        return self._open >= QUEUE_MAX or self._open_bytes + bytes > QUEUE_BYTES_MAX

    def _wait_for_room(self, bytes: int) -> None:
        """Wait for room in the queue, first come, first served: else a large one never gets in."""
        turn = object()
        self._turns.append(turn)
        try:
            self._gate.wait_for(lambda: self._turns[0] is turn and not self._is_full(bytes))
        finally:
            self._turns.remove(turn)
            self._gate.notify_all()

    def _run(self) -> None:
        while not self._end_if_idle():
            self._write_next()
        self.connection.close()

    def _end_if_idle(self) -> bool:
        """Return True, and give up the thread, if nothing is left to do and there is no user.

        At the end of the process, users do not count.
        """
        if self._users and not _ending.is_set():
            return False
        with self._gate:
            wanted = self._users and not _ending.is_set()
            if wanted or self._next_item is not None or not self._inbox.empty():
                return False
            self._thread = None
            self._gate.notify_all()
            return True

    def _write_next(self) -> None:
        """Wait for a submission, write it with those that came meanwhile, and resolve all futures.

        Return without writing if a user left.
        """
        first, self._next_item = self._next_item or self._inbox.get(), None
        if first is None:
            return  # a user left: `_run` looks whether it was the last one
        batch = [first]
        failed = self._write(batch, more=True)
        with self._gate:
            self._open -= len(batch)
            self._open_bytes -= sum(item.bytes for item in batch)
            self._gate.notify_all()
        _resolve_futures(batch, failed)
        with self._gate:
            # A done future still refers to its callbacks, and those may refer to a ledger. If the
            # thread kept the future, that ledger would never be collected, nor its writer ended.
            if self._last is batch[-1].future:
                self._last = None

    def _fill(self, batch: list[_Submission]) -> None:
        """Add queued submissions to `batch`, up to the size of a transaction. The next waits."""
        size = sum(item.bytes for item in batch)
        with contextlib.suppress(Empty):
            while len(batch) < _BATCH_MAX:
                item = self._inbox.get_nowait()
                if item is None:
                    continue
                size += item.bytes
                if size > _BATCH_BYTES_MAX:
                    self._next_item = item
                    break
                batch.append(item)

    # -- transactions ---------------------------------------------------------------------------

    def _write(
        self, batch: list[_Submission], *, more: bool = False
    ) -> dict[_Submission, BaseException]:
        """Write submissions in one transaction. Return those that failed, each with its error.

        With `more`, submissions queued meanwhile are added to `batch`.
        """
        failed: dict[_Submission, BaseException] = {}
        busy_seconds = batch[0].busy_seconds
        try:
            with self.connection.held() as db:
                if more:
                    # Not earlier: more may have arrived while this waited for the connection.
                    self._fill(batch)
                busy_seconds = max(item.busy_seconds for item in batch)
                forced = any(item.forced for item in batch)
                with self._transactions.of(db, forced=forced, busy_seconds=busy_seconds):
                    _do_each(db, batch, failed)
        except _AllRefused:
            pass
        except BaseException as error:
            failed = dict.fromkeys(batch, error)
        return {item: _error_for(item, error, busy_seconds) for item, error in failed.items()}


class _AllRefused(Exception):
    """Every submission of a transaction was refused, so there is nothing to commit."""


def _do_each(
    db: sqlite3.Connection, batch: Sequence[_Submission], failed: dict[_Submission, BaseException]
) -> None:
    """Do each submission in its savepoint, and put the refused ones into `failed`.

    Any other error, such as a damaged file, is raised and ends all of them. A single submission has
    no savepoint, and its error is raised. Raise `_AllRefused` if every one of several was refused.
    """
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


def _resolve_futures(
    batch: Sequence[_Submission], failed: dict[_Submission, BaseException]
) -> None:
    for item in batch:
        error = failed.get(item)
        # An error in a callback must not keep the next submissions from their results.
        with contextlib.suppress(BaseException):
            if error is None:
                item.future.set_result(None)
            else:
                item.future.set_exception(error)


def _error_for(item: _Submission, error: BaseException, busy_seconds: float) -> BaseException:
    """Return the error for one waiter.

    An error of SQLite or the system is translated, to an object of its own for each: it is raised
    in another thread. Any other is returned as it is.
    """
    ours = LEDGER.errors.of(error, item.path, waited_seconds=busy_seconds)
    if ours is not error:
        ours.__cause__ = error
    return ours


# -- one writer for each file -------------------------------------------------------------------

_guard = threading.Lock()
_writers: weakref.WeakValueDictionary[tuple[str, int, int], Writer] = weakref.WeakValueDictionary()
_ending = threading.Event()


def writer_of(path: Path, user: object, *, busy_seconds: float) -> Writer:
    """Return the writer of a file, whatever links lead to it, and register `user`.

    The file is created if missing. Raise `OSError` if it cannot be, and `NotSupportedHere` on a
    system without file locks. A new writer gets `busy_seconds`; one that is there keeps its own.
    """
    found = LEDGER.make(path)
    # The inode is part of the key: a file that was replaced under its name is another file.
    key = (os.path.realpath(path), found.st_dev, found.st_ino)
    with _guard:
        writer = _writers.get(key)
        if writer is None:
            writer = _writers[key] = Writer(path, busy_seconds=busy_seconds)
    writer.enter(user)
    return writer


def _reset_after_fork() -> None:
    # The thread exists only in the parent, which also writes what was queued. The lock may have
    # been held by another thread at the fork, and would never be released here.
    global _guard
    _guard = threading.Lock()
    for writer in list(_writers.values()):
        writer.reset()


@atexit.register
def _at_exit() -> None:
    """Write what is queued, for at most 10 s in all, and end.

    Later submissions do their work at once.
    """
    _ending.set()
    give_up = time.monotonic() + _EXIT_SECONDS
    with _guard:
        writers = list(_writers.values())
    for writer in writers:
        writer.end(give_up)


system.register_at_fork(after_in_child=_reset_after_fork)
