"""What came before in a session: read from the ledger, told to the model in short, counted.

The book names runs, and the ledger says what they were. So what is pruned or removed there is told
to nobody any more. What a run is told is written into its start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tallystick.core.caps import charge_of
from tallystick.core.charge import Charge
from tallystick.core.errors import LedgerError
from tallystick.core.open_intents import open_calls
from tallystick.core.records import (
    AskModel,
    ChildEnded,
    ModelFailed,
    ModelReplied,
    ProgramFinished,
    QueryAsked,
    QueryFailed,
    QueryReplied,
    Record,
    RunEnded,
    RunStarted,
    StopReason,
    decode_record,
)
from tallystick.ledger.port import Ledger, find_row
from tallystick.runtime.history import UNREADABLE, records_of

__all__ = ["EarlierRun", "earlier_runs", "spent_so_far", "told_of"]

TOLD_MAX = 5
_GOAL_CHARS_MAX = 200
_ANSWER_CHARS_MAX = 400


class EarlierRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run as the ledger has it now. `goal` is None of one that was pruned or removed.

    `stop` is None of one that is running, or was cut off.
    """

    run: str
    goal: str | None = None
    stop: StopReason | None = None
    answer: str | None = None


def earlier_runs(ledger: Ledger, runs: Iterable[str]) -> list[EarlierRun]:
    """Runs by their ids, as far as the ledger still has them."""
    return [_earlier(ledger, run) for run in runs]


def told_of(earlier: Sequence[EarlierRun]) -> str:
    """What a model is told of earlier runs: the last few that have an answer, each in a line."""
    answered = [each for each in earlier if each.goal is not None and each.stop == "answered"]
    if not answered:
        return ""
    lines = [
        f"- {_short(each.goal or '', _GOAL_CHARS_MAX)!r}: "
        f"{_short(each.answer or '', _ANSWER_CHARS_MAX)!r}"
        for each in answered[-TOLD_MAX:]
    ]
    return "\n".join(["Earlier tasks of this session, and their answers:", *lines])


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


def _earlier(ledger: Ledger, run: str) -> EarlierRun:
    row = find_row(ledger, run)
    if row is None or not row.head.count:
        return EarlierRun(run=run)
    try:
        first = _record(ledger, run, 0)
        last = _record(ledger, run, row.head.count - 1)
    except (LedgerError, *UNREADABLE):
        return EarlierRun(run=run)
    ended = last if isinstance(last, RunEnded) else None
    return EarlierRun(
        run=run,
        goal=first.goal if isinstance(first, RunStarted) else None,
        stop=None if ended is None else ended.stop,
        answer=None if ended is None else ended.answer,
    )


def _record(ledger: Ledger, run: str, seq: int) -> Record | None:
    sealed = next(ledger.read(run, start=seq, stop=seq + 1), None)
    return None if sealed is None or sealed.body is None else decode_record(sealed.body)


def _short(text: str, chars_max: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= chars_max else f"{flat[: chars_max - 4]} ..."
