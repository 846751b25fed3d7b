"""`tally export` and `tally import`: one run as a single file."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.core.errors import UsageError
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.carry import (
    Transferred,
    export_run_with_attachments,
    import_run_with_attachments,
)
from tallystick.runtime.history import resolve_run
from tallystick.runtime.paths import ledger_path
from tallystick.runtime.run_lock import require_idle

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
    r"""Write one run and its attachments into FILE, else RUN.tally; - is standard output.

    \b
    Example:
        tally export last run.tally
    """
    ledger = SqliteLedger(ledger_path())
    found = resolve_run(ledger, run)
    file = file or Path(f"{found}.tally")
    if str(file) == "-" and move:
        raise UsageError("a run is moved into a file, not to standard output")
    if move:
        require_idle(ledger, found)
    target = sys.stdout.buffer if str(file) == "-" else file
    with SqliteAttachments(ledger.file) as attachments:
        done = export_run_with_attachments(ledger, attachments, found, target, move=move)
    click.echo(f"{'moved' if move else 'exported'} {found} to {file}{_with(done)}", err=True)
    return 0


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def import_command(file: Path) -> int:
    r"""Take in a run that was exported. It is checked whole before any of it is kept.

    \b
    Example:
        tally import run.tally
    """
    ledger = SqliteLedger(ledger_path())
    with SqliteAttachments(ledger.file) as attachments:
        done = import_run_with_attachments(ledger, attachments, file)
    click.echo(f"imported {done.run}{_with(done)}", err=True)
    return 0


def _with(done: Transferred) -> str:
    if not done.attachments:
        return ""
    some = "1 attachment" if done.attachments == 1 else f"{done.attachments:,} attachments"
    return f" with {some}, {done.bytes:,} bytes"
