"""Define the rows that say which bytes are kept and who holds them, and the fence of a sweep.

The fence. A blob is free, condemned by a sweep, or being deleted by one. Each change of state is
one transaction, and so is each look at who holds the blob; whichever comes first wins:

    free --sweep, nobody alive holds it--> condemned --same sweep, still nobody--> deleting --> gone
    condemned --an intent or a commit--> free    the sweep finds that, and leaves the blob
    deleting --an intent--> wait, then put anew  the sweep cannot be stopped, only outlasted

Deleting exists because a file cannot be unlinked inside a transaction. Small blobs are rows: theirs
is deleted in the transaction that looks, and an intent never has to wait for one. A sweep that died
while deleting counts as finished: its blob counts as gone, and the next put writes it anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from tallystick.attachments.port import Intent, Reference
from tallystick.core.records import AttachmentRef

FREE, CONDEMNED, DELETING = range(3)


class Blob(msgspec.Struct, frozen=True):
    """The row of some bytes. Those that are not `filed` are in the row itself."""

    id: str
    byte_len: int
    stored_at: int
    state: int
    sweep: str | None
    filed: bool


class ManifestRows(Protocol):
    """The rows of one transaction. What is yielded has to be read inside it.

    A method that reads rows raises `AttachmentCorrupt` for a damaged one. Changes to rows that are
    not there do nothing. `now` is in milliseconds since 1970.
    """

    # -- bytes ---------------------------------------------------------------------------------

    def blob_of(self, id: str) -> Blob | None:
        """Return the row of some bytes, None if there is none."""

    def blobs(self) -> Iterator[Blob]:
        """Yield every blob, in the order of their ids."""

    def data(self, id: str) -> bytes | None:
        """Return the bytes of a small blob, unchecked.

        None if the blob is not there, or its bytes are in a file.
        """

    def keep_inline(self, id: str, data: bytes, *, now: int) -> None:
        """Store a small blob as free. It replaces a damaged one, and a file that is going.

        A row that is there keeps its time.
        """

    def keep_file(self, id: str, byte_len: int, *, now: int) -> None:
        """Note as free that the bytes of a blob are in the store of large ones, whole and forced.

        A row that is there is replaced, with its time and its bytes.
        """

    def mark(self, id: str, *, state: int, sweep: str | None) -> None:
        """Put a blob into a state (`FREE`, `CONDEMNED` or `DELETING`), under the id of a sweep."""

    def revoke(self, id: str) -> None:
        """Take a condemned blob away from its sweep: it is free. Other states stay."""

    def drop_blob(self, id: str) -> None:
        """Delete the row of a blob, with the bytes of a small one."""

    # -- holders -------------------------------------------------------------------------------

    def upsert(self, intent: Intent, ref: AttachmentRef) -> None:
        """Insert the row of an intent.

        A row that is there keeps its time and gets the new `ref`. Until it is committed, it gets
        this owner too.
        """

    def commit(self, session_id: str, ids: Sequence[str], *, now: int) -> list[str]:
        """Mark a holder's rows as committed, drop further owners, and free condemned bytes.

        Return the ids that it holds and whose bytes are there, not being deleted. Rows are
        committed whether or not their bytes are there; the caller decides what that means.
        """

    def insert_committed(
        self, session_id: str, blobs: Sequence[tuple[AttachmentRef, bytes]], *, now: int
    ) -> None:
        """Insert intents, small blobs and commits at once, so that none is without the others."""

    def forget(self, session_id: str, id: str | None) -> None:
        """Delete one row of a holder, or with `id` None all of them. No bytes are deleted."""

    def references(
        self, *, session_id: str | None = None, id: str | None = None
    ) -> Iterator[Reference]:
        """Yield rows in the order they came: of a holder, of a blob, of both, or all."""

    def uncommitted_references(self, cutoff: int) -> list[Reference]:
        """Return the intents of the cutoff or before that were not committed, oldest first."""

    def holders(self, intent: Intent) -> list[str]:
        """Return the owners whose life keeps an intent alive. Without any, only its age does."""

    def named_owners(self) -> set[str]:
        """Return the owners of intents that are not committed, and the sweeps that are deleting."""


class MemoryManifest:
    """The rows in memory. A change replaces them, so that a shallow copy is a state."""

    def __init__(self) -> None:
        self._blobs: dict[str, tuple[Blob, bytes | None]] = {}
        self._references: dict[tuple[str, str], Reference] = {}
        self._further: dict[tuple[str, str], tuple[str, ...]] = {}

    @contextlib.contextmanager
    def undone_if_it_fails(self) -> Iterator[None]:
        """Restore the rows if the block raises, and raise that."""
        before = dict(self._blobs), dict(self._references), dict(self._further)
        try:
            yield
        except BaseException:
            self._blobs, self._references, self._further = before
            raise

    # -- bytes ---------------------------------------------------------------------------------

    def blob_of(self, id: str) -> Blob | None:
        found = self._blobs.get(id)
        return None if found is None else found[0]

    def blobs(self) -> Iterator[Blob]:
        return iter([self._blobs[id][0] for id in sorted(self._blobs)])

    def data(self, id: str) -> bytes | None:
        found = self._blobs.get(id)
        return None if found is None else found[1]

    def keep_inline(self, id: str, data: bytes, *, now: int) -> None:
        before = self.blob_of(id)
        if before is not None:
            now = before.stored_at
        self._blobs[id] = (Blob(id, len(data), now, FREE, None, False), data)

    def keep_file(self, id: str, byte_len: int, *, now: int) -> None:
        self._blobs[id] = (Blob(id, byte_len, now, FREE, None, True), None)

    def mark(self, id: str, *, state: int, sweep: str | None) -> None:
        if id in self._blobs:
            blob, data = self._blobs[id]
            self._blobs[id] = (msgspec.structs.replace(blob, state=state, sweep=sweep), data)

    def revoke(self, id: str) -> None:
        blob = self.blob_of(id)
        if blob is not None and blob.state == CONDEMNED:
            self.mark(id, state=FREE, sweep=None)

    def drop_blob(self, id: str) -> None:
        self._blobs.pop(id, None)

    # -- who holds them ------------------------------------------------------------------------

    def upsert(self, intent: Intent, ref: AttachmentRef) -> None:
        key = (intent.session_id, intent.attachment_id)
        before = self._references.get(key)
        if before is None:
            self._references[key] = Reference(intent=intent, ref=ref)
            return
        self._references[key] = msgspec.structs.replace(before, ref=ref)
        known = (before.intent.owner, *self._further.get(key, ()))
        if before.committed_at_epoch_ms is None and intent.owner not in (None, *known):
            assert intent.owner is not None
            self._further[key] = (*self._further.get(key, ()), intent.owner)

    def commit(self, session_id: str, ids: Sequence[str], *, now: int) -> list[str]:
        there = []
        for id in ids:
            row = self._references.get((session_id, id))
            if row is None:
                continue
            if row.committed_at_epoch_ms is None:
                row = msgspec.structs.replace(row, committed_at_epoch_ms=now)
                self._references[session_id, id] = row
            self._further.pop((session_id, id), None)
            self.revoke(id)
            blob = self.blob_of(id)
            if blob is not None and blob.state != DELETING:
                there.append(id)
        return there

    def insert_committed(
        self, session_id: str, blobs: Sequence[tuple[AttachmentRef, bytes]], *, now: int
    ) -> None:
        for ref, data in blobs:
            self.keep_inline(ref.id, data, now=now)
            intent = Intent(session_id=session_id, attachment_id=ref.id, intent_at_epoch_ms=now)
            self.upsert(intent, ref)
        self.commit(session_id, [ref.id for ref, _ in blobs], now=now)

    def forget(self, session_id: str, id: str | None) -> None:
        for key in [key for key in self._references if key[0] == session_id]:
            if id in (None, key[1]):
                del self._references[key]
                self._further.pop(key, None)

    def references(
        self, *, session_id: str | None = None, id: str | None = None
    ) -> Iterator[Reference]:
        if session_id is not None and id is not None:
            one = self._references.get((session_id, id))
            return iter([] if one is None else [one])
        return iter(
            [
                row
                for (session, attachment), row in self._references.items()
                if session_id in (None, session) and id in (None, attachment)
            ]
        )

    def uncommitted_references(self, cutoff: int) -> list[Reference]:
        found = [
            row
            for row in self._references.values()
            if row.committed_at_epoch_ms is None and row.intent.intent_at_epoch_ms <= cutoff
        ]
        return sorted(found, key=lambda row: row.intent.intent_at_epoch_ms)

    def holders(self, intent: Intent) -> list[str]:
        first = [] if intent.owner is None else [intent.owner]
        return [*first, *self._further.get((intent.session_id, intent.attachment_id), ())]

    def named_owners(self) -> set[str]:
        named = {
            owner
            for row in self._references.values()
            if row.committed_at_epoch_ms is None
            for owner in self.holders(row.intent)
        }
        deleting = [blob for blob, _ in self._blobs.values() if blob.state == DELETING]
        return named | {blob.sweep for blob in deleting if blob.sweep is not None}


_: type[ManifestRows] = MemoryManifest
