"""What the machine works out at the end of a turn, and of a run. It decides nothing."""

from __future__ import annotations

import msgspec

from tallystick.core import prompt
from tallystick.core.caps import share_notice, turn_is_last
from tallystick.core.charge import Charge, RunLimits
from tallystick.core.commands import as_program
from tallystick.core.compaction import compacted
from tallystick.core.direct import is_direct, is_fallback
from tallystick.core.doubt import printed_empty
from tallystick.core.prompt import Message
from tallystick.core.records import ProgramFinished, RunEnded, StopReason
from tallystick.core.reply import Code
from tallystick.core.state import RunState
from tallystick.core.window import asked_again

__all__ = ["came_to_nothing", "end_of", "program_of", "told_next"]


def program_of(state: RunState) -> str:
    """The source of the program that is to run now."""
    command = state.queue[0]
    return command.source if isinstance(command, Code) else as_program(command)


def came_to_nothing(state: RunState, event: ProgramFinished) -> bool:
    """Whether a program over the data printed a zero or an empty list, and nothing else."""
    return (
        state.part == 1
        and not state.queue
        and printed_empty(event)
        and state.read
        and "empty" not in state.asked_about
    )


def told_next(state: RunState) -> tuple[list[Message], int]:
    """What the model is told next, and the share of its budget that it then knows of."""
    observed = list(state.observed)
    limits, used = state.started.limits, state.charge
    told = share_notice(limits, used, told=state.told)
    bound = sum(len(each.text) for each in (*state.messages, *observed)) - _saved(state, observed)
    if any(is_fallback(each) for each in observed):
        # What the direct prompt took says nothing of the turns that come.
        limits, used = _from_here(limits, used)
    if turn_is_last(limits, used, prompt_bound=bound) and not is_direct(state):
        observed.append(Message(role="user", part="last", text=prompt.ANSWER_NOW))
    elif told is not None:
        observed.append(Message(role="user", part=f"spent:{told[0]}", text=told[1]))
    return observed, state.told if told is None else told[0]


def _saved(state: RunState, observed: list[Message]) -> int:
    """How many characters of the next prompt compaction leaves out."""
    if not state.started.compact_at:
        return 0
    messages = asked_again(state.messages, observed, afresh=False)
    shorter = compacted(msgspec.structs.replace(state, messages=messages)).messages
    return sum(len(each.text) for each in messages) - sum(len(each.text) for each in shorter)


def _from_here(limits: RunLimits, used: Charge) -> tuple[RunLimits, Charge]:
    """Limits and use as if the run began now. Its time goes on."""
    tokens = used.tokens_in + used.tokens_out
    left = msgspec.structs.replace(
        limits,
        turns=limits.turns - used.turns,
        tokens=limits.tokens - tokens,
        usd=None if limits.usd is None else limits.usd - (used.usd or 0),
    )
    return left, Charge(wall_ms=used.wall_ms)


def end_of(state: RunState, stop: StopReason, detail: str) -> RunEnded:
    """The end of a run, with the best that it has."""
    answered = stop == "answered"
    return RunEnded(
        stop=stop,
        detail=detail,
        answer=state.answer if answered else state.partial,
        partial=not answered and state.partial is not None,
        charge=state.charge,
    )
