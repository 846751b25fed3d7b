"""Shared scopes: budgets that several processes use together, some of which may die.

Rule 1: the rules are those of the budget tree (`core/budget/tree.py`): a reservation is in every
enclosing row or in none, and a charge is recorded before it is compared with the limits.
Rule 2: methods that take a transaction are part of it: that of the intent for `hold`, that of the
result for `settle` and `release`, so neither exists without the other. They are for the ledger's
`also`, or for `writing`; with None they run one of their own. The other methods run their own, and
must not be called inside one.
Rule 3: a reservation does not expire. Its owner settles it. If the owner is proven dead, another
process resolves it, and gives the amount.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Protocol

import msgspec

from tallystick.core.budget.amount import (
    COUNTED,
    DIMENSIONS,
    Amount,
    Breach,
    Budget,
    BudgetExhausted,
    BudgetUnpriced,
    HoldAlive,
    HoldExists,
    InvalidScope,
    LimitWouldRise,
    Remaining,
    ReservationClosed,
    Scope,
    ScopeKind,
    ScopeRow,
    ScopesFormatUnknown,
    ScopeUnknown,
    lower_of,
    tightest,
)
from tallystick.core.budget.tree import caps_of, check_place, figures_of, refusal_of, row_of
from tallystick.core.errors import InvalidLimit, LedgerCorrupt, UsageError
from tallystick.ledger import scope_rows as rows
from tallystick.ledger.file import FORMAT
from tallystick.ledger.scope_rows import HoldRow, LimitChange
from tallystick.storage.clock import now_ms
from tallystick.storage.owner import MemoryOwners, Owner, Owners
from tallystick.storage.transaction import Transaction, sqlite_of

# The most of one dimension that one reservation takes: 1,000 of them still fit 64 bits.
HELD_MAX = 1 << 53
_NOTHING = Amount()
_NO_LIMIT = Budget()
_SHARED: tuple[ScopeKind, ...] = ("deployment", "session")


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """A reservation, and whether the process that owns it is proven dead."""

    row: HoldRow
    owner_dead: bool


class Scopes(Protocol):
    """The port of shared scopes: budgets that outlive a run, with owners that may die.

    `SharedScopes` describes the methods that have no description here.
    """

    def owner(self) -> str:
        """Return the id under which this process owns reservations, until `close`.

        The first call makes it.
        """
        ...

    def close(self) -> None:
        """Give up this owner. Its open reservations belong to a dead owner from now on."""
        ...

    def writing(self, *, forced: bool) -> contextlib.AbstractContextManager[Transaction]:
        """Run one transaction of the scopes: all of it, or nothing.

        With `forced`, wait for the disk. Raise `UsageError` if this thread is in one.
        """
        ...

    def declare(
        self, scope: str, *, parent: str | None, kind: ScopeKind, name: str, budget: Budget
    ) -> None: ...

    def record_total(self, scope: str, budget: Budget) -> None: ...

    def change_total(
        self, scope: str, change: Callable[[Budget], Budget], *, may_raise: bool
    ) -> ScopeRow: ...

    def knows(self, scope: str) -> bool: ...

    def remaining(self, scope: str, *, own: Budget = _NO_LIMIT) -> Remaining: ...

    def rows(self) -> list[ScopeRow]: ...

    def changes(self, scope: str) -> list[LimitChange]: ...

    def faults(self, charged: Mapping[str, Amount]) -> list[str]: ...

    def hold(
        self,
        within: Transaction | None,
        *,
        scope: str,
        run: str,
        intent: int,
        owner: str,
        amount: Amount,
        usd_waived: bool = False,
        own: Budget = _NO_LIMIT,
    ) -> None: ...

    def settle(
        self, within: Transaction | None, *, run: str, intent: int, actual: Amount
    ) -> list[Breach]: ...

    def release(self, within: Transaction | None, *, run: str, intent: int) -> None: ...

    def spend(self, within: Transaction | None, *, scope: str, amount: Amount) -> list[Breach]: ...

    def holds(self, *, run: str | None = None) -> list[Hold]: ...

    def resolve(
        self, hold: HoldRow, *, settle_at: Amount | None, insist: bool = False
    ) -> list[Breach]: ...


class ScopeFile(Protocol):
    """A SQLite database with the tables of scopes, and the owners of its reservations."""

    @property
    def where(self) -> str:
        """The name of the database in error messages."""
        ...

    def reading(self) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        """Give a connection outside of any transaction.

        Raise `UsageError` if this thread is in one.
        """
        ...

    def writing(self, *, forced: bool) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        """Run one transaction: all of it, or nothing. With `forced`, wait for the disk.

        Raise `UsageError` if this thread is in one.
        """
        ...

    def owners(self) -> Owners:
        """Return the processes that own reservations."""
        ...


class MemoryFile:
    """A database in memory, for scopes that need not be kept.

    The rules of scopes are conditions in SQL. A second implementation of them for plain objects was
    rejected: it could differ from the first.
    """

    where = "the budgets in memory"

    def __init__(self) -> None:
        self._turn = threading.RLock()
        self._owners = MemoryOwners()
        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._db.execute(f"PRAGMA user_version = {FORMAT}")

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with self._turn:
            if self._db.in_transaction:
                raise UsageError(f"{self.where}: this thread is in a transaction of them")
            yield self._db

    @contextlib.contextmanager
    def writing(self, *, forced: bool) -> Iterator[sqlite3.Connection]:
        with self.reading() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    def owners(self) -> Owners:
        return self._owners


class SharedScopes:
    """Deployment and session scopes in a database.

    After `close`, its open reservations belong to a dead owner. Every method but `owner` and
    `close` raises `LedgerCorrupt` if a row is damaged, and `ScopesFormatUnknown` if another version
    made the tables. One that would run a transaction inside another of this thread raises
    `UsageError`.
    """

    def __init__(self, file: ScopeFile, *, clock: Callable[[], int] = now_ms) -> None:
        self._file = file
        self._clock = clock
        self._owners = file.owners()
        self._owner: Owner | None = None
        self._guard = threading.Lock()
        self._chains: dict[str, tuple[Scope, ...]] = {}
        self._recognized = False

    def __enter__(self) -> SharedScopes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def owner(self) -> str:
        """Return the id under which this process owns reservations, while this object is open.

        The first call makes the owner, in a file a lock that is on disk before the id is returned.
        A call after `close` makes another one.
        """
        with self._guard:
            if self._owner is None:
                self._owner = self._owners.hold()
            return self._owner.id

    def close(self) -> None:
        """Give up this owner, if there is one.

        Its open reservations belong to a dead owner from now on. Without open reservations the
        proof of its death is removed. Raises nothing for a damaged database.
        """
        with self._guard:
            owner, self._owner = self._owner, None
        if owner is not None:
            # If it cannot be found out whether a reservation names it, keep the lock file, which
            # proves the owner dead.
            named = True
            with contextlib.suppress(Exception):
                named = self._has_reservations(owner.id)
            owner.release(remove=not named)

    # -- scopes --------------------------------------------------------------------------------

    def declare(
        self, scope: str, *, parent: str | None, kind: ScopeKind, name: str, budget: Budget
    ) -> None:
        """Create a scope, or give a known one these limits. A change of limits is recorded.

        What is spent and reserved stays; a new name replaces the old one. Raise `InvalidScope` if
        the kind is not shared or not allowed in its parent, or if a known scope would get another
        parent or kind. Raise `ScopeUnknown` if the parent is not declared.
        """
        if kind not in _SHARED:
            raise InvalidScope(scope=scope, why=f"a {kind} is not shared; {_SHARED} are")
        wanted = Scope(id=scope, parent=parent, kind=kind, name=name)
        with self._reading() as db:
            if db is not None and rows.scope_of(db, scope) == wanted:
                (row,) = rows.scope_rows(db, only=[wanted])
                if row.limit == budget:
                    return
        with self._file.writing(forced=True) as db, self._report_damage():
            if self._version(db) is None:
                for statement in rows.SCHEMA:
                    db.execute(statement)
            self._put_scope(db, wanted, budget)
        # The name may have changed, and the kept chains of inner scopes contain it.
        self._chains.clear()

    def record_total(self, scope: str, budget: Budget) -> None:
        """Record this as the total of the ledger, unless one is recorded: that one stays.

        Without limits in `budget` no total is recorded. A total that an earlier version recorded
        binds every process from now on, like any other.
        """
        with self._reading() as db:
            known = db is not None and rows.scope_of(db, scope) is not None
            if db is not None and known:
                (row,) = rows.scope_rows(db, only=[self._require_scope(db, scope)])
                if rows.is_total_binding(db) and (row.limit != _NO_LIMIT or budget == _NO_LIMIT):
                    return
        if not known and budget == _NO_LIMIT:
            return
        self._write_total(scope, lambda limit: limit if limit != _NO_LIMIT else budget)

    def change_total(
        self, scope: str, change: Callable[[Budget], Budget], *, may_raise: bool
    ) -> ScopeRow:
        """Change the recorded total, record the change, and return the scope's row after it.

        A scope that is not declared is created. `change` is called once, in the transaction, with
        the present limits, and returns the new ones; an error that it raises undoes all. Raise
        `LimitWouldRise` if a limit becomes higher, or is removed, and not `may_raise`.
        """

        def change_and_check(before: Budget) -> Budget:
            after = change(before)
            for dimension in DIMENSIONS:
                then, now = getattr(before, dimension), getattr(after, dimension)
                if not may_raise and then is not None and (now is None or now > then):
                    raise LimitWouldRise(dimension=dimension, before=then, after=now)
            return after

        return self._write_total(scope, change_and_check)

    def _write_total(self, scope: str, change: Callable[[Budget], Budget]) -> ScopeRow:
        wanted = Scope(id=scope, parent=None, kind="deployment", name="")
        with self._file.writing(forced=True) as db, self._report_damage():
            if self._version(db) is None:
                for statement in rows.SCHEMA:
                    db.execute(statement)
            if rows.scope_of(db, scope) is None:
                rows.insert_scope(db, wanted, _NO_LIMIT)
            known = self._require_scope(db, scope)
            (row,) = rows.scope_rows(db, only=[known])
            after = change(row.limit)
            if after != row.limit:
                now = self._clock()
                rows.change_limits(db, scope, before=row.limit, after=after, now_ms=now)
            (row,) = rows.scope_rows(db, only=[known])
            return row

    def knows(self, scope: str) -> bool:
        """Return True if a scope was declared, by any process until now."""
        # A scope is never removed, so only the answer False is looked up again.
        if scope in self._chains:
            return True
        with self._reading() as db:
            if db is None or rows.scope_of(db, scope) is None:
                return False
            self._chain(db, scope)
            return True

    def remaining(self, scope: str, *, own: Budget = _NO_LIMIT) -> Remaining:
        """Return what is left per dimension, in the tightest of this scope and those around it.

        `own` are the limits of the scope for this process, where they are lower. Raise
        `ScopeUnknown` if the scope is not declared.
        """
        with self._reading() as db:
            if db is None:
                raise ScopeUnknown(scope=scope)
            chain = self._chain(db, scope)
            first, *further = rows.scope_rows(db, only=chain)
        left = _with_lower_limits(first, own).remaining
        for row in further:
            left = tightest(left, row.remaining)
        return left

    def rows(self) -> list[ScopeRow]:
        """Return the row of every scope, in the order of their declaration."""
        with self._reading() as db:
            return [] if db is None else rows.scope_rows(db)

    def changes(self, scope: str) -> list[LimitChange]:
        """Return the changes of a scope's limits, the newest last.

        A scope that is not declared has none.
        """
        with self._reading() as db:
            return [] if db is None else rows.changes(db, scope)

    def faults(self, charged: Mapping[str, Amount]) -> list[str]:
        """Return the contradictions between meters, reservations, limits and charges, one per line.

        A meter must hold the sum of the reservations in its scope, have the limit of its last
        change, and have spent at least what was `charged`, by scope. It may have spent more: runs
        that were removed or pruned still count.
        """
        with self._reading() as db:
            if db is None:
                return [f"runs were charged to scope {id!r}, which is not there" for id in charged]
            return rows.faults(db, charged)

    # -- in the transaction of the caller -------------------------------------------------------

    def writing(self, *, forced: bool) -> contextlib.AbstractContextManager[Transaction]:
        """Run one transaction of the scopes: all of it, or nothing.

        With `forced`, wait for the disk.
        """
        return self._file.writing(forced=forced)

    def hold(
        self,
        within: Transaction | None,
        *,
        scope: str,
        run: str,
        intent: int,
        owner: str,
        amount: Amount,
        usd_waived: bool = False,
        own: Budget = _NO_LIMIT,
    ) -> None:
        """Reserve an amount in a scope and those around it, or refuse and reserve nothing.

        `own` are the limits of the scope for this process, where they are lower. Raise
        `BudgetExhausted` if the amount does not fit, or one of these scopes is over a limit
        already. Raise `BudgetUnpriced` if its price is unknown
        and not waived while money is limited in any of these scopes. Raise `HoldExists` if this
        intent has a reservation. Raise `NegativeAmount` or `InvalidLimit` if a figure is below zero
        or above `HELD_MAX`, and `ScopeUnknown` if the scope is not declared.
        """
        figures = figures_of(amount)
        for dimension, figure in zip(COUNTED, figures, strict=True):
            if figure > HELD_MAX:
                why = f"an amount is at most {HELD_MAX:,}"
                raise InvalidLimit(field=dimension, given=figure, why=why)
        with self._transaction(within) as db, self._report_damage():
            chain = self._chain(db, scope)
            if amount.usd is None and not usd_waived:
                first, *further = rows.scope_rows(db, only=chain)
                _check_unpriced([_with_lower_limits(first, own), *further])
            if rows.held_by(db, run, intent):
                raise HoldExists(run=run, intent=intent)
            row = HoldRow(
                run=run,
                intent=intent,
                scope=scope,
                owner=owner,
                held_at_ms=self._clock(),
                amount=amount,
            )
            if own != _NO_LIMIT:
                _check_own_limits(
                    _with_lower_limits(rows.scope_rows(db, only=chain[:1])[0], own), figures
                )
            if not rows.hold(db, chain, row, figures):
                raise _refusal(rows.scope_rows(db, only=chain), figures)

    def settle(
        self, within: Transaction | None, *, run: str, intent: int, actual: Amount
    ) -> list[Breach]:
        """Replace a reservation by the real cost, and return the limits that are passed then.

        The cost may be higher than the reservation, and is recorded in either case. An unknown
        price settles at the reserved one; if that is unknown too, the call counts as unpriced.
        Raise `ReservationClosed` if there is no such reservation, and `NegativeAmount` if a figure
        is below zero.
        """
        figures_of(actual)
        with self._transaction(within) as db, self._report_damage():
            hold = self._require_hold(db, run, intent)
            if actual.usd is None and hold.amount.usd is not None:
                actual = msgspec.structs.replace(actual, usd=hold.amount.usd)
            return self._close(db, hold, actual)

    def release(self, within: Transaction | None, *, run: str, intent: int) -> None:
        """Return a reservation whose attempt is known to have cost nothing.

        Raise `ReservationClosed` if there is no such reservation.
        """
        with self._transaction(within) as db, self._report_damage():
            self._close(db, self._require_hold(db, run, intent), _NOTHING)

    def spend(self, within: Transaction | None, *, scope: str, amount: Amount) -> list[Breach]:
        """Record a cost that needed no reservation: turns, fuel, time.

        Return the limits passed then. No limit refuses it. An unknown price counts as one unpriced
        call. Raise `NegativeAmount` if a figure is below zero, and `ScopeUnknown` if the scope is
        not declared.
        """
        figures_of(amount)
        with self._transaction(within) as db, self._report_damage():
            return _record(db, self._chain(db, scope), held=_NOTHING, actual=amount)

    # -- reservations of dead owners ------------------------------------------------------------

    def holds(self, *, run: str | None = None) -> list[Hold]:
        """Return the open reservations of a run or of all, in the order they were made.

        Each says if its owner is proven dead. False means that the owner may be alive, or is
        unknown here.
        """
        with self._reading() as db:
            found = [] if db is None else rows.hold_rows(db, run=run)
        dead = {owner: self._owners.proven_dead(owner) for owner in {row.owner for row in found}}
        return [Hold(row=row, owner_dead=dead[row.owner]) for row in found]

    def resolve(
        self, hold: HoldRow, *, settle_at: Amount | None, insist: bool = False
    ) -> list[Breach]:
        """Close a dead owner's reservation, forced: at an amount, or with None as never billed.

        Return the limits that are passed then; none for None. With the last reservation of the
        owner, the proof of its death is removed. Raise `HoldAlive` while the owner is not proven
        dead, unless `insist`: for an owner on a machine that is gone, or one whose lock file was
        lost. Raise `ReservationClosed` if it is closed already, and `NegativeAmount` if a figure is
        below zero.
        """
        if not insist and not self._owners.proven_dead(hold.owner):
            raise HoldAlive(run=hold.run, intent=hold.intent, owner=hold.owner)
        with self._file.writing(forced=True) as db:
            if settle_at is None:
                self.release(db, run=hold.run, intent=hold.intent)
                breaches = []
            else:
                breaches = self.settle(db, run=hold.run, intent=hold.intent, actual=settle_at)
        if not self._has_reservations(hold.owner):
            self._owners.bury(hold.owner)
        return breaches

    # -- inside ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _transaction(self, within: Transaction | None) -> Iterator[sqlite3.Connection]:
        """Use the given transaction, or run one."""
        if within is not None:
            yield sqlite_of(within)
            return
        with self._file.writing(forced=False) as db:
            yield db

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        """Give the database as it is at one moment; None if no scope was ever declared."""
        with self._file.reading() as db, self._report_damage():
            # One read transaction, so that all statements see the same meters and scopes.
            db.execute("BEGIN")
            try:
                yield None if self._version(db) is None else db
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

    @contextlib.contextmanager
    def _report_damage(self) -> Iterator[None]:
        try:
            yield
        except rows.Damaged as error:
            raise LedgerCorrupt(where=self._file.where, why=str(error)) from error

    def _version(self, db: sqlite3.Connection) -> int | None:
        if self._recognized:
            return rows.FORMAT
        found = rows.version(db)
        if found is None:
            return None
        if found != rows.FORMAT:
            raise ScopesFormatUnknown(where=self._file.where, found=found, known=rows.FORMAT)
        self._recognized = True
        return rows.FORMAT

    def _put_scope(self, db: sqlite3.Connection, scope: Scope, budget: Budget) -> None:
        known = rows.scope_of(db, scope.id)
        if known is None:
            around = None if scope.parent is None else self._require_scope(db, scope.parent)
            check_place(scope.id, scope.kind, within=None if around is None else around.kind)
            rows.insert_scope(db, scope, budget)
            return
        if (known.parent, known.kind) != (scope.parent, scope.kind):
            why = f"it is a {known.kind} in {known.parent!r}, and stays one"
            raise InvalidScope(scope=scope.id, why=why)
        rows.rename(db, scope.id, scope.name)
        (row,) = rows.scope_rows(db, only=[known])
        if row.limit != budget:
            rows.change_limits(db, scope.id, before=row.limit, after=budget, now_ms=self._clock())

    def _require_scope(self, db: sqlite3.Connection, scope: str) -> Scope:
        found = rows.scope_of(db, scope)
        if found is None:
            raise ScopeUnknown(scope=scope)
        return found

    def _chain(self, db: sqlite3.Connection, scope: str) -> tuple[Scope, ...]:
        """Return a scope and those around it. Raise `ScopeUnknown` if it is not declared.

        Raise `Damaged` if a row is. The result is cached: a scope is never moved or removed.
        """
        chain = self._chains.get(scope)
        if chain is None:
            if self._version(db) is None:
                raise ScopeUnknown(scope=scope)
            chain = tuple(rows.chain_of(db, self._require_scope(db, scope)))
            self._chains[scope] = chain
        return chain

    def _require_hold(self, db: sqlite3.Connection, run: str, intent: int) -> HoldRow:
        there = self._version(db) is not None
        found = rows.hold_rows(db, run=run, intent=intent) if there else []
        if not found:
            raise ReservationClosed(what=f"what run {run} held for intent {intent}")
        return found[0]

    def _close(self, db: sqlite3.Connection, hold: HoldRow, actual: Amount) -> list[Breach]:
        rows.delete_hold(db, hold)
        return _record(db, self._chain(db, hold.scope), held=hold.amount, actual=actual)

    def _has_reservations(self, owner: str) -> bool:
        with self._reading() as db:
            return db is not None and bool(rows.hold_rows(db, owner=owner))


def _record(
    db: sqlite3.Connection, chain: Sequence[Scope], *, held: Amount, actual: Amount
) -> list[Breach]:
    rows.settle(db, chain, held=figures_of(held), spent=figures_of(actual))
    if actual.usd is None:
        rows.add_unpriced(db, chain)
    return rows.breaches(db, chain)


def _check_unpriced(found: list[ScopeRow]) -> None:
    for row in found:
        if row.limit.usd is not None:
            raise BudgetUnpriced(scope=row.scope)


def _with_lower_limits(row: ScopeRow, own: Budget) -> ScopeRow:
    """Return the row of a scope for a process whose own limits of it may be lower."""
    return row_of(
        row.scope,
        lower_of(row.limit, own),
        spent=figures_of(row.spent),
        reserved=figures_of(row.reserved),
        unpriced=row.unpriced,
    )


def _check_own_limits(row: ScopeRow, figures: Sequence[int]) -> None:
    refusal = refusal_of(_remaining_by_scope([row]), figures)
    if refusal is not None:
        raise refusal


def _remaining_by_scope(found: list[ScopeRow]) -> list[tuple[int, int, Scope]]:
    return [
        (place, getattr(row.remaining, COUNTED[place]), row.scope)
        for row in found
        for place, _ in caps_of(row.limit)
    ]


def _refusal(found: list[ScopeRow], figures: Sequence[int]) -> BudgetExhausted:
    """Return the error for a reservation that did not fit, from rows without it.

    Raise `Damaged` if it would fit.
    """
    refusal = refusal_of(_remaining_by_scope(found), figures)
    if refusal is None:
        raise rows.Damaged("a meter refuses what it has room for")
    return refusal


def memory_scopes(*, clock: Callable[[], int] = now_ms) -> SharedScopes:
    """Return empty scopes of this process alone."""
    return SharedScopes(MemoryFile(), clock=clock)


_: type[Scopes] = SharedScopes
