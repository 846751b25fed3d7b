"""Answers that look like slips: which are asked about, how often, and when they are taken."""

from __future__ import annotations

import string
import warnings
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.machine.test_machine import finished, replied, started, told

from tallystick.core.charge import RunLimits
from tallystick.core.machine.machine import advance, begin
from tallystick.core.machine.prompt import Message
from tallystick.core.machine.state import Phase, RunState
from tallystick.core.machine.suspect_answer import (
    Doubt,
    doubt_of,
    is_empty,
    is_typed_unseen,
    named_values,
    question,
    still_unnamed,
)
from tallystick.core.records import ContextRef, Intent, RunStarted, ViewRef
from tallystick.runtime.context.namespace import texts_of

# Half of what the profile says, so that the folder takes seconds.
EXAMPLES = settings().max_examples // 2
TEXT = "id,status,owner\nINV-104,open,Ada Barros\nINV-119,closed,Xu\n"
TYPED_IN = 'FINAL("Zanzibar")'
READS = "print(context)"
# A program, and what came of it.
Turn = tuple[str, Mapping[str, object]]


def over(
    text: str = TEXT, *, goal: str = "which one?", whole: bool = False, turns: int = 30
) -> RunStarted:
    """The start of a run over one text, of which the model was shown a part or all."""
    context = ContextRef(
        name="context", sha256="a", bytes=len(text), chars=len(text), sample="...", whole=whole
    )
    return started(
        goal=goal,
        contexts=(context,),
        values={"context": text},
        views=(ViewRef(name="lines", kind="lines", of="context"),),
        limits=RunLimits(turns=turns),
    )


def begun(start: RunStarted) -> tuple[RunState, tuple[Intent, ...]]:
    """Begin a run over the texts that its start holds."""
    return begin(start, texts_of(start.values))


def turn(state: RunState, source: str, **result: object) -> tuple[RunState, tuple[Intent, ...]]:
    """One turn: a program and what came of it."""
    state, _ = advance(state, replied(f"```python\n{source}\n```"))
    return advance(state, finished(**result))


def after(start: RunStarted, *turns: Turn) -> RunState:
    state, _ = begun(start)
    for source, result in turns:
        state, _ = turn(state, source, **result)
    return state


def answering(source: str, answer: str, **more: object) -> Turn:
    return source, {"answer": answer, **more}


def taken(state: RunState) -> str | None:
    """The answer that a run has ended with, or None if it goes on."""
    if state.phase is not Phase.ENDING:
        return None
    assert state.ended is not None
    assert state.ended.stop == "answered"
    return state.ended.answer


# Each doubt with a start and a turn that raise it, and no other.
DOUBTFUL: dict[Doubt, tuple[RunStarted, Turn]] = {
    "unread": (over(), answering("n = 6 * 7\nFINAL(n)", "42")),
    "empty": (over(), answering("FINAL(context.count('none of it'))", "0")),
    "unseen": (over(), answering(f"{READS}\n{TYPED_IN}", "Zanzibar", stdout=TEXT)),
    "unnamed": (over(goal="who owns INV-104?"), answering("FINAL(context[-3:])", "Xu")),
    "echo": (
        over(goal="is one of them still open?"),
        answering("FINAL('still ' + lines[1][8:12])", "still open"),
    ),
}
EVERY = pytest.mark.parametrize("doubt", sorted(DOUBTFUL))


# -- raised where it should be -----------------------------------------------------------------


@EVERY
def test_an_answer_that_looks_like_a_slip_is_asked_about(doubt: Doubt) -> None:
    start, first = DOUBTFUL[doubt]

    state = after(start, first)

    assert state.phase is Phase.ASKING
    assert state.asked_about == (doubt,)
    assert str(first[1]["answer"]) in told(state)


@EVERY
def test_an_answer_that_was_asked_about_is_taken_when_it_is_given_again(doubt: Doubt) -> None:
    start, first = DOUBTFUL[doubt]

    state = after(start, first, first)

    assert taken(state) == first[1]["answer"]


def test_an_answer_typed_in_without_reading_is_asked_about_once_and_not_for_each_reason() -> None:
    twice = answering(TYPED_IN, "Zanzibar")

    assert taken(after(over(), twice)) is None
    assert taken(after(over(), twice, twice)) == "Zanzibar"


@EVERY
def test_no_answer_is_asked_about_in_the_last_turn(doubt: Doubt) -> None:
    start, (source, result) = DOUBTFUL[doubt]
    only = over(goal=start.goal, turns=1)

    assert taken(after(only, (source, result))) == result["answer"]


@settings(max_examples=EXAMPLES)
@given(
    goal=st.sampled_from(["which one?", "who owns INV-104?"]),
    turns=st.lists(
        st.sampled_from(
            [
                *(first for _, first in DOUBTFUL.values()),
                answering("FINAL('Timbuktu')", "Timbuktu"),
                answering("FINAL([])", "[]"),
                ("print(context.count('Open'))", {"stdout": "0\n"}),
                (READS, {"stdout": TEXT}),
            ]
        ),
        max_size=8,
    ),
)
def test_every_doubt_is_raised_at_most_once_in_a_run(goal: str, turns: list[Turn]) -> None:
    state, _ = begun(over(goal=goal))
    for source, result in turns:
        if state.phase is not Phase.ENDING:
            state, _ = turn(state, source, **result)

    assert len(set(state.asked_about)) == len(state.asked_about)


@pytest.mark.parametrize(
    ("source", "answer"),
    [(TYPED_IN, "Zanzibar"), ("FINAL(0)", "0"), ("n = 6 * 7\nFINAL(n)", "42"), ("FINAL('')", "")],
)
def test_without_data_a_program_s_answer_is_taken_at_once(source: str, answer: str) -> None:
    assert taken(after(started(), answering(source, answer))) == answer


@pytest.mark.parametrize(
    ("source", "answer"), [(TYPED_IN, "Zanzibar"), ("n = 6 * 7\nFINAL(n)", "42")]
)
def test_an_answer_from_a_text_that_was_shown_whole_is_taken_at_once(
    source: str, answer: str
) -> None:
    assert taken(after(over(whole=True), answering(source, answer))) == answer


@pytest.mark.parametrize("source", [READS, "open('data.csv').read()", "len(lines)"])
def test_an_answer_is_read_if_any_program_has_named_the_data(source: str) -> None:
    first = (source, {"stdout": "something"})

    assert taken(after(over(), first, answering("n = 6 * 7\nFINAL(n)", "42"))) == "42"


def test_an_answer_that_was_typed_in_after_it_was_shown_is_taken() -> None:
    look = (READS, {"stdout": "Zanzibar is there\n"})

    assert taken(after(over(), look, answering(TYPED_IN, "Zanzibar"))) == "Zanzibar"


def test_a_name_of_the_question_counts_when_a_program_or_an_output_has_it() -> None:
    start = over(goal="who owns INV-104?")
    looks_for = answering("FINAL([l for l in lines if 'inv-104' in l.lower()][0])", "Ada")
    has_printed = answering("print(context)\nFINAL(context[-3:])", "Xu", stdout=TEXT)

    assert taken(after(start, looks_for)) == "Ada"
    assert taken(after(start, has_printed)) == "Xu"


def test_an_answer_given_beside_a_program_is_asked_about_with_what_the_program_printed() -> None:
    state, _ = begun(over())
    state, _ = advance(state, replied(f"```python\n{READS}\n```\nFINAL(forty two)"))

    state, _ = advance(state, finished(stdout="the owner is Ada\n"))

    assert state.asked_about == ("unseen",)
    assert "the owner is Ada" in told(state)
    assert "'forty two'" in told(state)


def test_an_answer_given_beside_a_program_is_asked_about_without_data_too() -> None:
    """The doubt is about the program's output, which the model had not seen."""
    state, _ = begun(started())
    state, _ = advance(state, replied("```python\nprint(2 + 2)\n```\nFINAL(it is five)"))

    state, _ = advance(state, finished(stdout="4\n"))

    assert state.asked_about == ("unseen",)


def test_an_answer_alone_in_its_reply_is_taken() -> None:
    state = after(over(), (READS, {"stdout": "x"}))

    state, _ = advance(state, replied("FINAL(forty two)"))

    assert taken(state) == "forty two"


# -- what a program printed --------------------------------------------------------------------


def test_a_program_over_the_data_that_prints_a_zero_is_asked_about_once() -> None:
    nothing = ("print(context.count('Open'))", {"stdout": "0\n"})

    state = after(over(), nothing)
    again, _ = turn(state, "print(context.count('OPEN'))", stdout="0\n")

    assert state.asked_about == ("empty",)
    assert "its conditions matched nothing" in told(state)
    assert again.asked_about == ("empty",)
    assert "Output:\n0" in told(again)


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ({"stdout": "0\nINV-104\n"}, "it printed something else"),
        ({"stdout": ""}, "it printed nothing"),
        ({"stdout": "0\n", "value": "[{'id': 'INV-104'}]"}, "its last line has a value"),
    ],
)
def test_what_a_program_shows_beside_a_zero_is_not_lost(
    result: dict[str, object], why: str
) -> None:
    state = after(over(), ("print(context.count('Open'))", result))

    assert state.asked_about == (), why
    assert all(str(part).strip() in told(state) for part in result.values())


def test_a_zero_without_data_is_shown_as_any_other_output() -> None:
    state = after(started(), ("print(0)", {"stdout": "0\n"}))

    assert state.asked_about == ()
    assert "Output:\n0" in told(state)


def test_a_zero_in_the_last_turn_is_the_partial_answer() -> None:
    state = after(over(turns=1), ("print(context.count('Open'))", {"stdout": "0\n"}))

    assert state.ended is not None
    assert (state.ended.stop, state.ended.answer, state.ended.partial) == ("max_turns", "0", True)


@pytest.mark.parametrize("doubt", sorted(DOUBTFUL.keys() - {"unseen"}))
def test_an_answer_that_was_asked_about_is_what_a_cap_finds(doubt: Doubt) -> None:
    start, (source, result) = DOUBTFUL[doubt]
    state = after(over(goal=start.goal, turns=2), (source, result))

    state, _ = turn(state, "x = 1")

    assert state.ended is not None
    assert (state.ended.stop, state.ended.partial) == ("max_turns", True)
    assert state.ended.answer == result["answer"]


# -- typed in, or seen -------------------------------------------------------------------------


def said(*outputs: str) -> tuple[Message, ...]:
    """A prompt in which these outputs were shown."""
    opening = (
        Message(role="system", part="system", text="Zanzibar 12345"),
        Message(role="user", part="task", text="Zanzibar 12345"),
    )
    shown = [Message(role="user", part="result", text=text) for text in outputs]
    return (*opening, Message(role="assistant", part="reply", text="Zanzibar 12345"), *shown)


@pytest.mark.parametrize(
    ("source", "answer", "blind"),
    [
        ('FINAL("Zanzibar")', "Zanzibar", True),
        ("FINAL(42)", "42", True),
        ("FINAL(4.5)", "4.5", True),
        ("x = 1\nFINAL('Zanzibar')", "Zanzibar", True),
        ("x = 'Zanzibar'\nFINAL(x)", "Zanzibar", False),
        ("FINAL(f'{x}')", "Zanzibar", False),
        ("FINAL(max(rows))", "Zanzibar", False),
        ("FINAL('other')", "Zanzibar", False),
        ("if x:\n    FINAL('Zanzibar')", "Zanzibar", False),
        ("for x in rows:\n    FINAL('Zanzibar')", "Zanzibar", False),
        ("def f():\n    FINAL('Zanzibar')\nf()", "Zanzibar", False),
        ("FINAL(", "Zanzibar", False),
        ("", "", False),
        ("FINAL('Zanzibar')\0", "Zanzibar", False),
    ],
)
def test_a_literal_outside_any_condition_is_typed_in(source: str, answer: str, blind: bool) -> None:
    assert is_typed_unseen(source, answer, printed=False, messages=said()) is blind


@pytest.mark.parametrize(
    "source", ["if x:\n    FINAL('Zanzibar')", "def f():\n    FINAL('Zanzibar')\nf()"]
)
def test_a_literal_under_a_condition_is_typed_in_if_the_program_also_printed(source: str) -> None:
    assert is_typed_unseen(source, "Zanzibar", printed=True, messages=said())


@pytest.mark.parametrize(
    ("answer", "shown", "blind"),
    [
        ("Zanzibar", "it is Zanzibar", False),
        ("Zanzibar", "it is another", True),
        ("INV-104", "INV-104 is open", False),
        ("INV-104 by Ada", "INV-104 is open", False),
        ("INV-104, INV-119 and INV-120", "INV-104 is open", True),
        ("Vessel: V-2764, Owner: Dorn", "V-2764 belongs to Dorn", False),
        ("yes", "yes", False),
        ("yes", "no", True),
    ],
)
def test_an_answer_is_seen_if_half_of_its_telling_words_were_shown(
    answer: str, shown: str, blind: bool
) -> None:
    source = f"FINAL({answer!r})"

    assert is_typed_unseen(source, answer, printed=False, messages=said(shown)) is blind


def test_what_the_task_or_the_model_itself_said_was_not_seen() -> None:
    assert is_typed_unseen("FINAL(12345)", "12345", printed=False, messages=said())


def test_a_long_program_is_not_looked_into() -> None:
    source = "#" * 40_000 + "\nFINAL(42)"

    assert not is_typed_unseen(source, "42", printed=False, messages=said())


def test_an_escape_that_python_warns_of_changes_no_judgement() -> None:
    """A warning would also be printed, once for every program."""
    source = "import re\nre.search('\\d', context)\nFINAL('Zanzibar')"

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        blind = is_typed_unseen(source, "Zanzibar", printed=False, messages=said())

    assert blind
    assert heard == []


@settings(max_examples=EXAMPLES)
@given(
    source=st.one_of(
        st.text(max_size=80),
        st.lists(st.sampled_from(["FINAL(", "'a'", "0x1", ")", "if x:", "\n", "    ", "-"])).map(
            "".join
        ),
    ),
    answer=st.text(max_size=10),
    printed=st.booleans(),
)
def test_any_program_can_be_judged(source: str, answer: str, printed: bool) -> None:
    assert is_typed_unseen(source, answer, printed=printed, messages=said()) in (True, False)


def test_a_number_too_long_to_be_written_out_is_no_answer() -> None:
    source = f"FINAL(0x{'f' * 4_000})\nFINAL('Zanzibar')"

    assert is_typed_unseen(source, "Zanzibar", printed=False, messages=said())


# -- what the question names -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("goal", "names"),
    [
        ('how many are "open"?', ("open",)),
        ("how many are \u201copen\u201d?", ("open",)),
        ("who is Ada Barros?", ("Ada", "Barros")),
        ("the owner, Ada, of it", ("Ada",)),
        ("who owns INV-104 and INV-119?", ("INV-104", "INV-119")),
        ("INV-104 and INV-104 again", ("INV-104",)),
        ("Ada is first in the sentence", ()),
        ("Is it done? Ada says so", ()),
        ("who is Nobody?", ()),
        ('how many are "missing"?', ()),
        ("what came after 104?", ()),
        ("what is 10.5 of it?", ()),
        ("before 2031-05-06?", ()),
        ('before "2031-05-06"?', ()),
        ("", ()),
    ],
)
def test_names_of_a_question_are_those_that_stand_in_the_data(
    goal: str, names: tuple[str, ...]
) -> None:
    text = f"{TEXT}104 10.5 2031-05-06 Is\n"

    assert named_values(goal, [text]) == names


def test_names_are_looked_for_in_every_text_of_a_run() -> None:
    found = named_values("INV-104, INV-119, INV-120", ["INV-104", "INV-119"])

    assert found == ("INV-104", "INV-119")


def test_of_texts_that_stay_on_the_host_no_names_are_known() -> None:
    assert named_values("who owns INV-104?", []) == ()


@settings(max_examples=EXAMPLES)
@given(goal=st.text(string.printable, max_size=200), text=st.text(string.printable, max_size=200))
def test_every_name_stands_in_the_question_and_in_the_data_and_has_a_letter(
    goal: str, text: str
) -> None:
    names = named_values(goal, [text])

    assert len(set(names)) == len(names) <= 20
    assert all(name in goal and name in text for name in names)
    assert all(any(each.isalpha() for each in name) for name in names)


@settings(max_examples=EXAMPLES)
@given(goal=st.lists(st.sampled_from(["104", "2031-05-06", "10.5", "1,204", "06.05.2031"])))
def test_numbers_and_dates_are_no_names(goal: list[str]) -> None:
    asked = " ".join(goal)

    assert named_values(asked, [asked]) == ()


@settings(max_examples=EXAMPLES)
@given(
    names=st.lists(st.text(string.ascii_letters, min_size=1, max_size=4), max_size=5),
    source=st.text(string.ascii_letters, max_size=20),
    stdout=st.text(string.ascii_letters, max_size=20),
    value=st.none() | st.text(string.ascii_letters, max_size=20),
)
def test_a_name_is_named_once_a_program_or_its_output_has_it_in_any_case(
    names: list[str], source: str, stdout: str, value: str | None
) -> None:
    left = still_unnamed(names, source, finished(stdout=stdout, value=value))

    everything = [source.lower(), stdout.lower(), (value or "").lower()]
    assert all(name in names for name in left)
    for name in names:
        if any(name.lower() in text for text in everything):
            assert name not in left
        else:
            assert name in left


# -- empty answers, and answers that are the question ------------------------------------------


@pytest.mark.parametrize(
    ("goal", "answer", "echo"),
    [
        ("which vessel was towed in?", "towed in", True),
        ("which vessel was towed in?", "'Towed In'", True),
        ("which vessel was towed in?", "V-2764", False),
        ("which vessel was towed in?", "in", False),
        ("is it open or closed?", "closed", False),
        ("what came after 2031-05-06?", "2031-05-06", False),
    ],
)
def test_words_of_a_question_that_offers_no_choice_are_no_answer_to_it(
    goal: str, answer: str, echo: bool
) -> None:
    found = doubt_of(answer, over(goal=goal), read=True, seen=True)

    assert (found == "echo") is echo


@pytest.mark.parametrize(
    ("answer", "shown", "blind"),
    [
        ("3.14", "3.14159", False),
        ("3.15", "3.14159", True),
        ("3", "3.14159", False),
        ("-2.5", "-2.4999", False),
        ("17", "1" * 400, True),
    ],
)
def test_a_number_was_seen_if_one_was_shown_that_rounds_to_it(
    answer: str, shown: str, blind: bool
) -> None:
    source = f"FINAL({answer!r})"

    assert is_typed_unseen(source, answer, printed=False, messages=said(shown)) is blind


# -- what is said ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "0", "0.0", " None\n", "[]", "{}", "'0'", "NaN", "null"])
def test_an_empty_value_is_known_as_one(text: str) -> None:
    assert is_empty(text)


@pytest.mark.parametrize("text", ["1", "no", "00", "[0]", "0 rows", "-0.5", "1e0"])
def test_any_other_value_is_not_empty(text: str) -> None:
    assert not is_empty(text)


def test_an_unseen_answer_comes_before_every_other_doubt() -> None:
    start = over(goal="who owns INV-104?")

    assert doubt_of("0", start, read=False, seen=False, unnamed=("INV-104",)) == "unseen"
    assert doubt_of("0", start, read=False, seen=True, unnamed=("INV-104",)) == "unnamed"
    assert doubt_of("0", start, read=False, seen=True) == "unread"
    assert doubt_of("0", start, read=True, seen=True) == "empty"
    assert doubt_of("owns INV-104", start, read=True, seen=True) == "echo"
    assert doubt_of("1", start, read=True, seen=True) is None


def test_a_name_that_was_not_looked_for_is_shown_with_a_line_that_has_it() -> None:
    start = over(goal="who owns INV-104?")

    text = question("unnamed", "Xu", start, texts=[TEXT], unnamed=("INV-104",))

    assert "did not look for 'INV-104'" in text
    assert "INV-104,open,Ada Barros" in text
    assert "INV-119" not in text


def test_an_empty_answer_is_told_how_the_data_writes_what_was_looked_for() -> None:
    source = "FINAL(sum(row['status'] == 'Open' for row in rows))"

    text = question("empty", "0", over(), texts=[TEXT], source=source)

    assert "'Open' is written 'open' in the data." in text
    assert "If 0 is right all the same, give it again." in text


def test_of_data_that_stays_on_the_host_nothing_is_said_to_be_missing() -> None:
    context = ContextRef(name="context", sha256="a", bytes=9, chars=9, sample="...")
    start = started(contexts=(context,), values={})

    text = question("empty", "0", start, source="FINAL('Open' == context[0:4])")

    assert "does not stand in the data" not in text


@EVERY
def test_every_question_ends_with_what_to_do(doubt: Doubt) -> None:
    start, (source, result) = DOUBTFUL[doubt]
    texts = texts_of(start.values)
    unnamed = named_values(start.goal, texts)

    text = question(
        doubt, str(result["answer"]), start, texts=texts, unnamed=unnamed, source=source
    )

    assert "```python block" in text or "FINAL(...)" in text
    assert text.endswith(".")
