"""`tally resolve`: what dead processes still hold of the shared total, and what becomes of it."""

from __future__ import annotations

import click
import msgspec

from tallystick.core.errors import UsageError
from tallystick.core.money import shown_usd
from tallystick.ledger.scopes import Hold, SharedScopes
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.paths import ledger_path

__all__ = ["command"]


@click.command("resolve")
@click.argument("run", required=False)
@click.option("--charge", is_flag=True, help="They may have been billed: charge what is held.")
@click.option("--release", is_flag=True, help="They were not billed: give it back.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(run: str | None, charge: bool, release: bool, as_json: bool) -> int:
    r"""Show what calls hold of the total, and close what a dead process left.

    A process that is killed in the middle of a call leaves what it held: nobody can say whether
    the call was billed. Without a choice, what is held is listed.

    \b
    Example:
        tally resolve 01M7H9059YPYTCBKVW1YQJBKX4 --charge
    """
    if charge and release:
        raise UsageError("--charge or --release, not both")
    if (charge or release) and run is None:
        raise UsageError("name the run whose calls are to be closed")
    with SqliteLedger(ledger_path()) as ledger, SharedScopes(ledger.file) as scopes:
        holds = [each for each in scopes.holds() if run is None or each.row.run.startswith(run)]
        if charge or release:
            _close(scopes, holds, charge=charge)
    if as_json:
        click.echo(msgspec.json.encode([_plain(each) for each in holds]).decode())
    else:
        for each in holds:
            click.echo(_line(each, closed=charge or release))
        if not holds:
            click.echo("nothing is held", err=True)
    return 0


def _close(scopes: SharedScopes, holds: list[Hold], *, charge: bool) -> None:
    for each in holds:
        scopes.resolve(each.row, settle_at=each.row.amount if charge else None)


def _plain(hold: Hold) -> dict[str, object]:
    row = hold.row
    return {
        "run": row.run,
        "number": row.intent,
        "usd": row.amount.usd,
        "tokens": row.amount.tokens,
        "held_at_ms": row.held_at_ms,
        "owner_dead": hold.owner_dead,
    }


def _line(hold: Hold, *, closed: bool) -> str:
    row = hold.row
    state = "closed" if closed else "left by a dead process" if hold.owner_dead else "under way"
    return f"{row.run}  {shown_usd(row.amount.usd)}  {row.amount.tokens:,} tokens  {state}"
