"""The tables of shared scopes in the ledger's file: scopes, their meters, and reservations.

The tables are created when the first scope is declared, beside those of the ledger and independent
of them. Versions of this package that would spend beyond a recorded total refuse the format of the
file.

A meter is one dimension of one scope: its ceiling, what is spent, what is held (reserved). To
reserve is to update each meter on the condition that it has room, in the transaction that records
the intent. So any number of processes cannot reserve more than the ceiling together.

Spent figures stop growing at a number above any ceiling. A provider may claim any number, and
SQLite would store what does not fit 64 bits as a float.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import msgspec

from tallystick.core.budget.amount import (
    COUNTED,
    DIMENSIONS,
    LIMIT_MAX,
    Amount,
    Breach,
    Budget,
    Scope,
    ScopeKind,
    ScopeRow,
)
from tallystick.core.budget.tree import figures_of, row_of
from tallystick.ledger.file import FORMAT_WITH_TOTAL

FORMAT = 1
_FULL = LIMIT_MAX + 1
# A chain of shared scopes has at most two (a session in a deployment). This limit ends the walk
# along a damaged one that forms a cycle.
_DEPTH_MAX = 8
SCHEMA = (
    "CREATE TABLE budget_format (version INTEGER NOT NULL)",
    """CREATE TABLE budget_scope (
        id TEXT PRIMARY KEY, parent TEXT, kind TEXT NOT NULL, name TEXT NOT NULL,
        unpriced INTEGER NOT NULL
    )""",
    """CREATE TABLE budget_meter (
        scope TEXT NOT NULL, dimension TEXT NOT NULL, ceiling INTEGER,
        spent INTEGER NOT NULL CHECK (typeof(spent) = 'integer'),
        held INTEGER NOT NULL CHECK (typeof(held) = 'integer' AND held >= 0),
        PRIMARY KEY (scope, dimension)
    ) WITHOUT ROWID""",
    """CREATE TABLE budget_hold (
        run TEXT NOT NULL, intent INTEGER NOT NULL, scope TEXT NOT NULL, owner TEXT NOT NULL,
        held_at INTEGER NOT NULL, amount BLOB NOT NULL, PRIMARY KEY (run, intent)
    )""",
    """CREATE TABLE budget_change (
        scope TEXT NOT NULL, changed_at INTEGER NOT NULL, before BLOB NOT NULL, after BLOB NOT NULL
    )""",
    f"INSERT INTO budget_format VALUES ({FORMAT})",
)
_HELD = """UPDATE budget_meter SET held = held + :held
    WHERE scope = :scope AND dimension = :dimension
    AND (ceiling IS NULL OR spent + held + :held <= ceiling)"""
_SETTLED = f"""UPDATE budget_meter SET held = held - :held, spent = min(spent + :spent, {_FULL})
    WHERE scope = :scope AND dimension = :dimension"""
_METERS = "SELECT scope, dimension, ceiling, spent, held FROM budget_meter WHERE scope IN"
_KINDS = get_args(ScopeKind)
_encode = msgspec.json.Encoder().encode
_decode_amount = msgspec.json.Decoder(Amount).decode
_decode_budget = msgspec.json.Decoder(Budget).decode


class Damaged(Exception):
    """A row has values that are never written. The caller knows the file's name and reports it."""


class HoldRow(msgspec.Struct, frozen=True, kw_only=True):
    """An amount reserved for one intent of a run, in a scope and all around it."""

    run: str
    intent: int
    scope: str
    owner: str
    held_at_ms: int
    amount: Amount


class LimitChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a scope's limits by a later declaration."""

    scope: str
    changed_at_ms: int
    before: Budget
    after: Budget


def version(db: sqlite3.Connection) -> object:
    """Return the format of the tables; None if there are none.

    A list is returned if the table of formats has not exactly one row.
    """
    (found,) = db.execute(
        "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'budget_format'"
    ).fetchone()
    if not found:
        return None
    versions = [each for (each,) in db.execute("SELECT version FROM budget_format")]
    return versions[0] if len(versions) == 1 else versions


# -- scopes and their meters ---------------------------------------------------------------------


def scope_of(db: sqlite3.Connection, id: str) -> Scope | None:
    """Return a scope; None if it is not declared. Raise `Damaged` if its row is."""
    found = db.execute(
        "SELECT id, parent, kind, name FROM budget_scope WHERE id = ?", (id,)
    ).fetchone()
    return None if found is None else _as_scope(found)


def chain_of(db: sqlite3.Connection, scope: Scope) -> list[Scope]:
    """Return a scope and those around it, the outermost last.

    Raise `Damaged` if one is missing or damaged, or if there are more than `_DEPTH_MAX`.
    """
    chain = [scope]
    while (parent := chain[-1].parent) is not None:
        around = scope_of(db, parent)
        if around is None or len(chain) == _DEPTH_MAX:
            raise Damaged(f"the scopes around {scope.id!r} are missing, or enclose each other")
        chain.append(around)
    return chain


def insert_scope(db: sqlite3.Connection, scope: Scope, limit: Budget) -> None:
    """Add a scope with unused meters. The caller has checked its parent, and that it is new."""
    db.execute(
        "INSERT INTO budget_scope VALUES (?, ?, ?, ?, 0)",
        (scope.id, scope.parent, scope.kind, scope.name),
    )
    db.executemany(
        "INSERT INTO budget_meter VALUES (?, ?, ?, 0, 0)",
        [(scope.id, dimension, getattr(limit, dimension)) for dimension in DIMENSIONS],
    )


def rename(db: sqlite3.Connection, id: str, name: str) -> None:
    """Set the name of a scope, which people see. Nothing is changed if it is not declared."""
    db.execute("UPDATE budget_scope SET name = ? WHERE id = ?", (name, id))


def change_limits(
    db: sqlite3.Connection, id: str, *, before: Budget, after: Budget, now_ms: int
) -> None:
    """Give a scope other ceilings, and record both the old and the new ones."""
    db.executemany(
        "UPDATE budget_meter SET ceiling = ? WHERE scope = ? AND dimension = ?",
        [(getattr(after, dimension), id, dimension) for dimension in DIMENSIONS],
    )
    db.execute(
        "INSERT INTO budget_change VALUES (?, ?, ?, ?)",
        (id, now_ms, _encode(before), _encode(after)),
    )


def is_total_binding(db: sqlite3.Connection) -> bool:
    """Return True if every version of this package that can open the file respects a total."""
    (found,) = db.execute("PRAGMA user_version").fetchone()
    return bool(found >= FORMAT_WITH_TOTAL)


def changes(db: sqlite3.Connection, id: str) -> list[LimitChange]:
    """Return the changes of a scope's limits, the newest last.

    Raise `Damaged` if one cannot be read.
    """
    rows = db.execute(
        "SELECT scope, changed_at, before, after FROM budget_change WHERE scope = ? ORDER BY rowid",
        (id,),
    )
    return [_as_change(row) for row in rows]


def scope_rows(db: sqlite3.Connection, *, only: Sequence[Scope] | None = None) -> list[ScopeRow]:
    """Return the rows of all scopes in the order they were declared, or of `only` these.

    Raise `Damaged` if a scope or a meter is.
    """
    if only is None:
        found = db.execute("SELECT id, parent, kind, name FROM budget_scope ORDER BY rowid")
        only = [_as_scope(row) for row in found.fetchall()]
    return [_scope_row(db, scope) for scope in only]


def breaches(db: sqlite3.Connection, chain: Sequence[Scope]) -> list[Breach]:
    """Return every limit that is passed by what is spent, of the innermost scope first.

    What is reserved does not count. Exactly at a limit is not passed.
    """
    passed = {
        (scope, dimension): (limit, spent)
        for scope, dimension, limit, spent, _ in _meters(db, chain, "AND spent > ceiling")
    }
    return [
        Breach(scope=scope, dimension=dimension, limit=limit, spent=spent)
        for scope in chain
        for dimension in COUNTED
        for limit, spent in [passed.get((scope.id, dimension), (0, 0))]
        if spent > limit
    ]


def settle(
    db: sqlite3.Connection, chain: Sequence[Scope], *, held: Sequence[int], spent: Sequence[int]
) -> None:
    """Subtract figures from what is held in every scope, and add others to what is spent.

    What is spent stops at `_FULL`. Limits are not checked. The figures are in the order of
    `COUNTED`.
    """
    db.executemany(
        _SETTLED,
        [
            {"scope": scope.id, "dimension": dimension, "held": less, "spent": min(more, _FULL)}
            for scope in chain
            for dimension, less, more in zip(COUNTED, held, spent, strict=True)
            if less or more
        ],
    )


def add_unpriced(db: sqlite3.Connection, chain: Sequence[Scope]) -> None:
    """Count one call without a known price in every scope."""
    db.executemany(
        "UPDATE budget_scope SET unpriced = unpriced + 1 WHERE id = ?",
        [(scope.id,) for scope in chain],
    )


# -- reservations --------------------------------------------------------------------------------


def held_by(db: sqlite3.Connection, run: str, intent: int) -> bool:
    """Return True if an intent has a reservation."""
    found = db.execute("SELECT 1 FROM budget_hold WHERE run = ? AND intent = ?", (run, intent))
    return found.fetchone() is not None


def hold(
    db: sqlite3.Connection, chain: Sequence[Scope], row: HoldRow, figures: Sequence[int]
) -> bool:
    """Reserve figures in every meter of every scope and return True, or return False for no room.

    There is no room in a scope that is over any of its limits, even one that is not asked for. If
    one meter has no room, nothing is reserved: a savepoint is undone, so that the caller may use
    the transaction after a refusal. The intent must not have a reservation yet.
    """
    wanted = [
        {"scope": scope.id, "dimension": dimension, "held": figure}
        for scope in chain
        for dimension, figure in zip(COUNTED, figures, strict=True)
        if figure
    ]
    db.execute("SAVEPOINT budget_hold")
    try:
        # A scope that is over any of its limits has to stop, even if this asks nothing of that one.
        over = _meters(db, chain, "AND spent + held > ceiling LIMIT 1")
        held = not over and db.executemany(_HELD, wanted).rowcount == len(wanted)
        if held:
            db.execute(
                "INSERT INTO budget_hold VALUES (?, ?, ?, ?, ?, ?)",
                (row.run, row.intent, row.scope, row.owner, row.held_at_ms, _encode(row.amount)),
            )
        else:
            db.execute("ROLLBACK TO budget_hold")
    finally:
        # After an error that ended the transaction there is no savepoint left.
        if db.in_transaction:
            db.execute("RELEASE budget_hold")
    return held


def hold_rows(
    db: sqlite3.Connection,
    *,
    run: str | None = None,
    intent: int | None = None,
    owner: str | None = None,
) -> list[HoldRow]:
    """Return reservations in the order they were made: all, or those that fit every given argument.

    Raise `Damaged` if one cannot be read.
    """
    wanted: dict[str, object] = {"run": run, "intent": intent, "owner": owner}
    chosen = {column: value for column, value in wanted.items() if value is not None}
    where = " AND ".join(f"{column} = ?" for column in chosen) or "1"
    rows = db.execute(
        "SELECT run, intent, scope, owner, held_at, amount FROM budget_hold "
        f"WHERE {where} ORDER BY rowid",
        tuple(chosen.values()),
    )
    return [_as_hold(row) for row in rows.fetchall()]


def delete_hold(db: sqlite3.Connection, hold: HoldRow) -> None:
    """Delete a reservation. The meters stay as they are: `settle` changes them."""
    db.execute("DELETE FROM budget_hold WHERE run = ? AND intent = ?", (hold.run, hold.intent))


# -- consistency of the tables -------------------------------------------------------------------


def faults(db: sqlite3.Connection, charged: Mapping[str, Amount]) -> list[str]:
    """Return the contradictions between meters, limits and reservations, a sentence each.

    `charged` is the least that each scope must have spent, by id. Raise `Damaged` if a row cannot
    be read.
    """
    found = []
    reserved: dict[str, list[int]] = {}
    for hold in hold_rows(db):
        scope = scope_of(db, hold.scope)
        if scope is None:
            found.append(
                f"run {hold.run} has a reservation in scope {hold.scope!r}, which is not there"
            )
            continue
        for each in chain_of(db, scope):
            sums = reserved.setdefault(each.id, [0] * len(COUNTED))
            sums[:] = [a + b for a, b in zip(sums, figures_of(hold.amount), strict=True)]
    known = scope_rows(db)
    for id in charged.keys() - {row.scope.id for row in known}:
        found.append(f"runs were charged to scope {id!r}, which is not there")
    for row in known:
        found += _meter_faults(row, reserved.get(row.scope.id), charged.get(row.scope.id))
        found += _limit_faults(row, changes(db, row.scope.id))
    return found


def _meter_faults(
    row: ScopeRow, reserved: Sequence[int] | None, charged: Amount | None
) -> list[str]:
    found = []
    sums = reserved or [0] * len(COUNTED)
    least = [0] * len(COUNTED) if charged is None else figures_of(charged)
    for dimension, held_sum, spent_least in zip(COUNTED, sums, least, strict=True):
        # Read one by one: `figures_of` would raise for a negative figure, which is a fault to
        # report here.
        held = getattr(row.reserved, dimension)
        spent = getattr(row.spent, dimension)
        if held != held_sum:
            found.append(
                f"scope {row.scope.id!r} holds {held:,} of {dimension}, and its reservations come "
                f"to {held_sum:,}"
            )
        if spent < min(spent_least, _FULL):
            found.append(
                f"scope {row.scope.id!r} has spent {spent:,} of {dimension}, and the records of "
                f"its runs charge {spent_least:,}"
            )
    return found


def _limit_faults(row: ScopeRow, changed: Sequence[LimitChange]) -> list[str]:
    followed = [*(change.before for change in changed[1:]), row.limit]
    if not changed or [change.after for change in changed] == followed:
        return []
    return [f"the limit of scope {row.scope.id!r} is not the one that its last change gave it"]


# -- rows as values ------------------------------------------------------------------------------


def _meters(db: sqlite3.Connection, chain: Sequence[Scope], which: str) -> list[tuple[Any, ...]]:
    places = ", ".join("?" * len(chain))
    ids = [scope.id for scope in chain]
    return db.execute(f"{_METERS} ({places}) {which}", ids).fetchall()


def _scope_row(db: sqlite3.Connection, scope: Scope) -> ScopeRow:
    meters: dict[object, tuple[int | None, int, int]] = {
        dimension: (ceiling, spent, held)
        for _, dimension, ceiling, spent, held in _meters(db, [scope], "")
    }
    (unpriced,) = db.execute(
        "SELECT unpriced FROM budget_scope WHERE id = ?", (scope.id,)
    ).fetchone()
    figures = [unpriced, *(figure for _, *figures in meters.values() for figure in figures)]
    if meters.keys() != set(DIMENSIONS) or not all(type(each) is int for each in figures):
        raise Damaged(
            f"the meters of scope {scope.id!r} are missing, or hold a value that is never written "
            f"there"
        )
    try:
        limit = msgspec.convert({each: meters[each][0] for each in DIMENSIONS}, Budget)
    except msgspec.ValidationError as error:
        raise Damaged(f"a limit of scope {scope.id!r} is not a valid limit: {error}") from error
    return row_of(
        scope,
        limit,
        spent=[meters[each][1] for each in COUNTED],
        reserved=[meters[each][2] for each in COUNTED],
        unpriced=unpriced,
    )


def _as_scope(found: tuple[Any, ...]) -> Scope:
    id, parent, kind, name = found
    if not (
        isinstance(id, str)
        and isinstance(parent, str | None)
        and kind in _KINDS
        and isinstance(name, str)
    ):
        raise Damaged(f"the row of scope {id!r} holds a value that is never written there")
    return Scope(id=id, parent=parent, kind=kind, name=name)


def _as_hold(found: tuple[Any, ...]) -> HoldRow:
    run, intent, scope, owner, held_at, amount = found
    what = f"what is held for intent {intent!r} of run {run!r}"
    texts, numbers = (run, scope, owner), (intent, held_at)
    if not all(isinstance(each, str) for each in texts) or not all(
        isinstance(each, int) for each in numbers
    ):
        raise Damaged(f"{what} is in a row that holds a value that is never written there")
    try:
        decoded = _decode_amount(amount)
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as error:
        raise Damaged(f"{what} cannot be read") from error
    return HoldRow(
        run=run, intent=intent, scope=scope, owner=owner, held_at_ms=held_at, amount=decoded
    )


def _as_change(found: tuple[Any, ...]) -> LimitChange:
    scope, changed_at, before, after = found
    try:
        return LimitChange(
            scope=scope,
            changed_at_ms=changed_at,
            before=_decode_budget(before),
            after=_decode_budget(after),
        )
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as error:
        raise Damaged(f"a change of the limits of scope {scope!r} cannot be read") from error
