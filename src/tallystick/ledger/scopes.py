"""Shared scopes: budgets that several processes hold together, whose owners may die.

Rule 1: the rules are those of the budget tree (`core/budget/tree.py`): a hold is in every enclosing
row or in none, a charge is recorded before it is judged.
Rule 2: methods that take a transaction are part of it: that of the intent for `hold`, that of the
result for `settle` and `release`, so neither can be there without the other. They are for the
ledger's `also`, or for `writing`; with None they make one of their own. The others make their own,
and must not be called inside one.
Rule 3: a hold is never taken away because time has passed. Its owner settles it, or, if the owner
is proven dead, somebody resolves it and says at what.
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
from tallystick.core.budget.tree import caps_of, check_place, exhausted, figures_of, row_of
from tallystick.core.errors import InvalidLimit, LedgerCorrupt, UsageError
from tallystick.ledger import scope_rows as rows
from tallystick.ledger.file import FORMAT
from tallystick.ledger.scope_rows import HoldRow, LimitChange
from tallystick.storage.clock import now_ms
from tallystick.storage.owner import MemoryOwners, Owner, Owners
from tallystick.storage.transaction import Transaction, sqlite_of

# The most of one dimension that one hold may be, so that a thousand of them still fit 64 bits.
HELD_MAX = 1 << 53
_NOTHING = Amount()
_NO_LIMIT = Budget()
_SHARED: tuple[ScopeKind, ...] = ("deployment", "session")


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """An amount that is held, and whether whoever holds it is proven dead."""

    row: HoldRow
    owner_dead: bool


class Scopes(Protocol):
    """The port: budgets that outlive a run, held by owners that may die."""

    def owner(self) -> str:
        """Return the owner that this process holds as, until `close`."""
        ...

    def close(self) -> None:
        """Let go. What this owner still holds is from now on a dead owner's."""
        ...

    def writing(self, *, forced: bool) -> contextlib.AbstractContextManager[Transaction]:
        """Make one transaction of the scopes: all of it, or nothing."""
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
    """A SQLite database with the tables of scopes, and the owners of what is held there."""

    @property
    def where(self) -> str:
        """What errors call it."""
        ...

    def reading(self) -> contextlib.AbstractContextManager[sqlite3.Connection]: ...

    def writing(self, *, forced: bool) -> contextlib.AbstractContextManager[sqlite3.Connection]: ...

    def owners(self) -> Owners: ...


class MemoryFile:
    """A database of this process alone, for scopes that nobody needs afterwards.

    The rules of scopes are conditions on rows, and SQLite has them right. A second set of them, for
    objects in memory, would be another thing to be wrong.
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
    """Deployments and sessions in a database. Closed, it gives up its own holds as dead."""

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
        """The owner that this process holds as, while this object is open."""
        with self._guard:
            if self._owner is None:
                self._owner = self._owners.hold()
            return self._owner.id

    def close(self) -> None:
        """Let go. What this owner still holds is from now on a dead owner's."""
        with self._guard:
            owner, self._owner = self._owner, None
        if owner is not None:
            # If it cannot be told whether something names it, the proof stays.
            named = True
            with contextlib.suppress(Exception):
                named = self._names(owner.id)
            owner.release(remove=not named)

    # -- scopes --------------------------------------------------------------------------------

    def declare(
        self, scope: str, *, parent: str | None, kind: ScopeKind, name: str, budget: Budget
    ) -> None:
        """Make a scope, or give a known one these limits: the new ones win, and it is recorded.

        What is spent and held stays. A scope cannot move to another parent.
        """
        if kind not in _SHARED:
            raise InvalidScope(scope=scope, why=f"a {kind} is not shared; {_SHARED} are")
        wanted = Scope(id=scope, parent=parent, kind=kind, name=name)
        with self._reading() as db:
            if db is not None and rows.scope_of(db, scope) == wanted:
                (row,) = rows.scope_rows(db, only=[wanted])
                if row.limit == budget:
                    return
        with self._file.writing(forced=True) as db, self._undamaged():
            if self._version(db) is None:
                for statement in rows.SCHEMA:
                    db.execute(statement)
            self._put(db, wanted, budget)
        # Its name may be another, and those inside it show it.
        self._chains.clear()

    def record_total(self, scope: str, budget: Budget) -> None:
        """Make this the recorded total of the ledger, unless it has one: that stays as it is.

        Without limits in `budget` nothing is recorded. A total that an earlier version recorded
        binds every process from now on, like any other.
        """
        with self._reading() as db:
            known = db is not None and rows.scope_of(db, scope) is not None
            if db is not None and known:
                (row,) = rows.scope_rows(db, only=[self._required(db, scope)])
                if rows.binds_all(db) and (row.limit != _NO_LIMIT or budget == _NO_LIMIT):
                    return
        if not known and budget == _NO_LIMIT:
            return
        self._write_total(scope, lambda limit: limit if limit != _NO_LIMIT else budget)

    def change_total(
        self, scope: str, change: Callable[[Budget], Budget], *, may_raise: bool
    ) -> ScopeRow:
        """Change the recorded total, and record the change. Returns where it stands then.

        Raises `LimitWouldRise` if a limit becomes higher, or none, and not `may_raise`.
        """

        def checked(before: Budget) -> Budget:
            after = change(before)
            for dimension in DIMENSIONS:
                then, now = getattr(before, dimension), getattr(after, dimension)
                if not may_raise and then is not None and (now is None or now > then):
                    raise LimitWouldRise(dimension=dimension, before=then, after=now)
            return after

        return self._write_total(scope, checked)

    def _write_total(self, scope: str, change: Callable[[Budget], Budget]) -> ScopeRow:
        wanted = Scope(id=scope, parent=None, kind="deployment", name="")
        with self._file.writing(forced=True) as db, self._undamaged():
            if self._version(db) is None:
                for statement in rows.SCHEMA:
                    db.execute(statement)
            if rows.scope_of(db, scope) is None:
                rows.insert_scope(db, wanted, _NO_LIMIT)
            known = self._required(db, scope)
            (row,) = rows.scope_rows(db, only=[known])
            after = change(row.limit)
            if after != row.limit:
                now = self._clock()
                rows.change_limits(db, scope, before=row.limit, after=after, now_ms=now)
            (row,) = rows.scope_rows(db, only=[known])
            return row

    def knows(self, scope: str) -> bool:
        """Return whether a scope was made, by any process until now."""
        # One that is there stays, so only the answer no is looked up again.
        if scope in self._chains:
            return True
        with self._reading() as db:
            if db is None or rows.scope_of(db, scope) is None:
                return False
            self._chain(db, scope)
            return True

    def remaining(self, scope: str, *, own: Budget = _NO_LIMIT) -> Remaining:
        """What is left in each dimension, by the tightest of this scope and those around it.

        `own` are the limits of the scope for this process, where they are lower.
        """
        with self._reading() as db:
            if db is None:
                raise ScopeUnknown(scope=scope)
            chain = self._chain(db, scope)
            first, *further = rows.scope_rows(db, only=chain)
        left = _lowered(first, own).remaining
        for row in further:
            left = tightest(left, row.remaining)
        return left

    def rows(self) -> list[ScopeRow]:
        """Where every scope stands, in the order they were declared."""
        with self._reading() as db:
            return [] if db is None else rows.scope_rows(db)

    def changes(self, scope: str) -> list[LimitChange]:
        """How a scope's limits were changed, the newest last."""
        with self._reading() as db:
            return [] if db is None else rows.changes(db, scope)

    def faults(self, charged: Mapping[str, Amount]) -> list[str]:
        """Return what does not hold of the scopes, a sentence each.

        A meter holds what the reservations in its scope come to, its limit is the one that the last
        change gave it, and it has spent at least what was `charged`, by scope. It may have spent
        more: runs that were removed or pruned stay counted.
        """
        with self._reading() as db:
            if db is None:
                return [f"runs were charged to scope {id!r}, which is not there" for id in charged]
            return rows.faults(db, charged)

    # -- inside somebody's transaction ----------------------------------------------------------

    def writing(self, *, forced: bool) -> contextlib.AbstractContextManager[Transaction]:
        """Make one transaction of the scopes: all of it, or nothing."""
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
        """Hold an amount in a scope and those around it, or refuse and hold nothing.

        `own` are the limits of the scope for this process, where they are lower.
        """
        figures = figures_of(amount)
        for dimension, figure in zip(COUNTED, figures, strict=True):
            if figure > HELD_MAX:
                why = f"an amount is at most {HELD_MAX:,}"
                raise InvalidLimit(field=dimension, given=figure, why=why)
        with self._joined(within) as db, self._undamaged():
            chain = self._chain(db, scope)
            if amount.usd is None and not usd_waived:
                first, *further = rows.scope_rows(db, only=chain)
                _check_unpriced([_lowered(first, own), *further])
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
                _check_own(_lowered(rows.scope_rows(db, only=chain[:1])[0], own), figures)
            if not rows.hold(db, chain, row, figures):
                raise _refusal(rows.scope_rows(db, only=chain), figures)

    def settle(
        self, within: Transaction | None, *, run: str, intent: int, actual: Amount
    ) -> list[Breach]:
        """Put what was really used in the place of what was held; then say what is over."""
        figures_of(actual)
        with self._joined(within) as db, self._undamaged():
            hold = self._held(db, run, intent)
            if actual.usd is None and hold.amount.usd is not None:
                actual = msgspec.structs.replace(actual, usd=hold.amount.usd)
            return self._close(db, hold, actual)

    def release(self, within: Transaction | None, *, run: str, intent: int) -> None:
        """Give back what was held for an attempt that is known to have cost nothing."""
        with self._joined(within) as db, self._undamaged():
            self._close(db, self._held(db, run, intent), _NOTHING)

    def spend(self, within: Transaction | None, *, scope: str, amount: Amount) -> list[Breach]:
        """Record what needed no hold: turns, fuel, time. Then say what is over."""
        figures_of(amount)
        with self._joined(within) as db, self._undamaged():
            return _record(db, self._chain(db, scope), held=_NOTHING, actual=amount)

    # -- what dead owners left ------------------------------------------------------------------

    def holds(self, *, run: str | None = None) -> list[Hold]:
        """What is held now, by whom, and whether that owner is proven dead."""
        with self._reading() as db:
            found = [] if db is None else rows.hold_rows(db, run=run)
        dead = {owner: self._owners.proven_dead(owner) for owner in {row.owner for row in found}}
        return [Hold(row=row, owner_dead=dead[row.owner]) for row in found]

    def resolve(
        self, hold: HoldRow, *, settle_at: Amount | None, insist: bool = False
    ) -> list[Breach]:
        """Close what a dead owner held: at an amount, or with None as never billed.

        Refuses while the owner is not proven dead. `insist` is for whoever knows better: an owner
        on a machine that is gone, or one whose lock file was lost.
        """
        if not insist and not self._owners.proven_dead(hold.owner):
            raise HoldAlive(run=hold.run, intent=hold.intent, owner=hold.owner)
        with self._file.writing(forced=True) as db:
            if settle_at is None:
                self.release(db, run=hold.run, intent=hold.intent)
                breaches = []
            else:
                breaches = self.settle(db, run=hold.run, intent=hold.intent, actual=settle_at)
        if not self._names(hold.owner):
            self._owners.bury(hold.owner)
        return breaches

    # -- inside ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _joined(self, within: Transaction | None) -> Iterator[sqlite3.Connection]:
        """Take part in a transaction, or make one."""
        if within is not None:
            yield sqlite_of(within)
            return
        with self._file.writing(forced=False) as db:
            yield db

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        """The file as it was at one moment, None if no scope was ever declared."""
        with self._file.reading() as db, self._undamaged():
            # Of several statements, all see the same: a meter and its scope belong together.
            db.execute("BEGIN")
            try:
                yield None if self._version(db) is None else db
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

    @contextlib.contextmanager
    def _undamaged(self) -> Iterator[None]:
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

    def _put(self, db: sqlite3.Connection, scope: Scope, budget: Budget) -> None:
        known = rows.scope_of(db, scope.id)
        if known is None:
            around = None if scope.parent is None else self._required(db, scope.parent)
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

    def _required(self, db: sqlite3.Connection, scope: str) -> Scope:
        found = rows.scope_of(db, scope)
        if found is None:
            raise ScopeUnknown(scope=scope)
        return found

    def _chain(self, db: sqlite3.Connection, scope: str) -> tuple[Scope, ...]:
        """A scope and those around it. Kept: a scope is never moved or removed."""
        chain = self._chains.get(scope)
        if chain is None:
            if self._version(db) is None:
                raise ScopeUnknown(scope=scope)
            chain = tuple(rows.chain_of(db, self._required(db, scope)))
            self._chains[scope] = chain
        return chain

    def _held(self, db: sqlite3.Connection, run: str, intent: int) -> HoldRow:
        there = self._version(db) is not None
        found = rows.hold_rows(db, run=run, intent=intent) if there else []
        if not found:
            raise ReservationClosed(what=f"what run {run} held for intent {intent}")
        return found[0]

    def _close(self, db: sqlite3.Connection, hold: HoldRow, actual: Amount) -> list[Breach]:
        rows.delete_hold(db, hold)
        return _record(db, self._chain(db, hold.scope), held=hold.amount, actual=actual)

    def _names(self, owner: str) -> bool:
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


def _lowered(row: ScopeRow, own: Budget) -> ScopeRow:
    """Return where a scope stands for a process whose own limits of it may be lower."""
    return row_of(
        row.scope,
        lower_of(row.limit, own),
        spent=figures_of(row.spent),
        reserved=figures_of(row.reserved),
        unpriced=row.unpriced,
    )


def _check_own(row: ScopeRow, figures: Sequence[int]) -> None:
    refusal = exhausted(_lefts([row]), figures)
    if refusal is not None:
        raise refusal


def _lefts(found: list[ScopeRow]) -> list[tuple[int, int, Scope]]:
    return [
        (place, getattr(row.remaining, COUNTED[place]), row.scope)
        for row in found
        for place, _ in caps_of(row.limit)
    ]


def _refusal(found: list[ScopeRow], figures: Sequence[int]) -> BudgetExhausted:
    """Why a hold did not fit, from rows in which nothing of it is held."""
    refusal = exhausted(_lefts(found), figures)
    if refusal is None:
        raise rows.Damaged("a meter refuses what it has room for")
    return refusal


def memory_scopes(*, clock: Callable[[], int] = now_ms) -> SharedScopes:
    """Return scopes of this process alone, without any yet."""
    return SharedScopes(MemoryFile(), clock=clock)


_: type[Scopes] = SharedScopes
