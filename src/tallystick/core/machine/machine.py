"""Advance a run: one event goes in; the next state and the next intents come out.

Rule 1: every transition is in this file, and in the table where it fits there.
Rule 2: it reads no clock, no file and no socket. What it needs arrives in an event, so replaying a
ledger is running this file again.
Rule 3: an event already on a ledger never raises for its content. Charges are settled even when
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
    direct_reply,
    fall_back_to_code,
    fallback_reason,
    fit_of,
    is_direct,
    reject_answer,
    reply_text,
    restart_as_code,
    say_the_same,
    words_of,
)
from tallystick.core.machine.commands import Final
from tallystick.core.machine.compaction import add_result, compact, messages_with_outputs
from tallystick.core.machine.position import is_position, with_positions
from tallystick.core.machine.prompt import Message, uses_data
from tallystick.core.machine.reply import command_name, is_program, parse_reply
from tallystick.core.machine.state import (
    Phase,
    RunState,
    after_answer,
    after_program,
    split_instructions,
    with_first_skills,
)
from tallystick.core.machine.suspect_answer import (
    Doubt,
    doubt_of,
    failing_line,
    in_passages,
    is_typed_unseen,
    named_values,
    question,
    still_unnamed,
)
from tallystick.core.machine.turn import (
    ESCALATED,
    apply_check,
    apply_decision,
    charge_of,
    end_of,
    limit_reached,
    messages_after_reply,
    next_notices,
    next_program,
    plan_request,
    plan_request_again,
    printed_nothing_found,
    program_of,
    skip_command,
    state_after_end,
    with_new_terms,
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
_REFUSALS_MAX = 2  # Commands in a row that this run does not have.
# The wait before the second attempt at a model call; doubled for each one after it.
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
    """Return the first state of a run, and its first intents: to ask the model.

    `texts` are the texts that the run was given whole. If a limit is used up from the start, there
    is no intent, and the state has the end of the run.
    """
    unnamed = named_values(started.goal, texts)
    direct = started.strategy == "direct"
    messages = prompt.direct(started, texts) if direct else prompt.opening(started)
    state = RunState(started=started, texts=texts, messages=messages, unnamed=unnamed)
    return _ask(with_first_skills(state))


def advance(state: RunState, event: Event) -> tuple[RunState, tuple[Intent, ...]]:
    """Return the state after an event, and the intents that follow.

    Without intents, the run has ended, or it waits: for further events of a program, or for its end
    to be recorded. Raise `IllegalEvent` if this event cannot come in the phase of the state.
    """
    if type(event) not in TRANSITIONS[state.phase]:
        raise IllegalEvent(event=type(event).__name__, phase=state.phase.value)
    match event:
        case ModelReplied():
            return _on_reply(state, event)
        case ModelFailed():
            return _on_failure(state, event)
        case ModelRefused():
            return _on_refusal(state, event)
        case HostAnswered() | QueryReplied() | QueryFailed() | QueryRefused() | ChildEnded():
            return after_answer(_add_charge(state, charge_of(event)), event), ()
        case ProgramChecked():
            return _on_check(state, event)
        case ProgramFinished():
            return _on_program_end(state, event)
        case RunEnded():
            return msgspec.structs.replace(state, phase=Phase.DONE, ended=event), ()
        case RunResumed() | RunForked():
            return _on_continuation(state, event)
        case _:
            assert_never(event)


def end_from_outside(state: RunState, stop: StopReason, detail: str) -> RunState:
    """Return the state of a run that was ended from outside the machine, in any phase.

    It was cancelled, or its time is over, or its sandbox broke. The end is in `ended`; the driver
    records it.
    """
    return _end(state, stop, detail)[0]


# -- model replies and failures ----------------------------------------------------------------


def _on_failure(state: RunState, event: ModelFailed) -> tuple[RunState, tuple[Intent, ...]]:
    """Ask again if that may help, as a new attempt; otherwise end.

    A direct run may continue with programs instead. Attempts that failed by no fault of the model
    count neither for the retries nor for the wait.
    """
    state = _add_charge(state, charge_of(event) + Charge(wall_ms=event.wall_ms))
    detail = f"{event.reason}: {event.message}"
    limits = state.started.limits
    if event.reason == LEFT or (event.reason == DOUBTED and event.kind == "transient"):
        # The model did not fail. After a cancel the limits are not checked: the driver ends the
        # run at once, and it has to end as `cancelled` and not as `budget`. The next attempt is
        # planned for a resume, which checks the limits itself (`continue_between_intents`).
        cap = None if event.reason == LEFT else _limit_reached(state)
        excused = msgspec.structs.replace(state, excused=state.excused + 1)
        return _ask(excused, attempt=state.attempt + 1) if cap is None else _end(state, *cap)
    if event.reason == DOUBTED:
        return _end(state, "in_doubt", event.message)
    if state.charge.wall_ms >= limits.wall_ms:
        return _end(state, "deadline", detail)
    # Before `terminal` is looked at: to ask the same again is useless, to ask for programs is not.
    if is_direct(state) and (why := fallback_reason(event)) is not None:
        return _next_turn(fall_back_to_code(state, why), afresh=True)
    if event.kind == "terminal":
        return _end(state, "model_error", detail)
    if state.attempt - state.excused > limits.retries:
        tries = f" ({state.attempt} attempts)" if state.attempt > 1 else ""
        return _end(state, "model_error", detail + tries)
    if (cap := _limit_reached(state)) is not None:
        return _end(state, *cap)
    # The wait is the run's time too: it ends now if the wait would use that up.
    wait_ms = max(event.retry_after_ms or 0, _WAIT_MS * 2 ** (state.attempt - state.excused - 1))
    if state.charge.wall_ms + wait_ms >= limits.wall_ms:
        late = f"{detail}; asking again in {wait_ms:,} ms would be too late"
        return _end(state, "model_error", late)
    return _ask(state, attempt=state.attempt + 1, wait_ms=wait_ms)


def _on_refusal(state: RunState, event: ModelRefused) -> tuple[RunState, tuple[Intent, ...]]:
    """End the run, or continue with programs, whose prompts are shorter.

    That is possible for a direct run whose strategy the caller did not ask for by name.
    """
    if is_direct(state) and state.started.strategy_why:
        # The call was never made, so the turn is the same.
        state = msgspec.structs.replace(state, turn=state.turn - 1)
        return _next_turn(fall_back_to_code(state, "budget"), afresh=True)
    return _end(state, "budget", event.message)


def _on_reply(state: RunState, event: ModelReplied) -> tuple[RunState, tuple[Intent, ...]]:
    """Charge a reply, and continue with its commands, its answer, or a request for a program."""
    used = charge_of(event) + Charge(turns=1, wall_ms=event.wall_ms)
    reply = parse_reply(event.text, cut=event.cut)
    state = msgspec.structs.replace(state, said=reply_text(event.text) or state.said)
    if is_direct(state):
        read = direct_reply(reply, event.text, cut=event.cut)
        if read.kind == "answer":
            return _take_answer(
                _add_charge(state, used), fit_of(read.said, state.started), "direct"
            )
        if read.kind != "program":
            state = fall_back_to_code(_add_charge(state, used), read.kind, said=read.said)
            return _next_turn(state, afresh=True)
        state = restart_as_code(state)
    said = native.reply_in_prompt(state, reply, event.text)
    message = Message(role="assistant", part=f"reply:{event.intent}", text=said or "(nothing)")
    stays = state.messages[:-2] if state.passing else state.messages
    state = msgspec.structs.replace(
        _add_charge(state, used),
        messages=(*stays, message),
        sent=min(state.sent, len(stays)),
        passing=False,
        part=0,
        observed=(),
    )
    if not reply.commands:
        words = words_of(reply, event.text, cut=event.cut)
        return _nudge(state, reply.problem or prompt.WRITE, event.intent, words)
    return _next_command(msgspec.structs.replace(state, queue=reply.commands, idle=0))


def _next_command(state: RunState) -> tuple[RunState, tuple[Intent, ...]]:
    """Continue with the reply's next command, or with the next turn."""
    if not state.queue:
        return _next_turn(state)
    command = state.queue[0]
    if is_program(command, native=native.is_native_run(state.started)):
        state, intent = next_program(state)
        return state, (intent,)
    if isinstance(command, Final):
        return _offer_answer(state, command.text, "FINAL", seen=state.part == 0)
    if state.refusals >= _REFUSALS_MAX:
        return _end(state, "refused", f"{command_name(command)} is not available in this run")
    return _next_command(skip_command(state, command_name(command)))


def _on_check(state: RunState, event: ProgramChecked) -> tuple[RunState, tuple[Intent, ...]]:
    """Run the program, have another one written, or end the run if a person must decide.

    An approved wait goes on with the same command; a refusal drops the reply's other commands.
    """
    state = apply_check(state, event)
    if state.passed:
        return _next_command(state)
    if event.decision == "escalate":
        given = state.started.vocabulary
        stop: StopReason = "waiting" if given is not None and given.parks else "refused"
        return _end(state, stop, f"{ESCALATED}: {event.message}")
    return _next_turn(msgspec.structs.replace(state, queue=()))


def _on_program_end(state: RunState, event: ProgramFinished) -> tuple[RunState, tuple[Intent, ...]]:
    """Record the result of a program, then end the run, ask about its answer, or continue.

    After a failed program, the other commands of its reply are dropped.
    """
    if event.stop == native.RETRIED:
        return _next_command(native.prepare_retry(state))
    source = program_of(state)
    pair, repeated = native.identify_program(state, event)
    event, learned, whole, lasts = split_instructions(state, event)
    state = native.note_names_made(after_program(state), event)
    failed = event.failure is not None
    failing = failing_line(event)
    same_line = failing == state.failing != "" and prompt.has_aid(state.started, "line")
    # A reply of which every part failed or repeated leaves the prompt: small models copy it.
    state = msgspec.structs.replace(
        _add_charge(state, Charge(fuel=event.fuel, wall_ms=event.wall_ms)),
        phase=Phase.ASKING,
        queue=() if failed else state.queue[1:],
        passing=(repeated or (failed and not lasts)) and (state.part == 0 or state.passing),
        read=state.read or uses_data(source, state.started),
        unnamed=still_unnamed(state.unnamed, source, event),
        outputs=state.outputs + event.outputs,
        results=add_result(state, whole),
        part=state.part + 1,
        seen=state.seen if repeated else (*state.seen, pair),
        repeats=state.repeats + repeated,
        partial=(None if lasts else prompt.last_value(event)) or state.partial,
        positions=with_positions(state.positions, source, event),
        failing=failing,
    )
    if event.answer is not None:
        # Includes what the program printed, in case the model is asked about the answer.
        in_part = not all(each.whole for each in state.started.contexts)
        blind = in_part and is_typed_unseen(
            source,
            event.answer,
            printed=bool(event.stdout.strip()),
            messages=messages_with_outputs(state, event),
        )
        shown = (prompt.output(event, part=f"result:{event.intent}"),) if event.stdout else ()
        return _offer_answer(
            state, event.answer, "program", seen=not blind, source=source, shown=shown
        )
    if event.stop == "deadline":
        # The deadline of the program was the rest of the run's time.
        return _end(state, "deadline", f"{state.started.limits.wall_ms:,} ms passed")
    if state.repeats >= _REPEATS_MAX:
        return _end(state, "no_progress", "the same program gave the same result again")
    if printed_nothing_found(state, event):
        return _ask_about_answer(state, "empty", event.stdout.strip(), source)
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
    # The first program of a reply repeated: the reply leaves the prompt, and what follows in it is
    # not run, since it builds on that program. With the values of its line in view, a model can
    # mend its program; without them, it copies it.
    afresh = repeated and state.part == 1 and not same_line
    if same_line and event.failure is not None:
        message = prompt.failed_again(event.failure, part=message.part)
    elif afresh and prompt.output(event, part="").text in state.messages[-2].text:
        # The prompt shows its output already.
        message = Message(role="user", part=message.part, text=prompt.REPEATED)
    state = msgspec.structs.replace(state, observed=(*state.observed, message))
    return _next_turn(state, afresh=True) if afresh else _next_command(state)


def _offer_answer(
    state: RunState,
    answer: str,
    how: str,
    *,
    seen: bool,
    source: str = "",
    shown: tuple[Message, ...] = (),
) -> tuple[RunState, tuple[Intent, ...]]:
    """Take an answer, or ask once about one that looks like a slip, if there is a turn left.

    An answer that does not fit the schema, or that is given again, is not doubted. Each doubt is
    raised once in a run. `seen` is False if the model wrote the answer before it saw the output,
    `shown` is that output, and `source` the program that gave the answer.
    """
    fit = fit_of(answer, state.started)
    answer, again = fit.text, fit.problem is not None or fit.text == state.doubted
    near = in_passages(answer, state.started)
    doubt = doubt_of(
        answer,
        state.started,
        read=state.read or near,
        seen=seen or near,
        unnamed=() if near else state.unnamed,
        position=not near
        and prompt.has_aid(state.started, "position")
        and is_position(answer, state.started, source=source, printed=state.positions),
    )
    if doubt != "unseen" and prompt.rebound_tools(source, state.started):
        doubt = "rebound"
    if doubt is None or again or doubt in state.asked_about or _limit_reached(state) is not None:
        return _take_answer(state, fit, how)
    if doubt == "unseen":
        state = msgspec.structs.replace(state, observed=(*state.observed, *shown))
    else:
        state = msgspec.structs.replace(state, partial=answer or state.partial)
    return _ask_about_answer(state, doubt, answer, source)


def _take_answer(state: RunState, fit: Fit, how: str) -> tuple[RunState, tuple[Intent, ...]]:
    """End with an answer that fits the schema.

    For another one, ask the model again, at most twice.
    """
    if fit.problem is None:
        return _end(msgspec.structs.replace(state, answer=fit.text), "answered", how)
    state, why = reject_answer(state, fit, _limit_reached(state))
    return _next_turn(state) if why is None else _end(state, "no_progress", why)


def _ask_about_answer(
    state: RunState, doubt: Doubt, answer: str, source: str
) -> tuple[RunState, tuple[Intent, ...]]:
    """Ask the model about an answer that looks like a slip.

    An answer that was typed unseen stays in the prompt with its program. Any other program that
    gave a doubtful answer is taken out, because a model copies it.
    """
    text = question(
        doubt, answer, state.started, texts=state.texts, unnamed=state.unnamed, source=source
    )
    message = Message(role="user", part=f"doubt:{state.turn}:{doubt}", text=text)
    return _next_turn(
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
    """Answer a reply without action with a concrete request, at most twice in a row; then end.

    A model that repeats the same words, after it was asked for a program, has answered.
    """
    same = say_the_same(words, state.words) and not prompt.is_older(state.started)
    state = msgspec.structs.replace(state, idle=state.idle + 1, words=words or state.words)
    if same and words is not None:
        return _offer_answer(state, words, "words", seen=True)
    if state.idle >= _IDLE_MAX:
        return _end(state, "no_progress", f"{state.idle} replies in a row held nothing to run")
    message = prompt.nudge(problem, state.started, partial=state.partial, part=f"nudge:{intent}")
    return _next_turn(msgspec.structs.replace(state, observed=(message,)), afresh=True)


# -- resume and fork ---------------------------------------------------------------------------


def _on_continuation(
    state: RunState, event: RunResumed | RunForked
) -> tuple[RunState, tuple[Intent, ...]]:
    """Apply a resume or a fork: continue under the limits, model and temperature it sets.

    Work in progress continues. A run that had ended asks the model again, or runs the program that
    a person approved, unless one of its limits is still used up.
    """
    state = native.note_restart(state, event)
    state = msgspec.structs.replace(state, started=with_new_terms(state.started, event))
    ended = state.ended
    grown = isinstance(event, RunForked) and ended is not None and ended.stop != "answered"
    undone = grown or (ended is not None and ended.stop in _BY_LIMITS)
    undone = undone and _limit_reached(state) is None
    if not (state.phase is Phase.DONE or (state.phase is Phase.ENDING and undone)):
        return state, ()
    state = state_after_end(state)
    if (decided := apply_decision(state, event)) is not None:
        return _next_command(decided) if decided.queue else _next_turn(decided)
    if state.observed:
        return _next_turn(state)
    if (cap := _limit_reached(state)) is not None:
        return _end(state, *cap)
    # The last request has no reply, so the turn is the same.
    return _ask(msgspec.structs.replace(state, turn=max(0, state.turn - 1)))


# -- turns and caps ----------------------------------------------------------------------------


def _next_turn(state: RunState, *, afresh: bool = False) -> tuple[RunState, tuple[Intent, ...]]:
    """Put the observations into the prompt and ask again, or end if a limit is used up.

    `afresh` takes the last reply out of the prompt (`messages_after_reply`).
    """
    if (cap := _limit_reached(state)) is not None:
        return _end(state, *cap)
    observed, told = next_notices(state)
    messages = messages_after_reply(state.messages, observed, afresh=afresh)
    state = msgspec.structs.replace(
        state,
        messages=messages,
        told=told,
        sent=min(state.sent, len(messages) - 1),
        observed=(),
        queue=(),
        passing=state.passing and not afresh,
    )
    return _ask(compact(state))


def _limit_reached(state: RunState) -> tuple[StopReason, str] | None:
    return limit_reached(state.started.limits, state.charge)


def _ask(
    state: RunState, *, attempt: int = 1, wait_ms: int = 0
) -> tuple[RunState, tuple[Intent, ...]]:
    if state.turn == 0 and (cap := _limit_reached(state)) is not None:
        return _end(state, *cap)
    state, intent = plan_request(state, attempt=attempt, wait_ms=wait_ms)
    return state, (intent,)


def _end(state: RunState, stop: StopReason, detail: str) -> tuple[RunState, tuple[Intent, ...]]:
    ended = end_of(state, stop, detail)
    return msgspec.structs.replace(state, phase=Phase.ENDING, ended=ended, queue=()), ()


def _add_charge(state: RunState, charge: Charge) -> RunState:
    return msgspec.structs.replace(state, charge=state.charge + charge)


def continue_between_intents(
    state: RunState, event: RunResumed | RunForked, pending: tuple[Intent, ...]
) -> tuple[RunState, tuple[Intent, ...]]:
    """Resume or fork a run while nothing is in progress. `pending` are its planned intents.

    Return the state and what to do next: new intents if there are any, else those planned before.

    A planned model call is planned again under the limits, model and temperature that apply now. If
    a limit is already used up, the run ends instead, with no intents.
    """
    state, intents = advance(state, event)
    if intents or state.phase is not Phase.ASKING:
        return state, intents or pending
    cap = limit_reached(state.started.limits, state.charge)
    if cap is not None:
        return end_from_outside(state, *cap), ()
    again: list[Intent] = []
    for each in pending:
        if isinstance(each, AskModel):
            state, each = plan_request_again(state, each)
        again.append(each)
    return state, tuple(again)
