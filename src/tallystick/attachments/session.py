"""Give one holder its attachments: put, commit, read what it holds, and release.

A put is an intent, then bytes. The intent keeps the bytes as long as this process lives. A commit
keeps them as long as the holder exists; it is made in the transaction of the event that carries the
reference.

    batch = held.batch()
    ref = batch.add(data, media_type="text/plain", label="stdout")
    ledger.append(run, [draft_with(ref)], ..., also=batch.commit)
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from tallystick.attachments.port import (
    AttachmentError,
    AttachmentNotFound,
    Attachments,
    CappedSource,
    Chunks,
    Declared,
    DurabilityTier,
    Intent,
    ManifestRecordFailed,
    Persistence,
    ReclamationInFlight,
    Reference,
    Source,
    Staged,
    Transaction,
    check_storage_id,
    has_end,
)
from tallystick.core.errors import InvalidName
from tallystick.core.records import AttachmentRef

_SESSION_CHARS_MAX = 128
# The most that is read of a source which may have no end.
ENDLESS_BYTES_MAX = 4 << 30


def snapshots_holder(session_id: str) -> str:
    """Return the id of the holder that keeps a session's snapshots: SESSION/snapshots."""
    return f"{session_id}/snapshots"


class SessionAttachments:
    """The attachments of one holder. Those of others are not found, even if they exist.

    A row is enough to be found, also a mere intent. A method with an id raises `AttachmentNotFound`
    without one, but for `delete`. It raises `InvalidName` for an id that is not safe as a file
    name, but for `commit`, which does not find it. Making a holder with a `session_id` of 0 or more
    than 128 characters, or unprintable ones, raises `InvalidName`. Errors of the ledger that has
    the rows are raised as they are.
    """

    def __init__(self, attachments: Attachments, *, session_id: str) -> None:
        if not 1 <= len(session_id) <= _SESSION_CHARS_MAX or not session_id.isprintable():
            raise InvalidName(
                what="session",
                given=session_id,
                why=f"a session's id has 1 to {_SESSION_CHARS_MAX} printable characters",
            )
        self.session_id = session_id
        self._attachments = attachments

    @property
    def persistence(self) -> Persistence:
        return self._attachments.persistence

    @property
    def tier(self) -> DurabilityTier:
        return self.persistence.tier

    def put(
        self,
        source: Source,
        *,
        media_type: str | None = None,
        label: str | None = None,
        width: int | None = None,
        height: int | None = None,
        bytes_max: int | None = None,
    ) -> AttachmentRef:
        """Keep bytes while this process lives, or until they are committed or deleted.

        The other arguments describe the bytes, as `Declared` does. Without `bytes_max`, bytes and
        regular files may have any length, and other sources, which may have no end, 4 GiB. Raise
        `AttachmentTooLong` for more. Raise `ManifestRecordFailed` if the intent cannot be written,
        and `ReclamationInFlight` if these bytes are being deleted; then no bytes are kept. Raise
        also what `Store.stage` raises, and `AttachmentIoFailed` if large bytes cannot be kept:
        their intent stays.
        """
        declared = Declared(media_type=media_type, label=label, width=width, height=height)
        if bytes_max is None and not has_end(source):
            bytes_max = ENDLESS_BYTES_MAX
        if bytes_max is not None:
            source = CappedSource(source, bytes_max=bytes_max)
        staged = self._attachments.stage(source, declared)
        try:
            if staged.data is None:
                self._put(staged, None, owner=self._owner(staged.ref))
            else:
                owner = self._owner(staged.ref)
                with self._attachments.writing(forced=False) as db:
                    self._put(staged, db, owner=owner)
        finally:
            staged.discard()
        return staged.ref

    def batch(self) -> Batch:
        """Return an empty batch, for puts that are kept and committed in one transaction."""
        return Batch(self._attachments, self)

    def intend(self, refs: Sequence[AttachmentRef]) -> None:
        """Record intents for attachments that are kept already for another holder.

        The intents keep them as `put` does. If one cannot be recorded, none is. Raise
        `AttachmentNotFound` if there are no such bytes, and `AttachmentMetaMissing` if large bytes
        have no row. Raise `ManifestRecordFailed` if this process cannot be an owner, and
        `ReclamationInFlight` if a sweep is deleting them.
        """
        with self._attachments.writing(forced=False) as db:
            for ref in refs:
                self._attachments.byte_len(ref.id)
                intent = Intent(
                    session_id=self.session_id,
                    attachment_id=ref.id,
                    intent_at_epoch_ms=self._attachments.clock(),
                    owner=self._owner(ref),
                )
                self._attachments.record_intent(intent, ref, within=db)

    def commit(
        self, ids: Sequence[str], *, within: Transaction = None, forced: bool = True
    ) -> None:
        """Hold attachments for as long as the holder exists.

        Raise `AttachmentNotFound` if one is not held, or has no bytes. Then a transaction of its
        own is undone; inside `within` the others are committed, so the caller must undo that one.
        `forced` applies only to a transaction of its own.
        """
        if within is None:
            with self._attachments.writing(forced=forced) as db:
                self._commit(ids, db)
        else:
            self._commit(ids, within)

    def chunks(self, id: str) -> Chunks:
        """Read an attachment piece by piece; a context manager, and an iterator.

        Raise `AttachmentNotFound` if it is not held or its bytes are gone. Raise
        `AttachmentCorrupt` if they are damaged: at once for a small one, before the last piece for
        a large one. Raise `AttachmentMetaMissing` if large bytes have no row, and
        `AttachmentIoFailed` if their file cannot be read.
        """
        return self._attachments.chunks(self.reference(id).ref.id)

    def read(self, id: str) -> bytes:
        """Return all of an attachment, checked before it is returned. Raise as `chunks` does."""
        with self.chunks(id) as chunks:
            return b"".join(chunks)

    def local(self, id: str) -> contextlib.AbstractContextManager[Path | None]:
        """Give a large attachment as a file, to be mapped and never written.

        None for a small one, and for one that is kept in memory. The file is there while inside.
        What is read from it is not checked: `chunks` does that. Raise `AttachmentNotFound` if it is
        not held or its bytes are gone, and `AttachmentMetaMissing` if large bytes have no row.
        """
        return self._attachments.local(self.reference(id).ref.id)

    def reference(self, id: str) -> Reference:
        """Return the row of an attachment of this holder, an intent or committed.

        Raise `AttachmentNotFound` if there is none.
        """
        found = self._attachments.references(self.session_id, check_storage_id(id))
        if not found:
            raise AttachmentNotFound(id=id)
        return found[0]

    def references(self, *, within: Transaction = None) -> Sequence[Reference]:
        """Return the rows of this holder, mere intents included, in the order they came."""
        return self._attachments.references(self.session_id, within=within)

    def delete(self, id: str, *, within: Transaction = None) -> None:
        """Release an attachment. Its bytes stay for other holders, and until a sweep finds none.

        It is harmless if it is not held.
        """
        self._attachments.forget(self.session_id, check_storage_id(id), within=within)

    def delete_all(self, *, within: Transaction = None) -> None:
        """Release everything, as when the holder itself is removed.

        Bytes stay until a sweep finds no other holder.
        """
        self._attachments.forget_session(self.session_id, within=within)

    # -- inside --------------------------------------------------------------------------------

    def _owner(self, ref: AttachmentRef) -> str | None:
        try:
            return self._attachments.owner()
        except AttachmentError as error:
            raise ManifestRecordFailed.of_intent(ref.id, error) from error

    def _put(self, staged: Staged, within: Transaction, *, owner: str | None) -> None:
        """Record the intent, then keep the bytes. If there can be no intent, there are no bytes.

        Any error of the intent is raised as `ManifestRecordFailed`, but for `ReclamationInFlight`.
        """
        intent = Intent(
            session_id=self.session_id,
            attachment_id=staged.ref.id,
            intent_at_epoch_ms=self._attachments.clock(),
            owner=owner,
        )
        try:
            self._attachments.record_intent(intent, staged.ref, within=within)
        except ReclamationInFlight:
            raise
        except Exception as error:
            raise ManifestRecordFailed.of_intent(staged.ref.id, error) from error
        self._attachments.keep(staged, within=within)

    def _commit(self, ids: Sequence[str], within: Transaction) -> None:
        held = self._attachments.commit_refs(self.session_id, ids, within=within)
        missing = sorted(set(ids) - set(held))
        if missing:
            raise AttachmentNotFound(id=missing[0])


class Batch:
    """Puts that are kept in the same transaction as the record that refers to them.

    Small ones wait in memory; large ones are in their files at once, held by an intent.
    """

    def __init__(self, attachments: Attachments, session: SessionAttachments) -> None:
        self._attachments = attachments
        self._session = session
        self._staged: list[Staged] = []
        self._filed: dict[str, None] = {}

    def add(
        self,
        source: Source,
        *,
        media_type: str | None = None,
        label: str | None = None,
    ) -> AttachmentRef:
        """Stage bytes and return their reference. They are held once the batch is committed.

        Large ones are kept at once, under an intent. The source may have any length, and has to
        end. Raise as `SessionAttachments.put` does, but for `AttachmentTooLong`.
        """
        declared = Declared(media_type=media_type, label=label)
        staged = self._attachments.stage(source, declared)
        ref = staged.ref
        if staged.data is not None:
            self._staged.append(staged)
        else:
            try:
                self._session._put(staged, None, owner=self._session._owner(ref))
            finally:
                staged.discard()
            self._filed[ref.id] = None
        return ref

    def commit(self, within: Transaction = None) -> None:
        """Keep and commit all of it, in the given transaction or in a forced one of its own.

        If that transaction fails, this can be called again in another: nothing is dropped from the
        batch. After a success it writes the same again, harmlessly. Raise `AttachmentNotFound` if
        the intent or the bytes of a large attachment are gone.
        """
        if within is None:
            with self._attachments.writing(forced=True) as db:
                self._write(db)
        else:
            self._write(within)

    def _write(self, db: Transaction) -> None:
        self._attachments.keep_committed(self._session.session_id, self._staged, within=db)
        self._session._commit(list(self._filed), db)
