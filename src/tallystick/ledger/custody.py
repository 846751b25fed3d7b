"""The rules of ownership that every backend follows: who may write a run, and who may import one.

Plain functions: each takes a row and returns the next row, or raises the reason why not.

The rule of moving. A run is owned by one ledger at a time. `release` marks it as moved and raises
its fencing token, on disk, before the export exists under its name. The file carries that token and
is the run's *title*: the ledger that imports it owns the run. A ledger that gave a run away takes
it back only by a title with a higher token than the one it gave. So a used title is worthless to
the earlier owners. A crash between the mark and the file leaves a run without an owner; exporting
it again writes the same title.

Rejected: marking after the file is complete. A crash in between leaves two owners, who both pay.

This rule cannot stop one case: a title is copied, and imported by two ledgers that never knew the
run, or by one that removed it in between. They would have to ask each other. Their chains differ
from the next entry on, and from then on neither imports the other's.
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
_MOVED = "was moved away; resume it in the ledger that imported it, or move it back from there"
_IMPORTED = (
    "is a copy of another ledger's run: you can read, verify and replay it, but not resume it; to "
    "move the run here, use tally export --move in the ledger that owns it"
)


def created_at_ms(run: str) -> int:
    """Return the time in a run's id, in milliseconds since the epoch.

    Raise `ValueError` for a character that ULIDs do not have.
    """
    time = 0
    for char in run[:_ULID_TIME_CHARS]:
        time = time * 32 + _ULID_ALPHABET.index(char)
    return time


def require_row(row: RunRow | None, run: str) -> RunRow:
    """Return the row; raise `RunNotFound` if it is None."""
    if row is None:
        raise RunNotFound(run=run)
    return row


def row_after_claim(
    row: RunRow | None,
    run: str,
    *,
    create: bool,
    grown_from: str | None = None,
    owner: str | None = None,
) -> RunRow:
    """Return the row of a run for its new owner. The fencing token goes up by one.

    With `create`, return a new row with token 1; raise `RunExists` if the run is there, and
    `InvalidName` if its id is not a ULID. Without it, raise `RunNotFound` if the run is not there,
    and `RunNotOwned` if it was moved away or imported. Raise `UsageError` if `grown_from` is given
    without `create`, or is not a hash. `owner` replaces the one in the row, also if it is None.
    """
    if grown_from is not None and not (create and is_hash(grown_from)):
        raise UsageError(f"run {run}: only a new run grows from another, and from a hash of it")
    if not create:
        row = _require_owned(require_row(row, run))
        return msgspec.structs.replace(row, fence=row.fence + 1, owner=owner)
    if row is not None:
        raise RunExists(run=run)
    if not is_ulid(run):
        raise InvalidName(what="run", given=run, why="the id of a run is a ULID")
    head = Head.of_nothing() if grown_from is None else Head(count=0, hash=grown_from)
    return RunRow(
        run=run, head=head, fence=1, created_at=created_at_ms(run), moved=False, owner=owner
    )


def row_after_append(
    row: RunRow | None, run: str, *, expected: Head, fence: int, head: Head
) -> RunRow:
    """Return the row of a run after an append that makes `head` its head.

    Raise `RunNotFound` if the run is not there, and `RunNotOwned` if another ledger owns it. Raise
    `LedgerConflict` if the fencing token or the expected head is not the present one; the token is
    compared first.
    """
    row = require_row(row, run)
    # The fencing token first: a writer that lost the run must be shown that reason, and not only
    # the consequence that the head changed too.
    if row.fence != fence:
        raise LedgerConflict(run=run, field="fence", expected=fence, found=row.fence)
    _require_owned(row)
    if row.head != expected:
        raise LedgerConflict(
            run=run, field="head", expected=_describe_head(expected), found=_describe_head(row.head)
        )
    return msgspec.structs.replace(row, head=head)


def row_after_release(row: RunRow | None, run: str) -> RunRow:
    """Return the row of a run that is moved away: its fencing token goes up by one.

    A row that is marked as moved is returned unchanged. Raise `RunNotFound` if the run is not
    there, and `RunNotOwned` if it is an imported copy.
    """
    row = require_row(row, run)
    if row.moved:
        return row
    return msgspec.structs.replace(_require_owned(row), fence=row.fence + 1, moved=True)


def known_head(row: RunRow | None, header: ExportHeader) -> Head | None:
    """Return the head of the part of an imported run that is here; None if nothing is to be done.

    The head is empty if the run is not here. A title to a run that is not owned here has a head
    returned even if no entry is missing: the row must change.

    Raise `TransferRefused` if the run here is owned and differs, or is longer. Raise it for a copy
    unless the run here is a shorter copy. Raise it for a title whose token is not above that of the
    last move away.
    """
    if row is None:
        return Head.of_nothing()
    owned = not (row.moved or row.imported)
    same = row.head == header.head
    if same and (owned or not header.moved):
        return None
    longer = row.imported and row.head.count < header.count
    if owned or not (header.moved or longer):
        raise _refusal(
            header.run,
            f"another run with this id is here: {_describe_head(row.head)} here, "
            f"{_describe_head(header.head)} in it",
        )
    if row.moved and row.fence >= header.fence:
        raise _refusal(
            header.run,
            "the run was moved away again after this export; only a later export brings it back",
        )
    if row.head.count > header.count:
        raise _refusal(
            header.run,
            f"that run is longer here: {_describe_head(row.head)} here, "
            f"{_describe_head(header.head)} in it",
        )
    return row.head


def shared_head(
    row: RunRow | None, ancestor: Ancestor, *, run: str, hash_at: Callable[[str, int], str | None]
) -> Head | None:
    """Return the head of the shared part of an ancestor that is here; None if all of it is.

    The head is empty if the ancestor is not here. `hash_at` returns the hash of an entry that is
    here, by run and position. Only a copy is extended: raise `TransferRefused` if a run that this
    ledger owns or gave away is shorter, or if the last shared entry differs.
    """
    if row is None:
        return Head.of_nothing()
    if row.head.count >= ancestor.count:
        if hash_at(ancestor.run, ancestor.count - 1) == ancestor.hash:
            return None
        raise _divergence(run, ancestor.run, ancestor.count - 1)
    if row.imported:
        return row.head
    raise _refusal(
        run,
        f"run {ancestor.run}, which it grew from, is shorter here: "
        f"{_describe_head(row.head)} here, {_describe_head(ancestor.head)} in it",
    )


def shared_row(ancestor: Ancestor) -> RunRow:
    """Return the row of an imported ancestor: a copy, with fencing token 0."""
    return RunRow(
        run=ancestor.run,
        head=ancestor.head,
        fence=0,
        created_at=created_at_ms(ancestor.run),
        moved=False,
        imported=True,
    )


def check_removable(run: str, forks: Sequence[str]) -> None:
    """Raise `UsageError` if `forks`, the forks of a run, is not empty."""
    if forks:
        raise UsageError(
            f"run {run} stays: run {forks[0]} grew from it and shares its entries; remove that "
            f"one first"
        )


def check_erasable(row: RunRow, seqs: Iterable[int], *, fork: bool) -> None:
    """Raise `UsageError` for a position that the run does not have.

    With `fork`, also for position 0.
    """
    for seq in seqs:
        if not 0 <= seq < row.head.count:
            raise UsageError(f"run {row.run} has no entry {seq}")
        if fork and seq == 0:
            raise UsageError(
                f"entry 0 of run {row.run} stays: it says what the run grew from, which its chain "
                f"begins with"
            )


def imported_row(header: ExportHeader) -> RunRow:
    """Return the row of an imported run: owned here if the export was a title, else a copy.

    A title keeps its fencing token, so that it can be compared with later ones. A copy has token 0.
    """
    return RunRow(
        run=header.run,
        head=header.head,
        fence=header.fence if header.moved else 0,
        created_at=created_at_ms(header.run),
        moved=False,
        imported=not header.moved,
    )


def new_entries(
    entries: Iterable[Sealed], *, known: Head | None, of: str, run: str
) -> Iterator[tuple[int, Sealed]]:
    """Yield the entries after those that are here, each with its position.

    Raise `TransferRefused` at the last one that is here, if it has another hash. With `known` None,
    all entries are read and none is yielded. The entries are those of the run `of`, in the export
    of `run`.
    """
    for seq, entry in enumerate(entries):
        if known is None:
            continue
        if seq == known.count - 1 and entry.hash != known.hash:
            raise _divergence(run, of, seq)
        if seq >= known.count:
            yield seq, entry


def seal_all(
    run: str, drafts: Sequence[Draft], *, head: Head, salts: Salts
) -> tuple[list[Sealed], Head]:
    """Append drafts to a head in order; return the entries and the new head. Nothing is stored.

    `salts` is called once for each draft. Raise `InvalidLimit` if a body has more than
    `BODY_BYTES_MAX` bytes.
    """
    entries = []
    for draft in drafts:
        if len(draft.body) > BODY_BYTES_MAX:
            raise InvalidLimit(
                field="body", given=len(draft.body), why=f"at most {BODY_BYTES_MAX} bytes"
            )
        entry, head = seal(draft, run=run, head=head, salt=salts(SALT_BYTES))
        entries.append(entry)
    return entries, head


def _require_owned(row: RunRow) -> RunRow:
    if row.moved:
        raise RunNotOwned(run=row.run, why=_MOVED)
    if row.imported:
        raise RunNotOwned(run=row.run, why=_IMPORTED)
    return row


def _refusal(run: str, why: str) -> TransferRefused:
    return TransferRefused(file=f"the export of run {run}", why=f"{why}; nothing was imported")


def _divergence(run: str, of: str, seq: int) -> TransferRefused:
    which = "that run" if of == run else f"run {of}, which it grew from,"
    return _refusal(run, f"{which} is here and parts from it at or before entry {seq}")


def _describe_head(head: Head) -> str:
    return f"{head.count} entries ending in {head.hash[:12]}"
