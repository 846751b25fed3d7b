"""Money billed never exceeds a cap, through whole sessions: turns, programs and their calls.

Runs of one session go side by side, in scopes of their own inside that of the session. The sandbox
does what a reply tells it in JSON; everything else from the session to the ledger is the real one.
Only the last test runs real programs, and waits for nothing either: it does not ask twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.host_call_sandbox import HostCallSandbox, calling
from tests.laws.costed_world import Books, CostedServer, Mix, VirtualLoopThread, WatchedTree
from tests.laws.test_price_laws import written

from tallystick.client import Session
from tallystick.core.budget.amount import Budget
from tallystick.core.charge import RunLimits
from tallystick.core.records import ModelFailed, ModelReplied, QueryFailed, QueryReplied, Record
from tallystick.ledger.memory import MemoryLedger
from tallystick.model.port import ModelRequest
from tallystick.model.price_table import PriceTable, Pricing
from tallystick.model.prices import worst_case
from tallystick.runtime.runs.history import records_of
from tallystick.runtime.runs.result import Run
from tallystick.runtime.spend import client_scopes
from tallystick.runtime.spend.scopes import ScopeTree
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import block

# They take long: CI runs them.
pytestmark = pytest.mark.slow

RUNS_DEFAULT, RUNS_SLOW, RUNS_REAL = 10, 300, 20
SLOW_TO_DRAW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
PAID = ModelReplied | ModelFailed | QueryReplied | QueryFailed
NAME = "fake:model"
# What a run's goal and its prompts say, so that the server knows who pays.
WHO = re.compile(r"run (\d+)\b")


@dataclass(frozen=True)
class Plan:
    """A session. The seed decides what is not said."""

    seed: int
    table: dict[str, Any]
    mix: Mix
    runs: int = 2
    turns: int = 2
    fan_out: int = 5
    reply_tokens: int = 100
    retries: int = 2
    # What the session and each run may spend, in calls at their worst.
    session_calls: int | None = None
    run_calls: int | None = 5
    honest: bool = True


mixes = st.builds(
    Mix,
    well=st.integers(2, 8),
    misreports=st.integers(0, 2),
    absurd=st.sampled_from([0, 0, 1]),
    fails=st.integers(0, 3),
    breaks=st.just(0),
    stalls=st.integers(0, 1),
)
calls = st.none() | st.integers(0, 30)
plans = st.builds(
    Plan,
    seed=st.integers(0, 2**32),
    table=written(),
    mix=mixes,
    runs=st.integers(1, 4),
    turns=st.integers(1, 3),
    fan_out=st.sampled_from([1, 5, 40]),
    reply_tokens=st.sampled_from([20, 300, 4_000]),
    retries=st.integers(0, 3),
    session_calls=calls,
    run_calls=calls,
)


# -- the world ----------------------------------------------------------------------------------


@dataclass
class World:
    """A session that is watched."""

    plan: Plan
    tree: WatchedTree
    books: Books
    chance: Random
    ids: dict[str, str] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)

    def places(self, request: ModelRequest) -> list[tuple[WatchedTree, str]]:
        return [(self.tree, self.ids[self.who(request)])]

    def who(self, request: ModelRequest) -> str:
        found = [WHO.search(each.text) for each in request.messages]
        return next(each.group(1) for each in found if each is not None)

    def calling(self, request: ModelRequest) -> str:
        """A turn's reply: calls to make, and an answer with the last of them."""
        if request.messages[0].role != "system":
            return "7"
        who = self.who(request)
        turn = self.turns[who] = self.turns.get(who, 0) + 1
        prompts = [f"run {who} asks {each}" for each in range(self.plan.fan_out)]
        fit = self.chance.choice(["part", "whole"])
        calls = [("llm_query_batched", [prompts, None, None, fit]), ("budget.remaining", [])]
        return calling(calls, answer="done" if turn == self.plan.turns else "", note=f"turn {turn}")

    def program(self, request: ModelRequest) -> str:
        """The same as `told`, as a program that is run."""
        if request.messages[0].role != "system":
            return "7"
        who = self.who(request)
        turn = self.turns[who] = self.turns.get(who, 0) + 1
        asks = f"llm_query_batched([f'run {who} asks {{n}}' for n in range({self.plan.fan_out})])"
        ends = "FINAL('done')" if turn == self.plan.turns else "print(budget.remaining())"
        return block(f"found = {asks}\n{ends}")

    def budget(self, many: int | None) -> Budget:
        if many is None:
            return Budget()
        price = PriceTable.of_user({NAME: self.plan.table}).prices[NAME]
        each = worst_case(price, input_bound=2_500, output_cap=self.plan.reply_tokens)
        return Budget(usd=each * many, tokens=(2_500 + self.plan.reply_tokens) * many)


@contextlib.contextmanager
def watched() -> Iterator[list[WatchedTree]]:
    """The trees of the sessions that are made meanwhile."""
    made: list[WatchedTree] = []

    def scope_tree() -> ScopeTree:
        made.append(WatchedTree())
        return ScopeTree(tree=made[-1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_scopes, "ScopeTree", scope_tree)
        yield made


def played(plan: Plan, sandbox: WasmSandbox | None = None) -> World:
    """Run all of a plan's runs side by side, and check what has to hold then."""
    world = World(plan, WatchedTree(), Books(honest=plan.honest), Random(plan.seed))
    server = CostedServer(
        name=NAME,
        table=plan.table,
        known=True,
        chance=world.chance,
        mix=plan.mix,
        books=world.books,
        places=world.places,
        program=world.calling if sandbox is None else world.program,
        pace=1.0 if sandbox is None else 0.0,
    )
    ledger = MemoryLedger()
    with watched() as trees:
        session = Session(
            model=server,
            ledger=ledger,
            sandbox=sandbox or HostCallSandbox(),
            budget=world.budget(plan.session_calls),
            pricing=Pricing(declared=PriceTable.of_user({NAME: plan.table})),
        )
    (world.tree,) = trees
    if sandbox is None:
        session.engine.loop = VirtualLoopThread()
    with session:
        runs = asyncio.run(_side_by_side(session, world))

    world.books.settled([world.tree])
    world.tree.quiet()
    assert [row.scope.kind for row in world.tree.rows()] == ["session"]
    for run in runs:
        records = list(records_of(ledger, run.run))
        spent = world.tree.spent[run.run]
        settled = [each.settled for each in records if isinstance(each, PAID)]
        assert spent["usd"] == sum(each.usd or 0 for each in settled if each is not None)
        assert spent["usd"] == (run.charge.usd or 0)
        assert spent["tokens"] == run.charge.tokens_in + run.charge.tokens_out
    return world


async def _side_by_side(session: Session, world: World) -> list[Run]:
    plan = world.plan
    own = world.budget(plan.run_calls)
    limits = RunLimits(
        turns=plan.turns,
        tokens=10_000_000 if own.tokens is None else own.tokens,
        usd=own.usd,
        reply_tokens=plan.reply_tokens,
        retries=plan.retries,
        wall_ms=10_000_000,
    )

    def begun(number: int) -> Any:
        def watch(run: str, record: Record) -> None:
            world.ids[str(number)] = run

        return session.arun(f"run {number}: what is it?", limits=limits, watch=watch)

    return list(await asyncio.gather(*(begun(number) for number in range(plan.runs))))


# -- the laws -----------------------------------------------------------------------------------


@settings(max_examples=RUNS_DEFAULT, suppress_health_check=SLOW_TO_DRAW)
@given(plan=plans)
def test_neither_a_session_nor_a_run_is_billed_more_than_its_cap(plan: Plan) -> None:
    played(plan)


@pytest.mark.slow
@settings(max_examples=RUNS_SLOW, suppress_health_check=SLOW_TO_DRAW)
@given(plan=plans)
def test_hundreds_of_sessions_stay_within_their_caps(plan: Plan) -> None:
    played(plan)


def test_a_session_with_a_fan_out_of_a_thousand_stays_within_its_cap() -> None:
    table = {"input": "1", "output": "4", "bands": []}
    plan = Plan(
        seed=1, table=table, mix=Mix(), runs=2, fan_out=1_000, session_calls=300, run_calls=200
    )

    assert played(plan).books.attempts > 1_000


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(RUNS_REAL))
def test_real_programs_stay_within_their_caps(seed: int, sandbox: WasmSandbox) -> None:
    table = {"input": "1", "output": "4", "bands": [{"above": 900, "output": "5"}]}
    calls = Random(seed).choice([3, 30, 300])
    plan = Plan(
        seed=seed,
        table=table,
        mix=Mix(),
        fan_out=40,
        retries=0,
        session_calls=calls,
        run_calls=calls,
    )
    played(plan, sandbox)
