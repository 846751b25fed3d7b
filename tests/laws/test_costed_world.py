"""Money billed never exceeds a cap: random worlds of prices, servers, scopes and fan-outs.

Programs ask through the real path: queries, effects, journal, door and trees. Around it everything
is made up: servers that keep their own bill and fail, stall and misreport as they like, a clock
that does not wait, a ledger in memory. The laws are checked at every action, by sums of the world's
own.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.call_scopes import ProgramCalls
from tests.laws.costed_world import (
    Books,
    CostedServer,
    Mix,
    VirtualLoop,
    WatchedTree,
    charged_quietly,
)
from tests.laws.test_price_laws import written

from tallystick.core.budget.amount import Budget, ScopeKind
from tallystick.core.charge import Reserved, RunLimits
from tallystick.core.records import QueryAsked, QueryFailed, QueryRecord, QueryReplied
from tallystick.model.pacing import Gate
from tallystick.model.port import Model, ModelRequest
from tallystick.model.price_table import PriceTable, Pricing
from tallystick.model.prices import worst_case
from tallystick.runtime.calls.queries import QueryProblem
from tallystick.runtime.spend.door import ModelDoor
from tallystick.runtime.spend.scopes import RunScopes, ScopeRef, ScopeTree

# They take long: CI runs them.
pytestmark = pytest.mark.slow

FULL = os.environ.get("TALLYSTICK_SOAK") == "full"
RUNS_DEFAULT, RUNS_SLOW, RUNS_SOAK = 60, 1_000, 10_000 if FULL else 500
WIDE_SLOW, WIDE_SOAK = 20, 200 if FULL else 10
# Shrinking a world of a thousand calls takes longer than reading its seed.
WITHOUT_SHRINKING = [Phase.explicit, Phase.generate]
SLOW_TO_DRAW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]

TEXTS = (
    "a",
    "word " * 20,
    "ZZ_" * 30,
    "日本語" * 90,
    "\U0001d160\ufdfa" * 40,
    "x" * 700,
    "é\n" * 40,
)
KINDS: tuple[ScopeKind, ...] = ("run", "step")
TABLES = ({"input": "1", "output": "4", "bands": [{"above": 200, "input": "2"}]},)
# The last is one that no reply here matches: it is asked for once more.
SCHEMAS: tuple[Any, ...] = (None, None, {"type": "integer"}, {"type": "string"}, {"enum": ["no"]})
UNPRICED = "fake:unpriced"


@dataclass(frozen=True)
class Plan:
    """What a world is made of. The seed decides what is not said."""

    seed: int
    tables: tuple[dict[str, Any], ...]
    mix: Mix
    trees: int = 1
    clients: int = 1
    batches: int = 1
    fan_out: int = 5
    reply_tokens: int = 100
    retries: int = 2
    # By how much caps are tighter than what everything could cost.
    tight: int = 1
    waived: bool = False
    honest: bool = True


mixes = st.builds(
    Mix,
    well=st.integers(1, 8),
    misreports=st.integers(0, 4),
    absurd=st.sampled_from([0, 0, 1]),
    fails=st.integers(0, 4),
    breaks=st.sampled_from([0, 0, 1]),
    stalls=st.integers(0, 2),
)
plans = st.builds(
    Plan,
    seed=st.integers(0, 2**32),
    tables=st.lists(written(), min_size=1, max_size=3).map(tuple),
    mix=mixes,
    trees=st.integers(1, 3),
    clients=st.integers(1, 5),
    batches=st.integers(1, 3),
    fan_out=st.sampled_from([1, 2, 5, 12, 40]),
    reply_tokens=st.sampled_from([1, 20, 300, 4_000]),
    retries=st.integers(0, 3),
    tight=st.sampled_from([1, 4, 20, 100]),
    waived=st.booleans(),
)
wide_plans = st.builds(
    Plan,
    seed=st.integers(0, 2**32),
    tables=st.lists(written(), min_size=1, max_size=2).map(tuple),
    # One report that is absurd, and a thousand calls are refused.
    mix=mixes.map(lambda mix: replace(mix, absurd=0)),
    trees=st.integers(1, 2),
    clients=st.sampled_from([1, 1, 2]),
    fan_out=st.sampled_from([400, 1_000]),
    reply_tokens=st.sampled_from([20, 300]),
    retries=st.integers(0, 1),
    tight=st.sampled_from([1, 4, 100, 400]),
)


# -- the world ----------------------------------------------------------------------------------


class World:
    """Everything a plan says, made."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.chance = Random(plan.seed)
        self.books = Books(honest=plan.honest)
        named = {f"fake:{number}": table for number, table in enumerate(plan.tables)}
        self.tables = {**named, UNPRICED: {}}
        self.pricing = Pricing(declared=PriceTable.of_user(named), waived=plan.waived)
        self.trees = [WatchedTree() for _ in range(plan.trees)]
        self.accounts = [ScopeTree(tree=tree) for tree in self.trees]
        for tree in self.trees:
            self._grow(tree)
        self.clients = [Client(self, number) for number in range(plan.clients)]

    def quiet(self) -> None:
        """What has to hold when everybody is done."""
        self.books.settled(self.trees)
        charged = [(client, charged_quietly(client.calls.records)) for client in self.clients]
        for number, tree in enumerate(self.trees):
            tree.quiet()
            for scope in tree.parents:
                paid = [sums for client, sums in charged if client.pays(number, scope)]
                assert tree.alone[scope]["usd"] == sum(usd for usd, _ in paid)
                assert tree.alone[scope]["tokens"] == sum(tokens for _, tokens in paid)
            for scope in reversed(tree.parents):
                tree.leave(scope)
            assert tree.rows() == []

    def _grow(self, tree: WatchedTree) -> None:
        """A session, and inside it runs and steps in each other, up to four deep."""
        tree.enter("0", parent=None, budget=self._budget(), kind="session", name="0")
        for number in range(1, self.chance.randint(1, 6)):
            around = [each for each in tree.parents if len(tree.chain(each)) < 4]
            tree.enter(
                str(number),
                parent=self.chance.choice(around),
                budget=self._budget(),
                kind=self.chance.choice(KINDS),
                name=str(number),
            )

    def _budget(self) -> Budget:
        """Caps that bite: some part of what the whole plan could cost, or none, or nothing."""
        plan, chance = self.plan, self.chance
        calls = plan.clients * plan.batches * plan.fan_out
        price = PriceTable.of_user({"m": plan.tables[0]}).prices["m"]
        each = worst_case(price, input_bound=400, output_cap=plan.reply_tokens)

        def cap(whole: int) -> int | None:
            return chance.choice([None, None, whole, whole // plan.tight, whole // plan.tight])

        if chance.random() < 0.02:
            return Budget(usd=0)
        return Budget(
            usd=cap(each * calls),
            tokens=cap((400 + plan.reply_tokens) * calls),
            model_calls=cap(calls) if chance.random() < 0.3 else None,
        )


class Client:
    """The programs of one run: batches of calls, some of them left in the middle."""

    def __init__(self, world: World, number: int) -> None:
        chance, plan = world.chance, world.plan
        self.world = world
        trees = chance.sample(range(plan.trees), chance.randint(1, plan.trees))
        self.places = [(tree, chance.choice(list(world.trees[tree].parents))) for tree in trees]
        run_scopes = RunScopes(
            [ScopeRef(world.accounts[tree], scope) for tree, scope in self.places]
        )
        self.models = {name: self._server(name) for name in world.tables}
        self.calls = ProgramCalls(
            ModelDoor(run_scopes, world.pricing),
            self._find,
            limits=RunLimits(reply_tokens=plan.reply_tokens, retries=plan.retries),
            session_id=f"{number:032x}",
        )
        # Drawn before anything runs, so that one client's luck is not another's.
        self.batches = [self._batch() for _ in range(plan.batches)]

    def pays(self, tree: int, scope: str) -> bool:
        return (tree, scope) in self.places

    async def run(self) -> None:
        for prompts, model, schema, fit, seconds in self.batches:
            call = self.calls.call("llm_query_batched")
            asking = self.calls.queries.query_batch(call, prompts, model, schema, fit)
            task = asyncio.ensure_future(asking)
            if seconds is not None:
                asyncio.get_running_loop().call_later(seconds, task.cancel)
            try:
                found = await task
            except (asyncio.CancelledError, QueryProblem, RuntimeError):
                continue
            answers = found["answers"]
            assert isinstance(answers, list)
            assert len(answers) == len(prompts)

    def _batch(self) -> tuple[list[str], str, Any, str, float | None]:
        chance, plan = self.world.chance, self.world.plan
        many = chance.choice([1, plan.fan_out, plan.fan_out])
        prompts = [f"{chance.choice(TEXTS)} {number}" for number in range(many)]
        names = [*self.world.tables] if chance.random() < 0.1 else [*self.world.tables][:-1]
        schema = chance.choice(SCHEMAS)
        fit = chance.choice(["part", "part", "whole"])
        seconds = chance.choice([None, None, None, 0.0, 0.05, 2.0, 30.0])
        return prompts, chance.choice(names), schema, fit, seconds

    def _find(self, name: str | None) -> Model:
        assert name is not None
        return self.models[name]

    def _reserved(self, request: ModelRequest) -> Reserved:
        """Return what is on record as reserved for an attempt that was sent."""
        assert request.key in self.calls.reserved, "it was sent before it was written"
        return self.calls.reserved[request.key]

    def _server(self, name: str) -> CostedServer:
        world = self.world
        gate = Gate(
            concurrency=world.chance.choice([1, 3, 50]),
            clock=lambda: asyncio.get_running_loop().time(),
            jitter=world.chance.random,
        )
        return CostedServer(
            name=name,
            table=world.tables[name],
            known=name != UNPRICED,
            chance=Random(world.chance.random()),
            mix=world.plan.mix,
            books=world.books,
            places=lambda request: [(world.trees[tree], scope) for tree, scope in self.places],
            gate=world.chance.choice([None, gate]),
            reserved=self._reserved,
        )


def played(plan: Plan) -> World:
    """Run a world until all is quiet, and check what has to hold then."""
    world = World(plan)

    async def all_of_them() -> None:
        await asyncio.gather(*(client.run() for client in world.clients))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(all_of_them())
    world.quiet()
    return world


# -- the laws -----------------------------------------------------------------------------------


@settings(max_examples=RUNS_DEFAULT, suppress_health_check=SLOW_TO_DRAW)
@given(plan=plans)
def test_no_scope_is_billed_more_than_its_cap(plan: Plan) -> None:
    played(plan)


@pytest.mark.slow
@settings(max_examples=RUNS_SLOW, suppress_health_check=SLOW_TO_DRAW)
@given(plan=plans)
def test_no_scope_is_billed_more_than_its_cap_in_a_thousand_runs(plan: Plan) -> None:
    played(plan)


@pytest.mark.soak
@settings(max_examples=RUNS_SOAK, suppress_health_check=SLOW_TO_DRAW)
@given(plan=plans)
def test_no_scope_is_billed_more_than_its_cap_in_a_soak(plan: Plan) -> None:
    played(plan)


@pytest.mark.parametrize("tight", [1, 4])
def test_a_fan_out_of_a_thousand_stays_within_every_cap(tight: int) -> None:
    plan = Plan(seed=2, tables=TABLES, mix=Mix(), trees=2, clients=2, fan_out=1_000, tight=tight)

    assert played(plan).books.attempts > 400


@pytest.mark.slow
@settings(max_examples=WIDE_SLOW, suppress_health_check=SLOW_TO_DRAW, phases=WITHOUT_SHRINKING)
@given(plan=wide_plans)
def test_many_fan_outs_of_a_thousand_stay_within_every_cap(plan: Plan) -> None:
    played(plan)


@pytest.mark.soak
@settings(max_examples=WIDE_SOAK, suppress_health_check=SLOW_TO_DRAW, phases=WITHOUT_SHRINKING)
@given(plan=wide_plans)
def test_fan_outs_of_a_thousand_stay_within_every_cap_in_a_soak(plan: Plan) -> None:
    played(plan)


@settings(max_examples=RUNS_DEFAULT, suppress_health_check=SLOW_TO_DRAW)
@given(plan=plans, greed=st.integers(1, 6))
def test_a_bill_beyond_all_bounds_is_recorded_and_the_next_call_refused(
    plan: Plan, greed: int
) -> None:
    """The tree of the world asserts the second half, whenever something is reserved."""
    greedy = replace(plan.mix, bills_too_much=greed, misreports=0)
    played(replace(plan, mix=greedy, honest=False))


@pytest.mark.slow
@settings(max_examples=RUNS_SLOW // 2, suppress_health_check=SLOW_TO_DRAW)
@given(plan=plans, greed=st.integers(1, 6))
def test_bills_beyond_all_bounds_are_recorded_in_hundreds_of_runs(plan: Plan, greed: int) -> None:
    greedy = replace(plan.mix, bills_too_much=greed, misreports=0)
    played(replace(plan, mix=greedy, honest=False))


def test_the_worlds_are_worth_the_name() -> None:
    """Calls are billed, fail, are refused, retried and left, or the laws say nothing."""
    mix = Mix(well=8, misreports=6, absurd=1, fails=6, stalls=2)
    records = []
    for seed in range(20):
        plan = Plan(seed=seed, tables=TABLES, mix=mix, clients=4, batches=3, fan_out=12, tight=4)
        records += [each for client in played(plan).clients for each in client.calls.records]

    kinds = Counter(type(each).__name__ for each in records)
    flags = Counter(
        flag
        for each in records
        if isinstance(each, QueryReplied | QueryFailed)
        for flag in each.settled.flags
    )
    cut = [each for each in records if isinstance(each, QueryAsked) and each.tokens_out_max < 100]
    assert min(kinds.values()) > 100, kinds
    assert len(kinds) == 4
    assert flags.keys() >= {"usage_missing", "usage_impossible", "over_reserved", "cancelled"}
    assert flags["unknown_outcome"] > 20
    assert cut
    assert max(each.attempt for each in records if isinstance(each, QueryRecord)) > 1
