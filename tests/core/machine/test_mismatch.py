"""What is said of a condition that matched nothing: only what is so."""

from __future__ import annotations

import json
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.core.machine.suspect_answer import line_with, mismatches

# Half of what the profile says, so that the folder takes seconds.
EXAMPLES = settings().max_examples // 2
TEXT = "id,status,day\nA-1,open,2018-07-04\nA-2,reopened,2018-08-01\n"
words = st.text("abAB", min_size=2, max_size=5)
# Cells of a table, with the separators that data has between values.
tables = st.lists(st.lists(words, min_size=1, max_size=3).map(",".join), min_size=1).map("\n".join)


def compared(word: str) -> str:
    return f"print([row for row in rows if row['status'] == {word!r}])"


@pytest.mark.parametrize(
    ("word", "fact"),
    [
        ("Open", "'Open' is written 'open' in the data."),
        ("REOPENED", "'REOPENED' is written 'reopened' in the data."),
        ("2018-07", "'2018-07' stands in the data as a part of '2018-07-04'."),
        ("waiting", "'waiting' does not stand in the data."),
    ],
)
def test_a_word_is_compared_with_how_the_data_writes_it(word: str, fact: str) -> None:
    assert mismatches(compared(word), [TEXT], known=["status"]) == [fact]


@pytest.mark.parametrize("word", ["open", "A-1", "2018-07-04", "id"])
def test_a_word_that_is_a_whole_value_is_not_mentioned(word: str) -> None:
    assert mismatches(compared(word), [TEXT], known=["status"]) == []


def test_a_word_that_is_whole_in_one_place_is_not_called_a_part_for_another() -> None:
    """The first place it stands in is only the first."""
    text = "id,state\nA-2,reopened\nA-1,open\n"

    assert mismatches(compared("open"), [text], known=["status"]) == []


def test_a_word_in_another_case_is_shown_as_the_value_it_is_and_not_as_a_part_of_one() -> None:
    text = "id,status,opened\nA-1,open,2018-07-04\n"

    assert mismatches(compared("Open"), [text], known=["status"]) == [
        "'Open' is written 'open' in the data."
    ]


@settings(max_examples=EXAMPLES)
@given(text=tables, word=words)
def test_a_word_is_mentioned_if_and_only_if_no_value_of_the_data_is_that_word(
    text: str, word: str
) -> None:
    facts = mismatches(f"x == {word!r}", [text])

    assert (facts == []) == (word in text.replace("\n", ",").split(","))


@settings(max_examples=EXAMPLES)
@given(text=tables, word=words)
def test_what_is_said_of_a_word_is_so(text: str, word: str) -> None:
    values = text.replace("\n", ",").split(",")

    for fact in mismatches(f"x == {word!r}", [text]):
        if "as a part of" in fact:
            assert word in fact.rpartition(" of ")[2].strip("'.")
            assert fact.rpartition(" of ")[2].strip("'.") in values
        elif "is written" in fact:
            assert word not in text
            written = fact.partition(" is written ")[2].partition(" in the data")[0].strip("'")
            assert written in values
            assert word.lower() in written.lower()
        else:
            assert word.lower() not in text.lower()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("x == 'missing'", 1),
        ("'missing' in x", 1),
        ("x not in ('missing', 'absent')", 2),
        ("[r for r in rows if r['s'].lower() != 'missing'.upper()]", 1),
        ("x = 'missing'", 0),
        ("print('missing')", 0),
        ("x == 5", 0),
        ("x == 'm'", 0),
        (f"x == {'m' * 61!r}", 0),
        ("x == 'missing' and y == 'missing'", 1),
        ("x == 'missing", 0),
        ("x == 'missing'\0", 0),
        ("x == '\ud800missing'", 0),
    ],
)
def test_only_words_that_are_compared_with_are_looked_for(source: str, found: int) -> None:
    assert len(mismatches(source, [TEXT])) == found


def test_names_of_columns_are_no_words_of_the_data() -> None:
    assert mismatches("row['amount due'] == 5", [TEXT], known=["amount due"]) == []


def test_at_most_four_words_are_mentioned() -> None:
    source = "x in ('aa', 'bb', 'cc', 'dd', 'ee', 'ff')"

    assert len(mismatches(source, ["1,2\n"])) == 4


def test_of_data_that_is_not_here_nothing_is_said() -> None:
    """A long text stays on the host. That a word is not in it cannot be known."""
    assert mismatches(compared("open"), []) == []


@pytest.mark.parametrize("word", ["Zoë", "\U0001f600\U0001f600", "naïve café"])
def test_a_value_that_json_writes_with_escapes_is_not_called_missing(word: str) -> None:
    assert mismatches(f"r['name'] == {word!r}", [json.dumps({"name": word})]) == []


def test_an_escape_that_python_warns_of_is_the_program_s_own_business() -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        facts = mismatches("re.search('\\d', x) == 'missing'", ["1,2\n"])

    assert "'missing' does not stand in the data." in facts
    assert heard == []


@settings(max_examples=EXAMPLES)
@given(source=st.text(max_size=60), text=st.text(max_size=60))
def test_any_program_over_any_text_can_be_looked_at(source: str, text: str) -> None:
    assert len(mismatches(source, [text])) <= 4


@settings(max_examples=EXAMPLES)
@given(text=st.text("ab\n,", max_size=400), word=words)
def test_a_line_with_a_word_is_a_line_of_the_data_that_has_it(text: str, word: str) -> None:
    line = line_with(word, [text])

    assert (line is None) == (word not in text)
    if line is not None:
        assert word in line
        assert len(line) <= 200
        assert any(line in each for each in text.split("\n"))


def test_a_word_far_into_a_long_line_is_shown_with_its_surroundings() -> None:
    line = line_with("needle", ["x" * 5_000 + "needle" + "y" * 5_000])

    assert line is not None
    assert "xneedley" in line
    assert len(line) == 200
