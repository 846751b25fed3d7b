"""A tree of runs as rows of text: one for each run, what it does and cost, and what is left.

Rule: names and errors are written by models. Nothing of them reaches a terminal that it would act
on, and every row is as wide as it may be, however wide its characters are.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from tallystick.cli.render import plain
from tallystick.core.charge import Charge, RunLimits
from tallystick.core.money import shown_usd
from tallystick.runtime.family_tally import Branch, FamilyTally

__all__ = [
    "Row",
    "budget_lines",
    "caps_left",
    "counted",
    "counts_of",
    "fitted",
    "row_text",
    "rows_of",
    "shown_cost",
    "state_of",
]

_NAME_CELLS_MAX = 60
_NAME_CELLS_MIN = 16
_STATE_CELLS = 19
_COST_CELLS = 8
# In nano-dollars: a column has four decimals.
_LEAST_SHOWN = 100_000
# A cap that is hardly ever met is told from this share on.
_SHARE_TOLD = 0.5
_WIDE = frozenset({"W", "F"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is told of one run."""

    depth: int
    name: str
    state: str
    turn: int
    charge: Charge


def row_text(row: Row, *, width: int, name_cells: int | None = None) -> str:
    """A row in so many cells. Where there are few, what it cost is left out, then its turn.

    `name_cells` is how many its name has, with what it is set in by; else what the others leave.
    """
    spent = row.charge.tokens_in + row.charge.tokens_out
    columns = [
        f"{plain(row.state, chars_max=_STATE_CELLS):<{_STATE_CELLS}}",
        f"turn {row.turn:<3}" if row.turn else " " * 8,
        f"{spent:>7,} tokens",
        f"{_about_usd(row.charge.usd):>{_COST_CELLS}}",
    ]
    while len(columns) > 1 and width - _cells(columns) < _NAME_CELLS_MIN:
        columns.pop()
    room = min(max(4, width - _cells(columns)), name_cells or _NAME_CELLS_MAX)
    indent = "  " * min(row.depth, room // 4)
    named = fitted(f"{indent}{plain(row.name, chars_max=_NAME_CELLS_MAX)}", room)
    return fitted("  ".join([named, *columns]), width).rstrip()


def _cells(columns: list[str]) -> int:
    return sum(len(each) + 2 for each in columns)


def _about_usd(nano: int | None) -> str:
    """A sum in a column; nothing where no price is known."""
    if nano is None:
        return ""
    return "<$0.0001" if 0 < nano < _LEAST_SHOWN else f"${nano / 1e9:,.4f}"


def rows_of(tally: FamilyTally, *, rows_max: int, width: int) -> list[str]:
    """The live runs below the root, each under the one that began it, and a sum of the others."""
    chosen: list[Branch] = []
    waiting = list(reversed(tally.root.live.values()))
    while waiting and len(chosen) < rows_max:
        chosen.append(waiting.pop())
        waiting.extend(reversed(chosen[-1].live.values()))
    shown = [
        row_text(
            Row(
                depth=each.depth,
                name=each.goal or each.run,
                state=state_of(each),
                turn=each.turn,
                charge=each.used,
            ),
            width=width,
        )
        for each in chosen
    ]
    rest = counts_of(tally, shown=len(chosen))
    return [*shown, fitted(f"  … {rest}", width).rstrip()] if rest else shown


def counts_of(tally: FamilyTally, *, shown: int = 0) -> str:
    """The runs that have no row, in numbers; nothing, where there are none."""
    more = tally.live - shown
    named = (
        (more, f"{more:,} {'more ' if shown else ''}live"),
        (tally.waiting, f"{tally.waiting:,} waiting for a place"),
        (tally.answered, f"{tally.answered:,} done"),
        (tally.failed, f"{tally.failed:,} failed"),
        (tally.stopped, f"{tally.stopped:,} cut off"),
    )
    return ", ".join(text for count, text in named if count > 0)


def state_of(branch: Branch) -> str:
    """What a run does, in a few words."""
    inside = len(branch.live) + branch.waiting
    asked = len(branch.batch.asked)
    if branch.doing == "ended":
        return branch.stop
    if branch.doing == "running" and inside:
        return f"waits for {counted(inside, 'run')}"
    if branch.doing == "running" and asked > 1:
        return f"{len(branch.batch.answered):,} queries answered"
    words = {
        "starting": "starting",
        "waiting": "waiting for a place",
        "asking": "asking the model",
        "running": "running a program",
    }
    return words[branch.doing]


def budget_lines(used: Charge, limits: RunLimits, *, seconds: float, width: int) -> list[str]:
    """What a tree has used and may still use, the tightest cap first, in one line or two."""
    cost = f"used {shown_cost(used)}"
    caps = caps_left(used, limits, seconds=seconds)
    whole = f"{cost}   left {', '.join(caps)}"
    if len(whole) <= width:
        return [whole]
    # The loosest go first.
    while len(caps) > 1 and len(", ".join(caps)) + 5 > width:
        caps.pop()
    return [fitted(cost, width).rstrip(), fitted(f"left {', '.join(caps)}", width).rstrip()]


def caps_left(used: Charge, limits: RunLimits, *, seconds: float = 0.0) -> list[str]:
    """What may still be used under each cap, `seconds` into what is being done; tightest first."""
    spent = used.tokens_in + used.tokens_out
    past_ms = used.wall_ms + seconds * 1000
    time_left = max(0, round((limits.wall_ms - past_ms) / 1000))
    turns = max(0, limits.turns - used.turns)
    found = [
        (_share(used.turns, limits.turns), counted(turns, "turn")),
        (_share(spent, limits.tokens), f"{max(0, limits.tokens - spent):,} tokens"),
        (_share(past_ms, limits.wall_ms), f"{time_left // 60}:{time_left % 60:02d}"),
    ]
    if limits.usd is not None:
        usd = used.usd or 0
        found.append((_share(usd, limits.usd), shown_usd(max(0, limits.usd - usd))))
    if limits.model_calls is not None:
        calls = max(0, limits.model_calls - used.model_calls)
        found.append((_share(used.model_calls, limits.model_calls), counted(calls, "model call")))
    hosted = _share(used.host_calls, limits.host_calls)
    if hosted >= _SHARE_TOLD:
        left = max(0, limits.host_calls - used.host_calls)
        found.append((hosted, counted(left, "host call")))
    return [text for _, text in sorted(found, key=lambda each: -each[0])]


def _share(used: float, limit: int) -> float:
    return used / limit if limit else 1.0


def shown_cost(charge: Charge) -> str:
    spent = charge.tokens_in + charge.tokens_out
    usd = shown_usd(charge.usd) if charge.usd is not None else "price unknown"
    return f"{spent:,} tokens, {usd}"


def counted(count: int, noun: str) -> str:
    many = f"{noun.removesuffix('y')}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else many}"


def fitted(text: str, cells: int) -> str:
    """A text in exactly so many cells of a terminal, cut or filled up."""
    if text.isascii():
        wide = len(text)
        if wide <= cells:
            return text + " " * (cells - wide)
        return f"{text[: cells - 1]}…" if cells > 0 else ""
    kept: list[str] = []
    wide = 0
    for each in text:
        size = _cells_of(each)
        if wide + size > cells:
            while kept and wide + 1 > cells:
                wide -= _cells_of(kept.pop())
            return "".join(kept) + "…" + " " * (cells - wide - 1) if cells > 0 else ""
        kept.append(each)
        wide += size
    return text + " " * (cells - wide)


def _cells_of(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in _WIDE else 1
