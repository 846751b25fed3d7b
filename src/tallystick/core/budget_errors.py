"""What budgets refuse, and how they are misused, sorted as in `tallystick.core.errors`.

    Refused
    ├── BudgetExhausted       a request would pass a limit
    ├── BudgetUnpriced        money is limited, and nobody knows what the request would cost
    └── HoldAlive             a reservation whose owner may still settle it
    UsageError
    ├── HoldExists            an intent reserves once
    ├── InvalidScope          a scope that cannot stand where it is put, or holds another
    ├── NegativeAmount        nobody gives money back by spending
    ├── ReservationClosed     settled or released before, or never made
    └── ScopeUnknown          not entered, or left
    LedgerError
    └── ScopesFormatUnknown   shared scopes written by a version that this one does not know

They stand here and not in the core's file because that one is full.
"""

from __future__ import annotations

from tallystick.core.budget_amount import Dimension, Scope, shown
from tallystick.core.errors import LedgerError, Refused, UsageError

__all__ = [
    "BudgetExhausted",
    "BudgetUnpriced",
    "HoldAlive",
    "HoldExists",
    "InvalidScope",
    "NegativeAmount",
    "ReservationClosed",
    "ScopeUnknown",
    "ScopesFormatUnknown",
]


class BudgetExhausted(Refused):
    """A request would pass a limit. Nothing was reserved anywhere."""

    code = "refused.budget"

    def __init__(self, *, dimension: Dimension, scope: Scope, needed: int, left: int) -> None:
        super().__init__(
            f"{dimension}: {shown(dimension, needed)} needed, {shown(dimension, left)} left in "
            f"{scope}; raise its limit, or ask for less"
        )
        self.dimension: Dimension = dimension
        self.scope = scope
        self.needed = needed
        self.left = left


class BudgetUnpriced(Refused):
    """A scope limits money, and the request has no known price. Nothing was reserved."""

    code = "refused.unpriced"

    def __init__(self, *, scope: Scope) -> None:
        super().__init__(
            f"usd: {scope} has a limit, and the price of this call is not known; declare the "
            f"price, or waive the limit for unpriced calls"
        )
        self.scope = scope


class HoldAlive(Refused):
    """The owner of a reservation is not proven dead, so it may still settle it itself."""

    code = "refused.hold_alive"

    def __init__(self, *, run: str, intent: int, owner: str) -> None:
        super().__init__(
            f"run {run}, intent {intent}: its owner {owner} is not proven dead; wait for it, or "
            f"insist if you know that it is gone"
        )
        self.run = run
        self.intent = intent
        self.owner = owner


class HoldExists(UsageError):
    """An intent has a reservation already. Every attempt is an intent of its own."""

    code = "usage.hold_exists"

    def __init__(self, *, run: str, intent: int) -> None:
        super().__init__(f"run {run}, intent {intent} has a reservation already")
        self.run = run
        self.intent = intent


class InvalidScope(UsageError):
    """A scope cannot be entered, left or declared like this."""

    code = "usage.scope"

    def __init__(self, *, scope: str, why: str) -> None:
        super().__init__(f"scope {scope[:80]!r}: {why}")
        self.scope = scope
        self.why = why


class NegativeAmount(UsageError):
    """An amount below zero. Nothing was changed."""

    code = "usage.negative_amount"

    def __init__(self, *, dimension: Dimension, given: int) -> None:
        super().__init__(f"{dimension}: an amount is not negative, not {given:,}")
        self.dimension: Dimension = dimension
        self.given = given


class ReservationClosed(UsageError):
    """A reservation is not open: it was settled or released, or never made here."""

    code = "usage.reservation_closed"

    def __init__(self, *, what: str) -> None:
        super().__init__(f"{what} is not open; it was settled or released before, or never made")
        self.what = what


class ScopeUnknown(UsageError):
    """No scope of that id is open."""

    code = "usage.scope_unknown"

    def __init__(self, *, scope: str) -> None:
        super().__init__(f"no scope {scope[:80]!r} is open here")
        self.scope = scope


class ScopesFormatUnknown(LedgerError):
    """The shared scopes in a ledger were written by another version."""

    code = "ledger.scopes_format"

    def __init__(self, *, path: str, found: object, known: int) -> None:
        super().__init__(
            f"the budgets shared in {path} have format {found}; this version reads {known}: use "
            f"the version that wrote them"
        )
        self.path = path
        self.found = found
        self.known = known
