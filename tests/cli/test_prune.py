"""`tally prune` as a user calls it: which runs go, which are kept, and what is left."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_exec import Tally
from tests.ledger.builders import draft, drafted, run_id
from tests.upkeep.test_prune import entered, left, the_end
from tests.upkeep.transfer_builders import session_id, started

from tallystick.core.chain import Head
from tallystick.core.records import Record, RunForked
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger

# Each starts processes: CI runs them.
pytestmark = pytest.mark.slow

SCRIPT = json.dumps({"text": "```python\nprint(len(context))\nFINAL('harbour answer')\n```"})


@pytest.fixture
def tally(tmp_path: Path) -> Tally:
    (tmp_path / "data").mkdir()
    (tmp_path / "script.jsonl").write_text(f"{SCRIPT}\n{SCRIPT}\n", encoding="utf-8")
    (tmp_path / "notes.txt").write_text("harbour secret\n" * 9_000, encoding="utf-8")
    return Tally(tmp_path)


def ran(tally: Tally, goal: str = "the harbour question") -> str:
    done = tally("run", goal, "-m", "scripted:script.jsonl", "-f", "notes.txt", "--json")
    assert done.returncode == 0, done.stderr
    run: str = json.loads(done.stdout)["run"]
    return run


def ledger_of(tally: Tally) -> SqliteLedger:
    return SqliteLedger(Path(tally.env["TALLYSTICK_DATA_DIR"]) / "ledger.db")


def report(done: Any) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_a_run_said_goes_and_what_proves_it_stays(tally: Tally) -> None:
    first, second = ran(tally), ran(tally)
    head = tally("head", first, "--output", "first.head")
    receipt = tally("receipt", first).stdout

    would = report(tally("prune", "--keep", "1", "--dry-run", "--json"))
    done = report(tally("prune", "--keep", "1", "--yes", "--json"))

    assert head.returncode == 0
    assert (would["dry_run"], done["dry_run"]) == (True, False)
    assert would["pruned"] == done["pruned"]
    assert [each["run"] for each in done["pruned"]] == [first]
    assert done["note"] is None
    assert done["ledger_bytes_after"] <= done["ledger_bytes_before"]
    assert "erased: all hold" in tally("verify", "--head", "first.head").stdout
    assert tally("receipt", first).stdout == receipt
    assert [row["pruned"] for row in json.loads(tally("ls", "--json").stdout)] == [True, False]
    assert tally("replay", second).returncode == 0
    for words in (("replay", first), ("resume", first), ("fork", first, "--at", "1")):
        refused = tally(*words)
        assert refused.returncode not in (0, 1), words
        assert "pruned" in refused.stderr
        assert refused.stderr.count("\n") == 1


def test_when_nobody_holds_it_any_more_every_byte_is_gone(tally: Tally) -> None:
    for _ in range(2):
        ran(tally)

    done = tally("prune", "--older-than", "0h", "--yes")

    assert done.returncode == 0
    assert "pruned: 2 runs" in done.stderr
    assert "1 attachment, 135,000 bytes" in done.stderr
    for path in (tally.directory / "data").rglob("*"):
        if path.is_file():
            assert b"harbour" not in path.read_bytes(), path


def test_it_asks_before_it_takes_anything_out(tally: Tally) -> None:
    ran(tally)

    asked = tally("prune", "--keep", "0")

    assert asked.returncode == 130
    assert "prune 1 run, " in asked.stderr
    assert tally("replay", "last").returncode == 0


def test_runs_are_named_and_those_that_are_refused_do_not_stop_the_others(tally: Tally) -> None:
    first, second = ran(tally), ran(tally)
    with ledger_of(tally) as ledger:
        unended = run_id(1)
        drafts = [started(session_id(1), []), draft(1)]
        fence = ledger.claim(unended, create=True)
        ledger.append(unended, drafts, expected=Head.of_nothing(), fence=fence, forced=False)

    mixed = tally("prune", unended, second, "--yes")
    again = tally("prune", second, "--yes")
    chosen = tally("prune", "--keep", "0", "--yes")

    assert mixed.returncode == 6
    assert mixed.stderr.startswith(f"kept {unended}: it has not ended")
    assert mixed.stdout.startswith(second)
    assert again.returncode == 0
    assert f"kept {second}: it was pruned before" in again.stderr
    # Chosen, not named: what is kept is no failure.
    assert chosen.returncode == 0
    assert chosen.stdout.startswith(first)
    assert f"kept {unended}" in chosen.stderr
    assert second not in chosen.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "name the runs to prune"),
        (("last", "--keep", "1"), "not both"),
        (("last", "--older-than", "1d"), "not both"),
        (("--older-than", "30"), "12h, 30d, 2w"),
        (("--older-than", "-1d"), "12h, 30d, 2w"),
        (("--keep", "-1"), "--keep"),
        (("--keep", "many"), "--keep"),
        (("nosuch",), "no run 'nosuch'"),
        (("../../etc/passwd",), "no run"),
        (("\x1b[31m",), "no run"),
        (("--", "--yes"), "no run"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_pruned(
    tally: Tally, words: tuple[str, ...], says: str
) -> None:
    with ledger_of(tally) as ledger:
        first = started(session_id(1), [])
        run, drafts = run_id(1), [first, draft(1), *map(drafted, the_end(first))]
        fence = ledger.claim(run, create=True)
        head = ledger.append(run, drafts, expected=Head.of_nothing(), fence=fence, forced=False)

    done = tally("prune", *words)

    assert done.returncode in (2, 6)
    assert says in done.stderr
    assert "\x1b" not in done.stderr
    assert done.stderr.count("\n") == 1
    with ledger_of(tally) as ledger:
        assert [row.head for row in ledger.runs()] == [head]
        assert verify_ledger(ledger).erased == 0


def test_without_a_ledger_there_is_nothing_to_prune(tally: Tally) -> None:
    done = tally("prune", "--keep", "5", "--yes")

    assert (done.returncode, done.stderr) == (0, "nothing to prune\n")


def test_a_run_that_another_grew_from_is_not_removed(tally: Tally) -> None:
    parent = ran(tally)
    with ledger_of(tally) as ledger:
        root = next(ledger.read(parent, stop=1)).hash
        fork = RunForked(parent=parent, count=1, hash=root, turn=0, at=1, session_id=session_id(1))
        grown = run_id(sys.maxsize >> 20)
        fence = ledger.claim(grown, create=True, grown_from=root)
        ledger.append(
            grown, [drafted(fork)], expected=Head(count=0, hash=root), fence=fence, forced=False
        )

    refused = tally("rm", parent)
    kept = tally("prune", parent, "--yes")

    assert refused.returncode == 2
    assert f"run {grown} grew from it" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert kept.returncode == 6
    assert f"is what run {grown} grew from" in kept.stderr
    assert tally("rm", grown, "--yes").returncode == 0
    assert tally("rm", parent, "--yes").returncode == 0


def test_steps_are_pruned_like_runs_and_still_say_what_they_cost(tally: Tally) -> None:
    chain = run_id(1)
    records: list[Record] = [
        entered("a"),
        entered("a/b"),
        left("a/b", value='"harbour"'),
        left("a"),
    ]
    with ledger_of(tally) as ledger:
        fence = ledger.claim(chain, create=True)
        drafts = list(map(drafted, records))
        ledger.append(chain, drafts, expected=Head.of_nothing(), fence=fence, forced=False)
    before = tally("receipt", chain).stdout

    assert tally("prune", chain, "--yes").returncode == 0

    assert tally("receipt", chain).stdout == before
    assert tally("ls").stdout.rstrip().endswith("steps a (pruned)")
    assert "$0.000000001" in tally("ls").stdout
    assert "harbour" not in tally("inspect", chain, "--json").stdout
    assert tally("prune", "--keep", "0", "--yes").stderr == "nothing to prune\n"
