"""A run that is gone on with between intents: what it asks next is asked as it counts now."""

from __future__ import annotations

from tallystick.core.asking import asked_anew
from tallystick.core.caps import over
from tallystick.core.machine import advance, ending
from tallystick.core.records import AskModel, Intent, RunForked, RunResumed
from tallystick.core.state import Phase, RunState

__all__ = ["passed_between"]


def passed_between(
    state: RunState, event: RunResumed | RunForked, pending: tuple[Intent, ...]
) -> tuple[RunState, tuple[Intent, ...]]:
    """Apply a passage while nothing is under way. What is pending is made again, or refused."""
    state, intents = advance(state, event)
    if intents or state.phase is not Phase.ASKING:
        return state, intents or pending
    cap = over(state.started.limits, state.charge)
    if cap is not None:
        return ending(state, *cap), ()
    again: list[Intent] = []
    for each in pending:
        if isinstance(each, AskModel):
            state, each = asked_anew(state, each)
        again.append(each)
    return state, tuple(again)
