"""Laws of compaction over generated histories: what it may do to a prompt, and what it may not."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.machine.test_machine import finished, started

from tallystick.core.charge import ModelUsage, RunLimits
from tallystick.core.machine import prompt
from tallystick.core.machine.compaction import TURNS_WHOLE, compact, size_of
from tallystick.core.machine.machine import advance, begin
from tallystick.core.machine.prompt import Message
from tallystick.core.machine.state import KeptText, RunState
from tallystick.core.records import (
    AskModel,
    Event,
    ModelFailed,
    ModelReplied,
    ProgramFailure,
    ProgramFinished,
    RunProgram,
    decode_record,
    encode_record,
)

# Every example is a long run or two: fewer of them.
EXAMPLES = settings(max_examples=settings().max_examples // 4)
ROOMY = RunLimits(turns=10_000, tokens=10**12)
FAILURE = ProgramFailure(kind="KeyError", message="'x'", traceback="line\n" * 90 + "KeyError: 'x'")
WORDS = ("total", "Straße ", "港", "0 ", "line\n")


def repeated(word: str, times: int) -> str:
    return word * times


texts = st.builds(repeated, st.sampled_from(WORDS), st.integers(0, 900))
sources = st.builds(
    lambda name, size: f"{name} = {size}\n# {'because ' * size}",
    st.sampled_from(["rows", "total", "ähnlich", "x"]),
    st.integers(0, 120),
)


def block(source: str) -> str:
    return f"```python\n{source}\n```"


replies = st.one_of(
    sources.map(block),
    st.lists(sources.map(block), min_size=2, max_size=3).map("\n".join),
    sources.map(lambda source: f"{block(source)}\nRUN(ls)"),
    st.just("I think so."),
)
outcomes = st.one_of(
    texts.map(lambda text: {"stdout": text}),
    st.tuples(texts, texts).map(lambda each: {"stdout": each[0], "value": each[1] or None}),
    texts.map(lambda text: {"stderr": text}),
    texts.map(lambda text: {"assigned": ("rows", text)}),
    st.just({"failure": FAILURE}),
)


@dataclass(frozen=True)
class Turn:
    """What a made-up world says to one request."""

    reply: str
    outcomes: tuple[dict[str, object], ...]
    fails_first: bool


histories = st.lists(
    st.builds(
        Turn,
        replies,
        st.lists(outcomes, min_size=3, max_size=3).map(tuple),
        st.integers(0, 9).map(lambda chance: chance == 0),
    ),
    min_size=5,
    max_size=25,
)
bounds = st.sampled_from([1, 250, 1_000, 4_000])


@dataclass
class Played:
    """A history played to its end: every request with the state it was made from, every event."""

    states: list[RunState] = field(default_factory=list)
    asked: list[AskModel] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    @property
    def prompts(self) -> list[tuple[Message, ...]]:
        return [each.messages for each in self.states]


def play(history: list[Turn], compact_at: int) -> Played:
    played = Played()
    state, intents = begin(started(limits=ROOMY, compact_at=compact_at))
    waiting = iter(history)
    turn: Turn | None = None
    while intents:
        (intent,) = intents
        event: Event
        if isinstance(intent, AskModel):
            played.states.append(state)
            played.asked.append(intent)
            if intent.attempt == 1 and (turn := next(waiting, None)) is None:
                break
            assert turn is not None
            event = _said(intent, turn)
        else:
            assert isinstance(intent, RunProgram)
            assert turn is not None
            # No two outcomes are the same, or the run would end for want of progress.
            made = {**turn.outcomes[intent.part % 3]}
            made["stderr"] = f"{made.get('stderr', '')}{intent.intent}"
            event = finished(intent=intent.intent, turn=intent.turn, **made)
        played.events.append(event)
        state, intents = advance(state, event)
    return played


def _said(intent: AskModel, turn: Turn) -> ModelReplied | ModelFailed:
    if turn.fails_first and intent.attempt == 1:
        return ModelFailed(
            intent=intent.intent, turn=intent.turn, reason="timeout", message="", kind="transient"
        )
    usage = ModelUsage(tokens_in=1, tokens_out=1, reported=True)
    return ModelReplied(intent=intent.intent, turn=intent.turn, text=turn.reply, usage=usage)


def texts_in(state: RunState) -> list[str]:
    kept = [each.text for each in state.outputs if isinstance(each, KeptText)]
    return [*kept, *(each.text for each in state.messages)]


@EXAMPLES
@given(history=histories, bound=bounds)
def test_a_prompt_passes_the_bound_only_by_what_always_stays(
    history: list[Turn], bound: int
) -> None:
    for state in play(history, bound).states:
        # A mistake that leaves with the next reply comes on top.
        whole = TURNS_WHOLE + state.passing
        stays = size_of(state.messages[:2]) + size_of(state.messages[2:][-2 * whole :])
        assert size_of(state.messages) <= max(4 * bound, stays + 2 * bound)


@EXAMPLES
@given(history=histories, bound=bounds)
def test_the_task_stays_in_front_and_the_last_turns_as_they_were(
    history: list[Turn], bound: int
) -> None:
    system, task = prompt.opening(started())
    shorter, whole = play(history, bound), play(history, 0)

    assert len(shorter.prompts) == len(whole.prompts)
    for now, before in zip(shorter.prompts, whole.prompts, strict=True):
        assert now[0] == system
        assert now[1].text.startswith(task.text)
        count = min(2 * TURNS_WHOLE, len(before) - 2)
        assert now[len(now) - count :] == before[len(before) - count :]


@EXAMPLES
@given(history=histories, bound=bounds)
def test_programs_stay_but_for_the_oldest_which_are_counted(
    history: list[Turn], bound: int
) -> None:
    for now, before in zip(play(history, bound).states, play(history, 0).states, strict=True):
        programs = [each for each in now.messages if each.role == "assistant"]
        all_programs = [each for each in before.messages if each.role == "assistant"]
        gone = 0 if now.past is None else now.past.turns
        assert programs == all_programs[gone:]


@EXAMPLES
@given(history=histories, bound=bounds)
def test_what_was_shown_is_in_the_prompt_or_in_outputs_whole(
    history: list[Turn], bound: int
) -> None:
    shorter, whole = play(history, bound), play(history, 0)
    results = {each.intent: each for each in shorter.events if isinstance(each, ProgramFinished)}
    for now, before in zip(shorter.states, whole.states, strict=True):
        there = texts_in(now)
        for part in sub_parts(before) - sub_parts(now):
            kind, _, intent = part.partition(":")
            for piece in pieces_of(results[int(intent)]) if kind == "result" else ():
                assert any(piece.rstrip("\n") in text for text in there)


def sub_parts(state: RunState) -> set[str]:
    return {part for each in state.messages for part in each.part.split("+")}


def pieces_of(result: ProgramFinished) -> list[str]:
    """All that came of a program, piece by piece."""
    traceback = None if result.failure is None else result.failure.traceback
    assigned = None if result.assigned is None or result.stderr else result.assigned[1]
    found = (result.stdout, result.stderr, result.value, traceback, assigned)
    return [each for each in found if each is not None and each.strip()]


@EXAMPLES
@given(history=histories, bound=bounds)
def test_every_place_that_the_prompt_names_is_there(history: list[Turn], bound: int) -> None:
    for state in play(history, bound).states:
        for message in state.messages:
            for found in re.finditer(r"outputs\[(\d+)\] has", message.text):
                assert isinstance(state.outputs[int(found[1])], KeptText)


@EXAMPLES
@given(history=histories, bound=bounds)
def test_compacting_again_changes_nothing(history: list[Turn], bound: int) -> None:
    for state in play(history, bound).states:
        assert compact(state) is state


@EXAMPLES
@given(history=histories, bound=bounds)
def test_the_records_give_the_same_states_and_requests_again(
    history: list[Turn], bound: int
) -> None:
    played = play(history, bound)
    read = [decode_record(encode_record(each)) for each in played.events]

    state, intents = begin(started(limits=ROOMY, compact_at=bound))
    states, asked = [state], list(intents)
    for event in read:
        state, intents = advance(state, event)  # type: ignore[arg-type]
        if any(isinstance(each, AskModel) for each in intents):
            states.append(state)
            asked += intents

    assert states == played.states
    assert asked == played.asked


@EXAMPLES
@given(history=histories, bound=bounds)
def test_every_prompt_is_made_again_from_the_one_before_and_what_was_added(
    history: list[Turn], bound: int
) -> None:
    played = play(history, bound)
    by_name: dict[str, Message] = {}
    for messages in played.prompts:
        for message in messages:
            assert by_name.setdefault(message.part, message) == message

    prompts: dict[int | None, tuple[Message, ...]] = {None: ()}
    for asked, messages in zip(played.asked, played.prompts, strict=True):
        base = prompts[asked.base]
        kept = base if asked.kept is None else base[: asked.kept]
        again = (*kept, *(by_name[part] for part in asked.added))
        prompts[asked.intent] = again

        assert again == messages
        assert asked.kept is None or asked.kept < len(base)


@EXAMPLES
@given(history=histories, bound=bounds)
def test_roles_alternate_and_the_last_word_is_the_user_s(history: list[Turn], bound: int) -> None:
    for messages in play(history, bound).prompts:
        roles = [message.role for message in messages]
        assert roles[0] == "system"
        assert roles[-1] == "user"
        assert all(one != other for one, other in itertools.pairwise(roles))


@EXAMPLES
@given(history=histories, bound=bounds)
def test_a_run_that_stays_below_the_bound_is_the_same_to_the_byte(
    history: list[Turn], bound: int
) -> None:
    shorter, whole = play(history, bound), play(history, 0)
    for now, before in zip(
        zip(shorter.asked, shorter.prompts, strict=True),
        zip(whole.asked, whole.prompts, strict=True),
        strict=True,
    ):
        if size_of(before[1]) > 4 * bound:
            break
        assert now == before
