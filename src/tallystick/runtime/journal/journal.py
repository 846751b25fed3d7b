"""The journal of a run: what its record has is compared with it, what is new is appended.

A new run has an empty history and writes from its first record on. A replay has no ledger: it
compares, and stops where the record ends. A resumed run, or a fork, compares while the record
lasts, and then writes behind it; the first thing it writes is the continuation, which says so. A
difference is raised at once, before anything is written; a replay notes the first, and continues as
far as the record serves it.

Whoever has to know of records listens: each one is told once, in order, under one lock, and with it
whether it is new.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from tallystick.core.errors import ReplayDiverged, SandboxError
from tallystick.core.history import History
from tallystick.core.records import (
    Continuation,
    HostAnswered,
    QueryRecord,
    ReceiptIssued,
    Record,
    RunEnded,
    tag_of,
)
from tallystick.core.resume_errors import ResumeDiverged
from tallystick.runtime.journal.cursor import Cursor, Divergence, RecordEnds
from tallystick.runtime.journal.writer import LedgerWriter, PendingWrite
from tallystick.runtime.spend.door import WaitedTooLong

# Hears of a record, and whether it is new. It must not raise.
Hear = Callable[[Record, bool], None]
_Waiting = list[tuple[Sequence[Record], asyncio.Future[None]]]


class NeedsPerson(Exception):
    """A call waits for a person's word: the run ends as refused, and is resumed with it."""


class Journal:
    """Where a run is written. One that is not opened is that of a replay, which writes nothing."""

    def __init__(self, history: History, *, run: str) -> None:
        self._history = history
        self._cursor = Cursor(history.records)
        self._run = run
        self._writer: LedgerWriter | None = None
        self._continuation: Continuation | None = None
        self._listeners: list[Hear] = []
        # One lock for the place in the record, what is written, and the listeners.
        self.lock = threading.RLock()
        self.live = False
        self._ends_again = False
        # The first difference that a replay found.
        self.first: Divergence | None = None
        # The difference that stopped a resumed run: others of its batch may not begin to write.
        self._stopped: ResumeDiverged | None = None
        # What is written together, once this turn of the event loop is over.
        self._waiting: _Waiting = []
        self._forced = False

    def open(self, writer: LedgerWriter, continuation: Continuation | None) -> None:
        """Write what is new by `writer`, behind the record.

        `continuation` is the first new record of a run that is resumed or forked.
        """
        self._writer, self._continuation = writer, continuation
        self.live = not self._history.records

    # -- where it stands -----------------------------------------------------------------------

    @property
    def is_replay(self) -> bool:
        return self._writer is None

    @property
    def may_end(self) -> bool:
        """Whether an end that comes now is the run's.

        It is while the run is live, and where its record ends it in the same way. Ctrl-C, or a disk
        that is full, ends a replay and not the run.
        """
        return self.live or self._ends_again

    @property
    def seq(self) -> int:
        """The place in the record of what is made again next."""
        return self._cursor.seq

    @property
    def left(self) -> tuple[int, Record] | None:
        """The first record that was not made again, and its place."""
        return self._cursor.left

    def check_new(self, what: str, *, beside: int | None = None) -> None:
        """Refuse a call that is not on the record while that has more: nothing may be sent.

        Of the host call that it stands `beside`, others may be on the record: model calls of a
        batch, or children, end in any order.
        """
        with self.lock:
            self._hear_continuations(ending=False)
            seq = None if self.live else self._cursor.left_beside(beside)
            if seq is None:
                return
            self._differs(Divergence(seq=seq, field="calls", recorded=None, now=what))
            # There is nothing to serve, and that is not a program's to handle.
            raise ReplayDiverged(index=seq, field="calls", recorded=None, now=what)

    def cut(self) -> BaseException:
        """Return what ended the run where its record stops: a cancel, its deadline, its sandbox."""
        ended = self._history.end
        if ended is None:
            return RecordEnds()
        self._ends_again = True
        if ended.stop in ("cancelled", "in_doubt"):
            return asyncio.CancelledError()
        if ended.stop == "deadline":
            return WaitedTooLong(ended.detail)
        if ended.stop == "refused":
            return NeedsPerson(ended.detail)
        return SandboxError(ended.detail)

    @property
    def cancelled_again(self) -> bool:
        """Whether a replay was cancelled as its record says that the run was."""
        ended = self._history.end
        return self._ends_again and ended is not None and ended.stop in ("cancelled", "in_doubt")

    # -- listening -----------------------------------------------------------------------------

    def listen(self, hear: Hear) -> None:
        """Have somebody hear of every record from here on."""
        self._listeners.append(hear)

    def _tell(self, record: Record, *, new: bool) -> None:
        with self.lock:
            for hear in self._listeners:
                hear(record, new)

    # -- writing -------------------------------------------------------------------------------

    def append(self, record: Record) -> None:
        """Write a record with whatever is written next."""
        with self.lock:
            new = not self._is_known(record)
            if new:
                self._new_writer().append_later(record)
            self._tell(record, new=new)

    def submit(self, record: Record) -> PendingWrite:
        """Begin to write a record and tell of it at once; for whoever cannot wait here."""
        with self.lock:
            writing, new = self._begin([record], forced=False)
            self._tell(record, new=bool(new))
            return writing

    def write_here(self, record: Record, *, forced: bool) -> None:
        """Write a record in a thread, and tell of it once it is committed, or on the disk."""
        writing, new = self._begin([record], forced=forced)
        writing.result()
        self._tell(record, new=bool(new))

    async def write(self, *records: Record, forced: bool = False) -> None:
        """Write in one transaction, with all that others write in this turn of the event loop.

        Waits until it is committed, or on the disk if it is `forced`, and tells of it then. A
        cancel is raised too, but only once that is done. If it cannot be written, that is raised
        instead: nobody may be told of a record that is not there.
        """
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self.flush)
        self._waiting.append((records, written))
        self._forced = self._forced or forced
        left: asyncio.CancelledError | None = None
        while not written.done():
            try:
                await asyncio.wait({written})
            except asyncio.CancelledError as error:
                left = error
        written.result()
        if left is not None:
            raise left

    def write_now(self, record: Record) -> None:
        """Begin to write, behind all that waits: whoever asked is being cancelled.

        The next write tells of a failure.
        """
        self.flush()
        self.submit(record)

    def flush(self) -> None:
        """Begin to write what waits, now."""
        waiting, self._waiting = self._waiting, []
        forced, self._forced = self._forced, False
        if not waiting:
            return
        records = [record for several, _ in waiting for record in several]
        try:
            writing, new = self._begin(records, forced=forced)
        except BaseException as error:
            _wake(waiting, error)
            return
        fresh = set(map(id, new))
        if writing.future is None:
            self._written(waiting, fresh, None)
            return
        loop = asyncio.get_running_loop()

        def ended(future: Future[None]) -> None:
            loop.call_soon_threadsafe(self._written, waiting, fresh, future.exception())

        writing.future.add_done_callback(ended)

    def _written(self, waiting: _Waiting, fresh: set[int], error: BaseException | None) -> None:
        try:
            for records, _ in waiting if error is None else ():
                for record in records:
                    self._tell(record, new=id(record) in fresh)
        except BaseException as raised:
            # Whoever waits hears of it: nobody else can, on the event loop.
            error = raised
        _wake(waiting, error)

    def _begin(
        self, records: Sequence[Record], *, forced: bool
    ) -> tuple[PendingWrite, Sequence[Record]]:
        with self.lock:
            fresh = [record for record in records if not self._is_known(record)]
            if not fresh:
                return PendingWrite(), fresh
            return self._new_writer().write(fresh, forced=forced), fresh

    def _new_writer(self) -> LedgerWriter:
        assert self._writer is not None, "what a replay makes is on its record"
        return self._writer

    # -- comparing -----------------------------------------------------------------------------

    def pass_over(self, calls: Sequence[QueryRecord], program: int) -> None:
        """Tell of all that is recorded inside a program that is served whole.

        `calls` are its model calls and children; its host calls stand next in the record.
        """
        with self.lock:
            for each in calls:
                self._cursor.take_query(each)
                self._tell(each, new=False)
            while True:
                self._hear_continuations(ending=False)
                call = self._cursor.take_call_of(program)
                if call is None:
                    return
                self._tell(call, new=False)

    def continuation(self, *, ending: bool) -> tuple[Continuation, RunEnded | None] | None:
        """Return that the run was resumed here, between what it asks for, or `ending` it.

        With it, how it had ended from outside, if it had: that is not the machine's doing.
        """
        with self.lock:
            if self.live:
                return None
            if self._writer is None:
                # An end from outside that nobody resumed is made again, not passed over.
                found = self._cursor.continuation(ending=ending or self._cursor.ends_here)
                return None if found is None or found[0] is None else (found[0], found[1])
            found = self._cursor.continuation(ending=ending)
            if found is None and not self._cursor.exhausted:
                return None
            left = self._cursor.left
            if found is None and left is not None:
                # Between programs there are no model calls of programs left.
                self._differs(Divergence(seq=left[0], field="calls", recorded="made", now=None))
            continuation, ended = found or (None, None)
            return (self._go_live() if continuation is None else continuation), ended

    def compare_end(self, ended: Sequence[Record]) -> None:
        """Compare the end that `continuation` passed with the end that the run would have now."""
        found = self._cursor.compare_end(ended)
        if found is not None:
            self._differs(found)

    def _has_query(self, record: Record) -> bool:
        return isinstance(record, QueryRecord) and self._cursor.has_query(record)

    def _is_known(self, record: Record) -> bool:
        """Tell whether the record has it, and then the same; else the run is live from here on."""
        is_query = isinstance(record, QueryRecord)
        if self.live and not self._has_query(record):
            return False
        self._hear_continuations(ending=isinstance(record, ReceiptIssued | RunEnded))
        if isinstance(record, QueryRecord):
            known = self._has_query(record)
        else:
            known = not self._cursor.exhausted
        if known:
            found = self._cursor.take(record)
            if found is not None:
                self._differs(found)
            return True
        if self._writer is None and not is_query:
            raise RecordEnds
        # What a host call asked is made again before its answer is written.
        answers = isinstance(record, HostAnswered)
        seq = self._cursor.left_beside(None) if answers or not self._cursor.exhausted else None
        if self._writer is None or seq is not None:
            seq = self._cursor.seq if seq is None else seq
            self._differs(Divergence(seq=seq, field="calls", recorded=None, now=tag_of(record)))
            return True
        self._tell(self._go_live(), new=True)
        return False

    def _hear_continuations(self, *, ending: bool) -> None:
        """Tell of continuations that stand in the middle of what is being done."""
        if self.live:
            return
        if self._writer is None:
            ending = ending or self._cursor.ends_here
        while (found := self._cursor.continuation(ending=ending)) is not None:
            if found[0] is None:
                return
            self._tell(found[0], new=False)

    def _go_live(self) -> Continuation:
        """Begin to write behind the record: first that the run is resumed or forked."""
        assert self._continuation is not None, "a run with a record is resumed or forked"
        if self._stopped is not None:
            raise self._stopped
        self.live = True
        self._new_writer().append_later(self._continuation)
        return self._continuation

    def _differs(self, found: Divergence) -> None:
        if self._writer is None:
            self.first = self.first or found
            return
        self._stopped = ResumeDiverged(
            run=self._run,
            seq=found.seq,
            field=found.field,
            recorded=found.recorded,
            now=found.now,
        )
        raise self._stopped


def _wake(waiting: _Waiting, error: BaseException | None) -> None:
    for _, written in waiting:
        if written.done():
            continue
        if error is None:
            written.set_result(None)
        else:
            written.set_exception(error)
