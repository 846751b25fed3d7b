"""`tally resolve`: calls in doubt and what is held for them are listed, charged or given back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.test_exec import Tally

from tallystick.client import Session
from tallystick.core.budget.amount import Budget
from tallystick.core.charge import RunLimits, nano_usd
from tallystick.core.records import ModelFailed, RunResumed
from tallystick.ledger.scopes import SharedScopes
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.runs.history import records_of
from tallystick.runtime.spend.scopes import DEPLOYMENT
from tallystick.testing.models import PRICING, ModelDouble, block

# Each starts processes: CI runs them.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
RUN = "01M7H9059YPYTCBKVW1YQJBKX4"
# Holds two calls of a run, and dies.
DIES = """
import os, sys
from pathlib import Path
from tallystick.core.budget.amount import Amount, Budget
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.scopes import SharedScopes
from tallystick.runtime.spend.scopes import DEPLOYMENT, SharedCap
ledger = SqliteLedger(Path(sys.argv[1]))
scopes = SharedScopes(ledger.file)
scopes.record_total(DEPLOYMENT, Budget.of(usd=1))
purse = SharedCap(scopes, run=sys.argv[2])
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
def test_what_a_dead_process_held_for_a_run_without_an_entry_can_be_closed_by_its_name(
    tally: Tally, choice: str, after: int
) -> None:
    path = ledger_of(tally)
    subprocess.run([sys.executable, "-c", DIES, str(path), RUN], check=False, timeout=30)
    assert spent(path) == (0, 500_000_000)

    done = tally("resolve", RUN, choice)

    assert done.returncode == 0, done.stderr
    assert spent(path) == (after, 0)
    assert "nothing is reserved" in tally("resolve").stderr


@pytest.mark.parametrize("words", [("resolve", "--json"), ("ls", "--in-doubt", "--json")])
def test_what_was_held_for_a_run_without_an_entry_is_released_by_itself(
    tally: Tally, words: tuple[str, ...]
) -> None:
    path = ledger_of(tally)
    subprocess.run([sys.executable, "-c", DIES, str(path), RUN], check=False, timeout=30)
    assert spent(path) == (0, 500_000_000)

    listed = json.loads(tally(*words).stdout)

    assert listed == {"runs": [], "holds": []}
    assert spent(path) == (0, 0)


def test_a_new_run_has_the_whole_total_after_a_process_died_before_its_first_entry(
    tally: Tally,
) -> None:
    path = ledger_of(tally)
    subprocess.run([sys.executable, "-c", DIES, str(path), RUN], check=False, timeout=30)
    limits = RunLimits(usd=nano_usd("0.9"), tokens=10_000_000, reply_tokens=200_000)
    # The first call reserves more than is left while the dead process still holds half.
    model = ModelDouble(block("FINAL(1)"))

    with SqliteLedger(path) as ledger:
        session = Session(
            model=model, ledger=ledger, pricing=PRICING, total=Budget.of(usd=1), budget=Budget()
        )
        with session:
            run = session.run("what is it?", limits=limits)

    assert run.answered
    assert model.caps == [200_000]
    assert spent(path) == (run.charge.usd, 0)


@pytest.mark.parametrize("how", ["die", "effect"])
def test_a_run_with_paid_calls_in_doubt_is_not_removed(tally: Tally, how: str) -> None:
    path = ledger_of(tally)
    subprocess.run(asks(path, how), cwd=ROOT, check=False, timeout=30)

    refused = tally("rm", RUN, "--yes")
    closed = tally("resolve", RUN, "--charge")
    removed = tally("rm", RUN, "--yes")

    assert refused.returncode == 2
    assert f"tally resolve {RUN} --charge or --release" in refused.stderr
    assert closed.returncode in (0, 7), closed.stderr
    assert removed.returncode == 0, removed.stderr
    assert spent(path) == (250_000_000, 0)


def test_a_run_whose_child_has_calls_in_doubt_is_not_removed(tally: Tally) -> None:
    path = ledger_of(tally)
    texts = (block("FINAL(rlm_query('how many?'))"), block("FINAL(7)"))
    lines = "\n".join(json.dumps({"text": each}) for each in texts)
    (tally.directory / "m.jsonl").write_text(lines)
    done = tally("run", "ask another", "-m", "scripted:m.jsonl", "--strategy", "code")
    assert done.returncode == 0, done.stderr
    with SqliteLedger(path) as ledger:
        parent, child = (row.run for row in ledger.runs())
    subprocess.run([sys.executable, "-c", DIES, str(path), child], cwd=ROOT, check=False)

    refused = tally("rm", parent, "--yes")
    closed = tally("resolve", child, "--charge")
    removed = tally("rm", parent, "--yes")

    assert refused.returncode == 2
    assert f"run {child}, which run {parent} began, has calls in doubt" in refused.stderr
    assert f"tally resolve {child} --charge or --release" in refused.stderr
    assert closed.returncode in (0, 7), closed.stderr
    assert removed.returncode == 0, removed.stderr


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
    assert "may still be alive" in refused.stderr
    assert shown.count("for a call in progress") == 2


# Begins a run that says who it is and asks its model, and dies, or waits with the run's lock.
ASKS = """
import os, sys
from pathlib import Path
from tests.ledger.builders import drafted
from tests.upkeep.transfer_builders import started
from tallystick.core.budget.amount import Amount, Budget
from tallystick.core.chain import Head
from tallystick.core.records import AskModel, CallHost
from tallystick.core.charge import Reserved
from tallystick.ledger.scopes import SharedScopes
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.runs.lock import lock_run
from tallystick.runtime.spend.scopes import DEPLOYMENT, SharedCap
path, run, how = sys.argv[1:]
ledger = SqliteLedger(Path(path))
with lock_run(ledger, run):
    scopes = SharedScopes(ledger.file)
    scopes.record_total(DEPLOYMENT, Budget.of(usd=1))
    purse = SharedCap(scopes, run=run)
    amount = Amount(usd=250_000_000, tokens=10, model_calls=1)
    number = purse.reserve(amount, usd_waived=False)
    purse.reserve(amount, usd_waived=False)
    reserved = Reserved(tokens_in=5, tokens_out=5, usd=250_000_000, hold=number)
    asked = AskModel(intent=1, turn=1, base=None, added=(), request_sha256="0", reserved=reserved)
    call = CallHost(intent=2, program=1, index=0, name="sendmail", request_sha256="0",
                    policy="effect")
    records = [asked, call] if how == "effect" else [asked]
    ledger.append(run, [started(run, []), *map(drafted, records)], expected=Head.of_nothing(),
                  fence=ledger.claim(run, create=True), forced=True)
    print("asked", flush=True)
    if how == "wait":
        sys.stdin.read()
    os._exit(9)
"""


def asks(path: Path, how: str = "die") -> list[str]:
    return [sys.executable, "-c", ASKS, str(path), RUN, how]


@pytest.mark.parametrize(("choice", "after"), [("--charge", 250_000_000), ("--release", 0)])
def test_a_call_in_doubt_is_closed_with_what_was_held_for_it(
    tally: Tally, choice: str, after: int
) -> None:
    path = ledger_of(tally)
    subprocess.run(asks(path), cwd=ROOT, check=False, timeout=30)
    listed = tally("resolve", RUN[:20].lower()).stdout

    done = tally("resolve", RUN[:20].lower(), choice)

    assert f"{RUN}  started" in listed
    assert "turn 1  the model  1 call, at most $0.25, at most 10 tokens (reserved)" in listed
    assert listed.count("$0.25, 10 tokens reserved of the total, by a dead process") == 2
    assert done.returncode == 0, done.stderr
    # What was held and never sent is given back in either case.
    assert spent(path) == (after, 0)
    with SqliteLedger(path) as ledger:
        records = list(records_of(ledger, RUN))
    assert isinstance(records[-2], RunResumed)
    assert isinstance(records[-1], ModelFailed)
    assert records[-1].billed == (choice == "--charge")
    assert "nothing is reserved" in tally("resolve").stderr
    assert "has no open calls and no reservations" in tally("resolve", RUN, choice).stderr
    assert tally("verify").returncode == 0


def test_an_effect_is_not_for_resolve_and_that_is_said(tally: Tally) -> None:
    path = ledger_of(tally)
    subprocess.run(asks(path, "effect"), cwd=ROOT, check=False, timeout=30)

    done = tally("resolve", RUN, "--release")
    again = tally("resolve", RUN, "--release")

    assert done.returncode == again.returncode == 7
    assert "1 call released, nothing is charged" in done.stdout
    assert done.stderr == again.stderr
    assert "sendmail (turn 1) is an effect" in done.stderr
    assert f"tally resume {RUN} --in-doubt retry or abandon" in done.stderr


def test_a_run_that_is_running_is_not_touched(tally: Tally) -> None:
    path = ledger_of(tally)
    with subprocess.Popen(
        asks(path, "wait"), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "asked\n"
        refused = tally("resolve", RUN, "--charge")
        listed = json.loads(tally("resolve", "--json").stdout)
        running.kill()

    assert refused.returncode == 2
    assert "is running" in refused.stderr
    assert listed["runs"] == []
    assert [each["owner_dead"] for each in listed["holds"]] == [False, False]
    assert spent(path) == (0, 500_000_000)


@pytest.mark.parametrize("name", ["", " ", "nosuch", "../..", "\x1b[31m", "0" * 300])
def test_a_name_that_is_no_run_closes_nothing(tally: Tally, name: str) -> None:
    path = ledger_of(tally)
    subprocess.run([sys.executable, "-c", DIES, str(path), RUN], check=False, timeout=30)

    done = tally("resolve", name, "--charge")

    assert done.returncode in (2, 6)
    assert done.stderr.count("\n") == 1
    assert "\x1b" not in done.stderr
    assert spent(path) == (0, 500_000_000)


@pytest.mark.parametrize(
    ("words", "says"),
    [((RUN, "--charge", "--release"), "contradict each other"), (("--charge",), "name the run")],
)
def test_mistakes_are_one_line(tally: Tally, words: tuple[str, ...], says: str) -> None:
    done = tally("resolve", *words)

    assert done.returncode == 2
    assert says in done.stderr
