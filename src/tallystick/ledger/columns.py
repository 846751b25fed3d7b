"""The columns by which runs are found in a ledger's file, and the upgrade of an older file.

A file of an earlier version gets the columns in one transaction, with the first write of this one.
Each run is read at its two ends for that. Until then, and always on a disk that cannot be written,
reading takes the same facts from the entries, run by run.

Each index holds only the rows that its question selects. The columns it covers stay the same during
most appends, so most appends change no index.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tallystick.core.chain import Head, Sealed
from tallystick.ledger.facts import (
    FACTS,
    Tagged,
    deciding_positions,
    row_after_entries,
    tagged_entry,
)
from tallystick.ledger.port import OPEN_STOPS, RunFilter, RunRow

# The columns that this version adds to those of every version.
COLUMNS = ("owner", *FACTS)
BASE = "id, created_at, count, hash, fence, moved, imported"
_OPEN = f"steps = 0 AND (stop IS NULL OR stop IN ({', '.join(map(repr, OPEN_STOPS))}))"
# For each question that `RunFilter` asks: the index with the answer, its column, the rows in it.
_INDEXES = (
    ("parent", "run_parent", "parent", "parent IS NOT NULL"),
    ("caller", "run_caller", "caller", "caller IS NOT NULL"),
    ("session", "run_session", "session", "session IS NOT NULL"),
    ("grown_from", "run_grown_from", "grown_from", "grown_from IS NOT NULL"),
    ("open_only", "run_open", "id", _OPEN),
    ("outermost", "run_outermost", "id", "caller IS NULL"),
    ("inside", "run_inside", "id", "caller IS NOT NULL"),
    ("unerased", "run_unerased", "id", "erased = 0"),
)
SCHEMA = (
    "ALTER TABLE run ADD COLUMN owner TEXT",
    "ALTER TABLE run ADD COLUMN steps INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE run ADD COLUMN parent TEXT",
    "ALTER TABLE run ADD COLUMN caller TEXT",
    "ALTER TABLE run ADD COLUMN session TEXT",
    "ALTER TABLE run ADD COLUMN grown_from TEXT",
    "ALTER TABLE run ADD COLUMN stop TEXT",
    "ALTER TABLE run ADD COLUMN started_at INTEGER",
    "ALTER TABLE run ADD COLUMN ended_at INTEGER",
    "ALTER TABLE run ADD COLUMN erased INTEGER NOT NULL DEFAULT 0",
    *(f"CREATE INDEX {name} ON run ({column}) WHERE {rows}" for _, name, column, rows in _INDEXES),
    "CREATE INDEX run_unwritten ON run (id) WHERE count = 0",
)
_TYPES = (str, int, *(str,) * 5, int, int, int)
_ENTRIES = """
    SELECT entry.seq, entry.header, body.seq, body.body FROM entry
    LEFT JOIN body ON body.run = entry.run AND body.seq = entry.seq
    WHERE entry.run = ? AND entry.seq IN ({}) ORDER BY entry.seq
"""
# A character that sorts after every other, so that `prefix + _LAST` ends the range of a prefix.
_LAST = "\U0010ffff"


def add_columns(db: sqlite3.Connection) -> None:
    """Add the columns to the file of an earlier version, and fill them from the entries.

    Call it in a transaction. A row whose id or count has a wrong type keeps empty columns.
    """
    for statement in SCHEMA:
        db.execute(statement)
    assigned = ", ".join(f"{each} = ?" for each in COLUMNS)
    for found in db.execute(f"SELECT {BASE} FROM run").fetchall():
        # A damaged row stays as it is, and is reported when it is read.
        if type(found[0]) is str and type(found[2]) is int:
            row = with_facts(db, base_row(found))
            db.execute(f"UPDATE run SET {assigned} WHERE id = ?", (*values_of(row), row.run))


def base_row(found: Sequence[Any]) -> RunRow:
    """Return a row from the columns that every version has. A hash of another type becomes "".

    The other values are taken as they are.
    """
    run, created_at, count, entry_hash, fence, moved, imported = found
    return RunRow(
        run=run,
        head=Head(count=count, hash=entry_hash.hex() if type(entry_hash) is bytes else ""),
        fence=fence,
        created_at=created_at,
        moved=bool(moved),
        imported=bool(imported),
    )


def with_facts(db: sqlite3.Connection, row: RunRow) -> RunRow:
    """Return the row of a file without these columns, completed with the facts in its entries.

    Reads the entries that `deciding_positions` names. One that is missing or damaged changes no
    fact.
    """
    return row_after_entries(row, _end_entries(db, row))


def _end_entries(db: sqlite3.Connection, row: RunRow) -> Iterator[Tagged]:
    places = deciding_positions(row.head.count)
    marks = ", ".join("?" * len(places))
    for _, header, place, body in db.execute(_ENTRIES.format(marks), (row.run, *places)).fetchall():
        if type(header) is not bytes:
            continue
        # A lost or damaged body must not count as erased; an empty one changes no fact.
        known = body if place is not None and isinstance(body, bytes | None) else b""
        yield tagged_entry(Sealed(header=header, hash="", salt=None, body=known))


def values_of(row: RunRow) -> tuple[Any, ...]:
    """Return the values of `COLUMNS` for a row."""
    return tuple(getattr(row, each) for each in COLUMNS)


def with_columns(row: RunRow, found: Sequence[Any]) -> RunRow | None:
    """Return a row with the values of its columns, given in the order of `COLUMNS`.

    Return None if one has a type that is never written.
    """
    owner, steps, *texts, started_at, ended_at, erased = found
    plain = zip(found, _TYPES, strict=True)
    if not all(type(value) is kind or value is None for value, kind in plain):
        return None
    if steps is None or erased is None:
        return None
    parent, caller, session, grown_from, stop = texts
    return msgspec.structs.replace(
        row,
        owner=owner,
        steps=bool(steps),
        parent=parent,
        caller=caller,
        session=session,
        grown_from=grown_from,
        stop=stop,
        started_at=started_at,
        ended_at=ended_at,
        erased=bool(erased),
    )


def selection_sql(
    which: RunFilter, *, after: str, skip: int, most: int | None, newest_first: bool
) -> tuple[str, list[object]]:
    """Return the SQL after FROM that selects runs in the order of their ids, and its parameters.

    The index is named: SQLite has no statistics here, and would scan all runs by their ids.
    """
    terms: list[str] = []
    values: list[object] = []
    index = ""
    for asked, name, column, rows in _INDEXES:
        given = getattr(which, asked)
        if given is None or given is False:
            continue
        # One index serves a statement. The first given condition chooses it, and SQLite compares
        # the others row by row.
        index = index or name
        if given is True:
            terms.append(rows)
        else:
            terms.append(f"{column} = ?")
            values.append(given)
    if which.prefix:
        terms.append("id >= ? AND id < ?")
        values += [which.prefix, which.prefix + _LAST]
        # The key of the table itself: a prefix selects few rows, and an index on another column
        # cannot find a range of ids.
        index = ""
    if after:
        terms.append("id < ?" if newest_first else "id > ?")
        values.append(after)
    text = f"run INDEXED BY {index}" if index else "run"
    if terms:
        text += f" WHERE {' AND '.join(terms)}"
    text += f" ORDER BY id{' DESC' if newest_first else ''}"
    if most is not None or skip:
        text += " LIMIT ? OFFSET ?"
        # SQLite has no OFFSET without a LIMIT; -1 is none.
        values += [-1 if most is None else most, skip]
    return text, values
