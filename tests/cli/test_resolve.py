"""`tally resolve`: what a dead process holds of the total is listed, charged or given back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.test_exec import Tally

from tallystick.ledger.scopes import SharedScopes
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.shared_purse import DEPLOYMENT

RUN = "01M7H9059YPYTCBKVW1YQJBKX4"
# Holds two calls of a run, and dies.
DIES = """
import os, sys
from pathlib import Path
from tallystick.core.budget_amount import Amount, Budget
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.shared_purse import SharedPurse, declared
ledger = SqliteLedger(Path(sys.argv[1]))
scopes = declared(ledger.file, Budget.of(usd=1))
purse = SharedPurse(ledger.file, scopes, run=sys.argv[2])
for _ in range(2):
    purse.reserve(Amount(usd=250_000_000, tokens=10, model_calls=1), usd_waived=False)
print("held", flush=True)
if len(sys.argv) > 3:
    sys.stdin.read()
os._exit(9)
"""


@pytest.fixture
def tally(tmp_path: Path) -> Tally:
    return Tally(tmp_path)


def ledger_of(tally: Tally) -> Path:
    path = Path(tally.env["TALLYSTICK_DATA_DIR"]) / "ledger.db"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def spent(path: Path) -> tuple[int, int]:
    """What is spent and what is held of the total, in nano-dollars."""
    with SqliteLedger(path) as ledger, SharedScopes(ledger.file) as scopes:
        (row,) = [row for row in scopes.rows() if row.scope.id == DEPLOYMENT]
    return row.spent.usd or 0, row.reserved.usd or 0


@pytest.mark.parametrize(("choice", "after"), [("--charge", 500_000_000), ("--release", 0)])
def test_what_a_dead_process_held_is_listed_and_closed(
    tally: Tally, choice: str, after: int
) -> None:
    path = ledger_of(tally)
    subprocess.run([sys.executable, "-c", DIES, str(path), RUN], check=False, timeout=30)

    listed = json.loads(tally("resolve", "--json").stdout)
    assert [(each["run"], each["usd"], each["owner_dead"]) for each in listed] == [
        (RUN, 250_000_000, True)
    ] * 2
    assert spent(path) == (0, 500_000_000)

    done = tally("resolve", RUN, choice)

    assert done.returncode == 0, done.stderr
    assert spent(path) == (after, 0)
    assert "nothing is held" in tally("resolve").stderr


def test_what_a_living_process_holds_is_its_own(tally: Tally) -> None:
    path = ledger_of(tally)
    with subprocess.Popen(
        [sys.executable, "-c", DIES, str(path), RUN, "wait"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        refused = tally("resolve", RUN, "--release")
        shown = tally("resolve").stdout
        holder.kill()

    assert refused.returncode == 6
    assert "not proven dead" in refused.stderr
    assert shown.count("under way") == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [((RUN, "--charge", "--release"), "not both"), (("--charge",), "name the run")],
)
def test_mistakes_are_one_line(tally: Tally, words: tuple[str, ...], says: str) -> None:
    done = tally("resolve", *words)

    assert done.returncode == 2
    assert says in done.stderr
