"""`tally ls`: the runs of the ledger."""

from __future__ import annotations

import datetime

import click
import msgspec

from tallystick.core.records import RunEnded, RunStarted
from tallystick.ledger.port import Ledger, RunRow
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.history import records_of
from tallystick.runtime.paths import ledger_path

__all__ = ["command"]


class _Listed(msgspec.Struct, frozen=True, kw_only=True):
    run: str
    created_at: int
    entries: int
    goal: str
    model: str
    stop: str
    answer: str | None


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
    r"""List the runs of the ledger, the newest last.

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
            f"{row.goal[:60]}"
        )
    return 0


def _listed(ledger: Ledger, row: RunRow) -> _Listed:
    records = list(records_of(ledger, row.run))
    started = next((each for each in records if isinstance(each, RunStarted)), None)
    ended = next((each for each in records if isinstance(each, RunEnded)), None)
    stop = ended.stop if ended else ("moved" if row.moved else "unfinished")
    return _Listed(
        run=row.run,
        created_at=row.created_at,
        entries=row.head.count,
        goal=started.goal if started else "",
        model=started.model if started else "",
        stop=stop,
        answer=ended.answer if ended else None,
    )
