"""Runs that a ledger holds: found by name, read record by record, asked again as a model."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tallystick.core.chain import Header, Sealed
from tallystick.core.errors import LedgerError, RunNotFound, UsageError
from tallystick.core.passage_errors import ResumeRefused
from tallystick.core.records import (
    AskModel,
    ModelFailed,
    ModelReplied,
    Record,
    RunForked,
    RunStarted,
    decode_record,
)
from tallystick.core.step_receipt import holds_steps
from tallystick.ledger.port import Ledger
from tallystick.model.recorded import RecordedModel

__all__ = [
    "is_child",
    "recorded_model",
    "records_of",
    "resolve_run",
    "runs_inside",
    "whole_records",
]

_STEPS = "step."
_CALLED = b'"caller":{'
_decode_header = msgspec.json.Decoder(Header).decode
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def records_of(ledger: Ledger, run: str) -> Iterator[Record]:
    """The records of a run, as far as their bodies are still there."""
    for sealed in ledger.read(run):
        if sealed.body is not None:
            yield decode_record(sealed.body)


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
        own = [_required(sealed, next_run) for sealed in ledger.read(next_run, stop=stop)]
        parts.append(own)
        forked = own[0] if own else None
        next_run = stop = None
        if isinstance(forked, RunForked):
            next_run, stop = forked.parent, forked.count
    return [record for own in reversed(parts) for record in own]


def _required(sealed: Sealed, run: str) -> Record:
    if sealed.body is None:
        raise ResumeRefused(run=run, why="was pruned: its records are gone")
    return decode_record(sealed.body)


def resolve_run(ledger: Ledger, named: str) -> str:
    """A run or a chain of steps by its id, the beginning of it, or the `last` run."""
    if not named.strip():
        raise UsageError("name a run: its id, the beginning of it, or last")
    runs = [row.run for row in ledger.runs()]
    if named == "last":
        for run in reversed(runs):
            if not _is_of_steps(ledger, run) and not is_child(ledger, run):
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
        except (LedgerError, *_UNREADABLE):
            continue  # removed just now, or damaged: then it says nothing
        if isinstance(started, RunStarted) and started.parent == chain:
            found.append(row.run)
    return found


def is_child(ledger: Ledger, run: str) -> bool:
    """Whether a run was begun by a program of another."""
    try:
        first = next(ledger.read(run, stop=1), None)
        if first is None or first.body is None or _CALLED not in first.body:
            return False
        started = decode_record(first.body)
    except (LedgerError, *_UNREADABLE):
        return False
    return isinstance(started, RunStarted) and started.caller is not None


def _is_of_steps(ledger: Ledger, run: str) -> bool:
    """Whether a chain is of steps. Its headers say so, also where bodies were erased."""
    try:
        first = next(ledger.read(run, stop=1), None)
        return first is not None and _decode_header(first.header).tag.startswith(_STEPS)
    except (LedgerError, *_UNREADABLE):
        return False
