"""`tally total`: show or change the dollars that all runs of the ledger may cost together."""

from __future__ import annotations

import datetime

import click

from tallystick.cli.parts import JSON, echo_json, echo_line
from tallystick.core.budget.amount import Budget
from tallystick.core.charge import Money, nano_usd, shown_usd
from tallystick.core.errors import InvalidLimit, UsageError
from tallystick.settings.paths import ledger_path
from tallystick.settings.settings import load_settings
from tallystick.stores import open_stores
from tallystick.upkeep.total import Total, change_total, read_total

_NONE = "none"
_CHANGES_SHOWN_MAX = 10


@click.command("total")
@click.argument("usd", required=False)
@click.option(
    "--raise", "may_raise", is_flag=True, help="Allow a higher total than before, or none."
)
@JSON
def command(usd: str | None, may_raise: bool, as_json: bool) -> None:
    r"""Show or change the limit in dollars for all runs together.

    The total is stored in the ledger file, and holds for every process that uses this ledger,
    whatever its configuration says. USD sets or lowers it; with --raise, USD may also be higher, or
    `none`. Each change is recorded. Spending counts from the time when the first total was set.
    Without USD, the total and what is left of it are shown.

    \b
    Example:
        tally total 5
        tally total 20 --raise
    """
    if usd is None and may_raise:
        raise UsageError("--raise needs the new total: tally total USD --raise")
    limit = None if usd is None else _limit(usd)
    own = None if as_json else _configured_total()
    with open_stores(ledger_path()) as stores:
        if usd is None:
            total = read_total(stores)
        else:
            total = change_total(stores, limit, may_raise=may_raise)
    if as_json:
        echo_json(_fields(total))
    else:
        _show(total)
        if own is not None:
            echo_line(_own_line(*own, total.usd), indent=6, err=True)


def _limit(usd: str) -> Money | None:
    """Check a sum of dollars; `none` becomes None. Raise `UsageError` for other text."""
    if usd.lower() == _NONE:
        return None
    try:
        nano_usd(usd)
        return usd
    except InvalidLimit as error:
        raise UsageError(
            f"{usd[:60]!r} is not a total; give dollars with at most nine decimals, or {_NONE}"
        ) from error


def _configured_total() -> tuple[int, str] | None:
    """Return the setting `total_usd` in nano-dollars and its source, or None if it is not set."""
    settings = load_settings()
    if settings.total.usd is None:
        return None
    source = next(each.source for each in settings.listed() if each.name == "total_usd")
    return settings.total.usd, source


def _show(total: Total) -> None:
    click.echo(f"total     {_NONE if total.usd is None else shown_usd(total.usd)}")
    if total != Total():
        click.echo(f"spent     {shown_usd(total.spent)}")
        click.echo(f"reserved  {shown_usd(total.reserved)}")
        if total.left is not None:
            click.echo(f"left      {shown_usd(total.left)}")
        if total.unpriced:
            click.echo(f"unpriced  {total.unpriced:,}  (calls whose price is unknown, not counted)")
    for each in total.changes[-_CHANGES_SHOWN_MAX:]:
        click.echo(f"changed   {_when(each.changed_at_ms)}  {_change(each.before, each.after)}")


def _own_line(own: int, source: str, limit: int | None) -> str:
    """Write which of two totals counts: the configured one or the one in the ledger."""
    named = f"total_usd is {shown_usd(own)} ({source})"
    if limit is None:
        return f"note: {named}; the next run records it"
    if own < limit:
        return f"note: {named}, which is lower: it is the limit for runs with that configuration"
    if own > limit:
        return f"note: {named}; the recorded total is lower, and is the limit"
    return f"note: {named}"


def _change(before: Budget, after: Budget) -> str:
    return " to ".join(
        _NONE if each.usd is None else shown_usd(each.usd) for each in (before, after)
    )


def _when(at_ms: int) -> str:
    return f"{datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC):%Y-%m-%d %H:%M}"


def _fields(total: Total) -> dict[str, object]:
    """Return the total as JSON fields, in nano-dollars; None stands for no total."""
    return {
        "total": total.usd,
        "spent": total.spent,
        "reserved": total.reserved,
        "left": total.left,
        "unpriced": total.unpriced,
        "changes": [
            {"at_ms": each.changed_at_ms, "before": each.before.usd, "after": each.after.usd}
            for each in total.changes
        ],
    }
