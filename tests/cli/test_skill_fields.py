"""What a skill's `model` and `context: fork` do to `tally run`, and what is said of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from tests.skills.skill_runs import make_skill

from tallystick.cli.errors import exit_code_of
from tallystick.cli.main import cli


def said(*lines: str) -> str:
    return "```python\n" + "\n".join(lines) + "\n```"


class Tally:
    """Commands in a directory of their own, with two scripted models and a folder of skills."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.script("root", said("FINAL(llm_query('one'))"), "by the root")
        self.script("sub", "by the sub-model")

    def script(self, name: str, *replies: str) -> None:
        lines = [msgspec.json.encode({"text": each}).decode() for each in replies]
        (self.directory / f"{name}.jsonl").write_text("\n".join(lines) + "\n")

    def skill(self, name: str, **fields: Any) -> None:
        make_skill(self.directory / "skills", name, **fields)

    def __call__(self, *words: str) -> Result:
        return CliRunner().invoke(cli, words, standalone_mode=False)

    def run(self, *words: str) -> Result:
        return self("run", "what?", "-m", "scripted:root.jsonl", "--skills", "skills", *words)

    def records(self) -> list[dict[str, Any]]:
        shown = self("inspect", "last", "--json").stdout
        found: list[dict[str, Any]] = json.loads(shown)["records"]
        return found


def code_of(result: Result) -> int:
    return exit_code_of(result.exception) if result.exception else int(result.return_value)


@pytest.fixture
def tally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tally:
    monkeypatch.setenv("TALLYSTICK_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return Tally(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "answer"), [("root", "by the root"), ("sub", "by the sub-model")])
def test_the_model_of_a_skill_is_asked_and_its_name_is_on_record(
    tally: Tally, name: str, answer: str
) -> None:
    tally.skill("shelves", model=f"scripted:{name}.jsonl")

    ran = tally.run("--skill", "shelves", "--sub-model", "scripted:sub.jsonl", "--quiet")

    assert (code_of(ran), ran.stdout) == (0, f"{answer}\n"), ran.exception
    (query,) = (each for each in tally.records() if each["type"] == "query.ask")
    put = tally.records()[0]["skills"]["put"][0]
    assert query["model"] == put["model"] == f"scripted:{name}.jsonl"
    assert code_of(tally("replay", "last")) == 0


@pytest.mark.parametrize("words", [[], ["--dry-run"]])
def test_a_model_that_the_run_may_not_ask_is_one_line_before_anything_is_written(
    tally: Tally, words: list[str]
) -> None:
    tally.skill("shelves", model="opus")

    refused = tally.run("--skill", "shelves", *words)

    assert code_of(refused) == 2
    line = str(refused.exception)
    assert "skill 'shelves': model 'opus' is not for programs" in line
    assert "known are: scripted:root.jsonl" in line
    assert "--sub-model" in line
    assert "\n" not in line
    assert tally("ls").stdout == ""


@pytest.mark.slow
def test_an_alias_says_which_model_a_name_in_a_skill_means(tally: Tally) -> None:
    tally.skill("shelves", model="opus")
    config = tally.directory / "config" / "tallystick" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'[aliases]\nopus = "scripted:{tally.directory}/root.jsonl"\n')

    ran = tally("run", "what?", "-m", "opus", "--skills", "skills", "--skill", "shelves", "--quiet")

    assert (code_of(ran), ran.stdout) == (0, "by the root\n"), ran.exception


@pytest.mark.slow
def test_a_fork_is_a_child_run_that_commands_show(tally: Tally) -> None:
    tally.skill("shelves", body="Count the shelves of $1.\n", context="fork")
    loads = said("found = skills.load('shelves', 'hall 5')", "print(found)")
    tally.script("root", loads, said("FINAL(7)"), said("FINAL('there are ' + found)"))

    ran = tally.run("--quiet")

    assert (code_of(ran), ran.stdout) == (0, "there are 7\n"), ran.exception
    (begun,) = (each for each in tally.records() if each["type"] == "child.begun")
    inside = json.loads(tally("inspect", begun["run"], "--json").stdout)["records"]
    assert inside[0]["goal"] == "Count the shelves of hall 5."
    assert inside[0]["caller"]["depth"] == 1
    assert code_of(tally("replay", "last")) == 0
    assert code_of(tally("replay", begun["run"])) == 0
    assert code_of(tally("verify")) == 0
    why = tally("skills", "why", "shelves", "last").stdout
    assert "a child run followed it in turn 1" in " ".join(why.split())
    assert "a child run followed the skill shelves" in tally("inspect", "last").stdout
    assert begun["run"] in tally("inspect", "last", "--tree").stdout
