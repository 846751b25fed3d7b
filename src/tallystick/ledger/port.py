"""What a ledger promises, and what a keeper of runs can do beside.

Rule 1: a run is changed only by appends, each of which names the head it builds on and the fence it
holds. Whoever claims a run gets a higher fence; the appends of the one before are refused then.
Rule 2: an append is whole or absent. *Committed* survives the death of the process; *forced* waits
for the disk and carries everything committed before it.
Rule 3: what is read was checked for its place only. Whether it holds is what `verify` answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from tallystick.core.chain import Draft, Head, Sealed
from tallystick.storage.transaction import Transaction

if TYPE_CHECKING:
    from tallystick.ledger.scopes import Scopes

# The most that one body may be. An import must know where to stop before it has read anything.
BODY_BYTES_MAX = 64 << 20
# The most attachments that one export carries.
ATTACHMENTS_MAX = 100_000
# The most runs that one grew from, one after the other, in an export.
ANCESTORS_MAX = 100

# Work of another store that is to be in the transaction of a change. It gets the transaction, or
# None from a ledger that has none, and must not use the ledger; if it raises, nothing is written.
# It may be called in another thread, so it must not wait for what its caller holds.
Also = Callable[[Transaction | None], None]


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run stands. `created_at` is in milliseconds, as its id says.

    Only a run that is neither moved nor imported can be claimed: `moved` went to another ledger,
    `imported` is a copy of a run that another ledger goes on with. `owner` is who claimed it last,
    if they said so; what they may write is for the fence to say.

    The other fields are read from the records as they are written (`ledger/facts.py`). `steps` says
    that it is a chain of steps, `parent` in which chain of steps it was begun, `caller` by which
    run's program, `grown_from` of which run it is a fork, `session` which session it names. `stop`
    is why it ended, None while it has no end and "" if that is not known. `ended_at` is when its
    last receipt was issued. `erased` says that bodies of it were removed.
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
        """Return whether a call of the run may still be open: it has no end, or was cut off."""
        return not self.steps and (self.stop is None or self.stop in OPEN_STOPS)


# Ends after which a call may still be open.
OPEN_STOPS = ("cancelled", "in_doubt")


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of runs. What is not given does not matter.

    `prefix` is the beginning of an id; `outermost` are those that no program began, `inside` those
    that one did; `open_only` those for which `is_open` holds; `unerased` those that have all their
    bodies.
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
        """Return whether a run is one of those."""
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
    """Chains of entries, one for each run."""

    @property
    def lock_folder(self) -> Path | None:
        """The folder with the locks of its runs; None if no other process can have the ledger."""

    def shared_scopes(self) -> Scopes | None:
        """Open the budgets that processes share here; None if no other can have the ledger."""

    def claim(
        self,
        run: str,
        *,
        create: bool,
        grown_from: str | None = None,
        owner: str | None = None,
    ) -> int:
        """Own a run and return the new fence. `owner` is noted in its row: an id of `Owners`.

        With `create` the run must be new and its id a ULID; without, it must be here and owned.
        A new run may grow from another: `grown_from` is the hash of the last entry that it shares.
        Its first entry is a `RunForked`, behind the head of no entries and that hash.
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

        The future is done when the entries are as safe as an append would make them, or has the
        error that it would raise; it cannot be cancelled. Submissions of a run are written in their
        order, so the next one may expect that head before the first is done; if the first fails,
        the next finds another head and fails too. `also`, and what is called when the future is
        done, may be called in another thread, and must not wait for this ledger.

        A ledger with too much to write lets the caller wait here until there is room.
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

        Raises `LedgerConflict` and changes nothing if the run stands elsewhere than `expected` or
        was claimed after `fence`. Forcing no drafts forces what was committed before. `also` is
        done in the same transaction.
        """

    def read(self, run: str, *, start: int = 0, stop: int | None = None) -> Iterator[Sealed]:
        """The entries of a run in their order, from `start` on and up to, without, `stop`."""

    def runs(
        self,
        which: RunFilter = EVERY_RUN,
        *,
        after: str = "",
        skip: int = 0,
        most: int | None = None,
        newest_first: bool = False,
    ) -> Sequence[RunRow]:
        """Return the runs asked for, the newest last, or first: at most `most`, behind `after`.

        The first `skip` of those are left out. Costs in proportion to what is returned, if no more
        than one thing is asked of them.
        """

    def row(self, run: str) -> RunRow | None:
        """Return the row of one run; None if it is not here. Costs the same with any number."""

    def forks_of(self, run: str) -> Sequence[str]:
        """Return the runs here that grew from a run, or are about to, the newest last."""

    def remove(self, run: str, *, also: Also | None = None) -> None:
        """Take a run out, entries and bodies together. `also` is done in the same transaction.

        A run that another one here grew from stays: what they share is kept in it alone.
        """


class Ancestor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run that another one grew from, as far as they share it: its first `count` entries."""

    run: str
    count: int
    hash: str

    @property
    def head(self) -> Head:
        return Head(count=self.count, hash=self.hash)


class ExportHeader(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What an export says of the run in it. `moved` makes the file the run's title.

    `attachments` is how many come behind the entries; files of format 1 have none. `ancestors` are
    the runs that a fork grew from, the oldest first, whose shared entries come in front of its own;
    only files of format 3 have them.
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
    """Which ledger goes on with a run, and which bodies it still keeps."""

    def release(self, run: str) -> RunRow:
        """Mark a run as moved away, forced, and fence off its writer. Twice is the same as once."""

    def adopt(
        self, header: ExportHeader, entries: Iterator[Sealed], *, also: Also | None = None
    ) -> None:
        """Take in a run that was exported, all or nothing, forced.

        `entries` are those that its ancestors share, and then its own. They raise what is wrong, up
        to their very end; then nothing is kept. A run that is here already and the same stays as it
        is, and so does an ancestor that has what is shared; one that is not here is kept as a copy.
        `also` is done in the same transaction, in any case.
        """

    def erase(self, run: str, seqs: Sequence[int]) -> None:
        """Remove the bodies of entries, forced. The chain still holds without them.

        The first of a fork stays: without it nobody knows what the chain begins with. Nothing is
        appended: that it was done, and why, is for the caller to record.
        """


class TransferLedger(Ledger, Custody, Protocol):
    """A ledger that runs can leave and enter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """An attachment that travels with a run. To the ledger it is bytes, and a line about them.

    `ref` is canonical JSON. `pieces` can be gone through once.
    """

    ref: bytes
    byte_len: int
    pieces: Iterator[bytes]


class Receiver(Protocol):
    """Whoever takes in the attachments of an import.

    `shared`, `entry`, `attachment` and `checked` are asked while the file is read for the first
    time, and keep nothing; `take` while it is read again; `commit` is done in the transaction that
    adopts the run. The first five say why the file is refused, or None.
    """

    def shared(self, run: str, seq: int, entry: Sealed) -> str | None:
        """Look at an entry of another run, which the one that comes shares."""

    def entry(self, seq: int, entry: Sealed) -> str | None:
        """Look at an entry that holds."""

    def attachment(self, carried: Carried) -> str | None:
        """Look through an attachment."""

    def checked(self, header: ExportHeader) -> str | None:
        """Everything was looked at, and the file is whole."""

    def take(self, carried: Carried) -> str | None:
        """Keep an attachment, for now."""

    def commit(self, within: Transaction | None) -> None:
        """Keep what was taken for as long as the run is here."""
