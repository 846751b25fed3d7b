"""Tasks that want items judged: which are recognised, and the program that is shown for them."""

from __future__ import annotations

import json

import pytest

from tallystick.core.records import ProgramFinished
from tallystick.inputs.judging import names_judgement
from tallystick.inputs.layout import layout_of
from tallystick.model.tokens import text_tokens_estimated
from tallystick.runtime.context.inputs import given_text
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import block
from tallystick.testing.runs import play

SAID = "It broke on the second day and nobody answers my letters."
REVIEWS = "".join(json.dumps({"id": n, "review": SAID}) + "\n" for n in range(30))
ROWS = "product,review\n" + f'kettle,"{SAID}"\n' * 30
LINES = f"{SAID}\n" * 40
LETTERS = {f"{n}.txt": f"{SAID}\nYours, {n}\n" for n in range(5)}
LOG = "".join(f"2024-01-{day:02} ERROR unit {day} is down\n" for day in range(1, 29))
QUESTION = "How many customers are satisfied?"


def shown(
    texts: dict[str, str], question: str = QUESTION, *, aids: tuple[str, ...] = ("items",)
) -> str:
    inputs = [given_text(text, name=name) for name, text in texts.items()]
    return layout_of(inputs, question=question, aids=aids).contexts[-1].sample


def program_shown(texts: dict[str, str], question: str = QUESTION) -> str | None:
    """The program that asks a model, or None if there is another one."""
    sample = shown(texts, question)
    source = sample.partition("```python\n")[2].partition("\n```")[0]
    return source if "llm_query_batched" in source else None


# -- the program -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "items"),
    [
        ({"a": REVIEWS}, "record['review'] for record in records]"),
        ({"a": ROWS}, "row['review'] for row in rows]"),
        ({"a": LINES}, "line for line in lines]"),
        (LETTERS, "text for text in context.values()]"),
    ],
    ids=["records", "rows", "lines", "files"],
)
def test_items_with_a_text_to_read_are_sent_to_a_model(texts: dict[str, str], items: str) -> None:
    program = program_shown(texts)

    assert program is not None
    assert f"llm_query_batched(['{QUESTION} Is this one: ' + {items}" in program
    assert "Code cannot judge texts, a model can. A block can begin like this:" in shown(texts)
    assert "llm_query" not in shown(texts, aids=())


@pytest.mark.parametrize("text", [REVIEWS, ROWS, LINES], ids=["records", "rows", "lines"])
def test_the_program_runs_and_keeps_the_items_that_were_chosen(
    sandbox: WasmSandbox, text: str
) -> None:
    program = program_shown({"a": text})
    assert program is not None
    count = 40 if text == LINES else 30
    says = ["yes", "no", "no"] * 20
    answers = [block(program), *says[:count], block("FINAL(len(chosen))")]

    played = play(sandbox, answers, goal=QUESTION, inputs=[given_text(text, name="a")])

    first, *_ = played.of(ProgramFinished)
    chosen = (count + 2) // 3
    assert first.failure is None
    assert first.stdout.startswith(f"{chosen} [")
    assert (played.run.answer, played.run.stop) == (str(chosen), "answered")
    assert played.replayed().held


def test_the_end_of_the_task_is_asked_of_each_item() -> None:
    told = "Each line is a message. Mind the dates! How many of them are complaints?"
    program = program_shown({"a": LINES}, told)
    long = program_shown({"a": LINES}, f"Say {'of all these very many lines ' * 40}who complains?")

    assert program is not None
    assert long is not None
    assert "['How many of them are complaints? Is this one: ' + line" in program
    assert "lines of all these very many lines who complains? Is this one: ' + line" in long


def test_a_question_with_quotes_and_braces_is_still_a_program() -> None:
    question = "Is the tone of {it} \"rude\" or 'polite' \\ neither?"
    program = program_shown({"a": LINES}, question)

    assert program is not None
    compile(program, "program", "exec")
    assert repr(f"{question} Is this one: ") in program


@pytest.mark.parametrize("texts", [{"a": REVIEWS}, {"a": ROWS}, {"a": LINES}, LETTERS])
@pytest.mark.parametrize("question", [QUESTION, f"{'Which of them all ' * 30} are complaints?"])
def test_the_prompt_grows_by_at_most_60_tokens(texts: dict[str, str], question: str) -> None:
    plain, aided = shown(texts, question, aids=()), shown(texts, question)

    assert text_tokens_estimated(aided) - text_tokens_estimated(plain) <= 60


# -- which tasks -----------------------------------------------------------------------------------


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
    assert shown({"a": REVIEWS}, question) == shown({"a": REVIEWS}, question, aids=())


@pytest.mark.parametrize(
    "text",
    ["city,total\n" + "Bern,12\n" * 30, LOG, "1 2 3 4 5", "word\n" * 40],
    ids=["table", "log", "numbers", "words"],
)
def test_data_without_texts_to_read_has_no_items(text: str) -> None:
    assert program_shown({"a": text}, "How many of them are positive?") is None
