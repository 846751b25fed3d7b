"""`tally export` and `tally import`: write one run to a file, and read it from one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO

import click

from tallystick.cli.parts import echo_line
from tallystick.cli.show import quantity
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
    help="Write the run itself (tally), or events for other tools as JSON lines (trajectory).",
)
@click.option(
    "--move",
    is_flag=True,
    help="Move the run: it can be resumed only where the file is imported, not here.",
)
@click.option("--redact", is_flag=True, help="With --format trajectory: leave out all content.")
@click.option("--full", is_flag=True, help="With --format trajectory: do not cut long content.")
def export_command(
    run: str, file: Path | None, kind: str, move: bool, redact: bool, full: bool
) -> int:
    r"""Write one run and its attachments to a single file.

    FILE is RUN.tally if it is not named; - is standard output. With --format trajectory, the file
    has the events of the run, each with the entry it comes from, and is RUN.trajectory.jsonl if it
    is not named. Content in events is cut at 10,000 characters.

    \b
    Example:
        tally export last run.tally
        tally export last - --format trajectory --redact
    """
    # Events cannot be imported again: to move a run into them would lose it.
    if kind == "trajectory" and move:
        raise UsageError("--move needs the whole run; leave out --format trajectory")
    if kind != "trajectory" and (redact or full):
        raise UsageError("--redact and --full need --format trajectory")
    if redact and full:
        raise UsageError("--redact and --full contradict each other; leave out one of them")
    if str(file) == "-" and move:
        raise UsageError("--move cannot write to standard output; name a file")
    stores = open_stores(ledger_path())
    ledger = stores.ledger
    found = resolve_run(ledger, run)
    file = file or Path(f"{found}{_SUFFIXES[kind]}")
    target: Path | BinaryIO = sys.stdout.buffer if str(file) == "-" else file
    with stores:
        attachments = stores.attachments
        if kind == "trajectory":
            exported = export_trajectory(
                ledger, attachments, found, target, redact=redact, full=full
            )
            gone = (
                f"; {quantity(exported.erased, 'entry')} erased before, and not exported"
                if exported.erased
                else ""
            )
            echo_line(
                f"exported {quantity(exported.events, 'event')} of {found} to {file}{gone}",
                err=True,
            )
            return 0
        if move:
            require_idle(ledger, found)
            require_no_children(ledger, found)
        done = export_run_with_attachments(ledger, attachments, found, target, move=move)
    echo_line(
        f"{'moved' if move else 'exported'} {found} to {file}{_attachments_text(done)}", err=True
    )
    return 0


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def import_command(file: Path) -> int:
    r"""Read a run from an exported file into the ledger.

    The file is checked as a whole before any of it is stored. A log of the rlms package (JSON
    lines) is imported too, as runs that can be read, but not resumed or replayed. Exit code 6 if
    the file is refused.

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
        # A pipe can be read only once, so hand on the open file instead of its path.
        given = file if source.seekable() else source
        if is_rlms_log(source.peek(HEAD_BYTES)):
            _echo_imported(import_rlms_log(ledger, source, name=str(file)))
            return 0
        with stores:
            done = import_run_with_attachments(ledger, stores.attachments, given)
    echo_line(f"imported {done.run}{_attachments_text(done)}", err=True)
    return 0


def _echo_imported(log: ImportedLog) -> None:
    for each in log.runs:
        inside = f" with {quantity(each.children, 'run')} inside it" if each.children else ""
        already = "" if each.new else ", which is here already"
        echo_line(f"imported {each.run} from a log of rlms{inside}{already}", err=True)


def _attachments_text(done: Transferred) -> str:
    if not done.attachments:
        return ""
    some = quantity(done.attachments, "attachment")
    return f" with {some}, {done.bytes:,} bytes"
