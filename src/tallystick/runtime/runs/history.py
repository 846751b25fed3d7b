"""Runs that a ledger holds: found by name, read record by record, and how far each has come."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TypeVar

import msgspec

from tallystick.core.budget.amount import Amount
from tallystick.core.chain import Header, Sealed
from tallystick.core.charge import Charge
from tallystick.core.errors import (
    LedgerCorrupt,
    LedgerError,
    RecordUnreadable,
    RunNotFound,
    UsageError,
)
from tallystick.core.ids import is_ulid
from tallystick.core.machine.turn import changed, charge_of
from tallystick.core.records import (
    CUT_OFF,
    DOUBTED,
    LEFT,
    AskModel,
    AttachmentRef,
    CallHost,
    ChildBegun,
    ChildEnded,
    Continuation,
    FilesKept,
    HostAnswered,
    ModelFailed,
    ModelRefused,
    ModelReplied,
    ProgramFinished,
    QueryAsked,
    QueryFailed,
    QueryRecord,
    QueryReplied,
    Record,
    RunEnded,
    RunForked,
    RunProgram,
    RunPruned,
    RunStarted,
    SnapshotTaken,
    decode_record,
)
from tallystick.core.resume_errors import ResumeRefused
from tallystick.core.views.open_calls import open_calls
from tallystick.core.views.receipt import holds_steps
from tallystick.ledger.port import Ledger, find_row
from tallystick.model.port import Model
from tallystick.model.recorded import RecordedModel

# Runs that a ledger holds: found by name, read record by record, asked again as a model.


_STEPS = "step."
_CALLED = b'"caller":{'
# A child has little between its parent and itself: at most its live siblings.
_LOOKED_AT = 64
_decode_header = msgspec.json.Decoder(Header).decode
# What bodies raise that are no records of this version.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


NOT_BEGUN = "was not begun: its process ended before anything of it was written; run it again"


def records_of(ledger: Ledger, run: str) -> Iterator[Record]:
    """The records of a run, as far as their bodies are still there."""
    for seq, sealed in enumerate(ledger.read(run)):
        if sealed.body is not None:
            yield _record_of(sealed.body, run, seq)


def whole_records(ledger: Ledger, run: str) -> list[Record]:
    """The records of a run; of a fork with those that it shares, in front."""
    parts: list[list[Record]] = []
    seen: set[str] = set()
    next_run: str | None = run
    stop: int | None = None
    while next_run is not None:
        if next_run in seen:
            raise LedgerError(f"run {run} is said to have grown from itself")
        seen.add(next_run)
        read = enumerate(ledger.read(next_run, stop=stop))
        own = [_required(sealed, next_run, seq) for seq, sealed in read]
        parts.append(own)
        forked = own[0] if own else None
        next_run = stop = None
        if isinstance(forked, RunForked):
            next_run, stop = forked.parent, forked.count
    return [record for own in reversed(parts) for record in own]


def _required(sealed: Sealed, run: str, seq: int) -> Record:
    if sealed.body is None:
        raise ResumeRefused(run=run, why="was pruned: its records are gone")
    return _record_of(sealed.body, run, seq)


def _record_of(body: bytes, run: str, seq: int) -> Record:
    try:
        return decode_record(body)
    except UNREADABLE as error:
        raise RecordUnreadable(run=run, seq=seq, why=str(error)) from error


def resolve_run(ledger: Ledger, named: str) -> str:
    """A run or a chain of steps by its id, the beginning of it, or the `last` run."""
    if not named.strip():
        raise UsageError("name a run: its id, the beginning of it, or last")
    rows = ledger.runs()
    runs = [row.run for row in rows]
    if named == "last":
        for place in range(len(rows) - 1, -1, -1):
            run = runs[place]
            if _is_of_steps(ledger, run) or is_child(ledger, run):
                continue
            if rows[place].head.count or not _is_awaited(ledger, run, runs[:place]):
                return run
        raise UsageError("there is no run yet")
    found = [run for run in runs if run == named.upper()] or [
        run for run in runs if run.startswith(named.upper())
    ]
    if len(found) > 1:
        raise UsageError(f"{named!r} is the beginning of {len(found)} runs; give more of it")
    if not found:
        raise RunNotFound(run=named)
    return found[0]


def recorded_model(ledger: Ledger, named: str) -> RecordedModel:
    """A model that says what the model of a recorded run said."""
    run = resolve_run(ledger, named)
    records = list(records_of(ledger, run))
    if holds_steps(records):
        raise UsageError(f"{run} holds steps, which have no replies; name one of its runs")
    asked = {record.intent: record for record in records if isinstance(record, AskModel)}
    exchanges = [
        (asked[record.intent], record)
        for record in records
        if isinstance(record, ModelReplied | ModelFailed)
    ]
    started = next((record for record in records if isinstance(record, RunStarted)), None)
    return RecordedModel(
        exchanges,
        name=f"recorded:{run}",
        recorded_name=started.model if started is not None else "",
    )


def runs_inside(ledger: Ledger, chain: str) -> list[str]:
    """The runs here that say of themselves that they were begun inside a chain of steps."""
    named = chain.encode()
    found = []
    for row in ledger.runs():
        try:
            first = next(ledger.read(row.run, stop=1), None)
            if first is None or first.body is None or named not in first.body:
                continue
            started = decode_record(first.body)
        except (LedgerError, *UNREADABLE):
            continue  # removed just now, or damaged: then it says nothing
        if isinstance(started, RunStarted) and started.parent == chain:
            found.append(row.run)
    return found


def is_child(ledger: Ledger, run: str) -> bool:
    """Whether a run was begun by a program of another."""
    try:
        first = next(ledger.read(run, stop=1), None)
        if first is None:
            return False
        if first.body is None:
            *_, last = ledger.read(run)
            pruned = None if last.body is None else decode_record(last.body)
            return isinstance(pruned, RunPruned) and pruned.caller is not None
        if _CALLED not in first.body:
            return False
        started = decode_record(first.body)
    except (LedgerError, *UNREADABLE):
        return False
    return isinstance(started, RunStarted) and started.caller is not None


def require_not_awaited(ledger: Ledger, run: str) -> None:
    """Raise if the run that began this one waits for it: it would be begun anew, and paid again."""
    try:
        first = next(records_of(ledger, run), None)
    except LedgerError:
        return  # damaged, or of a later version: then it says nothing
    caller = first.caller if isinstance(first, RunStarted) else None
    row = None if caller is None else find_row(ledger, caller.run)
    if row is None or row.moved or row.imported or not row.head.count:
        return
    *_, last = records_of(ledger, row.run)
    over = isinstance(last, RunPruned) or (isinstance(last, RunEnded) and last.stop == "answered")
    if not over:
        raise UsageError(
            f"run {run} was begun by run {row.run}, which may be gone on with: remove that first"
        )


def require_no_children(ledger: Ledger, run: str) -> None:
    """Raise if a run waits for others that it began: they would stay behind, and be paid again."""
    waits = awaited_children(list(records_of(ledger, run)))
    if waits:
        raise UsageError(
            f"run {run} was cut off inside run {waits[0]}, which does not move with it; "
            f"resume it here"
        )


def awaited_children(records: Sequence[Record]) -> list[str]:
    """The runs that whoever goes on with these records goes on with.

    Programs began them and were not told what came of it. Also those that were stopped from
    outside, which have an end.
    """
    told = {each.intent for each in records if isinstance(each, HostAnswered | ProgramFinished)}
    waits: dict[str, bool] = {}
    for record in records:
        if isinstance(record, ChildBegun):
            waits[record.run] = not {record.intent, record.program} & told
        elif isinstance(record, ChildEnded) and record.stop not in CUT_OFF:
            waits[record.run] = False
    return [run for run, still in waits.items() if still]


def _is_awaited(ledger: Ledger, run: str, earlier: Sequence[str]) -> bool:
    """Whether one of the runs just before says that it began this one, which says nothing yet."""
    for each in reversed(earlier[-_LOOKED_AT:]):
        try:
            for record in records_of(ledger, each):
                if isinstance(record, ChildBegun) and record.run == run:
                    return True
        except LedgerError:
            continue
    return False


def _is_of_steps(ledger: Ledger, run: str) -> bool:
    """Whether a chain is of steps. Its headers say so, also where bodies were erased."""
    try:
        first = next(ledger.read(run, stop=1), None)
        return first is not None and _decode_header(first.header).tag.startswith(_STEPS)
    except (LedgerError, *UNREADABLE):
        return False


# What the record of a run says to whoever goes on with it: where it stands, and what it holds.


def start_now(records: Sequence[Record]) -> RunStarted:
    """The start of a run as it counts now: with the limits, and of a fork the model, it has."""
    if not records or not isinstance(records[0], RunStarted):
        raise LedgerError("the run does not begin with its start")
    started = records[0]
    for record in records:
        if isinstance(record, Continuation):
            started = changed(started, record)
    return started


def holder_of(records: Sequence[Record]) -> str:
    """The session that holds the attachments of a run: its own, or that of the last fork."""
    holder = ""
    for record in records:
        if isinstance(record, RunStarted | RunForked):
            holder = record.session_id
    return holder


def holds_of(records: Sequence[Record]) -> tuple[dict[int, Amount], set[int]]:
    """What the calls of a run held of the shared scope, by number: as they ended, and all begun."""
    numbers: dict[tuple[int, int, int], int] = {}
    ended: dict[int, Amount] = {}
    for record in records:
        if isinstance(record, AskModel | QueryAsked):
            if record.reserved is not None and record.reserved.hold:
                numbers[place_of_call(record)] = record.reserved.hold
        elif isinstance(record, ModelReplied | ModelFailed | QueryReplied | QueryFailed):
            number = numbers.get(place_of_call(record))
            if number is not None:
                ended[number] = Amount.of_charge(spent_by(record))
    return ended, set(numbers.values())


def spent_by(event: ModelReplied | ModelFailed | QueryReplied | QueryFailed) -> Charge:
    """What a call took from the budget. One whose hold was given back was made, and took none."""
    charge = charge_of(event)
    returned = event.settled is not None and event.settled.figures == "returned"
    return msgspec.structs.replace(charge, model_calls=0) if returned else charge


def place_of_call(
    record: AskModel | QueryAsked | ModelReplied | ModelFailed | QueryReplied | QueryFailed,
) -> tuple[int, int, int]:
    """Return what the records of one attempt at a model call have in common."""
    if isinstance(record, AskModel | ModelReplied | ModelFailed):
        return record.intent, -1, 0
    return record.intent, record.item, record.attempt


def skip_answered(model: Model, records: Sequence[Record]) -> None:
    """Put a model that answers by position, as those of tests do, behind the calls it answered."""
    skip = getattr(model, "skip", None)
    if skip is not None:
        own = {
            (each.intent, each.item)
            for each in records
            if isinstance(each, QueryAsked) and each.model == model.name
        }
        skip(sum(_is_answer(each, own) for each in records))


def _is_answer(record: Record, own: Collection[tuple[int, int]]) -> bool:
    if isinstance(record, QueryReplied | QueryFailed) and (record.intent, record.item) not in own:
        return False
    if isinstance(record, ModelFailed | QueryFailed):
        return record.reason not in (LEFT, DOUBTED)
    return isinstance(record, ModelReplied | QueryReplied)


# The records of a run, found by what they belong to.


Kind = TypeVar("Kind", AskModel, ModelRefused, ProgramFinished, SnapshotTaken, FilesKept)


class RunRecords:
    """What was asked, answered and run; each by the intent it belongs to."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.asked = _by_intent(records, AskModel)
        self.replies: dict[int, ModelReplied | ModelFailed] = {
            each.intent: each for each in records if isinstance(each, ModelReplied | ModelFailed)
        }
        self.refused = _by_intent(records, ModelRefused)
        self.programs = {each.intent for each in records if isinstance(each, RunProgram)}
        self.finished = _by_intent(records, ProgramFinished)
        self.snapshots = _by_intent(records, SnapshotTaken)
        self.files = _by_intent(records, FilesKept)
        calls = [each for each in records if isinstance(each, CallHost)]
        # How often each effect was begun.
        self.effects = {each.intent: each.attempt for each in calls}
        # The host calls of each program that were answered, in their order.
        self.answers: dict[int, list[HostAnswered]] = {}
        answered = [each for each in records if isinstance(each, HostAnswered)]
        for each in answered:
            self.answers.setdefault(each.program, []).append(each)
        # The effects of each program that have no answer.
        self.unanswered: dict[int, list[CallHost]] = {}
        known = {each.intent for each in answered}
        for call in calls:
            if call.intent not in known and call.attempt == 1:
                self.unanswered.setdefault(call.program, []).append(call)
        self.queries = _queries_by_program(records)
        places = [place for place, each in enumerate(records) if isinstance(each, Continuation)]
        self._continued_at = max(places, default=-1)
        self._replied_at = {
            each.intent: place
            for place, each in enumerate(records)
            if isinstance(each, ModelReplied | ModelFailed | ProgramFinished)
        }
        # How it ended, unless it was gone on with.
        ends = [each for each in records[self._continued_at + 1 :] if isinstance(each, RunEnded)]
        self.ended = ends[-1] if ends else None

    def continued_after(self, intent: int) -> bool:
        """Whether the run was gone on with after a model call, or a program, had its outcome."""
        return self._replied_at.get(intent, -1) < self._continued_at


def _by_intent(records: Sequence[Record], kind: type[Kind]) -> dict[int, Kind]:
    return {each.intent: each for each in records if isinstance(each, kind)}


def _queries_by_program(records: Sequence[Record]) -> dict[int, list[QueryRecord]]:
    """The model calls of each program, in the order they were written."""
    found: dict[int, list[QueryRecord]] = {}
    running = 0
    for record in records:
        if isinstance(record, RunProgram):
            running = record.intent
        elif isinstance(record, QueryRecord):
            found.setdefault(running, []).append(record)
    return found


# What records say of sessions and attachments: whose a session is, and which bytes are needed.


_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def own_session(ledger: Ledger, run: str) -> str | None:
    """The session that is this run's alone; None if it has none, or its start was erased."""
    session_id = session_of(ledger, run)
    if session_id is None or not is_ulid(session_id):
        return None
    return None if other_run_of(ledger, session_id, run) else session_id


def session_in(entry: Sealed) -> str | None:
    """The session that a first entry names."""
    if entry.body is None:
        return None
    try:
        record = decode_record(entry.body)
    except _UNREADABLE:
        return None
    return record.session_id if isinstance(record, RunStarted | RunForked) else None


def session_of(ledger: Ledger, run: str) -> str | None:
    try:
        first = next(ledger.read(run, stop=1), None)
    except LedgerCorrupt:
        return None
    return None if first is None else session_in(first)


def other_run_of(ledger: Ledger, session_id: str, run: str) -> str | None:
    """Another run that names this session."""
    named = session_id.encode()
    for row in ledger.runs():
        if row.run == run:
            continue
        try:
            first = next(ledger.read(row.run, stop=1), None)
        except LedgerError:
            continue  # removed just now, or damaged: then it says nothing
        if first is None or named not in (first.body or b""):
            continue
        if session_in(first) == session_id:
            return row.run
    return None


def mentions(entry: Sealed) -> Iterator[AttachmentRef]:
    """Every attachment that a record refers to.

    Looked for in the record as it is decoded, where a reference is one by its type. In the JSON,
    what a model's server reported or a program printed could look like one.
    """
    body = entry.body
    # Most records refer to none. A name may also be written in escapes.
    if body is None or (b"byte_len" not in body and b"\\u" not in body):
        return
    try:
        record = decode_record(body)
    except _UNREADABLE:
        return
    yield from _references(record)


def references_in(record: Record) -> Iterator[AttachmentRef]:
    """Every attachment that a record refers to."""
    yield from _references(record)


def put_id_in(record: Record) -> str | None:
    """Return the id of what a program put among the attachments, if a record answers that."""
    if not isinstance(record, HostAnswered) or record.name != "attachments.put" or not record.ok:
        return None
    try:
        said = msgspec.json.decode(record.reply[1:])
    except _UNREADABLE:
        return None
    found = said.get("id") if isinstance(said, dict) else None
    return found if isinstance(found, str) else None


def _references(value: object) -> Iterator[AttachmentRef]:
    """In order, as deep as the types of records go: what they hold freely is passed over."""
    match value:
        case SnapshotTaken():
            # It only saves time: whoever does not have it runs the programs again.
            return
        case AttachmentRef():
            yield value
        case msgspec.Struct():
            for field in value.__struct_fields__:
                yield from _references(getattr(value, field))
        case tuple():
            for each in value:
                yield from _references(each)
        case _:
            pass


def spent_so_far(ledger: Ledger, run: str) -> Charge:
    """What a run that was cut off has spent, with what is held for calls that nobody heard of."""
    try:
        records = list(records_of(ledger, run))
    except LedgerError:
        return Charge()
    if records and isinstance(records[-1], RunEnded):
        return records[-1].charge
    total = Charge()
    for record in records:
        total += _charge(record)
    for call in open_calls(records):
        if isinstance(call, AskModel | QueryAsked) and call.reserved is not None:
            total += Charge(tokens_in=call.reserved.tokens_in, tokens_out=call.reserved.tokens_out)
    return total


def _charge(record: Record) -> Charge:
    if isinstance(record, ModelReplied | ModelFailed):
        return msgspec.structs.replace(charge_of(record), wall_ms=record.wall_ms)
    if isinstance(record, QueryReplied | QueryFailed | ChildEnded):
        return charge_of(record)
    return Charge(wall_ms=record.wall_ms) if isinstance(record, ProgramFinished) else Charge()


# The template of a run that came from such a log: it has no prompts of ours.
RLMS_TEMPLATE = "rlms-log"
FROM_RLMS_LOG = "from a log of rlms"

_FOREIGN = (
    f"came {FROM_RLMS_LOG}, which has neither its requests nor its interpreter: it can be read and "
    "verified, not replayed or gone on with"
)


def refuse_foreign(run: str, started: RunStarted) -> None:
    """Refuse to replay, resume or fork a run that came from such a log."""
    if started.template == RLMS_TEMPLATE:
        raise ResumeRefused(run=run, why=_FOREIGN)
