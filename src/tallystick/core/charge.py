"""Define money, charges, the limits of a run, and the reservation and settlement in records."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Literal

import msgspec

from tallystick.core.errors import InvalidLimit

# Money: whole nano-dollars inside, decimal dollars at the door.
#
# A sum that is not exact to the nano-dollar is refused, never rounded: the person who writes a
# finer one means something else than this package would do with it.


# The values that a person may write. A float counts as the decimal that prints it: 0.1 is a tenth.
Money = str | int | float | Decimal

# Leaves room in 64 bits for what is spent and held beside a limit.
NANO_MAX = (1 << 62) - 1
_NANO = Decimal("1e-9")
_PLACES = 9
_PER_DOLLAR = 10**_PLACES
# Wide enough for the largest sum to the last place. A digit that would be cut raises `Inexact`.
_EXACT = Context(prec=40, traps=[Inexact, InvalidOperation])


def nano_usd(value: Money, *, field: str = "usd") -> int:
    """Return dollars as whole nano-dollars, never rounded.

    Raise `InvalidLimit`, which names the field, for more than nine decimals. It is raised also for
    a sum that is no decimal number, not finite, negative or above about 4.6 billion dollars.
    """
    dollars = _decimal(value, field)
    if not dollars.is_finite():
        raise InvalidLimit(field=field, given=value, why="a sum of dollars is finite")
    if dollars < 0:
        raise InvalidLimit(field=field, given=value, why="a sum of dollars is not negative")
    if dollars > NANO_MAX // _PER_DOLLAR:
        most = f"a sum of dollars is at most {NANO_MAX // _PER_DOLLAR:,}"
        raise InvalidLimit(field=field, given=value, why=most)
    try:
        return int(dollars.quantize(_NANO, context=_EXACT).scaleb(_PLACES, context=_EXACT))
    except (Inexact, InvalidOperation):
        finest = "a sum of dollars has at most nine decimals"
        raise InvalidLimit(field=field, given=value, why=finest) from None


def shown_usd(nano: int | None) -> str:
    """Return a sum as exact text: "$0.50", "$0.000123", "-$1,000.00".

    It has at least two decimals. None, an unknown sum, is "unpriced", never $0.
    """
    if nano is None:
        return "unpriced"
    dollars, rest = divmod(abs(nano), _PER_DOLLAR)
    decimals = f"{rest:0{_PLACES}d}".rstrip("0").ljust(2, "0")
    return f"{'-' if nano < 0 else ''}${dollars:,}.{decimals}"


def _decimal(value: object, field: str) -> Decimal:
    try:
        match value:
            case bool():
                pass
            case Decimal():
                return value
            case int() | str():
                return Decimal(value)
            case float():
                # The shortest decimal that means this float; a subclass may print as it likes.
                return Decimal(float.__repr__(value))
    except InvalidOperation:
        pass
    raise InvalidLimit(field=field, given=value, why="a sum of dollars is a decimal number")


# Charges, limits of a run, reservations and settlements, as records hold them.


# A transient failure may succeed if the call is repeated.
FailureKind = Literal["transient", "terminal"]


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """Amounts that something cost. `usd` is nano-dollars, None while the price is unknown.

    In a sum of two, an unknown price adds nothing; the sum is None only if both are.
    """

    usd: int | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    model_calls: int = 0
    turns: int = 0
    host_calls: int = 0
    fuel: int = 0
    wall_ms: int = 0

    def __add__(self, other: Charge) -> Charge:
        known = [each.usd for each in (self, other) if each.usd is not None]
        return Charge(
            usd=sum(known) if known else None,
            tokens_in=self.tokens_in + other.tokens_in,
            tokens_out=self.tokens_out + other.tokens_out,
            model_calls=self.model_calls + other.model_calls,
            turns=self.turns + other.turns,
            host_calls=self.host_calls + other.host_calls,
            fuel=self.fuel + other.fuel,
            wall_ms=self.wall_ms + other.wall_ms,
        )


class RunLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a run in all. Exactly at a limit is allowed.

    `reply_tokens` is for one reply. `retries` is for one call: attempts after the first. `usd` is
    in nano-dollars; None is no limit. `depth` is how many levels of runs may be inside it.
    `wall_ms` is in milliseconds.
    """

    turns: int = 30
    tokens: int = 100_000
    host_calls: int = 10_000
    wall_ms: int = 300_000
    reply_tokens: int = 4_096
    retries: int = 2
    usd: int | None = None
    model_calls: int | None = None
    depth: int = 10


class ModelUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of one call.

    `reported` is False for an estimate; `raw` has the report as it came.
    """

    tokens_in: int
    tokens_out: int
    reported: bool
    raw: Mapping[str, object] = {}


class Reserved(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The worst case of an attempt, reserved in every scope around it before it is sent.

    `tokens_in` is an upper bound, or `counted` with the model's own tokenizer. `usd` is None if no
    price is known; `price` names the policy that applied. `hold` is the number of the reservation
    in the scope that processes share, 0 if there is none.
    """

    tokens_in: int
    tokens_out: int
    usd: int | None = None
    price: str = "unknown"
    counted: bool = False
    hold: int = 0


class Settled(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The charge of an attempt, with the origin of its figures and what was odd about it."""

    figures: Literal["reported", "reserved", "returned"]
    tokens_in: int
    tokens_out: int
    usd: int | None = None
    flags: tuple[str, ...] = ()
