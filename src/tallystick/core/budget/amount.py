"""Define budgets, amounts, what remains and scopes, and the errors that budgets raise.

Eight dimensions are sums. One, depth, is a level: two child runs side by side are no deeper than
one. So a `Budget` and a `Remaining` have depth, and an `Amount` does not.

The fields of each struct are in the order of `DIMENSIONS`: they are also read as rows of numbers.
Tokens come before money, because a refusal names the first dimension that is over.

    Refused
    ├── BudgetExhausted       a request would pass a limit
    │   └── BudgetOverrun     a call was charged more than its reservation before
    ├── BudgetUnpriced        money is limited, and the cost of the request is unknown
    └── HoldAlive             a reservation whose owner may still settle it
    UsageError
    ├── HoldExists            an intent reserves once
    ├── InvalidScope          a scope that may not be where it is put, or that holds another
    ├── LimitWouldRise        a recorded total is raised only by a caller that asks for it
    ├── NegativeAmount        an amount below zero
    ├── ReservationClosed     settled or released before, or never made
    └── ScopeUnknown          not entered, or left
    LedgerError
    └── ScopesFormatUnknown   shared scopes written by a version that this one does not know
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, get_args

import msgspec

from tallystick.core.charge import NANO_MAX, Charge, Money, nano_usd, shown_usd
from tallystick.core.errors import Facts, InvalidLimit, LedgerError, Refused, UsageError

Dimension = Literal[
    "tokens",
    "usd",
    "model_calls",
    "turns",
    "host_calls",
    "fuel",
    "wall_ms",
    "output_bytes",
    "depth",
]
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)
# The dimensions that are sums.
COUNTED = DIMENSIONS[:-1]
ScopeKind = Literal["deployment", "session", "run", "step"]
LIMIT_MAX = NANO_MAX

_Limit = Annotated[int, msgspec.Meta(ge=0, le=LIMIT_MAX)] | None
_Count = Annotated[int, msgspec.Meta(ge=0)]


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a scope, one for each dimension. None is no limit, and zero allows nothing.

    Exactly at a limit is allowed. `usd` is in nano-dollars. `tokens` are input and output together.
    `depth` is how many levels of runs may be inside each other below the first.
    """

    tokens: _Limit = None
    usd: _Limit = None
    model_calls: _Limit = None
    turns: _Limit = None
    host_calls: _Limit = None
    fuel: _Limit = None
    wall_ms: _Limit = None
    output_bytes: _Limit = None
    depth: _Limit = None

    @classmethod
    def of(
        cls,
        *,
        usd: Money | None = None,
        tokens: float | None = None,
        model_calls: float | None = None,
        turns: float | None = None,
        host_calls: float | None = None,
        fuel: float | None = None,
        wall_ms: float | None = None,
        output_bytes: float | None = None,
        depth: float | None = None,
    ) -> Budget:
        """Return a budget from dollars and whole numbers, as a person writes them.

        Raise `InvalidLimit`, which names the field, for a value that is not whole, negative or too
        large, and for dollars with more than nine decimals.
        """
        return cls(
            tokens=_whole(tokens, "tokens"),
            usd=None if usd is None else nano_usd(usd),
            model_calls=_whole(model_calls, "model_calls"),
            turns=_whole(turns, "turns"),
            host_calls=_whole(host_calls, "host_calls"),
            fuel=_whole(fuel, "fuel"),
            wall_ms=_whole(wall_ms, "wall_ms"),
            output_bytes=_whole(output_bytes, "output_bytes"),
            depth=_whole(depth, "depth"),
        )


class Amount(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers that something used, or may use at worst.

    `usd` None is unknown, which is not zero.
    """

    tokens: _Count = 0
    usd: Annotated[int, msgspec.Meta(ge=0)] | None = 0
    model_calls: _Count = 0
    turns: _Count = 0
    host_calls: _Count = 0
    fuel: _Count = 0
    wall_ms: _Count = 0
    output_bytes: _Count = 0

    @classmethod
    def of_charge(cls, charge: Charge) -> Amount:
        """Return a charge as an amount. Without a model call, an unknown price counts as zero."""
        return cls(
            tokens=charge.tokens_in + charge.tokens_out,
            usd=charge.usd if charge.model_calls else charge.usd or 0,
            model_calls=charge.model_calls,
            turns=charge.turns,
            host_calls=charge.host_calls,
            fuel=charge.fuel,
            wall_ms=charge.wall_ms,
        )


def lower_of(first: Budget, second: Budget) -> Budget:
    """Return the lower limit of two budgets in each dimension; None is no limit."""
    limits: dict[Dimension, int | None] = {}
    for dimension in DIMENSIONS:
        both = (getattr(first, dimension), getattr(second, dimension))
        limits[dimension] = min((each for each in both if each is not None), default=None)
    return Budget(**limits)


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """A scope of a budget: a deployment, an agent (kind `session`), a run or a step."""

    id: str
    parent: str | None
    kind: ScopeKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else f"this {self.kind}"


class Remaining(msgspec.Struct, frozen=True, kw_only=True):
    """The amount that is left: the limit less what is spent and reserved. None is no limit.

    A figure is negative if more was spent than its limit allows. `by` names the scope whose limit
    each figure comes from.
    """

    tokens: int | None = None
    usd: int | None = None
    model_calls: int | None = None
    turns: int | None = None
    host_calls: int | None = None
    fuel: int | None = None
    wall_ms: int | None = None
    output_bytes: int | None = None
    depth: int | None = None
    by: Mapping[Dimension, Scope] = {}


class ScopeRow(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one scope. Its `remaining` follows from its own limits only.

    `unpriced` counts the calls that are in no figure of `usd`, because their price is unknown.
    `deepest` is how many levels of runs there have been inside the scope. `left` is True for a
    scope that was left while something was still reserved in it.
    """

    scope: Scope
    limit: Budget
    spent: Amount
    reserved: Amount
    remaining: Remaining
    unpriced: int = 0
    deepest: int = 0
    left: bool = False


class Breach(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that the amount already spent has passed."""

    scope: Scope
    dimension: Dimension
    limit: int
    spent: int

    def __str__(self) -> str:
        spent = figure_text(self.dimension, self.spent)
        limit = figure_text(self.dimension, self.limit)
        return f"{self.scope}: {spent} {self.dimension} spent of {limit}"


def tightest(first: Remaining, second: Remaining) -> Remaining:
    """Return the smaller figure of both in each dimension, with the scope it comes from.

    Where only one has a limit, that one counts. If both are equal, `first` counts.
    """
    left: dict[Dimension, int | None] = {}
    by: dict[Dimension, Scope] = {}
    for dimension in DIMENSIONS:
        found: list[tuple[int, Remaining]] = [
            (figure, each)
            for each in (first, second)
            if (figure := getattr(each, dimension)) is not None
        ]
        if found:
            left[dimension], source = min(found, key=lambda pair: pair[0])
            if dimension in source.by:
                by[dimension] = source.by[dimension]
    return Remaining(by=by, **left)


def figure_text(dimension: Dimension, value: int) -> str:
    """Return a figure as text: "$0.50" for `usd`, else the number alone, with commas."""
    return shown_usd(value) if dimension == "usd" else f"{value:,}"


def _whole(value: object, field: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidLimit(field=field, given=value, why="a limit is a whole number")
    if isinstance(value, float):
        # NaN and the infinities are not whole either.
        if not value.is_integer():
            raise InvalidLimit(field=field, given=value, why="a limit is a whole number")
        value = int(value)
    if value < 0:
        raise InvalidLimit(field=field, given=value, why="a limit is not negative")
    if value > LIMIT_MAX:
        raise InvalidLimit(field=field, given=value, why=f"a limit is at most {LIMIT_MAX:,}")
    return int(value)


# The errors of budgets, in the families of `tallystick.core.errors`.


# Also the mark by which `is_of_total` recognizes the detail of a run that the total stopped.
_TOTAL = "tally total shows its limit and changes it"


def is_of_total(detail: str) -> bool:
    """Return True if this detail says that the total of the ledger stopped the run.

    It is recognized by the end of the message of `BudgetExhausted`.
    """
    return detail.endswith(_TOTAL)


class BudgetExhausted(Facts, Refused):
    """A request would pass a limit. Nothing was reserved anywhere."""

    code = "refused.budget"

    dimension: Dimension
    scope: Scope
    needed: int
    left: int

    def text(self) -> str:
        todo = "raise its limit, or ask for less"
        if self.scope.kind == "deployment":
            todo = _TOTAL
        needed = figure_text(self.dimension, self.needed)
        left = figure_text(self.dimension, self.left)
        return f"{self.dimension}: {needed} needed, {left} left in {self.scope}; {todo}"


# Also the mark by which `is_overrun` recognizes the detail of such a run.
_OVERRUN = "that were reserved as the most it could cost"


def is_overrun(detail: str) -> bool:
    """Return True if this detail says that a charge above its reservation ended the run.

    It is recognized by words of the message of `BudgetOverrun`.
    """
    return _OVERRUN in detail


class BudgetOverrun(BudgetExhausted):
    """Refusal of a call because an earlier one was charged more than its reservation.

    `left` is what was reserved for the earlier call, `needed` what it was charged.
    """

    code = "refused.overrun"

    def text(self) -> str:
        charged = figure_text(self.dimension, self.needed)
        reserved = figure_text(self.dimension, self.left)
        return (
            f"{self.dimension}: a call was charged {charged}, more than the {reserved} {_OVERRUN}, "
            f"so {self.scope} cannot keep its limits with this provider; check that the provider "
            f"obeys max_tokens and reports usage correctly, then resume, or start anew"
        )


class BudgetUnpriced(Facts, Refused):
    """A scope limits money, and the request has no known price. Nothing was reserved."""

    code = "refused.unpriced"
    says = (
        "usd: {scope} has a limit, and the price of this call is not known; declare the price, or "
        "waive the limit for unpriced calls"
    )

    scope: Scope


class LimitWouldRise(Facts, UsageError):
    """A recorded limit would be raised without the caller asking for that. Nothing was changed."""

    code = "usage.limit_would_rise"

    dimension: Dimension
    before: int
    after: int | None

    def text(self) -> str:
        higher = "no limit" if self.after is None else figure_text(self.dimension, self.after)
        before = figure_text(self.dimension, self.before)
        return (
            f"the recorded total is {before}, and {higher} is more; to raise it for every process "
            "that uses this ledger, add --raise"
        )


class HoldAlive(Facts, Refused):
    """The owner of a reservation is not proven dead, so it may still settle it itself."""

    code = "refused.hold_alive"
    says = (
        "run {run}, intent {intent}: the process that made this call may still be alive (owner "
        "{owner}); wait until it ends, or end it, and try again"
    )

    run: str
    intent: int
    owner: str


class HoldExists(Facts, UsageError):
    """An intent has a reservation already. Each attempt needs an intent of its own."""

    code = "usage.hold_exists"
    says = "run {run}, intent {intent} has a reservation already"

    run: str
    intent: int


class InvalidScope(Facts, UsageError):
    """A scope cannot be entered, left or declared like this."""

    code = "usage.scope"

    scope: str
    why: str

    def text(self) -> str:
        return f"scope {self.scope[:80]!r}: {self.why}"


class NegativeAmount(Facts, UsageError):
    """An amount below zero. Nothing was changed."""

    code = "usage.negative_amount"
    says = "{dimension}: an amount is not negative, not {given:,}"

    dimension: Dimension
    given: int


class ReservationClosed(Facts, UsageError):
    """A reservation is not open: it was settled or released, or never made here."""

    code = "usage.reservation_closed"
    says = "{what} is not open; it was settled or released before, or never made"

    what: str


class ScopeUnknown(Facts, UsageError):
    """No scope of that id is open."""

    code = "usage.scope_unknown"

    scope: str

    def text(self) -> str:
        return f"no scope {self.scope[:80]!r} is open here"


class ScopesFormatUnknown(Facts, LedgerError):
    """The shared scopes in a ledger were written by another version."""

    code = "ledger.scopes_format"
    says = (
        "the budgets shared in {where} have format {found}; this version reads {known}: use the "
        "version that wrote them"
    )

    where: str
    found: object
    known: int
