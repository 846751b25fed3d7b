"""`tally fork`, as a user calls it: another run from a turn on, and what it may change."""

from __future__ import annotations

import json
import sqlite3

import pytest
from tests.cli.test_resume import REPLIES, Tally, tally

from tallystick.core.charge import RunLimits
from tallystick.core.records import AskModel, ReceiptIssued, RunForked, tag_of
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.runs.history import records_of

# Each starts processes: CI runs them.
pytestmark = pytest.mark.slow

__all__ = ["tally"]


def own(tally: Tally, run: str) -> list[str]:
    with SqliteLedger(tally.path) as ledger:
        return [tag_of(each) for each in records_of(ledger, run)]


def forked(tally: Tally) -> RunForked:
    (record,) = [each for each in tally.records() if isinstance(each, RunForked)]
    return record


def test_a_fork_goes_its_own_way_and_the_run_stays_as_it_is(tally: Tally) -> None:
    tally.run()
    parent, before = tally.last(), tally.records()
    tally.script(REPLIES[0], REPLIES[1], "FINAL(n + 100)")

    done = tally("fork", parent, "--at", "2")

    fork = tally.last()
    assert (done.code, done.out) == (0, "121\n")
    assert fork != parent
    assert f"run {fork} in" in done.err
    assert tally.records(parent) == before
    assert (forked(tally).parent, forked(tally).turn) == (parent, 2)
    assert own(tally, fork) == [
        "run.forked", "model.ask", "model.replied", "program.run", "program.finished",
        "receipt.issued", "run.ended",
    ]  # fmt: skip
    assert tally("verify").code == 0
    assert json.loads(tally("replay", fork, "--json").out)["held"]
    assert json.loads(tally("replay", parent, "--json").out)["held"]
    assert tally("diff", parent, fork).code in (0, 1)
    # A fork holds what it needs itself.
    assert tally("attach", "ls", "--run", fork).code == 0


def test_a_run_that_a_fork_grew_from_is_not_removed(tally: Tally) -> None:
    tally.run("--quiet")
    parent = tally.last()
    tally("fork", "last", "--at", "1", "--quiet")
    fork = tally.last()

    refused = tally("rm", parent, "--yes")

    assert refused.code == 2
    assert f"run {fork} grew from it" in refused.line
    assert tally("rm", fork, "--yes").code == 0
    assert tally("rm", parent, "--yes").code == 0


@pytest.mark.parametrize("at", ["0", "1", "2", "3"])
def test_a_fork_at_any_turn_has_the_same_answer_with_the_same_replies(
    tally: Tally, at: str
) -> None:
    tally.run("--quiet")

    done = tally("fork", "last", "--at", at, "--quiet")

    assert (done.code, done.out, done.err) == (0, "21\n", "")


def test_events_and_json_are_of_what_is_new(tally: Tally) -> None:
    tally.run("--quiet")

    lines = [
        json.loads(line) for line in tally("fork", "last", "--at", "2", "--events").out.splitlines()
    ]
    assert {line["seq"] for line in lines} <= {*range(len(own(tally, tally.last())))}
    assert (lines[0]["seq"], lines[0]["begun"]) == (0, "forked")
    assert {line["run"] for line in lines} == {tally.last()}

    result = json.loads(tally("fork", "last", "--at", "1", "--json").out)
    assert (result["answer"], result["stop"], result["turns"]) == ("21", "answered", 3)
    assert result["run"] == tally.last()


def test_limits_are_another_from_there_on(tally: Tally) -> None:
    tally.run("--quiet")

    done = tally(
        "fork", "last", "--at", "1", "--set", "max_turns=2", "--set", "max_usd=0.5",
        "--set", "timeout=20", "--set", "reply_tokens=99", "--set", "retries=0",
    )  # fmt: skip

    assert done.code == 3
    limits = forked(tally).limits
    assert limits is not None
    assert (limits.turns, limits.usd, limits.wall_ms) == (2, 500_000_000, 20_000)
    assert (limits.reply_tokens, limits.retries) == (99, 0)
    assert limits.tokens == RunLimits().tokens
    (receipt,) = [each for each in tally.records() if isinstance(each, ReceiptIssued)]
    assert receipt.receipt.usd_cap == 500_000_000
    # And it goes on like any other run.
    assert tally("resume", "last", "--max-turns", "9", "--quiet").out == "21\n"
    assert json.loads(tally("replay", "last", "--json").out)["held"]


@pytest.mark.parametrize("given", ["0", "0.0", "1", "0.75"])
def test_a_temperature_is_another_from_there_on(tally: Tally, given: str) -> None:
    tally.run("--quiet")

    tally("fork", "last", "--at", "1", "--set", f"temperature={given}", "--quiet")

    assert forked(tally).temperature == float(given)
    asked = [each for each in tally.records() if isinstance(each, AskModel)]
    assert [each.temperature for each in asked] == [None, float(given), float(given)]
    assert json.loads(tally("replay", "last", "--json").out)["held"]


def test_another_model_is_asked_from_there_on(tally: Tally) -> None:
    tally.run("--quiet")
    tally.script(REPLIES[0], REPLIES[1], "FINAL(n * 2)", name="other.jsonl")

    done = tally("fork", "last", "--at", "2", "-m", "scripted:other.jsonl", "--quiet")

    assert done.out == "42\n"
    assert forked(tally).model == "scripted:other.jsonl"
    assert json.loads(tally("replay", "last", "--json").out)["held"]
    # A fork knows which model it goes on with.
    tally("fork", "last", "--at", "3", "--quiet")
    assert json.loads(tally("replay", "last", "--json").out)["held"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--at"),
        (("--at", "x"), "--at"),
        (("--at", "-1"), "--at"),
        (("--at", "4"), "has turns 1 to 3: fork it with --at 3 or less (0 is before the first)"),
        (("--at", "1", "--set", "max_turns"), "write KEY=VALUE"),
        (("--at", "1", "--set", "=3"), "write KEY=VALUE"),
        (("--at", "1", "--set", "seed=3"), "max_turns, max_tokens"),
        (("--at", "1", "--set", "model=x"), "max_turns, max_tokens"),
        (("--at", "1", "--set", "max_turns=three"), "max_turns"),
        (("--at", "1", "--set", "max_turns=-1"), "max_turns"),
        (("--at", "1", "--set", "max_usd=nan"), "max_usd"),
        (("--at", "1", "--set", "temperature=hot"), "temperature"),
        (("--at", "1", "--set", "temperature=-1"), "temperature"),
        (("--at", "1", "-m", "scripted:none.jsonl"), "none.jsonl"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tally: Tally, words: tuple[str, ...], said: str) -> None:
    tally.run("--quiet")
    with SqliteLedger(tally.path) as ledger:
        runs = ledger.runs()

    done = tally("fork", "last", *words)

    assert (done.code, done.out) == (2, "")
    assert said in done.line
    with SqliteLedger(tally.path) as ledger:
        assert ledger.runs() == runs


def test_a_run_that_is_not_there_is_not_found(tally: Tally) -> None:
    tally.run("--quiet")

    done = tally("fork", "ZZZZ", "--at", "0")

    assert done.code == 6
    assert "ZZZZ" in done.line


def test_a_run_that_was_tampered_with_has_no_forks(tally: Tally) -> None:
    tally.run("--quiet")
    with sqlite3.connect(tally.path) as db:
        db.execute("UPDATE body SET body = x'00' WHERE seq = 2")
    db.close()

    done = tally("fork", "last", "--at", "1")

    assert done.code == 2
    assert "does not hold at entry 2" in done.line
