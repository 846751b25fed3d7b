"""Runs that a ledger holds: found by name, read record by record, and how far each has come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from tallystick.core.chain import Sealed
from tallystick.core.charge import Charge
from tallystick.core.errors import (
    LedgerCorrupt,
    LedgerError,
    RecordUnreadable,
    RunNotFound,
    UsageError,
)
from tallystick.core.history import History
from tallystick.core.ids import is_ulid
from tallystick.core.machine.turn import charge_of
from tallystick.core.records import (
    AskModel,
    AttachmentRef,
    ChildBegun,
    ChildEnded,
    HostAnswered,
    ModelFailed,
    ModelReplied,
    ProgramFinished,
    QueryAsked,
    QueryFailed,
    QueryReplied,
    Record,
    RunEnded,
    RunForked,
    RunStarted,
    SnapshotTaken,
    decode_record,
)
from tallystick.core.resume_errors import ResumeRefused
from tallystick.core.views.open_calls import open_calls
from tallystick.core.views.receipt import holds_steps
from tallystick.ledger.port import Ledger, RunFilter
from tallystick.model.port import Model

if TYPE_CHECKING:
    from tallystick.model.recorded import RecordedModel

# Runs that a ledger holds: found by name, read record by record, asked again as a model.


# A child has little between its parent and itself: at most its live siblings.
_LOOKED_AT = 64
_OUTERMOST = RunFilter(outermost=True)
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
        own = [_require_record(sealed, next_run, seq) for seq, sealed in read]
        parts.append(own)
        forked = own[0] if own else None
        next_run = stop = None
        if isinstance(forked, RunForked):
            next_run, stop = forked.parent, forked.count
    return [record for own in reversed(parts) for record in own]


def _require_record(sealed: Sealed, run: str, seq: int) -> Record:
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
    if named == "last":
        return _last_run(ledger)
    beginning = named.upper()
    row = ledger.row(beginning)
    if row is not None:
        return row.run
    which = RunFilter(prefix=beginning)
    found = ledger.runs(which, most=2)
    if len(found) > 1:
        many = len(ledger.runs(which))
        raise UsageError(f"{named!r} is the beginning of {many} runs; give more of it")
    if not found:
        raise RunNotFound(run=named)
    return found[0].run


def _last_run(ledger: Ledger) -> str:
    """Return the newest run that no program began."""
    after = ""
    while page := ledger.runs(_OUTERMOST, after=after, most=_LOOKED_AT, newest_first=True):
        for row in page:
            if not row.steps and (row.head.count or not _is_awaited(ledger, row.run)):
                return row.run
        after = page[-1].run
    raise UsageError("there is no run yet")


def recorded_model(ledger: Ledger, named: str) -> RecordedModel:
    """A model that says what the model of a recorded run said."""
    # Most runs have another model.
    from tallystick.model.recorded import RecordedModel

    try:
        run = resolve_run(ledger, named)
    except RunNotFound as error:
        advice = f"recorded:{named[:80]} would serve its replies. Name another model: -m MODEL"
        raise RunNotFound(run=named, advice=advice) from error
    records = list(records_of(ledger, run))
    if holds_steps(records):
        raise UsageError(f"{run} holds steps, which have no replies; name one of its runs")
    started = next((record for record in records if isinstance(record, RunStarted)), None)
    return RecordedModel(
        History(records).exchanges,
        name=f"recorded:{run}",
        recorded_name=started.model if started is not None else "",
    )


def runs_inside(ledger: Ledger, chain: str) -> list[str]:
    """The runs here that say of themselves that they were begun inside a chain of steps."""
    return [row.run for row in ledger.runs(RunFilter(parent=chain)) if not row.erased]


def is_child(ledger: Ledger, run: str) -> bool:
    """Return whether a run was begun by a program of another."""
    row = ledger.row(run)
    return row is not None and row.caller is not None


def require_not_awaited(ledger: Ledger, run: str) -> None:
    """Raise if the run that began this one waits for it: it would be begun anew, and paid again."""
    begun = ledger.row(run)
    row = None if begun is None or begun.caller is None else ledger.row(begun.caller)
    if row is None or row.moved or row.imported or not row.head.count:
        return
    if not (row.erased or row.stop == "answered"):
        raise UsageError(
            f"run {run} was begun by run {row.run}, which may be gone on with: remove that first"
        )


def require_no_children(ledger: Ledger, run: str) -> None:
    """Raise if a run waits for others that it began: they would stay behind, and be paid again."""
    waits = History(list(records_of(ledger, run))).awaited_children
    if waits:
        raise UsageError(
            f"run {run} was cut off inside run {waits[0]}, which does not move with it; "
            f"resume it here"
        )


def _is_awaited(ledger: Ledger, run: str) -> bool:
    """Return whether one of the runs just before says that it began this one, which is empty."""
    for row in ledger.runs(after=run, most=_LOOKED_AT, newest_first=True):
        try:
            for record in records_of(ledger, row.run):
                if isinstance(record, ChildBegun) and record.run == run:
                    return True
        except LedgerError:
            continue
    return False


def skip_answered(model: Model, *histories: History) -> None:
    """Put a model that answers by position, as those of tests do, after the calls it answered."""
    skip = getattr(model, "skip", None)
    if skip is not None:
        skip(sum(each.answers_of(model.name) for each in histories))


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
    """Return another run that names this session."""
    for row in ledger.runs(RunFilter(session=session_id)):
        if row.run != run and session_of(ledger, row.run) == session_id:
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
