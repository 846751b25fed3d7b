"""Read and change the total: the limit in dollars for all runs of a ledger's file together."""

from __future__ import annotations

import msgspec

from tallystick.core.budget.amount import ScopeRow
from tallystick.core.charge import Money, nano_usd
from tallystick.ledger.scope_rows import LimitChange
from tallystick.runtime.spend.scopes import DEPLOYMENT
from tallystick.stores import Stores


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """The total of a ledger: sums in nano-dollars, and the changes, the oldest first.

    `usd` is None without a total, and `left` too. `unpriced` counts the calls that are in no sum,
    because their price is unknown. Spending counts from the first total on.
    """

    usd: int | None = None
    spent: int = 0
    reserved: int = 0
    left: int | None = None
    unpriced: int = 0
    changes: tuple[LimitChange, ...] = ()


def read_total(stores: Stores) -> Total:
    """Return the recorded total and what is left of it. Raise the errors of the ledger."""
    scopes = stores.scopes
    row = next((each for each in scopes.rows() if each.scope.id == DEPLOYMENT), None)
    return _total_of(row, tuple(scopes.changes(DEPLOYMENT)))


def change_total(stores: Stores, usd: Money | None, *, may_raise: bool = False) -> Total:
    """Record another total in dollars, or None for no limit; it holds for every process.

    The change is recorded too. Raise `InvalidLimit` for what is no sum of dollars. Raise
    `LimitWouldRise` for a higher total than before, or none, without `may_raise`. Raise the errors
    of the ledger.
    """
    limit = None if usd is None else nano_usd(usd)
    stores.scopes.change_total(
        DEPLOYMENT,
        lambda before: msgspec.structs.replace(before, usd=limit),
        may_raise=may_raise,
    )
    return read_total(stores)


def _total_of(row: ScopeRow | None, changes: tuple[LimitChange, ...]) -> Total:
    if row is None:
        return Total(changes=changes)
    return Total(
        usd=row.limit.usd,
        spent=row.spent.usd or 0,
        reserved=row.reserved.usd or 0,
        left=row.remaining.usd,
        unpriced=row.unpriced,
        changes=changes,
    )
