"""The driver: performs what the machine asks for, and writes it down before and after.

The same code drives a new run, a replay, a resumed run and a fork; what differs is the history
behind the journal. It holds no rule of its own about what comes next: that is the machine's.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import assert_never

import msgspec

from tallystick.core.errors import SandboxError, TallystickError
from tallystick.core.machine.machine import advance, begin, ending, passed_between
from tallystick.core.machine.state import Phase, RunState, matched_record
from tallystick.core.machine.turn import program_of
from tallystick.core.records import (
    AskModel,
    CallHost,
    CheckProgram,
    ChildEnded,
    Continuation,
    Event,
    EvidenceRef,
    HostAnswered,
    Intent,
    ModelFailed,
    ModelRefused,
    ModelReplied,
    ProgramChecked,
    ProgramFinished,
    QueryFailed,
    QueryRefused,
    QueryReplied,
    ReceiptIssued,
    Record,
    RunEnded,
    RunProgram,
    RunStarted,
    intent_of,
)
from tallystick.core.views.receipt import Tally
from tallystick.runtime.calls.turn_call import AskedModel, TurnCall
from tallystick.runtime.journal.effects import Effects
from tallystick.runtime.journal.journal import NeedsPerson
from tallystick.runtime.programs.execution import ProgramRunner, wall_ms_left
from tallystick.runtime.programs.native_effect import NativeProgram, Settling
from tallystick.runtime.spend.door import RefusedCall, WaitedTooLong

# What is heard of while a program runs.
_Inside = HostAnswered | QueryReplied | QueryFailed | QueryRefused | ChildEnded | Continuation
# What the machine waits for.
_Awaited = ModelReplied | ModelFailed | ModelRefused | ProgramFinished | ProgramChecked


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What stands around the driving of a run.

    `watch` hears of each new record. `evidence` is what the prompt of a turn shows of skills.
    `check` holds a program against the vocabulary. `before_end` is done before the end is written,
    of a run that is live then.
    """

    watch: Callable[[Record], None] | None = None
    evidence: Callable[[RunState], EvidenceRef | None] = lambda state: None
    check: Callable[[str, RunState, CheckProgram], ProgramChecked] | None = None
    before_end: Callable[[RunState], Awaitable[None]] | None = None


class Driver:
    """Drives one run to its end."""

    def __init__(
        self,
        started: RunStarted,
        *,
        effects: Effects,
        asked: AskedModel,
        programs: ProgramRunner,
        texts: tuple[str, ...] = (),
        hooks: Hooks,
        settling: Settling | None = None,
    ) -> None:
        self._effects = effects
        self._journal = effects.journal
        self._asked = asked
        self._programs = programs
        self._hooks = hooks
        self._settling = settling
        self.started = started
        self._in_doubt: str | None = None
        # The event that is written, and that the machine has not heard of yet.
        self._performed: Event | None = None
        self._refused: RefusedCall | None = None
        self._tally = Tally()
        self._watch_failed: Exception | None = None
        self._state, self._next = begin(started, texts)
        self._journal.listen(self._hear)

    @property
    def state(self) -> RunState:
        return self._state

    @property
    def refused(self) -> RefusedCall | None:
        """The call that no budget paid for, of a run that ended by that; None of any other."""
        return self._refused

    @property
    def has_ended(self) -> bool:
        """Whether the end of the run is being written, or is."""
        return self._state.phase in (Phase.ENDING, Phase.DONE)

    def next_number(self) -> int:
        """Take the number of the next call. Called in any thread."""
        with self._journal.lock:
            number = self._state.next_intent
            self._state = msgspec.structs.replace(self._state, next_intent=number + 1)
            return number

    async def drive(self) -> RunState:
        """Drive until the machine asks for nothing more. A cancel ends the run and is written."""
        self._journal.append(self._state.started)
        if self._state.started.skills is not None:
            self._journal.append(matched_record(self._state.started.skills))
        while self._state.phase is not Phase.DONE:
            await self._perform_all()
            await self._finish()
            if self._watch_failed is not None:
                raise self._watch_failed
            self._pass_on()
        return self._state

    async def _perform_all(self) -> None:
        """Perform what the machine asks for, until the run is to end."""
        try:
            self._pass_on()
            while self._next:
                for intent in self._next:
                    event = await self._perform(intent)
                    self._apply(event)
                    if self._in_doubt is not None:
                        self._end(self._doubtful(self._in_doubt))
                self._pass_on()
        except asyncio.CancelledError:
            await self._left()
            raise
        except WaitedTooLong as error:
            self._end(ending(self._state, "deadline", str(error)))
        except NeedsPerson as error:
            self._end(ending(self._state, "refused", str(error)))
        except SandboxError as error:
            if not self._journal.may_end:
                raise
            self._end(ending(self._state, "sandbox_error", str(error)))

    def _apply(self, event: Event) -> None:
        with self._journal.lock:
            self._state, self._next = advance(self._state, event)
            self._performed = None

    def _end(self, state: RunState) -> None:
        with self._journal.lock:
            self._state, self._next = state, ()

    async def _left(self) -> None:
        """End a run that is cancelled, unless nothing was done yet that is not on the record."""
        if not self._journal.may_end:
            return
        if self._performed is not None:
            # It is written, and only nobody was there to go on from it.
            self._apply(self._performed)
        if self._in_doubt is not None:
            self._end(self._doubtful(self._in_doubt))
        elif self._state.phase is not Phase.ENDING:
            # What is written may have ended the run by itself, and ends it so on replay.
            self._end(ending(self._state, "cancelled", "cancelled by the user"))
        await self._finish()
        if self._watch_failed is not None:
            raise self._watch_failed from None

    async def _finish(self) -> None:
        assert self._state.phase is Phase.ENDING
        left = await self._prepare_end()
        with self._journal.lock:
            receipt, ended = self._end_of(self._state)
        try:
            # Together, and whatever is shown of the end is on the disk first.
            await self._journal.write(receipt, ended, forced=True)
        except asyncio.CancelledError as error:
            left = error
        self._in_doubt = None
        self._apply(ended)
        if left is not None:
            raise left

    async def _prepare_end(self) -> asyncio.CancelledError | None:
        """Do what has to be done before the end. Give back a cancel: the end is written first."""
        left: asyncio.CancelledError | None = None
        if self._hooks.before_end is None or not self._journal.may_end:
            return left
        preparing = asyncio.ensure_future(self._hooks.before_end(self._state))
        while not preparing.done():
            try:
                await asyncio.wait({preparing})
            except asyncio.CancelledError as error:
                left = error
        if preparing.cancelled():
            # Whoever closes the client cancels all that is under way. The end is still written.
            return left or asyncio.CancelledError()
        preparing.result()
        return left

    def _end_of(self, state: RunState) -> tuple[ReceiptIssued, RunEnded]:
        assert state.ended is not None
        receipt = self._tally.receipt(state.started, state.ended)
        return ReceiptIssued(receipt=receipt), state.ended

    def _pass_on(self) -> None:
        """Apply that the run was resumed here, between what it asks for."""
        while (found := self._journal.continuation(ending=not self._next)) is not None:
            continuation, ended = found
            if ended is not None:
                now = self._end_of(ending(self._state, ended.stop, ended.detail))
                self._journal.compare_end(now)
            self._state, self._next = passed_between(self._state, continuation, self._next)
            self._count(continuation, new=self._journal.live)

    async def _perform(self, intent: Intent) -> Event:
        match intent:
            case AskModel():
                return await self._ask(intent)
            case RunProgram():
                return await self._run(intent)
            case CheckProgram():
                assert self._hooks.check is not None, "a run with a vocabulary has its check"
                checked = self._hooks.check(program_of(self._state), self._state, intent)
                self._journal.append(checked)
                return checked
            case CallHost():
                raise TallystickError("a host call is served while its program runs")
            case _:
                assert_never(intent)

    async def _ask(self, intent: AskModel) -> ModelReplied | ModelFailed | ModelRefused:
        self._check_watched()
        intent = msgspec.structs.replace(intent, evidence=self._hooks.evidence(self._state))
        call = TurnCall(
            self._asked,
            intent,
            self._state.messages,
            name=self._state.started.model,
            wall_ms_left=wall_ms_left(self._state),
        )
        event = await self._effects.perform(call)
        self._refused = call.refused
        return event

    async def _run(self, program: RunProgram) -> ProgramFinished:
        scope = self._programs.scope(program, self._state, self)
        source = program_of(self._state)
        try:
            self._check_watched()
            if program.effect:
                native = NativeProgram(self._programs, scope, source, self._state, self._settling)
                return await self._effects.perform(native)
            return await self._programs.run(scope, source, self._state)
        finally:
            scope.close()
            self._in_doubt = self._programs.left_open(scope)

    def _check_watched(self) -> None:
        """Go no further for somebody who cannot see it any more: that is a cancel."""
        if self._watch_failed is not None:
            raise asyncio.CancelledError

    def _doubtful(self, name: str) -> RunState:
        """End the run: an effect was begun, and nobody can say whether it happened."""
        return ending(self._state, "in_doubt", f"{name} was begun and left: its outcome is unknown")

    # -- hearing of records --------------------------------------------------------------------

    def _hear(self, record: Record, new: bool) -> None:
        """Hear of a record, once, in order, under the journal's lock."""
        number = intent_of(record)
        if not new and number is not None and number >= self._state.next_intent:
            # A call that is served with its program has its number all the same.
            self._state = msgspec.structs.replace(self._state, next_intent=number + 1)
        if isinstance(record, _Inside):
            self._state, _ = advance(self._state, record)
        elif isinstance(record, _Awaited):
            self._performed = record
        self._count(record, new=new)

    def _count(self, record: Record, *, new: bool) -> None:
        """Count a record, and show it. Where watching fails, the run is ended, written down."""
        self._tally.add(record)
        if new and self._watch_failed is None and self._hooks.watch is not None:
            try:
                self._hooks.watch(record)
            except Exception as error:
                self._watch_failed = error
