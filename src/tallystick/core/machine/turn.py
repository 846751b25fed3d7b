"""Plan the requests of a turn, apply what follows from it, and check the limits of the run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tallystick.core.charge import Charge, RunLimits, shown_usd
from tallystick.core.json_text import digest
from tallystick.core.machine import prompt
from tallystick.core.machine.answer import is_direct, is_fallback
from tallystick.core.machine.compaction import compact
from tallystick.core.machine.native import add_restart_note, is_native_run, kind_of
from tallystick.core.machine.prompt import Message
from tallystick.core.machine.reply import as_program
from tallystick.core.machine.state import Phase, RunState
from tallystick.core.machine.suspect_answer import printed_empty
from tallystick.core.records import (
    AskModel,
    CheckProgram,
    ChildEnded,
    HostAnswered,
    ModelFailed,
    ModelReplied,
    ProgramChecked,
    ProgramFinished,
    QueryFailed,
    QueryRefused,
    QueryReplied,
    RunEnded,
    RunForked,
    RunProgram,
    RunResumed,
    RunStarted,
    SkillUsed,
    StopReason,
)

# The limits of a run against what it has used, and the notices about them to the model.


# Beyond this part of the time, the next turn is treated as the last.
_LATE = 0.8
# At these per cent of its budget the model gets a notice, once each.
_SHARES = (95, 80, 50)


def charge_of(
    event: ModelReplied
    | ModelFailed
    | QueryReplied
    | QueryFailed
    | QueryRefused
    | ChildEnded
    | HostAnswered,
) -> Charge:
    """Return the charge of a call. An attempt at a model counts as settled, or else as reported.

    Then its price is unknown. A call that was refused costs nothing. A script of a skill is charged
    to the run, with its host calls and fuel.
    """
    if isinstance(event, HostAnswered):
        if isinstance(event.skill, SkillUsed):
            # A script runs by itself; what it used is the run's.
            return Charge(host_calls=1 + event.skill.host_calls, fuel=event.skill.fuel)
        return Charge(host_calls=1)
    if isinstance(event, QueryRefused):
        return Charge()
    if isinstance(event, ChildEnded):
        return charge_of_child(event.charge)
    figures = event.settled or event.usage
    return Charge(
        usd=None if event.settled is None else event.settled.usd,
        tokens_in=0 if figures is None else figures.tokens_in,
        tokens_out=0 if figures is None else figures.tokens_out,
        model_calls=1,
    )


def charge_of_child(charge: Charge) -> Charge:
    """Return what a child run costs its parent. Its turns, programs and time are its own."""
    return Charge(
        usd=charge.usd,
        tokens_in=charge.tokens_in,
        tokens_out=charge.tokens_out,
        model_calls=charge.model_calls,
    )


# `>` for host calls and `>=` for the others: the question is whether another turn is possible. Each
# turn needs a reply and tokens, so those stop at the limit. A turn need not call the host, so a run
# that used exactly its host calls may continue.
def limit_reached(limits: RunLimits, used: Charge) -> tuple[StopReason, str] | None:
    """Return the stop reason and detail if a limit allows no further turn, else None.

    It names the first of several. The limits of model calls and depth are not looked at here.
    """
    if used.turns >= limits.turns:
        return "max_turns", f"all {limits.turns:,} turns used"
    if used.wall_ms >= limits.wall_ms:
        return "deadline", f"{limits.wall_ms:,} ms passed"
    if limits.reply_tokens < 1:
        return "budget", "reply_tokens: none allowed"
    if used.host_calls > limits.host_calls:
        return "budget", f"host_calls: {limits.host_calls:,} allowed"
    if used.tokens_in + used.tokens_out >= limits.tokens:
        return "budget", f"tokens: {limits.tokens:,} allowed, all used"
    if limits.usd is not None and (used.usd or 0) >= limits.usd:
        return "budget", f"usd: {shown_usd(limits.usd)} allowed, all used"
    return None


def turn_is_last(limits: RunLimits, used: Charge, *, prompt_bound: int = 0) -> bool:
    """Return True if a limit would probably refuse the turn after the next.

    So it is if one turn is left, more than 80 % of the time is used, or two more turns like the
    average would use up tokens or money. `prompt_bound` is an upper bound of the tokens of the
    next prompt, which are reserved for it.
    """
    spent = used.tokens_in + used.tokens_out
    turns = max(1, used.turns)
    per_turn = spent // turns
    return (
        used.turns + 1 >= limits.turns
        or used.wall_ms > limits.wall_ms * _LATE
        or spent + per_turn + max(per_turn, prompt_bound) >= limits.tokens
        or (limits.usd is not None and (used.usd or 0) * (turns + 2) >= limits.usd * turns)
    )


def tokens_out_max(limits: RunLimits, used: Charge) -> int:
    """Return the token limit of the next reply: `reply_tokens`, or what is left if that is less.

    It is below 1 if nothing is left; `limit_reached` says so.
    """
    return min(limits.reply_tokens, limits.tokens - used.tokens_in - used.tokens_out)


def share_notice(limits: RunLimits, used: Charge, *, told: int) -> tuple[int, str] | None:
    """Return the per cent of its budget that a run has newly passed, and the notice about it.

    There are notices at 50, 80 and 95 per cent, for the one of tokens and money that is used more;
    programs can spend both many times over in one turn. `told` is the share of the last notice.
    None if no further share is reached.
    """
    spent = used.tokens_in + used.tokens_out
    shares = [(_share(spent, limits.tokens), f"{spent:,} of {limits.tokens:,} tokens")]
    if limits.usd is not None:
        usd = used.usd or 0
        shares.append((_share(usd, limits.usd), f"{shown_usd(usd)} of {shown_usd(limits.usd)}"))
    most, said = max(shares)
    passed = next((each for each in _SHARES if most >= each), 0)
    if passed <= told:
        return None
    return passed, f"You have used {passed} % of your budget ({said})."


def _share(used: int, limit: int) -> int:
    return 100 * used // limit if limit else 100


def messages_after_reply(
    messages: tuple[Message, ...], observed: Sequence[Message], *, afresh: bool
) -> tuple[Message, ...]:
    """Return the prompt of the next turn: the observations of the last reply are at its end.

    They are joined to one user message, without pictures. `afresh` removes the last message, which
    is the reply: the observations are added to the text of the one before it. A model that sees its
    own mistake copies it.
    """
    text = "\n\n".join(message.text for message in observed)
    parts = "+".join(message.part for message in observed)
    if afresh:
        *earlier, asked, _ = messages
        said = Message(
            role="user",
            part=f"{asked.part}+{parts}",
            text=f"{asked.text}\n\n{text}",
            images=asked.images,
        )
        return (*earlier, said)
    return (*messages, Message(role="user", part=parts, text=text))


# The least temperature after a program was repeated.
_WARM = 0.7


def plan_request(
    state: RunState, *, attempt: int = 1, wait_ms: int = 0
) -> tuple[RunState, AskModel]:
    """Return the next model call, and the state that waits for its reply.

    The messages are asked as they are, with the notice of a restart if one waits. The first attempt
    begins a turn. A repeated program raises the temperature to 0.7 at least, if one is set. The
    wait before the call is only noted in it.
    """
    state = add_restart_note(state)
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


def plan_request_again(state: RunState, intent: AskModel) -> tuple[RunState, AskModel]:
    """Plan a call that was not made yet again, under the model and the limits that apply now.

    If the state has a notice that the prompt lacks, the whole call is planned from the start, with
    the same intent id.
    """
    if state.native.note:
        before = msgspec.structs.replace(
            state, next_intent=intent.intent, turn=intent.turn - (intent.attempt == 1)
        )
        again, made = plan_request(before, attempt=intent.attempt, wait_ms=intent.wait_ms)
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
        # At the temperature that led here the model would write the same again.
        return max(temperature, _WARM)
    return temperature


def with_new_terms(started: RunStarted, event: RunResumed | RunForked) -> RunStarted:
    """Return the start of a run with the limits, model and temperature of a resume or fork.

    What the event leaves open stays. A resume changes the limits only.
    """
    if event.limits is not None:
        started = msgspec.structs.replace(started, limits=event.limits)
    if isinstance(event, RunForked):
        if event.model is not None:
            started = msgspec.structs.replace(started, model=event.model)
        if event.temperature is not None:
            started = msgspec.structs.replace(started, temperature=event.temperature)
    return started


def state_after_end(state: RunState) -> RunState:
    """Return the state of a run that had ended, ready to ask the model again.

    The last request may never have been recorded, so the next one does not refer to it. If there is
    nothing to observe and the last message is a reply, the state asks for a program.
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


# The end of a turn, and of a run. `machine.py` decides; these functions compute the state.


# The detail of a run that ended because a person has to decide about its program.
ESCALATED = "vocabulary: a person has to decide"
_DENIED = "A person looked at this program and did not allow it."


def program_of(state: RunState) -> str:
    """Return the source of the next program, which is the first command in the queue."""
    return as_program(state.queue[0])


def next_program(state: RunState) -> tuple[RunState, RunProgram | CheckProgram]:
    """Return the state and the intent to run the next program.

    If the run has a vocabulary and the program has not passed it yet, the intent is to check it.
    Snapshots and rollbacks are not checked.
    """
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


def skip_command(state: RunState, name: str) -> RunState:
    """Return the state after a command that this run does not have, with a message that says so.

    The command leaves the queue, and counts as a refusal.
    """
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


def apply_check(state: RunState, event: ProgramChecked) -> RunState:
    """Return the state after a vocabulary check.

    It has the feedback for the model, if any, and how often programs were refused in a row. After
    the decision `escalate`, `held` has the commands that wait for a person.
    """
    state = msgspec.structs.replace(
        state,
        phase=Phase.ASKING,
        passed=event.decision in ("pass", "warn"),
        unchecked=0 if event.is_valid else event.retry_count + 1,
        held=state.queue if event.decision == "escalate" else (),
    )
    if not event.feedback:
        return state
    return _add_notice(state, f"vocabulary:{state.turn}:{state.part}", event.feedback)


def apply_decision(state: RunState, event: RunResumed | RunForked) -> RunState | None:
    """Return the state after a person's decision about the program that waited.

    An approved program runs next, without another check. If it is denied, a message says so, and
    the model may write another. None if no program waited, nothing was decided, or it is a fork.
    """
    if not state.held or isinstance(event, RunForked) or event.decision is None:
        return None
    free = msgspec.structs.replace(state, held=(), unchecked=0)
    if event.decision == "approve":
        return msgspec.structs.replace(free, queue=state.held, passed=True)
    text = f"{_DENIED} {prompt.WRITE}"
    return _add_notice(free, f"denied:{state.turn}:{state.part}", text)


def _add_notice(state: RunState, part: str, text: str) -> RunState:
    message = Message(role="user", part=part, text=text)
    return msgspec.structs.replace(state, observed=(*state.observed, message))


def printed_nothing_found(state: RunState, event: ProgramFinished) -> bool:
    """Return True if a program over the data printed a value for nothing found, and nothing else.

    `printed_empty` tells. It must be the only program of its reply, and the model must not have
    been asked about that before.
    """
    return (
        state.part == 1
        and not state.queue
        and printed_empty(event)
        and state.read
        and "empty" not in state.asked_about
    )


def next_notices(state: RunState) -> tuple[list[Message], int]:
    """Return the messages for the next turn, and the share of its budget that counts as stated.

    The request to answer now takes the place of a notice about the budget, and its share counts as
    stated too. A direct prompt is not asked to answer now.
    """
    observed = list(state.observed)
    limits, used = state.started.limits, state.charge
    told = share_notice(limits, used, told=state.told)
    bound = sum(
        len(each.text) for each in (*state.messages, *observed)
    ) - _chars_saved_by_compaction(state, observed)
    if any(is_fallback(each) for each in observed):
        # The tokens of the direct prompt are no estimate for the turns that come.
        limits, used = _without_past_use(limits, used)
    if turn_is_last(limits, used, prompt_bound=bound) and not is_direct(state):
        observed.append(Message(role="user", part="last", text=prompt.ANSWER_NOW))
    elif told is not None:
        observed.append(Message(role="user", part=f"spent:{told[0]}", text=told[1]))
    return observed, state.told if told is None else told[0]


def _chars_saved_by_compaction(state: RunState, observed: list[Message]) -> int:
    """Return how many characters of the next prompt compaction leaves out."""
    if not state.started.compact_at:
        return 0
    messages = messages_after_reply(state.messages, observed, afresh=False)
    shorter = compact(msgspec.structs.replace(state, messages=messages)).messages
    return sum(len(each.text) for each in messages) - sum(len(each.text) for each in shorter)


def _without_past_use(limits: RunLimits, used: Charge) -> tuple[RunLimits, Charge]:
    """Return limits and use as if the run began now. Its time is not reset."""
    tokens = used.tokens_in + used.tokens_out
    left = msgspec.structs.replace(
        limits,
        turns=limits.turns - used.turns,
        tokens=limits.tokens - tokens,
        usd=None if limits.usd is None else limits.usd - (used.usd or 0),
    )
    return left, Charge(wall_ms=used.wall_ms)


def end_of(state: RunState, stop: StopReason, detail: str) -> RunEnded:
    """Return the end of a run, with its answer or its best partial answer.

    That is `partial` of the state, else the last reply that answered in words, else None. Runs of
    the previous prompts have no answers in words.
    """
    answered = stop == "answered"
    partial = state.partial
    if partial is None and not prompt.is_older(state.started):
        partial = state.words
    return RunEnded(
        stop=stop,
        detail=detail,
        answer=state.answer if answered else partial,
        partial=not answered and partial is not None,
        charge=state.charge,
    )
