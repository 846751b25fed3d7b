"""Drive a run: perform each intent of the machine, and give the machine the event.

The same code drives a new run, a replay, a resumed run and a fork. They differ only in the history
that their journal has. The machine alone decides what comes next.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import assert_never

import msgspec

from tallystick.core.errors import SandboxError, TallystickError
from tallystick.core.machine.machine import (
    advance,
    begin,
    continue_between_intents,
    end_from_outside,
)
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
from tallystick.core.resume_errors import NeedsPerson
from tallystick.core.views.receipt import Tally
from tallystick.runtime.calls.turn_call import AskedModel, TurnCall
from tallystick.runtime.journal.effects import Effects
from tallystick.runtime.programs.execution import ProgramRunner, wall_ms_left
from tallystick.runtime.programs.native_effect import NativeProgram, Settling
from tallystick.runtime.spend.door import RefusedCall, WaitedTooLong

# Events that arrive while a program runs, from the journal.
_Inside = HostAnswered | QueryReplied | QueryFailed | QueryRefused | ChildEnded | Continuation
# Events that answer an intent of the machine.
_Awaited = ModelReplied | ModelFailed | ModelRefused | ProgramFinished | ProgramChecked


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Functions that the driver calls at fixed points.

    `watch` is called with each new record, in any thread, under the lock of the journal. If it
    raises, it is not called again, the run is ended, and the driver raises its error. `evidence`
    is called before each model call of a turn, and returns the skills that the prompt shows.
    `check` compares a program with the vocabulary, once for each program. `before_end` is awaited
    before the end of a live run is written; a cancel does not interrupt it.
    """

    watch: Callable[[Record], None] | None = None
    evidence: Callable[[RunState], EvidenceRef | None] = lambda state: None
    check: Callable[[str, RunState, CheckProgram], Awaitable[ProgramChecked]] | None = None
    before_end: Callable[[RunState], Awaitable[None]] | None = None


class Driver:
    """The driver of one run."""

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
        # An event that is written, and that the machine was not given yet.
        self._performed: Event | None = None
        self._refused: RefusedCall | None = None
        self._tally = Tally()
        self._watch_failed: Exception | None = None
        # Who asked for the stop of the run, if another than the user of this process did.
        self.stopped_by: str | None = None
        self._state, self._next = begin(started, texts)
        self._journal.listen(self._hear)

    @property
    def state(self) -> RunState:
        return self._state

    @property
    def refused(self) -> RefusedCall | None:
        """The model call whose refusal ended the run, None if it ended in another way."""
        return self._refused

    @property
    def has_ended(self) -> bool:
        """True from the moment when the end of the run is being written."""
        return self._state.phase in (Phase.ENDING, Phase.DONE)

    def next_number(self) -> int:
        """Return the number of the next call. Called from any thread."""
        with self._journal.lock:
            number = self._state.next_intent
            self._state = msgspec.structs.replace(self._state, next_intent=number + 1)
            return number

    async def drive(self) -> RunState:
        """Drive the run to its end, and return the last state.

        A cancel, a deadline and a broken sandbox end the run too, and the end is recorded. The
        cancel is raised again after that. So is an error of `watch`. In a replay, or a resume that
        has not reached the end of its record, they are raised and no end is recorded. Raise
        `ResumeDiverged`, `RecordEnds` and errors of the ledger, also without an end.
        """
        self._journal.append(self._state.started)
        if self._state.started.skills is not None:
            self._journal.append(matched_record(self._state.started.skills))
        # More than once only for a record in which an end was followed by a resume.
        while self._state.phase is not Phase.DONE:
            await self._perform_all()
            await self._finish()
            if self._watch_failed is not None:
                raise self._watch_failed
            self._pass_on()
        return self._state

    async def _perform_all(self) -> None:
        """Perform every intent of the machine, until it has none.

        A deadline, a refusal by policy and a broken sandbox end the run, unless this is a replay of
        something else: then a broken sandbox is raised. A cancel ends the run and is raised.
        """
        try:
            self._pass_on()
            while self._next:
                for intent in self._next:
                    event = await self._perform(intent)
                    self._apply(event)
                    if self._in_doubt is not None:
                        # After the event, so that the output and the cost of the program count.
                        self._end(self._doubtful(self._in_doubt))
                self._pass_on()
        except asyncio.CancelledError:
            await self._end_cancelled()
            raise
        except WaitedTooLong as error:
            self._end(end_from_outside(self._state, "deadline", str(error)))
        except NeedsPerson as error:
            if self._in_doubt is not None:
                self._end(self._doubtful(self._in_doubt))
            else:
                self._end(end_from_outside(self._state, "waiting", str(error)))
        except SandboxError as error:
            if not self._journal.may_end:
                raise
            self._end(end_from_outside(self._state, "sandbox_error", str(error)))

    def _apply(self, event: Event) -> None:
        with self._journal.lock:
            self._state, self._next = advance(self._state, event)
            self._performed = None

    def _end(self, state: RunState) -> None:
        with self._journal.lock:
            self._state, self._next = state, ()

    async def _end_cancelled(self) -> None:
        """End a run that is cancelled. A replay or resume that is not live yet leaves no end.

        Raise the error of `watch` if that failed, and what `_finish` raises.
        """
        if not self._journal.may_end:
            return
        if self._performed is not None:
            # The event is written: the cancel came just before the machine was given it.
            self._apply(self._performed)
        if self._in_doubt is not None:
            self._end(self._doubtful(self._in_doubt))
        elif self._state.phase is not Phase.ENDING:
            # The last event may have ended the run. Then it keeps that end, as on replay.
            self._end(end_from_outside(self._state, "cancelled", self._why_cancelled()))
        await self._finish()
        if self._watch_failed is not None:
            raise self._watch_failed from None

    def _why_cancelled(self) -> str:
        recorded = self._effects.history.end
        if recorded is not None and not self._journal.live:
            # A replay is cancelled where its record says that the run was.
            return recorded.detail
        return f"stopped by {self.stopped_by}" if self.stopped_by else "cancelled by the user"

    async def _finish(self) -> None:
        """Write the receipt and the end. Raise a cancel that came meanwhile, after that.

        Raise what `before_end` and the journal raise; then the end is not written.
        """
        assert self._state.phase is Phase.ENDING
        left = await self._prepare_end()
        with self._journal.lock:
            receipt, ended = self._end_of(self._state)
        try:
            # In one transaction, and on disk before anyone is shown the answer.
            await self._journal.write(receipt, ended, forced=True)
        except asyncio.CancelledError as error:
            left = error
        self._in_doubt = None
        self._apply(ended)
        if left is not None:
            raise left

    async def _prepare_end(self) -> asyncio.CancelledError | None:
        """Await `before_end`. Return a cancel that came meanwhile: the end is written first.

        Return None without a cancel. Raise what `before_end` raises.
        """
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
            # Closing the client cancels every task. The end is still written.
            return left or asyncio.CancelledError()
        preparing.result()
        return left

    def _end_of(self, state: RunState) -> tuple[ReceiptIssued, RunEnded]:
        assert state.ended is not None
        receipt = self._tally.receipt(state.started, state.ended)
        return ReceiptIssued(receipt=receipt), state.ended

    def _pass_on(self) -> None:
        """Apply every resume or fork that is on record between two intents.

        A resumed run raises `ResumeDiverged` if it does not repeat its record up to here.
        """
        while (found := self._journal.continuation(ending=not self._next)) is not None:
            continuation, ended = found
            if ended is not None:
                now = self._end_of(end_from_outside(self._state, ended.stop, ended.detail))
                self._journal.compare_end(now)
            self._state, self._next = continue_between_intents(
                self._state, continuation, self._next
            )
            self._count(continuation, new=self._journal.live)

    async def _perform(self, intent: Intent) -> Event:
        match intent:
            case AskModel():
                return await self._ask(intent)
            case RunProgram():
                return await self._run(intent)
            case CheckProgram():
                assert self._hooks.check is not None, "a run with a vocabulary has its check"
                checked = await self._hooks.check(program_of(self._state), self._state, intent)
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
        """Raise a cancel if `watch` failed: the user does not see any more what happens."""
        if self._watch_failed is not None:
            raise asyncio.CancelledError

    def _doubtful(self, name: str) -> RunState:
        """Return the state that ends the run because an effect has an unknown outcome."""
        return end_from_outside(
            self._state, "in_doubt", f"{name} was begun and left: its outcome is unknown"
        )

    # -- hearing of records --------------------------------------------------------------------

    def _hear(self, record: Record, new: bool) -> None:
        """Take in a record. The journal calls this once for each, in order, under its lock."""
        number = intent_of(record)
        if not new and number is not None and number >= self._state.next_intent:
            # A call that is served with its program has used its number too.
            self._state = msgspec.structs.replace(self._state, next_intent=number + 1)
        if isinstance(record, _Inside):
            self._state, _ = advance(self._state, record)
        elif isinstance(record, _Awaited):
            self._performed = record
        self._count(record, new=new)

    def _count(self, record: Record, *, new: bool) -> None:
        """Count a record, and pass it to `watch`. If that fails, the run will be ended."""
        self._tally.add(record)
        if new and self._watch_failed is None and self._hooks.watch is not None:
            try:
                self._hooks.watch(record)
            except Exception as error:
                self._watch_failed = error
