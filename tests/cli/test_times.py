"""`tally inspect` says when each thing happened, and that a clock was set back."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from tallystick.cli.main import cli

# Each starts processes or waits for them: CI runs them.
pytestmark = pytest.mark.slow


@pytest.fixture
def tally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("TALLYSTICK_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    replies = ["```python\nprint('looked')\n```", "```python\nFINAL('done')\n```"]
    lines = [json.dumps({"text": each}) for each in replies]
    (tmp_path / "two.jsonl").write_text("\n".join(lines) + "\n")
    return CliRunner()


def inspected(tally: CliRunner, *words: str) -> str:
    return tally.invoke(cli, ["inspect", "last", *words], standalone_mode=False).stdout


def run(tally: CliRunner) -> None:
    words = ["run", "what?", "-m", "scripted:two.jsonl", "--quiet"]
    assert tally.invoke(cli, words, standalone_mode=False).return_value == 0


def test_each_turn_and_each_record_has_its_time(tally: CliRunner) -> None:
    run(tally)

    turns = [line for line in inspected(tally).splitlines() if line.startswith("turn ")]
    records = inspected(tally, "--records").splitlines()
    kept = json.loads(inspected(tally, "--json"))

    assert len(turns) == 2
    assert all(re.search(r"   at \d\d:\d\d:\d\d\.\d{3}$", line) for line in turns)
    assert all(len(line) <= 80 for line in turns)
    assert all(re.match(r"\d\d:\d\d:\d\d\.\d{3}  (run|turn) ", line) for line in records)
    assert len(kept["times"]) == len(kept["records"])
    assert kept["times"] == sorted(kept["times"])


@pytest.mark.parametrize("words", [[], ["--records"]])
def test_a_clock_that_was_set_back_is_shown(
    words: list[str], tally: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = itertools.chain([1_000_000], itertools.repeat(997_500))
    monkeypatch.setattr("tallystick.runtime.journal.writer.now_ms", lambda: next(now))

    run(tally)

    shown = inspected(tally, *words)
    assert shown.count("clock     went back by 2.500 s before the next entry") == 1
    verified = tally.invoke(cli, ["verify", "last"], standalone_mode=False)
    assert verified.return_value == 0
