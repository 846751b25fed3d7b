"""`tally run --strategy` and what `--dry-run` says of each, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_exec import Tally

# Each starts processes: CI runs them.
pytestmark = pytest.mark.slow

STORY = "The ship left Riga in the night. Nobody saw the captain again.\n" * 40


@pytest.fixture
def tally(tmp_path: Path) -> Tally:
    (tmp_path / "story.txt").write_text(STORY)
    (tmp_path / "long.txt").write_text(STORY * 70)
    (tmp_path / "rows.csv").write_text("id,port\n" + "".join(f"{n},Riga\n" for n in range(50)))
    replies = [{"text": "Riga\n"}, {"text": "```python\nFINAL(len(context))\n```"}]
    (tmp_path / "direct.jsonl").write_text(json.dumps(replies[0]))
    (tmp_path / "code.jsonl").write_text(json.dumps(replies[1]))
    both = [{"text": "CANNOT"}, replies[1]]
    (tmp_path / "both.jsonl").write_text("\n".join(json.dumps(each) for each in both))
    return Tally(tmp_path)


def run(tally: Tally, file: str, script: str, *words: str, **env: str) -> Any:
    return tally("run", "where?", "-f", file, "-m", f"scripted:{script}.jsonl", *words, **env)


def test_without_a_strategy_programs_are_written(tally: Tally) -> None:
    done = run(tally, "story.txt", "code")

    assert done.stdout == f"{len(STORY)}\n"
    assert not done.stderr.startswith("strategy")


def test_direct_prints_the_reply_as_the_answer(tally: Tally) -> None:
    done = run(tally, "story.txt", "direct", "--strategy", "direct")

    assert (done.returncode, done.stdout) == (0, "Riga\n")
    assert "1 turn " in done.stderr
    assert tally("replay", "last").returncode == 0


def test_auto_says_what_it_took_and_why(tally: Tally) -> None:
    read = run(tally, "story.txt", "direct", "--strategy", "auto")
    counted = run(tally, "rows.csv", "code", "--strategy", "auto")
    quiet = run(tally, "rows.csv", "code", "--strategy", "auto", "--quiet")

    assert read.stdout == "Riga\n"
    assert read.stderr.startswith("strategy direct: about 70")
    assert counted.stderr.startswith("strategy code: 50 rows are counted by programs")
    assert quiet.stderr == ""


def test_the_record_has_the_strategy_and_the_reason(tally: Tally) -> None:
    done = run(tally, "story.txt", "direct", "--strategy", "auto", "--events")

    first = json.loads(tally("inspect", "last", "--json").stdout)["records"][0]
    assert first["strategy"] == "direct"
    assert "tokens are read at once" in first["strategy_why"]
    assert done.stderr == ""


def test_a_refusal_of_the_model_is_followed_by_a_program(tally: Tally) -> None:
    done = run(tally, "story.txt", "both", "--strategy", "direct")

    assert done.stdout == f"{len(STORY)}\n"
    assert "added=system,task+not_direct:refused" in tally("inspect", "last", "--records").stdout


def test_the_environment_and_the_configuration_set_it_too(tally: Tally) -> None:
    (tally.directory / "tallystick.toml").write_text('strategy = "direct"\n')

    assert run(tally, "story.txt", "direct").stdout == "Riga\n"
    code = run(tally, "story.txt", "code", TALLYSTICK_STRATEGY="code")
    assert code.stdout == f"{len(STORY)}\n"
    wrong = run(tally, "story.txt", "code", TALLYSTICK_STRATEGY="quick")
    assert wrong.returncode == 2
    assert "TALLYSTICK_STRATEGY: must be auto or direct or code or recursive" in wrong.stderr


def test_a_direct_run_that_does_not_fit_is_wrong_usage_in_a_line(tally: Tally) -> None:
    done = run(tally, "long.txt", "direct", "--strategy", "direct")

    assert (done.returncode, done.stdout) == (2, "")
    assert "strategy direct: a prompt of about " in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert json.loads(tally("ls", "--json").stdout) == []


def test_an_unknown_strategy_is_wrong_usage(tally: Tally) -> None:
    assert run(tally, "story.txt", "code", "--strategy", "quick").returncode == 2


# -- before a run ------------------------------------------------------------------------------


def test_a_dry_run_shows_every_strategy_and_what_auto_would_take(tally: Tally) -> None:
    done = run(tally, "story.txt", "code", "--dry-run")

    shown = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert shown["direct"].split()[1:3] == ["1", "call"]
    assert "tokens" in shown["code"]
    assert "about $0.00" in shown["recursive"]
    assert shown["auto"].startswith("auto      direct: about 71")
    assert json.loads(tally("ls", "--json").stdout) == []


def test_a_dry_run_says_what_does_not_fit(tally: Tally) -> None:
    done = run(tally, "long.txt", "code", "--dry-run")

    assert "direct    does not fit: a prompt of about " in done.stdout


def test_the_json_of_a_dry_run_has_the_same(tally: Tally) -> None:
    found = json.loads(run(tally, "rows.csv", "code", "--dry-run", "--json").stdout)

    assert [each["strategy"] for each in found["strategies"]] == ["direct", "code", "recursive"]
    assert all(
        set(each) == {"strategy", "calls", "tokens", "usd", "why_not"}
        for each in found["strategies"]
    )
    assert found["auto"] == "code"
    assert found["auto_why"] == "50 rows are counted by programs (more than 36)"
