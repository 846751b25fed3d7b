"""Laws of the budget tree, over any interleaving of what can happen to it.

The oracle is a list of facts: who spent what where, and what is reserved. Everything the tree says
is computed from that list anew, by the definition and not by the tree's own sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.core.budget.flat_price import flat_price

from tallystick.core.budget.amount import (
    COUNTED,
    DIMENSIONS,
    Amount,
    Budget,
    BudgetExhausted,
    BudgetOverrun,
    Dimension,
    Remaining,
    ReservationClosed,
    Scope,
    ScopeKind,
    ScopeRow,
)
from tallystick.core.budget.tree import (
    BudgetTree,
    Reservation,
    WorstUsd,
    affordable_output,
)
from tallystick.core.errors import Refused
from tallystick.testing.strategies import amounts, budgets

SCALE = max(1, settings().max_examples // 100)

small = st.integers(0, 6)
some_amounts = amounts()
some_budgets = budgets()
# What a provider may say: anything, also far more than was reserved.
claims = st.one_of(
    some_amounts, st.builds(Amount, tokens=st.integers(0, 10**30), usd=st.none() | small)
)
kinds: st.SearchStrategy[ScopeKind] = st.sampled_from(["run", "step"])


@dataclass(frozen=True)
class Place:
    """A scope of the oracle. `path` is itself and all around it."""

    id: str
    path: tuple[str, ...]
    # How many of the path are runs.
    runs: int
    limit: Budget
    left: bool = False

    @property
    def level(self) -> int:
        return max(0, self.runs - 1)


@dataclass(frozen=True)
class Fact:
    path: tuple[str, ...]
    amount: Amount


class Trees(RuleBasedStateMachine):
    """Any interleaving, with providers that report what they like."""

    honest = False

    def __init__(self) -> None:
        super().__init__()
        self.tree = BudgetTree()
        self.places: dict[str, Place] = {}
        self.spent: list[Fact] = []
        self.held: list[tuple[Reservation, Fact]] = []
        self.closed: list[Reservation] = []
        # Scopes with a charge above its reservation.
        self.overrun: set[str] = set()
        self.made = 0

    # -- the oracle ------------------------------------------------------------------------------

    def sum_of(self, facts: list[Fact], scope: str, dimension: Dimension) -> int:
        return sum(getattr(fact.amount, dimension) or 0 for fact in facts if scope in fact.path)

    def used(self, scope: str, dimension: Dimension) -> int:
        return self.sum_of(self.spent + [fact for _, fact in self.held], scope, dimension)

    def opened(self) -> list[str]:
        return [place.id for place in self.places.values() if not place.left]

    def forget(self) -> None:
        """A scope that was left is there as long as something is reserved in it."""
        for place in list(self.places.values()):
            if place.left and not any(place.id in fact.path for _, fact in self.held):
                del self.places[place.id]

    # -- what can happen -------------------------------------------------------------------------

    @initialize(budget=some_budgets)
    def begin(self, budget: Budget) -> None:
        self.tree.enter("root", parent=None, budget=budget, kind="session", name="root")
        self.places["root"] = Place("root", ("root",), 0, budget)

    @rule(data=st.data(), budget=some_budgets, kind=kinds)
    def enter(self, data: st.DataObject, budget: Budget, kind: ScopeKind) -> None:
        parent = self.places[data.draw(st.sampled_from(self.opened()))]
        self.made += 1
        id = f"scope {self.made}"
        place = Place(id, (id, *parent.path), parent.runs + (kind == "run"), budget)
        too_deep = any(
            (limit := self.places[each].limit.depth) is not None
            and place.level - self.places[each].level > limit
            for each in parent.path
        )

        refused = refusal_of(
            lambda: self.tree.enter(id, parent=parent.id, budget=budget, kind=kind, name="")
        )

        assert (refused is not None) == too_deep
        if refused is None:
            self.places[id] = place

    @precondition(lambda self: len(self.opened()) > 1)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        parents = {each for id in self.opened() for each in self.places[id].path[1:]}
        childless = [id for id in self.opened() if id not in parents]
        id = data.draw(st.sampled_from(childless))
        self.tree.leave(id)
        self.places[id] = replace(self.places[id], left=True)
        self.forget()

    @rule(data=st.data(), worst=some_amounts, unknown=st.booleans(), waived=st.booleans())
    def reserve(self, data: st.DataObject, worst: Amount, unknown: bool, waived: bool) -> None:
        place = self.places[data.draw(st.sampled_from(self.opened()))]
        if unknown:
            worst = msgspec.structs.replace(worst, usd=None)
        caps = [
            (each, dimension, limit)
            for each in place.path
            for dimension in COUNTED
            if (limit := getattr(self.places[each].limit, dimension)) is not None
        ]
        short = {
            (each, dimension)
            for each, dimension, limit in caps
            if self.used(each, dimension) + (getattr(worst, dimension) or 0) > limit
        }
        unpriced = unknown and not waived and any(cap[1] == "usd" for cap in caps)
        overrun = {cap[0] for cap in caps if cap[1] in ("usd", "tokens")} & self.overrun
        made: list[Reservation] = []

        refused = refusal_of(
            lambda: made.append(self.tree.reserve(place.id, worst, usd_waived=waived))
        )

        assert (refused is not None) == bool(short or unpriced or overrun)
        if refused is None:
            self.held.append((made[0], Fact(place.path, worst)))
        if isinstance(refused, BudgetOverrun):
            assert refused.scope.id in overrun
            assert refused.needed > refused.left
        elif isinstance(refused, BudgetExhausted):
            assert (refused.scope.id, refused.dimension) in short
            limit = getattr(self.places[refused.scope.id].limit, refused.dimension)
            assert refused.left == limit - self.used(refused.scope.id, refused.dimension)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), claim=claims)
    def settle(self, data: st.DataObject, claim: Amount) -> None:
        made, fact = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        if self.honest:
            claim = _within(made.amount, claim)
        breaches = self.tree.settle(made, claim)
        self.closed.append(made)
        if claim.usd is None:
            claim = msgspec.structs.replace(claim, usd=made.amount.usd)
        self.spent.append(Fact(fact.path, claim))
        worst = made.amount
        if claim.tokens > worst.tokens or (worst.usd is not None and (claim.usd or 0) > worst.usd):
            self.overrun |= set(fact.path)
        said = {(each.scope.id, each.dimension) for each in breaches}
        assert said == self.over(fact.path)
        assert len(said) == len(breaches)
        self.forget()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        made, _ = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.tree.release(made)
        self.closed.append(made)
        self.forget()

    @precondition(lambda self: self.closed)
    @rule(data=st.data(), again=st.booleans())
    def close_again(self, data: st.DataObject, again: bool) -> None:
        made = data.draw(st.sampled_from(self.closed))
        with pytest.raises(ReservationClosed):
            self.tree.settle(made, Amount(tokens=1)) if again else self.tree.release(made)

    @precondition(lambda self: not self.honest)
    @rule(data=st.data(), amount=some_amounts)
    def spend(self, data: st.DataObject, amount: Amount) -> None:
        place = self.places[data.draw(st.sampled_from(self.opened()))]
        breaches = self.tree.spend(place.id, amount)
        self.spent.append(Fact(place.path, amount))
        assert {(each.scope.id, each.dimension) for each in breaches} == self.over(place.path)

    def over(self, path: tuple[str, ...]) -> set[tuple[str, Dimension]]:
        return {
            (each, dimension)
            for each in path
            for dimension in COUNTED
            if (limit := getattr(self.places[each].limit, dimension)) is not None
            and self.sum_of(self.spent, each, dimension) > limit
        }

    # -- the laws --------------------------------------------------------------------------------

    @invariant()
    def the_limit_is_what_remains_and_what_is_reserved_and_what_is_spent(self) -> None:
        for row, dimension in _each_figure(self.tree):
            limit = getattr(row.limit, dimension)
            left = getattr(row.remaining, dimension)
            if limit is None:
                assert left is None
            else:
                spent = getattr(row.spent, dimension, 0)
                assert limit == left + getattr(row.reserved, dimension, 0) + spent

    @invariant()
    def a_scope_has_what_was_spent_and_reserved_in_it_and_nothing_else(self) -> None:
        rows = {row.scope.id: row for row in self.tree.rows()}
        assert rows.keys() == self.places.keys()
        reserved = [fact for _, fact in self.held]
        for id, row in rows.items():
            for dimension in COUNTED:
                assert getattr(row.spent, dimension) == self.sum_of(self.spent, id, dimension)
                assert getattr(row.reserved, dimension) == self.sum_of(reserved, id, dimension)
            unknown = [f for f in self.spent if f.amount.usd is None and id in f.path]
            assert row.unpriced == len(unknown)

    @invariant()
    def the_root_has_spent_what_all_scopes_have_spent_by_themselves(self) -> None:
        for row in self.tree.rows():
            if row.scope.parent is None:
                for dimension in COUNTED:
                    everything = sum(getattr(fact.amount, dimension) or 0 for fact in self.spent)
                    assert getattr(row.spent, dimension) == everything

    @invariant()
    def nothing_is_reserved_when_all_is_quiet(self) -> None:
        if not self.held:
            assert all(row.reserved == Amount() for row in self.tree.rows())
            assert not any(row.left for row in self.tree.rows())

    @invariant()
    def what_remains_is_the_least_of_all_scopes_around(self) -> None:
        for id, place in self.places.items():
            left = self.tree.remaining(id)
            for dimension in COUNTED:
                found = [
                    limit - self.used(each, dimension)
                    for each in place.path
                    if (limit := getattr(self.places[each].limit, dimension)) is not None
                ]
                assert getattr(left, dimension) == min(found, default=None)


class HonestTrees(Trees):
    """Providers that bill at most what was reserved, and nothing that was not."""

    honest = True

    @invariant()
    def no_limit_is_ever_passed_anywhere(self) -> None:
        for row, dimension in _each_figure(self.tree):
            left = getattr(row.remaining, dimension)
            assert left is None or left >= 0


def _each_figure(tree: BudgetTree) -> list[tuple[ScopeRow, Dimension]]:
    return [(row, dimension) for row in tree.rows() for dimension in DIMENSIONS]


def refusal_of(act: Callable[[], object]) -> Refused | None:
    """What was refused, None if it was done."""
    try:
        act()
    except Refused as refused:
        return refused
    return None


def _within(worst: Amount, claim: Amount) -> Amount:
    """The most honest amount that is no more than was reserved."""
    least = {each: min(getattr(worst, each) or 0, getattr(claim, each) or 0) for each in COUNTED}
    return msgspec.structs.replace(Amount(**least), usd=None if worst.usd is None else least["usd"])


TestAnyInterleaving = Trees.TestCase
TestAnyInterleaving.settings = settings(max_examples=50 * SCALE, stateful_step_count=30)
TestHonestProviders = HonestTrees.TestCase
TestHonestProviders.settings = settings(max_examples=50 * SCALE, stateful_step_count=30)


# -- the output cap ------------------------------------------------------------------------------

fractions = st.fractions(min_value=0, max_value=9, max_denominator=7)
HERE = Scope(id="here", parent=None, kind="run", name="here")


def banded(price: WorstUsd, *, above: int, times: int) -> WorstUsd:
    """A price that is higher for everything as soon as there is much of it."""
    return lambda tokens_in, tokens_out: (
        price(tokens_in, tokens_out) * (times if tokens_in + tokens_out > above else 1)
    )


@settings(max_examples=150 * SCALE)
@given(
    nano_in=fractions,
    nano_out=fractions,
    above=st.integers(0, 60),
    times=st.integers(1, 3),
    tokens=st.none() | st.integers(-5, 90),
    usd=st.none() | st.integers(-5, 300),
    tokens_in=st.integers(0, 40),
    wanted=st.integers(0, 40),
    least=st.integers(0, 40),
)
def test_the_output_cap_is_the_largest_that_tokens_and_money_pay_for(
    nano_in: Fraction,
    nano_out: Fraction,
    above: int,
    times: int,
    tokens: int | None,
    usd: int | None,
    tokens_in: int,
    wanted: int,
    least: int,
) -> None:
    price = banded(flat_price(nano_in=nano_in, nano_out=nano_out), above=above, times=times)
    left = Remaining(tokens=tokens, usd=usd, by={"tokens": HERE, "usd": HERE})
    payable = [
        cap
        for cap in range(wanted + 1)
        if (tokens is None or tokens_in + cap <= tokens)
        and (usd is None or price(tokens_in, cap) <= usd)
    ]
    best = max(payable, default=-1)

    try:
        found = affordable_output(
            left,
            tokens_in=tokens_in,
            tokens_out_wanted=wanted,
            tokens_out_min=least,
            price=price,
        )
    except Refused:
        assert best < min(least, wanted)
    else:
        assert found == best
