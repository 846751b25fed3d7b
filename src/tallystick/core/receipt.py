"""How a receipt is computed: from the records alone, one after another.

Whoever has the records can compute it again, and a replay does.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tallystick.core.canonical import canonical, digest
from tallystick.core.receipt_records import SCHEMA, ModelLine, Receipt, ReceiptStatus
from tallystick.core.records import (
    AskModel,
    CallHost,
    HostAnswered,
    ModelFailed,
    ModelRefused,
    ModelReplied,
    QueryAsked,
    QueryFailed,
    QueryRefused,
    QueryReplied,
    Record,
    Reserved,
    RunEnded,
    RunForked,
    RunStarted,
    Settled,
    StopReason,
)

__all__ = ["Tally"]

_STATUS: dict[StopReason, ReceiptStatus] = {
    "answered": "success",
    "refused": "denied",
    "budget": "denied",
    "cancelled": "cancelled",
}
_Ended = ModelReplied | ModelFailed | QueryReplied | QueryFailed
_Key = tuple[int, int, int]


@dataclass(slots=True)
class _Line:
    price: str = "unknown"
    calls: int = 0
    failed: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    usd: int = 0
    unpriced: int = 0
    flags: Counter[str] = field(default_factory=Counter)


class Tally:
    """Counts the records of one run."""

    def __init__(self) -> None:
        self._model = ""
        self._lines: dict[str, _Line] = {}
        self._open: dict[_Key, tuple[str, str]] = {}
        self._tools: Counter[str] = Counter()
        self._effects = 0
        self._refused = 0

    def add(self, record: Record) -> None:
        """Count one record, in its turn."""
        match record:
            case RunStarted():
                self._model = record.model
            case RunForked():
                self._model = record.model or self._model
            case AskModel():
                self._open[_key(record)] = self._model, _price(record.reserved)
            case QueryAsked():
                self._open[_key(record)] = record.model, _price(record.reserved)
            case ModelReplied() | ModelFailed() | QueryReplied() | QueryFailed():
                self._settle(record)
            case ModelRefused() | QueryRefused():
                self._refused += 1
            case HostAnswered():
                self._tools[record.name] += 1
            case CallHost():
                self._effects += 1
            case _:
                pass

    def receipt(self, started: RunStarted, ended: RunEnded) -> Receipt:
        """The receipt of a run that has ended."""
        given = [started.goal, started.inputs, started.texts, started.images, started.values]
        return Receipt(
            schema=SCHEMA,
            id=started.session_id,
            status=_STATUS.get(ended.stop, "failure"),
            stop=ended.stop,
            detail=ended.detail,
            started_at=started.started_at,
            completed_at=started.started_at + ended.charge.wall_ms,
            inputs_digest=digest(canonical(given)),
            outputs_digest=digest((ended.answer or "").encode("utf-8", "surrogatepass")),
            models=tuple(_line(name, line) for name, line in sorted(self._lines.items())),
            tool_calls=tuple(sorted(self._tools.items())),
            side_effects=self._effects,
            refused_calls=self._refused,
            charge=ended.charge,
            usd_cap=started.limits.usd,
            parent=started.parent,
            step=started.step,
        )

    def _settle(self, event: _Ended) -> None:
        model, price = self._open.pop(_key(event), (self._model, "unknown"))
        settled = event.settled or _as_reported(event)
        line = self._lines.setdefault(model, _Line())
        line.price = price
        line.calls += 1
        line.failed += isinstance(event, ModelFailed | QueryFailed)
        line.tokens_in += settled.tokens_in
        line.tokens_out += settled.tokens_out
        line.usd += settled.usd or 0
        line.unpriced += settled.usd is None
        line.flags.update(settled.flags)


def _key(record: AskModel | QueryAsked | _Ended) -> _Key:
    if isinstance(record, QueryAsked | QueryReplied | QueryFailed):
        return record.intent, record.item, record.attempt
    return record.intent, 0, 0


def _price(reserved: Reserved | None) -> str:
    return "unknown" if reserved is None else reserved.price


def _as_reported(event: _Ended) -> Settled:
    """For runs from before attempts were settled."""
    used = event.usage
    return Settled(
        figures="reported",
        tokens_in=0 if used is None else used.tokens_in,
        tokens_out=0 if used is None else used.tokens_out,
    )


def _line(model: str, line: _Line) -> ModelLine:
    return ModelLine(
        model=model,
        calls=line.calls,
        failed=line.failed,
        tokens_in=line.tokens_in,
        tokens_out=line.tokens_out,
        usd=line.usd,
        unpriced=line.unpriced,
        price=line.price,
        flags=tuple(sorted(line.flags.items())),
    )
