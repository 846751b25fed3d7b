"""Answers that are positions, lengths or counts: which are asked about, and which never are."""

from __future__ import annotations

import msgspec
import pytest
from tests.core.machine.test_machine import finished, started
from tests.core.machine.test_suspect_answer import begun, over, turn

from tallystick.core.machine.position import is_position, with_positions
from tallystick.core.machine.state import Phase, RunState
from tallystick.core.records import RunStarted

TEXT = "The code word for Brolen is VELVET. " * 40
GOAL = "What is the code word for Brolen?"


def goal_of(goal: str, **changes: object) -> RunStarted:
    return msgspec.structs.replace(over(TEXT, goal=goal), **changes)


def printed_by(source: str, stdout: str, known: tuple[str, ...] = ()) -> tuple[str, ...]:
    return with_positions(known, source, finished(stdout=stdout))


def play(*turns: tuple[str, str, str | None], goal: str = GOAL, template: str = "") -> RunState:
    """The state after programs, each with what it printed and the answer that it gave."""
    start = over(TEXT, goal=goal)
    if template:
        start = msgspec.structs.replace(start, template=template)
    state, _ = begun(start)
    for source, stdout, answer in turns:
        state, _ = turn(state, source, stdout=stdout, answer=answer)
    return state


# -- what a program shows to be a position ---------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "print(context.find('Brolen'))",
        "at = context.index('Brolen')\nprint(at)",
        "at = context.find('Brolen')\nend = at + 6\nprint(end)",
        "print(len(context))",
        "context.count('Brolen')",
        "import re\nm = re.search('Brolen', context)\nprint(m.start())",
        "import re\nm = re.search('Brolen', context)\nprint('at', m.span())",
        "at = context.find('Brolen')\nprint(f'found at {at}')",
        "if (at := context.find('Brolen')) >= 0:\n    print(at)",
        "for i, line in enumerate(lines):\n    if 'Brolen' in line:\n        print(i)",
    ],
)
def test_numbers_of_searches_and_lengths_are_positions(source: str) -> None:
    assert printed_by(source, "35211\n") == ("35211",)


@pytest.mark.parametrize(
    "source",
    [
        "print(rows[0]['price'])",
        "print(sum(numbers))",
        "print(len(rows), rows[0]['price'])",
        "at = context.find('B')\nprint(context[at:at + 20])",
        "at = context.find('B')\nat = rows[0]['price']\nprint(at)",
        "print(max(numbers) - len(numbers))",
        "total = len(rows) * price\nprint(total)",
        "print(",
    ],
)
def test_numbers_of_the_data_are_none(source: str) -> None:
    assert printed_by(source, "35211\n") == ()


def test_a_number_that_is_printed_beside_others_later_is_none_any_more() -> None:
    known = printed_by("print(len(rows))", "12\n")

    assert known == ("12",)
    assert printed_by("print(rows[3])", "{'qty': 12}\n", known) == ()


def test_the_last_twenty_are_kept() -> None:
    many = printed_by("print(len(x))", " ".join(map(str, range(100, 150))))

    assert many == tuple(map(str, range(130, 150)))


# -- which answers are asked about -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("FINAL(context.find('Brolen'))", "35211"),
        ("at = context.find('Brolen')\nFINAL(at)", "35211"),
        ("import re\nFINAL(re.search('Brolen', context).span())", "(35211, 35217)"),
        ("FINAL(35211)", "35211"),
        ("FINAL(at)", "35211"),
        ("", "35211"),
    ],
)
def test_a_position_is_no_code_word(source: str, answer: str) -> None:
    printed = ("35211", "35217")

    assert is_position(answer, goal_of(GOAL), source=source, printed=printed)


@pytest.mark.parametrize(
    "source",
    ["FINAL(rows[3]['qty'])", "n = rows[3]['qty']\nFINAL(n)", "FINAL(sum(numbers))"],
)
def test_a_value_that_is_as_large_as_a_position_is_none(source: str) -> None:
    assert not is_position("12", goal_of(GOAL), source=source, printed=("12",))


@pytest.mark.parametrize(
    "goal",
    [
        "How many lines have the word Brolen?",
        "What is the number of projects in this log?",
        "What is the length of the longest line?",
        "At what position does Brolen stand in the text?",
        "Which line has the code word for Brolen?",
        "In which year was the mill at Brolen sold?",
        "Where in the text does Brolen stand?",
        "What is the sum of all the prices?",
        "What is the most that anybody paid?",
        "Count the lines with Brolen.",
        "Wie viele Zeilen haben das Wort Brolen?",
        "What is it?",
        "len",
    ],
)
def test_a_task_that_may_ask_for_a_number_is_never_asked_about(goal: str) -> None:
    source = "FINAL(context.find('Brolen'))"

    assert not is_position("35211", goal_of(goal), source=source, printed=("35211",))


@pytest.mark.parametrize("answer", ["VELVET", "VELVET-35211", "12.5", "-", "", "thirty 35211"])
def test_an_answer_that_is_no_whole_number_is_never_asked_about(answer: str) -> None:
    assert not is_position(answer, goal_of(GOAL), source="FINAL(len(x))", printed=("35211",))


def test_an_answer_of_a_schema_is_never_asked_about() -> None:
    typed = goal_of(GOAL, schema='{"type":"integer"}')

    assert not is_position("35211", typed, source="FINAL(context.find('B'))", printed=("35211",))


# -- in a run --------------------------------------------------------------------------------------


FOUND = ("at = context.find('Brolen')\nprint(at)", "18\n", None)


def test_the_model_is_asked_once_and_told_how_the_text_there_is_printed() -> None:
    state = play(FOUND, ("FINAL(18)", "", "18"))

    assert state.phase is Phase.ASKING
    assert state.asked_about == ("position",)
    assert "18, which is a position, a length or a count" in state.messages[-1].text
    assert "context[0:218]" in state.messages[-1].text


def test_the_same_answer_again_is_taken() -> None:
    state = play(FOUND, ("FINAL(18)", "", "18"), ("FINAL(18)", "", "18"))

    assert (state.phase, state.answer) == (Phase.ENDING, "18")


def test_another_position_after_the_question_is_taken() -> None:
    state = play(FOUND, ("FINAL(18)", "", "18"), ("FINAL(context.find('word'))", "", "9"))

    assert (state.phase, state.answer) == (Phase.ENDING, "9")


def test_a_text_that_was_read_at_a_position_is_taken_at_once() -> None:
    reads = (
        "at = context.find('Brolen')\nprint(context[at:at + 30])",
        "Brolen is VELVET. The",
        None,
    )

    state = play(reads, ("FINAL('VELVET')", "", "VELVET"))

    assert (state.phase, state.answer) == (Phase.ENDING, "VELVET")


@pytest.mark.parametrize("template", ["python@2", "python@3"])
def test_runs_of_earlier_prompts_are_not_asked(template: str) -> None:
    state = play(FOUND, ("FINAL(18)", "", "18"), template=template)

    assert (state.phase, state.answer) == (Phase.ENDING, "18")


def test_a_run_without_data_is_not_asked() -> None:
    start = started(goal=GOAL)

    assert not start.contexts
    assert is_position("18", start, source="FINAL(len('x'))", printed=())
