"""`tally export` and `tally import`: one run as a single file."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tallystick.core.errors import UsageError
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.transfer import export_run, import_run
from tallystick.runtime.session import ledger_path, resolve_run

__all__ = ["export_command", "import_command"]


@click.command("export")
@click.argument("run")
@click.argument(
    "file", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True), required=False
)
@click.option(
    "--move", is_flag=True, help="Give the run away: it ends here, the file is its title."
)
def export_command(run: str, file: Path | None, move: bool) -> int:
    r"""Write one run into a single file: FILE, else RUN.tally; - is standard output.

    \b
    Example:
        tally export last run.tally
    """
    ledger = SqliteLedger(ledger_path())
    found = resolve_run(ledger, run)
    file = file or Path(f"{found}.tally")
    if str(file) == "-" and move:
        raise UsageError("a run is moved into a file, not to standard output")
    target = sys.stdout.buffer if str(file) == "-" else file
    export_run(ledger, found, target, move=move)
    click.echo(f"{'moved' if move else 'exported'} {found} to {file}", err=True)
    return 0


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def import_command(file: Path) -> int:
    r"""Take in a run that was exported. It is checked whole before any of it is kept.

    \b
    Example:
        tally import run.tally
    """
    found = import_run(SqliteLedger(ledger_path()), file)
    click.echo(f"imported {found}", err=True)
    return 0
