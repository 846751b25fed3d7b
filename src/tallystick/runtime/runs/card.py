"""Show a run in a notebook: a static table without scripts, in which everything is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tallystick.runtime.runs.result import Run

_ANSWER_CHARS_MAX = 4_000
_LINE_CHARS_MAX = 300
_CITATIONS_MAX = 5


def card_of(run: Run[Any]) -> str:
    """Return a table with the answer, stop, cost and turns of a run, of at most 20 kB."""
    rows = "".join(
        f'<tr><th style="text-align:left;vertical-align:top">{_text(name)}</th>'
        f'<td style="text-align:left;white-space:pre-wrap">{_text(value)}</td></tr>'
        for name, value in _rows(run)
    )
    return f"<table>{rows}</table>"


def _rows(run: Run[Any]) -> Iterable[tuple[str, str]]:
    if run.answer is not None:
        yield ("answer" if run.answered else "partial answer"), _cut(run.answer, _ANSWER_CHARS_MAX)
    detail = f": {run.detail}" if run.detail and not run.answered else ""
    yield "stop", _cut(f"{run.stop}{detail}", _LINE_CHARS_MAX)
    yield "cost", "price unknown" if run.cost is None else f"${run.cost}"
    tokens = run.charge.tokens_in + run.charge.tokens_out
    yield "turns", f"{run.turns:,} ({tokens:,} tokens, {run.charge.wall_ms / 1000:.1f} s)"
    for citation in run.citations[:_CITATIONS_MAX]:
        line = f"{citation.name}:{citation.lines} {citation.quote}"
        yield "cited", _cut(line, _LINE_CHARS_MAX)
    if len(run.citations) > _CITATIONS_MAX:
        yield "cited", f"and {len(run.citations) - _CITATIONS_MAX:,} more"
    yield "run", run.run


def _cut(text: str, most: int) -> str:
    # An escaped character takes up to six bytes, so the table stays below its size.
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _text(text: str) -> str:
    shown = text.encode("utf-8", "replace").decode()
    return html.escape(shown, quote=True)
