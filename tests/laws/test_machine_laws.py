"""Laws of the run machine over generated worlds: whatever the world answers, these hold."""

from __future__ import annotations

import itertools
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.charge import Charge, ModelUsage, RunLimits
from tallystick.core.machine.machine import TRANSITIONS, advance, begin
from tallystick.core.machine.state import Phase, RunState
from tallystick.core.machine.turn import program_of
from tallystick.core.records import (
    AskModel,
    CallHost,
    CheckDecision,
    CheckProgram,
    ContextRef,
    Event,
    HostAnswered,
    Intent,
    ModelFailed,
    ModelReplied,
    ProgramChecked,
    ProgramFailure,
    ProgramFinished,
    Record,
    RunEnded,
    RunForked,
    RunProgram,
    RunResumed,
    RunStarted,
    TextRef,
    VocabularyGiven,
    decode_record,
    encode_record,
)
from tallystick.testing.strategies import texts

words = texts(max_size=30)
counts = st.integers(0, 2_000)
replies = st.one_of(
    words,
    words.map(lambda source: f"```repl\n{source}\n```"),
    words.map(lambda source: f"```python\n{source}"),
    st.sampled_from(
        [
            "FINAL(42)", "FINAL_VAR(x)", "FINAL()", "RUN(ls)", "SNAPSHOT(a)", "", "```repl\n1\n```",
            "```repl\na = 1\n```\n```repl\nb = 2\n```\nFINAL(3)", "QUERY_LLM(why?)",
        ]
    ),
)  # fmt: skip
starts = st.builds(
    RunStarted,
    goal=words,
    model=st.just("m"),
    limits=st.builds(
        RunLimits,
        turns=st.integers(0, 8),
        tokens=st.integers(0, 20_000),
        host_calls=st.integers(0, 20),
        wall_ms=st.integers(0, 20_000),
    ),
    grants=st.tuples(words),
    contexts=st.lists(
        st.builds(ContextRef, name=words, sha256=words, bytes=counts, chars=counts, sample=words),
        max_size=2,
    ).map(tuple),
    functions=st.lists(st.tuples(words, words), max_size=2).map(tuple),
    values=st.dictionaries(words, words, max_size=2),
    texts=st.lists(
        st.builds(TextRef, name=words, key=st.none() | words, id=counts, bytes=counts), max_size=2
    ).map(tuple),
    seed=counts,
    clock_ns=counts,
    session_id=words,
    template=words,
    guest=words,
    engine=words,
    started_at=counts,
    vocabulary=st.none()
    | st.builds(
        VocabularyGiven,
        strictness=st.sampled_from(["permissive", "normal", "strict"]),
        ratio_min=st.just(0.1),
        retries_max=st.integers(0, 3),
    ),
)
failures = st.none() | st.builds(ProgramFailure, kind=words, message=words, traceback=words)


def answer(intent: Intent, state: RunState, data: st.DataObject) -> list[Event]:
    """What an adversarial world makes of an intent."""
    match intent:
        case AskModel():
            if data.draw(st.integers(0, 9)) == 0:
                return [
                    ModelFailed(
                        intent=intent.intent, turn=intent.turn, reason="server", message="x"
                    )
                ]
            usage = ModelUsage(
                tokens_in=data.draw(counts), tokens_out=data.draw(counts), reported=True
            )
            return [
                ModelReplied(
                    intent=intent.intent,
                    turn=intent.turn,
                    text=data.draw(replies),
                    usage=usage,
                    cut=data.draw(st.booleans()),
                    wall_ms=data.draw(counts),
                )
            ]
        case CheckProgram():
            decision = data.draw(st.sampled_from(get_args(CheckDecision)))
            return [
                ProgramChecked(
                    turn=intent.turn,
                    part=intent.part,
                    sha256=intent.sha256,
                    decision=decision,
                    feedback="" if decision == "pass" else data.draw(words) + "!",
                    is_valid=decision == "pass",
                    retry_count=state.unchecked,
                )
            ]
        case RunProgram():
            calls: list[Event] = [
                HostAnswered(
                    intent=state.next_intent + index,
                    program=intent.intent,
                    index=index,
                    name="f",
                    request_sha256="a",
                    fuel=index,
                    reply=b"0",
                    ok=True,
                )
                for index in range(data.draw(st.integers(0, 3)))
            ]
            return [
                *calls,
                ProgramFinished(
                    intent=intent.intent,
                    turn=intent.turn,
                    stop=data.draw(st.sampled_from(["finished", "wall", "fuel", "trap"])),
                    stdout=data.draw(words),
                    stderr=data.draw(words),
                    value=data.draw(st.none() | words),
                    failure=data.draw(failures),
                    answer=data.draw(st.none() | words) if data.draw(st.booleans()) else None,
                    names_restored=(),
                    fuel=data.draw(counts),
                    host_calls=len(calls),
                    truncated=False,
                    wall_ms=data.draw(counts),
                ),
            ]
        case CallHost():
            raise AssertionError("the machine serves no host calls")


def drive(
    started: RunStarted, data: st.DataObject
) -> tuple[RunState, list[Event], list[Intent], list[Phase]]:
    state, intents = begin(started)
    events: list[Event] = []
    asked: list[Intent] = []
    phases = [state.phase]
    while intents:
        for intent in intents:
            asked.append(intent)
            for event in answer(intent, state, data):
                events.append(event)
                state, intents = advance(state, event)
                phases.append(state.phase)
        assert len(asked) < 1_000
    assert state.ended is not None
    events.append(state.ended)
    state, _ = advance(state, state.ended)
    return state, events, asked, phases


@given(started=starts, data=st.data())
def test_replaying_the_events_gives_the_state_and_the_intents_that_made_them(
    started: RunStarted, data: st.DataObject
) -> None:
    live, events, asked, _ = drive(started, data)

    state, intents = begin(started)
    again = list(intents)
    for event in events:
        state, intents = advance(state, event)
        again += intents

    assert state == live
    assert again == asked


@given(started=starts, data=st.data())
def test_every_world_ends_and_within_its_turns(started: RunStarted, data: st.DataObject) -> None:
    live, _, _, _ = drive(started, data)

    assert live.phase is Phase.DONE
    assert live.charge.turns <= started.limits.turns


@given(started=starts, data=st.data())
def test_the_end_says_what_was_spent_and_what_there_is(
    started: RunStarted, data: st.DataObject
) -> None:
    live, events, _, _ = drive(started, data)
    ended = events[-1]
    assert isinstance(ended, RunEnded)

    assert ended.charge == live.charge
    assert (ended.stop == "answered") == (live.answer is not None and not ended.partial)
    assert ended.charge.host_calls == sum(isinstance(each, HostAnswered) for each in events)
    assert ended.charge.tokens_in == sum(
        each.usage.tokens_in for each in events if isinstance(each, ModelReplied)
    )


@given(started=starts, data=st.data())
def test_roles_alternate_in_every_prompt(started: RunStarted, data: st.DataObject) -> None:
    live, _, _, _ = drive(started, data)

    roles = [message.role for message in live.messages]
    assert roles[:2] == ["system", "user"]
    assert all(a != b for a, b in itertools.pairwise(roles))


@given(started=starts, data=st.data())
def test_a_prompt_grows_by_what_is_new_and_keeps_its_beginning(
    started: RunStarted, data: st.DataObject
) -> None:
    _, _, asked, _ = drive(started, data)
    prompts = [intent for intent in asked if isinstance(intent, AskModel)]

    assert [each.base for each in prompts] == [None, *[each.intent for each in prompts[:-1]]][
        : len(prompts)
    ]
    assert all(len(each.added) <= 2 for each in prompts)
    intents = [each.intent for each in asked if not isinstance(each, CheckProgram)]
    assert intents == sorted(set(intents))


@given(started=starts, data=st.data())
def test_encoding_a_record_and_decoding_it_is_identity(
    started: RunStarted, data: st.DataObject
) -> None:
    _, events, asked, _ = drive(started, data)
    written = [each for each in asked if not isinstance(each, CheckProgram)]
    records: list[Record] = [started, *events, *written]

    for record in records:
        assert decode_record(encode_record(record)) == record
        assert encode_record(decode_record(encode_record(record))) == encode_record(record)


def test_every_phase_but_the_last_has_an_exit() -> None:
    for phase, events in TRANSITIONS.items():
        # What has ended is only gone on with from outside.
        exits = events - {RunResumed, RunForked}
        assert bool(exits) == (phase is not Phase.DONE)


@given(charges=st.lists(st.builds(Charge, tokens_in=counts, fuel=counts, usd=st.none() | counts)))
def test_charges_add_up_in_any_order(charges: list[Charge]) -> None:
    forward, backward = Charge(), Charge()
    for charge in charges:
        forward += charge
    for charge in reversed(charges):
        backward += charge

    assert forward == backward
    assert forward.fuel == sum(charge.fuel for charge in charges)


@given(started=starts, data=st.data())
def test_a_program_that_is_to_run_is_the_one_its_intent_names(
    started: RunStarted, data: st.DataObject
) -> None:
    from tallystick.core.json_text import digest

    state, intents = begin(started)
    while intents:
        (intent,) = intents
        if isinstance(intent, RunProgram):
            assert intent.sha256 == digest(program_of(state).encode("utf-8", "surrogatepass"))
        for event in answer(intent, state, data):
            state, intents = advance(state, event)
