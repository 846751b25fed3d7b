"""Perform every effect of a run: at most once, and recorded before and after.

An effect is whatever happens outside: the model call of a turn or of a program, a tool, a child
run, a native program. This module alone decides what becomes of it:

* Its outcome is on record: serve it.
* Only its beginning is on record: it is in doubt, and the decision was made before the resume.
* Nothing is on record: make it happen, if the run is live.

So no other module knows whether a run is new, replayed, resumed or forked.

Rule 1: an outcome is served even without a beginning, such as a refusal or a read.
Rule 2: a call that is not on record while the record has more is a divergence. That is found before
the call reserves money.
Rule 3: everything in doubt is decided before the first write, in child runs too.
Rule 4: a cancel is an outcome. A replay raises it again, unless the run was resumed after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, Protocol, TypeVar, cast

from tallystick.core.history import Beginning, History, Key, Outcome
from tallystick.core.records import CallDecided, CallHost, CallWaiting, HostAnswered, Record
from tallystick.core.resume_errors import NeedsPerson
from tallystick.runtime.journal.journal import Journal
from tallystick.runtime.runs.decided import Decided

Begun = TypeVar("Begun", bound=Beginning)
Ended = TypeVar("Ended", bound=Outcome)


class Decision(Enum):
    """The decision on a call in doubt whose outcome was not found."""

    AGAIN = "again"  # Repeat it at no charge: it never arrived, or repeating it is harmless.
    RETRY = "retry"  # Charge its reservation, since it may have been billed, and repeat it.
    ABANDON = "abandon"  # Charge its reservation, and do not repeat it.


# The outcome of a call in doubt, if the provider or a tool could say it; else the decision.
Found = object | Decision


@dataclass(slots=True)
class Decisions:
    """The decisions on calls in doubt, by their keys.

    `left` are calls that a cancel left after they were sent. They are settled already, so the
    decision is about the attempt that follows.
    """

    open: dict[Key, Found] = field(default_factory=dict)
    left: dict[Key, Found] = field(default_factory=dict)

    def instead_of(self, key: Key) -> Found | None:
        """Return, and forget, the decision about the attempt after a call that was left.

        That is its reply, or `Decision.ABANDON`. Return None if the attempt is to be made, because
        no call was left before it, or the decision is to repeat that one.
        """
        if key.kind == "turn":
            # Each attempt at a turn's call has a number of its own.
            key = next((each for each in self.left if each.kind == "turn"), key)
        found = self.left.pop(key._replace(attempt=1), None)
        return None if found in (Decision.AGAIN, Decision.RETRY) else found


# The charge of these kinds is known without waiting: a child has to be resumed first.
_SETTLED_AT_ONCE = ("turn", "query")


class Refused(Exception):
    """Raised by `Effect.admit` if a call is not made. `outcome` is the record of that."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(type(outcome).__name__)
        self.outcome = outcome


class EffectScope(Protocol):
    """The program that an effect belongs to. Once it is closed, nothing more of it is recorded."""

    @property
    def closed(self) -> bool: ...

    def open_call(self, key: Key) -> None:
        """Count a paid call as in progress."""
        ...

    def close_call(self, key: Key) -> None:
        """Count a paid call as ended."""
        ...


class Effect(Protocol, Generic[Begun, Ended]):
    """One attempt at something outside. `scope` is None for the model call of a turn."""

    @property
    def key(self) -> Key: ...

    @property
    def scope(self) -> EffectScope | None: ...

    def begin_again(self, begun: Begun) -> Begun:
        """Return a recorded beginning as this execution would write it, to compare the two.

        The reservation and the reply limit are taken from the record: they followed from what
        other calls held at that moment.
        """
        ...

    def admit(self) -> AbstractAsyncContextManager[Begun]:
        """Wait for a place and for money, and yield the beginning to record.

        Raise `Refused` if the call is not made. On the way out, the place is given back, and a
        reservation that was not settled.
        """
        ...

    async def send(self, begun: Begun) -> Sequence[Record]:
        """Make it happen. Return its outcome, then records to write in the same transaction.

        A failure outside is an outcome too, and is not raised.
        """
        ...

    def leave(self, begun: Begun, *, sent: bool) -> Ended:
        """Settle an attempt that a cancel interrupts, and return its outcome.

        `sent` is False if the cancel came while its beginning was written.
        """
        ...

    async def settle_doubt(self, begun: Begun, found: Found | None) -> Ended:
        """Settle an attempt in doubt by the decision, and return its outcome.

        A child run has no decision (None): it is resumed.
        """
        ...

    def record_unsent(self, found: Found) -> tuple[Begun, Ended]:
        """Return beginning and outcome of the attempt after one that was left. Send nothing.

        `found` is the reply that was found, or `Decision.ABANDON`.
        """
        ...

    def count_served(self, begun: Begun | None, ended: Ended) -> None:
        """Count the cost of an attempt whose outcome is on record. In a replay, count nothing.

        Called once, before the attempt is compared. `begun` is None if it has no beginning.
        """
        ...

    async def completed(self, ended: Ended) -> Ended:
        """Return the outcome with its long text, which is stored outside of the record.

        Called last, once for each attempt that has an outcome. Raise `AttachmentError` if the text
        cannot be read.
        """
        ...


class HostEffect(Protocol):
    """A host call of a program, which is served in the program's thread."""

    @property
    def key(self) -> Key: ...

    @property
    def what(self) -> str: ...

    @property
    def is_effect(self) -> bool: ...

    @property
    def waits_inside(self) -> bool:
        """True if its program cannot be run again, so that it waits for a person itself."""
        ...

    def needs_word(self) -> bool:
        """Return True if a new call needs a person's word. Not called for one on record."""
        ...

    def decision(self) -> Decided | None:
        """Return what a person decided about this request before this execution, if anything."""
        ...

    def wait(self) -> CallWaiting:
        """Return the record that it waits for a person."""
        ...

    async def word(self) -> CallDecided:
        """Wait for a person's decision, and return its record. Only for a call `waits_inside`.

        Raise a cancel once the program has ended.
        """
        ...

    def make_denied(self, decided: Decided | CallDecided) -> bytes:
        """Answer the call with the error that a person denied it, note that, and return it."""
        ...

    def begin(self, attempt: int) -> CallHost:
        """Return its beginning, and count it as in progress. Called once for each attempt."""
        ...

    def check(self, known: HostAnswered | CallHost | CallWaiting) -> None:
        """Raise `ReplayDiverged` if it is not the call that was recorded."""
        ...

    def serve(self, answer: HostAnswered) -> bytes | Awaitable[bytes]:
        """Return a recorded answer, and note it.

        If only the digest of the answer is recorded, compute it again and compare. Raise
        `ReplayDiverged` if it differs.
        """
        ...

    def make(self) -> bytes | Awaitable[bytes]:
        """Make the call, note its answer, and return it. A refused call is answered with its error.

        The answer of an effect is committed before it is returned.
        """
        ...

    def answer_decided(self, found: Found) -> bytes:
        """Return the answer to a call in doubt that is not repeated, and note it."""
        ...


class Effects:
    """The effects of one run: performed, or served from its record."""

    def __init__(
        self, history: History, journal: Journal, decisions: Decisions | None = None
    ) -> None:
        self._history = history
        self._journal = journal
        self._decisions = decisions or Decisions()

    @property
    def history(self) -> History:
        return self._history

    @property
    def journal(self) -> Journal:
        return self._journal

    def decision_on(self, key: Key) -> Found:
        """Return the decision on a call in doubt.

        There is one for each call without an outcome when the run was resumed. Raise `KeyError` for
        any other call.
        """
        return self._decisions.open[key]

    async def perform(self, effect: Effect[Begun, Ended]) -> Ended:
        """Return the outcome of an effect: served from the record, decided, or made to happen.

        Raise `ResumeDiverged`, or `ReplayDiverged` from a replay, if another effect is next on
        record. A replay raises what ended the run where its record stops. A cancel is raised once
        the outcome is recorded, or its write has started. If the program has ended, the outcome is
        not recorded, and a call that has not begun raises a cancel.
        """
        key = effect.key
        # A key says of which kind a record is; the types of an effect say the same.
        records = self._history.begun(key)
        begun = cast("Begun | None", records[0] if records else None)
        ended = cast("Ended | None", self._history.ended(key))
        if ended is None and begun is None:
            return await self._make(effect)
        settled: Ended | None = None
        # Count what is on record before the first await: another call of the batch may be new, and
        # must reserve only what is left after this one.
        if ended is not None:
            effect.count_served(begun, ended)
        elif begun is not None and key.kind in _SETTLED_AT_ONCE and not self._journal.is_replay:
            settled = await effect.settle_doubt(begun, self._decisions.open.get(key))
        if begun is not None:
            await self._begin(effect, effect.begin_again(begun))
            if key.kind == "program":
                # Its calls are recorded between its beginning and its end. They are served with it.
                self._journal.pass_over(self._history.inside(key.intent), key.intent)
        if ended is not None:
            return await self._serve(effect, ended)
        if self._journal.is_replay:
            raise self._journal.recorded_end()
        assert begun is not None
        if settled is None:
            settled = await effect.settle_doubt(begun, self._decisions.open.get(key))
        await self._end(effect, [settled])
        return await effect.completed(settled)

    def perform_here(self, call: HostEffect) -> bytes | Awaitable[bytes]:
        """Return the answer to a host call. Called in the thread of the program.

        A local function is called right here: a round trip over the event loop would cost more
        than most of these calls. For an effect, first wait until its beginning is on disk. Raise
        `ReplayDiverged` if the call differs from the recorded one, and `ResumeDiverged` if another
        record is next.
        """
        known = self._history.begun(call.key)
        ended = self._history.ended(call.key)
        waited = self._history.waiting(call.key.intent)
        if waited is not None:
            # Before its beginning or its answer: between the two is what a person decided.
            call.check(waited)
            self._journal.write_here(call.wait(), forced=True)
        if isinstance(ended, HostAnswered):
            call.check(ended)
            self._begin_here(call, len(known))
            return call.serve(ended)
        if not known:
            # The record of a call that was cut off may have model calls of this one, without its
            # answer. They are repeated inside it, so they do not make it a divergence.
            self._journal.check_new(call.what, beside=call.key.intent)
            if call.is_effect:
                # An effect is recorded before the calls that it makes, so nothing may be left on
                # record, not even beside it.
                self._journal.check_new(call.what)
            if waited is not None or call.needs_word():
                return self._with_word(call, waited)
            self._begin_here(call, int(call.is_effect))
            return call.make()
        last = known[-1]
        assert isinstance(last, CallHost)
        call.check(last)
        self._begin_here(call, len(known))
        found = self._decisions.open[call.key]
        if isinstance(found, Decision) and found is not Decision.ABANDON:
            # A beginning of its own, or the record could not tell how often it may have happened.
            self._begin_here(call, last.attempt + 1, first=last.attempt + 1)
            return call.make()
        return call.answer_decided(found)

    def _with_word(self, call: HostEffect, waited: CallWaiting | None) -> bytes | Awaitable[bytes]:
        """Make a call that needs a person's word, if it was approved, or answer that it was denied.

        Raise `NeedsPerson` if nobody has decided: its program is run again up to here after that. A
        program that cannot be run again waits.
        """
        if self._journal.is_replay:
            raise self._journal.recorded_end()
        decided = call.decision()
        if decided is None:
            if waited is None:
                self._journal.write_here(call.wait(), forced=True)
            if call.waits_inside:
                return self._wait_inside(call)
            raise NeedsPerson(f"{call.what}: a person has to decide about this call")
        if decided.decision == "deny":
            return call.make_denied(decided)
        self._begin_here(call, int(call.is_effect))
        return call.make()

    async def _wait_inside(self, call: HostEffect) -> bytes:
        decided = await call.word()
        await asyncio.to_thread(self._journal.write_here, decided, forced=True)
        if decided.decision == "deny":
            return call.make_denied(decided)
        await asyncio.to_thread(self._begin_here, call, int(call.is_effect))
        reply = call.make()
        if isinstance(reply, bytes):
            return reply
        return await asyncio.to_thread(reply) if callable(reply) else await reply

    def knows(self, key: Key) -> bool:
        """Return True if the beginning or the outcome of a call is on record."""
        return bool(self._history.begun(key)) or self._history.ended(key) is not None

    async def refusal(
        self, key: Key, refuse: Callable[[], Awaitable[Outcome | None]]
    ) -> Outcome | None:
        """Return the refusal of a whole batch, recorded or found by `refuse`; None to let it in.

        A new refusal is recorded. A batch that is let in leaves no record. `refuse` is not called
        for a recorded refusal, nor in a replay. Raise `ResumeDiverged` if other records are next.
        """
        known = self._history.ended(key)
        if known is None:
            if self._journal.is_replay:
                # It was let in, or its items are not on record either, which `_make` finds.
                return None
            self._journal.check_new(f"{key.kind} {key.intent}")
            known = await refuse()
        if known is not None:
            await self._journal.write(known)
        return known

    # -- inside --------------------------------------------------------------------------------

    async def _serve(self, effect: Effect[Begun, Ended], ended: Ended) -> Ended:
        await self._end(effect, [ended])
        if self._history.is_left(ended):
            # Rule 4: the run was cancelled here, and not resumed since.
            raise self._journal.recorded_end()
        return await effect.completed(ended)

    async def _make(self, effect: Effect[Begun, Ended]) -> Ended:
        # In a replay, a turn or a native program without a record is where the record stops, or
        # where an end from outside is next. The driver compares that end.
        if not self._journal.is_replay or effect.scope is not None:
            key = effect.key
            beside = key.intent if key.kind in ("query", "child") else None
            self._journal.check_new(f"{key.kind} {key.intent}", beside=beside)
        if self._journal.is_replay:
            raise self._journal.recorded_end()
        found = self._decisions.instead_of(effect.key)
        if found is not None:
            begun, unsent = effect.record_unsent(found)
            try:
                await self._begin(effect, begun)
            except asyncio.CancelledError:
                # The decision was made, so its outcome is recorded even so.
                self._leave(effect, unsent)
                raise
            await self._end(effect, [unsent])
            return await effect.completed(unsent)
        records: Sequence[Record]
        try:
            async with effect.admit() as begun:
                sent = False
                try:
                    await self._begin(effect, begun)
                    sent = True
                    records = await effect.send(begun)
                except asyncio.CancelledError:
                    # It may have been billed, or have happened, so that is recorded.
                    self._leave(effect, effect.leave(begun, sent=sent))
                    raise
        except Refused as refused:
            records = [refused.outcome]
        await self._end(effect, records)
        return await effect.completed(cast("Ended", records[0]))

    async def _begin(self, effect: Effect[Begun, Ended], begun: Begun) -> None:
        scope = effect.scope
        if scope is None:
            await self._journal.write(begun, forced=True)
            return
        if scope.closed:
            # Its beginning could not be recorded any more, so it must not begin.
            raise asyncio.CancelledError
        # Counted before the write: if the program ends during it, the call is in doubt.
        scope.open_call(effect.key)
        await self._journal.write(begun, forced=True)

    async def _end(self, effect: Effect[Begun, Ended], records: Sequence[Record]) -> None:
        scope = effect.scope
        if scope is not None and scope.closed:
            # The run has continued without this call, which is in doubt on its record already.
            return
        # Not forced: an outcome that a power loss takes away leaves the call in doubt, which is
        # safe. The beginning of the next effect forces it to the disk.
        try:
            await self._journal.write(*records)
        except asyncio.CancelledError:
            if scope is not None:
                scope.close_call(effect.key)  # The write continues without us.
            raise
        if scope is not None:
            scope.close_call(effect.key)

    def _leave(self, effect: Effect[Begun, Ended], ended: Ended) -> None:
        scope = effect.scope
        if scope is None or not scope.closed:
            self._journal.write_now(ended)
        if scope is not None:
            scope.close_call(effect.key)

    def _begin_here(self, call: HostEffect, attempt: int, *, first: int = 1) -> None:
        """Write the beginnings `first` to `attempt`, and wait until they are on disk.

        Beginnings that are on record are compared instead. For an `attempt` of 0 do nothing.
        """
        for number in range(first, attempt + 1):
            self._journal.write_here(call.begin(number), forced=True)
