"""Whether a ledger is what was written: every place, hash and body computed again.

An entry holds if it stands at its place in its run, binds the one before it, and its body is the
one its header binds. A body that was erased is counted and holds. A ledger cannot know that its end
was cut off together with its head; a head kept elsewhere can.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

import msgspec

from tallystick.core.chain import GENESIS, Head
from tallystick.core.entry import check_entry
from tallystick.core.errors import LedgerCorrupt, RunNotFound
from tallystick.ledger.port import Ledger, RunRow, find_row

__all__ = ["BadEntry", "VerifyReport", "check_entry", "verify"]

_NO_HEADS: Mapping[str, Head] = MappingProxyType({})


class BadEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The first entry that does not hold, and why."""

    run: str
    seq: int
    why: str


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was checked. Counting ends at the first entry that does not hold."""

    ok: bool
    runs: int
    entries: int
    erased: int
    first_bad: BadEntry | None


class _Tally:
    """What was seen so far."""

    def __init__(self) -> None:
        self.runs = 0
        self.entries = 0
        self.erased = 0


def verify(
    ledger: Ledger,
    runs: Collection[str] | None = None,
    *,
    heads: Mapping[str, Head] = _NO_HEADS,
) -> VerifyReport:
    """Check runs, all of them by default, in the order of their ids.

    `heads` are heads kept elsewhere, by run: each must still be a part of its chain.
    """
    tally = _Tally()
    bad: BadEntry | None = None
    for run, row in _chosen(ledger, runs, heads):
        if row is None:
            kept = heads[run].count
            bad = BadEntry(run=run, seq=0, why=f"the run is gone; the kept head counts {kept}")
        else:
            bad = _verify_run(ledger, row, heads.get(run), tally)
        if bad is not None:
            break
    return VerifyReport(
        ok=bad is None,
        runs=tally.runs,
        entries=tally.entries,
        erased=tally.erased,
        first_bad=bad,
    )


def _chosen(
    ledger: Ledger, runs: Collection[str] | None, heads: Mapping[str, Head]
) -> list[tuple[str, RunRow | None]]:
    rows = {row.run: row for row in ledger.runs()}
    if runs is None:
        runs = rows.keys() | heads.keys()
    for run in runs:
        if run not in rows and run not in heads:
            raise RunNotFound(run=run)
    return [(run, rows.get(run)) for run in sorted(runs)]


def _verify_run(ledger: Ledger, row: RunRow, kept: Head | None, tally: _Tally) -> BadEntry | None:
    """Walk one chain. This and `check_entry` are the hot loop of a verify."""
    run = row.run
    heads = [(row.head, "the run's head"), (kept or row.head, "the kept head")]
    seq, previous = 0, GENESIS.hex()
    tally.runs += 1
    try:
        why = _disagrees(heads, seq, previous)
        if why is not None:
            return BadEntry(run=run, seq=0, why=why)
        ends = {head.count for head, _ in heads}
        for entry in ledger.read(run):
            why = check_entry(entry, run=run, seq=seq, previous=previous)
            if why is None:
                previous = entry.hash
                if seq + 1 in ends:
                    why = _disagrees(heads, seq + 1, previous)
            if why is not None:
                return BadEntry(run=run, seq=seq, why=why)
            seq += 1
            tally.entries += 1
            tally.erased += entry.body is None
    except LedgerCorrupt as error:
        return BadEntry(run=run, seq=seq, why=error.why)
    except RunNotFound:
        # Listed, and not to be found by its id: removed just now, or its row is out of order.
        gone = find_row(ledger, run) is None
        return None if gone else BadEntry(run=run, seq=seq, why="its run is not found by its id")
    return _check_end(ledger, row, heads, Head(count=seq, hash=previous))


def _disagrees(heads: list[tuple[Head, str]], count: int, found: str) -> str | None:
    for head, whose in heads:
        if head.count == count and head.hash != found:
            return f"the chain does not end here as {whose} says"
    return None


def _check_end(
    ledger: Ledger, row: RunRow, heads: list[tuple[Head, str]], end: Head
) -> BadEntry | None:
    if end.count == row.head.count and all(end.count >= head.count for head, _ in heads):
        return None
    # Elsewhere than the head said: the run is being written or removed just now, or someone was at
    # it who is no ledger. Only the first two change the head in the same transaction.
    now = find_row(ledger, row.run)
    if now is None:
        return None
    for head, whose in heads:
        if end.count < head.count:
            why = f"it is missing: {end.count} entries are there, {whose} counts {head.count}"
            return BadEntry(run=row.run, seq=end.count, why=why)
    if now.head.count > end.count or now.head == end:
        return None
    why = f"it stands behind the end: the run's head counts {now.head.count}"
    return BadEntry(run=row.run, seq=now.head.count, why=why)
