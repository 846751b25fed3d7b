"""Caps in dollars over real connections and real files: what the server billed is what counts."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from tests.host_call_sandbox import HostCallSandbox, calling
from tests.model.billing_server import LIES, PRICES, Bill, Lie, is_turn, known_by_client
from tests.model.fake_server import DIALECTS, FakeServer, Seen, endpoint
from tests.model.test_failures_in_runs import _Unhurried

from tallystick.client import Session
from tallystick.core.budget.amount import Amount, Budget
from tallystick.core.charge import RunLimits, nano_usd
from tallystick.core.machine import machine
from tallystick.ledger.scopes import SharedScopes
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger
from tallystick.model.endpoint import Dialect
from tallystick.model.http import HttpModel
from tallystick.model.pacing import Gate
from tallystick.model.price_table import PriceTable, Pricing
from tallystick.runtime.calls import queries
from tallystick.runtime.runs.result import Run

pytestmark = pytest.mark.slow

SESSIONS, RUNS_EACH = 20, 10
PRICING = Pricing(declared=PriceTable.of_user(PRICES))
WORKER = Path(__file__).with_name("budget_worker.py")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is waited between attempts is decided elsewhere; here it would be waited for."""
    monkeypatch.setattr(machine, "_WAIT_MS", 1)
    monkeypatch.setattr(queries, "_WAIT_MS", 1)


class Reply:
    """Two turns of so many calls each, then an answer; to a program's call, a word."""

    def __init__(self, fan_out: int) -> None:
        self._fan_out = fan_out
        self._turns: dict[str, int] = {}

    def __call__(self, who: str, seen: Seen) -> str:
        if not is_turn(seen):
            return "seven"
        turn = self._turns[who] = self._turns.get(who, 0) + 1
        prompts = [f"run {who} asks {number}" for number in range(self._fan_out)]
        return calling(
            [("llm_query_batched", [prompts])],
            answer="done" if turn == 2 else "",
            note=f"turn {turn}",
        )


# -- one process --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(SESSIONS))
def test_the_server_bills_no_more_than_a_cap(seed: int, server: FakeServer, tmp_path: Path) -> None:
    """Ten runs side by side; over all seeds, two hundred."""
    chance = Random(seed)
    bill = Bill(seed, reply=Reply(chance.choice([1, 4, 12])))
    server.always(bill)
    cap_run, cap_all = chance.choice([(4, 30), (20, 100), (40, 60), (8, 10_000)])
    session_cap, run_cap = cap_all * 1_000_000, cap_run * 1_000_000
    dialect = DIALECTS[seed % len(DIALECTS)]

    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        runs = asyncio.run(_ten_runs(server, dialect, ledger, Budget(usd=session_cap), run_cap))
        broken = verify_ledger(ledger, [run.run for run in runs]).first_bad

    assert bill.requests > 0
    assert {who: billed for who, billed in bill.nano.items() if billed > run_cap} == {}
    assert bill.total <= session_cap
    assert bill.total <= sum(run.charge.usd or 0 for run in runs)
    assert broken is None


async def _ten_runs(
    server: FakeServer, dialect: Dialect, ledger: SqliteLedger, budget: Budget, usd: int
) -> list[Run]:
    limits = RunLimits(tokens=10_000_000, usd=usd, reply_tokens=300, turns=3, retries=2)
    return await _runs(server, dialect, ledger, budget, limits=limits, many=RUNS_EACH)


async def _runs(
    server: FakeServer,
    dialect: Dialect,
    ledger: SqliteLedger,
    budget: Budget,
    *,
    limits: RunLimits,
    many: int,
) -> list[Run]:
    time = _Unhurried()
    where = endpoint(server, dialect, silence_seconds=0.15, total_seconds=0.6, concurrency=16)
    model = HttpModel(where, Gate(concurrency=16, clock=time.clock, sleep=time.sleep))
    session = Session(
        model=model,
        ledger=ledger,
        sandbox=HostCallSandbox(),
        budget=budget,
        pricing=PRICING,
    )
    with session:
        session.use(model, owned=True)
        goals = [f"run {number}: what is it?" for number in range(many)]
        return list(
            await asyncio.gather(
                *(session.arun(goal, limits=limits, strategy="code") for goal in goals)
            )
        )


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("lie", LIES)
def test_no_false_report_brings_the_bill_above_a_cap_where_a_client_can_know(
    lie: Lie, dialect: Dialect, server: FakeServer, tmp_path: Path
) -> None:
    """A run that never ends by itself, under a cap in dollars for the run and for the session."""
    bill = Bill(1, reply=_asking_again(), misfortunes=0.0, lie=lie)
    server.always(bill)
    cap_run, cap_session = nano_usd("0.05"), nano_usd("0.08")
    limits = RunLimits(tokens=100_000_000, usd=cap_run, reply_tokens=300, turns=300)

    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        runs = asyncio.run(
            _runs(server, dialect, ledger, Budget(usd=cap_session), limits=limits, many=3)
        )

    # Where a client cannot know, it is off by what the report is off by, and no more.
    most = 1 if known_by_client(lie, dialect) else 2
    assert {who: billed for who, billed in bill.nano.items() if billed > most * cap_run} == {}
    assert bill.total <= most * cap_session
    assert {run.stop for run in runs} == {"budget"}
    assert bill.total > 0
    if lie == "swapped":
        # A charge above its reservation: not one more call is made, although the cap has room.
        assert bill.requests <= len(runs)
        assert "reserved as the most it could cost" in runs[-1].detail


def _asking_again() -> Callable[[str, Seen], str]:
    turns = itertools.count(1)
    return lambda who, seen: calling([], answer="", note=f"turn {next(turns)}")


# -- four processes -----------------------------------------------------------------------------


class Workers:
    """Processes on one ledger, begun together."""

    def __init__(self, ledger: Path, url: str, usd_total: str, *, many: int, runs: int) -> None:
        self._begun = [
            subprocess.Popen(
                [sys.executable, str(WORKER), str(ledger), url, f"w{each}", usd_total, str(runs)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for each in range(many)
        ]

    def __enter__(self) -> list[subprocess.Popen[str]]:
        for each in self._begun:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        for each in self._begun:
            assert each.stdin is not None
            each.stdin.write("\n")
            each.stdin.flush()
        return self._begun

    def __exit__(self, *exc: object) -> None:
        for each in self._begun:
            if each.poll() is None:
                each.kill()
            each.wait()
            for stream in (each.stdin, each.stdout):
                assert stream is not None
                stream.close()


def _figures(ledger: Path) -> Iterator[tuple[Amount, Amount, int]]:
    """What the shared scope says: spent, reserved, and how many owners are gone with a hold."""
    with SqliteLedger(ledger) as opened, SharedScopes(opened.file) as scopes:
        for row in scopes.rows():
            dead = sum(hold.owner_dead for hold in scopes.holds())
            yield row.spent, row.reserved, dead


@pytest.mark.parametrize("total", ["0.02", "0.06", "10"])
def test_four_processes_are_billed_no_more_than_the_cap_they_share(
    total: str, server: FakeServer, tmp_path: Path
) -> None:
    bill = Bill(7, reply=Reply(8), misfortunes=0.2)
    server.always(bill)

    with Workers(tmp_path / "ledger.db", server.url, total, many=4, runs=3) as workers:
        stops = [worker.communicate(timeout=120)[0].split() for worker in workers]

    ((spent, reserved, dead),) = _figures(tmp_path / "ledger.db")
    assert [len(each) for each in stops] == [3] * 4
    assert 0 < bill.total <= nano_usd(total)
    assert bill.total <= (spent.usd or 0)
    if total == "10":
        assert len({who[:2] for who in bill.nano}) == 4
    assert (reserved, dead) == (Amount(), 0)


def test_what_a_killed_process_may_have_spent_stays_held_for_the_others(
    server: FakeServer, tmp_path: Path
) -> None:
    bill = Bill(3, reply=Reply(12), misfortunes=0.0)
    server.always(lambda seen: [0.05, *bill(seen)])

    with Workers(tmp_path / "ledger.db", server.url, "0.05", many=4, runs=3) as workers:
        assert server.arrived.wait(30)
        workers[0].send_signal(signal.SIGKILL)
        for worker in workers[1:]:
            worker.communicate(timeout=120)

    ((spent, reserved, dead),) = _figures(tmp_path / "ledger.db")
    assert bill.total <= nano_usd("0.05")
    assert bill.total <= (spent.usd or 0) + (reserved.usd or 0)
    assert bool(dead) == (reserved != Amount())
