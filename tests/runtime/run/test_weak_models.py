"""Runs with helps for weak models: what is recorded and replayed, and what they cost others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.machine.test_machine import finished, replied
from tests.core.machine.test_suspect_answer import begun, over
from tests.inputs.test_nearest import FACT, QUESTION, RIVAL, chronicle

from tallystick.agent.engine import Engine
from tallystick.core.machine.machine import advance
from tallystick.core.machine.prompt import TEMPLATE, opening
from tallystick.core.machine.state import Phase
from tallystick.core.records import (
    AIDS,
    AskModel,
    ProgramFinished,
    RunStarted,
    decode_record,
    encode_record,
)
from tallystick.inputs.layout import layout_of
from tallystick.model.tokens import text_tokens_estimated
from tallystick.runtime.context.inputs import given_text
from tallystick.runtime.run.assembly import RunRequest
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import block
from tallystick.testing.runs import Played, play

EXAMPLES = settings().max_examples // 2
TEXT = chronicle(FACT, RIVAL)
ROWS = '{"paid": 1.5}\n{"paid": "2 EUR"}\n{"paid": 3}\n'
ADDS = """\
import json
total = 0.0
for line in context.splitlines():
    record = json.loads(line)
    total += record['paid']"""


def played(
    sandbox: WasmSandbox, answers: list[str], *, text: str = TEXT, goal: str = QUESTION
) -> Played:
    return play(sandbox, answers, goal=goal, inputs=[given_text(text, name="a.txt")])


# -- in whole runs ---------------------------------------------------------------------------------


def test_an_answer_that_stands_in_the_passages_is_taken_in_one_turn(sandbox: WasmSandbox) -> None:
    run = played(sandbox, [block("FINAL(4180)")])

    (started,) = run.of(RunStarted)
    assert FACT in str(started.contexts[0].near)
    assert (run.run.answer, run.run.turns) == ("4180", 1)
    assert run.replayed().held


def test_an_answer_that_stands_nowhere_in_them_is_still_asked_about(sandbox: WasmSandbox) -> None:
    run = played(sandbox, [block("FINAL(99)"), block("FINAL(99)")])

    assert (run.run.answer, run.run.turns) == ("99", 2)
    assert run.replayed().held


def test_the_block_that_is_shown_reads_around_each_hit(sandbox: WasmSandbox) -> None:
    (shown,) = layout_of([given_text(TEXT, name="a.txt")], question=QUESTION).contexts
    program = shown.sample.partition("```python\n")[2].partition("\n```")[0]

    run = played(sandbox, [block(program), block("FINAL(4180)")])

    assert FACT in run.of(ProgramFinished)[0].stdout
    assert run.replayed().held


def test_the_block_for_a_text_on_the_host_reads_around_each_hit_too(sandbox: WasmSandbox) -> None:
    text = f"{TEXT}\n\n{chronicle(paragraphs=9_000)}"
    (shown,) = layout_of([given_text(text, name="a.txt")], question=QUESTION).contexts
    program = shown.sample.partition("```python\n")[2].partition("\n```")[0]

    run = played(sandbox, [block(program), block("FINAL(4180)")], text=text)

    assert "context.search(" in program
    assert FACT in run.of(ProgramFinished)[0].stdout
    assert run.replayed().held


def test_a_program_that_fails_twice_is_told_the_values_and_replays(sandbox: WasmSandbox) -> None:
    answers = [block(ADDS), block(f"{ADDS}\nprint(total)"), block("FINAL(6.5)")]

    run = played(sandbox, answers, text=ROWS, goal="What is the sum of paid?")

    assert run.run.answer == "6.5"
    failures = [each.failure for each in run.of(ProgramFinished) if each.failure is not None]
    assert [str(each.line).splitlines()[-1] for each in failures] == [
        "record['paid'] is '2 EUR' (str)"
    ] * 2
    assert run.replayed().held


def test_a_position_is_asked_about_once_and_replays(sandbox: WasmSandbox) -> None:
    answers = [
        block("at = context.find('Brolen')\nprint(at)"),
        block("FINAL(at)"),
        block("FINAL('Ada Quist')"),
    ]

    run = played(sandbox, answers, goal="Who bought the mill at Brolen from its owner?")

    assert any("doubt:2:position" in each for ask in run.of(AskModel) for each in ask.added)
    assert (run.run.answer, run.run.turns) == ("Ada Quist", 3)
    assert run.replayed().held


# -- what is recorded ------------------------------------------------------------------------------


def test_a_run_without_a_help_records_so_and_replays(
    sandbox: WasmSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Engine.request

    def with_one(self: Engine, *arguments: Any, **options: Any) -> RunRequest:
        return plain(self, *arguments, **options, aids=("line",))

    monkeypatch.setattr(Engine, "request", with_one)
    run = played(
        sandbox, [block("FINAL(4180)"), block("print(len(context))"), block("FINAL(4180)")]
    )

    (started,) = run.of(RunStarted)
    assert started.aids == ("line",)
    assert started.contexts[0].near is msgspec.UNSET
    assert run.run.turns > 1
    assert run.replayed().held


def test_an_ordinary_run_records_nothing_more(sandbox: WasmSandbox) -> None:
    run = play(sandbox, [block("FINAL(6 * 7)")])

    (started,) = run.of(RunStarted)
    written = encode_record(started)
    assert started.template == TEMPLATE == "python@4"
    assert b'"aids"' not in written
    assert b'"near"' not in written
    assert decode_record(written) == started


def test_a_record_of_an_earlier_version_has_no_help() -> None:
    start = msgspec.structs.replace(over(TEXT, goal=QUESTION), template="python@3")
    raw = msgspec.json.decode(encode_record(start))

    assert not {"aids"} & raw.keys()
    assert not {"near"} & raw["contexts"][0].keys()
    assert decode_record(encode_record(start)) == start
    assert opening(start)[1].text.count("Passages of") == 0


# -- what a model that needs no help pays ----------------------------------------------------------

GOALS = (
    QUESTION,
    "What is the sum of the amounts?",
    "How many lines have the word mill?",
    "Which mill was sold for the least?",
    "Who bought the mill at Brolen?",
    "What is the id of the longest line?",
    "Is the customer satisfied?",
    "Count the complaints.",
    "Wie viele Zeilen gibt es?",
)
LOOKS = (
    ("print(context[:300])", "The kettle in the yard was moved."),
    ("print(len(context))", "29554"),
    ("print(len(lines), lines[:2])", "119 ['The kettle', '']"),
    ("import re\nfor m in re.findall('mill.*', context):\n    print(m)", "mill at Brolen 4180"),
    ("total = sum(numbers)\nprint(total)", "911"),
)
ANSWERS = (
    ("FINAL('Ada Quist')", "Ada Quist"),
    ("FINAL(total)", "911"),
    ("FINAL(sum('mill' in line for line in lines))", "2"),
    ("answer = rows[3]['id']\nFINAL(answer)", "INV-104"),
    ("m = re.search('for ([0-9]+)', context)\nFINAL(m.group(1))", "4180"),
    ("FINAL(max(lines, key=len))", "The longest of them."),
)


@settings(max_examples=EXAMPLES)
@given(
    goal=st.sampled_from(GOALS),
    looks=st.lists(st.sampled_from(LOOKS), max_size=3, unique=True),
    answer=st.sampled_from(ANSWERS),
)
def test_a_capable_model_pays_no_turn_more(
    goal: str, looks: list[tuple[str, str]], answer: tuple[str, str]
) -> None:
    def turns(aids: tuple[str, ...]) -> tuple[int, int]:
        start = msgspec.structs.replace(over(TEXT, goal=goal), aids=aids)
        state, _ = begun(start)
        asked, chars = 0, 0
        for source, stdout in (*looks, answer, answer, answer):
            if state.phase is not Phase.ASKING:
                break
            asked += 1
            state, _ = advance(state, replied(block(source)))
            is_answer = (source, stdout) == answer
            state, _ = advance(
                state,
                finished(answer=stdout if is_answer else None, stdout="" if is_answer else stdout),
            )
            chars = sum(len(each.text) for each in state.messages)
        return asked, chars

    assert turns(AIDS) == turns(())


def _texts() -> dict[str, Callable[[], str]]:
    return {
        "prose": lambda: TEXT,
        "records": lambda: '{"id": 1, "note": "The mill at Brolen was sold, I am happy."}\n' * 30,
        "table": lambda: "id,paid\n" + "".join(f"{n},{n}.50\n" for n in range(90)),
        "log": lambda: "".join(f"2024-01-02 10:{n % 60:02} unit {n} up\n" for n in range(300)),
        "host": lambda: f"{TEXT}\n\n{chronicle(paragraphs=9_000)}",
    }


@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("kind", _texts())
def test_the_first_prompt_grows_by_at_most_60_tokens(kind: str, goal: str) -> None:
    text = _texts()[kind]()

    def tokens(aids: tuple[str, ...]) -> int:
        layout = layout_of([given_text(text, name="a.txt")], question=goal, aids=aids)
        start = msgspec.structs.replace(over(text, goal=goal), contexts=layout.contexts)
        return sum(text_tokens_estimated(each.text) for each in opening(start))

    assert tokens(AIDS) - tokens(()) <= 60
