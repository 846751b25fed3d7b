"""Runs that programs began, as a user sees them: not listed, counted or left behind."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from tests.cli.test_step_chains import Tally, ledger_of
from tests.ledger.builders import draft, drafted, run_id
from tests.upkeep.test_prune import the_end
from tests.upkeep.transfer_builders import session_id, started

from tallystick.core.chain import Draft, Head
from tallystick.core.charge import Charge
from tallystick.core.records import (
    Caller,
    ChildBegun,
    ChildEnded,
    Record,
    RunStarted,
    decode_record,
)

# Each starts processes: CI runs them.
pytestmark = pytest.mark.slow

PARENT, CHILD = run_id(1), run_id(2)
BEGUN = ChildBegun(intent=3, program=2, item=0, run=CHILD, request_sha256="0")


@pytest.fixture
def tally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tally:
    monkeypatch.chdir(tmp_path)
    return Tally(tmp_path / "data")


def written(tally: Tally, number: int, *records: Record, caller: str | None = None) -> Draft:
    """A run with these records behind its start."""
    begun = decode_record(started(session_id(number), []).body)
    assert isinstance(begun, RunStarted)
    if caller is not None:
        said = Caller(run=caller, intent=3, item=0, depth=1)
        begun = msgspec.structs.replace(begun, caller=said)
    first = drafted(begun)
    drafts = [first, draft(1), *map(drafted, records)]
    with ledger_of(tally) as ledger:
        fence = ledger.claim(run_id(number), create=True)
        ledger.append(run_id(number), drafts, expected=Head.of_nothing(), fence=fence, forced=False)
    return first


def ending() -> list[Record]:
    return the_end(started(session_id(9), []))


def stopped(stop: str, attempt: int = 1) -> ChildEnded:
    return ChildEnded(
        intent=3,
        item=0,
        run=CHILD,
        stop=stop,
        detail="",
        answer="",
        partial=False,
        charge=Charge(),
        count=2,
        hash="0" * 64,
        attempt=attempt,
    )


def listed(tally: Tally) -> list[str]:
    return [row["run"] for row in json.loads(tally("ls", "--json").stdout)]


def test_so_many_runs_are_kept_with_those_that_they_began(tally: Tally) -> None:
    written(tally, 1, *ending())
    for number in (2, 3, 4):
        written(tally, number, *ending(), caller=PARENT)

    kept = tally("prune", "--keep", "1", "--yes")
    pruned = tally("prune", "--keep", "0", "--yes", "--json")

    assert (kept.returncode, kept.stderr) == (0, "nothing to prune\n")
    gone = [each["run"] for each in json.loads(pruned.stdout)["pruned"]]
    assert gone == [run_id(4), run_id(3), CHILD, PARENT]
    # Pruned, a child is still one.
    assert listed(tally) == [PARENT]
    assert PARENT in tally("receipt", "last", "--json").stdout


SECOND = msgspec.structs.replace(BEGUN, attempt=2)


@pytest.mark.parametrize(
    "records",
    [[BEGUN], [BEGUN, stopped("cancelled")], [BEGUN, stopped("cancelled"), SECOND]],
    ids=["killed", "cancelled", "killed again"],
)
def test_a_run_that_was_cut_off_inside_another_stays_with_it(
    tally: Tally, tmp_path: Path, records: list[Record]
) -> None:
    written(tally, 1, *records)
    written(tally, 2, caller=PARENT)

    moved = tally("export", PARENT, "run.tally", "--move")
    removed = tally("rm", CHILD, "--yes")

    assert (moved.returncode, removed.returncode) == (2, 2)
    assert moved.stderr == (
        f"usage: run {PARENT} was cut off inside run {CHILD}, which does not move with it; resume "
        "it here\n"
    )
    assert removed.stderr == (
        f"usage: run {CHILD} was begun by run {PARENT}, which can still be resumed: remove that "
        "first\n"
    )
    assert not (tmp_path / "run.tally").exists()
    with ledger_of(tally) as ledger:
        assert [(row.run, row.moved) for row in ledger.runs()] == [(PARENT, False), (CHILD, False)]
    # A copy may be made, and whoever removes the one that waits may remove the other.
    assert tally("export", PARENT, "run.tally").returncode == 0
    assert tally("rm", PARENT, "--yes").returncode == 0
    assert tally("rm", CHILD, "--yes").returncode == 0


def test_one_that_has_its_answer_moves_and_what_it_began_may_go(tally: Tally) -> None:
    written(tally, 1, BEGUN, stopped("answered"), *ending())
    written(tally, 2, *ending(), caller=PARENT)

    assert tally("rm", CHILD, "--yes").returncode == 0
    assert tally("export", PARENT, "run.tally", "--move").returncode == 0
