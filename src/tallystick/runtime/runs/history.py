"""Find the runs of a ledger by name, and read their records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from tallystick.core.chain import Sealed, time_of
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

# The number of rows that are searched for the parent of a child. Between the two there are at most
# the live siblings of the child.
_LOOKED_AT = 64
_OUTERMOST = RunFilter(outermost=True)
# The errors of bodies that are no records of this version.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


NOT_BEGUN = "was not begun: its process ended before anything of it was written; run it again"


def records_of(ledger: Ledger, run: str) -> Iterator[Record]:
    """Yield the records of a run. Entries whose body was removed are skipped.

    The records that a fork shares with its parent are not included. Raise `RecordUnreadable` for a
    body that is no record of this version.
    """
    for seq, sealed in enumerate(ledger.read(run)):
        if sealed.body is not None:
            yield _record_of(sealed.body, run, seq)


def timed_records(ledger: Ledger, run: str) -> Iterator[tuple[int | None, Record]]:
    """Yield the records of a run as `records_of` does, each with the time when it was appended.

    A time is in milliseconds since 1970, by the clock of the machine that wrote it. It is None for
    an entry of an older version, and for the entries of an imported log.
    """
    for seq, sealed in enumerate(ledger.read(run)):
        if sealed.body is not None:
            yield time_of(sealed), _record_of(sealed.body, run, seq)


def whole_records(ledger: Ledger, run: str) -> list[Record]:
    """Return all records of a run. Those that a fork shares with its parents come first.

    Raise `ResumeRefused` if a body was removed, and `LedgerError` if a run is its own ancestor.
    Raise `RecordUnreadable` for a body that is no record of this version.
    """
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
    """Return the id of a run or a chain of steps: by its id, the start of its id, or `last`.

    Raise `RunNotFound` if none matches, and `UsageError` if several do or the name is empty. For
    `last`, raise `UsageError` if the ledger has no run that no program began.
    """
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
        raise UsageError(
            f"{named!r} matches {many} runs; type more characters of the id (tally ls lists them)"
        )
    if not found:
        raise RunNotFound(run=named)
    return found[0].run


def _last_run(ledger: Ledger) -> str:
    """Return the newest run that no program began. Raise `UsageError` if there is none.

    A chain of steps does not count. Nor does a run without an entry that another one began.
    """
    after = ""
    while page := ledger.runs(_OUTERMOST, after=after, most=_LOOKED_AT, newest_first=True):
        for row in page:
            if not row.steps and (row.head.count or not _is_awaited(ledger, row.run)):
                return row.run
        after = page[-1].run
    raise UsageError("there is no run yet")


def recorded_model(ledger: Ledger, named: str) -> RecordedModel:
    """Return a model that repeats the replies of a recorded run.

    `named` is as in `resolve_run`, whose errors are raised. Raise `UsageError` for a chain of
    steps, and `RecordUnreadable` for a body that is no record of this version.
    """
    # Imported here: most runs have another model.
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
    """Return the ids of runs that were begun inside a chain of steps. Erased ones are left out."""
    return [row.run for row in ledger.runs(RunFilter(parent=chain)) if not row.erased]


def require_not_awaited(ledger: Ledger, run: str) -> None:
    """Raise `UsageError` if the run that began this one may still be resumed.

    It would then start this run again, and pay for it again. A parent that was answered, erased,
    moved or imported is not resumed.
    """
    begun = ledger.row(run)
    row = None if begun is None or begun.caller is None else ledger.row(begun.caller)
    if row is None or row.moved or row.imported or not row.head.count:
        return
    if not (row.erased or row.stop == "answered"):
        raise UsageError(
            f"run {run} was begun by run {row.run}, which can still be resumed: remove that first"
        )


def require_no_children(ledger: Ledger, run: str) -> None:
    """Raise `UsageError` if a run waits for child runs.

    The children would not move with it, so its resume would pay for them again. Raise
    `RecordUnreadable` if the run cannot be read.
    """
    waits = History(list(records_of(ledger, run))).awaited_children
    if waits:
        raise UsageError(
            f"run {run} was cut off inside run {waits[0]}, which does not move with it; "
            f"resume it here"
        )


def _is_awaited(ledger: Ledger, run: str) -> bool:
    """Return True if one of the runs just before recorded that it began this one.

    `run` has no entry of its own yet. A run that cannot be read is skipped.
    """
    for row in ledger.runs(after=run, most=_LOOKED_AT, newest_first=True):
        try:
            for record in records_of(ledger, row.run):
                if isinstance(record, ChildBegun) and record.run == run:
                    return True
        except LedgerError:
            continue
    return False


def skip_answered(model: Model, *histories: History) -> None:
    """Advance a model that answers by position, as in tests, past the calls that it answered.

    Such a model has a method `skip`. Other models are left alone.
    """
    skip = getattr(model, "skip", None)
    if skip is not None:
        skip(sum(each.answers_of(model.name) for each in histories))


# -- holders of attachments, and the attachments that records refer to --------------------------


_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def own_session(ledger: Ledger, run: str) -> str | None:
    """Return the holder of attachments that only this run names.

    Return None if another run names it too, if its name is no ULID, or if the first entry of this
    run cannot be read. Raise `RunNotFound` if the run is not here.
    """
    session_id = session_of(ledger, run)
    if session_id is None or not is_ulid(session_id):
        return None
    return None if other_run_of(ledger, session_id, run) else session_id


def session_in(entry: Sealed) -> str | None:
    """Return the holder of attachments that a first entry names; None if it cannot be read."""
    if entry.body is None:
        return None
    try:
        record = decode_record(entry.body)
    except _UNREADABLE:
        return None
    return record.session_id if isinstance(record, RunStarted | RunForked) else None


def session_of(ledger: Ledger, run: str) -> str | None:
    """Return the holder that the first entry of a run names; None if it cannot be read.

    Raise `RunNotFound` if the run is not here.
    """
    try:
        first = next(ledger.read(run, stop=1), None)
    except LedgerCorrupt:
        return None
    return None if first is None else session_in(first)


def other_run_of(ledger: Ledger, session_id: str, run: str) -> str | None:
    """Return the id of another run that names this holder of attachments; None if there is none.

    Raise what `session_of` raises.
    """
    for row in ledger.runs(RunFilter(session=session_id)):
        if row.run != run and session_of(ledger, row.run) == session_id:
            return row.run
    return None


def mentions(entry: Sealed) -> Iterator[AttachmentRef]:
    """Yield each attachment that the record of an entry refers to, without snapshots.

    The search is in the decoded record, where a reference has its own type. In the JSON, a report
    of a model's server or the output of a program could look like a reference. An entry that cannot
    be read yields none.
    """
    body = entry.body
    # A quick test: most records refer to none. JSON may also write a name in escapes.
    if body is None or (b"byte_len" not in body and b"\\u" not in body):
        return
    try:
        record = decode_record(body)
    except _UNREADABLE:
        return
    yield from _references(record)


def references_in(record: Record) -> Iterator[AttachmentRef]:
    """Yield each attachment that a record refers to, without snapshots, which only save time."""
    yield from _references(record)


def put_id_in(record: Record) -> str | None:
    """Return the id of the attachment that a program put, if this record is the answer to that.

    Else return None.
    """
    if not isinstance(record, HostAnswered) or record.name != "attachments.put" or not record.ok:
        return None
    try:
        said = msgspec.json.decode(record.reply[1:])
    except _UNREADABLE:
        return None
    found = said.get("id") if isinstance(said, dict) else None
    return found if isinstance(found, str) else None


def _references(value: object) -> Iterator[AttachmentRef]:
    """Yield the references in a value, in order. Lists and dictionaries are not searched."""
    match value:
        case SnapshotTaken():
            # A snapshot only saves time: without it, the programs run again.
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
    """Return what a run has spent so far, with what its open calls have reserved.

    For a run that has ended, this is its recorded charge. If the run cannot be read, it is empty.
    """
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
            total += Charge(
                usd=call.reserved.usd,
                tokens_in=call.reserved.tokens_in,
                tokens_out=call.reserved.tokens_out,
                model_calls=1,
            )
    return total


def _charge(record: Record) -> Charge:
    if isinstance(record, ModelReplied | ModelFailed):
        return msgspec.structs.replace(charge_of(record), wall_ms=record.wall_ms)
    if isinstance(record, QueryReplied | QueryFailed | ChildEnded):
        return charge_of(record)
    return Charge(wall_ms=record.wall_ms) if isinstance(record, ProgramFinished) else Charge()


# The template of a run that was imported from a log of rlms: it has no prompts of this package.
RLMS_TEMPLATE = "rlms-log"
FROM_RLMS_LOG = "from a log of rlms"

_FOREIGN = (
    f"came {FROM_RLMS_LOG}, which has neither its requests nor its interpreter: it can be read and "
    "verified, but not replayed, resumed or forked"
)


def refuse_foreign(run: str, started: RunStarted) -> None:
    """Raise `ResumeRefused` for a run that was imported from a log of rlms.

    Such a run cannot be replayed, resumed or forked.
    """
    if started.template == RLMS_TEMPLATE:
        raise ResumeRefused(run=run, why=_FOREIGN)
