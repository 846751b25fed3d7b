"""What the machine works out at the end of a turn, and of a run. It decides nothing."""

from __future__ import annotations

import msgspec

from tallystick.core import prompt
from tallystick.core.canonical import digest
from tallystick.core.caps import share_notice, turn_is_last
from tallystick.core.charge import Charge, RunLimits
from tallystick.core.commands import as_program
from tallystick.core.compaction import compacted
from tallystick.core.direct import is_direct, is_fallback
from tallystick.core.doubt import printed_empty
from tallystick.core.native import is_native_run, kind_of
from tallystick.core.prompt import Message
from tallystick.core.records import (
    CheckProgram,
    ProgramChecked,
    ProgramFinished,
    RunEnded,
    RunForked,
    RunProgram,
    RunResumed,
    StopReason,
)
from tallystick.core.state import Phase, RunState
from tallystick.core.window import asked_again

__all__ = [
    "ESCALATED",
    "by_person",
    "came_to_nothing",
    "end_of",
    "next_program",
    "program_of",
    "refused_command",
    "told_next",
    "told_of_check",
]

# What the end of a run says whose program a person has to decide about.
ESCALATED = "vocabulary: a person has to decide"
_DENIED = "A person looked at this program and did not allow it."


def program_of(state: RunState) -> str:
    """The source of the program that is to run now."""
    return as_program(state.queue[0])


def next_program(state: RunState) -> tuple[RunState, RunProgram | CheckProgram]:
    """Have the program that is next run; under a vocabulary, have it checked before."""
    sha256 = digest(program_of(state).encode("utf-8", "surrogatepass"))
    kind = kind_of(state.queue[0])
    checked = kind in ("python", "bash") and state.started.vocabulary is not None
    if checked and not state.passed:
        check = CheckProgram(turn=state.turn, part=state.part, sha256=sha256)
        return msgspec.structs.replace(state, phase=Phase.CHECKING), check
    intent = RunProgram(
        intent=state.next_intent,
        turn=state.turn,
        part=state.part,
        sha256=sha256,
        kind=kind,
        effect=is_native_run(state.started),
    )
    state = msgspec.structs.replace(
        state,
        phase=Phase.RUNNING,
        next_intent=state.next_intent + 1,
        refusals=0,
        passed=False,
    )
    return state, intent


def refused_command(state: RunState, name: str) -> RunState:
    """The state after a command that this run does not have, which the model is told."""
    refused = Message(
        role="user",
        part=f"refused:{state.turn}:{state.part}",
        text=f"{name} is not available in this run. {prompt.WRITE}",
    )
    return msgspec.structs.replace(
        state,
        queue=state.queue[1:],
        part=state.part + 1,
        refusals=state.refusals + 1,
        observed=(*state.observed, refused),
    )


def told_of_check(state: RunState, event: ProgramChecked) -> RunState:
    """The state after a check: what the model is told, and how often programs were refused."""
    state = msgspec.structs.replace(
        state,
        phase=Phase.ASKING,
        passed=event.decision in ("pass", "warn"),
        unchecked=0 if event.is_valid else event.retry_count + 1,
        held=state.queue if event.decision == "escalate" else (),
    )
    if not event.feedback:
        return state
    return _told(state, f"vocabulary:{state.turn}:{state.part}", event.feedback)


def by_person(state: RunState, event: RunResumed | RunForked) -> RunState | None:
    """The state after a person decided about the program that waited; None if nobody did.

    What is approved is next. If it is denied the model is told, and may write another.
    """
    if not state.held or isinstance(event, RunForked) or event.decision is None:
        return None
    free = msgspec.structs.replace(state, held=(), unchecked=0)
    if event.decision == "approve":
        return msgspec.structs.replace(free, queue=state.held, passed=True)
    text = f"{_DENIED} {prompt.WRITE}"
    return _told(free, f"denied:{state.turn}:{state.part}", text)


def _told(state: RunState, part: str, text: str) -> RunState:
    message = Message(role="user", part=part, text=text)
    return msgspec.structs.replace(state, observed=(*state.observed, message))


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
