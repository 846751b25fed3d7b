"""Read a run and the runs inside it as one sequence of entries, in the order of their commits.

The order is that of the ledger, so it is the same for every reader, whether the run is in progress
or long over. An entry is read once it is committed, and never before.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tallystick.core.errors import RecordUnreadable, RunNotFound
from tallystick.core.records import ChildBegun, ChildEnded
from tallystick.interop.trajectory import ChainEntry, entry_of
from tallystick.ledger.port import Ledger
from tallystick.ledger.verify import ancestors_of

# So many entries are looked for at once. A child that one of them begins makes the rest be looked
# for again, so a larger number costs more where there are many children.
_BATCH = 128
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class EntriesInOrder:
    """The entries of a run, of those it was forked from, and of those inside it.

    `read` returns those that were committed since the last call. A child is read from the entry on
    that begins it, if `open_child` is called before the next entry is taken. Entries whose body was
    erased are left out.
    """

    def __init__(self, ledger: Ledger, run: str) -> None:
        self._ledger = ledger
        self._run = run
        # The next position of each chain that may still grow, and where one ends for us.
        self._next: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        # The next position of each child that was read to its end: a resume may add to it.
        self._left: dict[str, int] = {}
        self._is_news = False
        # The runs that this one was forked from.
        self._shared: set[str] = set()

    def read(self) -> Iterator[ChainEntry]:
        """Yield the entries that were committed since, until there are no more for now.

        Raise `RecordUnreadable` for a record of another version, and errors of the ledger. A run
        that is not in the ledger yet has no entries.
        """
        if not self._next and not self._begin():
            return
        while batch := self._ledger.order(self._next, most=_BATCH):
            yield from self._of_batch([each for each in batch if not self._is_beyond(*each)])

    def open_child(self, run: str) -> bool:
        """Read a child from here on. Return True."""
        self._next[run] = 0
        self._is_news = True
        return True

    def _begin(self) -> bool:
        try:
            ancestors = ancestors_of(self._ledger, self._run)
        except RunNotFound:
            return False
        self._shared = {each.run for each in ancestors}
        for each in ancestors:
            self._next[each.run], self._ends[each.run] = 0, each.count
        self._next[self._run] = 0
        return True

    def _of_batch(self, batch: list[tuple[str, int]]) -> Iterator[ChainEntry]:
        for run, seq in batch:
            entry = self._entry(run, seq)
            self._next[run] = seq + 1
            if self._ends.get(run) == seq + 1:
                self._leave(run)
            if entry is None:
                continue
            yield entry
            if isinstance(entry.record, ChildEnded):
                self._note_end(entry.record)
            elif isinstance(entry.record, ChildBegun) and entry.record.run in self._left:
                del self._ends[entry.record.run]
                self._next[entry.record.run] = self._left.pop(entry.record.run)
                self._is_news = True
            if self._is_news:
                # What is read from here on may belong between the rest of the batch.
                self._is_news = False
                return

    def _note_end(self, ended: ChildEnded) -> None:
        """Read a child no further than to the head that its parent has recorded."""
        if ended.run in self._next and ended.run not in self._ends and ended.run != self._run:
            self._ends[ended.run] = ended.count
            if self._next[ended.run] >= ended.count:
                self._leave(ended.run)

    def _leave(self, run: str) -> None:
        """Read a chain no further. Ancestors are left for ever, children until they are resumed."""
        place = self._next.pop(run)
        if run not in self._shared:
            self._left[run] = place

    def _is_beyond(self, run: str, seq: int) -> bool:
        return seq >= self._ends.get(run, seq + 1)

    def _entry(self, run: str, seq: int) -> ChainEntry | None:
        sealed = next(iter(self._ledger.read(run, start=seq, stop=seq + 1)), None)
        try:
            return None if sealed is None else entry_of(run, seq, sealed)
        except _UNREADABLE as error:
            why = "its body is no record that this version knows"
            raise RecordUnreadable(run=run, seq=seq, why=why) from error
