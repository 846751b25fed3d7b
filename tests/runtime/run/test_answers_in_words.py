"""What a model says in words: taken when it says the same again, and always shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.upkeep.transfer_builders import PICTURE

from tallystick.cli.driving import show_run
from tallystick.client import Session
from tallystick.core.charge import RunLimits
from tallystick.core.records import RunStarted
from tallystick.inputs.reading import read_inputs
from tallystick.ledger.memory import MemoryLedger
from tallystick.model.scripted import ScriptedModel, ScriptedReply
from tallystick.runtime.calls.functions import host_function
from tallystick.runtime.context.inputs import Input, given_text
from tallystick.runtime.runs.history import records_of
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import block
from tallystick.testing.runs import play


@pytest.mark.parametrize(
    ("replies", "answer"),
    [
        (["Paris", "Paris"], "Paris"),
        (["Paris is it.", "Hm.", "Hm"], "Hm"),
        (["It is Paris.", "it is  PARIS"], "it is  PARIS"),
        (["<think>first</think>Paris", "<think>second</think>Paris"], "Paris"),
        (["```json\n[1]\n```", "```json\n[1]\n```"], "[1]"),
    ],
)
def test_a_model_that_says_the_same_in_words_twice_has_answered(
    replies: list[str], answer: str, sandbox: WasmSandbox
) -> None:
    played = play(sandbox, replies, strategy="code")

    assert (played.run.stop, played.run.answer) == ("answered", answer)
    assert played.replayed().held


@pytest.mark.parametrize(
    "replies",
    [
        ["Paris", "Rome", "Paris"],
        ["I cannot do that.", "I cannot do that.", "I cannot do that."],
        ["", "", ""],
        ["<think>Paris", "<think>Paris", "<think>Paris"],
    ],
)
def test_other_words_a_refusal_and_silence_are_no_answer(
    replies: list[str], sandbox: WasmSandbox
) -> None:
    played = play(sandbox, replies, strategy="code")

    assert played.run.stop == "no_progress"
    assert played.replayed().held


def test_words_without_a_look_at_the_data_are_asked_about_once(wasm_sandbox: WasmSandbox) -> None:
    text = given_text("\n".join(f"line {n}: {'x' * 80}" for n in range(2_000)))
    played = play(wasm_sandbox, ["Seven.", "Seven.", block("FINAL(len(lines))")], inputs=[text])
    assert played.run.answer == "2000"

    played = play(wasm_sandbox, ["Seven.", "Seven.", "Seven."], inputs=[text])
    assert played.run.answer == "Seven."


def test_words_that_do_not_fit_a_schema_are_asked_for_again(sandbox: WasmSandbox) -> None:
    played = play(
        sandbox,
        ["seven", "seven", block("FINAL(7)")],
        schema={"type": "integer"},
        strategy="code",
    )

    assert played.run.data == 7


def shown(run: Run) -> str:
    import click

    @click.command()
    def command() -> None:
        show_run(run, quiet=False)

    return CliRunner().invoke(command).output


@pytest.mark.parametrize(
    ("replies", "limits", "said"),
    [
        (["I think it is Paris", "Hmm, Rome", "Perhaps Oslo"], RunLimits(), "Perhaps Oslo"),
        (["I cannot tell.", "I cannot tell.", "I cannot tell."], RunLimits(), "I cannot tell."),
        (["It is Paris."], RunLimits(turns=1), "It is Paris."),
        ([block("raise ValueError('no')")], RunLimits(turns=1), "raise ValueError('no')"),
    ],
)
def test_what_the_model_said_is_shown_when_a_run_stops_without_an_answer(
    replies: list[str], limits: RunLimits, said: str, sandbox: WasmSandbox
) -> None:
    played = play(sandbox, replies, limits=limits, strategy="code")

    assert not played.run.answered
    assert said in (played.run.said or "")
    assert said in shown(played.run)
    assert played.replayed().held


def test_a_partial_result_of_a_program_stands_before_words(sandbox: WasmSandbox) -> None:
    played = play(sandbox, [block("print(41 + 1)"), "one", "two", "three"], strategy="code")

    assert (played.run.stop, played.run.answer) == ("no_progress", "42")
    assert "said     three" in shown(played.run)


@host_function(policy="read")
def look(key: str) -> str:
    """Look."""
    return key


def default_of(sandbox: WasmSandbox, *replies: str, **more: Any) -> tuple[Run, RunStarted]:
    functions = more.pop("functions", ())
    model = ScriptedModel([ScriptedReply(text=each) for each in replies])
    with Session(
        model=model, ledger=MemoryLedger(), sandbox=sandbox, functions=functions
    ) as session:
        run = session.run("What is the capital of France?", **more)
        assert session.replay(run.run).held
        started = next(iter(records_of(session.ledger, run.run)))
    assert isinstance(started, RunStarted)
    return run, started


@pytest.fixture
def picture(tmp_path: Path) -> Input:
    path = tmp_path / "a.png"
    path.write_bytes(PICTURE)
    return read_inputs([str(path)])[0]


@pytest.mark.parametrize("pictures", [0, 1])
def test_without_anything_to_read_the_first_reply_is_the_answer(
    pictures: int, picture: Input, sandbox: WasmSandbox
) -> None:
    run, started = default_of(sandbox, "Paris", inputs=[picture] * pictures)

    assert (run.answer, run.turns, started.strategy) == ("Paris", 1, "direct")
    assert started.strategy_why == "there is nothing for a program to read"


def test_what_has_to_be_computed_may_be_a_program_all_the_same(sandbox: WasmSandbox) -> None:
    run, _ = default_of(sandbox, block("print(2 ** 100)"), block("FINAL(2 ** 100)"))

    assert run.answer == str(2**100)


def test_a_model_that_cannot_say_it_is_asked_for_programs(sandbox: WasmSandbox) -> None:
    run, _ = default_of(sandbox, "CANNOT", block("FINAL('Paris')"))

    assert run.answer == "Paris"


@pytest.mark.parametrize(
    "more",
    [
        {"inputs": [given_text("Paris")]},
        {"functions": [look]},
        {"strategy": "code"},
    ],
)
def test_where_there_is_something_to_read_the_default_stays_code(
    more: dict[str, Any], sandbox: WasmSandbox
) -> None:
    run, started = default_of(sandbox, block("FINAL('Paris')"), **more)

    assert (run.answer, started.strategy, started.strategy_why) == ("Paris", "code", "")


def test_a_picture_beside_a_text_changes_nothing(picture: Input, sandbox: WasmSandbox) -> None:
    _, started = default_of(sandbox, block("FINAL('Paris')"), inputs=[given_text("Paris"), picture])

    assert started.strategy == "code"


def test_a_child_without_a_text_is_of_code(sandbox: WasmSandbox) -> None:
    replies = [block("FINAL(rlm_query('what is it?'))"), block("FINAL(1)")]
    assert default_of(sandbox, *replies, strategy="recursive")[0].answer == "1"
