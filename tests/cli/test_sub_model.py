"""`--sub-model`: programs and child runs ask another model than the run."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from tallystick import UsageError
from tallystick.cli.errors import exit_code_of
from tallystick.cli.main import cli
from tallystick.client import Session
from tallystick.ledger import MemoryLedger
from tallystick.model import ScriptedModel, ScriptedReply

# Each starts processes or waits for them: CI runs them.
pytestmark = pytest.mark.slow


def said(*lines: str) -> str:
    return "```python\n" + "\n".join(lines) + "\n```"


@pytest.fixture
def tally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("TALLYSTICK_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    scripts = {
        "root": [said("a = llm_query('one')", "b = rlm_query('two')", "FINAL(a + b)")],
        "sub": ["from the sub-model", said("FINAL(' and its run')")],
    }
    for name, replies in scripts.items():
        lines = [msgspec.json.encode({"text": each}).decode() for each in replies]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return CliRunner()


def asked(tally: CliRunner, *words: str) -> Result:
    return tally.invoke(cli, words, standalone_mode=False)


def code_of(result: Result) -> int:
    return exit_code_of(result.exception) if result.exception else int(result.return_value)


def records(tally: CliRunner, run: str = "last") -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(asked(tally, "inspect", run, "--json").stdout)[
        "records"
    ]
    return found


def test_sub_calls_and_child_runs_ask_it_and_it_is_recorded(tally: CliRunner) -> None:
    ran = asked(
        tally, "run", "what?", "-m", "scripted:root.jsonl", "--sub-model", "scripted:sub.jsonl",
        "--quiet",
    )  # fmt: skip

    assert (code_of(ran), ran.stdout) == (0, "from the sub-model and its run\n"), ran.exception
    begun = records(tally)[0]
    assert begun["sub_model"] != begun["model"]
    query = next(each for each in records(tally) if each["type"] == "query.ask")
    assert query["model"] == begun["sub_model"]
    for name in ("root", "sub"):
        Path(f"{name}.jsonl").unlink()
    assert code_of(asked(tally, "replay", "last")) == 0
    shown = asked(tally, "resume", "last", "--quiet")
    assert (code_of(shown), shown.stdout) == (0, "from the sub-model and its run\n")


def test_without_it_the_run_asks_itself_and_its_record_is_as_before(tally: CliRunner) -> None:
    asked(tally, "run", "what?", "-m", "scripted:root.jsonl", "--quiet")

    assert "sub_model" not in records(tally)[0]


@pytest.mark.parametrize("name", ["scripted:missing.jsonl", "nosuch:model", "nothing"])
def test_one_that_is_not_there_is_refused_before_anything_is_written(
    tally: CliRunner, name: str
) -> None:
    refused = asked(tally, "run", "x", "-m", "scripted:root.jsonl", "--sub-model", name)

    assert code_of(refused) == 2
    assert "\n" not in str(refused.exception)
    assert asked(tally, "ls").stdout == ""


def test_a_resumed_run_asks_the_same_one(tally: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "root.jsonl").write_text(
        "\n".join(
            msgspec.json.encode({"text": each}).decode()
            for each in (
                said("print(llm_query('one'))"),
                said("print(llm_query('two'))"),
                said("FINAL(llm_query('three'))"),
            )
        )
    )
    (tmp_path / "sub.jsonl").write_text('{"text": "A"}\n{"text": "B"}\n{"text": "C"}\n')
    models = ("-m", "scripted:root.jsonl", "--sub-model", "scripted:sub.jsonl", "--quiet")
    stopped = asked(tally, "run", "what?", *models, "--max-turns", "2")
    assert code_of(stopped) == 3

    resumed = asked(tally, "resume", "last", *models, "--max-turns", "5")

    assert code_of(resumed) == 0, resumed.exception
    names = {each["model"] for each in records(tally) if each["type"] == "query.ask"}
    assert names == {records(tally)[0]["sub_model"]}
    assert code_of(asked(tally, "replay", "last")) == 0


def test_in_python_it_is_a_name_that_was_given_or_is_opened() -> None:
    root = ScriptedModel([ScriptedReply(text=said("FINAL(llm_query('one'))"))])
    sub = ScriptedModel([ScriptedReply(text="from the sub-model")])

    models = {"small": sub}

    with Session(model=root, models=models, ledger=MemoryLedger(), config=None) as session:
        assert session.run("x", sub_model="small").answer == "from the sub-model"
        with pytest.raises(UsageError, match="nosuch"):
            session.run("x", sub_model="nosuch:model")


def test_a_resume_names_none_for_a_run_that_had_none(tally: CliRunner) -> None:
    asked(tally, "run", "what?", "-m", "scripted:root.jsonl", "--quiet", "--max-turns", "0")

    refused = asked(
        tally, "resume", "last", "-m", "scripted:root.jsonl", "--sub-model", "scripted:sub.jsonl"
    )

    assert code_of(refused) == 2
    assert "without a model for its sub-calls" in str(refused.exception)


def test_a_dry_run_refuses_a_model_that_the_run_would_refuse(tally: CliRunner) -> None:
    words = ("run", "what?", "-m", "scripted:root.jsonl", "--dry-run", "--sub-model")

    assert code_of(asked(tally, *words, "scripted:sub.jsonl")) == 0
    refused = asked(tally, *words, "scripted:nosuch.jsonl")

    assert code_of(refused) == 2
    assert "nosuch.jsonl" in str(refused.exception)
