"""The ledger port: the promises that every backend keeps, and the values that it returns.

Rule 1: a run is changed only by appends. Each append names the head it builds on and the fencing
token it holds. Each claim raises the token, so appends of the previous owner are refused.
Rule 2: an append is whole or absent. *Committed* survives the death of the process; *forced* waits
for the disk and carries everything committed before it.
Rule 3: reading checks only that each entry is at its place. Hashes are checked by `verify`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from tallystick.core.chain import Draft, Head, Sealed
from tallystick.storage.transaction import Transaction

if TYPE_CHECKING:
    from tallystick.ledger.scopes import Scopes

# The largest body of an entry. An import must know where to stop before it has read anything.
BODY_BYTES_MAX = 64 << 20
# The most attachments that one export carries.
ATTACHMENTS_MAX = 100_000
# The longest chain of forks in an export: a fork of a fork of a fork, and so on.
ANCESTORS_MAX = 100

# Work of another store, done in the transaction of a change. It gets the transaction, or None from
# a ledger that has none, and must not use the ledger. If it raises, nothing is written. It may be
# called in another thread, so it must not wait for a lock that its caller holds.
Also = Callable[[Transaction | None], None]


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """The row of a run: its head, its owner, and the facts by which runs are found.

    `created_at` is in milliseconds, read from the id. Only a run that is neither moved nor imported
    can be claimed. A `moved` one went to another ledger, and an `imported` one is a copy of a run
    that another ledger owns. `owner` is the last process that claimed the run, if it gave its id.
    `owner` grants no right to write; only the fencing token does.

    The other fields are read from the records as they are written (`ledger/facts.py`). `steps`: the
    chain belongs to a step. `parent`: the chain of steps in which the run was started. `caller`:
    the run whose program started it. `grown_from`: the run that it was forked from. `session`: the
    session that it names. `stop`: why it ended, None while it has no end, "" if the reason was
    erased. `ended_at`: the time of its last receipt. `erased`: at least one body was removed.
    """

    run: str
    head: Head
    fence: int
    created_at: int
    moved: bool
    imported: bool = False
    owner: str | None = None
    steps: bool = False
    parent: str | None = None
    caller: str | None = None
    session: str | None = None
    grown_from: str | None = None
    stop: str | None = None
    started_at: int | None = None
    ended_at: int | None = None
    erased: bool = False

    @property
    def is_open(self) -> bool:
        """Return True if a call of the run may still be open: it has no end, or was interrupted.

        False for a chain of steps, and for a run whose reason to end was erased.
        """
        return not self.steps and (self.stop is None or self.stop in OPEN_STOPS)


# Stop reasons after which a call may still be open.
OPEN_STOPS = ("cancelled", "in_doubt")


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A selection of runs. A field at its default does not restrict it.

    `prefix` is the beginning of an id. `outermost` selects the runs that no program started,
    `inside` those that one did, `open_only` those for which `is_open` is True, `unerased` those
    that have all their bodies.
    """

    prefix: str = ""
    parent: str | None = None
    caller: str | None = None
    session: str | None = None
    grown_from: str | None = None
    outermost: bool = False
    inside: bool = False
    open_only: bool = False
    unerased: bool = False

    def accepts(self, row: RunRow) -> bool:
        """Return True if the run of this row is selected."""
        return (
            row.run.startswith(self.prefix)
            and self.parent in (None, row.parent)
            and self.caller in (None, row.caller)
            and self.session in (None, row.session)
            and self.grown_from in (None, row.grown_from)
            and not (self.outermost and row.caller is not None)
            and not (self.inside and row.caller is None)
            and not (self.open_only and not row.is_open)
            and not (self.unerased and row.erased)
        )


EVERY_RUN = RunFilter()


class Ledger(Protocol):
    """Chains of entries, one for each run.

    Every method may raise the errors of the store: `LedgerUnavailable`, `LedgerLocked`,
    `LedgerFull`, `LedgerReadOnly`, and `LedgerCorrupt` if what it reads is damaged.
    """

    @property
    def lock_folder(self) -> Path | None:
        """The folder with the locks of its runs; None if no other process can open the ledger."""

    def shared_scopes(self) -> Scopes | None:
        """Return a new object for the budgets that processes share here; the caller closes it.

        Return None if no other process can open the ledger.
        """

    def claim(
        self,
        run: str,
        *,
        create: bool,
        grown_from: str | None = None,
        owner: str | None = None,
    ) -> int:
        """Take ownership of a run and return its new fencing token.

        With `create`, raise `RunExists` if the run is here, and `InvalidName` if its id is not a
        ULID. Without it, raise `RunNotFound` if the run is not here, and `RunNotOwned` if it was
        moved away or is an imported copy. `owner`, an id of `Owners`, is kept in the row; None
        clears the one that is there.

        A new run may be a fork: `grown_from` is the hash of the last entry that it shares. Its
        first entry is then a `RunForked`, appended to a head with no entries and that hash. Raise
        `UsageError` if `grown_from` is given without `create`, or is no hash.
        """

    def submit(
        self,
        run: str,
        drafts: Sequence[Draft],
        *,
        expected: Head,
        fence: int,
        forced: bool,
        also: Also | None = None,
    ) -> tuple[Head, Future[None]]:
        """Begin an append, and return at once the head that the run will have.

        The future is done when the entries are as safe as `append` would make them. It has the
        exception that `append` would raise, and cannot be cancelled. This call itself raises
        `InvalidLimit` for a body that is too large, and an error of opening the store.

        Submissions of a run are written in their order, so the next one may expect that head before
        the first is done. If the first fails, the next finds another head and fails too. `also` and
        the callbacks of the future may run in another thread, and must not wait for this ledger.

        If the ledger has too much to write, this call waits until there is room.
        """

    def append(
        self,
        run: str,
        drafts: Sequence[Draft],
        *,
        expected: Head,
        fence: int,
        forced: bool,
        also: Also | None = None,
    ) -> Head:
        """Add entries to the end of a run, all or none, and return the new head: submit, and wait.

        Raise `LedgerConflict` and change nothing if the head of the run is not `expected`, or if it
        was claimed again since `fence`. Raise `RunNotFound` or `RunNotOwned` if the run is not here
        or not owned, and `InvalidLimit` if a body has more than `BODY_BYTES_MAX` bytes. An append
        of no drafts with `forced` forces what was committed before. `also` is done in the same
        transaction.
        """

    def read(self, run: str, *, start: int = 0, stop: int | None = None) -> Iterator[Sealed]:
        """Yield the entries of a run in order, from position `start` up to, excluding, `stop`.

        A `stop` of None reads to the end. Raise `RunNotFound` at the call, before the first entry.
        Raise `LedgerCorrupt` at a damaged entry, after those before it. Entries appended meanwhile
        may be included.
        """

    def order(self, starts: Mapping[str, int], *, most: int) -> Sequence[tuple[str, int]]:
        """Return where the entries of several runs are, in the order in which they were committed.

        `starts` has the first position to return of each run; a run that is not here has no
        entries. Each entry is returned as its run and its position, at most `most` of them. The
        order is one over all runs of the ledger, and an entry that is committed later never comes
        before one that was returned. All are read at one moment.
        """

    def runs(
        self,
        which: RunFilter = EVERY_RUN,
        *,
        after: str = "",
        skip: int = 0,
        most: int | None = None,
        newest_first: bool = False,
    ) -> Sequence[RunRow]:
        """Return at most `most` rows of the selected runs, in the order of their ids, oldest first.

        None is no maximum. `newest_first` reverses the order. Only runs that come after the id
        `after` in that order count, and the first `skip` of them are left out. The cost is
        proportional to the rows returned if `which` has at most one condition.
        """

    def row(self, run: str) -> RunRow | None:
        """Return the row of one run; None if it is not here. The cost does not grow with runs."""

    def forks_of(self, run: str) -> Sequence[str]:
        """Return the ids of the forks of a run, or runs about to be that, oldest first.

        The result is empty if there are none, also for a run that is not here.
        """

    def remove(self, run: str, *, also: Also | None = None) -> None:
        """Delete a run, its entries and bodies together, forced.

        `also` is done in the same transaction. Raise `RunNotFound` if it is not here, and
        `UsageError` if a fork of it is: only this run has the entries that they share. A run that
        is in use is deleted too; its writer fails at the next append.
        """


class Ancestor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run that another was forked from, as far as they share it: its first `count` entries."""

    run: str
    count: int
    hash: str

    @property
    def head(self) -> Head:
        return Head(count=self.count, hash=self.hash)


class ExportHeader(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The header of an export. With `moved`, the file transfers ownership of the run.

    `attachments` is how many come after the entries; files of format 1 have none. `ancestors` are
    the runs that a fork descends from, the oldest first. Their shared entries come before its own.
    Only files of format 3 have them.
    """

    format: int
    run: str
    count: int
    hash: str
    fence: int
    moved: bool
    attachments: int = 0
    ancestors: tuple[Ancestor, ...] = ()

    @property
    def head(self) -> Head:
        return Head(count=self.count, hash=self.hash)


class Custody(Protocol):
    """Ownership of runs between ledgers, and erasure of bodies."""

    def release(self, run: str) -> RunRow:
        """Mark a run as moved away, forced, and revoke its writer's fencing token. Return its row.

        A second call changes nothing, and returns the same row. Raise `RunNotFound` if the run is
        not here, and `RunNotOwned` if it is an imported copy.
        """

    def adopt(
        self, header: ExportHeader, entries: Iterator[Sealed], *, also: Also | None = None
    ) -> None:
        """Import a run that was exported, all or nothing, forced.

        `entries` are those that its ancestors share, and then its own. The iterator raises if the
        file is wrong, possibly only at its end; then nothing is kept. A run that is here already
        with the same entries stays as it is, and so does an ancestor that has the shared entries.
        An ancestor that is not here is kept as a copy. Raise `TransferRefused` if what is here
        differs. `also` is done in the same transaction, even if nothing else is.
        """

    def erase(self, run: str, seqs: Sequence[int]) -> None:
        """Remove the bodies of entries, forced. The chain still verifies without them.

        Raise `RunNotFound` if the run is not here. Raise `UsageError` and remove nothing if there
        is no such entry, or if it is the first of a fork: without its body the beginning of the
        chain is unknown. Nothing is appended: recording the erasure and its reason is up to the
        caller.
        """


class TransferLedger(Ledger, Custody, Protocol):
    """A ledger that can also export and import runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """An attachment that is exported with its run: bytes, and one line that describes them.

    `ref` is canonical JSON. `pieces` can be iterated once.
    """

    ref: bytes
    byte_len: int
    pieces: Iterator[bytes]


class Receiver(Protocol):
    """A store for the attachments of an import.

    The four checks are called during the first reading of the file, and keep nothing. `take` is
    called during the second, and `commit` in the transaction that adopts the run. The first five
    return the reason to refuse the file, None to accept. If the file is refused later, `commit` is
    not called.
    """

    def check_shared(self, run: str, seq: int, entry: Sealed) -> str | None:
        """Check an entry of an ancestor, which the imported run shares. Return None to accept it.

        Called once for each, in order.
        """

    def check_entry(self, seq: int, entry: Sealed) -> str | None:
        """Check an entry of the run itself, whose hashes were verified. Return None to accept it.

        Called once for each, in order.
        """

    def check_attachment(self, carried: Carried) -> str | None:
        """Check an attachment by reading its pieces. Return None to accept it.

        Called once for each; pieces not read are skipped.
        """

    def check_whole(self, header: ExportHeader) -> str | None:
        """Check what was seen as a whole. Return None to accept it.

        Called once, after the file was read to its end.
        """

    def take(self, carried: Carried) -> str | None:
        """Keep the bytes of an attachment provisionally. Return None if they are kept.

        Called once for each, before any transaction.
        """

    def commit(self, within: Transaction | None) -> None:
        """Keep the attachments taken for as long as the run is here. Called once if there are any.

        `within` is the transaction that adopts the run, None in a ledger that has none.
        """
