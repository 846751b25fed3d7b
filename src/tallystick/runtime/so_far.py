"""What the record of a run says to whoever goes on with it: where it stands, and what it holds."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from tallystick.core.budget_amount import Amount
from tallystick.core.caps import charge_of
from tallystick.core.errors import LedgerError
from tallystick.core.passage import changed
from tallystick.core.records import (
    DOUBTED,
    LEFT,
    AskModel,
    Charge,
    ModelFailed,
    ModelReplied,
    QueryAsked,
    QueryFailed,
    QueryReplied,
    Record,
    RunForked,
    RunStarted,
)
from tallystick.model.port import Model
from tallystick.runtime.pen import Passage

__all__ = ["holder_of", "holds_of", "skip_answered", "spent_by", "start_now"]


def start_now(records: Sequence[Record]) -> RunStarted:
    """The start of a run as it counts now: with the limits, and of a fork the model, it has."""
    if not records or not isinstance(records[0], RunStarted):
        raise LedgerError("the run does not begin with its start")
    started = records[0]
    for record in records:
        if isinstance(record, Passage):
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
                numbers[_place(record)] = record.reserved.hold
        elif isinstance(record, ModelReplied | ModelFailed | QueryReplied | QueryFailed):
            number = numbers.get(_place(record))
            if number is not None:
                ended[number] = Amount.of_charge(spent_by(record))
    return ended, set(numbers.values())


def spent_by(event: ModelReplied | ModelFailed | QueryReplied | QueryFailed) -> Charge:
    """What a call took from the budget. One whose hold was given back was made, and took none."""
    charge = charge_of(event)
    returned = event.settled is not None and event.settled.figures == "returned"
    return msgspec.structs.replace(charge, model_calls=0) if returned else charge


def _place(
    record: AskModel | QueryAsked | ModelReplied | ModelFailed | QueryReplied | QueryFailed,
) -> tuple[int, int, int]:
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
