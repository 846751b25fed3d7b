"""`tally replay`: a run again, from its record."""

from __future__ import annotations

import click
import msgspec

from tallystick.cli.exit_codes import DIVERGED, OK
from tallystick.runtime.history import resolve_run
from tallystick.runtime.replay import ReplayReport
from tallystick.runtime.session import Session

__all__ = ["command"]


@click.command("replay")
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(run: str, as_json: bool) -> int:
    r"""Run a run again with no model and no network, and say whether it holds.

    Prompts, programs, outputs, host calls and fuel are made again and compared with the record.
    Exit code 8 if anything differs.

    \b
    Example:
        tally replay last
    """
    with Session(say=lambda line: click.echo(line, err=True)) as session:
        report = session.replay(resolve_run(session.ledger, run))
    click.echo(msgspec.json.encode(report).decode() if as_json else _told(report))
    return OK if report.held else DIVERGED


def _told(report: ReplayReport) -> str:
    served = f", {report.served} programs served as recorded" if report.served else ""
    if report.divergence is None:
        return (
            f"{report.entries} entries, {report.programs} programs run again{served}: no divergence"
        )
    where = report.divergence
    note = f"; {report.note}" if report.note else ""
    return (
        f"entry {where.seq}: {where.field} was {where.recorded!r} and is {where.now!r}"
        f" ({report.entries} entries{served}){note}"
    )
