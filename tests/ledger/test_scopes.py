"""Scopes that several processes share: one cap, held exactly, also when one of them dies."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.ledger.builders import run_id
from tests.ledger.scope_worker import WORST
from tests.ledger.scope_world import World

from tallystick.core.budget.amount import (
    Amount,
    Budget,
    BudgetExhausted,
    HoldAlive,
    ReservationClosed,
    ScopesFormatUnknown,
    ScopeUnknown,
)
from tallystick.core.errors import LedgerCorrupt, Refused
from tallystick.ledger.scopes import Hold, SharedScopes
from tallystick.ledger.sqlite import SqliteLedger

pytestmark = pytest.mark.slow

WORKER = Path(__file__).with_name("scope_worker.py")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World[SqliteLedger]]:
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


def test_before_the_first_scope_there_is_nothing_and_no_table(world: World[SqliteLedger]) -> None:
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
    world: World[SqliteLedger], versions: list[int]
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
def test_damaged_rows_are_said_to_be_damaged(world: World[SqliteLedger], damage: str) -> None:
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


def test_what_a_killed_process_held_stays_held_and_visible(world: World[SqliteLedger]) -> None:
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
    world: World[SqliteLedger], settle_at: Amount | None, figures: list[tuple[int, int]]
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


def test_the_proof_of_a_death_stays_while_another_hold_needs_it(world: World[SqliteLedger]) -> None:
    world.declare()
    with SharedScopes(world.ledger.file) as other:
        dead = World(world.ledger, other)
        dead.hold(Amount(tokens=1), intent=1)
        dead.hold(Amount(tokens=2), intent=2)

    first, second = world.scopes.holds()
    world.scopes.resolve(first.row, settle_at=None)

    assert world.scopes.holds() == [second]
    assert second.owner_dead


def test_what_a_living_owner_holds_is_not_resolved_behind_its_back(
    world: World[SqliteLedger],
) -> None:
    world.declare()
    with started(world.ledger.path, "hold", "alive") as worker:
        owner = line_of(worker)
        (hold,) = world.scopes.holds()

        with pytest.raises(HoldAlive, match=f"may still be alive .owner {owner}."):
            world.scopes.resolve(hold.row, settle_at=None)

        assert (hold.owner_dead, world.figures()) == (False, [(0, 7)] * 2)


def test_an_owner_without_a_lock_file_is_not_proven_dead_but_one_can_insist(
    world: World[SqliteLedger],
) -> None:
    world.declare()
    owner = killed_while_holding(world.ledger.path, "dead")
    (world.ledger.path.with_name("ledger.db-owners") / f"{owner}.lock").unlink()
    (hold,) = world.scopes.holds()

    with pytest.raises(HoldAlive):
        world.scopes.resolve(hold.row, settle_at=WORST)
    world.scopes.resolve(hold.row, settle_at=WORST, insist=True)

    assert (hold.owner_dead, world.figures()) == (False, [(7, 0)] * 2)


def test_a_process_that_dies_before_the_commit_holds_nothing(world: World[SqliteLedger]) -> None:
    world.declare()

    with started(world.ledger.path, "intent", "9") as worker:
        assert worker.wait() == -9

    assert (world.scopes.holds(), world.figures()) == ([], [(0, 0)] * 2)
    assert [row.head.count for row in world.ledger.runs() if row.run == run_id(9)] == [0]


def test_closing_leaves_a_lock_file_only_where_something_is_held(
    world: World[SqliteLedger],
) -> None:
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
