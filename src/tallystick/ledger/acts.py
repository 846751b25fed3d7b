"""The table of acts: what was done to a run beside its chain, so that its row can be checked.

To create a run, move it away, import it or erase its bodies changes rows, but leaves no entry in
the chain. Each such act is also written here, in the same transaction. `verify` compares both: a
mark changed by hand, or a body removed by hand, has no act.

The table is created with the first run, or when this version first changes a ledger of an older
one. Runs that exist by then are noted as `known`: their earlier acts and erasures are not on
record. An older version of this package ignores the table, so runs that it creates have no act, and
`verify` says so.

Nothing protects the acts themselves. Someone who changes both a row and its acts consistently is
not detected here. A head kept elsewhere protects entries only.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, get_args

import msgspec

from tallystick.core.chain import Header
from tallystick.ledger.port import RunRow

FORMAT = 1
# Acts that decide who owns a run. A `shared` run is the part of an ancestor imported with a fork.
Custody = Literal["created", "known", "released", "adopted", "copied", "shared"]
Kind = Literal[Custody, "erased"]
_KINDS = (*get_args(Custody), "erased")
_SCHEMA = (
    "CREATE TABLE act_format (version INTEGER NOT NULL)",
    # `fence`, `moved` and `imported` are those of the run's row after the act. `first` and `last`
    # are the places of erased bodies.
    """CREATE TABLE act (
        run TEXT NOT NULL, kind TEXT NOT NULL, fence INTEGER NOT NULL, moved INTEGER NOT NULL,
        imported INTEGER NOT NULL, first INTEGER, last INTEGER
    )""",
    "CREATE INDEX act_run ON act (run)",
    f"INSERT INTO act_format VALUES ({FORMAT})",
    """INSERT INTO act SELECT id, 'known', fence, moved, imported, NULL, NULL FROM run""",
)
_COLUMNS = "run, kind, fence, moved, imported, first, last"
_RUN_PRUNED = "run.pruned"
_decode_header = msgspec.json.Decoder(Header).decode


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """One act. `first` and `last` are positions if bodies were erased, else None."""

    run: str
    kind: Kind
    fence: int
    moved: bool
    imported: bool
    first: int | None = None
    last: int | None = None


class BadAct(Exception):
    """A row of the table has values that no act has."""


def prepare(db: sqlite3.Connection) -> None:
    """Create the table if it is missing, with a `known` act for each run in the file.

    Call it in a transaction, before the rows of runs are changed.
    """
    if not is_there(db):
        for statement in _SCHEMA:
            db.execute(statement)


def is_there(db: sqlite3.Connection) -> bool:
    """Return True if the file has the table."""
    found = db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'act'")
    return found.fetchone() is not None


def add(db: sqlite3.Connection, row: RunRow, kind: Custody) -> None:
    """Record the act that brought a run's row to its present values.

    `row` is the row after the act.
    """
    db.execute(
        "INSERT INTO act VALUES (?, ?, ?, ?, ?, NULL, NULL)",
        (row.run, kind, row.fence, row.moved, row.imported),
    )


def add_erased(db: sqlite3.Connection, row: RunRow, seqs: Iterable[int]) -> None:
    """Record the positions of erased bodies, one act for each range.

    Nothing is written for no positions.
    """
    db.executemany(
        "INSERT INTO act VALUES (?, 'erased', ?, ?, ?, ?, ?)",
        [
            (row.run, row.fence, row.moved, row.imported, first, last)
            for first, last in ranges_of(seqs)
        ],
    )


def remove(db: sqlite3.Connection, run: str) -> None:
    """Remove the acts of a run. The table must be there."""
    db.execute("DELETE FROM act WHERE run = ?", (run,))


def all_acts(db: sqlite3.Connection) -> dict[str, list[Act]] | None:
    """Return all acts by run, each list in the order of the acts; None if the file has no table.

    A run without an act is not in the result. Raise `BadAct` if a row has values that no act has.
    """
    if not is_there(db):
        return None
    found: dict[str, list[Act]] = {}
    # Verification must not depend on the index, which may be damaged itself.
    for row in db.execute(f"SELECT {_COLUMNS} FROM act NOT INDEXED ORDER BY rowid"):
        act = _as_act(row)
        found.setdefault(act.run, []).append(act)
    return found


def is_pruned_entry(header: bytes) -> bool:
    """Return True if this is the header of a `run.pruned` entry; False if it cannot be read."""
    try:
        return _decode_header(header).tag == _RUN_PRUNED
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False


def ranges_of(seqs: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield positions as ranges in ascending order, each as its first and last position.

    The positions may come in any order, and more than once.
    """
    first = last = None
    for seq in sorted(set(seqs)):
        if first is None or last is None:
            first = last = seq
        elif seq == last + 1:
            last = seq
        else:
            yield first, last
            first = last = seq
    if first is not None and last is not None:
        yield first, last


def latest_custody(acts: Sequence[Act]) -> Act | None:
    """Return the last act that decides who owns a run; None if all of them are `erased`."""
    return next((act for act in reversed(acts) if act.kind != "erased"), None)


def _as_act(found: tuple[Any, ...]) -> Act:
    run, kind, fence, moved, imported, first, last = found
    places = (first, last)
    if not (
        isinstance(run, str)
        and kind in _KINDS
        and isinstance(fence, int)
        and moved in (0, 1)
        and imported in (0, 1)
        and (
            all(type(each) is int for each in places)
            if kind == "erased"
            else places == (None, None)
        )
    ):
        raise BadAct(f"an act of run {run!r} holds a value that is never written there")
    return Act(
        run=run,
        kind=kind,
        fence=fence,
        moved=bool(moved),
        imported=bool(imported),
        first=first,
        last=last,
    )
