"""Decay: how much a note still matters after some hours, by its own function."""

from __future__ import annotations

import math

__all__ = ["DECAY_RATE_PER_HOUR", "DECAY_STEP", "decayed_once", "effective_importance"]

DECAY_RATE_PER_HOUR = 0.01
# What forgetting by decay takes off, unless the note says otherwise.
DECAY_STEP = 0.1
_ACCESS_WEIGHT = 0.05


def effective_importance(
    importance: float,
    *,
    hours: float,
    access_count: int = 0,
    rate: float | None = None,
    function: str | None = None,
) -> float:
    """The importance × exp(-rate × hours) + 0.05 × ln(1 + accesses), at most 1.

    `linear` takes off rate × hours of it, `step:<h>` halves it every h hours, `power_law:<a>`
    divides it by (1 + hours) to the power of a.
    """
    age = max(0.0, hours)
    speed = DECAY_RATE_PER_HOUR if rate is None else rate
    name, _, number = (function or "exponential").partition(":")
    match name:
        case "linear":
            left = max(0.0, 1.0 - speed * age)
        case "step":
            # Beyond a thousand halvings there is nothing to see.
            steps = age // float(number) if float(number) > 0 else 1_000.0
            left = 0.5 ** min(steps, 1_000.0)
        case "power_law":
            left = (1.0 + age) ** -float(number)
        case _:
            left = math.exp(-speed * age)
    return min(1.0, importance * left + _ACCESS_WEIGHT * math.log(1 + access_count))


def decayed_once(importance: float, *, rate: float | None) -> float:
    """What is left after one forgetting by decay: the note's rate less, at least 0."""
    return max(0.0, importance - (DECAY_STEP if rate is None else rate))
