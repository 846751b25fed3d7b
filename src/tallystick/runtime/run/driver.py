"""The driver: performs what the machine asks for, and writes it down before and after.

The same code runs live and on replay; what differs is the world behind it and the pen. It holds no
rule of its own about what comes next: that is the machine's.
"""

from __future__ import annotations

import asyncio
import threading
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
    ChildBegun,
    Continuation,
    Event,
    HostAnswered,
    Intent,
    ModelFailed,
    ModelRefused,
    ModelReplied,
    NetworkAttempted,
    ProgramFinished,
    QueryAsked,
    QueryRecord,
    ReceiptIssued,
    Record,
    RunEnded,
    RunProgram,
    RunStarted,
)
from tallystick.core.views.receipt import Tally
from tallystick.runtime.journal.journal import CallBatch, Journal, PendingWrite, QueryWriter
from tallystick.runtime.journal.world import (
    CallLog,
    CallRefused,
    CheckOf,
    EvidenceOf,
    World,
    no_evidence,
    unanswered,
)
from tallystick.runtime.spend.door import RefusedCall, WaitedTooLong


class Driver:
    """Runs one run to its end."""

    def __init__(
        self,
        started: RunStarted,
        *,
        world: World,
        journal: Journal,
        texts: tuple[str, ...] = (),
        watch: Callable[[Record], None] = lambda record: None,
        evidence: EvidenceOf = no_evidence,
        check: CheckOf | None = None,
        before_end: Callable[[RunState], Awaitable[None]] | None = None,
    ) -> None:
        self._world = world
        # Done before the end is written, of a run that is live then.
        self._before_end = before_end
        self._check = check
        self._evidence = evidence
        self._journal = journal
        self._watch = watch
        self._in_doubt: str | None = None
        self._performed: Event | None = None
        self._refused: RefusedCall | None = None
        self._together = CallBatch(journal)
        self._tally = Tally()
        self._watch_failed: Exception | None = None
        # Held while an attempt to reach something is written, which the end is not to overtake.
        self._reaching = threading.Lock()
        self._state, self._next = begin(started, texts)
        journal.on_continuation(self._passed)

    @property
    def state(self) -> RunState:
        return self._state

    @property
    def refused(self) -> RefusedCall | None:
        """The call that no budget paid for, of a run that ended by that; None of any other."""
        return self._refused

    async def drive(self) -> RunState:
        """Go on until the machine asks for nothing more. A cancel ends the run and is written."""
        self._append_later(self._state.started)
        if self._state.started.skills is not None:
            self._append_later(matched_record(self._state.started.skills))
        while self._state.phase is not Phase.DONE:
            await self._go_on()
            await self._finish()
            if self._watch_failed is not None:
                raise self._watch_failed
            self._pass_on()
        return self._state

    async def _go_on(self) -> None:
        """Until the run is to end."""
        try:
            self._pass_on()
            while self._next:
                for intent in self._next:
                    event = await self._perform(intent)
                    self._state, self._next = advance(self._state, event)
                    self._performed = None
                    if self._in_doubt is not None:
                        self._state, self._next = self._doubtful(self._in_doubt), ()
                self._pass_on()
        except asyncio.CancelledError:
            await self._left()
            raise
        except WaitedTooLong as error:
            self._state, self._next = ending(self._state, "deadline", str(error)), ()
        except SandboxError as error:
            if not self._journal.live:
                raise
            self._state, self._next = ending(self._state, "sandbox_error", str(error)), ()

    async def _left(self) -> None:
        """End a run that is cancelled, unless nothing was done yet that is not on the record."""
        if not self._journal.live:
            return
        if self._performed is not None:
            # It is written, and only nobody was there to go on from it.
            self._state, self._next = advance(self._state, self._performed)
            self._performed = None
        self._state = (
            self._doubtful(self._in_doubt)
            if self._in_doubt is not None
            else ending(self._state, "cancelled", "cancelled by the user")
        )
        await self._finish()
        if self._watch_failed is not None:
            raise self._watch_failed from None

    async def _finish(self) -> None:
        assert self._state.phase is Phase.ENDING
        assert self._state.ended is not None
        left = await self._prepare_end()
        with self._reaching:
            receipt, ended = self._end_of(self._state)
        try:
            # Together, and whatever is shown of the end is on the disk first.
            await self._wrote(receipt, ended, forced=True)
        except asyncio.CancelledError as error:
            left = error
        self._in_doubt = None
        self._state, self._next = advance(self._state, ended)
        if left is not None:
            raise left

    async def _prepare_end(self) -> asyncio.CancelledError | None:
        """Do what has to be done before the end. Give back a cancel: the end is written first."""
        left: asyncio.CancelledError | None = None
        if self._before_end is None or not self._journal.live:
            return left
        preparing = asyncio.ensure_future(self._before_end(self._state))
        while not preparing.done():
            try:
                await asyncio.wait({preparing})
            except asyncio.CancelledError as error:
                left = error
        preparing.result()
        return left

    def _end_of(self, state: RunState) -> tuple[ReceiptIssued, RunEnded]:
        assert state.ended is not None
        receipt = self._tally.receipt(state.started, state.ended)
        return ReceiptIssued(receipt=receipt), state.ended

    def _pass_on(self) -> None:
        """Go on where the run is gone on with, between what it asks for."""
        while (found := self._journal.continuation(ending=not self._next)) is not None:
            continuation, ended = found
            if ended is not None:
                self._journal.compare(self._end_of(ending(self._state, ended.stop, ended.detail)))
            self._state, self._next = passed_between(self._state, continuation, self._next)
            self._written(continuation)

    def _passed(self, continuation: Continuation) -> None:
        """The run is gone on with while something is under way, which stays so."""
        self._state, _ = advance(self._state, continuation)
        self._written(continuation)

    async def _perform(self, intent: Intent) -> Event:
        match intent:
            case AskModel():
                return await self._ask(intent)
            case RunProgram():
                self._world.check_begun(intent)
                asked = _DriverCallLog(self, intent)
                if intent.effect:
                    return await self._run_once(intent, asked)
                self._append_later(intent)
                finished = await self._run(intent, asked)
                # It can be run again with the answers that are written: it need not wait.
                self._append_later(finished)
                self._performed = finished
                kept = await self._world.kept(finished, state=self._state)
                if kept is not None:
                    await self._wrote(kept)
                return finished
            case CheckProgram():
                assert self._check is not None, "a run with a vocabulary has its check"
                checked = self._check(program_of(self._state), self._state, intent)
                self._append_later(checked)
                self._performed = checked
                return checked
            case CallHost():
                raise TallystickError("a host call is served while its program runs")
            case _:
                assert_never(intent)

    async def _run(self, intent: RunProgram, asked: _DriverCallLog) -> ProgramFinished:
        try:
            self._check_watched()
            finished = await self._world.run(
                intent, program_of(self._state), asked, state=self._state
            )
            asked.leave()
        finally:
            self._in_doubt = asked.close()
        return finished

    async def _run_once(self, intent: RunProgram, asked: _DriverCallLog) -> ProgramFinished:
        """Run a program that is an effect: on disk before it begins, its end with what it left."""
        try:
            await self._wrote(intent, forced=True)
            finished = await self._run(intent, asked)
        except asyncio.CancelledError:
            # How far it came nobody knows; that it was left is written down.
            finished = self._performed = self._world.left_program(intent)
            await self._wrote(finished)
            raise
        self._performed = finished
        keeping = asyncio.ensure_future(self._world.kept(finished, state=self._state))
        left: asyncio.CancelledError | None = None
        while not keeping.done():
            try:
                await asyncio.wait({keeping})
            except asyncio.CancelledError as error:
                # Without its files its end would say too much.
                left = error
        kept = keeping.result()
        await self._wrote(finished, *(() if kept is None else (kept,)))
        if left is not None:
            raise left
        return finished

    async def _ask(self, intent: AskModel) -> ModelReplied | ModelFailed | ModelRefused:
        self._check_watched()
        left, messages = self._wall_ms_left(), self._state.messages
        intent = msgspec.structs.replace(intent, evidence=self._evidence(self._state))
        event: ModelReplied | ModelFailed | ModelRefused
        try:
            async with self._world.admitted(
                intent, messages, model=self._state.started.model, wall_ms_left=left
            ) as begun:
                sent = False
                try:
                    await self._wrote(begun, forced=True)
                    sent = True
                    event = await self._world.ask(begun, messages, wall_ms_left=left)
                except asyncio.CancelledError:
                    # It may have been paid for: that much is written down.
                    event = self._performed = self._world.left(begun, sent=sent)
                    await self._wrote(event)
                    raise
        except CallRefused as refused:
            event, self._refused = refused.event, refused.call
        self._performed = event
        await self._wrote(event)
        return event

    def _check_watched(self) -> None:
        """Go no further for somebody who cannot see it any more: that is a cancel."""
        if self._watch_failed is not None:
            raise asyncio.CancelledError

    def _doubtful(self, name: str) -> RunState:
        """End the run: an effect was begun, and nobody can say whether it happened."""
        return ending(self._state, "in_doubt", f"{name} was begun and left: its outcome is unknown")

    def _wall_ms_left(self) -> int:
        return max(0, self._state.started.limits.wall_ms - self._state.charge.wall_ms)

    def _append_later(self, record: Record) -> None:
        self._journal.append_later(record)
        self._written(record)

    async def _wrote(self, *records: Record, forced: bool = False) -> None:
        """Write, and be done when it is committed, or forced."""
        left: asyncio.CancelledError | None = None
        try:
            await self._journal.write(records, forced=forced).done()
        except asyncio.CancelledError as error:
            left = error
        for record in records:
            self._written(record)
        if left is not None:
            raise left

    def _written(self, record: Record) -> None:
        """Count a record, and show it. Where watching fails, the run is ended, written down."""
        self._tally.add(record)
        if self._watch_failed is None:
            try:
                self._watch(record)
            except Exception as error:
                self._watch_failed = error


class _DriverCallLog:
    """Host calls of one program, noted in the run. Called in the program's thread."""

    def __init__(self, driver: Driver, program: RunProgram) -> None:
        self._driver = driver
        self._program = program
        self._guard = threading.Lock()
        self._closed = False
        self._open: dict[int, str] = {}
        self._attempts: dict[int, int] = {}
        # What was asked and not answered, of a program that is an effect.
        self._calls: dict[int, HostAnswered] = {}
        self._queries: set[tuple[int, int, int]] = set()

    def close(self) -> str | None:
        """The program has ended. What a function that was left behind still says is not heard.

        Returns the name of an effect, or of a paid call, that was begun and has no answer.
        """
        with self._guard:
            self._closed = True
            left = next(iter(self._open.values()), None)
            return left or ("llm_query" if self._queries else None)

    @property
    def queries(self) -> QueryWriter:
        return QueryWriter(self._driver._together, self._settled, over=lambda: self._closed)

    def _settled(self, record: QueryRecord) -> None:
        """A query's record is written: the run's charge has it, and whoever watches."""
        driver = self._driver
        with self._guard:
            key = (record.intent, record.item, record.attempt)
            if isinstance(record, QueryAsked):
                self._queries.add(key)
            elif not isinstance(record, ChildBegun):
                self._queries.discard(key)
                driver._state, _ = advance(driver._state, record)
            driver._written(record)

    def calling(self, *, index: int, name: str, request_sha256: str, effect: bool) -> int:
        driver = self._driver
        with self._guard:
            intent = driver._state.next_intent
            driver._state = msgspec.structs.replace(driver._state, next_intent=intent + 1)
        if self._program.effect:
            self._calls[intent] = unanswered(self._program, intent, index, name, request_sha256)
        if effect:
            self._attempts[intent] = 0
            self.again(intent, index=index, name=name, request_sha256=request_sha256)
        return intent

    def again(self, intent: int, *, index: int, name: str, request_sha256: str) -> None:
        self._attempts[intent] += 1
        call = CallHost(
            intent=intent,
            program=self._program.intent,
            index=index,
            name=name,
            request_sha256=request_sha256,
            policy="effect",
            attempt=self._attempts[intent],
        )
        self._driver._journal.write([call], forced=True).result()
        self._driver._written(call)
        self._open[intent] = name

    def answered(self, answered: HostAnswered) -> PendingWrite:
        driver = self._driver
        with self._guard:
            known = self._calls.pop(answered.intent, None) is not None
            if self._closed or (self._program.effect and not known):
                return PendingWrite()
            effect = self._open.pop(answered.intent, None) is not None
            if effect:
                writing = driver._journal.write([answered], forced=False)
            else:
                driver._journal.append_later(answered)
                writing = PendingWrite()
            driver._state, _ = advance(driver._state, answered)
            driver._written(answered)
            return writing

    def leave(self) -> None:
        """Write that calls were not answered, of a program that is not run again to see it."""
        for call in [each for each in self._calls.values() if each.intent not in self._open]:
            self.answered(call)

    def attempted(self, attempt: NetworkAttempted) -> None:
        driver = self._driver
        with driver._reaching:
            if driver._state.phase in (Phase.ENDING, Phase.DONE):
                raise TallystickError("the run has ended")
            driver._journal.write([attempt], forced=False).result()
            driver._written(attempt)


_: type[CallLog] = _DriverCallLog
