"""`tally verify`: every hash of the ledger, computed again."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from tallystick.cli.exit_codes import LEDGER, OK
from tallystick.core.chain import Head
from tallystick.core.errors import UsageError
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify
from tallystick.runtime.history import resolve_run
from tallystick.runtime.paths import ledger_path

__all__ = ["command"]


@click.command("verify")
@click.argument("run", required=False)
@click.option(
    "--head",
    "head_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A head of that run, kept elsewhere, as JSON {count, hash}.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(run: str | None, head_file: Path | None, as_json: bool) -> int:
    r"""Check every hash of the ledger, or of one run. Exit code 6 if one does not hold.

    \b
    Example:
        tally verify
    """
    ledger = SqliteLedger(ledger_path())
    named = resolve_run(ledger, run) if run is not None else None
    heads: dict[str, Head] = {}
    if head_file is not None:
        if named is None:
            raise UsageError("--head needs the run it is a head of")
        try:
            heads = {named: msgspec.json.decode(head_file.read_bytes(), type=Head)}
        except msgspec.MsgspecError as error:
            raise UsageError(f"{head_file}: not a head: {error}") from error
    report = verify(ledger, runs=[named] if named else None, heads=heads)
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    elif report.first_bad is None:
        erased = f", {report.erased:,} erased" if report.erased else ""
        click.echo(f"{report.runs:,} runs, {report.entries:,} entries{erased}: all hold")
    else:
        bad = report.first_bad
        click.echo(f"run {bad.run}, entry {bad.seq}: {bad.why}")
    return OK if report.ok else LEDGER
