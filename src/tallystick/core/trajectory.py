"""A run as trajectory events, from its records alone.

Rule 1: an event is made from one entry, and names it. What no record says is in no event.
Rule 2: the events of a child stand where its parent began it. A chain is told once, whoever names
it and however often, so a ledger that lies makes them neither endless nor many.
Rule 3: content goes through `Shown`, where it is cut or left out, and through nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import assert_never

from tallystick.core.native_records import FilesKept, NetworkAttempted
from tallystick.core.records import (
    AskModel,
    CallHost,
    ChildBegun,
    ChildEnded,
    HostAnswered,
    ModelFailed,
    ModelRefused,
    ModelReplied,
    ProgramChecked,
    ProgramFinished,
    QueryAsked,
    QueryFailed,
    QueryRefused,
    QueryReplied,
    ReceiptIssued,
    Record,
    RunEnded,
    RunForked,
    RunProgram,
    RunPruned,
    RunResumed,
    RunStarted,
    SkillMatched,
    SnapshotTaken,
    StepEntered,
    StepLeft,
)
from tallystick.core.reply import Command, FinalVar, parse_reply
from tallystick.core.trajectory_calls import (
    executed,
    failed,
    parsed,
    query_asked,
    refused,
    replied,
    turn_asked,
)
from tallystick.core.trajectory_content import Shown
from tallystick.core.trajectory_events import (
    At,
    CommandExecuted,
    ErrorSeen,
    Given,
    QueryComplete,
    QueryStart,
    SessionEnd,
    SessionStart,
    TrajectoryEvent,
    termination_of,
)

__all__ = ["DEPTH_MAX", "Chains", "Placed", "trajectory_of"]

# Deeper than any run of ours stands; a ledger that lies ends here.
DEPTH_MAX = 64
_SHOWN = Shown()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A record and the entry that holds it."""

    run: str
    seq: int
    hash: str
    record: Record


# The entries of a chain by its name; None if it is not here.
Chains = Callable[[str], Iterable[Placed] | None]


def trajectory_of(
    entries: Iterable[Placed], *, children: Chains = lambda run: None, shown: Shown = _SHOWN
) -> Iterator[TrajectoryEvent]:
    """The events of a run, in the order of its entries; those of its children inside it."""
    yield from _Told(children, shown).chain(entries, parent=None, depth=0)


@dataclass(slots=True)
class _Run:
    """What the events of one run need of the records before."""

    parent: str | None
    depth: int
    outermost: bool
    turn: int = 0
    model: str = ""
    session_id: str = ""
    commands: tuple[Command, ...] = ()
    variable: str | None = None
    programs: dict[int, RunProgram] = field(default_factory=dict)
    elsewhere: set[str] = field(default_factory=set)
    ended: tuple[Placed, RunEnded] | None = None

    def at(self, place: Placed, *, deeper: int = 0) -> At:
        return At(
            run=place.run,
            seq=place.seq,
            hash=place.hash,
            iteration=self.turn,
            depth=self.depth + deeper,
        )


class _Told:
    """Tells chains, each of them once."""

    def __init__(self, children: Chains, shown: Shown) -> None:
        self._children = children
        self._shown = shown
        self._seen: set[str] = set()

    def chain(
        self, entries: Iterable[Placed], *, parent: str | None, depth: int
    ) -> Iterator[TrajectoryEvent]:
        run = _Run(parent, depth, outermost=parent is None)
        for place in entries:
            self._seen.add(place.run)
            run.turn = getattr(place.record, "turn", run.turn)
            yield from self._entry(run, place)
        if run.outermost and run.ended is not None:
            place, ended = run.ended
            yield SessionEnd(
                **run.at(place), session_id=run.session_id, stop=ended.stop, charge=ended.charge
            )

    def _entry(self, run: _Run, place: Placed) -> Iterator[TrajectoryEvent]:
        match place.record:
            case RunStarted() as record:
                yield from self._started(run, place, record)
            case RunResumed() | RunForked() as record:
                yield self._gone_on(run, place, record)
            case ChildBegun() | ChildEnded() as record:
                yield from self._child(run, place, record)
            case RunEnded() as record:
                yield from self._ended(run, place, record)
            case RunProgram() as record:
                run.programs[record.intent] = record
            case ProgramFinished() as record:
                yield self._executed(run, place, record)
            case CallHost() | HostAnswered() | SnapshotTaken() | ReceiptIssued() | RunPruned():
                pass
            case StepEntered() | StepLeft() | SkillMatched() | ProgramChecked():
                pass
            case FilesKept() | NetworkAttempted():
                pass
            case _:
                yield from self._call(run, place, place.record)

    def _call(
        self,
        run: _Run,
        place: Placed,
        record: AskModel
        | ModelReplied
        | ModelFailed
        | ModelRefused
        | QueryAsked
        | QueryReplied
        | QueryFailed
        | QueryRefused,
    ) -> Iterator[TrajectoryEvent]:
        at, shown = run.at(place), self._shown
        match record:
            case AskModel():
                yield from turn_asked(at, record, model=run.model)
            case QueryAsked():
                yield query_asked(at, record, shown)
            case ModelReplied():
                yield replied(at, record, shown)
                reply = parse_reply(record.text, cut=record.cut)
                run.commands, run.variable = reply.commands, None
                yield from parsed(at, record, reply, shown)
            case QueryReplied():
                yield replied(at, record, shown)
            case ModelFailed() | QueryFailed():
                yield failed(at, record, shown)
            case ModelRefused() | QueryRefused():
                yield refused(at, record, shown)
            case _:
                assert_never(record)

    # -- beginnings and ends -------------------------------------------------------------------

    def _started(self, run: _Run, place: Placed, record: RunStarted) -> Iterator[TrajectoryEvent]:
        run.model, run.session_id, run.ended = record.model, record.session_id, None
        if run.outermost:
            caller = record.caller
            run.parent, run.depth = (None, 0) if caller is None else (caller.run, caller.depth)
            yield SessionStart(
                **run.at(place),
                at=record.started_at,
                session_id=record.session_id,
                model=record.model,
                template=record.template,
                guest=record.guest,
                engine=record.engine,
                grants=record.grants,
                functions=tuple(name for name, _ in record.functions),
            )
        given = [Given(name=each.name, sha256=each.sha256, bytes=each.bytes)
                 for each in record.contexts]  # fmt: skip
        yield QueryStart(
            **run.at(place),
            at=record.started_at,
            query=place.run,
            begun="started",
            parent_query=run.parent,
            goal=self._shown.content(record.goal),
            model=record.model,
            limits=record.limits,
            contexts=tuple(given),
        )

    def _gone_on(self, run: _Run, place: Placed, record: RunResumed | RunForked) -> QueryStart:
        run.ended, model = None, None
        if isinstance(record, RunForked):
            model, run.session_id = record.model, record.session_id
        run.model = model or run.model
        return QueryStart(
            **run.at(place),
            at=record.at,
            query=place.run,
            begun="forked" if isinstance(record, RunForked) else "resumed",
            parent_query=run.parent,
            model=model,
            limits=record.limits,
        )

    def _ended(self, run: _Run, place: Placed, record: RunEnded) -> Iterator[TrajectoryEvent]:
        run.ended = place, record
        answered = record.stop == "answered"
        variable = run.variable if answered else None
        reason = termination_of(record.stop, record.detail, variable=variable)
        detail = self._shown.content(record.detail)
        if reason == "Error":
            yield ErrorSeen(**run.at(place), of="run", reason=record.stop, message=detail)
        yield QueryComplete(
            **run.at(place),
            query=place.run,
            parent_query=run.parent,
            stop=record.stop,
            detail=detail,
            termination_reason=reason,
            variable=variable,
            success=answered,
            partial=record.partial,
            result=self._shown.optional(record.answer),
            charge=record.charge,
        )

    def _child(
        self, run: _Run, place: Placed, record: ChildBegun | ChildEnded
    ) -> Iterator[TrajectoryEvent]:
        if isinstance(record, ChildEnded):
            if record.run in run.elsewhere:
                # Its chain is not here, but its parent knows how it ended.
                yield self._ended_elsewhere(run, place, record)
            return
        if record.run in self._seen:
            return
        self._seen.add(record.run)
        depth = run.depth + 1
        entries = self._children(record.run) if depth <= DEPTH_MAX else None
        if entries is not None:
            yield from self.chain(entries, parent=place.run, depth=depth)
            return
        run.elsewhere.add(record.run)
        yield QueryStart(
            **run.at(place, deeper=1),
            query=record.run,
            begun="elsewhere",
            parent_query=place.run,
        )

    def _ended_elsewhere(self, run: _Run, place: Placed, record: ChildEnded) -> QueryComplete:
        return QueryComplete(
            **run.at(place, deeper=1),
            query=record.run,
            parent_query=place.run,
            stop=record.stop,
            detail=self._shown.content(record.detail),
            termination_reason=termination_of(record.stop, record.detail),
            success=record.stop == "answered",
            partial=record.partial,
            result=self._shown.kept(record.answer, record.answer_ref),
            charge=record.charge,
        )

    # -- programs ------------------------------------------------------------------------------

    def _executed(self, run: _Run, place: Placed, record: ProgramFinished) -> CommandExecuted:
        program = run.programs.pop(record.intent, None)
        part = 0 if program is None else program.part
        command = run.commands[part] if 0 <= part < len(run.commands) else None
        run.variable = command.name if isinstance(command, FinalVar) else None
        return executed(run.at(place), record, program, self._shown)
