"""A chain of steps, read: which stood in which, what each came to, and all of them together.

Rule: the records may be anybody's. Nesting is what the paths say, and a path is always longer than
the one around it; so whatever a file holds, this ends, and each step is in it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tallystick.core.records import Record
from tallystick.core.step_errors import in_units
from tallystick.core.step_records import StepEntered, StepLeft, StepReceipt

__all__ = [
    "StepLine",
    "StepTotals",
    "harn_step_fields",
    "holds_steps",
    "step_lines",
    "step_totals",
]

_HARN_STATUS = {
    "completed": "success",
    "skipped": "noop",
    "escalated": "failure",
    "failed": "failure",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """One step: how deep it stands, and its receipt if it was left."""

    path: str
    name: str
    depth: int
    missed: int
    receipt: StepReceipt | None

    @property
    def status(self) -> str:
        return "open" if self.receipt is None else self.receipt.status


@dataclass(frozen=True, slots=True)
class StepTotals:
    """What steps used together. `usd` is in nano-dollars, of the priced calls only."""

    input_tokens: int = 0
    output_tokens: int = 0
    usd: int = 0
    unpriced: int = 0
    llm_calls: int = 0

    def plus(self, receipt: StepReceipt, times: int = 1) -> StepTotals:
        return StepTotals(
            self.input_tokens + times * receipt.input_tokens,
            self.output_tokens + times * receipt.output_tokens,
            self.usd + times * receipt.usd,
            self.unpriced + times * receipt.unpriced,
            self.llm_calls + times * receipt.llm_calls,
        )


def holds_steps(records: Sequence[Record]) -> bool:
    """Whether a chain is one of steps, by the first of its records."""
    return bool(records) and isinstance(records[0], StepEntered | StepLeft)


def step_lines(records: Iterable[Record]) -> list[StepLine]:
    """The steps of a chain, each behind the one it stands in.

    The first record that a step was entered counts, and the last receipt: a chain that was gone on
    with may have several. One that was entered again since is open again.
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
        for path, depth in _nested(order)
    ]


def step_totals(lines: Sequence[StepLine]) -> StepTotals:
    """What is known of all together: the outermost receipts that are there, which hold the rest."""
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
    """A chain under the names of `harn.receipt.v1`, each step with what it used itself."""
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
            for receipt, own in _own(lines)
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


def _nested(paths: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Each path with its depth, behind the one around it. The order is kept among siblings."""
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


def _own(lines: Sequence[StepLine]) -> list[tuple[StepReceipt, StepTotals]]:
    """Each receipt with what is in none of those inside it."""
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
