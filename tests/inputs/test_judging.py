"""Tasks that want items judged: which are recognised, and the line that is said about them."""

from __future__ import annotations

import json

import pytest

from tallystick.inputs.judging import names_judgement
from tallystick.inputs.layout import layout_of
from tallystick.runtime.context.inputs import given_text

SAID = "It broke on the second day and nobody answers my letters."
REVIEWS = "".join(json.dumps({"id": n, "review": SAID}) + "\n" for n in range(30))
ROWS = "product,review\n" + f'kettle,"{SAID}"\n' * 30
LINES = f"{SAID}\n" * 40
LOG = "".join(f"2024-01-{day:02} ERROR unit {day} is down\n" for day in range(1, 29))


def items_of(texts: dict[str, str], question: str, *, aids: tuple[str, ...] = ("items",)) -> object:
    inputs = [given_text(text, name=name) for name, text in texts.items()]
    return layout_of(inputs, question=question, aids=aids).contexts[-1].items or None


@pytest.mark.parametrize(
    ("text", "items"),
    [
        (REVIEWS, ("record['review']", "record in records")),
        (ROWS, ("row['review']", "row in rows")),
        (LINES, ("line", "line in lines")),
    ],
    ids=["records", "rows", "lines"],
)
def test_items_with_a_text_to_read_are_named_as_programs_reach_them(
    text: str, items: tuple[str, str]
) -> None:
    assert items_of({"a": text}, "How many customers are satisfied?") == items
    assert items_of({"a": text}, "How many customers are satisfied?", aids=()) is None


def test_short_files_are_items_too() -> None:
    letters = {f"{n}.txt": f"{SAID}\nYours, {n}\n" for n in range(5)}

    assert items_of(letters, "Which of these letters are complaints?") == (
        "text",
        "text in context.values()",
    )
    assert items_of(letters, "How many of these letters are there?") is None


@pytest.mark.parametrize(
    "question",
    [
        "How many customers are satisfied?",
        "Which product has the most satisfied customers?",
        "How many of them are complaints?",
        "Is the tone of each message polite?",
        "Classify each ticket as urgent or not.",
        "How many reviews are positive?",
        "Which articles are about sports?",
        "Count the comments in favour of the plan.",
    ],
)
def test_a_word_of_opinion_tone_intent_or_topic_names_a_judgement(question: str) -> None:
    assert names_judgement(question)


@pytest.mark.parametrize(
    "question",
    [
        "How many lines have the level ERROR?",
        'What is the sum of "amount" over all rows?',
        "Which city has the largest total?",
        "How many different addresses are there?",
        "What is the id of the longest line?",
        "What is the average of the reviews' stars?",
        "How many records have a status of open?",
        "What does the word 'kettle' appear next to?",
    ],
)
def test_a_task_that_code_decides_names_none(question: str) -> None:
    assert not names_judgement(question)
    assert items_of({"a": REVIEWS}, question) is None


@pytest.mark.parametrize(
    "text",
    ["city,total\n" + "Bern,12\n" * 30, LOG, "1 2 3 4 5", "word\n" * 40],
    ids=["table", "log", "numbers", "words"],
)
def test_data_without_texts_to_read_has_no_items(text: str) -> None:
    assert items_of({"a": text}, "How many of them are positive?") is None
