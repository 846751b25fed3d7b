"""`tally export` and `tally import`: one run as a single file, or as events for other tools."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO

import click

from tallystick.cli.show import counted
from tallystick.core.errors import TransferRefused, UsageError
from tallystick.interop.rlms import ImportedLog, import_rlms_log
from tallystick.interop.rlms_format import HEAD_BYTES, is_rlms_log
from tallystick.interop.trajectory import export_trajectory
from tallystick.runtime.runs.history import require_no_children, resolve_run
from tallystick.runtime.runs.lock import require_idle
from tallystick.settings.paths import ledger_path
from tallystick.stores import open_stores
from tallystick.upkeep.transfer import (
    Transferred,
    export_run_with_attachments,
    import_run_with_attachments,
)

_SUFFIXES = {"tally": ".tally", "trajectory": ".trajectory.jsonl"}


@click.command("export")
@click.argument("run")
@click.argument(
    "file", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True), required=False
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(list(_SUFFIXES)),
    default="tally",
    show_default=True,
    help="The run itself, or events for other tools, as JSON lines.",
)
@click.option(
    "--move", is_flag=True, help="Give the run away: it ends here, the file is its title."
)
@click.option("--redact", is_flag=True, help="In events, leave out all content.")
@click.option("--full", is_flag=True, help="In events, give content whole: it is cut otherwise.")
def export_command(
    run: str, file: Path | None, kind: str, move: bool, redact: bool, full: bool
) -> int:
    r"""Write one run and its attachments into FILE, else RUN.tally; - is standard output.

    With --format trajectory, what happened in it as events, each with the entry it came from;
    FILE is then RUN.trajectory.jsonl unless it is named. Content is cut at 10,000 characters.

    \b
    Example:
        tally export last run.tally
        tally export last - --format trajectory --redact
    """
    if kind == "trajectory" and move:
        raise UsageError("--move is for a run, not for its events")
    if kind != "trajectory" and (redact or full):
        raise UsageError("--redact and --full are for events: give --format trajectory too")
    if redact and full:
        raise UsageError("--redact leaves content out, --full gives it whole: which?")
    if str(file) == "-" and move:
        raise UsageError("a run is moved into a file, not to standard output")
    stores = open_stores(ledger_path())
    ledger = stores.ledger
    found = resolve_run(ledger, run)
    file = file or Path(f"{found}{_SUFFIXES[kind]}")
    target: Path | BinaryIO = sys.stdout.buffer if str(file) == "-" else file
    with stores:
        attachments = stores.attachments
        if kind == "trajectory":
            told = export_trajectory(ledger, attachments, found, target, redact=redact, full=full)
            gone = (
                f"; erased, and without one: {counted(told.erased, 'entry')}" if told.erased else ""
            )
            click.echo(
                f"exported {counted(told.events, 'event')} of {found} to {file}{gone}", err=True
            )
            return 0
        if move:
            require_idle(ledger, found)
            require_no_children(ledger, found)
        done = export_run_with_attachments(ledger, attachments, found, target, move=move)
    click.echo(f"{'moved' if move else 'exported'} {found} to {file}{_with(done)}", err=True)
    return 0


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def import_command(file: Path) -> int:
    r"""Take in a run that was exported. It is checked whole before any of it is kept.

    A log of the rlms package (JSON lines) is taken in too, as runs to be read: they cannot be gone
    on with or replayed.

    \b
    Example:
        tally import run.tally
    """
    stores = open_stores(ledger_path())
    ledger = stores.ledger
    try:
        opened = file.open("rb")
    except OSError as error:
        why = f"it cannot be opened: {error.strerror}"
        raise TransferRefused(file=str(file), why=why) from error
    with opened as source:
        # What can be read once only, such as a pipe, is not opened again.
        given = file if source.seekable() else source
        if is_rlms_log(source.peek(HEAD_BYTES)):
            _tell_imported(import_rlms_log(ledger, source, name=str(file)))
            return 0
        with stores:
            done = import_run_with_attachments(ledger, stores.attachments, given)
    click.echo(f"imported {done.run}{_with(done)}", err=True)
    return 0


def _tell_imported(log: ImportedLog) -> None:
    for each in log.runs:
        inside = f" with {counted(each.children, 'run')} inside it" if each.children else ""
        already = "" if each.new else ", which was here already"
        click.echo(f"imported {each.run} from a log of rlms{inside}{already}", err=True)


def _with(done: Transferred) -> str:
    if not done.attachments:
        return ""
    some = counted(done.attachments, "attachment")
    return f" with {some}, {done.bytes:,} bytes"
