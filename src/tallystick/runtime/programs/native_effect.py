"""Run a native program, which cannot be repeated, as an effect.

Its beginning is on disk before it starts. Its end is recorded together with the files that it left.
A program that was cut off is not repeated on its record. Instead, its open calls are settled, and
an end is recorded that says what was decided: start it once more, as another program, or abandon
it. In both cases the files are those from before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tallystick.core.charge import Charge
from tallystick.core.history import Key, key_of
from tallystick.core.machine.native import RETRIED
from tallystick.core.machine.prompt import ABANDONED
from tallystick.core.machine.state import RunState
from tallystick.core.machine.turn import charge_of
from tallystick.core.records import (
    ChildBegun,
    ChildEnded,
    FilesKept,
    HostAnswered,
    ProgramFinished,
    QueryAsked,
    QueryRecord,
    Record,
    RunProgram,
)
from tallystick.core.resume_errors import LeftInDoubt
from tallystick.ledger.port import Ledger
from tallystick.model.price_table import CallTerms
from tallystick.runtime.calls.decisions import settle_doubt
from tallystick.runtime.calls.queries import in_doubt
from tallystick.runtime.calls.scope import CallScope
from tallystick.runtime.journal.effects import Decision, EffectScope, Found
from tallystick.runtime.programs.execution import ProgramRunner
from tallystick.runtime.programs.outcome import cut_off
from tallystick.runtime.runs.history import spent_so_far
from tallystick.runtime.spend.door import ModelDoor
from tallystick.sandbox.host import error_reply

_RETRIED = "the process that ran it ended; it is begun once more, with the files from before it"
_ABANDONED = (
    "The program was left in the middle: the process that ran it ended, and how far it came is not "
    "known. The files, the shell's directory and its exported variables are as they were before it."
)
_LEFT = "its program was cut off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settling:
    """The parts that settle the calls of a program that was cut off."""

    door: ModelDoor
    terms_of: Callable[[str], CallTerms]
    ledger: Ledger


class NativeProgram:
    """One native program, as an `Effect`. `settling` is None in a replay."""

    def __init__(
        self,
        runner: ProgramRunner,
        scope: CallScope,
        source: str,
        state: RunState,
        settling: Settling | None,
    ) -> None:
        self._runner = runner
        self._calls = scope
        self._source = source
        self._state = state
        self._settling = settling
        self._kept: FilesKept | None = None
        self.key = Key("program", scope.program.intent)
        # Its calls have its scope. The program itself belongs to no other program.
        self.scope: EffectScope | None = None

    @property
    def _program(self) -> RunProgram:
        return self._calls.program

    def begin_again(self, begun: RunProgram) -> RunProgram:
        return self._program

    @asynccontextmanager
    async def admit(self) -> AsyncIterator[RunProgram]:
        yield self._program

    async def send(self, begun: RunProgram) -> Sequence[Record]:
        finished = await self._runner.execute_first(self._calls, self._source, self._state)
        keeping = asyncio.ensure_future(self._runner.keep(finished, known=False))
        left = False
        while not keeping.done():
            try:
                await asyncio.wait({keeping})
            except asyncio.CancelledError:
                # Wait even so: an end without the files would claim more than was kept.
                left = True
        kept = keeping.result()
        task = asyncio.current_task()
        if left and task is not None:
            # Raise the cancel at the next await, when the end has been recorded.
            task.uncancel()
            task.cancel()
        return [finished] if kept is None else [finished, kept]

    def leave(self, begun: RunProgram, *, sent: bool) -> ProgramFinished:
        return cut_off(begun, "cancelled", "cancelled by the user; its files were put back")

    async def settle_doubt(self, begun: RunProgram, found: Found | None) -> ProgramFinished:
        answers = self._runner.effects.history.answers.get(begun.intent, ())
        assert self._settling is not None, "only a run that is resumed decides"
        self._settling.door.count_recorded("", Charge(host_calls=len(answers)))
        self._runner.count_calls(begun)
        await self._end_calls(begun, self._settling)
        again = found is not Decision.ABANDON
        stop, why = (RETRIED, _RETRIED) if again else (ABANDONED, _ABANDONED)
        return cut_off(begun, stop, why, host_calls=len(answers))

    def record_unsent(self, found: Found) -> tuple[RunProgram, ProgramFinished]:
        raise AssertionError("a program that was left has its end")

    def count_served(self, begun: RunProgram | None, ended: ProgramFinished) -> None:
        self._runner.count(ended)
        self._runner.note_served(self._program, "native")
        self._kept = self._runner.effects.history.files.get(ended.intent)

    async def completed(self, ended: ProgramFinished) -> ProgramFinished:
        if self._kept is not None:
            await self._runner.effects.journal.write(self._kept)
        return ended

    # -- one that was cut off ------------------------------------------------------------------

    async def _end_calls(self, program: RunProgram, settling: Settling) -> None:
        """Record an end for every open call of the program, as was decided.

        A child is ended as cancelled, and not resumed: its program does not continue. An effect
        without an answer is answered with `LeftInDoubt`.
        """
        history, journal = self._runner.effects.history, self._runner.effects.journal
        inside = history.inside(program.intent)
        ends: list[QueryRecord] = []
        for each in inside:
            if not isinstance(each, QueryAsked | ChildBegun):
                continue
            if history.ended(key_of(each)) is not None:
                continue
            if isinstance(each, QueryAsked):
                ends.append(self._query_end(each, settling))
            else:
                ends.append(_child_end(each, settling))
        # One by one: the journal takes those that an earlier resume wrote, and writes the rest.
        for end in ends:
            await journal.write(end)
        for call in history.unanswered.get(program.intent, ()):
            journal.append(
                HostAnswered(
                    intent=call.intent,
                    program=call.program,
                    index=call.index,
                    name=call.name,
                    request_sha256=call.request_sha256,
                    fuel=0,
                    reply=error_reply(LeftInDoubt(f"{call.name}: {_LEFT}")),
                    ok=False,
                )
            )

    def _query_end(self, asked: QueryAsked, settling: Settling) -> QueryRecord:
        found = self._runner.effects.decision_on(key_of(asked))
        settled, said = settle_doubt(
            settling.door, settling.terms_of(asked.model), asked.reserved, found
        )
        billed = found is not Decision.AGAIN
        return in_doubt(asked, settled, said or _LEFT, ends=True, billed=billed)


def _child_end(begun: ChildBegun, settling: Settling) -> ChildEnded:
    row = settling.ledger.row(begun.run)
    ended = ChildEnded(
        intent=begun.intent,
        item=begun.item,
        run=begun.run,
        stop="cancelled",
        detail=_LEFT,
        answer="",
        partial=False,
        charge=spent_so_far(settling.ledger, begun.run),
        count=0 if row is None else row.head.count,
        hash="" if row is None else row.head.hash,
        attempt=begun.attempt,
    )
    settling.door.count_recorded("", charge_of(ended))
    return ended
