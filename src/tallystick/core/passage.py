"""What it changes of a run that it is gone on with, or grows from another."""

from __future__ import annotations

import msgspec

from tallystick.core import prompt
from tallystick.core.prompt import Message
from tallystick.core.records import RunForked, RunResumed, RunStarted
from tallystick.core.state import Phase, RunState

__all__ = ["afresh_of", "changed"]


def changed(started: RunStarted, event: RunResumed | RunForked) -> RunStarted:
    """The start as it counts from here on."""
    if event.limits is not None:
        started = msgspec.structs.replace(started, limits=event.limits)
    if isinstance(event, RunForked):
        if event.model is not None:
            started = msgspec.structs.replace(started, model=event.model)
        if event.temperature is not None:
            started = msgspec.structs.replace(started, temperature=event.temperature)
    return started


def afresh_of(state: RunState) -> RunState:
    """The state of a run that had ended, about to ask again. There is something to say, or to ask.

    The last request may never have been written, so nothing is said by reference to it.
    """
    said = state.observed
    if state.messages[-1].role == "assistant" and not said:
        said = (Message(role="user", part=f"resumed:{state.turn}", text=prompt.WRITE),)
    return msgspec.structs.replace(
        state,
        phase=Phase.ASKING,
        ended=None,
        base=None,
        base_length=0,
        sent=0,
        repeats=0,
        idle=0,
        observed=said,
    )
