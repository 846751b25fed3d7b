"""The journal of a run: records written in order, held back, written together, and compared."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

import msgspec

from tallystick.core.chain import Draft, Head
from tallystick.core.records import (
    ChildBegun,
    ChildEnded,
    Continuation,
    NetworkAttempted,
    QueryAsked,
    QueryFailed,
    QueryRecord,
    QueryRefused,
    QueryReplied,
    ReceiptIssued,
    Record,
    RunEnded,
    RunPruned,
    RunResumed,
    encode_record,
    intent_of,
    tag_of,
)
from tallystick.ledger.port import Also, Ledger

# The pen of a run: writes records in order, and holds back those that may ride along.
#
# *Riding along* costs nothing until something is committed. *Committed* survives the process.
# *Forced* is on the disk, with everything before it. Attachments that records refer to are
# committed in the transaction that writes them.
#
# Writing is begun here and done by the ledger's writer. Whoever needs it done waits: a thread for
# the result, a loop by awaiting. What was begun is done, whether or not somebody still waits.


_HELD_MAX = 256


class PendingWrite:
    """A write that was begun."""

    def __init__(self, future: Future[None] | None = None) -> None:
        self.future = future

    def result(self) -> None:
        """Wait for it in a thread. Raises what the ledger does."""
        if self.future is not None:
            self.future.result()

    async def done(self) -> None:
        """Wait for it on a loop. A cancel is raised too, but not before it is done."""
        left: asyncio.CancelledError | None = None
        while self.future is not None and not self.future.done():
            try:
                await _woken_by(self.future)
            except asyncio.CancelledError as error:
                left = error
        self.result()
        if left is not None:
            raise left


def _woken_by(future: Future[None]) -> asyncio.Future[None]:
    """A wait on this loop that ends with the write."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not waiting.done():
            waiting.set_result(None)

    future.add_done_callback(lambda _: loop.call_soon_threadsafe(wake))
    return waiting


class Journal(Protocol):
    """Where a driver writes. While it is not `live`, everything is on the record already."""

    @property
    def live(self) -> bool: ...

    def append_later(self, record: Record) -> None: ...

    def write(self, records: Sequence[Record], *, forced: bool) -> PendingWrite:
        """Begin to write several in one transaction, behind all that rides along."""
        ...

    def continuation(self, *, ending: bool) -> tuple[Continuation, RunEnded | None] | None:
        """Whether a run is gone on with here, between what it asks for, or `ending` it.

        With it, how it had ended from outside, if it had: that is not the machine's doing.
        """
        ...

    def compare(self, ended: Sequence[Record]) -> None:
        """Compare the end that `continuation` gave with the end that the run would have now."""
        ...

    def on_continuation(self, hear: Callable[[Continuation], None]) -> None:
        """Have somebody hear of one that stands in the middle of what is being done."""
        ...


class LedgerJournal:
    """Writes to a ledger that this process has claimed a run of. Used from any thread.

    `committed` is called with each record once the ledger has it, in order, before anyone who
    waits for the write continues. It must not raise.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        run: str,
        fence: int,
        head: Head,
        to_commit: Callable[[], Also | None] = lambda: None,
        committed: Callable[[Record], None] | None = None,
    ) -> None:
        self._to_commit = to_commit
        self._committed = committed
        self._untold: list[Record] = []
        self._ledger = ledger
        self._run = run
        self._fence = fence
        self._head = head
        self._guard = threading.Lock()
        self._held: list[Draft] = []
        self._broken: BaseException | None = None
        self.live = True

    @property
    def head(self) -> Head:
        """Where the run stands once all that was begun is written."""
        return self._head

    def append_later(self, record: Record) -> None:
        with self._guard:
            self._hold([record])
            if len(self._held) >= _HELD_MAX:
                self._submit(forced=False)

    def write(self, records: Sequence[Record], *, forced: bool) -> PendingWrite:
        with self._guard:
            self._hold(records)
            return PendingWrite(self._submit(forced=forced))

    def _hold(self, records: Sequence[Record]) -> None:
        self._held.extend(map(_draft, records))
        if self._committed is not None:
            self._untold.extend(records)

    def continuation(self, *, ending: bool) -> tuple[Continuation, RunEnded | None] | None:
        return None

    def compare(self, ended: Sequence[Record]) -> None:
        """There is nothing to compare in a run that is new."""

    def on_continuation(self, hear: Callable[[Continuation], None]) -> None:
        """There is none in a run that is new."""

    def _submit(self, *, forced: bool) -> Future[None]:
        if self._broken is not None:
            # What is written after a hole would look as if nothing were missing.
            raise self._broken
        drafts, self._held = self._held, []
        records, self._untold = self._untold, []
        try:
            self._head, future = self._ledger.submit(
                self._run,
                drafts,
                expected=self._head,
                fence=self._fence,
                forced=forced,
                also=self._to_commit(),
            )
        except Exception as error:
            self._broken = error
            raise
        future.add_done_callback(self._ended)
        return future if self._committed is None else _told(future, self._committed, records)

    def _ended(self, future: Future[None]) -> None:
        error = future.exception()
        if error is not None and self._broken is None:
            self._broken = error


def _told(
    written: Future[None], committed: Callable[[Record], None], records: Sequence[Record]
) -> Future[None]:
    """Return a future that ends when the records are committed and told."""
    told: Future[None] = Future()
    # From here on nobody who stops to wait can cancel it.
    told.set_running_or_notify_cancel()

    def tell(done: Future[None]) -> None:
        error = done.exception()
        if error is not None:
            told.set_exception(error)
            return
        for record in records:
            committed(record)
        told.set_result(None)

    written.add_done_callback(tell)
    return told


def _draft(record: Record) -> Draft:
    return Draft(tag=tag_of(record), intent=intent_of(record), body=encode_record(record))


_ledger_pen_is_a_pen: type[Journal] = LedgerJournal


# Records of calls that run side by side, written together: one wait for the disk for many.
#
# Whoever writes waits until what it wrote is committed, or on the disk. Everything that comes in
# one turn of the event loop goes into one transaction, forced if any of it must be.


_Waiting = list[tuple[QueryRecord, asyncio.Future[None]]]


class CallBatch:
    """Gathers records on the event loop."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._waiting: _Waiting = []
        self._forced = False

    async def write(self, record: QueryRecord, *, forced: bool) -> None:
        """Write a record with all that comes in this turn of the loop, and wait for it.

        A cancel is raised too, but only once the record is written. If it cannot be written, that
        is raised instead: nobody may be told of a record that is not there.
        """
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self.flush)
        self._waiting.append((record, written))
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

    def now(self, record: QueryRecord) -> None:
        """Begin to write at once, behind all that waits. The next write tells of a failure."""
        self.flush()
        self._journal.write([record], forced=False)

    def flush(self) -> None:
        """Begin to write what waits, now."""
        waiting, self._waiting = self._waiting, []
        forced, self._forced = self._forced, False
        if not waiting:
            return
        try:
            writing = self._journal.write([record for record, _ in waiting], forced=forced)
        except BaseException as error:
            _wake(waiting, error)
            return
        if writing.future is None:
            _wake(waiting, None)
            return
        loop = asyncio.get_running_loop()

        def ended(future: Future[None]) -> None:
            loop.call_soon_threadsafe(_wake, waiting, future.exception())

        writing.future.add_done_callback(ended)


def _wake(waiting: _Waiting, error: BaseException | None) -> None:
    for _, written in waiting:
        if written.done():
            continue
        if error is None:
            written.set_result(None)
        else:
            written.set_exception(error)


class QueryWriter:
    """Writes the model calls of one program, and has them counted.

    Once the program is `over`, nothing more of it is written: the run has gone on.
    """

    def __init__(
        self, together: CallBatch, count: Callable[[QueryRecord], None], over: Callable[[], bool]
    ) -> None:
        self._together = together
        self._count = count
        self._over = over

    async def asked(self, record: QueryAsked) -> None:
        if self._over():
            # Nothing is begun before it is written, and nothing more of this program is.
            raise asyncio.CancelledError
        await self._written(record, forced=True)

    async def begun(self, record: ChildBegun) -> None:
        if self._over():
            raise asyncio.CancelledError
        await self._written(record, forced=True)

    async def ended(self, record: QueryReplied | QueryFailed | QueryRefused | ChildEnded) -> None:
        await self._written(record, forced=False)

    async def _written(self, record: QueryRecord, *, forced: bool) -> None:
        if self._over():
            return
        try:
            await self._together.write(record, forced=forced)
        except asyncio.CancelledError:
            # It is written all the same.
            self._count(record)
            raise
        self._count(record)

    def now(self, record: QueryRecord) -> None:
        """At once, behind what waits: whoever asked is being cancelled, or has ended long ago."""
        if not self._over():
            self._together.now(record)
            self._count(record)


# A recorded run, gone through once: what a driver does is compared with what was written.
#
# Records stand in the order in which they were written, but for the model calls of programs: those
# run side by side and are compared by their places, whatever order they ended in.
#
# Where a run was gone on with, the record of that stands between the others; and before it perhaps
# how the run had ended from outside: by a cancel, or since its sandbox broke. The machine knows
# nothing of such an end, and goes on as if there had been none.


# How long things took is the world's word; everything else is recomputed.
_UNREPEATABLE = frozenset({"wall_ms"})
_SHOWN_CHARS_MAX = 200
# Not made again: an act upon the run, and what native programs did, which are served.
_Passed = RunPruned | NetworkAttempted
_Key = tuple[str, int, int, int]


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first place where the run is not what it was."""

    seq: int
    field: str
    recorded: object
    now: object


class NothingMore(Exception):
    """The record has nothing more to compare with."""


class Recording:
    """The records of a run, and how far they were made again."""

    def __init__(self, records: Sequence[Record]) -> None:
        numbered = [
            (seq, each) for seq, each in enumerate(records) if not isinstance(each, _Passed)
        ]
        self._records = [(seq, each) for seq, each in numbered if not isinstance(each, QueryRecord)]
        self._queries = {
            _key(each): (seq, each) for seq, each in numbered if isinstance(each, QueryRecord)
        }
        self._known = frozenset(self._queries)
        self._count = len(records)
        self._place = 0
        self._end: Sequence[tuple[int, Record]] = ()

    @property
    def seq(self) -> int:
        """The place of the next record."""
        if self._place < len(self._records):
            return self._records[self._place][0]
        return self._count

    @property
    def ends_here(self) -> bool:
        """Whether nothing is left but how the run ended."""
        return len(self._records) - self._place <= 2

    @property
    def exhausted(self) -> bool:
        """Whether all but model calls of programs was made again."""
        return self._place >= len(self._records)

    @property
    def left(self) -> tuple[int, Record] | None:
        """The first record that was not made again, and its place."""
        rest = [*self._records[self._place :], *self._queries.values()]
        return min(rest, key=lambda each: each[0]) if rest else None

    def has_query(self, record: QueryRecord) -> bool:
        return _key(record) in self._queries

    def had_query(self, record: Record) -> bool:
        """Whether it is of a program's model call and recorded, made again by now or not."""
        return isinstance(record, QueryRecord) and _key(record) in self._known

    def continuation(self, *, ending: bool) -> tuple[Continuation | None, RunEnded | None] | None:
        """Take the record that the run was gone on with here, if it is the next one.

        A driver that is not `ending` the run takes an end that is none of the machine's as well;
        where that is the last of the record, nobody has gone on with it yet.
        """
        found = self._at(0)
        if isinstance(found, Continuation):
            self._place += 1
            return found, None
        ended, resumed = self._at(1), self._at(2)
        if ending or not isinstance(found, ReceiptIssued) or not isinstance(ended, RunEnded):
            return None
        if resumed is not None and not isinstance(resumed, RunResumed):
            return None
        self._end = self._records[self._place : self._place + 2]
        self._place += 2 if resumed is None else 3
        return resumed, ended

    def compare_end(self, ended: Sequence[Record]) -> Divergence | None:
        """Compare the end that a passage was taken with."""
        before, self._end = self._end, ()
        pairs = zip(before, ended, strict=True)
        found = (_difference(seq, recorded, now) for (seq, recorded), now in pairs)
        return next((each for each in found if each is not None), None)

    def take(self, record: Record) -> Divergence | None:
        """Compare the next record. Raises `NothingMore` where there is none."""
        if isinstance(record, QueryRecord):
            seq, recorded = self._queries.pop(_key(record), (self.seq, None))
            if recorded is None:
                return Divergence(seq=seq, field="calls", recorded=None, now=tag_of(record))
            return _difference(seq, recorded, record)
        if self.exhausted:
            raise NothingMore
        seq, before = self._records[self._place]
        self._place += 1
        return _difference(seq, before, record)

    def _at(self, ahead: int) -> Record | None:
        place = self._place + ahead
        return self._records[place][1] if place < len(self._records) else None


def _key(record: QueryRecord) -> _Key:
    """Asked, or ended: an attempt has one of each."""
    begun = "ask" if isinstance(record, QueryAsked | ChildBegun) else "end"
    return begun, record.intent, record.item, record.attempt


def _difference(seq: int, recorded: Record, now: Record) -> Divergence | None:
    before, after = _fields(recorded), _fields(now)
    for field in sorted(before.keys() | after.keys()):
        if field not in _UNREPEATABLE and before.get(field) != after.get(field):
            return Divergence(
                seq=seq,
                field=field,
                recorded=_shown(before.get(field)),
                now=_shown(after.get(field)),
            )
    return None


def _fields(record: Record) -> dict[str, object]:
    fields: dict[str, object] = msgspec.json.decode(encode_record(record))
    return fields


def _shown(value: object) -> object:
    if isinstance(value, str) and len(value) > _SHOWN_CHARS_MAX:
        return value[:_SHOWN_CHARS_MAX] + "..."
    return value


# The pen of a replay: compares what would be written with what was, and writes nothing.


class ComparingJournal:
    """Compares with a recorded run."""

    def __init__(self, recording: Recording, *, ends_again: Callable[[], bool]) -> None:
        self._recording = recording
        self._ends_again = ends_again
        self._first: Divergence | None = None
        self._hear: Callable[[Continuation], None] = lambda continuation: None

    @property
    def live(self) -> bool:
        """Tell whether what ends the run now is on its record, and so ends it again.

        Ctrl-C, or a disk that is full, ends the replay and not the run: that is no end to compare.
        """
        return self._ends_again()

    @property
    def first(self) -> Divergence | None:
        """The first difference that was seen."""
        return self._first

    def append_later(self, record: Record) -> None:
        ending = isinstance(record, ReceiptIssued | RunEnded)
        while (passed := self.continuation(ending=ending)) is not None:
            self._hear(passed[0])
        self._first = self._first or self._recording.take(record)

    def write(self, records: Sequence[Record], *, forced: bool) -> PendingWrite:
        for record in records:
            self.append_later(record)
        return PendingWrite()

    def continuation(self, *, ending: bool) -> tuple[Continuation, RunEnded | None] | None:
        # An end from outside that nobody went on from is made again, not passed over.
        found = self._recording.continuation(ending=ending or self._recording.ends_here)
        return None if found is None or found[0] is None else (found[0], found[1])

    def compare(self, ended: Sequence[Record]) -> None:
        self._first = self._first or self._recording.compare_end(ended)

    def on_continuation(self, hear: Callable[[Continuation], None]) -> None:
        self._hear = hear


_comparing_pen_is_a_pen: type[Journal] = ComparingJournal
