"""Run one program of a run: for the first time, again on its record, or served from the record.

A program that can be repeated is always run again on its recorded answers. Then it prints, asks and
costs the same as before. `why_served` says which programs are served instead. A native program
cannot be repeated, and is an effect (`native_effect.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

import msgspec

from tallystick.core.budget.amount import Amount
from tallystick.core.charge import Charge
from tallystick.core.errors import SandboxError
from tallystick.core.history import Key, spent_by
from tallystick.core.machine.state import RunState
from tallystick.core.machine.turn import charge_of
from tallystick.core.records import (
    ChildEnded,
    FilesKept,
    ProgramFinished,
    QueryAsked,
    QueryFailed,
    QueryRecord,
    QueryReplied,
    RunProgram,
    SkillUsed,
    SnapshotTaken,
    depth_of,
)
from tallystick.runtime.calls.capability import ProgramGiven
from tallystick.runtime.calls.children import Children
from tallystick.runtime.calls.host import HostFunctions, ProgramHost
from tallystick.runtime.calls.scope import CallScope, NumberedRun, Times
from tallystick.runtime.context.attachments import (
    PUT_BYTES_MAX,
    WRITE,
    RunAttachments,
    described_bytes,
)
from tallystick.runtime.journal.effects import Effects
from tallystick.runtime.programs.outcome import (
    finished_of,
    long_answer,
    output_files,
    whole_outputs,
)
from tallystick.runtime.spend.door import ModelDoor
from tallystick.sandbox.output import lost_output
from tallystick.sandbox.port import ExecutionContext, ExecutionResult, Limits, Programs, Rerun

# Stops from outside. They come at an instruction that depends on the speed of the machine, so a
# repeated program would not stop at the same one.
SERVED = frozenset({"wall", "deadline", "cancelled", "trap"})
_STOPPED = frozenset({"wall", "deadline", "cancelled"})
# More fuel in a millisecond than any processor uses. A record that says more was forged, and must
# not keep a machine busy for longer than the limits of the program would.
_FUEL_PER_MS_MAX = 30_000_000
# A stop may come this late, while the operating system runs another process.
_LATE_MS_MAX = 1_000
_PROGRAM_MS_MAX = 30_000
# Native limits count mapped memory, and packages map several times what they use.
_NATIVE_BYTES = 1 << 30
# About two seconds of work of programs. A snapshot that saves this much costs several times less.
SNAPSHOT_FUEL = 6_000_000_000
_REQUEST_BYTES = Limits().request_bytes
_PUT_REQUEST_BYTES = 2 * PUT_BYTES_MAX

# Yields what a program is given while it runs.
Around = Callable[[CallScope, RunState], AbstractAsyncContextManager[ProgramGiven]]


class RerunStopped(SandboxError):
    """Raised if a repeated program was stopped from outside, so nothing follows for its record."""


def nothing_around(scope: CallScope, state: RunState) -> AbstractAsyncContextManager[ProgramGiven]:
    """Give the program nothing."""
    return nullcontext(ProgramGiven())


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramParts:
    """The parts of a run that its programs need.

    Without `programs`, every program is served from the record. A replay has no `door`, and counts
    nothing. `restored` is the number of the last program whose effect is in the interpreter
    already, from a snapshot.
    """

    run: str
    programs: Programs | None
    functions: HostFunctions
    run_attachments: RunAttachments
    children: Children
    door: ModelDoor | None = None
    around: Around = nothing_around
    restored: int = 0


def count_inside(door: ModelDoor, calls: Sequence[QueryRecord]) -> None:
    """Count what recorded model calls and children cost, since they are not performed again."""
    models: dict[tuple[int, int, int], str] = {}
    for each in calls:
        if isinstance(each, QueryAsked):
            models[each.intent, each.item, each.attempt] = each.model
        elif isinstance(each, QueryReplied | QueryFailed):
            door.count_recorded(models[each.intent, each.item, each.attempt], spent_by(each))
        elif isinstance(each, ChildEnded):
            door.count_recorded("", charge_of(each))


class ProgramRunner:
    """The programs of one run.

    `again` is the number of programs that were repeated, `served` of those served, by reason.
    """

    def __init__(self, effects: Effects, parts: ProgramParts) -> None:
        self._effects = effects
        self._journal = effects.journal
        self._parts = parts
        self.again = 0
        self.served: Counter[str] = Counter()
        # Programs that were served. Their calls passed through no scope, so none is left open.
        self._whole: set[int] = set()

    @property
    def effects(self) -> Effects:
        return self._effects

    @property
    def parts(self) -> ProgramParts:
        return self._parts

    def scope(self, program: RunProgram, state: RunState, numbers: NumberedRun) -> CallScope:
        """Return a new scope for the calls of a program. The caller closes it."""
        known = self._effects.history.answers.get(program.intent, ())
        return CallScope(
            self._parts.run,
            program,
            self._journal,
            numbers,
            limits=state.started.limits,
            times=Times(lambda: wall_ms_left(state) / 1000, again=bool(known)),
            tools=state.skills.tools,
            skill_model=state.skills.model,
            host_calls_left=host_calls_left(state),
            outputs=state.outputs,
            depth=depth_of(state.started),
        )

    async def run(self, scope: CallScope, source: str, state: RunState) -> ProgramFinished:
        """Run a program that can be repeated, for the first time or on its record, or serve it.

        Its beginning and its end are recorded, and the snapshot if one was taken. Raise
        `RerunStopped` if a repeated program is stopped from outside. A replay raises what ended the
        run where its record stops, or `RecordEnds`.
        """
        program, history = scope.program, self._effects.history
        key = Key("program", program.intent)
        # The run was cancelled just before this program. Its end is next on record.
        if self._journal.is_replay and not history.begun(key) and history.end is not None:
            raise self._journal.recorded_end()
        self._journal.append(program)
        recorded = history.ended(key)
        if recorded is None:
            if self._journal.is_replay:
                # Cut off: where it stopped cannot be repeated, so its calls are passed over.
                self.pass_over(program)
                raise self._journal.recorded_end()
            finished = await self._run_first(scope, source, state)
        else:
            assert isinstance(recorded, ProgramFinished)
            self.count(recorded)
            why = self.why_served(program, recorded)
            if why is None:
                finished = await self._run_again(scope, source, state, recorded)
            else:
                finished = self.serve(recorded, program, why)
        # It can be run again with the answers that are written: it need not wait.
        self._journal.append(finished)
        kept = await self.keep(finished, known=recorded is not None)
        if kept is not None:
            await self._journal.write(kept)
        return finished

    # -- served --------------------------------------------------------------------------------

    def why_served(self, program: RunProgram, recorded: ProgramFinished) -> str | None:
        """Return why a recorded program is served whole, None for one that is run again.

        `native`, `another guest` if no repeatable sandbox is open, the stop if it came from outside
        (`SERVED`), or `snapshot` if a loaded snapshot has its effect already.
        """
        programs = self._parts.programs
        if program.effect:
            return "native"
        if programs is None or not programs.repeatable:
            return "another guest"
        if recorded.stop in SERVED:
            return recorded.stop
        return "snapshot" if program.intent <= self._parts.restored else None

    def serve(self, recorded: ProgramFinished, program: RunProgram, why: str) -> ProgramFinished:
        """Return a program as it was recorded, not run.

        Its calls are passed over in the journal, which tells the listeners, and their cost counts.
        """
        self.note_served(program, why)
        self.pass_over(program)
        return recorded

    def note_served(self, program: RunProgram, why: str) -> None:
        """Count a program that is served, and what its calls cost."""
        self.served[why] += 1
        self._whole.add(program.intent)
        self.count_calls(program)

    def left_open(self, scope: CallScope) -> str | None:
        """Return the name of an effect or paid call that a program left without an outcome.

        Return None if there is none.
        """
        program = scope.program.intent
        if program in self._whole or self._journal.cancelled_again:
            return self._effects.history.open_in(program)
        return scope.left_open

    def pass_over(self, program: RunProgram) -> None:
        """Take all records of a program's calls in the journal, which tells the listeners."""
        self._journal.pass_over(self._effects.history.inside(program.intent), program.intent)

    def count(self, recorded: ProgramFinished) -> None:
        """Count what a recorded program used, with the scripts of skills that it ran.

        In a replay, do nothing.
        """
        door = self._parts.door
        if door is None:
            return
        door.count_recorded(
            "",
            Charge(fuel=recorded.fuel, host_calls=recorded.host_calls, wall_ms=recorded.wall_ms),
        )
        for each in self._effects.history.answers.get(recorded.intent, ()):
            if isinstance(each.skill, SkillUsed) and each.skill.fuel:
                # That is in no program's own figures. The call that ran the script is, so it is
                # subtracted.
                used = charge_of(each)
                door.count_recorded("", Charge(fuel=used.fuel, host_calls=used.host_calls - 1))

    def count_calls(self, program: RunProgram) -> None:
        """Count what the model calls and children of a program cost. In a replay, do nothing.

        Only for a program that is not run again: repeated calls count themselves.
        """
        if self._parts.door is not None:
            count_inside(self._parts.door, self._effects.history.inside(program.intent))

    # -- run -----------------------------------------------------------------------------------

    async def _run_again(
        self, scope: CallScope, source: str, state: RunState, recorded: ProgramFinished
    ) -> ProgramFinished:
        self.again += 1
        context = program_context(scope.program, state)
        fuel_max = _FUEL_PER_MS_MAX * (context.timeout_ms + _LATE_MS_MAX)
        rerun = Rerun(
            fuel=min(recorded.fuel, fuel_max),
            lost=(lost_output(recorded.stdout), lost_output(recorded.stderr)),
        )
        context = msgspec.structs.replace(context, rerun=rerun)
        result = await self._execute(scope, source, state, context)
        if result.stop in _STOPPED:
            raise RerunStopped("its program was stopped")
        outputs = tuple(
            described_bytes(data, media_type="text/plain", label=label)
            for data, label in whole_outputs(scope.program, result)
        )
        long, ref = long_answer(scope.program, result), None
        if long is not None:
            ref = described_bytes(long[0], media_type="text/plain", label=long[1])
        now = finished_of(scope.program, result, outputs, ref)
        # Keep the recorded duration, or a limit of time would be reached at another turn.
        return msgspec.structs.replace(now, wall_ms=recorded.wall_ms)

    async def _run_first(self, scope: CallScope, source: str, state: RunState) -> ProgramFinished:
        known = self._effects.history.answers.get(scope.program.intent)
        rerun = Rerun(fuel=known[-1].fuel, calls=len(known)) if known else None
        return await self.execute_first(scope, source, state, rerun)

    async def execute_first(
        self, scope: CallScope, source: str, state: RunState, rerun: Rerun | None = None
    ) -> ProgramFinished:
        """Run a program whose end is not on record, and return its end.

        `rerun` is the part that is on record, which is repeated before the program is live. Long
        output and a long answer are stored as attachments, and the files of the output are removed.
        What the program used is counted in every scope. Its calls are closed at the end. Raise
        `OSError` or `AttachmentError` if the output cannot be stored; then nothing is counted.
        """
        context = program_context(scope.program, state, rerun)
        result = await self._execute(scope, source, state, context)
        outputs = tuple(
            self._parts.run_attachments.keep_output(path, label=label)
            for path, label in output_files(scope.program, result)
        )
        long, ref = long_answer(scope.program, result), None
        if long is not None:
            ref = self._parts.run_attachments.keep(long[0], media_type="text/plain", label=long[1])
        assert self._parts.door is not None, "a replay runs nothing for the first time"
        self._parts.door.run_scopes.spend(
            Amount(
                fuel=result.charge.fuel,
                host_calls=result.charge.host_calls,
                wall_ms=result.execution_time_ms,
                output_bytes=result.charge.output_bytes,
            )
        )
        return finished_of(scope.program, result, outputs, ref)

    async def _execute(
        self, scope: CallScope, source: str, state: RunState, context: ExecutionContext
    ) -> ExecutionResult:
        programs = self._parts.programs
        assert programs is not None, "programs of another guest are served"
        host = ProgramHost(self._parts.functions, scope, self._effects)
        try:
            async with self._parts.around(scope, state) as given:
                result = await programs.execute(
                    scope.program,
                    source,
                    context=_with_given(context, given),
                    host=host,
                    attempted=scope.note_attempt,
                )
            scope.leave()
            return result
        finally:
            # Before the scope closes: a child that was cancelled still records its end in it.
            await self._parts.children.wait_until_ended()
            scope.close()

    async def keep(
        self, finished: ProgramFinished, *, known: bool
    ) -> SnapshotTaken | FilesKept | None:
        """Return the record of a snapshot or of kept files, None if nothing was worth keeping.

        For a `known` program, return the one on record. Otherwise a snapshot is taken if it saves
        about two seconds of programs, and a native program has its changed files kept. Raise what
        `Programs.keep` raises.
        """
        if known:
            history = self._effects.history
            return history.snapshots.get(finished.intent) or history.files.get(finished.intent)
        programs = self._parts.programs
        assert programs is not None
        return await programs.keep(finished, fuel_saved=SNAPSHOT_FUEL)


def _with_given(context: ExecutionContext, given: ProgramGiven) -> ExecutionContext:
    if not given.env_vars and given.session_token is None:
        return context
    return msgspec.structs.replace(
        context.with_env(given.env_vars), session_token=given.session_token
    )


def wall_ms_left(state: RunState) -> int:
    """Return the milliseconds that are left of the run's limit of time, at least 0."""
    return max(0, state.started.limits.wall_ms - state.charge.wall_ms)


def host_calls_left(state: RunState) -> int:
    """Return the number of host calls that are left of the run's limit, at least 0."""
    return max(0, state.started.limits.host_calls - state.charge.host_calls)


def program_context(
    program: RunProgram, state: RunState, rerun: Rerun | None = None
) -> ExecutionContext:
    """Return the limits of one program: its own, at most what the run has left.

    Its own time is 30 seconds. A native program may use 1 GiB of memory. With the grant
    `attachments.write`, a request may be long enough for a put.
    """
    left = wall_ms_left(state)
    puts = WRITE in state.started.grants
    # Only native programs can start processes. In the repeatable sandbox the environment is part of
    # what is repeated, and runs of earlier versions had none: only a run that records where it
    # began to count has it there.
    tells_depth = program.effect or state.started.depth is not msgspec.UNSET
    return ExecutionContext(
        session_id=state.started.session_id,
        timeout_ms=min(_PROGRAM_MS_MAX, left),
        deadline_ms=left,
        recursion_depth=depth_of(state.started) + 1 if tells_depth else 0,
        program_name=f"<turn {program.turn}>",
        outputs_before=len(state.outputs),
        rerun=rerun,
        limits=Limits(
            memory_bytes=_NATIVE_BYTES if program.effect else Limits().memory_bytes,
            host_calls=host_calls_left(state),
            request_bytes=_PUT_REQUEST_BYTES if puts else _REQUEST_BYTES,
        ),
    )
