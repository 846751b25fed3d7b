"""Compute receipts of runs and of chains of steps from the records alone.

Rule: the records may come from anyone. Nesting follows from the paths, and a path is always longer
than the one around it. So this ends whatever a file holds, and each step is in it once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from tallystick.core.charge import Reserved, Settled
from tallystick.core.json_text import canonical, digest
from tallystick.core.records import (
    SCHEMA,
    Approval,
    AskModel,
    CallDecided,
    CallHost,
    CallWaiting,
    HostAnswered,
    ModelFailed,
    ModelLine,
    ModelRefused,
    ModelReplied,
    ProgramChecked,
    QueryAsked,
    QueryFailed,
    QueryRefused,
    QueryReplied,
    Receipt,
    ReceiptStatus,
    Record,
    RunEnded,
    RunForked,
    RunResumed,
    RunStarted,
    StepEntered,
    StepLeft,
    StepReceipt,
    StopReason,
)
from tallystick.core.step import in_units

# Receipts of runs. Anyone with the records can compute a receipt again, and a replay does.


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
        self._waiting: ProgramChecked | CallWaiting | None = None
        self._approvals: list[Approval] = []

    def add(self, record: Record) -> None:
        """Count one record. Records have to come in their order. Other kinds change nothing."""
        match record:
            case RunStarted():
                self._model = record.model
            case RunForked():
                self._model = record.model or self._model
            case AskModel():
                # The model is noted now: a fork may change it before the outcome.
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
            case ProgramChecked() | CallWaiting() | RunResumed() | CallDecided():
                self._note_decision(record)
            case _:
                pass

    def receipt(self, started: RunStarted, ended: RunEnded) -> Receipt:
        """Return the receipt of a run that has ended, from what was counted so far.

        It counts attempts with an outcome. `completed_at` is the start and the time that was used.
        """
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
            models=tuple(_model_line(name, line) for name, line in sorted(self._lines.items())),
            tool_calls=tuple(sorted(self._tools.items())),
            side_effects=self._effects,
            refused_calls=self._refused,
            charge=ended.charge,
            usd_cap=started.limits.usd,
            parent=started.parent,
            step=started.step,
            # Receipts from before there were any are computed again by replays, and compared.
            approvals=(_lists_approvals(started) and self.approvals) or msgspec.UNSET,
        )

    @property
    def approvals(self) -> tuple[Approval, ...]:
        """The decisions of persons among the records so far."""
        return tuple(self._approvals)

    def _note_decision(
        self, record: ProgramChecked | CallWaiting | RunResumed | CallDecided
    ) -> None:
        if isinstance(record, ProgramChecked | CallWaiting):
            self._waiting = record
            return
        waited = self._waiting
        if record.decision is None or waited is None:
            return
        if isinstance(waited, CallWaiting):
            self._approvals.append(
                Approval(
                    decision=record.decision,
                    by=record.by,
                    at=record.at,
                    turn=waited.turn,
                    part=0,
                    sha256=waited.request_sha256,
                    name=waited.name,
                    because=record.because or msgspec.UNSET,
                )
            )
            return
        self._approvals.append(
            Approval(
                decision=record.decision,
                by=record.by,
                at=record.at,
                turn=waited.turn,
                part=waited.part,
                sha256=waited.sha256,
            )
        )

    def _settle(self, event: _Ended) -> None:
        model, price = self._open.pop(_key(event), (self._model, "unknown"))
        settled = event.settled or _settled_as_reported(event)
        line = self._lines.setdefault(model, _Line())
        line.price = price
        line.calls += 1
        line.failed += isinstance(event, ModelFailed | QueryFailed)
        line.tokens_in += settled.tokens_in
        line.tokens_out += settled.tokens_out
        line.usd += settled.usd or 0
        line.unpriced += settled.usd is None and settled.figures != "returned"
        line.flags.update(settled.flags)


def _lists_approvals(started: RunStarted) -> bool:
    """Return True if the receipts of a run list the decisions of persons."""
    return started.vocabulary is not None and started.vocabulary.reading > 1


def _key(record: AskModel | QueryAsked | _Ended) -> _Key:
    if isinstance(record, QueryAsked | QueryReplied | QueryFailed):
        return record.intent, record.item, record.attempt
    return record.intent, 0, 0


def _price(reserved: Reserved | None) -> str:
    return "unknown" if reserved is None else reserved.price


def _settled_as_reported(event: _Ended) -> Settled:
    """Return a settlement from reported usage, for runs from before attempts were settled."""
    used = event.usage
    return Settled(
        figures="reported",
        tokens_in=0 if used is None else used.tokens_in,
        tokens_out=0 if used is None else used.tokens_out,
    )


def _model_line(model: str, line: _Line) -> ModelLine:
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


# Chains of steps: their nesting, their receipts, and their sums.


_HARN_STATUS = {
    "completed": "success",
    "skipped": "noop",
    "escalated": "failure",
    "failed": "failure",
}


class StepLine(msgspec.Struct, frozen=True, kw_only=True):
    """One step: its depth, and its receipt if it was left."""

    path: str
    name: str
    depth: int
    missed: int
    receipt: StepReceipt | None

    @property
    def status(self) -> str:
        """The status in the receipt, or `open` without one."""
        return "open" if self.receipt is None else self.receipt.status


class StepTotals(msgspec.Struct, frozen=True):
    """The sums of steps. `usd` is in nano-dollars, of the priced calls only."""

    input_tokens: int = 0
    output_tokens: int = 0
    usd: int = 0
    unpriced: int = 0
    llm_calls: int = 0

    def plus(self, receipt: StepReceipt, times: int = 1) -> StepTotals:
        """Return the sums with a receipt added `times` times; -1 subtracts it."""
        return StepTotals(
            self.input_tokens + times * receipt.input_tokens,
            self.output_tokens + times * receipt.output_tokens,
            self.usd + times * receipt.usd,
            self.unpriced + times * receipt.unpriced,
            self.llm_calls + times * receipt.llm_calls,
        )


def holds_steps(records: Sequence[Record]) -> bool:
    """Return True if a chain is one of steps, by the first of its records."""
    return bool(records) and isinstance(records[0], StepEntered | StepLeft)


def step_lines(records: Iterable[Record]) -> list[StepLine]:
    """Return the steps of a chain, each after the step around it.

    The first record of entering a step counts, and its last receipt: a chain that was resumed may
    have several. A step that was entered again since is open again.
    """
    entered: dict[str, StepEntered] = {}
    left: dict[str, StepReceipt] = {}
    order: dict[str, None] = {}
    for record in records:
        match record:
            case StepEntered():
                entered.setdefault(record.path, record)
                left.pop(record.path, None)
                order.setdefault(record.path)
            case StepLeft():
                left[record.receipt.path] = record.receipt
                order.setdefault(record.receipt.path)
            case _:
                pass
    return [
        StepLine(
            path=path,
            name=entered[path].name if path in entered else left[path].name,
            depth=depth,
            missed=entered[path].missed if path in entered else 0,
            receipt=left.get(path),
        )
        for path, depth in _by_nesting(order)
    ]


def step_totals(lines: Sequence[StepLine]) -> StepTotals:
    """Return the sum of the outermost receipts that are there, which include all inside them."""
    totals = StepTotals()
    held_by: int | None = None
    for line in lines:
        if held_by is not None and line.depth > held_by:
            continue
        held_by = None
        if line.receipt is not None:
            totals = totals.plus(line.receipt)
            held_by = line.depth
    return totals


def harn_step_fields(chain: str, lines: Sequence[StepLine]) -> dict[str, object]:
    """Return a chain under the names of `harn.receipt.v1`, each step with its own use only.

    Steps without a receipt are left out of its calls. Its `cost_usd` is the whole chain, its name
    and status are those of the first line. Raise `IndexError` if there is no line.
    """
    outermost = lines[0].receipt
    status = "running" if outermost is None else _HARN_STATUS[outermost.status]
    totals = step_totals(lines)
    return {
        "schema": "harn.receipt.v1",
        "id": chain,
        "parent_run_id": None,
        "persona": lines[0].name,
        "step": lines[0].path,
        "trace_id": chain,
        "started_at": None if outermost is None else outermost.started_at,
        "completed_at": None if outermost is None else outermost.completed_at,
        "status": status,
        "inputs_digest": None,
        "outputs_digest": None,
        "model_calls": [
            {
                "name": receipt.name,
                "model": receipt.model,
                "input_tokens": max(0, own.input_tokens),
                "output_tokens": max(0, own.output_tokens),
                "cost_usd": in_units("usd", max(0, own.usd)),
                "llm_calls": max(0, own.llm_calls),
            }
            for receipt, own in _own_use(lines)
        ],
        "tool_calls": [],
        "cost_usd": in_units("usd", totals.usd),
        "approvals": [],
        "handoffs": [],
        "side_effects": 0,
        "error": None if outermost is None else outermost.error,
        "redaction_class": "internal",
        "metadata": {"unpriced_calls": totals.unpriced},
    }


def _by_nesting(paths: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield each path with its depth, after the one around it. Siblings keep their order."""
    inside: dict[str | None, list[str]] = {}
    known = dict.fromkeys(paths)
    for path in known:
        around, slash, _ = path.rpartition("/")
        inside.setdefault(around if slash and around in known else None, []).append(path)
    waiting = [(path, 0) for path in reversed(inside.get(None, []))]
    while waiting:
        path, depth = waiting.pop()
        yield path, depth
        waiting += [(each, depth + 1) for each in reversed(inside.get(path, []))]


def _own_use(lines: Sequence[StepLine]) -> list[tuple[StepReceipt, StepTotals]]:
    """Return each receipt with the sums that are in no receipt inside it."""
    found: list[tuple[StepReceipt, StepTotals]] = []
    # The places in `found` of those around, each with its depth.
    around: list[tuple[int, int]] = []
    for line in lines:
        while around and around[-1][0] >= line.depth:
            around.pop()
        if line.receipt is None:
            continue
        if around:
            place = around[-1][1]
            receipt, own = found[place]
            found[place] = receipt, own.plus(line.receipt, -1)
        around.append((line.depth, len(found)))
        found.append((line.receipt, StepTotals().plus(line.receipt)))
    return found
