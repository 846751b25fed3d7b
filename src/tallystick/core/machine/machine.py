"""The run machine: one event goes in; the next state and what to ask of the world come out.

Rule 1: every transition is in this file, and in the table where it fits there.
Rule 2: it reads no clock, no file and no socket. What it needs arrives in an event, so replaying a
ledger is running this file again.
Rule 3: an event already on a ledger never raises for what it says. Charges are settled even when
they pass a limit; only the next request is refused. `IllegalEvent` means that the ledger or the
driver is wrong, not the program.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from tallystick.core.charge import Charge
from tallystick.core.errors import IllegalEvent
from tallystick.core.machine import native, prompt
from tallystick.core.machine.answer import (
    Fit,
    are_same,
    as_code,
    direct_reply,
    fallen_back,
    fit_of,
    is_direct,
    not_with_code,
    said_in,
    unfit,
    words_of,
)
from tallystick.core.machine.commands import Final
from tallystick.core.machine.compaction import compacted, results_with, seen
from tallystick.core.machine.prompt import Message, named_in
from tallystick.core.machine.reply import command_name, is_program, parse_reply
from tallystick.core.machine.state import Phase, RunState, after_program, at_start, heard, taught
from tallystick.core.machine.suspect_answer import (
    Doubt,
    doubt_of,
    named_values,
    question,
    still_unnamed,
    written_blind,
)
from tallystick.core.machine.turn import (
    ESCALATED,
    afresh_of,
    asked,
    asked_again,
    asked_anew,
    by_person,
    came_to_nothing,
    changed,
    charge_of,
    end_of,
    next_program,
    over,
    program_of,
    refused_command,
    told_next,
    told_of_check,
)
from tallystick.core.records import (
    DOUBTED,
    LEFT,
    AskModel,
    ChildEnded,
    Event,
    HostAnswered,
    Intent,
    ModelFailed,
    ModelRefused,
    ModelReplied,
    ProgramChecked,
    ProgramFinished,
    QueryFailed,
    QueryRefused,
    QueryReplied,
    RunEnded,
    RunForked,
    RunResumed,
    RunStarted,
    StopReason,
)

_IDLE_MAX = 3
_REPEATS_MAX = 2
_REFUSALS_MAX = 2  # In a row, of what this run does not have.
# Before the second attempt at a model call; doubled for each one after it.
_WAIT_MS = 250
# Ends that other limits may undo.
_BY_LIMITS = frozenset({"budget", "max_turns", "deadline"})

_CONTINUED: frozenset[type[Event]] = frozenset({RunResumed, RunForked})

TRANSITIONS: dict[Phase, frozenset[type[Event]]] = {
    Phase.ASKING: _CONTINUED | {ModelReplied, ModelFailed, ModelRefused},
    Phase.CHECKING: _CONTINUED | {ProgramChecked},
    Phase.RUNNING: _CONTINUED
    | {HostAnswered, QueryReplied, QueryFailed, QueryRefused, ChildEnded, ProgramFinished},
    Phase.ENDING: _CONTINUED | {RunEnded},
    Phase.DONE: _CONTINUED,
}


def begin(started: RunStarted, texts: tuple[str, ...] = ()) -> tuple[RunState, tuple[Intent, ...]]:
    """Start a run over the texts it was given whole: its first intent is to ask the model."""
    unnamed = named_values(started.goal, texts)
    direct = started.strategy == "direct"
    messages = prompt.direct(started, texts) if direct else prompt.opening(started)
    state = RunState(started=started, texts=texts, messages=messages, unnamed=unnamed)
    return _ask(at_start(state))


def advance(state: RunState, event: Event) -> tuple[RunState, tuple[Intent, ...]]:
    """Apply one event. The intents are what to ask of the world next; none ends the run."""
    if type(event) not in TRANSITIONS[state.phase]:
        raise IllegalEvent(event=type(event).__name__, phase=state.phase.value)
    match event:
        case ModelReplied():
            return _replied(state, event)
        case ModelFailed():
            return _failed(state, event)
        case ModelRefused():
            return _refused(state, event)
        case HostAnswered() | QueryReplied() | QueryFailed() | QueryRefused() | ChildEnded():
            return heard(_charged(state, charge_of(event)), event), ()
        case ProgramChecked():
            return _checked(state, event)
        case ProgramFinished():
            return _finished(state, event)
        case RunEnded():
            return msgspec.structs.replace(state, phase=Phase.DONE, ended=event), ()
        case RunResumed() | RunForked():
            return _continued(state, event)
        case _:
            assert_never(event)


def ending(state: RunState, stop: StopReason, detail: str) -> RunState:
    """End a run from outside: it was cancelled, or its time is over, or the sandbox broke."""
    return _end(state, stop, detail)[0]


# -- what a reply leads to, or its failure -----------------------------------------------------


def _failed(state: RunState, event: ModelFailed) -> tuple[RunState, tuple[Intent, ...]]:
    """Ask again where that may help, as an attempt of its own; otherwise end."""
    state = _charged(state, charge_of(event) + Charge(wall_ms=event.wall_ms))
    detail = f"{event.reason}: {event.message}"
    limits = state.started.limits
    if event.reason == LEFT or (event.reason == DOUBTED and event.kind == "transient"):
        # It was not the model that failed. Whoever left ends the run, or goes on with it.
        cap = None if event.reason == LEFT else _over(state)
        excused = msgspec.structs.replace(state, excused=state.excused + 1)
        return _ask(excused, attempt=state.attempt + 1) if cap is None else _end(state, *cap)
    if event.reason == DOUBTED:
        return _end(state, "in_doubt", event.message)
    if state.charge.wall_ms >= limits.wall_ms:
        return _end(state, "deadline", detail)
    if is_direct(state) and (why := not_with_code(event)) is not None:
        return _turn_over(fallen_back(state, why), afresh=True)
    if event.kind == "terminal":
        return _end(state, "model_error", detail)
    if state.attempt - state.excused > limits.retries:
        tries = f" ({state.attempt} attempts)" if state.attempt > 1 else ""
        return _end(state, "model_error", detail + tries)
    if (cap := _over(state)) is not None:
        return _end(state, *cap)
    wait_ms = max(event.retry_after_ms or 0, _WAIT_MS * 2 ** (state.attempt - state.excused - 1))
    if state.charge.wall_ms + wait_ms >= limits.wall_ms:
        late = f"{detail}; asking again in {wait_ms:,} ms would be too late"
        return _end(state, "model_error", late)
    return _ask(state, attempt=state.attempt + 1, wait_ms=wait_ms)


def _refused(state: RunState, event: ModelRefused) -> tuple[RunState, tuple[Intent, ...]]:
    """No budget pays for the call. What nobody asked for by name may be had for less."""
    if is_direct(state) and state.started.strategy_why:
        # Nothing was asked: the turn is the same.
        state = msgspec.structs.replace(state, turn=state.turn - 1)
        return _turn_over(fallen_back(state, "budget"), afresh=True)
    return _end(state, "budget", event.message)


def _replied(state: RunState, event: ModelReplied) -> tuple[RunState, tuple[Intent, ...]]:
    used = charge_of(event) + Charge(turns=1, wall_ms=event.wall_ms)
    reply = parse_reply(event.text, cut=event.cut)
    state = msgspec.structs.replace(state, said=said_in(event.text) or state.said)
    if is_direct(state):
        read = direct_reply(reply, event.text, cut=event.cut)
        if read.kind == "answer":
            return _taken(_charged(state, used), fit_of(read.said, state.started), "direct")
        if read.kind != "program":
            state = fallen_back(_charged(state, used), read.kind, said=read.said)
            return _turn_over(state, afresh=True)
        state = as_code(state)
    said = native.said_of(state, reply, event.text)
    message = Message(role="assistant", part=f"reply:{event.intent}", text=said or "(nothing)")
    stays = state.messages[:-2] if state.passing else state.messages
    state = msgspec.structs.replace(
        _charged(state, used),
        messages=(*stays, message),
        sent=min(state.sent, len(stays)),
        passing=False,
        part=0,
        observed=(),
    )
    if not reply.commands:
        words = words_of(reply, event.text, cut=event.cut)
        return _nudge(state, reply.problem or prompt.WRITE, event.intent, words)
    return _next(msgspec.structs.replace(state, queue=reply.commands, idle=0))


def _next(state: RunState) -> tuple[RunState, tuple[Intent, ...]]:
    """Go on with the reply's next command, or with the next turn."""
    if not state.queue:
        return _turn_over(state)
    command = state.queue[0]
    if is_program(command, native=native.is_native_run(state.started)):
        state, intent = next_program(state)
        return state, (intent,)
    if isinstance(command, Final):
        return _answered(state, command.text, "FINAL", seen=state.part == 0)
    if state.refusals >= _REFUSALS_MAX:
        return _end(state, "refused", f"{command_name(command)} is not available in this run")
    return _next(refused_command(state, command_name(command)))


def _checked(state: RunState, event: ProgramChecked) -> tuple[RunState, tuple[Intent, ...]]:
    """Run a program, have another written, or wait for a person."""
    state = told_of_check(state, event)
    if state.passed:
        return _next(state)
    if event.decision == "escalate":
        return _end(state, "refused", f"{ESCALATED}: {event.message}")
    return _turn_over(msgspec.structs.replace(state, queue=()))


def _finished(state: RunState, event: ProgramFinished) -> tuple[RunState, tuple[Intent, ...]]:
    if event.stop == native.RETRIED:
        return _next(native.run_again(state))
    source = program_of(state)
    pair, repeated = native.ran_before(state, event)
    event, learned, whole, lasts = taught(state, event)
    state = native.after_native(after_program(state), event)
    failed = event.failure is not None
    state = msgspec.structs.replace(
        _charged(state, Charge(fuel=event.fuel, wall_ms=event.wall_ms)),
        phase=Phase.ASKING,
        queue=() if failed else state.queue[1:],
        passing=(repeated or (failed and not lasts)) and (state.part == 0 or state.passing),
        read=state.read or named_in(source, state.started),
        unnamed=still_unnamed(state.unnamed, source, event),
        outputs=state.outputs + event.outputs,
        results=results_with(state, whole),
        part=state.part + 1,
        seen=state.seen if repeated else (*state.seen, pair),
        repeats=state.repeats + repeated,
        partial=(None if lasts else prompt.shown_value(event)) or state.partial,
    )
    if event.answer is not None:
        # With what the program printed, in case the answer is asked about.
        in_part = not all(each.whole for each in state.started.contexts)
        blind = in_part and written_blind(
            source, event.answer, printed=bool(event.stdout.strip()), messages=seen(state, event)
        )
        shown = (prompt.output(event, part=f"result:{event.intent}"),) if event.stdout else ()
        return _answered(state, event.answer, "program", seen=not blind, source=source, shown=shown)
    if event.stop == "deadline":
        # Its deadline was what the run had left.
        return _end(state, "deadline", f"{state.started.limits.wall_ms:,} ms passed")
    if state.repeats >= _REPEATS_MAX:
        return _end(state, "no_progress", "the same program gave the same result again")
    if came_to_nothing(state, event):
        return _doubted(state, "empty", event.stdout.strip(), source)
    notes = (prompt.REPEATED,) if repeated else learned
    rebound = prompt.rebound_tools(source, state.started)
    message = prompt.observation(
        event,
        part=f"result:{event.intent}",
        started=state.started,
        notes=notes,
        rebound=rebound,
        told=state.rebound,
    )
    state = msgspec.structs.replace(state, rebound=rebound)
    afresh = repeated and state.part == 1
    if afresh and prompt.output(event, part="").text in state.messages[-2].text:
        # What it came to is in view already.
        message = Message(role="user", part=message.part, text=prompt.REPEATED)
    state = msgspec.structs.replace(state, observed=(*state.observed, message))
    return _turn_over(state, afresh=True) if afresh else _next(state)


def _answered(
    state: RunState,
    answer: str,
    how: str,
    *,
    seen: bool,
    source: str = "",
    shown: tuple[Message, ...] = (),
) -> tuple[RunState, tuple[Intent, ...]]:
    """Take an answer, unless it looks like a slip and there is a turn left to say so, once."""
    fit = fit_of(answer, state.started)
    answer, again = fit.text, fit.problem is not None or fit.text == state.doubted
    doubt = doubt_of(answer, state.started, read=state.read, seen=seen, unnamed=state.unnamed)
    if doubt != "unseen" and prompt.rebound_tools(source, state.started):
        doubt = "rebound"
    if doubt is None or again or doubt in state.asked_about or _over(state) is not None:
        return _taken(state, fit, how)
    if doubt == "unseen":
        state = msgspec.structs.replace(state, observed=(*state.observed, *shown))
    else:
        state = msgspec.structs.replace(state, partial=answer or state.partial)
    return _doubted(state, doubt, answer, source)


def _taken(state: RunState, fit: Fit, how: str) -> tuple[RunState, tuple[Intent, ...]]:
    """End with an answer that fits. For another one the model is asked again, and not for ever."""
    if fit.problem is None:
        return _end(msgspec.structs.replace(state, answer=fit.text), "answered", how)
    state, why = unfit(state, fit, _over(state))
    return _turn_over(state) if why is None else _end(state, "no_progress", why)


def _doubted(
    state: RunState, doubt: Doubt, answer: str, source: str
) -> tuple[RunState, tuple[Intent, ...]]:
    text = question(
        doubt, answer, state.started, texts=state.texts, unnamed=state.unnamed, source=source
    )
    message = Message(role="user", part=f"doubt:{state.turn}:{doubt}", text=text)
    return _turn_over(
        msgspec.structs.replace(
            state,
            phase=Phase.ASKING,
            asked_about=(*state.asked_about, doubt),
            doubted=answer,
            observed=(*state.observed, message),
        ),
        afresh=doubt != "unseen",
    )


def _nudge(
    state: RunState, problem: str, intent: int, words: str | None
) -> tuple[RunState, tuple[Intent, ...]]:
    """A reply without action gets a concrete request, and not for ever.

    A model that says the same in words again, after it was asked for a program, has answered.
    """
    same = are_same(words, state.words) and not prompt.is_older(state.started)
    state = msgspec.structs.replace(state, idle=state.idle + 1, words=words or state.words)
    if same and words is not None:
        return _answered(state, words, "words", seen=True)
    if state.idle >= _IDLE_MAX:
        return _end(state, "no_progress", f"{state.idle} replies in a row held nothing to run")
    message = prompt.nudge(problem, state.started, partial=state.partial, part=f"nudge:{intent}")
    return _turn_over(msgspec.structs.replace(state, observed=(message,)), afresh=True)


# -- going on ----------------------------------------------------------------------------------


def _continued(
    state: RunState, event: RunResumed | RunForked
) -> tuple[RunState, tuple[Intent, ...]]:
    """Go on under what it says is another. What is under way stays so; an end may be undone."""
    state = native.restarted(state, event)
    state = msgspec.structs.replace(state, started=changed(state.started, event))
    ended = state.ended
    grown = isinstance(event, RunForked) and ended is not None and ended.stop != "answered"
    undone = grown or (ended is not None and ended.stop in _BY_LIMITS)
    undone = undone and _over(state) is None
    if not (state.phase is Phase.DONE or (state.phase is Phase.ENDING and undone)):
        return state, ()
    state = afresh_of(state)
    if (decided := by_person(state, event)) is not None:
        return _next(decided) if decided.queue else _turn_over(decided)
    if state.observed:
        return _turn_over(state)
    if (cap := _over(state)) is not None:
        return _end(state, *cap)
    # It was not answered: the turn is the same.
    return _ask(msgspec.structs.replace(state, turn=max(0, state.turn - 1)))


# -- turns and caps ----------------------------------------------------------------------------


def _turn_over(state: RunState, *, afresh: bool = False) -> tuple[RunState, tuple[Intent, ...]]:
    """Put the observations into the prompt and ask again, unless a cap says no."""
    if (cap := _over(state)) is not None:
        return _end(state, *cap)
    observed, told = told_next(state)
    messages = asked_again(state.messages, observed, afresh=afresh)
    state = msgspec.structs.replace(
        state,
        messages=messages,
        told=told,
        sent=min(state.sent, len(messages) - 1),
        observed=(),
        queue=(),
        passing=state.passing and not afresh,
    )
    return _ask(compacted(state))


def _over(state: RunState) -> tuple[StopReason, str] | None:
    return over(state.started.limits, state.charge)


def _ask(
    state: RunState, *, attempt: int = 1, wait_ms: int = 0
) -> tuple[RunState, tuple[Intent, ...]]:
    if state.turn == 0 and (cap := _over(state)) is not None:
        return _end(state, *cap)
    state, intent = asked(state, attempt=attempt, wait_ms=wait_ms)
    return state, (intent,)


def _end(state: RunState, stop: StopReason, detail: str) -> tuple[RunState, tuple[Intent, ...]]:
    ended = end_of(state, stop, detail)
    return msgspec.structs.replace(state, phase=Phase.ENDING, ended=ended, queue=()), ()


def _charged(state: RunState, charge: Charge) -> RunState:
    return msgspec.structs.replace(state, charge=state.charge + charge)


# A run that is gone on with between intents: what it asks next is asked as it counts now.


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
