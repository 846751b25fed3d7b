"""`tally ls`: the runs of the ledger, and the steps that some were begun in."""

from __future__ import annotations

import datetime
from typing import Literal

import click
import msgspec

from tallystick.cli.render import plain
from tallystick.core.money import shown_usd
from tallystick.core.records import Record, RunEnded, RunStarted
from tallystick.core.step_receipt import holds_steps, step_lines, step_totals
from tallystick.ledger.port import Ledger, RunRow
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.history import records_of
from tallystick.runtime.paths import ledger_path

__all__ = ["command"]


_GOAL_CHARS_MAX = 60


class _Listed(msgspec.Struct, frozen=True, kw_only=True):
    """One chain. Of steps, `goal` is the name of the outermost, and `stop` its status.

    `usd` is in nano-dollars, None if it is not known.
    """

    kind: Literal["run", "steps"]
    run: str
    created_at: int
    entries: int
    goal: str
    model: str
    stop: str
    answer: str | None
    usd: int | None


@click.command("ls")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="The newest N.",
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(limit: int, as_json: bool) -> int:
    r"""List the runs of the ledger, the newest last, and the steps that some were begun in.

    \b
    Example:
        tally ls --limit 5
    """
    ledger = SqliteLedger(ledger_path())
    rows = [_listed(ledger, row) for row in ledger.runs()[-limit:]]
    if as_json:
        click.echo(msgspec.json.encode(rows).decode())
        return 0
    for row in rows:
        made = datetime.datetime.fromtimestamp(row.created_at / 1000, datetime.UTC)
        click.echo(
            f"{row.run}  {made:%Y-%m-%d %H:%M}  {row.stop:<12} {row.entries:>4} entries  "
            f"{_what(row)}"
        )
    return 0


def _what(row: _Listed) -> str:
    goal = plain(row.goal, chars_max=_GOAL_CHARS_MAX)
    if row.kind == "run":
        return goal
    return f"steps {goal}  {shown_usd(row.usd)}"


def _listed(ledger: Ledger, row: RunRow) -> _Listed:
    records = list(records_of(ledger, row.run))
    if holds_steps(records):
        return _listed_steps(row, records)
    started = next((each for each in records if isinstance(each, RunStarted)), None)
    ended = next((each for each in records if isinstance(each, RunEnded)), None)
    stop = ended.stop if ended else ("moved" if row.moved else "unfinished")
    return _Listed(
        kind="run",
        run=row.run,
        created_at=row.created_at,
        entries=row.head.count,
        goal=started.goal if started else "",
        model=started.model if started else "",
        stop=stop,
        answer=ended.answer if ended else None,
        usd=ended.charge.usd if ended else None,
    )


def _listed_steps(row: RunRow, records: list[Record]) -> _Listed:
    lines = step_lines(records)
    outermost, totals = lines[0], step_totals(lines)
    unpriced = totals.unpriced and totals.unpriced == totals.llm_calls
    ended = outermost.receipt is not None
    return _Listed(
        kind="steps",
        run=row.run,
        created_at=row.created_at,
        entries=row.head.count,
        goal=outermost.name,
        model=(outermost.receipt.model or "") if outermost.receipt else "",
        stop=outermost.status if ended else ("moved" if row.moved else "unfinished"),
        answer=None,
        usd=None if unpriced else totals.usd,
    )
