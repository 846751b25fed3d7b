"""What is written of a model call of a turn that came to nothing."""

from __future__ import annotations

import time

from tallystick.core.budget_errors import BudgetExhausted, BudgetUnpriced
from tallystick.core.charge import Settled
from tallystick.core.records import AskModel, ModelFailed, ModelRefused
from tallystick.model.port import ModelError

__all__ = ["failed_of", "ms_since", "refused_by"]


def failed_of(intent: AskModel, error: ModelError, began: float, settled: Settled) -> ModelFailed:
    return ModelFailed(
        intent=intent.intent,
        turn=intent.turn,
        reason=error.reason,
        message=error.message,
        wall_ms=ms_since(began),
        kind=error.kind,
        status=error.status,
        retry_after_ms=error.retry_after_ms,
        billed=error.billed,
        usage=error.usage,
        settled=settled,
    )


def refused_by(error: BudgetExhausted | BudgetUnpriced, intent: AskModel) -> ModelRefused:
    """What is written of a call that no budget pays for."""
    return ModelRefused(
        intent=intent.intent,
        turn=intent.turn,
        message=str(error),
        dimension=error.dimension if isinstance(error, BudgetExhausted) else "usd",
        scope=str(error.scope),
    )


def ms_since(began: float) -> int:
    """Whole milliseconds since a moment of the monotonic clock."""
    return round((time.monotonic() - began) * 1000)
