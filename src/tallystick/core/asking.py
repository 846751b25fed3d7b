"""How a run asks its model: the request as an intent, and the state that waits for its reply."""

from __future__ import annotations

import msgspec

from tallystick.core import prompt
from tallystick.core.caps import tokens_out_max
from tallystick.core.native import noted
from tallystick.core.records import AskModel
from tallystick.core.state import Phase, RunState

__all__ = ["asked", "asked_anew"]

_WARM = 0.7


def asked(state: RunState, *, attempt: int = 1, wait_ms: int = 0) -> tuple[RunState, AskModel]:
    """Ask with the messages as they stand. The first attempt begins a turn."""
    state = noted(state)
    reply_max = tokens_out_max(state.started.limits, state.charge)
    temperature = _temperature(state)
    intent = AskModel(
        intent=state.next_intent,
        turn=state.turn + (attempt == 1),
        base=state.base,
        added=tuple(message.part for message in state.messages[state.sent :]),
        request_sha256=prompt.request_digest(
            state.started.model,
            state.messages,
            tokens_out_max=reply_max,
            temperature=temperature,
        ),
        kept=state.sent if state.sent < state.base_length else None,
        attempt=attempt,
        wait_ms=wait_ms,
        tokens_out_max=reply_max,
        temperature=temperature,
    )
    state = msgspec.structs.replace(
        state,
        phase=Phase.ASKING,
        turn=intent.turn,
        attempt=attempt,
        excused=0 if attempt == 1 else state.excused,
        next_intent=state.next_intent + 1,
        base=intent.intent,
        base_length=len(state.messages),
        sent=len(state.messages),
    )
    return state, intent


def asked_anew(state: RunState, intent: AskModel) -> tuple[RunState, AskModel]:
    """A request that was not made yet, under the model and the limits that count now.

    Where there is something to say that the prompt does not have, it is made from the start.
    """
    if state.native.note:
        before = msgspec.structs.replace(
            state, next_intent=intent.intent, turn=intent.turn - (intent.attempt == 1)
        )
        again, made = asked(before, attempt=intent.attempt, wait_ms=intent.wait_ms)
        return msgspec.structs.replace(again, next_intent=state.next_intent), made
    reply_max = tokens_out_max(state.started.limits, state.charge)
    temperature = _temperature(state)
    made = msgspec.structs.replace(
        intent,
        tokens_out_max=reply_max,
        temperature=temperature,
        request_sha256=prompt.request_digest(
            state.started.model,
            state.messages,
            tokens_out_max=reply_max,
            temperature=temperature,
        ),
    )
    return state, made


def _temperature(state: RunState) -> float | None:
    temperature = state.started.temperature
    if temperature is not None and state.repeats:
        # At the temperature that led here it would write the same again.
        return max(temperature, _WARM)
    return temperature
