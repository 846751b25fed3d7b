"""The one place where something outside is made to happen: at most once, and written down.

A turn's model call, a program's, a tool, a child run, a native program: each is an effect, and only
here is decided what becomes of it. Its outcome is on the record: it is served. Its beginning is: it
is in doubt, and was decided about before. Nothing is: it is made to happen, if the run is live and
its record does not continue behind it. So nothing else knows whether a run is new, replayed,
resumed or forked.

Rule 1: an outcome is served, also one without a beginning: a refusal, or an answer that was read.
Rule 2: what is new while the record continues is a divergence, before anything is admitted.
Rule 3: what is in doubt was decided before the first write, in all runs inside too.
Rule 4: a cancel is an outcome. On replay it is raised again where nobody resumed behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, Protocol, TypeVar, cast

from tallystick.core.history import Beginning, History, Key, Outcome
from tallystick.core.records import CallHost, HostAnswered, Record
from tallystick.runtime.journal.journal import Journal

Begun = TypeVar("Begun", bound=Beginning)
Ended = TypeVar("Ended", bound=Outcome)


class Decision(Enum):
    """What is done about a call, where its outcome was not found."""

    AGAIN = "again"  # It never arrived, or may be made twice: nothing is charged.
    RETRY = "retry"  # It may have been paid: that is charged, and it is made again.
    ABANDON = "abandon"


# What was decided about a call: what it came to, as somebody who was asked says, or what is done.
Found = object | Decision


@dataclass(slots=True)
class Decisions:
    """What is decided about calls in doubt, by their keys.

    `left` are calls that were left after they were sent. They are settled already: what is decided
    is about the attempt after them.
    """

    open: dict[Key, Found] = field(default_factory=dict)
    left: dict[Key, Found] = field(default_factory=dict)

    def instead_of(self, key: Key) -> Found | None:
        """Return what stands for an attempt after a call that was left, once; None to make it."""
        if key.kind == "turn":
            # Each attempt at a turn's call has a number of its own.
            key = next((each for each in self.left if each.kind == "turn"), key)
        found = self.left.pop(key._replace(attempt=1), None)
        return None if found in (Decision.AGAIN, Decision.RETRY) else found


# Of these kinds nothing is waited for to know what a call in doubt is charged.
_SETTLED_AT_ONCE = ("turn", "query")


class Refused(Exception):
    """A call is not made: `outcome` is what is written of that. Raised while it is admitted."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(type(outcome).__name__)
        self.outcome = outcome


class EffectScope(Protocol):
    """The program that an effect belongs to. Once it is closed, nothing of it is written."""

    @property
    def closed(self) -> bool: ...

    def opened(self, key: Key) -> None:
        """Note that a paid call is under way."""
        ...

    def settled(self, key: Key) -> None:
        """Note that it is not any more."""
        ...


class Effect(Protocol, Generic[Begun, Ended]):
    """One attempt at something outside."""

    @property
    def key(self) -> Key: ...

    @property
    def scope(self) -> EffectScope | None: ...

    def again(self, begun: Begun) -> Begun:
        """Return a recorded beginning as it would be written now.

        What was reserved, and the cap that it paid for, was the world's word.
        """
        ...

    def admitted(self) -> AbstractAsyncContextManager[Begun]:
        """Wait for a place and for money; gives the beginning to be written. Raises `Refused`."""
        ...

    async def send(self, begun: Begun) -> Sequence[Record]:
        """Make it happen. Gives its outcome, and behind it what is written together with that.

        What goes wrong outside is an outcome; nothing is raised for it.
        """
        ...

    def left(self, begun: Begun, *, sent: bool) -> Ended:
        """Return what is written of one that a cancel left."""
        ...

    async def doubted(self, begun: Begun, found: Found | None) -> Ended:
        """Return the outcome of one that was in doubt, as was decided.

        Nothing is decided of a child run: it is resumed.
        """
        ...

    def unsent(self, found: Found) -> tuple[Begun, Ended]:
        """Return what stands for the attempt after one that was left. Nothing is sent."""
        ...

    def served(self, begun: Begun | None, ended: Ended) -> None:
        """Count one whose outcome is on the record."""
        ...

    async def told(self, ended: Ended) -> Ended:
        """Return the outcome as whoever asked hears it: with what is kept apart."""
        ...


class HostEffect(Protocol):
    """A host call of a program, which is served in the program's thread."""

    @property
    def key(self) -> Key: ...

    @property
    def what(self) -> str: ...

    @property
    def is_effect(self) -> bool: ...

    def begin(self, attempt: int) -> CallHost:
        """Return its beginning, and count it as under way."""
        ...

    def check(self, known: HostAnswered | CallHost) -> None:
        """Raise `ReplayDiverged` if it is not the call that was recorded."""
        ...

    def answered_again(self, answer: HostAnswered) -> bytes | Awaitable[bytes]:
        """Return a recorded answer, noted; one that is only named is made again and compared."""
        ...

    def make(self) -> bytes | Awaitable[bytes]:
        """Make the call, and note what came of it."""
        ...

    def told(self, found: Found) -> bytes:
        """Return what the program is told of a call in doubt that is not made again, noted."""
        ...


class Effects:
    """Performs the effects of one run."""

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

    def decided(self, key: Key) -> Found:
        """Return what was decided about a call that is in doubt."""
        return self._decisions.open[key]

    async def perform(self, effect: Effect[Begun, Ended]) -> Ended:
        """Return what came of a call, from the record or from the world."""
        key = effect.key
        # A key says of which kind a record is; the types of an effect say the same.
        records = self._history.begun(key)
        begun = cast("Begun | None", records[0] if records else None)
        ended = cast("Ended | None", self._history.ended(key))
        if ended is None and begun is None:
            return await self._make(effect)
        settled: Ended | None = None
        # What is on record has its cost before anything is awaited: another call of the batch may
        # be new, and is to reserve only what is left behind this one.
        if ended is not None:
            effect.served(begun, ended)
        elif begun is not None and key.kind in _SETTLED_AT_ONCE and not self._journal.is_replay:
            settled = await effect.doubted(begun, self._decisions.open.get(key))
        if begun is not None:
            await self._begin(effect, effect.again(begun))
            if key.kind == "program":
                # What it asked stands between; it is served with it, or was asked before the cut.
                self._journal.pass_over(self._history.inside(key.intent), key.intent)
        if ended is not None:
            return await self._serve(effect, ended)
        if self._journal.is_replay:
            raise self._journal.cut()
        assert begun is not None
        if settled is None:
            settled = await effect.doubted(begun, self._decisions.open.get(key))
        await self._end(effect, [settled])
        return await effect.told(settled)

    def perform_here(self, call: HostEffect) -> bytes | Awaitable[bytes]:
        """Perform a host call in the program's thread: a local one makes no way over the loop."""
        known = self._history.begun(call.key)
        ended = self._history.ended(call.key)
        if isinstance(ended, HostAnswered):
            call.check(ended)
            self._begin_here(call, len(known))
            return call.answered_again(ended)
        if not known:
            self._journal.check_new(call.what, beside=call.key.intent)
            if call.is_effect:
                # It is on the record before all that it asks.
                self._journal.check_new(call.what)
            self._begin_here(call, int(call.is_effect))
            return call.make()
        last = known[-1]
        assert isinstance(last, CallHost)
        call.check(last)
        self._begin_here(call, len(known))
        found = self._decisions.open[call.key]
        if isinstance(found, Decision) and found is not Decision.ABANDON:
            self._begin_here(call, last.attempt + 1, first=last.attempt + 1)
            return call.make()
        return call.told(found)

    def knows(self, key: Key) -> bool:
        """Tell whether anything of a call is on the record."""
        return bool(self._history.begun(key)) or self._history.ended(key) is not None

    async def refusal(
        self, key: Key, refuse: Callable[[], Awaitable[Outcome | None]]
    ) -> Outcome | None:
        """Return that a batch is refused as a whole: what is recorded, or what `refuse` finds now.

        A batch that is let in leaves no record of that.
        """
        known = self._history.ended(key)
        if known is None:
            if self._journal.is_replay:
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
            raise self._journal.cut()
        return await effect.told(ended)

    async def _make(self, effect: Effect[Begun, Ended]) -> Ended:
        if not self._journal.is_replay or effect.scope is not None:
            key = effect.key
            beside = key.intent if key.kind in ("query", "child") else None
            self._journal.check_new(f"{key.kind} {key.intent}", beside=beside)
        if self._journal.is_replay:
            raise self._journal.cut()
        found = self._decisions.instead_of(effect.key)
        if found is not None:
            begun, unsent = effect.unsent(found)
            try:
                await self._begin(effect, begun)
            except asyncio.CancelledError:
                # It was decided: that much is written down.
                self._leave(effect, unsent)
                raise
            await self._end(effect, [unsent])
            return await effect.told(unsent)
        records: Sequence[Record]
        try:
            async with effect.admitted() as begun:
                sent = False
                try:
                    await self._begin(effect, begun)
                    sent = True
                    records = await effect.send(begun)
                except asyncio.CancelledError:
                    # It may have been paid for, or have happened: that much is written down.
                    self._leave(effect, effect.left(begun, sent=sent))
                    raise
        except Refused as refused:
            records = [refused.outcome]
        await self._end(effect, records)
        return await effect.told(cast("Ended", records[0]))

    async def _begin(self, effect: Effect[Begun, Ended], begun: Begun) -> None:
        scope = effect.scope
        if scope is None:
            await self._journal.write(begun, forced=True)
            return
        if scope.closed:
            # Nothing is begun before it is written, and nothing more of this program is.
            raise asyncio.CancelledError
        scope.opened(effect.key)
        await self._journal.write(begun, forced=True)

    async def _end(self, effect: Effect[Begun, Ended], records: Sequence[Record]) -> None:
        scope = effect.scope
        if scope is not None and scope.closed:
            return
        try:
            await self._journal.write(*records)
        except asyncio.CancelledError:
            if scope is not None:
                scope.settled(effect.key)  # It is written all the same.
            raise
        if scope is not None:
            scope.settled(effect.key)

    def _leave(self, effect: Effect[Begun, Ended], ended: Ended) -> None:
        scope = effect.scope
        if scope is None or not scope.closed:
            self._journal.write_now(ended)
        if scope is not None:
            scope.settled(effect.key)

    def _begin_here(self, call: HostEffect, attempt: int, *, first: int = 1) -> None:
        """Write that an effect is begun, as often as it was. Waits until that is on the disk."""
        for number in range(first, attempt + 1):
            self._journal.write_here(call.begin(number), forced=True)
