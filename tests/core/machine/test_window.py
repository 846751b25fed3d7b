"""What is in the prompt and what has left it, as laws over any run of replies and outcomes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.machine.test_machine import finished, started

from tallystick.core.charge import ModelUsage, RunLimits
from tallystick.core.machine import prompt
from tallystick.core.machine.machine import advance, begin
from tallystick.core.machine.prompt import Message
from tallystick.core.machine.reply import parse_reply
from tallystick.core.machine.state import RunState
from tallystick.core.machine.turn import program_of
from tallystick.core.records import (
    AskModel,
    ContextRef,
    Event,
    ModelFailed,
    ModelReplied,
    ProgramFailure,
    ProgramFinished,
    RunProgram,
    RunStarted,
    ViewRef,
)
from tallystick.runtime.context.namespace import texts_of

# Every example is a whole run: fewer of them, in proportion to what the profile says.
EXAMPLES = settings().max_examples // 4
TEXT = "id,status\nINV-104,open\nINV-119,closed\n"
FAILURE = ProgramFailure(kind="NameError", message="name 'x' is not defined", traceback="line 1")
PROGRAMS = ("print(context)", "x + 1", "FINAL('INV-104')", "n = len(lines)\nFINAL(n)", "total = 0")


def block(source: str) -> str:
    return f"```python\n{source}\n```"


programs = st.sampled_from([*PROGRAMS, *(f"print({number})" for number in range(4))])
replies = st.one_of(
    programs.map(block),
    st.lists(programs.map(block), min_size=2, max_size=3).map("\n".join),
    programs.map(lambda source: f"{block(source)}\nFINAL(it is done)"),
    st.sampled_from(["I think so.", "", "RUN(ls)", "FINAL(forty two)", "FINAL_VAR(n)"]),
)
# What comes of a program: something, nothing, a failure, an answer.
outcomes = st.one_of(
    st.sampled_from(["something\n", "more\n", "0\n", ""]).map(lambda text: {"stdout": text}),
    st.just({"failure": FAILURE}),
    st.just({"failure": FAILURE, "stop": "wall"}),
    st.sampled_from(["INV-104", "0", "open", "forty two"]).map(
        lambda answer: {"answer": answer, "stdout": "printed\n"}
    ),
)
starts = st.builds(
    lambda goal, data, turns, temperature: started(
        goal=goal,
        contexts=(ContextRef(name="context", sha256="", bytes=9, chars=9, sample="..."),) * data,
        values={"context": TEXT} if data else {},
        views=(ViewRef(name="lines", kind="lines", of="context"),) * data,
        limits=RunLimits(turns=turns),
        temperature=temperature,
    ),
    goal=st.sampled_from(["which one is open?", "who owns INV-104?"]),
    data=st.integers(0, 1),
    turns=st.integers(1, 12),
    temperature=st.none() | st.just(0.0),
)


@dataclass
class Asked:
    """A request for a reply, with the prompt at that moment."""

    intent: AskModel
    messages: tuple[Message, ...]


@dataclass
class Played:
    """A made-up run: every request, every reply, and what came of each program."""

    started: RunStarted
    asked: list[Asked] = field(default_factory=list)
    replied: dict[int, str] = field(default_factory=dict)
    # The outcomes of a reply's programs by its intent, and those whose first program repeats one.
    outcomes: dict[int, list[ProgramFinished]] = field(default_factory=dict)
    repeated: set[int] = field(default_factory=set)

    @property
    def in_turns(self) -> list[Asked]:
        """The requests that begin a turn: those that are no further attempts."""
        return [each for each in self.asked if each.intent.attempt == 1]

    def kept_out(self, *, of: int) -> bool:
        """Whether a reply is in no prompt."""
        return all(f"reply:{of}" not in parts_of(each.messages) for each in self.asked)


def parts_of(messages: tuple[Message, ...]) -> list[str]:
    return [message.part for message in messages]


def play(start: RunStarted, data: st.DataObject) -> Played:
    played = Played(started=start)
    seen: set[tuple[str, str, str]] = set()
    state, intents = begin(start, texts_of(start.values))
    while intents:
        (intent,) = intents
        event: Event
        if isinstance(intent, AskModel):
            played.asked.append(Asked(intent, state.messages))
            event = model_event(intent, data)
            if isinstance(event, ModelReplied):
                played.replied[intent.intent] = event.text
        else:
            assert isinstance(intent, RunProgram)
            made = data.draw(outcomes)
            event = finished(intent=intent.intent, turn=intent.turn, **made)
            note_outcome(played, state, event, seen)
        state, intents = advance(state, event)
    return played


def model_event(intent: AskModel, data: st.DataObject) -> ModelReplied | ModelFailed:
    if data.draw(st.integers(0, 9)) == 0:
        return ModelFailed(
            intent=intent.intent, turn=intent.turn, reason="timeout", message="", kind="transient"
        )
    usage = ModelUsage(tokens_in=1, tokens_out=1, reported=True)
    return ModelReplied(
        intent=intent.intent, turn=intent.turn, text=data.draw(replies), usage=usage
    )


def note_outcome(
    played: Played, state: RunState, event: ProgramFinished, seen: set[tuple[str, str, str]]
) -> None:
    reply = max(played.replied)
    before = played.outcomes.setdefault(reply, [])
    which = (program_of(state), event.stdout, event.stop)
    if which in seen and not before:
        played.repeated.add(reply)
    seen.add(which)
    before.append(event)


@settings(max_examples=EXAMPLES)
@given(start=starts, data=st.data())
def test_roles_alternate_in_every_prompt_and_the_last_word_is_the_user_s(
    start: RunStarted, data: st.DataObject
) -> None:
    for asked in play(start, data).asked:
        roles = [message.role for message in asked.messages]
        assert roles[:2] == ["system", "user"]
        assert roles[-1] == "user"
        assert all(one != other for one, other in itertools.pairwise(roles))
        assert "system" not in roles[1:]


@settings(max_examples=EXAMPLES)
@given(start=starts, data=st.data())
def test_every_prompt_is_made_again_from_the_one_before_and_what_was_added(
    start: RunStarted, data: st.DataObject
) -> None:
    played = play(start, data)
    by_name = {each.part: each for asked in played.asked for each in asked.messages}

    prompts: dict[int | None, tuple[Message, ...]] = {None: ()}
    for asked in played.asked:
        intent = asked.intent
        base = prompts[intent.base]
        kept = base if intent.kept is None else base[: intent.kept]
        again = (*kept, *(by_name[part] for part in intent.added))
        prompts[intent.intent] = again

        assert again == asked.messages
        assert intent.kept is None or intent.kept < len(base)


@settings(max_examples=EXAMPLES)
@given(start=starts, data=st.data())
def test_a_part_has_one_text_for_the_whole_run(start: RunStarted, data: st.DataObject) -> None:
    named: dict[str, Message] = {}
    for asked in play(start, data).asked:
        assert len(set(parts_of(asked.messages))) == len(asked.messages)
        for message in asked.messages:
            assert named.setdefault(message.part, message) == message


@settings(max_examples=EXAMPLES)
@given(start=starts, data=st.data())
def test_the_request_s_digest_is_that_of_what_is_sent(
    start: RunStarted, data: st.DataObject
) -> None:
    for asked in play(start, data).asked:
        assert asked.intent.request_sha256 == prompt.request_digest(
            start.model,
            asked.messages,
            tokens_out_max=asked.intent.tokens_out_max,
            temperature=asked.intent.temperature,
        )


@settings(max_examples=EXAMPLES)
@given(start=starts, data=st.data())
def test_a_failed_program_is_in_the_prompt_until_the_next_reply_and_not_after(
    start: RunStarted, data: st.DataObject
) -> None:
    played = play(start, data)
    for reply, outcomes in played.outcomes.items():
        first = outcomes[0]
        if first.failure is None or first.answer is not None or reply in played.repeated:
            continue
        later = [each for each in played.in_turns if each.intent.intent > reply]

        if later:
            assert parts_of(later[0].messages)[-2] == f"reply:{reply}"
            assert "The program failed" in later[0].messages[-1].text
        for asked in later[1:]:
            assert f"reply:{reply}" not in parts_of(asked.messages)
            named = [part.split("+") for part in parts_of(asked.messages)]
            assert not any(f"result:{first.intent}" in parts for parts in named)


@settings(max_examples=EXAMPLES)
@given(start=starts, data=st.data())
def test_a_program_that_gave_the_same_result_before_is_in_no_prompt(
    start: RunStarted, data: st.DataObject
) -> None:
    played = play(start, data)

    for reply in played.repeated:
        if played.outcomes[reply][0].answer is None:
            assert played.kept_out(of=reply)


@settings(max_examples=EXAMPLES)
@given(start=starts, data=st.data())
def test_a_reply_without_a_program_is_in_no_prompt(start: RunStarted, data: st.DataObject) -> None:
    played = play(start, data)

    for reply, text in played.replied.items():
        if not parse_reply(text).commands:
            assert played.kept_out(of=reply)


@settings(max_examples=EXAMPLES)
@given(start=starts, data=st.data())
def test_a_program_that_ran_well_stays_in_every_later_prompt(
    start: RunStarted, data: st.DataObject
) -> None:
    played = play(start, data)
    for reply, outcomes in played.outcomes.items():
        well = all(
            each.failure is None and each.answer is None and each.stdout.strip() != "0"
            for each in outcomes
        )
        commands = parse_reply(played.replied[reply]).commands
        if well and reply not in played.repeated and len(commands) == len(outcomes) == 1:
            for asked in played.asked:
                assert asked.intent.intent <= reply or f"reply:{reply}" in parts_of(asked.messages)


@settings(max_examples=EXAMPLES)
@given(start=starts, data=st.data())
def test_the_beginning_of_the_prompt_never_changes(start: RunStarted, data: st.DataObject) -> None:
    """It is what servers keep. What is said of a reply that left is added to the task."""
    system, task = prompt.opening(start)

    for asked in play(start, data).asked:
        assert asked.messages[0] == system
        assert asked.messages[1].text.startswith(task.text)


def test_a_mistake_is_gone_after_the_reply_to_it_and_its_successor_is_not() -> None:
    state, _ = begin(started())
    prompts = []
    for source, failure in (("one = 1", None), ("two", FAILURE), ("three = 3", None)):
        intent = state.base
        assert intent is not None
        usage = ModelUsage(tokens_in=1, tokens_out=1, reported=True)
        state, _ = advance(
            state, ModelReplied(intent=intent, turn=1, text=block(source), usage=usage)
        )
        state, _ = advance(state, finished(intent=intent + 1, failure=failure, stdout=source))
        prompts.append(parts_of(state.messages))

    assert prompts == [
        ["system", "task", "reply:1", "result:2"],
        ["system", "task", "reply:1", "result:2", "reply:3", "result:4"],
        ["system", "task", "reply:1", "result:2", "reply:5", "result:6"],
    ]
