"""Write the records of a run, and compare with the record what is on it already.

A new run has an empty history, and writes from its first record on. A replay has no ledger: it
compares, and stops where the record ends. A resumed run, or a fork, compares until the record ends,
and then appends. The first record that it appends is the continuation, which says so. Such a run
raises a difference at once, before it writes anything. A replay notes the first difference, and
continues as far as the record serves it.

Listeners are called with each record once, in order, under one lock, and are told whether it is
new.
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
from tallystick.core.resume_errors import NeedsPerson, ResumeDiverged
from tallystick.runtime.journal.cursor import Cursor, Divergence, RecordEnds
from tallystick.runtime.journal.writer import LedgerWriter, PendingWrite
from tallystick.runtime.spend.door import WaitedTooLong

# Called with a record, and whether it is new. It must not raise: the record is written already.
Hear = Callable[[Record, bool], None]
_Waiting = list[tuple[Sequence[Record], asyncio.Future[None]]]


class Journal:
    """The records of one run, compared and appended. Without `open` it writes nothing: a replay.

    A method that takes a record raises `ResumeDiverged` if a resumed run makes another record than
    the next one. After that, it raises it again for the first new record. A replay notes the first
    difference in `first`. It raises `RecordEnds` where the record stops, but notes a program's call
    there as a difference. A new record raises what the ledger raises.
    """

    def __init__(self, history: History, *, run: str) -> None:
        self._history = history
        self._cursor = Cursor(history.records)
        self._run = run
        self._writer: LedgerWriter | None = None
        self._continuation: Continuation | None = None
        self._listeners: list[Hear] = []
        # One lock for the position in the record, the writes and the listeners, so that listeners
        # are called in the order of the ledger.
        self.lock = threading.RLock()
        self.live = False
        self._ends_again = False
        # The first difference that a replay found.
        self.first: Divergence | None = None
        # The difference that stopped a resumed run. It is kept, since other calls of the same batch
        # would otherwise start to write after it.
        self._stopped: ResumeDiverged | None = None
        # Records of this turn of the event loop. They are written in one transaction, since a
        # commit costs much more than a record.
        self._waiting: _Waiting = []
        self._forced = False

    def open(self, writer: LedgerWriter, continuation: Continuation | None) -> None:
        """Write new records with `writer`, after those on record.

        `continuation` is the first new record of a run that is resumed or forked, None for a new
        run. This writes nothing yet.
        """
        self._writer, self._continuation = writer, continuation
        self.live = not self._history.records

    # -- where it stands -----------------------------------------------------------------------

    @property
    def is_replay(self) -> bool:
        """True if nothing is written. Known once `open` was called, or the run is driven."""
        return self._writer is None

    @property
    def may_end(self) -> bool:
        """True if an end that comes now is an end of the run.

        It is if the run is live, or if its record ends in the same way here. Otherwise Ctrl-C, or
        a full disk, ends only the replay.
        """
        return self.live or self._ends_again

    @property
    def seq(self) -> int:
        """The position of the next record to compare."""
        return self._cursor.seq

    @property
    def left(self) -> tuple[int, Record] | None:
        """The first record that was not repeated, with its position; None if all were."""
        return self._cursor.left

    def check_new(self, what: str, *, beside: int | None = None) -> None:
        """Raise a divergence if a call that is not on record comes while the record has more.

        Nothing may be sent then. Calls of the host call `beside` do not count: model calls of a
        batch, or children, end in any order. A resumed run raises `ResumeDiverged`. A replay notes
        the difference, and raises `ReplayDiverged`.
        """
        with self.lock:
            self._hear_continuations(ending=False)
            seq = None if self.live else self._cursor.left_beside(beside)
            if seq is None:
                return
            self._differs(Divergence(seq=seq, field="calls", recorded=None, now=what))
            # A replay cannot serve the call, and a program must not handle that as an error.
            raise ReplayDiverged(index=seq, field="calls", recorded=None, now=what)

    def recorded_end(self) -> BaseException:
        """Return the exception that ended the run where its record stops.

        That is a cancel, `WaitedTooLong`, `NeedsPerson`, or else `SandboxError`. From here on, an
        end is an end of the run (`may_end`). If no end is on record, return `RecordEnds`.
        """
        ended = self._history.end
        if ended is None:
            return RecordEnds()
        self._ends_again = True
        # A run ends in doubt if it is stopped during a call. The driver finds that call again.
        if ended.stop in ("cancelled", "in_doubt"):
            return asyncio.CancelledError()
        if ended.stop == "deadline":
            return WaitedTooLong(ended.detail)
        if ended.stop == "waiting":
            return NeedsPerson(ended.detail)
        return SandboxError(ended.detail)

    @property
    def cancelled_again(self) -> bool:
        """True if a replay was cancelled where the record says the run was, or was in doubt."""
        ended = self._history.end
        return self._ends_again and ended is not None and ended.stop in ("cancelled", "in_doubt")

    # -- listening -----------------------------------------------------------------------------

    def listen(self, hear: Hear) -> None:
        """Call `hear` with every record from here on."""
        self._listeners.append(hear)

    def _tell(self, record: Record, *, new: bool) -> None:
        with self.lock:
            for hear in self._listeners:
                hear(record, new)

    # -- writing -------------------------------------------------------------------------------

    def append(self, record: Record) -> None:
        """Write a record with the next write, and tell the listeners at once.

        Until that write, the record is lost if the process dies. The 256th that waits starts one.
        """
        with self.lock:
            new = not self._is_known(record)
            if new:
                self._new_writer().append_later(record)
            self._tell(record, new=new)

    def submit(self, record: Record) -> PendingWrite:
        """Start to write a record, tell the listeners at once, and return the write.

        The write is not forced. For a record that is on record already it is done at once.
        """
        with self.lock:
            writing, new = self._begin([record], forced=False)
            self._tell(record, new=bool(new))
            return writing

    def write_here(self, record: Record, *, forced: bool) -> None:
        """Write a record, and wait in this thread until it is committed; on disk if `forced`.

        The listeners are told after that. If it cannot be written, no listener is told.
        """
        writing, new = self._begin([record], forced=forced)
        writing.result()
        self._tell(record, new=bool(new))

    async def write(self, *records: Record, forced: bool = False) -> None:
        """Write records in one transaction, with all other writes of this turn of the event loop.

        Wait until they are committed, on disk if `forced`, and then tell the listeners. A cancel
        is raised only after that: the caller must know that the records are there. If they cannot
        be written, raise that error, and tell no listener.
        """
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()
        # The first starts the flush of all that come in this turn of the loop. A group commit:
        # one transaction, and one wait for the disk, for a batch of calls.
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
        """Start to write a record after all that waits, without waiting: the caller is cancelled.

        Raise what the ledger raises if the write cannot start. If it fails later, the next write
        raises the error.
        """
        # In this order, so that the end of a call never comes before its beginning.
        self.flush()
        self.submit(record)

    def flush(self) -> None:
        """Start to write everything that waits, and return without waiting.

        Once it is committed, the listeners are told, on the event loop. An error of the write, or
        of a listener, is raised to those who wait in `write`, never here. Do nothing if nothing
        waits.
        """
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
        # By identity: a new record may be equal to one that is on record.
        fresh = set(map(id, new))
        if writing.future is None:
            self._finish_write(waiting, fresh, None)
            return
        loop = asyncio.get_running_loop()

        def ended(future: Future[None]) -> None:
            loop.call_soon_threadsafe(self._finish_write, waiting, fresh, future.exception())

        writing.future.add_done_callback(ended)

    def _finish_write(
        self, waiting: _Waiting, fresh: set[int], error: BaseException | None
    ) -> None:
        try:
            for records, _ in waiting if error is None else ():
                for record in records:
                    self._tell(record, new=id(record) in fresh)
        except BaseException as raised:
            # This is a callback of the event loop, so only those who wait can raise it.
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
        """Take everything that is recorded inside a program that is served, and tell listeners.

        `calls` are its model calls and children. Its host calls and their answers are next on
        record, and are taken up to the first other record. Nothing is compared.
        """
        with self.lock:
            self.pass_over_inside(calls)
            while True:
                self._hear_continuations(ending=False)
                call = self._cursor.take_call_of(program)
                if call is None:
                    return
                self._tell(call, new=False)

    def pass_over_inside(self, calls: Sequence[QueryRecord]) -> None:
        """Take model calls and children whose host call is served, and tell the listeners.

        Nothing is compared.
        """
        with self.lock:
            for each in calls:
                self._cursor.take_query(each)
                self._tell(each, new=False)

    def continuation(self, *, ending: bool) -> tuple[Continuation, RunEnded | None] | None:
        """Return the continuation if the run was resumed or forked here, else None.

        It comes with the end that the resume followed, if that came from outside and not from the
        machine. `ending` says that the machine itself ends the run here. Where the record of a
        resumed run is exhausted, the run goes live: its own continuation is appended and returned,
        once. The listeners are not told of a continuation that is returned here. Raise
        `ResumeDiverged` if the record has calls that no program repeated.
        """
        with self.lock:
            if self.live:
                return None
            if self._writer is None:
                # If the run was not resumed, its end from outside is repeated, not skipped.
                found = self._cursor.continuation(ending=ending or self._cursor.ends_here)
                return None if found is None or found[0] is None else (found[0], found[1])
            found = self._cursor.continuation(ending=ending)
            if found is None and not self._cursor.exhausted:
                return None
            left = self._cursor.left
            if found is None and left is not None:
                # No program is running here, so none can ask for what is left.
                self._differs(Divergence(seq=left[0], field="calls", recorded="made", now=None))
            continuation, ended = found or (None, None)
            return (self._go_live() if continuation is None else continuation), ended

    def compare_end(self, ended: Sequence[Record]) -> None:
        """Compare the end that `continuation` returned with the end that the run would have now.

        A resumed run raises `ResumeDiverged` for a difference; a replay notes it.
        """
        found = self._cursor.compare_end(ended)
        if found is not None:
            self._differs(found)

    def _has_query(self, record: Record) -> bool:
        return isinstance(record, QueryRecord) and self._cursor.has_query(record)

    def _is_known(self, record: Record) -> bool:
        """Return True if a record is on record already, after a comparison; False if it is new.

        The first new record makes the run live. A replay raises `RecordEnds` instead.
        """
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
        # All calls inside a host call are repeated before its answer is.
        answers = isinstance(record, HostAnswered)
        seq = self._cursor.left_beside(None) if answers or not self._cursor.exhausted else None
        if self._writer is None or seq is not None:
            seq = self._cursor.seq if seq is None else seq
            self._differs(Divergence(seq=seq, field="calls", recorded=None, now=tag_of(record)))
            return True
        self._tell(self._go_live(), new=True)
        return False

    def _hear_continuations(self, *, ending: bool) -> None:
        """Take continuations that are recorded in the middle of a program, and tell listeners.

        A run that was cut off inside a program repeats that program, so the record of the resume is
        between the records of its calls. There may be several.
        """
        if self.live:
            return
        if self._writer is None:
            ending = ending or self._cursor.ends_here
        while (found := self._cursor.continuation(ending=ending)) is not None:
            if found[0] is None:
                return
            self._tell(found[0], new=False)

    def _go_live(self) -> Continuation:
        """Start to append, and append the continuation first. Return it.

        After a divergence, raise that again.
        """
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
