"""The contract of scopes, for every backend: what is held, settled, refused, and left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.ledger.builders import EMPTY, RUN, draft
from tests.ledger.scope_world import World

from tallystick.core.budget.amount import (
    Amount,
    Budget,
    BudgetExhausted,
    BudgetUnpriced,
    HoldAlive,
    HoldExists,
    InvalidScope,
    LimitWouldRise,
    NegativeAmount,
    ReservationClosed,
    ScopeUnknown,
)
from tallystick.core.budget.tree import BudgetTree, Reservation, caps_of
from tallystick.core.errors import InvalidLimit, Refused, UsageError
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.port import Ledger
from tallystick.ledger.scopes import HELD_MAX, MemoryFile, Scopes, SharedScopes
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.storage.transaction import Transaction
from tallystick.stores import open_stores
from tallystick.testing.strategies import amounts, budgets


@dataclass(frozen=True, slots=True)
class Place:
    """A ledger, and how scopes of it are opened: each is another owner, as in another process."""

    ledger: Ledger
    open: Callable[[], SharedScopes]


@contextmanager
def in_a_file(folder: Path) -> Iterator[Place]:
    with SqliteLedger(folder / "ledger.db") as ledger:
        yield Place(ledger, lambda: SharedScopes(ledger.file, clock=lambda: 1_000))


@contextmanager
def in_memory(folder: Path) -> Iterator[Place]:
    file = MemoryFile()
    yield Place(MemoryLedger(), lambda: SharedScopes(file, clock=lambda: 1_000))


PLACES = {"memory": in_memory, "sqlite": in_a_file}


@pytest.fixture(params=sorted(PLACES))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with PLACES[request.param](tmp_path) as opened:
        yield opened


@pytest.fixture
def world(place: Place) -> Iterator[World[Ledger]]:
    with place.open() as scopes:
        yield World(place.ledger, scopes)


# -- holding -------------------------------------------------------------------------------------


def test_a_hold_is_in_every_scope_and_settles_in_every_scope(world: World[Ledger]) -> None:
    world.declare(deployment=Budget(tokens=100), session=Budget(tokens=50))

    world.hold(Amount(tokens=30, usd=5, model_calls=1))
    during = world.figures()
    breaches = world.settle(Amount(tokens=20, usd=5, model_calls=1))

    assert during == [(0, 30), (0, 30)]
    assert world.figures() == [(20, 0), (20, 0)]
    assert breaches == []
    left = world.scopes.remaining("s")
    assert (left.tokens, str(left.by["tokens"])) == (30, "session mine")


def test_a_refusal_names_what_refuses_and_holds_nothing_even_if_the_transaction_goes_on(
    world: World[Ledger],
) -> None:
    world.declare(deployment=Budget(tokens=10), session=Budget(tokens=50))
    owner = world.scopes.owner()

    with world.scopes.writing(forced=False) as within:
        with pytest.raises(BudgetExhausted) as caught:
            world.scopes.hold(
                within, scope="s", run=RUN, intent=1, owner=owner, amount=Amount(tokens=11)
            )
        world.scopes.hold(
            within, scope="s", run=RUN, intent=2, owner=owner, amount=Amount(tokens=10)
        )

    assert (caught.value.scope.id, caught.value.needed, caught.value.left) == ("d", 11, 10)
    assert world.figures() == [(0, 10), (0, 10)]
    assert [hold.row.intent for hold in world.scopes.holds()] == [2]


def test_a_hold_is_in_the_transaction_of_its_intent_or_in_none(world: World[Ledger]) -> None:
    world.declare(session=Budget(tokens=10))
    owner, fence = world.scopes.owner(), world.ledger.claim(RUN, create=True)

    def also(amount: Amount) -> None:
        def within(transaction: Transaction | None) -> None:
            world.scopes.hold(transaction, scope="s", run=RUN, intent=1, owner=owner, amount=amount)

        world.ledger.append(RUN, [draft(0)], expected=EMPTY, fence=fence, forced=True, also=within)

    with pytest.raises(BudgetExhausted):
        also(Amount(tokens=11))
    assert (world.ledger.runs()[0].head.count, world.figures()) == (0, [(0, 0), (0, 0)])

    also(Amount(tokens=10))
    assert (world.ledger.runs()[0].head.count, world.figures()) == (1, [(0, 10), (0, 10)])


def test_what_is_reported_beyond_the_cap_is_recorded_and_the_next_hold_refused(
    world: World[Ledger],
) -> None:
    world.declare(deployment=Budget(tokens=15), session=Budget(tokens=10))
    world.hold(Amount(tokens=5))
    world.hold(Amount(tokens=5), intent=2)

    world.settle(Amount(tokens=10**30), intent=2)
    breaches = world.settle(Amount(tokens=10**30))

    assert [(each.scope.id, each.dimension, each.limit) for each in breaches] == [
        ("s", "tokens", 10),
        ("d", "tokens", 15),
    ]
    # Where 64 bits end the figure stops, above any limit there can be.
    assert all(row.spent.tokens == 1 << 62 for row in world.scopes.rows())
    with pytest.raises(BudgetExhausted, match="tokens: 0 needed, -"):
        world.hold(Amount(usd=1), intent=3)


def test_an_intent_holds_once_and_closes_once(world: World[Ledger]) -> None:
    world.declare()
    world.hold(Amount(tokens=1))

    with pytest.raises(HoldExists, match="intent 1 has a reservation already"):
        world.hold(Amount(tokens=1))
    world.release()
    for close in (world.release, lambda: world.settle(Amount(tokens=1))):
        with pytest.raises(ReservationClosed, match="held for intent 1 is not open"):
            close()

    assert world.figures() == [(0, 0), (0, 0)]


def test_an_unknown_price_is_refused_under_a_cap_and_counted_apart_if_waived(
    world: World[Ledger],
) -> None:
    world.declare(deployment=Budget(usd=10))
    unknown = Amount(usd=None, tokens=5)

    with pytest.raises(BudgetUnpriced, match="deployment acme has a limit"):
        world.hold(unknown)
    world.hold(unknown, waived=True)
    world.settle(Amount(usd=None, tokens=4))

    assert [(row.unpriced, row.spent.usd) for row in world.scopes.rows()] == [(1, 0), (1, 0)]


def test_a_price_that_becomes_unknown_settles_at_what_was_held(world: World[Ledger]) -> None:
    world.declare(deployment=Budget(usd=10))

    world.hold(Amount(usd=7))
    world.settle(Amount(usd=None))

    assert [(row.unpriced, row.spent.usd) for row in world.scopes.rows()] == [(0, 7), (0, 7)]


def test_what_needs_no_hold_is_spent_in_every_scope(world: World[Ledger]) -> None:
    world.declare(deployment=Budget(turns=1))

    with world.scopes.writing(forced=False) as within:
        breaches = world.scopes.spend(within, scope="s", amount=Amount(turns=2, fuel=5))

    assert [str(each) for each in breaches] == ["deployment acme: 2 turns spent of 1"]
    assert [row.spent.fuel for row in world.scopes.rows()] == [5, 5]


def test_amounts_that_no_meter_can_keep_are_errors(world: World[Ledger]) -> None:
    world.declare()

    with pytest.raises(InvalidLimit, match="tokens: an amount is at most"):
        world.hold(Amount(tokens=HELD_MAX + 1))
    with pytest.raises(NegativeAmount):
        world.hold(Amount(tokens=-1))
    world.hold(Amount(tokens=HELD_MAX))
    with pytest.raises(NegativeAmount):
        world.settle(Amount(tokens=-1))

    assert world.figures() == [(0, HELD_MAX)] * 2


# -- declaring -----------------------------------------------------------------------------------


def test_other_limits_win_and_are_recorded_and_what_is_spent_stays(world: World[Ledger]) -> None:
    world.declare(session=Budget(tokens=10))
    world.hold(Amount(tokens=10))
    world.settle(Amount(tokens=10))

    world.declare(session=Budget(tokens=15, usd=0))
    world.declare(session=Budget(tokens=15, usd=0))

    (change,) = world.scopes.changes("s")
    assert (change.before, change.after) == (Budget(tokens=10), Budget(tokens=15, usd=0))
    assert change.changed_at_ms == 1_000
    assert world.scopes.remaining("s").tokens == 5


def test_a_scope_can_have_another_name_but_no_other_place(world: World[Ledger]) -> None:
    world.declare(session=Budget(tokens=0))
    world.hold(Amount())
    world.scopes.declare("s", parent="d", kind="session", name="renamed", budget=Budget(tokens=0))

    with pytest.raises(BudgetExhausted, match="session renamed"):
        world.hold(Amount(tokens=1), intent=2)
    with pytest.raises(InvalidScope, match="it is a session in 'd', and stays one"):
        world.scopes.declare("s", parent=None, kind="session", name="x", budget=Budget())


def test_only_deployments_and_sessions_are_shared_and_their_parents_are_there(
    world: World[Ledger],
) -> None:
    with pytest.raises(InvalidScope, match="a run is not shared"):
        world.scopes.declare("r", parent=None, kind="run", name="r", budget=Budget())
    with pytest.raises(ScopeUnknown, match="no scope 'gone'"):
        world.scopes.declare("s", parent="gone", kind="session", name="s", budget=Budget())
    world.declare()
    with pytest.raises(InvalidScope, match="does not stand in a session"):
        world.scopes.declare("t", parent="s", kind="session", name="t", budget=Budget())
    assert len(world.scopes.rows()) == 2


# -- totals --------------------------------------------------------------------------------------


def test_the_first_total_stays_until_it_is_changed(world: World[Ledger]) -> None:
    world.scopes.record_total("d", Budget())
    before = world.scopes.knows("d")
    world.scopes.record_total("d", Budget(usd=5))
    world.scopes.record_total("d", Budget(usd=9))

    assert (before, world.scopes.knows("d")) == (False, True)
    assert world.scopes.remaining("d").usd == 5
    with pytest.raises(LimitWouldRise):
        world.scopes.change_total("d", lambda limit: Budget(usd=7), may_raise=False)
    row = world.scopes.change_total("d", lambda limit: Budget(usd=7), may_raise=True)
    assert row.limit == Budget(usd=7)
    assert [each.after for each in world.scopes.changes("d")] == [Budget(usd=5), Budget(usd=7)]


def test_a_lower_limit_of_this_process_counts_for_it_alone(world: World[Ledger]) -> None:
    world.declare(session=Budget(tokens=10))
    owner = world.scopes.owner()

    with pytest.raises(BudgetExhausted):
        world.scopes.hold(
            None, scope="s", run=RUN, intent=1, owner=owner, amount=Amount(tokens=5),
            own=Budget(tokens=4),
        )  # fmt: skip

    assert world.scopes.remaining("s", own=Budget(tokens=4)).tokens == 4
    world.hold(Amount(tokens=5))


def test_what_does_not_agree_with_the_records_is_a_fault(world: World[Ledger]) -> None:
    world.declare(session=Budget(tokens=10))
    world.hold(Amount(tokens=3))
    world.settle(Amount(tokens=2))

    assert world.scopes.faults({"s": Amount(tokens=2)}) == []
    (fault, other) = world.scopes.faults({"s": Amount(tokens=5), "gone": Amount(tokens=1)})
    assert "'gone'" in fault
    assert "has spent 2 of tokens" in other


# -- owners --------------------------------------------------------------------------------------


def test_what_a_dead_owner_held_stays_until_it_is_resolved_once(
    world: World[Ledger], place: Place
) -> None:
    world.declare(session=Budget(tokens=10))
    with place.open() as other:
        World(place.ledger, other).hold(Amount(tokens=7))
        (alive,) = world.scopes.holds()
        with pytest.raises(HoldAlive):
            world.scopes.resolve(alive.row, settle_at=None)
    (dead,) = world.scopes.holds(run=RUN)

    breaches = world.scopes.resolve(dead.row, settle_at=Amount(tokens=5))

    assert (alive.owner_dead, dead.owner_dead) == (False, True)
    assert (breaches, world.scopes.holds(), world.figures()) == ([], [], [(5, 0)] * 2)
    with pytest.raises(Refused):
        world.scopes.resolve(dead.row, settle_at=None)
    with pytest.raises(ReservationClosed):
        world.scopes.resolve(dead.row, settle_at=None, insist=True)


def test_the_proof_of_a_death_stays_while_another_hold_needs_it(
    world: World[Ledger], place: Place
) -> None:
    world.declare()
    with place.open() as other:
        dead = World(place.ledger, other)
        dead.hold(Amount(tokens=1), intent=1)
        dead.hold(Amount(tokens=2), intent=2)

    first, second = world.scopes.holds()
    world.scopes.resolve(first.row, settle_at=None)

    assert world.scopes.holds() == [second]
    assert second.owner_dead


# -- transactions --------------------------------------------------------------------------------


def test_a_transaction_of_the_scopes_is_whole_or_absent(world: World[Ledger]) -> None:
    world.declare(session=Budget(tokens=10))
    owner = world.scopes.owner()

    def two_holds() -> None:
        with world.scopes.writing(forced=False) as within:
            for intent in (1, 2):
                world.scopes.hold(
                    within, scope="s", run=RUN, intent=intent, owner=owner, amount=Amount(tokens=6)
                )

    with pytest.raises(BudgetExhausted):
        two_holds()

    assert (world.scopes.holds(), world.figures()) == ([], [(0, 0)] * 2)


def test_without_a_transaction_each_does_it_alone(world: World[Ledger]) -> None:
    world.declare(session=Budget(tokens=10))
    owner = world.scopes.owner()
    for intent in (1, 2):
        world.scopes.hold(
            None, scope="s", run=RUN, intent=intent, owner=owner, amount=Amount(tokens=2)
        )

    world.scopes.settle(None, run=RUN, intent=1, actual=Amount(tokens=1))
    world.scopes.release(None, run=RUN, intent=2)
    world.scopes.spend(None, scope="s", amount=Amount(turns=1))

    assert world.figures() == [(1, 0)] * 2


def test_a_transaction_of_another_kind_is_refused(world: World[Ledger]) -> None:
    world.declare()

    with pytest.raises(UsageError, match="another kind"):
        world.scopes.release(object(), run=RUN, intent=1)


@pytest.mark.parametrize("where", ["memory:", "ledger.db"])
def test_the_stores_of_a_place_have_scopes(where: str, tmp_path: Path) -> None:
    with open_stores(where if where == "memory:" else tmp_path / where) as stores:
        world = World(stores.ledger, stores.scopes)
        world.declare(session=Budget(tokens=10))
        world.hold(Amount(tokens=6))

        with pytest.raises(BudgetExhausted):
            world.hold(Amount(tokens=6), intent=2)
        assert world.figures() == [(0, 6)] * 2


def test_only_a_ledger_that_others_can_have_has_scopes_to_share(place: Place) -> None:
    found: Scopes | None = place.ledger.shared_scopes()

    assert (found is None) == isinstance(place.ledger, MemoryLedger)
    assert (place.ledger.lock_folder is None) == (found is None)
    if found is not None:
        found.close()


# -- the same rules as the tree ------------------------------------------------------------------

some_amounts = amounts(unpriced=True)
some_budgets = budgets()
actions = st.lists(
    st.tuples(
        st.sampled_from(["hold", "hold", "hold", "settle", "release", "spend", "limit"]),
        st.integers(0, 5),
        some_amounts,
        st.booleans(),
        some_budgets,
    ),
    max_size=20,
)


class ChangingTree(BudgetTree):
    """A tree whose limits change, as those of totals do."""

    def rearm(self, scope: str, budget: Budget) -> None:
        """Replace the limits of a scope. Its sums stay; an overrun is forgotten."""
        node = self._open_node_of(scope)
        node.limit, node.caps, node.overrun = budget, caps_of(budget), None


@pytest.mark.parametrize("kind", sorted(PLACES))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(deployment=some_budgets, session=some_budgets, actions=actions)
def test_shared_scopes_do_what_the_budget_tree_does(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    deployment: Budget,
    session: Budget,
    actions: list[tuple[str, int, Amount, bool, Budget]],
) -> None:
    tree, made = ChangingTree(), dict[int, Reservation]()
    tree.enter("d", parent=None, budget=deployment, kind="deployment", name="acme")
    tree.enter("s", parent="d", budget=session, kind="session", name="mine")
    with ExitStack() as stack:
        place = stack.enter_context(PLACES[kind](tmp_path_factory.mktemp("law")))
        scopes = stack.enter_context(place.open())
        world = World(place.ledger, scopes)
        world.declare(deployment=deployment, session=session)
        for what, intent, amount, waived, budget in actions:
            said: object = None
            done: object = None
            match what:
                case "hold" if intent not in made:
                    with suppress(Refused):
                        made[intent] = tree.reserve("s", amount, usd_waived=waived)
                        said = "held"
                    with suppress(Refused):
                        world.hold(amount, intent=intent, waived=waived)
                        done = "held"
                case "settle" if intent in made:
                    said = tree.settle(made.pop(intent), amount)
                    done = world.settle(amount, intent=intent)
                    # That a charge passed its reservation is remembered by the process alone.
                    tree.rearm("d", deployment)
                    tree.rearm("s", session)
                case "release" if intent in made:
                    tree.release(made.pop(intent))
                    world.release(intent=intent)
                case "spend":
                    said = tree.spend("s", amount)
                    with scopes.writing(forced=False) as within:
                        done = scopes.spend(within, scope="s", amount=amount)
                case "limit":
                    deployment = budget
                    tree.rearm("d", deployment)
                    world.declare(deployment=deployment, session=session)
                case _:
                    pass

            assert said == done
            assert scopes.rows() == tree.rows()
            assert scopes.remaining("s") == tree.remaining("s")
        assert {hold.row.intent for hold in scopes.holds()} == made.keys()
