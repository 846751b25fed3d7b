"""Verify a ledger: that each entry is at its place, and that its hash and its body are right.

An entry is valid if it is at its place in its run, binds the one before it, and its body is the one
that its header binds. An erased body is counted and valid. A ledger cannot detect that its end was
cut off together with its head; a head kept elsewhere detects it.

The first entry of a fork binds the last one that it shares, and names its run and position. If that
run is here, it must have that very entry there; if not, a note says so. Shared entries are checked
with the run that they belong to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

import msgspec

from tallystick.core.chain import GENESIS, Head, Sealed, check_entry, root_of
from tallystick.core.errors import LedgerCorrupt, RunNotFound
from tallystick.core.records import RunForked
from tallystick.ledger.custody import require_row
from tallystick.ledger.port import ANCESTORS_MAX, Ancestor, Ledger, RunRow

_NO_HEADS: Mapping[str, Head] = MappingProxyType({})


class BadEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The first entry that is not valid, and why."""

    run: str
    seq: int
    why: str


class BadRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An invalid row beside the chains, and why. `run` is the run that it concerns."""

    what: str
    why: str
    run: str | None = None


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a verification. Counting ends at the first entry that is not valid.

    `notes` lists what could not be checked, a line each: forks of runs that are not here.
    `bad_rows` are faults beside the chains, `not_covered` the checks that the format of the ledger
    does not cover. `tallystick.upkeep.audit` fills in both.
    """

    ok: bool
    runs: int
    entries: int
    erased: int
    first_bad: BadEntry | None
    notes: tuple[str, ...] = ()
    bad_rows: tuple[BadRow, ...] = ()
    not_covered: tuple[str, ...] = ()


# Called with each valid entry: its run, its position, and the entry.
Visit = Callable[[str, int, Sealed], None]


class _Counts:
    """Counts and notes gathered during a verification."""

    def __init__(self, visit: Visit | None = None) -> None:
        self.visit = visit
        self.runs = 0
        self.entries = 0
        self.erased = 0
        self.notes: list[str] = []


def verify_ledger(
    ledger: Ledger,
    runs: Collection[str] | None = None,
    *,
    heads: Mapping[str, Head] = _NO_HEADS,
    visit: Visit | None = None,
) -> VerifyReport:
    """Check runs, all of them by default, in the order of their ids, up to the first bad entry.

    `heads` are heads kept elsewhere, by run: each must still be a part of its chain, and a run that
    is gone is reported as a bad entry. With `runs`, heads of other runs are ignored. `visit` is
    called with each valid entry, in order. Raise `RunNotFound` if a run in `runs` is neither here
    nor in `heads`.
    """
    tally = _Counts(visit)
    bad: BadEntry | None = None
    for run, row in _choose_rows(ledger, runs, heads):
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
        notes=tuple(tally.notes),
    )


def check_shared(ledger: Ledger, run: str, shared: Head) -> BadEntry | None:
    """Check the first `shared.count` entries of a run, and that they end in the hash `shared.hash`.

    Return the first entry that is not valid or is missing; None if all are valid. Raise
    `RunNotFound` if the run is not here.
    """
    walk = _Walk(ledger, run, [(shared, "what is shared")], _Counts())
    try:
        why = walk.check_all(shared, stop=shared.count)
    except LedgerCorrupt as error:
        why = error.why
    if why is None and walk.seq < shared.count:
        why = f"it is missing: {walk.seq} entries are there, and {shared.count} are shared"
    return None if why is None else BadEntry(run=run, seq=walk.seq, why=why)


def _choose_rows(
    ledger: Ledger, runs: Collection[str] | None, heads: Mapping[str, Head]
) -> list[tuple[str, RunRow | None]]:
    rows = {row.run: row for row in ledger.runs()}
    if runs is None:
        runs = rows.keys() | heads.keys()
    for run in runs:
        if run not in rows and run not in heads:
            raise RunNotFound(run=run)
    return [(run, rows.get(run)) for run in sorted(runs)]


def _verify_run(ledger: Ledger, row: RunRow, kept: Head | None, tally: _Counts) -> BadEntry | None:
    run = row.run
    heads = [(row.head, "the run's head"), (kept or row.head, "the kept head")]
    walk = _Walk(ledger, run, heads, tally)
    tally.runs += 1
    try:
        why = walk.check_all(row.head)
    except LedgerCorrupt as error:
        why = error.why
    except RunNotFound:
        # Listed, but not found by its id: it was removed just now, or the index is damaged.
        gone = ledger.row(run) is None
        why = None if gone else "its run is not found by its id"
        return None if why is None else BadEntry(run=run, seq=walk.seq, why=why)
    if why is not None:
        return BadEntry(run=run, seq=walk.seq, why=why)
    return _check_end(ledger, row, heads, Head(count=walk.seq, hash=walk.previous))


class _Walk:
    """A walk along one chain. `seq` is the next position, `previous` the hash before it."""

    def __init__(
        self, ledger: Ledger, run: str, heads: list[tuple[Head, str]], tally: _Counts
    ) -> None:
        self._ledger = ledger
        self._run = run
        self._heads = heads
        self._ends = {head.count for head, _ in heads}
        self._tally = tally
        self.seq = 0
        self.previous = GENESIS.hex()

    def check_all(self, head: Head, *, stop: int | None = None) -> str | None:
        """Check every entry up to `stop`.

        Return why the one at `seq` is not valid; None if all are. Raise `LedgerCorrupt` if an entry
        cannot be read, and `RunNotFound` if the run is not there.
        """
        entries = self._ledger.read(self._run, stop=stop)
        first = next(entries, None)
        if first is None:
            # A fork without entries: the hash in its row is all that is known of its beginning.
            self.previous = head.hash if head.count == 0 else self.previous
            return _head_mismatch(self._heads, 0, self.previous)
        root = root_of(first, run=self._run)
        if isinstance(root, str):
            return root
        self.previous = root.hash
        why = _head_mismatch(self._heads, 0, root.hash) or self._check_one(first)
        if why is None and root.fork is not None:
            why = self._check_fork_point(root.fork)
            self.seq = 0 if why is not None else self.seq
        for entry in entries if why is None else ():
            why = self._check_one(entry)
            if why is not None:
                break
        return why

    def _check_one(self, entry: Sealed) -> str | None:
        """Return why an entry is not valid; None if it is, and then it is counted and visited.

        This is the hot loop of a verification.
        """
        why = check_entry(entry, run=self._run, seq=self.seq, previous=self.previous)
        if why is None and self.seq + 1 in self._ends:
            why = _head_mismatch(self._heads, self.seq + 1, entry.hash)
        if why is None:
            if self._tally.visit is not None:
                self._tally.visit(self._run, self.seq, entry)
            self.previous = entry.hash
            self.seq += 1
            self._tally.entries += 1
            self._tally.erased += entry.body is None
        return why

    def _check_fork_point(self, fork: RunForked) -> str | None:
        """Compare the entry that a fork was forked from with the one that is here.

        Return why they differ; None if they do not. A parent that is not here is noted, and is no
        fault.
        """
        where = f"entry {fork.count - 1} of run {fork.parent}"
        try:
            entries = self._ledger.read(fork.parent, start=fork.count - 1, stop=fork.count)
            last = next(entries, None)
        except RunNotFound:
            self._tally.notes.append(f"run {self._run} grew from {where}, which is not here")
            return None
        except LedgerCorrupt as error:
            return f"it grew from {where}, which cannot be read: {error.why}"
        if last is None:
            return f"it grew from {where}, which has no such entry"
        if last.hash != fork.hash:
            return f"it grew from {where}, which is another here"
        return None


def _head_mismatch(heads: list[tuple[Head, str]], count: int, found: str) -> str | None:
    for head, whose in heads:
        if head.count == count and head.hash != found:
            return f"the chain does not end here as {whose} says"
    return None


def _check_end(
    ledger: Ledger, row: RunRow, heads: list[tuple[Head, str]], end: Head
) -> BadEntry | None:
    if end.count == row.head.count and all(end.count >= head.count for head, _ in heads):
        return None
    # The chain ends elsewhere than the head says. Either the run is being written or removed at
    # this moment, or something other than a ledger changed the file. Only a ledger changes entries
    # and head in one transaction, so the head is read again before the run is called bad.
    now = ledger.row(row.run)
    if now is None:
        return None
    for head, whose in heads:
        if end.count < head.count:
            why = f"it is missing: {end.count} entries are there, {whose} counts {head.count}"
            return BadEntry(run=row.run, seq=end.count, why=why)
    if now.head.count > end.count or now.head == end:
        return None
    why = f"it is after the end: the run's head counts {now.head.count}"
    return BadEntry(run=row.run, seq=now.head.count, why=why)


# Ancestors of a fork. A fork stores only its own entries. Those before the fork point stay in the
# run that it was forked from, which may be a fork itself.


def ancestors_of(ledger: Ledger, run: str) -> tuple[Ancestor, ...]:
    """Return the runs that a fork descends from, oldest first, each as far as the next shares it.

    The result is empty for a run that is no fork, or has no entry. Only first entries are read.
    Raise `LedgerCorrupt` if an ancestor cannot be determined, or if there are more than
    `ANCESTORS_MAX` or a cycle. Raise `RunNotFound` if the run or one of them is not here.
    """
    found: list[Ancestor] = []
    seen = {run}
    while True:
        first = next(ledger.read(run, stop=1), None)
        root = None if first is None else root_of(first, run=run)
        if isinstance(root, str):
            raise LedgerCorrupt(where=f"run {run}", why=f"entry 0: {root}")
        if root is None or root.fork is None:
            return tuple(reversed(found))
        fork = root.fork
        if fork.parent in seen or len(found) == ANCESTORS_MAX:
            why = f"it has more than {ANCESTORS_MAX} ancestors, or grew from itself"
            raise LedgerCorrupt(where=f"run {run}", why=why)
        seen.add(fork.parent)
        found.append(Ancestor(run=fork.parent, count=fork.count, hash=fork.hash))
        run = fork.parent


def bad_entry_of(ledger: Ledger, run: str) -> BadEntry | None:
    """Return the first invalid entry of a run or of the entries it shares; None if all are valid.

    An ancestor that is not here or cannot be determined counts as an invalid entry 0 of the run.
    Raise `RunNotFound` if the run itself is not here.
    """
    bad = verify_ledger(ledger, [run]).first_bad
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


def verified_ancestors_of(ledger: Ledger, run: str) -> tuple[Ancestor, ...]:
    """Return the ancestors of a run after checking the run and the entries that it shares.

    Raise `LedgerCorrupt` if an entry is not valid, or if the run is a fork that has no entry yet.
    Raise `RunNotFound` if the run or an ancestor is not here.
    """
    _check(verify_ledger(ledger, [run]).first_bad)
    row = require_row(ledger.row(run), run)
    if row.head.count == 0 and row.head != Head.of_nothing():
        why = "it is to grow from another run, and has no entry yet that says so"
        raise LedgerCorrupt(where=f"run {run}", why=why)
    ancestors = ancestors_of(ledger, run)
    for ancestor in ancestors:
        _check(check_shared(ledger, ancestor.run, ancestor.head))
    return ancestors


def _check(bad: BadEntry | None) -> None:
    if bad is not None:
        raise LedgerCorrupt(where=f"run {bad.run}", why=f"entry {bad.seq}: {bad.why}")
