"""Arrange the records of a run by turns. A run that died has an outline too, with empty parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, assert_never

import msgspec

from tallystick.core.charge import Charge, shown_usd
from tallystick.core.json_text import canonical, digest
from tallystick.core.machine.commands import Command
from tallystick.core.machine.reply import as_program, command_text, is_program, parse_reply
from tallystick.core.machine.turn import charge_of
from tallystick.core.records import (
    AskModel,
    CallDecided,
    CallHost,
    CallWaiting,
    ChildBegun,
    ChildEnded,
    HostAnswered,
    ModelFailed,
    ModelRefused,
    ModelReplied,
    NativeRecord,
    ProgramChecked,
    ProgramFinished,
    QueryAsked,
    QueryFailed,
    QueryRecord,
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

# A command by its digest, with its text where the records have it.
Source = tuple[str, str | None]
_Beside = (
    CallWaiting
    | CallDecided
    | SnapshotTaken
    | SkillMatched
    | StepEntered
    | StepLeft
    | ProgramChecked
    | NativeRecord
)


class Spend(msgspec.Struct, frozen=True, kw_only=True):
    """A charge, and how many of its model calls have no known price."""

    charge: Charge = Charge()
    unpriced: int = 0


class RunAct(msgspec.Struct, frozen=True, kw_only=True):
    """A fork, resume or prune of a run, and the turn it came after.

    A field that is not None has a new value from there on. `removed` is what a prune deleted.
    """

    kind: Literal["forked", "resumed", "pruned"]
    after_turn: int
    model: str | None = None
    temperature: float | None = None
    limits: tuple[tuple[str, int | None], ...] | None = None
    removed: int = 0


class End(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a run.

    Of a pruned run it is read from the receipt: `answer` is None, its digest is not.
    """

    stop: str
    detail: str
    answer_sha256: str
    answer: str | None = None
    partial: bool = False


@dataclass(slots=True)
class ProgramRun:
    """A program that was begun, with its result once it finished."""

    intent: int
    sha256: str
    finished: ProgramFinished | None = None


@dataclass(slots=True)
class Call:
    """A call of a program, to a host function or to a model.

    `request` and `answer` are compared; `asked` and `said` are texts to be shown, None if the
    records do not have them.
    """

    name: str
    request: str
    answer: str | None = None
    asked: str | None = None
    said: str | None = None


@dataclass(slots=True)
class Turn:
    """The records of one turn.

    `first` names the parts of the prompt: further attempts add none. `asked` is the last attempt,
    to which a reply belongs. Calls are found by their intent and their place in it.
    """

    model: str = ""
    first: AskModel | None = None
    asked: AskModel | None = None
    attempts: int = 0
    replied: ModelReplied | None = None
    failed: str | None = None
    commands: tuple[Command, ...] | None = None
    programs: dict[int, ProgramRun] = field(default_factory=dict)
    host_calls: dict[tuple[int, int], Call] = field(default_factory=dict)
    queries: dict[tuple[int, int], Call] = field(default_factory=dict)
    spend: Spend = field(default_factory=Spend)


@dataclass(slots=True)
class Outline:
    """A run, turn by turn.

    `places` maps an intent to its turn and to the part of the reply, if any.
    """

    started: RunStarted | None = None
    turns: dict[int, Turn] = field(default_factory=dict)
    places: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    passages: list[RunAct] = field(default_factory=list)
    end: End | None = None
    total: Spend | None = None
    model: str = ""
    turn: int = 0

    def at(self, turn: int) -> Turn:
        """Return a turn, and make it the current one. It is created if there is none."""
        self.turn = turn
        return self.turns.setdefault(turn, Turn(model=self.model))

    @property
    def spend(self) -> Spend:
        """The sum of what the run used: from its end, or else from its turns."""
        if self.total is not None:
            return self.total
        spend = Spend()
        for turn in self.turns.values():
            spend = _sum(spend, turn.spend)
        return spend


def outline_of(records: Iterable[Record]) -> Outline:
    """Return the outline of a run from its records, in their order."""
    outline = Outline()
    for record in records:
        match record:
            case RunStarted():
                outline.started = record
                outline.model = record.model
            case AskModel() | ModelReplied() | ModelFailed() | ModelRefused():
                _add_model(outline, record)
            case record if isinstance(record, QueryRecord):
                _add_query(outline.at(outline.turn), record)
            case RunProgram() | ProgramFinished():
                _add_program(outline, record)
            case CallHost() | HostAnswered():
                _add_call(outline.at(outline.turn), record)
            case RunResumed() | RunForked() | RunPruned():
                _add_act(outline, record)
            case RunEnded() | ReceiptIssued():
                _add_end(outline, record)
            case record if isinstance(record, _Beside):
                # Nothing that a turn shows. Steps have a chain of their own.
                pass
            case _:
                assert_never(record)
    return outline


def _add_model(
    outline: Outline, record: AskModel | ModelReplied | ModelFailed | ModelRefused
) -> None:
    turn = outline.at(record.turn)
    match record:
        case AskModel():
            outline.places[str(record.intent)] = record.turn, None
            turn.model = outline.model
            turn.attempts += 1
            turn.asked = record
            if record.attempt == 1 or turn.first is None:
                turn.first = record
        case ModelReplied():
            turn.replied = record
            _charge(turn, record, Charge(turns=1, wall_ms=record.wall_ms))
        case ModelFailed():
            turn.failed = f"{record.reason}: {record.message}"
            _charge(turn, record, Charge(wall_ms=record.wall_ms))
        case ModelRefused():
            turn.failed = f"refused: {record.message}"


def _add_program(outline: Outline, record: RunProgram | ProgramFinished) -> None:
    turn = outline.at(record.turn)
    match record:
        case RunProgram():
            outline.places[str(record.intent)] = record.turn, record.part
            turn.programs[record.part] = ProgramRun(intent=record.intent, sha256=record.sha256)
        case ProgramFinished():
            used = Charge(fuel=record.fuel, wall_ms=record.wall_ms)
            turn.spend = _sum(turn.spend, Spend(charge=used))
            for ran in turn.programs.values():
                if ran.intent == record.intent:
                    ran.finished = record


def _add_call(turn: Turn, record: CallHost | HostAnswered) -> None:
    call = turn.host_calls.setdefault(
        (record.intent, 0), Call(name=record.name, request=record.request_sha256)
    )
    if isinstance(record, HostAnswered):
        _charge(turn, record)
        kept = record.reply_ref.id if record.reply_ref is not None else record.reply_sha256
        call.answer = f"{record.ok} {kept or digest(record.reply)}"


def _add_query(turn: Turn, record: QueryRecord) -> None:
    call = turn.queries.setdefault((record.intent, record.item), Call(name="", request=""))
    match record:
        case QueryAsked():
            call.name, call.request = record.model, record.request_sha256
            call.asked = record.prompt if record.prompt_ref is None else None
        case QueryReplied():
            _charge(turn, record)
            kept = record.text_ref.id if record.text_ref is not None else _text_digest(record.text)
            call.answer = f"replied {kept}"
            call.said = record.text if record.text_ref is None else None
        case QueryFailed():
            _charge(turn, record)
            call.answer = call.said = f"failed: {record.reason}: {record.message}"
        case QueryRefused():
            call.answer = call.said = f"refused: {record.message}"
        case ChildBegun():
            call.name, call.request = "a run", record.request_sha256
        case ChildEnded():
            _charge(turn, record)
            call.answer = call.said = f"{record.stop}: {record.answer}"


def _add_act(outline: Outline, record: RunResumed | RunForked | RunPruned) -> None:
    if isinstance(record, RunPruned):
        gone = RunAct(kind="pruned", after_turn=outline.turn, removed=record.removed)
        outline.passages.append(gone)
        return
    # The run was resumed or forked after its end, so that was not the end.
    outline.end = outline.total = None
    limits = record.limits
    passage = RunAct(
        kind="forked" if isinstance(record, RunForked) else "resumed",
        after_turn=outline.turn,
        model=record.model if isinstance(record, RunForked) else None,
        temperature=record.temperature if isinstance(record, RunForked) else None,
        limits=None if limits is None else tuple(msgspec.structs.asdict(limits).items()),
    )
    outline.passages.append(passage)
    outline.model = passage.model or outline.model


def _add_end(outline: Outline, record: RunEnded | ReceiptIssued) -> None:
    """Note the end of the run. A receipt has the digest of the answer, and not its text."""
    if isinstance(record, RunEnded):
        unpriced = sum(turn.spend.unpriced for turn in outline.turns.values())
        charge = record.charge
        end = End(
            stop=record.stop,
            detail=record.detail,
            answer_sha256=_text_digest(record.answer or ""),
            answer=record.answer,
            partial=record.partial,
        )
    else:
        receipt = record.receipt
        unpriced = sum(each.unpriced for each in receipt.models)
        charge = receipt.charge
        end = End(stop=receipt.stop, detail=receipt.detail, answer_sha256=receipt.outputs_digest)
    outline.end = end
    outline.total = Spend(charge=charge, unpriced=unpriced)


def _charge(
    turn: Turn,
    event: ModelReplied | ModelFailed | QueryReplied | QueryFailed | ChildEnded | HostAnswered,
    more: Charge | None = None,
) -> None:
    """Count what a call used. The machine counts the same, so the turns add up to the whole."""
    used = charge_of(event)
    unpriced = used.model_calls if used.usd is None else 0
    turn.spend = _sum(turn.spend, Spend(charge=used + (more or Charge()), unpriced=unpriced))


def _sum(one: Spend, other: Spend) -> Spend:
    return Spend(charge=one.charge + other.charge, unpriced=one.unpriced + other.unpriced)


def _text_digest(text: str) -> str:
    return digest(text.encode("utf-8", "surrogatepass"))


def inputs_of_run(started: RunStarted) -> dict[str, str]:
    """Return what a run was given, as texts by name: `limits.usd`, `inputs.orders`.

    Data is given by its digest. The start of the clock and limits of None are left out.
    """
    made = {
        name: str(getattr(started, name))
        for name in ("goal", "model", "seed", "template", "guest", "engine")
    }
    # Without the start of its clock: that is a time, and two runs would never be given the same.
    made["timezone"] = started.clock.timezone
    if started.temperature is not None:
        made["temperature"] = str(started.temperature)
    for name, limit in msgspec.structs.asdict(started.limits).items():
        if limit is not None:
            made[f"limits.{name}"] = shown_usd(limit) if name == "usd" else str(limit)
    made |= {f"grants.{each}": "granted" for each in started.grants}
    made |= {f"functions.{name}": doc for name, doc in started.functions}
    made |= {f"values.{name}": canonical(each).decode() for name, each in started.values.items()}
    made |= {f"views.{each.name}": canonical(each).decode() for each in started.views}
    made |= {f"files.{file}": _place(name, key) for file, name, key in started.files}
    made |= {f"images.{at}": each.id for at, each in enumerate(started.images)}
    held = [(each.name, each.key, each.attachment) for each in started.inputs]
    held += [(each.name, each.key, each.attachment) for each in started.texts if each.attachment]
    made |= {f"inputs.{_place(name, key)}": ref.id for name, key, ref in held}
    known = {name for name, _, _ in held}
    made |= {
        f"inputs.{each.name}": each.sha256 for each in started.contexts if each.name not in known
    }
    return made


def _place(name: str, key: str | None) -> str:
    return name if key is None else f"{name}[{key!r}]"


def commands_of(turn: Turn) -> tuple[Command, ...]:
    """Return the commands of the reply, none without one. They are parsed once, and kept."""
    if turn.commands is None:
        said = turn.replied
        turn.commands = () if said is None else parse_reply(said.text, cut=said.cut).commands
    return turn.commands


def sources_of(turn: Turn) -> dict[int, Source]:
    """Return the commands of a reply by their places, each with its digest and its text.

    A program that ran counts with the digest of what ran. Its text is None if the reply is gone, or
    is read differently now.
    """
    made: dict[int, Source] = {}
    for part, command in enumerate(commands_of(turn)):
        text = command_text(command)
        if is_program(command, native=part in turn.programs):
            text = as_program(command)
        made[part] = _text_digest(text), text
    for part, ran in turn.programs.items():
        if made.get(part, ("", None))[0] != ran.sha256:
            # The reply is gone, or it was read in another way then.
            made[part] = ran.sha256, None
    return made


def outputs_of(turn: Turn, part: int) -> dict[str, str] | None:
    """Return what a program gave, by name, without what is empty.

    None if the part is no program, or it has not finished.
    """
    ran = turn.programs.get(part)
    if ran is None or ran.finished is None:
        return None
    finished = ran.finished
    failure = finished.failure
    said = {
        "stdout": finished.stdout or None,
        "stderr": finished.stderr or None,
        "value": finished.value,
        "failure": None
        if failure is None
        else f"{failure.kind}: {failure.message}\n{failure.traceback}",
        "answer": finished.answer,
        "assigned": finished.assigned and " = ".join(finished.assigned),
        "stop": finished.stop,
        "outputs": "\n".join(each.id for each in finished.outputs) or None,
        "truncated": "truncated" if finished.truncated else None,
        "names_restored": " ".join(finished.names_restored) or None,
        "names_kept": " ".join(finished.names_kept) or None,
    }
    return {name: text for name, text in said.items() if text is not None}
