"""The receipts of steps, as a table for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tallystick.cli.render import plain
from tallystick.core.money import shown_usd
from tallystick.core.step_receipt import StepLine, StepTotals, step_totals

__all__ = ["as_json", "table_lines"]

_INDENT_MAX = 12
_HEADINGS = ("step", "status", "calls", "in", "out", "cost", "runs", "")
# Names stand on the left, and so does what is said at the end; figures stand on the right.
_LEFT = (0, 1, len(_HEADINGS) - 1)


def as_json(chain: str, lines: Sequence[StepLine]) -> bytes:
    """The receipts that are there, the paths of the steps that have none, and the totals."""
    return msgspec.json.encode(
        {
            "run": chain,
            "receipts": [line.receipt for line in lines if line.receipt is not None],
            "open": [line.path for line in lines if line.receipt is None],
            "missed": sum(line.missed for line in lines),
            "totals": step_totals(lines),
        }
    )


def table_lines(chain: str, lines: Sequence[StepLine]) -> list[str]:
    """Steps by line, each one indented under the one it stands in."""
    totals = step_totals(lines)
    unfinished = sum(line.receipt.unfinished for line in lines if line.receipt is not None)
    missed = sum(line.missed for line in lines)
    rows = [_HEADINGS, *map(_row, lines), _total(totals)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_HEADINGS))]
    made = [f"steps     {chain}", f"cost      {_cost(totals)}", ""]
    made += [_aligned(row, widths) for row in rows]
    if any(line.receipt is None for line in lines):
        made.append("steps that are open have no receipt yet; what was cut off never gets one")
    if unfinished:
        made.append("where something was still going, its later cost is in its own receipt only")
    if missed:
        made.append(f"{missed:,} steps that were left before the first run are not here")
    return made


def _row(line: StepLine) -> tuple[str, ...]:
    name = "  " * min(line.depth, _INDENT_MAX) + plain(line.name, chars_max=40)
    receipt = line.receipt
    if receipt is None:
        return (name, line.status, "", "", "", "", "", "")
    said = [] if receipt.error is None else [plain(receipt.error)]
    if receipt.unfinished:
        said.append(f"{receipt.unfinished:,} still going")
    return (
        name,
        line.status,
        f"{receipt.llm_calls:,}",
        f"{receipt.input_tokens:,}",
        f"{receipt.output_tokens:,}",
        _cost(StepTotals().plus(receipt)),
        f"{receipt.runs_begun:,}",
        "; ".join(said),
    )


def _total(totals: StepTotals) -> tuple[str, ...]:
    calls, into, out = totals.llm_calls, totals.input_tokens, totals.output_tokens
    return ("total", "", f"{calls:,}", f"{into:,}", f"{out:,}", _cost(totals), "", "")


def _cost(totals: StepTotals) -> str:
    if totals.unpriced and totals.unpriced >= totals.llm_calls:
        return "unpriced"
    some = f" + {totals.unpriced:,} unpriced" if totals.unpriced else ""
    return f"{shown_usd(totals.usd)}{some}"


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        cell.ljust(width) if place in _LEFT else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()
