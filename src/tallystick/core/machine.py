"""The run machine: one event goes in; the next state and what to ask of the world come out.

Rule 1: every transition is in this file, and in the table where it fits there.
Rule 2: it reads no clock, no file and no socket. What it needs arrives in an event, so replaying a
ledger is running this file again.
Rule 3: an event already on a ledger never raises for what it says. Charges are settled even when
they pass a limit; only the next request is refused. `IllegalEvent` means that the ledger or the
driver is wrong, not the program.
"""

from __future__ import annotations

from enum import Enum
from typing import assert_never

import msgspec

from tallystick.core import prompt
from tallystick.core.canonical import canonical, digest
from tallystick.core.errors import IllegalEvent
from tallystick.core.prompt import Message
from tallystick.core.records import (
    AskModel,
    Charge,
    Event,
    HostAnswered,
    Intent,
    ModelFailed,
    ModelReplied,
    ProgramFinished,
    RunEnded,
    RunProgram,
    RunStarted,
    StopReason,
)
from tallystick.core.reply import Code, Command, Final, FinalVar, fenced, parse_reply

__all__ = ["TRANSITIONS", "Phase", "RunState", "advance", "begin", "ending", "program_of"]

_IDLE_MAX = 3
_REPEATS_MAX = 2
# So often in a row may a model ask for what this run does not have.
_REFUSALS_MAX = 2
# Beyond this part of the time, the next turn is treated as the last.
_LATE = 0.8
_TEXT_CHARS_MAX = 2_000
# Before the second attempt at a model call; doubled for each one after it.
_WAIT_MS = 250


class Phase(Enum):
    """Where a run stands."""

    ASKING = "asking"
    RUNNING = "running"
    ENDING = "ending"
    DONE = "done"


TRANSITIONS: dict[Phase, frozenset[type[Event]]] = {
    Phase.ASKING: frozenset({ModelReplied, ModelFailed}),
    Phase.RUNNING: frozenset({HostAnswered, ProgramFinished}),
    Phase.ENDING: frozenset({RunEnded}),
    Phase.DONE: frozenset(),
}


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known of a run. Equal ledgers give equal states."""

    started: RunStarted
    phase: Phase = Phase.ASKING
    turn: int = 0
    attempt: int = 1
    next_intent: int = 1
    messages: tuple[Message, ...] = ()
    base: int | None = None
    sent: int = 0
    queue: tuple[Command, ...] = ()
    part: int = 0
    observed: tuple[Message, ...] = ()
    charge: Charge = Charge()
    answer: str | None = None
    partial: str | None = None
    seen: tuple[str, ...] = ()
    repeats: int = 0
    idle: int = 0
    refusals: int = 0
    ended: RunEnded | None = None


def begin(started: RunStarted) -> tuple[RunState, tuple[Intent, ...]]:
    """Start a run: its first intent is to ask the model."""
    state = RunState(started=started, messages=prompt.opening(started))
    return _ask(state)


def advance(state: RunState, event: Event) -> tuple[RunState, tuple[Intent, ...]]:
    """Apply one event. The intents are what to ask of the world next; none ends the run."""
    if type(event) not in TRANSITIONS[state.phase]:
        raise IllegalEvent(event=type(event).__name__, phase=state.phase.value)
    match event:
        case ModelReplied():
            return _replied(state, event)
        case ModelFailed():
            return _failed(state, event)
        case HostAnswered():
            return _charged(state, Charge(host_calls=1)), ()
        case ProgramFinished():
            return _finished(state, event)
        case RunEnded():
            return msgspec.structs.replace(state, phase=Phase.DONE, ended=event), ()
        case RunStarted():
            raise IllegalEvent(event="RunStarted", phase=state.phase.value)
        case _:
            assert_never(event)


def ending(state: RunState, stop: StopReason, detail: str) -> RunState:
    """End a run from outside: it was cancelled, or its time is over, or the sandbox broke."""
    return _end(state, stop, detail)[0]


def program_of(state: RunState) -> str:
    """The source of the program that is to run now."""
    command = state.queue[0]
    return command.source if isinstance(command, Code) else _as_program(command)


# -- what a reply leads to, or its failure -----------------------------------------------------


def _failed(state: RunState, event: ModelFailed) -> tuple[RunState, tuple[Intent, ...]]:
    """Ask again where that may help, as an attempt of its own; otherwise end."""
    used = event.usage
    charge = Charge(
        tokens_in=used.tokens_in if used is not None else 0,
        tokens_out=used.tokens_out if used is not None else 0,
        model_calls=1,
        wall_ms=event.wall_ms,
    )
    state = _charged(state, charge)
    detail = f"{event.reason}: {event.message}"
    limits = state.started.limits
    if state.charge.wall_ms >= limits.wall_ms:
        return _end(state, "deadline", detail)
    if event.kind == "terminal":
        return _end(state, "model_error", detail)
    if state.attempt > limits.retries:
        tries = f" ({state.attempt} attempts)" if state.attempt > 1 else ""
        return _end(state, "model_error", detail + tries)
    over = _over(state)
    if over is not None:
        return _end(state, *over)
    wait_ms = max(event.retry_after_ms or 0, _WAIT_MS * 2 ** (state.attempt - 1))
    if state.charge.wall_ms + wait_ms >= limits.wall_ms:
        return _end(
            state, "model_error", f"{detail}; asking again in {wait_ms:,} ms would be too late"
        )
    return _ask(state, attempt=state.attempt + 1, wait_ms=wait_ms)


def _replied(state: RunState, event: ModelReplied) -> tuple[RunState, tuple[Intent, ...]]:
    used = Charge(
        tokens_in=event.usage.tokens_in,
        tokens_out=event.usage.tokens_out,
        model_calls=1,
        turns=1,
        wall_ms=event.wall_ms,
    )
    reply = parse_reply(event.text, cut=event.cut)
    said = "\n\n".join(_shown(each) for each in reply.commands) or event.text[:_TEXT_CHARS_MAX]
    message = Message(role="assistant", part=f"reply:{event.intent}", text=said or "(nothing)")
    state = msgspec.structs.replace(
        _charged(state, used), messages=(*state.messages, message), part=0, observed=()
    )
    if not reply.commands:
        return _nudge(state, reply.problem or "Write one ```repl block.", event.intent)
    return _next(msgspec.structs.replace(state, queue=reply.commands, idle=0))


def _shown(command: Command) -> str:
    """A command in the form the model is asked to write."""
    if isinstance(command, Code):
        return fenced(command.source)
    if isinstance(command, Final):
        return f"FINAL({command.text})"
    return fenced(_as_program(command)) if isinstance(command, FinalVar) else _tag(command)


def _tag(command: Command) -> str:
    return str(command.__struct_config__.tag).upper()


def _as_program(command: Command) -> str:
    """A finishing command as the program that does it.

    `FINAL(total)` outside a block names a variable more often than the word: the program knows.
    """
    if isinstance(command, FinalVar):
        return f"FINAL_VAR({command.name!r})"
    assert isinstance(command, Final)
    return f"FINAL(globals().get({command.text!r}, {command.text!r}))"


def _is_program(command: Command) -> bool:
    if isinstance(command, Final):
        return command.text.isidentifier()
    return isinstance(command, Code | FinalVar)


def _next(state: RunState) -> tuple[RunState, tuple[Intent, ...]]:
    """Go on with the reply's next command, or with the next turn."""
    if not state.queue:
        return _turn_over(state)
    command = state.queue[0]
    if _is_program(command):
        intent = RunProgram(
            intent=state.next_intent,
            turn=state.turn,
            part=state.part,
            sha256=digest(program_of(state).encode("utf-8", "surrogatepass")),
        )
        state = msgspec.structs.replace(
            state, phase=Phase.RUNNING, next_intent=state.next_intent + 1, refusals=0
        )
        return state, (intent,)
    if isinstance(command, Final):
        return _end(msgspec.structs.replace(state, answer=command.text), "answered", "FINAL")
    if state.refusals >= _REFUSALS_MAX:
        return _end(state, "refused", f"{_tag(command)} is not available in this run")
    refused = Message(
        role="user",
        part=f"refused:{state.turn}:{state.part}",
        text=f"{_tag(command)} is not available in this run. Write one ```repl block.",
    )
    return _next(
        msgspec.structs.replace(
            state,
            queue=state.queue[1:],
            part=state.part + 1,
            refusals=state.refusals + 1,
            observed=(*state.observed, refused),
        )
    )


def _finished(state: RunState, event: ProgramFinished) -> tuple[RunState, tuple[Intent, ...]]:
    source = program_of(state)
    pair = digest(canonical([source, event.stdout, event.value, event.stop]))
    repeated = pair in state.seen
    state = msgspec.structs.replace(
        _charged(state, Charge(fuel=event.fuel, wall_ms=event.wall_ms)),
        phase=Phase.ASKING,
        queue=() if event.failure is not None else state.queue[1:],
        part=state.part + 1,
        seen=state.seen if repeated else (*state.seen, pair),
        repeats=state.repeats + repeated,
        partial=prompt.shown_value(event) or state.partial,
    )
    if event.answer is not None:
        return _end(msgspec.structs.replace(state, answer=event.answer), "answered", "program")
    if event.stop == "deadline":
        # Its deadline was what the run had left.
        return _end(state, "deadline", f"{state.started.limits.wall_ms:,} ms passed")
    if state.repeats >= _REPEATS_MAX:
        return _end(state, "no_progress", "the same program gave the same result again")
    notes = (_REPEATED,) if repeated else ()
    message = prompt.observation(event, part=f"result:{event.intent}", notes=notes)
    return _next(msgspec.structs.replace(state, observed=(*state.observed, message)))


_REPEATED = (
    "You ran this program before and it gave the same result. Do something else: look at other "
    "parts of the data, or finish with FINAL(...)."
)


def _nudge(state: RunState, problem: str, intent: int) -> tuple[RunState, tuple[Intent, ...]]:
    """A reply without action gets a concrete request, and not for ever."""
    state = msgspec.structs.replace(state, idle=state.idle + 1)
    if state.idle >= _IDLE_MAX:
        return _end(state, "no_progress", f"{state.idle} replies in a row held nothing to run")
    shown = f"\n\nThe last result was:\n{state.partial}" if state.partial else ""
    message = Message(role="user", part=f"nudge:{intent}", text=f"{problem}{shown}")
    return _turn_over(msgspec.structs.replace(state, observed=(message,)))


# -- turns and caps ----------------------------------------------------------------------------


def _turn_over(state: RunState) -> tuple[RunState, tuple[Intent, ...]]:
    """Put the observations into the prompt and ask again, unless a cap says no."""
    text = "\n\n".join(message.text for message in state.observed)
    parts = "+".join(message.part for message in state.observed)
    over = _over(state)
    if over is not None:
        return _end(state, *over)
    if _last_turn(state):
        text = f"{text}\n\n{_ANSWER_NOW}"
        parts += "+last"
    message = Message(role="user", part=parts, text=text)
    return _ask(msgspec.structs.replace(state, messages=(*state.messages, message), observed=()))


_ANSWER_NOW = (
    "This is your last turn. Write one ```repl block that calls FINAL(...) with your answer."
)


def _over(state: RunState) -> tuple[StopReason, str] | None:
    limits, used = state.started.limits, state.charge
    if used.turns >= limits.turns:
        return "max_turns", f"all {limits.turns:,} turns used"
    if used.wall_ms >= limits.wall_ms:
        return "deadline", f"{limits.wall_ms:,} ms passed"
    if used.host_calls > limits.host_calls:
        return "budget", f"host_calls: {limits.host_calls:,} allowed"
    if used.tokens_in + used.tokens_out >= limits.tokens:
        return "budget", f"tokens: {limits.tokens:,} allowed, all used"
    return None


def _last_turn(state: RunState) -> bool:
    """True if a cap would refuse the turn after the next, as far as can be told."""
    limits, used = state.started.limits, state.charge
    spent = used.tokens_in + used.tokens_out
    per_turn = spent // max(1, used.turns)
    return (
        used.turns + 1 >= limits.turns
        or used.wall_ms > limits.wall_ms * _LATE
        or spent + 2 * per_turn >= limits.tokens
    )


def _ask(
    state: RunState, *, attempt: int = 1, wait_ms: int = 0
) -> tuple[RunState, tuple[Intent, ...]]:
    if state.turn == 0 and (over := _over(state)) is not None:
        return _end(state, *over)
    spent = state.charge.tokens_in + state.charge.tokens_out
    tokens_out_max = min(state.started.limits.reply_tokens, state.started.limits.tokens - spent)
    temperature = state.started.temperature
    intent = AskModel(
        intent=state.next_intent,
        turn=state.turn + (attempt == 1),
        base=state.base,
        added=tuple(message.part for message in state.messages[state.sent :]),
        request_sha256=prompt.request_digest(
            state.started.model,
            state.messages,
            tokens_out_max=tokens_out_max,
            temperature=temperature,
        ),
        attempt=attempt,
        wait_ms=wait_ms,
        tokens_out_max=tokens_out_max,
        temperature=temperature,
    )
    state = msgspec.structs.replace(
        state,
        phase=Phase.ASKING,
        turn=intent.turn,
        attempt=attempt,
        next_intent=state.next_intent + 1,
        base=intent.intent,
        sent=len(state.messages),
    )
    return state, (intent,)


def _end(state: RunState, stop: StopReason, detail: str) -> tuple[RunState, tuple[Intent, ...]]:
    answered = stop == "answered"
    ended = RunEnded(
        stop=stop,
        detail=detail,
        answer=state.answer if answered else state.partial,
        partial=not answered and state.partial is not None,
        charge=state.charge,
    )
    return msgspec.structs.replace(state, phase=Phase.ENDING, ended=ended, queue=()), ()


def _charged(state: RunState, charge: Charge) -> RunState:
    return msgspec.structs.replace(state, charge=state.charge + charge)
