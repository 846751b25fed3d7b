"""How long a reply may be so that what is left still pays for it.

Rule: a price is asked for the worst that a call can cost with so much input and at most so much
output: reasoning, price bands and cache writes included. More output never costs less.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from tallystick.core.budget_amount import Remaining
from tallystick.core.budget_errors import BudgetExhausted, BudgetUnpriced

__all__ = ["WorstUsd", "affordable_output", "flat_price"]

# Input tokens and the output cap to nano-dollars, rounded up.
WorstUsd = Callable[[int, int], int]


def flat_price(*, nano_in: Fraction, nano_out: Fraction) -> WorstUsd:
    """A price in nano-dollars per token, without bands."""
    below = nano_in.denominator * nano_out.denominator
    each_in = nano_in.numerator * nano_out.denominator
    each_out = nano_out.numerator * nano_in.denominator

    def worst(tokens_in: int, tokens_out: int) -> int:
        return -(-(each_in * tokens_in + each_out * tokens_out) // below)

    return worst


def affordable_output(
    left: Remaining,
    *,
    tokens_in: int,
    tokens_out_wanted: int,
    tokens_out_min: int,
    price: WorstUsd | None,
    usd_waived: bool = False,
) -> int:
    """The largest output cap, up to the one that is wanted, that tokens and money still pay for.

    Raises `BudgetExhausted` if that is less than `tokens_out_min`, or than what is wanted if that
    is less still: a reply cut so short is paid for and of no use. A price of None is not known;
    where money is limited that is refused, unless the limit is waived.
    """
    least = min(tokens_out_min, tokens_out_wanted)
    cap = tokens_out_wanted
    if left.tokens is not None:
        cap = min(cap, left.tokens - tokens_in)
        if cap < least:
            raise BudgetExhausted(
                dimension="tokens",
                scope=left.by["tokens"],
                needed=tokens_in + least,
                left=left.tokens,
            )
    if left.usd is None or (price is None and usd_waived):
        return cap
    if price is None:
        raise BudgetUnpriced(scope=left.by["usd"])
    needed = price(tokens_in, least)
    if needed > left.usd:
        raise BudgetExhausted(dimension="usd", scope=left.by["usd"], needed=needed, left=left.usd)
    return _largest(price, tokens_in=tokens_in, paid=least, cap=cap, usd=left.usd)


def _largest(price: WorstUsd, *, tokens_in: int, paid: int, cap: int, usd: int) -> int:
    """The largest output up to `cap` that `usd` pays for, where it does pay for `paid`."""
    if price(tokens_in, cap) <= usd:
        return cap
    # Between a cap that is paid for and one that is not. Bands make the price a staircase, so it is
    # searched and not divided.
    too_much = cap
    while too_much - paid > 1:
        middle = (paid + too_much) // 2
        if price(tokens_in, middle) <= usd:
            paid = middle
        else:
            too_much = middle
    return paid
