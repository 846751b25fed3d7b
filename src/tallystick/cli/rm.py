"""`tally rm`: a run, out of the ledger."""

from __future__ import annotations

import click

from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.session import ledger_path, resolve_run

__all__ = ["command"]


@click.command("rm")
@click.argument("run")
@click.option("--yes", is_flag=True, help="Do not ask.")
def command(run: str, yes: bool) -> int:
    r"""Take a run out of the ledger, entries and bodies.

    \b
    Example:
        tally rm last --yes
    """
    ledger = SqliteLedger(ledger_path())
    found = resolve_run(ledger, run)
    if not yes:
        click.confirm(f"remove run {found}? It cannot be brought back", abort=True, err=True)
    ledger.remove(found)
    click.echo(f"removed {found}", err=True)
    return 0
