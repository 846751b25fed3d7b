"""Scopes that several processes share: one cap, held exactly, also when one of them dies."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.ledger.builders import EMPTY, RUN, draft, run_id
from tests.ledger.scope_worker import WORST

from tallystick.core.budget.amount import (
    Amount,
    Breach,
    Budget,
    BudgetExhausted,
    BudgetUnpriced,
    HoldAlive,
    HoldExists,
    InvalidScope,
    NegativeAmount,
    ReservationClosed,
    ScopesFormatUnknown,
    ScopeUnknown,
)
from tallystick.core.budget.tree import BudgetTree, Reservation
from tallystick.core.errors import InvalidLimit, LedgerCorrupt, Refused
from tallystick.ledger.scopes import HELD_MAX, Hold, SharedScopes
from tallystick.ledger.sqlite import SqliteLedger

pytestmark = pytest.mark.slow

WORKER = Path(__file__).with_name("scope_worker.py")


@dataclass
class World:
    """A ledger with a deployment and a session in it."""

    ledger: SqliteLedger
    scopes: SharedScopes

    def declare(self, *, deployment: Budget | None = None, session: Budget | None = None) -> None:
        self.scopes.declare(
            "d", parent=None, kind="deployment", name="acme", budget=deployment or Budget()
        )
        self.scopes.declare(
            "s", parent="d", kind="session", name="mine", budget=session or Budget()
        )

    def hold(self, amount: Amount, *, intent: int = 1, waived: bool = False) -> None:
        owner = self.scopes.owner()
        with self.ledger.file.writing(forced=False) as db:
            self.scopes.hold(
                db, scope="s", run=RUN, intent=intent, owner=owner, amount=amount, usd_waived=waived
            )

    def settle(self, actual: Amount, *, intent: int = 1) -> list[Breach]:
        with self.ledger.file.writing(forced=False) as db:
            return self.scopes.settle(db, run=RUN, intent=intent, actual=actual)

    def release(self, *, intent: int = 1) -> None:
        with self.ledger.file.writing(forced=False) as db:
            self.scopes.release(db, run=RUN, intent=intent)

    def figures(self) -> list[tuple[int, int]]:
        """Tokens spent and reserved, the deployment first."""
        return [(row.spent.tokens, row.reserved.tokens) for row in self.scopes.rows()]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with (
        SqliteLedger(tmp_path / "ledger.db") as ledger,
        SharedScopes(ledger.file, clock=lambda: 1_000) as scopes,
    ):
        yield World(ledger, scopes)


@contextmanager
def started(path: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A worker that does not outlive the test, however that ends."""
    with subprocess.Popen(
        [sys.executable, WORKER, path, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        try:
            yield worker
        finally:
            worker.kill()


def line_of(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    return worker.stdout.readline().strip()


def killed_while_holding(path: Path, name: str) -> str:
    """The owner of a hold that nobody will settle."""
    with started(path, "hold", name) as worker:
        return line_of(worker)


# -- holding -------------------------------------------------------------------------------------


def test_a_hold_is_in_every_scope_and_settles_in_every_scope(world: World) -> None:
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
    world: World,
) -> None:
    world.declare(deployment=Budget(tokens=10), session=Budget(tokens=50))
    owner = world.scopes.owner()

    with world.ledger.file.writing(forced=False) as db:
        with pytest.raises(BudgetExhausted) as caught:
            world.scopes.hold(
                db, scope="s", run=RUN, intent=1, owner=owner, amount=Amount(tokens=11)
            )
        world.scopes.hold(db, scope="s", run=RUN, intent=2, owner=owner, amount=Amount(tokens=10))

    assert (caught.value.scope.id, caught.value.needed, caught.value.left) == ("d", 11, 10)
    assert world.figures() == [(0, 10), (0, 10)]
    assert [hold.row.intent for hold in world.scopes.holds()] == [2]


def test_a_hold_is_in_the_transaction_of_its_intent_or_in_none(world: World) -> None:
    world.declare(session=Budget(tokens=10))
    owner, fence = world.scopes.owner(), world.ledger.claim(RUN, create=True)

    def also(amount: Amount) -> None:
        def within(db: sqlite3.Connection | None) -> None:
            assert db is not None
            world.scopes.hold(db, scope="s", run=RUN, intent=1, owner=owner, amount=amount)

        world.ledger.append(RUN, [draft(0)], expected=EMPTY, fence=fence, forced=True, also=within)

    with pytest.raises(BudgetExhausted):
        also(Amount(tokens=11))
    assert (world.ledger.runs()[0].head.count, world.figures()) == (0, [(0, 0), (0, 0)])

    also(Amount(tokens=10))
    assert (world.ledger.runs()[0].head.count, world.figures()) == (1, [(0, 10), (0, 10)])


def test_what_is_reported_beyond_the_cap_is_recorded_and_the_next_hold_refused(
    world: World,
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


def test_an_intent_holds_once_and_closes_once(world: World) -> None:
    world.declare()
    world.hold(Amount(tokens=1))

    with pytest.raises(HoldExists, match="intent 1 has a reservation already"):
        world.hold(Amount(tokens=1))
    world.release()
    for close in (world.release, lambda: world.settle(Amount(tokens=1))):
        with pytest.raises(ReservationClosed, match="held for intent 1 is not open"):
            close()

    assert world.figures() == [(0, 0), (0, 0)]


def test_an_unknown_price_is_refused_under_a_cap_and_counted_apart_if_waived(world: World) -> None:
    world.declare(deployment=Budget(usd=10))
    unknown = Amount(usd=None, tokens=5)

    with pytest.raises(BudgetUnpriced, match="deployment acme has a limit"):
        world.hold(unknown)
    world.hold(unknown, waived=True)
    world.settle(Amount(usd=None, tokens=4))

    assert [(row.unpriced, row.spent.usd) for row in world.scopes.rows()] == [(1, 0), (1, 0)]


def test_a_price_that_becomes_unknown_settles_at_what_was_held(world: World) -> None:
    world.declare(deployment=Budget(usd=10))

    world.hold(Amount(usd=7))
    world.settle(Amount(usd=None))

    assert [(row.unpriced, row.spent.usd) for row in world.scopes.rows()] == [(0, 7), (0, 7)]


def test_what_needs_no_hold_is_spent_in_every_scope(world: World) -> None:
    world.declare(deployment=Budget(turns=1))

    with world.ledger.file.writing(forced=False) as db:
        breaches = world.scopes.spend(db, scope="s", amount=Amount(turns=2, fuel=5))

    assert [str(each) for each in breaches] == ["deployment acme: 2 turns spent of 1"]
    assert [row.spent.fuel for row in world.scopes.rows()] == [5, 5]


def test_amounts_that_no_meter_can_keep_are_errors(world: World) -> None:
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


def test_other_limits_win_and_are_recorded_and_what_is_spent_stays(world: World) -> None:
    world.declare(session=Budget(tokens=10))
    world.hold(Amount(tokens=10))
    world.settle(Amount(tokens=10))

    world.declare(session=Budget(tokens=15, usd=0))
    world.declare(session=Budget(tokens=15, usd=0))

    (change,) = world.scopes.changes("s")
    assert (change.before, change.after) == (Budget(tokens=10), Budget(tokens=15, usd=0))
    assert change.changed_at_ms == 1_000
    assert world.scopes.remaining("s").tokens == 5


def test_a_scope_can_have_another_name_but_no_other_place(world: World) -> None:
    world.declare(session=Budget(tokens=0))
    world.hold(Amount())
    world.scopes.declare("s", parent="d", kind="session", name="renamed", budget=Budget(tokens=0))

    with pytest.raises(BudgetExhausted, match="session renamed"):
        world.hold(Amount(tokens=1), intent=2)
    with pytest.raises(InvalidScope, match="it is a session in 'd', and stays one"):
        world.scopes.declare("s", parent=None, kind="session", name="x", budget=Budget())


def test_only_deployments_and_sessions_are_shared_and_their_parents_are_there(
    world: World,
) -> None:
    with pytest.raises(InvalidScope, match="a run is not shared"):
        world.scopes.declare("r", parent=None, kind="run", name="r", budget=Budget())
    with pytest.raises(ScopeUnknown, match="no scope 'gone'"):
        world.scopes.declare("s", parent="gone", kind="session", name="s", budget=Budget())
    world.declare()
    with pytest.raises(InvalidScope, match="does not stand in a session"):
        world.scopes.declare("t", parent="s", kind="session", name="t", budget=Budget())
    assert len(world.scopes.rows()) == 2


def test_before_the_first_scope_there_is_nothing_and_no_table(world: World) -> None:
    assert world.scopes.rows() == []
    assert world.scopes.holds() == []
    for act in (
        lambda: world.scopes.remaining("s"),
        lambda: world.hold(Amount(tokens=1)),
    ):
        with pytest.raises(ScopeUnknown):
            act()
    with pytest.raises(ReservationClosed):
        world.release()

    with world.ledger.file.reading() as db:
        tables = db.execute("SELECT name FROM sqlite_master WHERE name LIKE 'budget%'").fetchall()
    assert tables == []


@pytest.mark.parametrize("versions", [[7], [], [1, 2]])
def test_another_format_is_refused_by_name_and_left_as_it_is(
    world: World, versions: list[int]
) -> None:
    world.declare(session=Budget(tokens=10))
    with world.ledger.file.writing(forced=False) as db:
        db.execute("DELETE FROM budget_format")
        db.executemany("INSERT INTO budget_format VALUES (?)", [(each,) for each in versions])
    found = str(versions[0] if len(versions) == 1 else versions).replace("[", r"\[")
    opened = World(world.ledger, SharedScopes(world.ledger.file))

    for act in (
        opened.scopes.rows,
        opened.declare,
        lambda: opened.hold(Amount(tokens=1)),
        opened.release,
    ):
        with pytest.raises(ScopesFormatUnknown, match=f"have format {found}.*; this version reads"):
            act()
    opened.scopes.close()


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM budget_meter WHERE dimension = 'fuel'",
        "UPDATE budget_meter SET ceiling = -1 WHERE dimension = 'fuel'",
        "UPDATE budget_scope SET kind = 'party'",
        "UPDATE budget_scope SET parent = 'gone' WHERE id = 's'",
        "UPDATE budget_scope SET parent = 's'",
        "UPDATE budget_scope SET unpriced = 'many'",
        "UPDATE budget_hold SET amount = 'x'",
        "UPDATE budget_hold SET owner = x'00'",
    ],
)
def test_damaged_rows_are_said_to_be_damaged(world: World, damage: str) -> None:
    world.declare(session=Budget(tokens=10))
    world.hold(Amount(tokens=1))
    with world.ledger.file.writing(forced=False) as db:
        db.execute(damage)

    def look(scopes: SharedScopes) -> None:
        scopes.rows()
        scopes.remaining("s")
        scopes.holds()

    with SharedScopes(world.ledger.file) as opened, pytest.raises(LedgerCorrupt, match="damaged"):
        look(opened)


# -- processes -----------------------------------------------------------------------------------


def test_four_processes_hold_one_cap_exactly(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with SqliteLedger(path) as ledger, SharedScopes(ledger.file) as scopes:
        World(ledger, scopes).declare(
            deployment=Budget(tokens=500), session=Budget(tokens=10_000, usd=10**9)
        )

    with ExitStack() as stack:
        workers = [stack.enter_context(started(path, "race", f"worker {n}")) for n in range(4)]
        for worker in workers:
            assert line_of(worker) == "ready"
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        spent = [int(worker.communicate()[0]) for worker in workers]

    with SqliteLedger(path) as ledger, SharedScopes(ledger.file) as scopes:
        assert World(ledger, scopes).figures() == [(sum(spent), 0)] * 2
        assert [row.spent.usd for row in scopes.rows()] == [sum(spent)] * 2
    # All of the cap was used, but for less than one call; and not by one process alone.
    assert 500 - WORST.tokens < sum(spent) <= 500
    assert sum(each > 0 for each in spent) > 1


def test_what_a_killed_process_held_stays_held_and_visible(world: World) -> None:
    world.declare(session=Budget(tokens=10))

    owner = killed_while_holding(world.ledger.path, "dead")

    (hold,) = world.scopes.holds()
    assert (hold.row.run, hold.row.owner, hold.row.amount) == ("dead", owner, WORST)
    assert hold.owner_dead
    assert world.figures() == [(0, 7), (0, 7)]
    with pytest.raises(BudgetExhausted, match="4 needed, 3 left"):
        world.hold(Amount(tokens=4))


@pytest.mark.parametrize(
    ("settle_at", "figures"), [(None, [(0, 0)] * 2), (Amount(tokens=5), [(5, 0)] * 2)]
)
def test_what_a_dead_owner_held_is_resolved_once(
    world: World, settle_at: Amount | None, figures: list[tuple[int, int]]
) -> None:
    world.declare(session=Budget(tokens=10))
    owner = killed_while_holding(world.ledger.path, "dead")
    lock = world.ledger.path.with_name("ledger.db-owners") / f"{owner}.lock"
    (hold,) = world.scopes.holds()
    assert lock.exists()

    breaches = world.scopes.resolve(hold.row, settle_at=settle_at)

    assert breaches == []
    assert (world.figures(), world.scopes.holds()) == (figures, [])
    assert not lock.exists()
    with pytest.raises(Refused):
        world.scopes.resolve(hold.row, settle_at=settle_at)
    with pytest.raises(ReservationClosed):
        world.scopes.resolve(hold.row, settle_at=settle_at, insist=True)
    assert world.figures() == figures


def test_the_proof_of_a_death_stays_while_another_hold_needs_it(world: World) -> None:
    world.declare()
    with SharedScopes(world.ledger.file) as other:
        dead = World(world.ledger, other)
        dead.hold(Amount(tokens=1), intent=1)
        dead.hold(Amount(tokens=2), intent=2)

    first, second = world.scopes.holds()
    world.scopes.resolve(first.row, settle_at=None)

    assert world.scopes.holds() == [second]
    assert second.owner_dead


def test_what_a_living_owner_holds_is_not_resolved_behind_its_back(world: World) -> None:
    world.declare()
    with started(world.ledger.path, "hold", "alive") as worker:
        owner = line_of(worker)
        (hold,) = world.scopes.holds()

        with pytest.raises(HoldAlive, match=f"may still be alive .owner {owner}."):
            world.scopes.resolve(hold.row, settle_at=None)

        assert (hold.owner_dead, world.figures()) == (False, [(0, 7)] * 2)


def test_an_owner_without_a_lock_file_is_not_proven_dead_but_one_can_insist(world: World) -> None:
    world.declare()
    owner = killed_while_holding(world.ledger.path, "dead")
    (world.ledger.path.with_name("ledger.db-owners") / f"{owner}.lock").unlink()
    (hold,) = world.scopes.holds()

    with pytest.raises(HoldAlive):
        world.scopes.resolve(hold.row, settle_at=WORST)
    world.scopes.resolve(hold.row, settle_at=WORST, insist=True)

    assert (hold.owner_dead, world.figures()) == (False, [(7, 0)] * 2)


def test_a_process_that_dies_before_the_commit_holds_nothing(world: World) -> None:
    world.declare()

    with started(world.ledger.path, "intent", "9") as worker:
        assert worker.wait() == -9

    assert (world.scopes.holds(), world.figures()) == ([], [(0, 0)] * 2)
    assert [row.head.count for row in world.ledger.runs() if row.run == run_id(9)] == [0]


def test_closing_leaves_a_lock_file_only_where_something_is_held(world: World) -> None:
    world.declare()
    folder = world.ledger.path.with_name("ledger.db-owners")
    with SharedScopes(world.ledger.file) as quiet:
        quiet.owner()
    assert list(folder.iterdir()) == []

    with SharedScopes(world.ledger.file) as busy:
        World(world.ledger, busy).hold(Amount(tokens=1))
        assert [hold.owner_dead for hold in world.scopes.holds()] == [False]

    holds: Sequence[Hold] = world.scopes.holds()
    assert [hold.owner_dead for hold in holds] == [True]
    assert [path.stem for path in folder.iterdir()] == [holds[0].row.owner]


# -- the same rules as the tree ------------------------------------------------------------------

small = st.integers(0, 6)
amounts = st.builds(Amount, tokens=small, usd=st.none() | small, turns=small)
limits = st.none() | st.integers(0, 20)
budgets = st.builds(Budget, tokens=limits, usd=limits, turns=limits)
actions = st.lists(
    st.tuples(
        st.sampled_from(["hold", "hold", "hold", "settle", "release", "spend", "limit"]),
        st.integers(0, 5),
        amounts,
        st.booleans(),
        budgets,
    ),
    max_size=20,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(deployment=budgets, session=budgets, actions=actions)
def test_shared_scopes_do_what_the_budget_tree_does(
    tmp_path_factory: pytest.TempPathFactory,
    deployment: Budget,
    session: Budget,
    actions: list[tuple[str, int, Amount, bool, Budget]],
) -> None:
    tree, made = BudgetTree(), dict[int, Reservation]()
    tree.enter("d", parent=None, budget=deployment, kind="deployment", name="acme")
    tree.enter("s", parent="d", budget=session, kind="session", name="mine")
    path = tmp_path_factory.mktemp("law") / "ledger.db"
    with SqliteLedger(path) as ledger, SharedScopes(ledger.file) as scopes:
        world = World(ledger, scopes)
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
                    with ledger.file.writing(forced=False) as db:
                        done = scopes.spend(db, scope="s", amount=amount)
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
