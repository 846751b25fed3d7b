"""The table of a run, its JSON, and transcripts for whoever asks why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.real.outcome import Outcome, solved
from bench.real.task import Task

__all__ = ["Row", "header_line", "row_line", "stored", "total_lines", "write_json", "write_trace"]

_ANSWER_CHARS = 28
_STORED_CHARS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A task, who ran it, and what came of it."""

    runtime: str
    task: Task
    outcome: Outcome

    @property
    def verdict(self) -> str:
        """`yes`, `no`, or `shown`: it ended with the right value, but not as its answer."""
        if solved(self.task, self.outcome):
            return "yes"
        answer = self.outcome.answer
        return "shown" if answer is not None and self.task.check(answer) else "no"


def header_line() -> str:
    return _line("", "task", "seed", "solved", "stop", "turns", "in", "out", "s", "answer", "right")


def row_line(row: Row) -> str:
    came = row.outcome
    return _line(
        row.runtime,
        row.task.name,
        str(row.task.seed),
        row.verdict,
        came.stop,
        str(came.turns),
        f"{came.tokens_in:,}",
        f"{came.tokens_out:,}",
        f"{came.seconds:.0f}",
        _short(came.answer),
        _short(row.task.expected),
    )


def total_lines(rows: Sequence[Row]) -> list[str]:
    """One line for each runtime."""
    lines = []
    for runtime in dict.fromkeys(row.runtime for row in rows):
        own = [row for row in rows if row.runtime == runtime]
        verdicts = [row.verdict for row in own]
        shown = f" ({verdicts.count('shown')} more only shown)" if "shown" in verdicts else ""
        lines.append(
            f"{runtime}: solved {verdicts.count('yes')} of {len(own)}{shown}; "
            f"{sum(row.outcome.turns for row in own)} turns, "
            f"{sum(row.outcome.tokens_in for row in own):,} tokens in, "
            f"{sum(row.outcome.tokens_out for row in own):,} out, "
            f"{sum(row.outcome.seconds for row in own):,.0f} s"
        )
    return lines


def _line(*cells: str) -> str:
    widths = (11, 15, 6, 7, 13, 6, 8, 7, 6, _ANSWER_CHARS + 2, 0)
    right_aligned = (5, 6, 7, 8)
    parts = [
        f"{cell:>{width - 2}}  " if at in right_aligned else f"{cell:<{width}}"
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "".join(parts).rstrip()


def _short(text: str | None) -> str:
    if text is None:
        return "-"
    line = " ".join(text.split())
    return line if len(line) <= _ANSWER_CHARS else line[: _ANSWER_CHARS - 3] + "..."


def stored(row: Row) -> dict[str, Any]:
    """A row as it is written down."""
    came = row.outcome
    return {
        "runtime": row.runtime,
        "task": row.task.name,
        "kind": row.task.kind,
        "seed": row.task.seed,
        "chars": row.task.chars,
        "question": row.task.question,
        "expected": row.task.expected,
        "answer": None if came.answer is None else came.answer[:_STORED_CHARS],
        "verdict": row.verdict,
        "solved": row.verdict == "yes",
        "stop": came.stop,
        "detail": came.detail[:_STORED_CHARS],
        "turns": came.turns,
        "model_calls": len(came.exchanges),
        "tokens_in_first": came.exchanges[0].tokens_in if came.exchanges else 0,
        "tokens_in": came.tokens_in,
        "tokens_out": came.tokens_out,
        "seconds": round(came.seconds, 1),
    }


def write_json(path: Path, about: dict[str, Any], rows: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    totals = total_lines(rows)
    results = {**about, "totals": totals, "rows": [stored(row) for row in rows]}
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_trace(folder: Path, row: Row) -> None:
    """Every exchange of a run in a file to read: of each request, what the last one had not."""
    folder.mkdir(parents=True, exist_ok=True)
    task, came = row.task, row.outcome
    parts = [
        f"{row.runtime}  {task.name}  seed {task.seed}  {row.verdict}  {came.stop}  {came.detail}",
        f"question: {task.question}",
        f"expected: {task.expected}",
        f"answer:   {came.answer}",
        *came.notes,
    ]
    before: list[tuple[str, str]] = []
    for number, each in enumerate(came.exchanges, 1):
        kept = 0
        while kept < min(len(before), len(each.messages)) and before[kept] == each.messages[kept]:
            kept += 1
        parts.append(f"\n######## request {number}: {kept} messages as before, then")
        parts += [f"---- {role}\n{text}" for role, text in each.messages[kept:]]
        parts.append(f"==== reply {number}, {each.tokens_in}+{each.tokens_out} tokens {each.note}")
        parts.append(each.reply)
        before = each.messages
    path = folder / f"{row.runtime}-{task.seed}-{task.name}.txt"
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")
