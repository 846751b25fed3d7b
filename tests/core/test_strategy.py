"""Strategies: what is chosen from the numbers, what the model is told, how a reply is read."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.machine.test_machine import replied, started
from tests.laws.test_machine_laws import drive, starts

from tallystick.core.budget.amount import Remaining
from tallystick.core.charge import ModelUsage, RunLimits
from tallystick.core.errors import UsageError
from tallystick.core.machine.answer import direct_reply, is_direct
from tallystick.core.machine.machine import advance, begin
from tallystick.core.machine.prompt import opening
from tallystick.core.machine.reply import parse_reply
from tallystick.core.machine.state import Phase, RunState
from tallystick.core.records import (
    AskModel,
    AttachmentRef,
    InputRef,
    ModelFailed,
    ModelRefused,
    ModelReplied,
    RunProgram,
    RunStarted,
    TextRef,
    decode_record,
    encode_record,
)
from tallystick.core.strategy import (
    DIRECT_TOKENS_MAX,
    ROWS_MAX,
    STRATEGIES,
    WINDOW,
    Facts,
    Figures,
    check_strategy_name,
    choose_strategy,
    why_not_direct,
)
from tallystick.model.tokens import text_tokens_estimated

FREE = Figures(calls=1, tokens=1_000, usd=None)
PROSE = Facts(
    text_tokens=1_000,
    prose_tokens=1_000,
    rows=0,
    pictures=0,
    on_host=False,
    prompt_tokens=1_100,
    prompt_tokens_max=4_500,
    reply_tokens=4_096,
    reply_tokens_least=16,
    least_usd=None,
    window=None,
    left=Remaining(tokens=100_000),
    direct=FREE,
    code=FREE,
    recursive=FREE,
)


def facts(**changes: object) -> Facts:
    return dataclasses.replace(PROSE, **changes)  # type: ignore[arg-type]


def auto(**changes: object) -> str:
    return choose_strategy("auto", facts(**changes)).strategy


def why(**changes: object) -> str:
    return choose_strategy("auto", facts(**changes)).why


def usd(direct: int | None, pieces: int | None) -> dict[str, Figures]:
    return {
        "direct": dataclasses.replace(FREE, usd=direct),
        "recursive": dataclasses.replace(FREE, usd=pieces),
    }


# -- what auto takes ---------------------------------------------------------------------------


def test_short_prose_is_read_at_once_and_the_reason_has_the_numbers() -> None:
    assert auto() == "direct"
    assert why() == "about 1,100 tokens are read at once (up to 16,384)"


def test_a_prompt_of_exactly_the_limit_is_read_at_once_and_one_token_more_is_not() -> None:
    at, over = DIRECT_TOKENS_MAX, DIRECT_TOKENS_MAX + 1

    assert auto(prompt_tokens=at, text_tokens=at - 90, prose_tokens=at - 90) == "direct"
    assert auto(prompt_tokens=over, text_tokens=over - 90, prose_tokens=over - 90) == "recursive"


def test_of_what_is_too_long_only_prose_counts_with_the_prompt_around_it() -> None:
    long = {"prompt_tokens": 20_090, "text_tokens": 20_000}

    assert auto(**long, prose_tokens=DIRECT_TOKENS_MAX - 90) == "code"
    assert auto(**long, prose_tokens=DIRECT_TOKENS_MAX - 89) == "recursive"


def test_tables_and_records_of_more_than_a_few_dozen_rows_are_for_programs() -> None:
    assert auto(rows=ROWS_MAX) == "direct"
    assert auto(rows=ROWS_MAX + 1) == "code"
    assert why(rows=60) == "60 rows are counted by programs (more than 36)"


def test_long_prose_beside_a_long_table_is_still_for_programs() -> None:
    assert auto(prompt_tokens=99_999, prose_tokens=99_999, rows=ROWS_MAX + 1) == "code"


def test_reading_at_once_is_chosen_only_if_it_costs_no_more_than_reading_in_pieces() -> None:
    assert auto(**usd(500, 500)) == "direct"
    assert auto(**usd(501, 500)) == "recursive"
    assert "reading at once costs more" in why(**usd(2_000_000, 1_000_000))
    assert "$0.002" in why(**usd(2_000_000, 1_000_000))
    assert auto(**usd(501, 500), left=Remaining(tokens=9_000, usd=499)) == "code"


def test_that_programs_alone_would_be_cheaper_is_no_reason_not_to_read() -> None:
    assert auto(code=dataclasses.replace(FREE, usd=1), **usd(500, 500)) == "direct"


@pytest.mark.parametrize("price", [usd(None, None), usd(None, 5), usd(5, None), usd(0, 0)])
def test_a_price_that_is_not_known_or_nothing_is_no_reason_against_reading(
    price: dict[str, Figures],
) -> None:
    assert auto(**price) == "direct"


def test_a_cap_that_does_not_pay_for_the_prompt_means_programs() -> None:
    needed = PROSE.prompt_tokens_max + PROSE.reply_tokens_least

    assert auto(left=Remaining(tokens=needed)) == "direct"
    assert auto(left=Remaining(tokens=needed - 1)) == "code"
    assert "4,516 tokens, and 4,515 are left" in why(left=Remaining(tokens=needed - 1))
    assert auto(left=Remaining(usd=70), least_usd=70) == "direct"
    assert auto(left=Remaining(usd=69), least_usd=70) == "code"
    assert auto(left=Remaining(tokens=-5)) == "code"


def test_a_window_that_does_not_hold_prompt_and_reply_means_programs() -> None:
    assert auto(window=1_100 + 4_096) == "direct"
    assert auto(window=1_100) == "code"
    assert auto(window=0) == "code"
    assert "has room for 1,100" in why(window=1_100)


def test_a_window_is_filled_exactly_and_not_by_one_token_more() -> None:
    prompt = WINDOW - PROSE.reply_tokens

    assert why_not_direct(facts(prompt_tokens=prompt)) is None
    assert "is taken to have room for 32,768" in str(
        why_not_direct(facts(prompt_tokens=prompt + 1))
    )
    assert why_not_direct(facts(prompt_tokens=prompt + 1, window=WINDOW + 1)) is None


def test_long_prose_is_read_in_pieces_if_what_is_left_pays_for_that() -> None:
    long = {"prompt_tokens": 60_000, "prose_tokens": 60_000, "text_tokens": 60_000}
    pieces = Figures(calls=34, tokens=70_000, usd=900)

    def taken(left: Remaining) -> str:
        return auto(**long, recursive=pieces, left=left)

    assert taken(Remaining()) == "recursive"
    assert taken(Remaining(tokens=70_000, usd=900, model_calls=34)) == "recursive"
    assert taken(Remaining(tokens=69_999)) == "code"
    assert taken(Remaining(usd=899)) == "code"
    assert taken(Remaining(model_calls=33)) == "code"
    assert "about 70,000 tokens, and 5 are left" in why(
        **long, recursive=pieces, left=Remaining(tokens=5)
    )


def test_texts_that_stay_on_the_host_are_never_read_at_once() -> None:
    host = {
        "on_host": True,
        "prompt_tokens": 0,
        "prose_tokens": 2_000_000,
        "text_tokens": 2_000_000,
    }

    assert auto(**host) == "recursive"
    assert auto(**host, rows=5_000) == "code"
    with pytest.raises(UsageError, match="strategy direct: texts of about 2,000,000 tokens stay"):
        choose_strategy("direct", facts(**host))


def test_without_a_text_there_is_nothing_to_read_but_pictures() -> None:
    nothing = {"text_tokens": 0, "prose_tokens": 0}

    assert auto(**nothing) == "code"
    assert auto(**nothing, pictures=1) == "direct"
    assert auto(**nothing, pictures=1, left=Remaining(tokens=10)) == "code"
    assert choose_strategy("direct", facts(**nothing)).strategy == "direct"


# -- by name -----------------------------------------------------------------------------------


def test_one_that_is_asked_for_is_taken_without_a_reason() -> None:
    for name in ("direct", "code", "recursive"):
        choice = choose_strategy(check_strategy_name(name), facts(rows=10_000))
        assert (choice.strategy, choice.why) == (name, "")


def test_a_direct_run_that_does_not_fit_is_refused_in_a_line() -> None:
    with pytest.raises(UsageError) as caught:
        choose_strategy("direct", facts(prompt_tokens=40_000))

    assert str(caught.value) == (
        "strategy direct: a prompt of about 40,000 tokens and a reply of 4,096 do not fit the "
        "model, which is taken to have room for 32,768; take code, recursive or auto"
    )


@pytest.mark.parametrize("name", ["", "Direct", "autos", "code ", "x" * 500])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="must be auto, direct, code or recursive") as caught:
        check_strategy_name(name)
    assert len(str(caught.value)) < 120


@given(
    st.builds(
        Facts,
        text_tokens=st.integers(0, 10**7),
        prose_tokens=st.integers(0, 10**7),
        rows=st.integers(0, 10**6),
        pictures=st.integers(0, 3),
        on_host=st.booleans(),
        prompt_tokens=st.integers(0, 10**7),
        prompt_tokens_max=st.integers(0, 10**7),
        reply_tokens=st.integers(0, 10**5),
        reply_tokens_least=st.integers(0, 16),
        least_usd=st.none() | st.integers(0, 10**9),
        window=st.none() | st.integers(0, 10**6),
        left=st.builds(
            Remaining,
            tokens=st.none() | st.integers(-5, 10**6),
            usd=st.none() | st.integers(0, 10**9),
        ),
        direct=st.just(FREE),
        code=st.just(FREE),
        recursive=st.just(FREE),
    )
)
def test_auto_always_takes_one_that_is_possible_and_says_why(given_facts: Facts) -> None:
    choice = choose_strategy("auto", given_facts)

    assert choice.strategy in STRATEGIES[1:]
    assert choice.why
    assert "\n" not in choice.why
    if choice.strategy == "direct":
        assert why_not_direct(given_facts) is None
        assert given_facts.prompt_tokens <= DIRECT_TOKENS_MAX or not given_facts.text_tokens


# -- what the model is told --------------------------------------------------------------------


def kept(label: str) -> AttachmentRef:
    return AttachmentRef(id=label * 64, byte_len=5, media_type="text/plain", label=label)


ONE = {
    "inputs": (InputRef(name="context", key=None, attachment=kept("a")),),
    "files": (("a.txt", "context", None),),
}
TWO = {
    "inputs": (
        InputRef(name="context", key="a.txt", attachment=kept("a")),
        InputRef(name="context", key="b.txt", attachment=kept("b")),
    ),
    "files": (("a.txt", "context", "a.txt"), ("b.txt", "context", "b.txt")),
}
LONG = {"texts": (TextRef(name="context", key=None, id=0, bytes=9),)}
LONGS = {"texts": (TextRef(name="context", key="a.txt", id=0, bytes=9),)}


def test_a_record_from_before_there_were_strategies_is_one_of_code() -> None:
    old = encode_record(started()).replace(b'"strategy":"code","strategy_why":"",', b"")
    assert b"strategy" not in old

    read = decode_record(old)

    assert isinstance(read, RunStarted)
    assert (read.strategy, read.strategy_why) == ("code", "")


def test_the_prompts_of_code_do_not_know_of_strategies() -> None:
    plain, _ = begin(started(**ONE), ("hello",))
    named, _ = begin(started(**ONE, strategy="code", strategy_why="60 rows"), ("hello",))

    assert plain.messages == named.messages == opening(started(**ONE))


def test_a_direct_prompt_has_the_texts_whole_under_their_names_and_the_task_last() -> None:
    state, (intent,) = begin(started(**TWO, strategy="direct"), ("first", "second"))

    system, task = state.messages
    assert (
        task.text == "--- 'a.txt' ---\nfirst\n\n--- 'b.txt' ---\nsecond\n\n"
        "It is Thursday, 1970-01-01 00:00 UTC.\n\nThe task: count the lines"
    )
    assert "python" not in system.text
    assert text_tokens_estimated(system.text) <= 60
    assert isinstance(intent, AskModel)
    assert intent.added == ("system:direct", "task:direct")


def test_a_direct_prompt_shows_the_pictures_too() -> None:
    image = AttachmentRef(
        id="c" * 64, byte_len=5, media_type="image/png", label="c.png", width=3, height=4
    )
    state, _ = begin(started(images=(image,), strategy="direct"))

    assert state.messages[1].images[0].ref == image
    assert "c.png (3 x 4)" in state.messages[1].text


@pytest.mark.parametrize("given_data", [{}, ONE, TWO, LONG, LONGS])
def test_what_a_recursive_run_is_told_beyond_code_is_short(given_data: dict[str, object]) -> None:
    code = opening(started(**given_data))
    recursive = opening(started(**given_data, strategy="recursive"))

    more = recursive[0].text.removeprefix(code[0].text)
    assert more != recursive[0].text
    assert recursive[1] == code[1]
    assert text_tokens_estimated(more) <= 160
    for name in ("llm_query(", "llm_query_batched(", "rlm_query(", "rlm_query_batched(",
                 "budget.remaining()", "schema=bool", "```python"):  # fmt: skip
        assert name in more


def test_the_example_of_a_recursive_run_cuts_its_own_data() -> None:
    def example(data: Mapping[str, object]) -> str:
        text = opening(started(**data, strategy="recursive"))[0].text
        return text.split("```python\n")[-1].splitlines()[0]

    assert example(ONE) == "pieces = [context[i:i+8000] for i in range(0, len(context), 8000)]"
    assert example(LONG) == "pieces = [p for p in context.chunks(8000)]"
    assert example(LONGS) == "pieces = [p for text in context.values() for p in text.chunks(8000)]"
    assert example(TWO) == (
        "pieces = [text[i:i+8000] for text in context.values() for i in range(0, len(text), 8000)]"
    )


# -- how a direct reply is read ----------------------------------------------------------------


def read(text: str, *, cut: bool = False) -> tuple[str, str]:
    found = direct_reply(parse_reply(text, cut=cut), text, cut=cut)
    return found.kind, found.said


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("42", "42"),
        ("  Paris\n", "Paris"),
        ("<think>It is said to be 41, or\n```python\nx\n```\n</think>\n\n42", "42"),
        ("so it is 42</think>42", "42"),
        ("```\n42\n```", "42"),
        ("```json\n[1, 2]\n```", "[1, 2]"),
        ("```bash\npip install it\n```", "pip install it"),
        ("FINAL(42)", "42"),
        ("The total follows.\nFINAL(42)", "42"),
        ("x = 5", "x = 5"),
        ("Run\n```text\na\n```\nand b", "Run\n```text\na\n```\nand b"),
        ("No.", "No."),
        ("Cannot be shipped before May", "Cannot be shipped before May"),
        ("She said: I cannot", "She said: I cannot"),
    ],
)  # fmt: skip
def test_a_reply_is_the_answer_trimmed(text: str, answer: str) -> None:
    assert read(text) == ("answer", answer)


@pytest.mark.parametrize(
    "text", ["", "  \n", "<think>so</think>", "<think>so and so", "```\n\n```"]
)
def test_a_reply_that_says_nothing_is_empty(text: str) -> None:
    assert read(text)[0] == "empty"


@pytest.mark.parametrize(
    "text",
    [
        "CANNOT",
        "CANNOT.",
        "**CANNOT**",
        "CANNOT: it is not there",
        "CANNOT it is not there",
        "I'm sorry, but I cannot help with that.",
        "I\u2019m sorry.",
        "I can't tell.",
        "As an AI model, I do not count.",
        "QUERY_LLM(what is it?)",
    ],
)
def test_a_reply_that_refuses_is_no_answer(text: str) -> None:
    assert read(text)[0] == "refused"


@pytest.mark.parametrize(
    "text", ["```python\nprint(1)\n```", "I compute:\n```repl\nx = 1\n```", 'FINAL_VAR("x")']
)
def test_a_program_is_a_program(text: str) -> None:
    assert read(text)[0] == "program"
    assert read(text, cut=True)[0] == "program"


def test_what_was_cut_is_no_answer_whatever_it_says() -> None:
    assert read("42", cut=True) == ("cut", "42")
    assert read("", cut=True)[0] == "cut"
    assert read("```python\nx = [1,", cut=True)[0] == "cut"


@given(st.text(max_size=300), st.booleans())
def test_reading_a_reply_never_fails_and_an_answer_is_never_empty(text: str, cut: bool) -> None:
    kind, said = read(text, cut=cut)

    assert kind != "answer" or said == said.strip() != ""


# -- what the machine makes of it --------------------------------------------------------------


def asking(why: str = "", **limits: int) -> RunState:
    begun = started(**ONE, strategy="direct", strategy_why=why, limits=RunLimits(**limits))
    return begin(begun, ("hello",))[0]


def after(
    state: RunState, event: ModelReplied | ModelFailed | ModelRefused
) -> tuple[RunState, AskModel]:
    state, (intent,) = advance(state, event)
    assert isinstance(intent, AskModel)
    return state, intent


def failed(reason: str) -> ModelFailed:
    return ModelFailed(intent=1, turn=1, reason=reason, message="no", kind="terminal", billed=False)


REFUSED = ModelRefused(intent=1, turn=1, message="too dear", dimension="usd", scope="this run")


def test_the_reply_ends_the_run() -> None:
    state, intents = advance(asking(), replied(" 42\n"))

    assert (state.phase, intents) == (Phase.ENDING, ())
    assert state.ended is not None
    assert (state.ended.stop, state.ended.answer, state.ended.detail) == (
        "answered",
        "42",
        "direct",
    )
    assert state.charge.turns == 1


@pytest.mark.parametrize(
    ("text", "cut", "reason"),
    [("4", True, "cut"), ("", False, "empty"), ("CANNOT", False, "refused")],
)
def test_a_run_falls_back_with_the_prompt_of_code_and_the_reason(
    text: str, cut: bool, reason: str
) -> None:
    state, intent = after(asking(), replied(text, cut=cut))

    assert intent.added == ("system", f"task+not_direct:{reason}")
    assert (intent.turn, intent.base, intent.kept) == (2, None, None)
    system, task = opening(started(**ONE))
    assert state.messages[0] == system
    assert state.messages[1].text == (
        f"{task.text}\n\nReading alone did not give the answer. Find it with programs."
    )
    assert not is_direct(state)


def test_a_program_is_run_and_the_run_goes_on_as_code() -> None:
    state, (intent,) = advance(asking(), replied("```python\nprint(len(context))\n```"))

    assert isinstance(intent, RunProgram)
    assert not is_direct(state)
    assert state.messages[:2] == opening(started(**ONE))
    assert state.messages[2].part == "reply:1"


@pytest.mark.parametrize("reason", ["context_overflow", "content_policy"])
def test_a_prompt_that_is_too_much_for_the_model_is_not_the_end(reason: str) -> None:
    _, intent = after(asking(), failed(reason))

    assert intent.added == ("system", f"task+not_direct:{reason}")


def test_other_failures_end_the_run_as_ever() -> None:
    state, intents = advance(asking(), failed("auth_failure"))

    assert not intents
    assert state.ended is not None
    assert state.ended.stop == "model_error"


def test_a_failure_in_passing_is_asked_again_as_it_was() -> None:
    event = ModelFailed(intent=1, turn=1, reason="timeout", message="late", kind="transient")

    state, intent = after(asking(), event)

    assert is_direct(state)
    assert (intent.attempt, intent.turn) == (2, 1)


def test_a_call_that_no_budget_pays_for_ends_a_run_that_was_asked_for_by_name() -> None:
    state, intents = advance(asking(), REFUSED)

    assert not intents
    assert state.ended is not None
    assert state.ended.stop == "budget"


def test_a_call_that_no_budget_pays_for_makes_a_chosen_run_one_of_code() -> None:
    state, intent = after(asking(why="short"), REFUSED)

    assert intent.added == ("system", "task+not_direct:budget")
    assert (intent.turn, intent.intent, intent.base) == (1, 2, None)
    assert state.charge.turns == 0


def test_a_cap_ends_a_run_that_would_fall_back_and_what_was_cut_is_its_partial_answer() -> None:
    state, intents = advance(asking(turns=1), replied("The first is", cut=True))

    assert not intents
    assert state.ended is not None
    assert (state.ended.stop, state.ended.answer) == ("max_turns", "The first is")
    assert state.ended.partial


def test_what_the_direct_prompt_took_does_not_make_the_next_turn_the_last() -> None:
    usage = ModelUsage(tokens_in=20_000, tokens_out=5, reported=True)
    event = ModelReplied(intent=1, turn=1, text="CANNOT", usage=usage)

    state, _ = after(asking(tokens=50_000), event)
    almost, _ = after(asking(tokens=50_000, turns=2), event)

    assert "last turn" not in state.messages[-1].text
    assert "last turn" in almost.messages[-1].text


def test_a_strategy_that_nobody_knows_is_one_of_code() -> None:
    """A ledger from elsewhere may say anything."""
    state, _ = begin(started(**ONE, strategy="telepathy"), ("hello",))

    assert state.messages == opening(started(**ONE))


@given(
    begun=st.builds(
        msgspec.structs.replace,
        starts,
        strategy=st.sampled_from(["direct", "recursive"]),
        strategy_why=st.sampled_from(["", "short"]),
    ),
    data=st.data(),
)
def test_whatever_the_world_says_a_run_ends_and_its_events_give_it_again(
    begun: RunStarted, data: st.DataObject
) -> None:
    live, events, asked, _ = drive(begun, data)

    assert live.phase is Phase.DONE
    assert live.charge.turns <= begun.limits.turns
    roles = [message.role for message in live.messages]
    assert roles[:2] == ["system", "user"]
    assert all(a != b for a, b in itertools.pairwise(roles))
    state, intents = begin(begun)
    again = list(intents)
    for event in events:
        state, intents = advance(state, event)
        again += intents
    assert (state, again) == (live, asked)
