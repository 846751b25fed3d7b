"""Runs that a ledger holds: found by name, read record by record, asked again as a model."""

from __future__ import annotations

from collections.abc import Iterator

from tallystick.core.errors import RunNotFound, UsageError
from tallystick.core.records import (
    AskModel,
    ModelFailed,
    ModelReplied,
    Record,
    RunStarted,
    decode_record,
)
from tallystick.ledger.port import Ledger
from tallystick.model.recorded import RecordedModel

__all__ = ["recorded_model", "records_of", "resolve_run"]


def records_of(ledger: Ledger, run: str) -> Iterator[Record]:
    """The records of a run, as far as their bodies are still there."""
    for sealed in ledger.read(run):
        if sealed.body is not None:
            yield decode_record(sealed.body)


def resolve_run(ledger: Ledger, named: str) -> str:
    """A run by its id, the beginning of it, or `last`."""
    runs = [row.run for row in ledger.runs()]
    if named == "last":
        if not runs:
            raise UsageError("there is no run yet")
        return runs[-1]
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
