"""Export a run as trajectory events, made from its records alone, with those of its children."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, assert_never

import msgspec

from tallystick.attachments.port import AttachmentError, Store
from tallystick.core.chain import Sealed, time_of
from tallystick.core.errors import (
    InvalidName,
    RecordUnreadable,
    RunNotFound,
    TransferRefused,
    UsageError,
)
from tallystick.core.machine.commands import (
    Code,
    Command,
    Final,
    FinalVar,
    QueryLlm,
    QueryLlmBatched,
    Rollback,
    Run,
    Snapshot,
)
from tallystick.core.machine.reply import Reply, command_name, parse_reply
from tallystick.core.records import (
    AskModel,
    AttachmentRef,
    CallDecided,
    CallHost,
    CallWaiting,
    ChildBegun,
    ChildEnded,
    FilesKept,
    HostAnswered,
    ModelFailed,
    ModelRefused,
    ModelReplied,
    NetworkAttempted,
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
    decode_record,
)
from tallystick.core.views.receipt import holds_steps
from tallystick.interop.trajectory_events import (
    CHARS_MAX,
    BudgetWarning,
    CommandChecked,
    CommandExecuted,
    CommandParsed,
    CommandParseFailed,
    CommandStarted,
    Content,
    EntryPosition,
    ErrorSeen,
    GivenText,
    HostAnswer,
    HostCall,
    HostCallDecided,
    HostCallWaiting,
    LlmCall,
    LlmResponse,
    QueryComplete,
    QueryStart,
    SessionEnd,
    SessionStart,
    Shown,
    TrajectoryEvent,
    encode_event,
    termination_of,
)
from tallystick.ledger.port import Ledger
from tallystick.ledger.verify import ancestors_of
from tallystick.runtime.runs.history import UNREADABLE, runs_inside
from tallystick.storage.private_file import open_new

# Trajectory events of model calls and programs, each made from one record.


# The dimension of a refusal that is of a model, not of a budget.
_MODEL = "model"
# Parts of a prompt that tell the model how much of its budget is used, and of its last turn.
_SPENT, _LAST = "spent:", "last"


def turn_events(
    at: EntryPosition, record: AskModel, *, model: str
) -> Iterator[BudgetWarning | LlmCall]:
    """Yield an attempt of a turn, after the warning about the budget that its prompt newly has."""
    # Only the last part is news: the others are listed again, or were shown before.
    for part in [name.split("+")[-1] for name in record.added[-1:]]:
        share = part.removeprefix(_SPENT)
        if part == _LAST:
            yield BudgetWarning(**at, kind="last_turn")
        elif share != part and share.isdecimal():
            # A share has at most three digits; a forged record may have any number of them.
            yield BudgetWarning(**at, kind="share", share=int(share[:3]))
    yield LlmCall(
        **at,
        call="turn",
        intent=record.intent,
        item=0,
        attempt=record.attempt,
        model=model,
        request_sha256=record.request_sha256,
        tokens_out_max=record.tokens_out_max,
        parts=record.added,
    )


def query_event(at: EntryPosition, record: QueryAsked, shown: Shown) -> LlmCall:
    """Return the event of an attempt at a call of a program."""
    return LlmCall(
        **at,
        call="query",
        intent=record.intent,
        item=record.item,
        attempt=record.attempt,
        model=record.model,
        request_sha256=record.request_sha256,
        tokens_out_max=record.tokens_out_max,
        prompt=shown.stored_content(record.prompt, record.prompt_ref),
    )


def response_event(
    at: EntryPosition, record: ModelReplied | QueryReplied, shown: Shown
) -> LlmResponse:
    """Return the event of a model's reply."""
    query = record if isinstance(record, QueryReplied) else None
    figures = record.settled or record.usage
    return LlmResponse(
        **at,
        call="turn" if query is None else "query",
        intent=record.intent,
        item=0 if query is None else query.item,
        text=shown.stored_content(record.text, None if query is None else query.text_ref),
        tokens_in=figures.tokens_in,
        tokens_out=figures.tokens_out,
        reported=record.usage.reported,
        usd=None if record.settled is None else record.settled.usd,
        wall_ms=record.wall_ms,
        incomplete=record.cut,
        finish=record.finish,
        served_by=record.served_by,
    )


def command_events(
    at: EntryPosition, record: ModelReplied, reply: Reply, shown: Shown
) -> Iterator[CommandParsed | CommandParseFailed]:
    """Yield an event for each command that was read from a reply, and one for what was not read."""
    for part, command in enumerate(reply.commands):
        yield CommandParsed(
            **at,
            intent=record.intent,
            part=part,
            command=command_name(command),
            content=shown.content(_argument(command)),
        )
    if reply.problem is not None:
        problem = shown.content(reply.problem)
        yield CommandParseFailed(**at, intent=record.intent, problem=problem)


def failure_event(at: EntryPosition, record: ModelFailed | QueryFailed, shown: Shown) -> ErrorSeen:
    """Return the event of an attempt that gave no reply."""
    query = record if isinstance(record, QueryFailed) else None
    return ErrorSeen(
        **at,
        of="turn" if query is None else "query",
        reason=record.reason,
        message=shown.content(record.message),
        intent=record.intent,
        item=0 if query is None else query.item,
        transient=record.kind == "transient",
        status=record.status,
        billed=record.billed,
    )


def refusal_event(
    at: EntryPosition, record: ModelRefused | QueryRefused, shown: Shown
) -> BudgetWarning | ErrorSeen:
    """Return the event of a call that was never made.

    Either no budget pays for it, or its model is not for programs.
    """
    if record.dimension == _MODEL:
        said = shown.content(record.message)
        return ErrorSeen(
            **at, of="query", reason="refused", message=said, intent=record.intent, billed=False
        )
    return BudgetWarning(
        **at,
        kind="refused",
        dimension=record.dimension,
        scope=record.scope,
        message=record.message,
    )


def program_event(
    at: EntryPosition, record: ProgramFinished, program: RunProgram | None, shown: Shown
) -> CommandExecuted:
    """Return the event of a program's end. `program` is its start, if that is in the records."""
    failure = record.failure
    return CommandExecuted(
        **at,
        intent=record.intent,
        part=0 if program is None else program.part,
        command_sha256="" if program is None else program.sha256,
        success=failure is None and record.stop == "finished" and not record.exit_code,
        stop=record.stop,
        stdout=shown.content(record.stdout),
        stderr=shown.content(record.stderr),
        value=shown.optional(record.value),
        answer=shown.optional(record.answer),
        error_kind=None if failure is None else failure.kind,
        error=None if failure is None else shown.content(failure.message),
        host_calls=record.host_calls,
        fuel=record.fuel,
        wall_ms=record.wall_ms,
        truncated=record.truncated,
        outputs=tuple(each.id for each in record.outputs),
        exit_code=record.exit_code,
    )


def verdict_event(at: EntryPosition, record: ProgramChecked, shown: Shown) -> CommandChecked:
    """Return the event of the check of a program against the vocabulary."""
    return CommandChecked(
        **at,
        part=record.part,
        command_sha256=record.sha256,
        decision=record.decision,
        message=shown.content(record.message),
    )


def waiting_event(
    at: EntryPosition, record: CallWaiting | CallDecided, shown: Shown
) -> HostCallWaiting | HostCallDecided:
    """Return the event of a call that waits for a person, or of what was decided about it."""
    if isinstance(record, CallDecided):
        return HostCallDecided(
            **at,
            intent=record.intent,
            request_sha256=record.request_sha256,
            decision=record.decision,
            by=record.by,
            because=record.because,
        )
    return HostCallWaiting(
        **at,
        intent=record.intent,
        name=record.name,
        request_sha256=record.request_sha256,
        request=_request_of(record, shown),
    )


def _request_of(record: CallHost | CallWaiting, shown: Shown) -> Content | None:
    if isinstance(record.request_ref, AttachmentRef):
        return shown.stored_content("", record.request_ref)
    return shown.content(record.request) if isinstance(record.request, str) else None


def host_events(
    at: EntryPosition, record: CallHost | HostAnswered, shown: Shown
) -> Iterator[HostCall | HostAnswer]:
    """Yield the event of an effect that is about to happen, or of the answer to a call.

    There is none for the answer of a piece of a text, and of a model call, which has its own.
    """
    if isinstance(record, CallHost):
        yield HostCall(
            **at,
            intent=record.intent,
            name=record.name,
            attempt=record.attempt,
            request_sha256=record.request_sha256,
            request=_request_of(record, shown),
        )
    elif record.reply_sha256 is None:
        request = shown.content(record.request) if isinstance(record.request, str) else None
        reply = record.reply[1:].decode("utf-8", "replace")
        yield HostAnswer(
            **at,
            intent=record.intent,
            name=record.name,
            success=record.ok,
            request_sha256=record.request_sha256,
            request=request,
            reply=shown.stored_content(reply, record.reply_ref),
        )


def _argument(command: Command) -> str:
    """Return the text that a command holds."""
    match command:
        case Code():
            return command.source
        case Run():
            return command.command
        case Final():
            return command.text
        case FinalVar() | Snapshot() | Rollback():
            return command.name
        case QueryLlm():
            return command.prompt
        case QueryLlmBatched():
            return "\n---\n".join(command.prompts)
        case _:
            assert_never(command)


# A run as trajectory events, from its records alone.
#
# Rule 1: an event is made from one entry, and names it. A fact that is in no record is in no event.
# Rule 2: the events of a child are where its parent began it. A chain is shown once, however often
# it is named, so a forged ledger makes them neither endless nor many.
# Rule 3: content goes through `Shown`, where it is cut or left out, and through nothing else.


# Deeper than any run of ours; a forged ledger ends here.
DEPTH_MAX = 64
_SHOWN = Shown()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainEntry:
    """A record, and the entry that holds it. `at` is when it was appended, None if unknown."""

    run: str
    seq: int
    hash: str
    record: Record
    at: int | None = None


def entry_of(run: str, seq: int, sealed: Sealed) -> ChainEntry | None:
    """Return an entry of a ledger with its record; None if its body was erased.

    Raise `RecordUnreadable` if the body is no record of this version.
    """
    if sealed.body is None:
        return None
    record = _record_in(run, seq, sealed.body)
    return ChainEntry(run=run, seq=seq, hash=sealed.hash, record=record, at=time_of(sealed))


# The entries of a chain by its name; None if it is not here.
Chains = Callable[[str], Iterable[ChainEntry] | None]


def trajectory_of(
    entries: Iterable[ChainEntry], *, children: Chains = lambda run: None, shown: Shown = _SHOWN
) -> Iterator[TrajectoryEvent]:
    """Yield the events of a run, in the order of its entries; those of its children are inside it.

    `children` is called once for each child, where its parent began it. Where it returns None, and
    below 64 levels, the parent's records of the child are used. Errors of `entries` and `children`
    are passed on.
    """
    opened: list[Iterable[ChainEntry]] = []

    def open_child(run: str) -> bool:
        found = children(run)
        opened.extend(() if found is None else (found,))
        return found is not None

    trajectory = Trajectory(shown, open_child=open_child)

    def events(chain: Iterable[ChainEntry]) -> Iterator[TrajectoryEvent]:
        for entry in chain:
            yield from trajectory.add(entry)
            while opened:
                yield from events(opened.pop())

    yield from events(entries)
    yield from trajectory.session_end()


@dataclass(slots=True)
class _Run:
    """The facts from earlier records that the events of one run need."""

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
    ended: tuple[ChainEntry, RunEnded] | None = None

    def at(self, entry: ChainEntry, *, deeper: int = 0, said: int | None = None) -> EntryPosition:
        """Return the position of an entry. `said` is the time in its record, for older headers."""
        return EntryPosition(
            run=entry.run,
            seq=entry.seq,
            hash=entry.hash,
            iteration=self.turn,
            depth=self.depth + deeper,
            at=said if entry.at is None else entry.at,
        )


class Trajectory:
    """The events of a run and of those inside it, made entry by entry, each entry once.

    The entries of a chain come in their order, those of a child after the one that begins it; how
    chains are mixed is up to the caller. `open_child` is called once for each child that is begun.
    It returns True if the entries of the child will be added too, and False if they are not here.
    """

    def __init__(
        self, shown: Shown = _SHOWN, *, open_child: Callable[[str], bool] = lambda run: False
    ) -> None:
        self._shown = shown
        self._open_child = open_child
        self._seen: set[str] = set()
        # Any other chain is the outermost one, or one that it was forked from.
        self._root = _Run(None, 0, outermost=True)
        self._inside: dict[str, _Run] = {}
        self._told: set[str] = set()

    def add(self, entry: ChainEntry) -> Iterator[TrajectoryEvent]:
        """Yield the events of an entry. Take all of them before the next entry is added."""
        run = self._inside.get(entry.run, self._root)
        self._seen.add(entry.run)
        self._told.add(entry.run)
        run.turn = getattr(entry.record, "turn", run.turn)
        yield from self._entry_events(run, entry)

    @property
    def has_ended(self) -> bool:
        """True if the outermost run has ended with the entries so far."""
        return self._root.ended is not None

    def session_end(self) -> Iterator[SessionEnd]:
        """Yield the end of the session if the outermost run has ended, after its last entry."""
        run = self._root
        if run.ended is not None:
            entry, ended = run.ended
            yield SessionEnd(
                **run.at(entry), session_id=run.session_id, stop=ended.stop, charge=ended.charge
            )

    def _entry_events(self, run: _Run, entry: ChainEntry) -> Iterator[TrajectoryEvent]:
        match entry.record:
            case RunStarted() as record:
                yield from self._start_events(run, entry, record)
            case RunResumed() | RunForked() as record:
                yield self._continuation_event(run, entry, record)
            case ChildBegun() | ChildEnded() as record:
                yield from self._child_events(run, entry, record)
            case RunEnded() as record:
                yield from self._end_events(run, entry, record)
            case RunProgram() | ProgramFinished() | ProgramChecked() as record:
                yield from self._program_events(run, entry, record)
            case CallWaiting() | CallDecided() as record:
                yield waiting_event(run.at(entry), record, self._shown)
            case CallHost() | HostAnswered() as record:
                yield from host_events(run.at(entry), record, self._shown)
            # Other systems have no events for these. They are listed one by one, and not as "all
            # others", so that the type checker asks where a new record belongs.
            case SnapshotTaken() | ReceiptIssued() | RunPruned() | StepEntered() | StepLeft():
                pass
            case SkillMatched() | FilesKept() | NetworkAttempted():
                pass
            case _:
                yield from self._call_events(run, entry, entry.record)

    def _call_events(
        self,
        run: _Run,
        entry: ChainEntry,
        record: AskModel
        | ModelReplied
        | ModelFailed
        | ModelRefused
        | QueryAsked
        | QueryReplied
        | QueryFailed
        | QueryRefused,
    ) -> Iterator[TrajectoryEvent]:
        at, shown = run.at(entry), self._shown
        match record:
            case AskModel():
                yield from turn_events(at, record, model=run.model)
            case QueryAsked():
                yield query_event(at, record, shown)
            case ModelReplied():
                yield response_event(at, record, shown)
                reply = parse_reply(record.text, cut=record.cut)
                run.commands, run.variable = reply.commands, None
                yield from command_events(at, record, reply, shown)
            case QueryReplied():
                yield response_event(at, record, shown)
            case ModelFailed() | QueryFailed():
                yield failure_event(at, record, shown)
            case ModelRefused() | QueryRefused():
                yield refusal_event(at, record, shown)
            case _:
                assert_never(record)

    # -- beginnings and ends -------------------------------------------------------------------

    def _start_events(
        self, run: _Run, entry: ChainEntry, record: RunStarted
    ) -> Iterator[TrajectoryEvent]:
        run.model, run.session_id, run.ended = record.model, record.session_id, None
        if run.outermost:
            caller = record.caller
            run.parent, run.depth = (None, 0) if caller is None else (caller.run, caller.depth)
            yield SessionStart(
                **run.at(entry, said=record.started_at),
                session_id=record.session_id,
                model=record.model,
                template=record.template,
                guest=record.guest,
                engine=record.engine,
                grants=record.grants,
                functions=tuple(name for name, _ in record.functions),
            )
        given = [GivenText(name=each.name, sha256=each.sha256, bytes=each.bytes)
                 for each in record.contexts]  # fmt: skip
        yield QueryStart(
            **run.at(entry, said=record.started_at),
            query=entry.run,
            begun="started",
            parent_query=run.parent,
            goal=self._shown.content(record.goal),
            model=record.model,
            limits=record.limits,
            contexts=tuple(given),
        )

    def _continuation_event(
        self, run: _Run, entry: ChainEntry, record: RunResumed | RunForked
    ) -> QueryStart:
        run.ended, model = None, None
        if isinstance(record, RunForked):
            model, run.session_id = record.model, record.session_id
        run.model = model or run.model
        # Left out where nothing was decided: older readers know no such field.
        word = record if isinstance(record, RunResumed) and record.decision is not None else None
        return QueryStart(
            **run.at(entry, said=record.at),
            query=entry.run,
            begun="forked" if isinstance(record, RunForked) else "resumed",
            decision=msgspec.UNSET if word is None else word.decision or msgspec.UNSET,
            by=msgspec.UNSET if word is None else word.by,
            parent_query=run.parent,
            model=model,
            limits=record.limits,
        )

    def _end_events(
        self, run: _Run, entry: ChainEntry, record: RunEnded
    ) -> Iterator[TrajectoryEvent]:
        run.ended = entry, record
        answered = record.stop == "answered"
        variable = run.variable if answered else None
        reason = termination_of(record.stop, record.detail, variable=variable)
        detail = self._shown.content(record.detail)
        if reason == "Error":
            yield ErrorSeen(**run.at(entry), of="run", reason=record.stop, message=detail)
        yield QueryComplete(
            **run.at(entry),
            query=entry.run,
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

    def _child_events(
        self, run: _Run, entry: ChainEntry, record: ChildBegun | ChildEnded
    ) -> Iterator[TrajectoryEvent]:
        if isinstance(record, ChildEnded):
            if record.run in self._inside and record.run not in self._told:
                # It was to be added, and is gone or was never written.
                del self._inside[record.run]
                yield self._absent_begin_event(run, entry, record)
            if record.run in run.elsewhere:
                # Its chain is not here, but its parent knows how it ended.
                yield self._absent_end_event(run, entry, record)
            return
        if record.run in self._seen:
            return
        self._seen.add(record.run)
        depth = run.depth + 1
        if depth <= DEPTH_MAX and self._open_child(record.run):
            self._inside[record.run] = _Run(entry.run, depth, outermost=False)
            return
        yield self._absent_begin_event(run, entry, record)

    def _absent_begin_event(
        self, run: _Run, entry: ChainEntry, record: ChildBegun | ChildEnded
    ) -> QueryStart:
        run.elsewhere.add(record.run)
        return QueryStart(
            **run.at(entry, deeper=1),
            query=record.run,
            begun="elsewhere",
            parent_query=entry.run,
        )

    def _absent_end_event(self, run: _Run, entry: ChainEntry, record: ChildEnded) -> QueryComplete:
        return QueryComplete(
            **run.at(entry, deeper=1),
            query=record.run,
            parent_query=entry.run,
            stop=record.stop,
            detail=self._shown.content(record.detail),
            termination_reason=termination_of(record.stop, record.detail),
            success=record.stop == "answered",
            partial=record.partial,
            result=self._shown.stored_content(record.answer, record.answer_ref),
            charge=record.charge,
        )

    # -- programs ------------------------------------------------------------------------------

    def _program_events(
        self, run: _Run, entry: ChainEntry, record: RunProgram | ProgramFinished | ProgramChecked
    ) -> Iterator[TrajectoryEvent]:
        match record:
            case ProgramChecked():
                yield verdict_event(run.at(entry), record, self._shown)
            case RunProgram():
                run.programs[record.intent] = record
                yield CommandStarted(
                    **run.at(entry),
                    intent=record.intent,
                    part=record.part,
                    kind=record.kind,
                    command_sha256=record.sha256,
                )
            case ProgramFinished():
                yield self._program_event(run, entry, record)

    def _program_event(
        self, run: _Run, entry: ChainEntry, record: ProgramFinished
    ) -> CommandExecuted:
        program = run.programs.pop(record.intent, None)
        part = 0 if program is None else program.part
        command = run.commands[part] if 0 <= part < len(run.commands) else None
        run.variable = command.name if isinstance(command, FinalVar) else None
        return program_event(run.at(entry), record, program, self._shown)


# A run of a ledger as a file of trajectory events: with its children, and what it shares.


# Longer than any text that a run of ours stores apart; an imported record may name any length.
_TEXT_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The result of an export.

    `erased` counts entries whose bodies are gone: they have no events.
    """

    events: int
    erased: int


class ChainSource:
    """The chains of a ledger, and the texts that are stored apart from them."""

    def __init__(self, ledger: Ledger, store: Store) -> None:
        self._ledger = ledger
        self._store = store
        self.erased = 0

    def with_ancestors(self, run: str) -> Iterator[ChainEntry]:
        """Yield the entries of a run, after those that it shares with its ancestors.

        The ancestors are the runs that it was forked from. Raise what `ancestors_of` raises.
        """
        for ancestor in ancestors_of(self._ledger, run):
            yield from self._entries_of(ancestor.run, ancestor.count)
        yield from self._entries_of(run, None)

    def child_entries(self, run: str) -> Iterable[ChainEntry] | None:
        """Return the entries of a child; None if its chain is not here, or if it names no run."""
        try:
            next(self._ledger.read(run, stop=1), None)
        except (RunNotFound, InvalidName):
            return None
        return self._entries_of(run, None)

    def text_of(self, ref: AttachmentRef) -> str | None:
        """Return a text that is stored as an attachment.

        It is None if the bytes are gone, damaged, not UTF-8, or more than 64 MiB.
        """
        if ref.byte_len > _TEXT_BYTES_MAX:
            return None
        try:
            with self._store.chunks(ref.id) as chunks:
                return b"".join(chunks).decode("utf-8", "surrogatepass")
        except (AttachmentError, InvalidName, UnicodeDecodeError):
            return None

    def _entries_of(self, run: str, stop: int | None) -> Iterator[ChainEntry]:
        for seq, sealed in enumerate(self._ledger.read(run, stop=stop)):
            entry = entry_of(run, seq, sealed)
            if entry is None:
                self.erased += 1
                continue
            yield entry


def _record_in(run: str, seq: int, body: bytes) -> Record:
    """Return the record of an entry. Raise `RecordUnreadable` if it is none of this version."""
    try:
        return decode_record(body)
    except UNREADABLE as error:
        raise RecordUnreadable(run=run, seq=seq, why=str(error)) from error


def export_trajectory(
    ledger: Ledger,
    store: Store,
    run: str,
    target: Path | BinaryIO,
    *,
    redact: bool = False,
    full: bool = False,
) -> Exported:
    """Write the events of a run as JSON lines, to a new file or to an open one.

    `redact` leaves texts out; without `full`, long texts are cut. A new file is removed if the
    export fails; what was written to an open one stays. Raise `UsageError` for a chain of steps,
    and for a run without any content left or yet; `RunNotFound` or `InvalidName` for no run. Raise
    `TransferRefused` if a new file exists or cannot be written, `RecordUnreadable` for a
    record that cannot be read, and other errors of the ledger.
    """
    first = [each.body for each in ledger.read(run, stop=1) if each.body is not None]
    if holds_steps([_record_in(run, 0, body) for body in first]):
        inside = ", ".join(runs_inside(ledger, run)) or "none are here"
        raise UsageError(f"{run} holds steps, which have no trajectory; name a run: {inside}")
    source = ChainSource(ledger, store)
    events = _events(source, run, redact=redact, full=full)
    # Take the first event before the file is made: a run without events then leaves no file.
    begun = next(events, None)
    if begun is None:
        why = "was pruned: its content is gone" if source.erased else "has no entries yet"
        raise UsageError(f"run {run} {why}; there is nothing to export")
    count = 1
    with _open_target(target) as file:
        file.write(encode_event(begun) + b"\n")
        for event in events:
            file.write(encode_event(event) + b"\n")
            count += 1
    return Exported(events=count, erased=source.erased)


def _events(
    source: ChainSource, run: str, *, redact: bool, full: bool
) -> Iterator[TrajectoryEvent]:
    shown = Shown(redact=redact, chars_max=None if full else CHARS_MAX, text_of=source.text_of)
    return trajectory_of(source.with_ancestors(run), children=source.child_entries, shown=shown)


@contextmanager
def _open_target(target: Path | BinaryIO) -> Iterator[BinaryIO]:
    """Open a new file, private to the user; remove it again if the export fails.

    A file that is open already is yielded as it is, and flushed; errors of writing it are raised as
    they are. For a new file, raise `TransferRefused` if it exists or cannot be written. An
    `OSError` of the body then counts as that.
    """
    if not isinstance(target, Path):
        yield target
        target.flush()
        return
    try:
        file = os.fdopen(open_new(target), "wb")
    except FileExistsError:
        why = "it is there already; name a new file"
        raise TransferRefused(file=str(target), why=why) from None
    except OSError as error:
        why = f"it cannot be written: {error.strerror}"
        raise TransferRefused(file=str(target), why=why) from error
    try:
        with file:
            yield file
    except BaseException as error:
        with suppress(OSError):
            target.unlink()
        if isinstance(error, OSError):
            why = f"it cannot be written: {error.strerror}"
            raise TransferRefused(file=str(target), why=why) from error
        raise
