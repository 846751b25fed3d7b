"""Money: whole nano-dollars inside, decimal dollars at the door.

A sum that is not exact to the nano-dollar is refused, never rounded: whoever writes a finer one
means something else than this package would do with it.
"""

from __future__ import annotations

from decimal import Context, Decimal, Inexact, InvalidOperation

from tallystick.core.errors import InvalidLimit

__all__ = ["NANO_MAX", "Money", "nano_usd", "shown_usd"]

# What a person may write. A float counts as the decimal that prints it: 0.1 is a tenth.
Money = str | int | float | Decimal

# Leaves room in 64 bits for what is spent and held beside a limit.
NANO_MAX = (1 << 62) - 1
_NANO = Decimal("1e-9")
_PLACES = 9
_PER_DOLLAR = 10**_PLACES
# Wide enough for the largest sum to the last place; anything that would be cut is a trap.
_EXACT = Context(prec=40, traps=[Inexact, InvalidOperation])


def nano_usd(value: Money, *, field: str = "usd") -> int:
    """Dollars as whole nano-dollars. Raises `InvalidLimit` with the field's name."""
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
    """A sum for people, exact: "$0.50", "$0.000123". An unknown one is "unpriced", never $0."""
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
