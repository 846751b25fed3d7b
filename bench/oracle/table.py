"""Rows of the oracle bench, what they have to show, and how both are printed.

A row is one task at one size by one strategy, over some seeds. A check is a line that is MET or
MISSED, with the rows that decide it; it looks at rows and at nothing else.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.oracle.runs import Outcome

__all__ = ["Check", "Row", "checks_of", "row_of", "shown", "stored"]

# Below this, nothing may be worse or dearer than reading at once.
SHORT_TOKENS = 2**14
SPREAD_MAX = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Figures over the runs of one row. Money is in nano-dollars; without runs, `refused` is why.

    `scores` and `charged` are by seed, in order: rows of the same task are compared run by run.
    `over_cap` counts runs whose bill or charge passed the cap, `off` those whose charge is not the
    bill: reported calls to the nano-dollar, calls of unknown outcome at no less than their bill.
    """

    kind: str
    tokens: int
    strategy: str
    setting: str
    scores: tuple[float, ...] = ()
    charged: tuple[int, ...] = ()
    calls: float = 0.0
    turns: float = 0.0
    virtual_ms: float = 0.0
    took: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    reserved: int = 0
    over_cap: int = 0
    off: int = 0
    refused: str = ""

    @property
    def runs(self) -> int:
        return len(self.scores)

    @property
    def accuracy(self) -> float:
        return statistics.fmean(self.scores)

    @property
    def p50(self) -> int:
        return round(statistics.median(self.charged))

    @property
    def p95(self) -> int:
        """The nearest rank: of fewer than twenty, it is the most."""
        return sorted(self.charged)[math.ceil(0.95 * self.runs) - 1]

    @property
    def spread(self) -> float:
        if not self.p50:
            return math.inf if self.p95 else 1.0
        return self.p95 / self.p50


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line at the end of the table."""

    name: str
    met: bool
    found: str


def row_of(outcomes: Sequence[Outcome]) -> Row:
    """The row of the runs of one task at one size by one strategy, on one setting."""
    case = outcomes[0].case
    done = [each for each in outcomes if not each.refused]
    if not done:
        return Row(
            kind=case.kind,
            tokens=case.tokens,
            strategy=case.strategy,
            setting=case.setting,
            refused=outcomes[0].refused,
        )
    return Row(
        kind=case.kind,
        tokens=case.tokens,
        strategy=case.strategy,
        setting=case.setting,
        scores=tuple(round(each.score, 4) for each in done),
        charged=tuple(each.charged for each in done),
        calls=statistics.median(each.calls for each in done),
        turns=statistics.median(each.turns for each in done),
        virtual_ms=statistics.median(each.virtual_ms for each in done),
        took=tuple(sorted({each.strategy for each in done})),
        stops=tuple(sorted({each.stop for each in done})),
        reserved=sum(each.reserved for each in done),
        over_cap=sum(
            max(each.charged, each.billed + each.unknown) > each.case.usd for each in done
        ),
        off=sum(not _agrees(each) for each in done),
    )


def _agrees(outcome: Outcome) -> bool:
    reported = outcome.charged - outcome.reserved
    return reported == outcome.billed and outcome.unknown <= outcome.reserved


# -- checks ------------------------------------------------------------------------------------


def checks_of(rows: Sequence[Row]) -> list[Check]:
    """What the table has to show."""
    ran = [row for row in rows if row.runs]
    return [_auto_is_no_worse(ran), _auto_is_no_dearer(ran), _spread(ran), _caps(ran), _bills(ran)]


def _auto_is_no_worse(rows: Sequence[Row]) -> Check:
    return _beside_direct(
        rows,
        f"auto is never less accurate than direct below {SHORT_TOKENS:,} tokens",
        lambda auto, direct: auto.accuracy >= direct.accuracy,
        lambda row: f"{row.accuracy:.3f}",
    )


def _auto_is_no_dearer(rows: Sequence[Row]) -> Check:
    return _beside_direct(
        rows,
        f"auto is never dearer than direct below {SHORT_TOKENS:,} tokens (p50 and p95)",
        lambda auto, direct: auto.p50 <= direct.p50 and auto.p95 <= direct.p95,
        lambda row: f"{_usd(row.p50)}/{_usd(row.p95)}",
    )


def _beside_direct(
    rows: Sequence[Row],
    name: str,
    holds: Callable[[Row, Row], bool],
    said: Callable[[Row], str],
) -> Check:
    """Compare rows of auto with those of direct on the same seeds."""
    direct = {_place(row): row for row in rows if row.strategy == "direct"}
    pairs = [
        (row, direct[_place(row)])
        for row in rows
        if row.strategy == "auto" and row.tokens < SHORT_TOKENS and _place(row) in direct
    ]
    against = [
        f"{auto.kind} {auto.tokens:,} {auto.setting}: {said(auto)}, direct {said(other)}"
        for auto, other in pairs
        if auto.runs != other.runs or not holds(auto, other)
    ]
    found = "; ".join(against) or f"{len(pairs)} rows beside direct"
    return Check(name=name, met=bool(pairs) and not against, found=found)


def _place(row: Row) -> tuple[str, int, str]:
    return row.kind, row.tokens, row.setting


def _spread(rows: Sequence[Row]) -> Check:
    most = max(rows, key=lambda row: row.spread, default=None)
    wide = [row for row in rows if row.spread > SPREAD_MAX]
    found = "; ".join(f"{_named(row)}: {row.spread:.2f}" for row in wide)
    if not found and most is not None:
        found = f"at most {most.spread:.2f}, {_named(most)}"
    name = f"p95 of the cost is at most {SPREAD_MAX:g} times p50 in every row"
    return Check(name=name, met=most is not None and not wide, found=found)


def _caps(rows: Sequence[Row]) -> Check:
    over = sum(row.over_cap for row in rows)
    runs = sum(row.runs for row in rows)
    name = "no run passed its cap, by its charge or by the model's bill"
    return Check(name=name, met=runs > 0 and not over, found=f"{over} of {runs:,} runs")


def _bills(rows: Sequence[Row]) -> Check:
    off = sum(row.off for row in rows)
    runs, reserved = sum(row.runs for row in rows), sum(row.reserved for row in rows)
    found = f"{off} of {runs:,} runs differ"
    if reserved:
        found += f"; {_usd(reserved)} charged as reserved for calls of unknown outcome"
    name = "what was charged is what the model billed, to the nano-dollar"
    return Check(name=name, met=runs > 0 and not off, found=found)


def _named(row: Row) -> str:
    return f"{row.kind} {row.tokens:,} {row.strategy} {row.setting}"


# -- as text and as JSON -----------------------------------------------------------------------


def shown(rows: Iterable[Row], checks: Iterable[Check]) -> list[str]:
    """The table, a line for each row, and the checks behind it."""
    head = (
        "task",
        "tokens",
        "setting",
        "strategy",
        "took",
        "runs",
        "accuracy",
        "p50",
        "p95",
        "most",
    )
    lines = [_line(*head, "p95/p50", "calls", "turns", "seconds", "ended")]
    before = None
    for row in rows:
        if before not in (None, (row.kind, row.tokens, row.setting)):
            lines.append("")
        before = row.kind, row.tokens, row.setting
        lines.append(_shown(row))
    lines.append("")
    lines += [f"{'MET' if each.met else 'MISSED':<8}{each.name}: {each.found}" for each in checks]
    return lines


def _shown(row: Row) -> str:
    begun = (row.kind, f"{row.tokens:,}", row.setting, row.strategy)
    if not row.runs:
        return _line(*begun, row.refused.partition(";")[0], *[""] * 10)
    return _line(
        *begun,
        "+".join(row.took) if row.strategy == "auto" else "",
        f"{row.runs}",
        f"{row.accuracy:.2f}",
        _usd(row.p50),
        _usd(row.p95),
        _usd(max(row.charged)),
        f"{row.spread:.2f}",
        f"{row.calls:g}",
        f"{row.turns:g}",
        f"{row.virtual_ms / 1000:.1f}",
        "" if row.stops == ("answered",) else "+".join(row.stops),
    )


def _line(*cells: str) -> str:
    widths = (10, 11, 9, 11, 11, 5, 10, 11, 11, 11, 9, 7, 7, 8, 0)
    left = (0, 2, 3, 4, 14)
    parts = [
        f"{cell:<{width}}" if at in left else f"{cell:>{width - 1}} "
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "".join(parts).rstrip()


def _usd(nano: int) -> str:
    return f"${nano / 10**9:.5f}"


def stored(row: Row) -> dict[str, Any]:
    """A row as it is written down. Money is in nano-dollars."""
    begun: dict[str, Any] = {
        "task": row.kind,
        "tokens": row.tokens,
        "setting": row.setting,
        "strategy": row.strategy,
    }
    if not row.runs:
        return {**begun, "refused": row.refused}
    return {
        **begun,
        "took": list(row.took),
        "runs": row.runs,
        "accuracy": round(row.accuracy, 4),
        "usd_nano_p50": row.p50,
        "usd_nano_p95": row.p95,
        "usd_nano_most": max(row.charged),
        "p95_to_p50": round(row.spread, 3),
        "calls": row.calls,
        "turns": row.turns,
        "virtual_ms": row.virtual_ms,
        "stops": list(row.stops),
        "usd_nano_reserved": row.reserved,
        "scores": list(row.scores),
        "usd_nano": list(row.charged),
    }
