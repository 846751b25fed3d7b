"""`tally ls`: how runs without an end stand, and with `--in-doubt` what they wait for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.cli.test_exec import Tally
from tests.ledger.builders import draft, drafted, run_id
from tests.upkeep.transfer_builders import session_id, started

from tallystick.core.chain import Draft, Head
from tallystick.core.charge import Reserved
from tallystick.core.records import AskModel, CallHost, QueryAsked, RunForked, RunPruned
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.runs.lock import lock_run

# Each starts processes: CI runs them.
pytestmark = pytest.mark.slow

RESERVED = Reserved(tokens_in=10, tokens_out=90, usd=2_500_000)
ASKED = AskModel(intent=1, turn=3, base=None, added=(), request_sha256="0", reserved=RESERVED)
EFFECT = CallHost(
    intent=2, program=1, index=0, name="send\x1b[31m\n", request_sha256="0", policy="effect"
)
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
purse.reserve(Amount(usd=250_000_000, tokens=10, model_calls=1), usd_waived=False)
os._exit(9)
"""


def query(item: int) -> QueryAsked:
    return QueryAsked(
        intent=2,
        program=1,
        item=item,
        attempt=1,
        model="fake:model",
        request_sha256="0",
        tokens_out_max=9,
        reserved=RESERVED,
    )


@pytest.fixture
def tally(tmp_path: Path) -> Tally:
    (tmp_path / "data").mkdir()
    return Tally(tmp_path)


@pytest.fixture
def ledger(tally: Tally) -> Iterator[SqliteLedger]:
    with SqliteLedger(Path(tally.env["TALLYSTICK_DATA_DIR"]) / "ledger.db") as opened:
        yield opened


def made(ledger: SqliteLedger, number: int, *drafts: Draft, forked_from: str | None = None) -> str:
    run = run_id(number)
    first = started(session_id(number), [])
    before = Head.of_nothing()
    if forked_from is not None:
        before = Head(count=0, hash=next(ledger.read(forked_from, stop=1)).hash)
        first = drafted(
            RunForked(
                parent=forked_from,
                count=1,
                hash=before.hash,
                turn=0,
                at=1,
                session_id=session_id(number),
                model="another:model",
            )
        )
    fence = ledger.claim(run, create=True, grown_from=before.hash if forked_from else None)
    ledger.append(run, [first, *drafts], expected=before, fence=fence, forced=False)
    return run


def test_a_run_without_an_end_says_how_it_stands(tally: Tally, ledger: SqliteLedger) -> None:
    cut_off = made(ledger, 1, draft(1))
    doubtful = made(ledger, 2, drafted(ASKED))
    running = made(ledger, 3, drafted(ASKED))
    moved = made(ledger, 4, drafted(ASKED))
    fork = made(ledger, 5, draft(1), forked_from=cut_off)
    ledger.claim(run_id(6), create=True)
    ledger.release(moved)

    with lock_run(ledger, running):
        rows = {row["run"]: row for row in json.loads(tally("ls", "--json").stdout)}
        lines = tally("ls").stdout

    assert {run: row["stop"] for run, row in rows.items()} == {
        cut_off: "cut off",
        doubtful: "in doubt",
        running: "running",
        moved: "moved",
        fork: "cut off",
        run_id(6): "not begun",
    }
    assert (rows[fork]["goal"], rows[fork]["model"]) == ("?", "another:model")
    assert lines.count("\n") == 6


def test_calls_in_doubt_are_listed_with_what_they_may_have_cost(
    tally: Tally, ledger: SqliteLedger
) -> None:
    asked = made(ledger, 1, drafted(ASKED))
    batch = made(ledger, 2, *[drafted(query(item)) for item in range(3)])
    effect = made(ledger, 3, drafted(EFFECT))
    made(ledger, 4, draft(1))
    subprocess.run([sys.executable, "-c", DIES, str(ledger.path), asked], check=False)

    done = tally("ls", "--in-doubt")
    found = json.loads(tally("ls", "--in-doubt", "--json").stdout)

    assert done.returncode == 0
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert [lines[place].split("  ")[0] for place in (0, 2, 4)] == [asked, batch, effect]
    assert (
        lines[1] == "    turn 3  the model  1 call, at most $0.0025, at most 100 tokens (reserved)"
    )
    assert lines[3].endswith("llm_query  3 calls, at most $0.0075, at most 300 tokens (reserved)")
    assert lines[5].endswith("send?[31m  an effect: it may have happened")
    assert lines[6:] == [f"{asked}  $0.25, 10 tokens reserved of the total, by a dead process"]
    assert [each["run"] for each in found["runs"]] == [asked, batch, effect]
    assert found["runs"][1]["open"][0]["items"] == [0, 1, 2]
    assert found["runs"][0]["since"] == 1
    assert [each["run"] for each in found["holds"]] == [asked]


def test_nothing_in_doubt_is_said_on_the_side(tally: Tally) -> None:
    done = tally("ls", "--in-doubt")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "nothing is in doubt\n")


def test_a_pruned_run_is_listed_without_its_goal(tally: Tally, ledger: SqliteLedger) -> None:
    pruned = RunPruned(at=1, before=2, removed=2, bytes=9, why="")
    run = made(ledger, 1, draft(1), drafted(pruned))
    ledger.erase(run, [0, 1])

    (row,) = json.loads(tally("ls", "--json").stdout)

    assert (row["goal"], row["pruned"], row["answer"]) == ("", True, None)
    assert tally("ls").stdout.endswith("(pruned)\n")


def test_a_run_from_no_year_we_know_is_listed(tally: Tally, ledger: SqliteLedger) -> None:
    made(ledger, (1 << 48) - 1, drafted(ASKED))

    assert tally("ls").returncode == 0
    assert tally("ls", "--in-doubt").returncode == 0


def test_an_effect_in_doubt_is_listed_with_what_it_asked(
    tally: Tally, ledger: SqliteLedger
) -> None:
    call = msgspec.structs.replace(
        EFFECT, name="pay", request='["pay",["INV-101"],{"amount":12.5}]'
    )
    made(ledger, 1, drafted(call))

    listed = tally("ls", "--in-doubt").stdout
    (found,) = json.loads(tally("ls", "--in-doubt", "--json").stdout)["runs"]

    assert 'pay("INV-101", amount=12.5)  an effect: it may have happened' in listed
    assert found["open"][0]["request"] == call.request
    assert 'pay("INV-101", amount=12.5)' in tally("resolve").stdout
