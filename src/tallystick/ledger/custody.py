"""Who may write a run, and who may take one in: the rules that every backend follows.

Plain functions from a row to the row that follows it, or to the error that says why not.

The rule of moving. A run is owned by one ledger at a time. `release` marks it as moved and raises
its fence, on disk, before the export exists under its name; the file carries that fence and is the
run's title: whoever imports it owns the run. A ledger that gave a run away takes it back only by a
title with a higher fence than the one it gave, so a title that was used is worth nothing to those
who had the run before. A crash between the mark and the file leaves a run that nobody owns;
exporting it again writes the same title.

Rejected: marking after the file is complete. A crash in between leaves two owners, who both pay.

What this cannot stop: one title, copied, imported by two ledgers that never knew the run, or by one
that removed it in between. They would have to ask each other. Their chains part at the next entry,
and from then on neither takes in the other's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from tallystick.core.chain import SALT_BYTES, Draft, Head, Sealed, is_hash, seal
from tallystick.core.errors import (
    InvalidLimit,
    InvalidName,
    LedgerConflict,
    RunExists,
    RunNotFound,
    RunNotOwned,
    TransferRefused,
    UsageError,
)
from tallystick.core.ids import is_ulid
from tallystick.ledger.port import BODY_BYTES_MAX, Ancestor, ExportHeader, RunRow

Salts = Callable[[int], bytes]

_ULID_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_ULID_TIME_CHARS = 10
_MOVED = "was moved away; go on where it was imported, or import it back from there"
_IMPORTED = (
    "is a copy of another ledger's run; it can be read, verified and replayed, not gone on with"
)


def created_at_ms(run: str) -> int:
    """The time in a run's id."""
    time = 0
    for char in run[:_ULID_TIME_CHARS]:
        time = time * 32 + _ULID_ALPHABET.index(char)
    return time


def required(row: RunRow | None, run: str) -> RunRow:
    if row is None:
        raise RunNotFound(run=run)
    return row


def claimed(
    row: RunRow | None,
    run: str,
    *,
    create: bool,
    grown_from: str | None = None,
    owner: str | None = None,
) -> RunRow:
    """The row of a run after it was claimed."""
    if grown_from is not None and not (create and is_hash(grown_from)):
        raise UsageError(f"run {run}: only a new run grows from another, and from a hash of it")
    if not create:
        row = _owned(required(row, run))
        return msgspec.structs.replace(row, fence=row.fence + 1, owner=owner)
    if row is not None:
        raise RunExists(run=run)
    if not is_ulid(run):
        raise InvalidName(what="run", given=run, why="the id of a run is a ULID")
    head = Head.of_nothing() if grown_from is None else Head(count=0, hash=grown_from)
    return RunRow(
        run=run, head=head, fence=1, created_at=created_at_ms(run), moved=False, owner=owner
    )


def appended(row: RunRow | None, run: str, *, expected: Head, fence: int, head: Head) -> RunRow:
    """The row of a run after an append to it."""
    row = required(row, run)
    # The fence first: who lost the run wants to hear that, not that its head moved on as well.
    if row.fence != fence:
        raise LedgerConflict(run=run, field="fence", expected=fence, found=row.fence)
    _owned(row)
    if row.head != expected:
        raise LedgerConflict(
            run=run, field="head", expected=_entries(expected), found=_entries(row.head)
        )
    return msgspec.structs.replace(row, head=head)


def released(row: RunRow | None, run: str) -> RunRow:
    """The row of a run after it was given away. Given away already, it stays as it is."""
    row = required(row, run)
    if row.moved:
        return row
    return msgspec.structs.replace(_owned(row), fence=row.fence + 1, moved=True)


def known_head(row: RunRow | None, header: ExportHeader) -> Head | None:
    """How much of an arriving run is here already, or None if there is nothing to do.

    A copy is kept under its own id, to be read; it never replaces anything, but a copy may grow by
    a longer one. A title may also go on from what is here, if that was moved away earlier or is
    itself a copy.
    """
    if row is None:
        return Head.of_nothing()
    owned = not (row.moved or row.imported)
    same = row.head == header.head
    if same and (owned or not header.moved):
        return None
    longer = row.imported and row.head.count < header.count
    if owned or not (header.moved or longer):
        raise _refused(
            header.run,
            f"that run is here and another: {_entries(row.head)} here, "
            f"{_entries(header.head)} in it",
        )
    if row.moved and row.fence >= header.fence:
        raise _refused(header.run, "the run moved on after it; only a later export brings it back")
    if row.head.count > header.count:
        raise _refused(
            header.run,
            f"that run is longer here: {_entries(row.head)} here, {_entries(header.head)} in it",
        )
    return row.head


def shared_head(
    row: RunRow | None, ancestor: Ancestor, *, run: str, hash_at: Callable[[str, int], str | None]
) -> Head | None:
    """How much of what an arriving run shares with an ancestor is here, or None if all of it is.

    `hash_at` is the hash of the entry of a run at a place, here. Only a copy is made longer.
    """
    if row is None:
        return Head.of_nothing()
    if row.head.count >= ancestor.count:
        if hash_at(ancestor.run, ancestor.count - 1) == ancestor.hash:
            return None
        raise _parted(run, ancestor.run, ancestor.count - 1)
    if row.imported:
        return row.head
    raise _refused(
        run,
        f"run {ancestor.run}, which it grew from, is shorter here: {_entries(row.head)} here, "
        f"{_entries(ancestor.head)} in it",
    )


def shared_row(ancestor: Ancestor) -> RunRow:
    """The row of an ancestor that was taken in: a copy."""
    return RunRow(
        run=ancestor.run,
        head=ancestor.head,
        fence=0,
        created_at=created_at_ms(ancestor.run),
        moved=False,
        imported=True,
    )


def check_removable(run: str, forks: Sequence[str]) -> None:
    """Refuse to take out a run that others grew from."""
    if forks:
        raise UsageError(
            f"run {run} stays: run {forks[0]} grew from it and shares its entries; remove that "
            f"one first"
        )


def check_erasable(row: RunRow, seqs: Iterable[int], *, fork: bool) -> None:
    """Refuse places that a run does not have, and the one that a fork needs."""
    for seq in seqs:
        if not 0 <= seq < row.head.count:
            raise UsageError(f"run {row.run} has no entry {seq}")
        if fork and seq == 0:
            raise UsageError(
                f"entry 0 of run {row.run} stays: it says what the run grew from, which its chain "
                f"begins with"
            )


def adopted(header: ExportHeader) -> RunRow:
    """The row of a run that was taken in."""
    return RunRow(
        run=header.run,
        head=header.head,
        fence=header.fence if header.moved else 0,
        created_at=created_at_ms(header.run),
        moved=False,
        imported=not header.moved,
    )


def without_known(
    entries: Iterable[Sealed], *, known: Head | None, of: str, run: str
) -> Iterator[tuple[int, Sealed]]:
    """The entries past what is here, each with its place. They must grow from what is here.

    All are gone through, though None says that there is nothing to keep. They are those of the run
    `of`, in the export of `run`.
    """
    for seq, entry in enumerate(entries):
        if known is None:
            continue
        if seq == known.count - 1 and entry.hash != known.hash:
            raise _parted(run, of, seq)
        if seq >= known.count:
            yield seq, entry


def seal_all(
    run: str, drafts: Sequence[Draft], *, head: Head, salts: Salts
) -> tuple[list[Sealed], Head]:
    """Put drafts behind a head, in their order."""
    entries = []
    for draft in drafts:
        if len(draft.body) > BODY_BYTES_MAX:
            raise InvalidLimit(
                field="body", given=len(draft.body), why=f"at most {BODY_BYTES_MAX} bytes"
            )
        entry, head = seal(draft, run=run, head=head, salt=salts(SALT_BYTES))
        entries.append(entry)
    return entries, head


def _owned(row: RunRow) -> RunRow:
    if row.moved:
        raise RunNotOwned(run=row.run, why=_MOVED)
    if row.imported:
        raise RunNotOwned(run=row.run, why=_IMPORTED)
    return row


def _refused(run: str, why: str) -> TransferRefused:
    return TransferRefused(file=f"the export of run {run}", why=f"{why}; nothing was imported")


def _parted(run: str, of: str, seq: int) -> TransferRefused:
    which = "that run" if of == run else f"run {of}, which it grew from,"
    return _refused(run, f"{which} is here and parts from it at or before entry {seq}")


def _entries(head: Head) -> str:
    return f"{head.count} entries ending in {head.hash[:12]}"
