"""A model call that was never made, and the worst it could have cost."""

from __future__ import annotations

from dataclasses import dataclass

from tallystick.core.budget_errors import BudgetExhausted, BudgetUnpriced

__all__ = ["RefusedCall"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedCall:
    """What no budget pays for. `tokens_out` is the cap that was wanted; `usd` None is unpriced."""

    error: BudgetExhausted | BudgetUnpriced
    model: str
    tokens_in: int
    tokens_out: int
    usd: int | None
