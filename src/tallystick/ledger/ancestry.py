"""The runs that a run grew from: a fork shares the first entries of another, maybe a fork too."""

from __future__ import annotations

from tallystick.core.chain import Head
from tallystick.core.entry import root_of
from tallystick.core.errors import LedgerCorrupt, RunNotFound
from tallystick.ledger.custody import required
from tallystick.ledger.port import ANCESTORS_MAX, Ancestor, Ledger, find_row
from tallystick.ledger.verify import BadEntry, check_shared, verify

__all__ = ["ancestors_of", "bad_entry_of", "whole_ancestors_of"]


def ancestors_of(ledger: Ledger, run: str) -> tuple[Ancestor, ...]:
    """The runs that a run grew from, the oldest first, each as far as the next one shares it.

    Raises `LedgerCorrupt` if that cannot be known, and `RunNotFound` if one of them is not here.
    """
    found: list[Ancestor] = []
    seen = {run}
    while True:
        first = next(ledger.read(run, stop=1), None)
        root = None if first is None else root_of(first, run=run)
        if isinstance(root, str):
            raise LedgerCorrupt(path=f"run {run}", why=f"entry 0: {root}")
        if root is None or root.fork is None:
            return tuple(reversed(found))
        fork = root.fork
        if fork.parent in seen or len(found) == ANCESTORS_MAX:
            why = f"it has more than {ANCESTORS_MAX} ancestors, or grew from itself"
            raise LedgerCorrupt(path=f"run {run}", why=why)
        seen.add(fork.parent)
        found.append(Ancestor(run=fork.parent, count=fork.count, hash=fork.hash))
        run = fork.parent


def bad_entry_of(ledger: Ledger, run: str) -> BadEntry | None:
    """The first entry that does not hold of a run, or of what it shares with others."""
    bad = verify(ledger, [run]).first_bad
    if bad is not None:
        return bad
    try:
        ancestors = ancestors_of(ledger, run)
    except RunNotFound as error:
        return BadEntry(run=run, seq=0, why=f"what it grew from is not here: {error}")
    except LedgerCorrupt as error:
        return BadEntry(run=run, seq=0, why=error.why)
    found = (check_shared(ledger, each.run, each.head) for each in ancestors)
    return next((each for each in found if each is not None), None)


def whole_ancestors_of(ledger: Ledger, run: str) -> tuple[Ancestor, ...]:
    """The same, of a run that holds and that shares what holds. Raises the same."""
    _check(verify(ledger, [run]).first_bad)
    row = required(find_row(ledger, run), run)
    if row.head.count == 0 and row.head != Head.of_nothing():
        why = "it is to grow from another run, and has no entry yet that says so"
        raise LedgerCorrupt(path=f"run {run}", why=why)
    ancestors = ancestors_of(ledger, run)
    for ancestor in ancestors:
        _check(check_shared(ledger, ancestor.run, ancestor.head))
    return ancestors


def _check(bad: BadEntry | None) -> None:
    if bad is not None:
        raise LedgerCorrupt(path=f"run {bad.run}", why=f"entry {bad.seq}: {bad.why}")
