"""Runs that a later version wrote, and forks of runs that somebody edited: said in one line."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from tests.cli.test_step_chains import Tally, ledger_of
from tests.ledger.builders import draft, drafted, grown, run_id
from tests.upkeep.test_prune import the_end
from tests.upkeep.transfer_builders import session_id, started

from tallystick.core.chain import Draft, Head
from tallystick.core.charge import Reserved
from tallystick.core.records import AskModel

# Each starts processes: CI runs them.
pytestmark = pytest.mark.slow

GOOD, LATER, DOUBTFUL = run_id(1), run_id(3), run_id(2)
RESERVED = Reserved(tokens_in=10, tokens_out=90, usd=2_500_000)
ASKED = AskModel(intent=1, turn=1, base=None, added=(), request_sha256="0", reserved=RESERVED)
FUTURE = Draft(tag="future.thing", intent=None, body=b'{"type":"future.thing","a":1}')
WIDER = Draft(tag="run.started", intent=None, body=b'{"type":"run.started","goal":{"said":"?"}}')


@pytest.fixture
def tally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tally:
    monkeypatch.chdir(tmp_path)
    return Tally(tmp_path / "data")


def written(tally: Tally, run: str, *drafts: Draft) -> None:
    with ledger_of(tally) as ledger:
        fence = ledger.claim(run, create=True)
        ledger.append(run, drafts, expected=Head.of_nothing(), fence=fence, forced=False)


def ended(number: int) -> list[Draft]:
    first = started(session_id(number), [])
    return [first, draft(1), *map(drafted, the_end(first))]


@pytest.fixture(params=["a record", "a start"])
def later(request: pytest.FixtureRequest, tally: Tally) -> int:
    """A ledger with a run that a later version wrote. Gives the place that cannot be read."""
    written(tally, GOOD, *ended(1))
    written(tally, DOUBTFUL, started(session_id(2), []), drafted(ASKED))
    if request.param == "a start":
        written(tally, LATER, WIDER, drafted(ASKED))
        return 0
    written(tally, LATER, started(session_id(3), []), FUTURE, drafted(ASKED))
    return 1


def test_a_run_of_a_later_version_is_listed_and_hides_no_other(tally: Tally, later: int) -> None:
    told, listed = tally("ls"), tally("ls", "--json")

    assert (told.returncode, listed.returncode) == (0, 0)
    stops = {row["run"]: row["stop"] for row in json.loads(listed.stdout)}
    assert stops == {GOOD: "answered", DOUBTFUL: "in doubt", LATER: "unreadable"}
    (line,) = [line for line in told.stdout.splitlines() if LATER in line]
    assert "  unreadable  " in line


def test_what_else_is_in_doubt_is_still_said(tally: Tally, later: int) -> None:
    done = tally("ls", "--in-doubt", "--json")

    assert done.returncode == 0
    assert [each["run"] for each in json.loads(done.stdout)["runs"]] == [DOUBTFUL]
    assert tally("resolve").returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", LATER),
        ("receipt", LATER),
        ("resume", LATER, "-m", "scripted:none.jsonl"),
        ("fork", LATER, "--at", "0"),
        ("diff", GOOD, LATER),
    ],
)
def test_what_needs_its_records_ends_with_one_line(
    tally: Tally, tmp_path: Path, later: int, words: tuple[str, ...]
) -> None:
    (tmp_path / "none.jsonl").write_text('{"text": "x"}\n', encoding="utf-8")
    with ledger_of(tally) as ledger:
        rows = list(ledger.runs())

    done = tally(*words)

    assert (done.returncode, done.stdout) == (6, "")
    assert done.stderr.startswith(f"ledger.record: entry {later} of run {LATER} cannot be read (")
    assert done.stderr.endswith("; a later version may have written it\n")
    assert done.stderr.count("\n") == 1
    with ledger_of(tally) as ledger:
        assert list(ledger.runs()) == rows


def test_it_is_kept_when_others_are_pruned_and_may_be_removed(tally: Tally, later: int) -> None:
    pruned = tally("prune", "--keep", "0", "--yes")
    assert pruned.returncode == 0
    assert pruned.stdout.startswith(GOOD)
    assert f"kept {LATER}" in pruned.stderr

    assert tally("rm", LATER, "--yes").returncode == 0

    assert [row["run"] for row in json.loads(tally("ls", "--json").stdout)] == [GOOD, DOUBTFUL]


def test_a_record_that_was_edited_is_not_said_to_be_of_a_later_version(
    tally: Tally, tmp_path: Path
) -> None:
    (tmp_path / "none.jsonl").write_text('{"text": "x"}\n', encoding="utf-8")
    written(tally, GOOD, *ended(1))
    edit(tally, GOOD, 1, FUTURE.body)

    done = tally("resume", GOOD, "-m", "scripted:none.jsonl")

    assert done.returncode == 2
    assert "does not hold at entry 1: its body is not the one that its header binds" in done.stderr


# -- forks -------------------------------------------------------------------------------------


def edit(tally: Tally, run: str, seq: int, body: bytes) -> None:
    db = sqlite3.connect(tally.folder / "ledger.db")
    with db:
        db.execute("UPDATE body SET body = ? WHERE run = ? AND seq = ?", (body, run, seq))
    db.close()


def test_a_fork_does_not_hold_if_what_it_shares_was_edited(tally: Tally) -> None:
    parent, fork, second = run_id(1), run_id(2), run_id(3)
    written(tally, parent, *ended(1))
    with ledger_of(tally) as ledger:
        grown(ledger, run=fork, parent=parent, shared=2)
        grown(ledger, run=second, parent=fork, shared=1)
    assert all(tally("verify", run).returncode == 0 for run in (parent, fork, second))
    # What it does not share is not its own.
    edit(tally, parent, 2, b"{}")
    assert [tally("verify", run).returncode for run in (parent, fork, second)] == [6, 0, 0]

    edit(tally, parent, 1, draft(9).body)

    for run in (parent, fork, second):
        done = tally("verify", run)
        assert done.returncode == 6
        assert done.stdout.startswith(f"run {parent}, entry 1: its body is not the one")
        report = json.loads(tally("verify", run, "--json").stdout)
        assert (report["ok"], report["first_bad"]["run"]) == (False, parent)


def test_a_fork_does_not_hold_if_what_it_grew_from_is_gone(tally: Tally) -> None:
    written(tally, run_id(1), *ended(1))
    with ledger_of(tally) as ledger:
        grown(ledger, run=run_id(2), parent=run_id(1), shared=2)
    db = sqlite3.connect(tally.folder / "ledger.db")
    with db:
        for table, column in (("body", "run"), ("entry", "run"), ("run", "id")):
            db.execute(f"DELETE FROM {table} WHERE {column} = ?", (run_id(1),))
    db.close()

    done = tally("verify", run_id(2))

    assert done.returncode == 6
    assert f"what it grew from is not here: no run '{run_id(1)}'" in done.stdout
