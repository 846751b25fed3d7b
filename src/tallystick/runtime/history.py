"""Runs that a ledger holds: found by name, read record by record, asked again as a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from tallystick.core.chain import Header, Sealed
from tallystick.core.child_records import CUT_OFF
from tallystick.core.errors import LedgerError, RecordUnreadable, RunNotFound, UsageError
from tallystick.core.passage_errors import ResumeRefused
from tallystick.core.records import (
    AskModel,
    ChildBegun,
    ChildEnded,
    HostAnswered,
    ModelFailed,
    ModelReplied,
    ProgramFinished,
    Record,
    RunEnded,
    RunForked,
    RunPruned,
    RunStarted,
    decode_record,
)
from tallystick.core.step_receipt import holds_steps
from tallystick.ledger.port import Ledger, find_row
from tallystick.model.recorded import RecordedModel

__all__ = [
    "UNREADABLE",
    "awaited_children",
    "is_child",
    "recorded_model",
    "records_of",
    "require_no_children",
    "require_not_awaited",
    "resolve_run",
    "runs_inside",
    "whole_records",
]

_STEPS = "step."
_CALLED = b'"caller":{'
# A child has little between its parent and itself: at most its live siblings.
_LOOKED_AT = 64
_decode_header = msgspec.json.Decoder(Header).decode
# What bodies raise that are no records of this version.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


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
