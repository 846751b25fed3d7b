"""`tally resolve`: what calls of dead processes left open, and what becomes of it."""

from __future__ import annotations

import click
import msgspec

from tallystick.cli.exit_codes import IN_DOUBT, OK
from tallystick.cli.ls import doubt_lines, hold_fields, hold_line
from tallystick.cli.render import plain
from tallystick.core.errors import RunNotFound, UsageError
from tallystick.ledger.scopes import Hold, SharedScopes
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.history import resolve_run
from tallystick.runtime.in_doubt import ClosedCalls, close_calls, runs_in_doubt
from tallystick.runtime.paths import ledger_path
from tallystick.sandbox.identity import now_ms

__all__ = ["command"]


@click.command("resolve")
@click.argument("run", required=False)
@click.option("--charge", is_flag=True, help="They may have been billed: charge what is reserved.")
@click.option("--release", is_flag=True, help="They were not billed: give it back.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(run: str | None, charge: bool, release: bool, as_json: bool) -> int:
    r"""Show which calls are in doubt and what is held of the total, and close what was left.

    A process that is killed in the middle of a paid call leaves it open: nobody can say whether it
    was billed. --charge writes down that it may have been, --release that it was not; what was
    held of the total for it is closed with it, and tally resume then makes the call again. Without
    a choice everything is listed. Effects are not paid calls: tally resume decides about those.

    \b
    Example:
        tally resolve 01M7H9059YPYTCBKVW1YQJBKX4 --charge
    """
    if charge and release:
        raise UsageError("--charge or --release, not both")
    if (charge or release) and run is None:
        raise UsageError("name the run whose calls are to be closed")
    with SqliteLedger(ledger_path()) as ledger, SharedScopes(ledger.file) as scopes:
        named = None if run is None else _named(ledger, scopes, run)
        if named is None or not (charge or release):
            return _list(ledger, scopes, named, as_json=as_json)
        closed = _closed(ledger, scopes, named, charge=charge)
    if as_json:
        click.echo(msgspec.json.encode(closed).decode())
    else:
        _tell(closed, charge=charge)
    return IN_DOUBT if closed.effects else OK


def _named(ledger: SqliteLedger, scopes: SharedScopes, run: str) -> str:
    """A run of the ledger, or one that something is held for and that was never written."""
    try:
        return resolve_run(ledger, run)
    except RunNotFound:
        names = {each.row.run for each in scopes.holds()}
    found = [name for name in names if run and name.startswith(run.upper())]
    if len(found) > 1:
        raise UsageError(f"{run!r} is the beginning of {len(found)} runs; give more of it")
    if not found:
        raise RunNotFound(run=run)
    return found[0]


def _closed(ledger: SqliteLedger, scopes: SharedScopes, run: str, *, charge: bool) -> ClosedCalls:
    try:
        return close_calls(ledger, run, charge=charge, scopes=scopes, at=now_ms())
    except RunNotFound:
        holds = scopes.holds(run=run)
    for each in holds:
        scopes.resolve(each.row, settle_at=each.row.amount if charge else None)
    return ClosedCalls(run=run, calls=0, holds=len(holds), effects=())


def _tell(closed: ClosedCalls, *, charge: bool) -> None:
    if closed.calls or closed.holds:
        calls = "1 call" if closed.calls == 1 else f"{closed.calls:,} calls"
        held = f", {closed.holds:,} held of the total" if closed.holds else ""
        what = "charged" if charge else "given back"
        click.echo(f"{closed.run}  {calls} {what}{held} closed")
    elif not closed.effects:
        click.echo(f"nothing is held or in doubt of run {closed.run}", err=True)
    for each in closed.effects:
        click.echo(
            f"{plain(each.what)} (turn {each.turn}) is an effect, which may have happened: "
            f"tally resume {closed.run} --in-doubt retry|abandon decides about it",
            err=True,
        )


def _list(ledger: SqliteLedger, scopes: SharedScopes, run: str | None, *, as_json: bool) -> int:
    holds = scopes.holds() if run is None else scopes.holds(run=run)
    found = [each for each in runs_in_doubt(ledger) if run is None or each.run == run]
    if as_json:
        fields = {"runs": found, "holds": [hold_fields(each) for each in holds]}
        click.echo(msgspec.json.encode(fields).decode())
        return OK
    for line in doubt_lines(found):
        click.echo(line)
    for each in holds:
        click.echo(f"{hold_line(each)} of the total, {_state(each)}")
    if not holds and not found:
        click.echo("nothing is held, and nothing is in doubt", err=True)
    return OK


def _state(hold: Hold) -> str:
    return "left by a dead process" if hold.owner_dead else "under way"
