"""A price without bands, for tests of what a scope can still pay."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from tallystick.core.budget.tree import WorstUsd


def flat_price(*, nano_in: Fraction, nano_out: Fraction) -> WorstUsd:
    """Return a price in nano-dollars per token, rounded up once."""
    return lambda tokens_in, tokens_out: ceil(nano_in * tokens_in + nano_out * tokens_out)
