"""`tally replay`: a run again, from its record."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from tallystick.cli.exit_codes import DIVERGED, OK
from tallystick.cli.going import skills_for, with_skills
from tallystick.cli.render import plain
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.history import resolve_run
from tallystick.runtime.paths import ledger_path
from tallystick.runtime.replay import ReplayReport
from tallystick.runtime.session import Session
from tallystick.runtime.settings import load_settings
from tallystick.runtime.skill_desk import NO_SKILLS
from tallystick.runtime.skill_drift import has_skills

__all__ = ["command"]


@click.command("replay")
@click.argument("run")
@with_skills
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(run: str, skill_directories: tuple[Path, ...], no_skills: bool, as_json: bool) -> int:
    r"""Run a run again with no model and no network, and say whether it holds.

    Prompts, programs, outputs, host calls and fuel are made again and compared with the record.
    Exit code 8 if anything differs. Skills that changed since the run are named: it holds all the
    same, since what it saw of them is recorded.

    \b
    Example:
        tally replay last
    """
    ledger = SqliteLedger(ledger_path())
    found = resolve_run(ledger, run)
    skills = None
    if has_skills(ledger, found) and not no_skills:
        settings = load_settings()
        skills = skills_for(settings, skill_directories, none=False, quiet=True) or NO_SKILLS
    with Session(
        ledger=ledger, skills=skills, say=lambda line: click.echo(line, err=True)
    ) as session:
        report = session.replay(found)
    click.echo(msgspec.json.encode(report).decode() if as_json else _told(report))
    for each in () if as_json else report.drift:
        click.echo(f"drift: {plain(str(each), chars_max=300)}", err=True)
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
