"""What one session does with attachments: put, commit, read what it holds, and let go.

A put is an intent, then bytes. The intent keeps the bytes as long as this process lives; a commit,
in the transaction of the event that carries the reference, keeps them as long as the session does.

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
)
from tallystick.core.errors import InvalidName
from tallystick.core.records import AttachmentRef

_SESSION_CHARS_MAX = 128


def snapshots_holder(session_id: str) -> str:
    """The session of the manifest that holds a session's snapshots."""
    return f"{session_id}/snapshots"


class SessionAttachments:
    """The attachments of one session. Others' are not found, whether they exist or not."""

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
    ) -> AttachmentRef:
        """Keep bytes for as long as this process lives, or until they are committed or deleted."""
        declared = Declared(media_type=media_type, label=label, width=width, height=height)
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
        """Several puts that are kept and committed in one transaction."""
        return Batch(self._attachments, self)

    def intend(self, refs: Sequence[AttachmentRef]) -> None:
        """Intend to hold what is kept already, for somebody else. It is held once committed."""
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
        """Hold attachments for as long as the session lives.

        Raises `AttachmentNotFound` and commits none if one is not held, or has no bytes: then the
        transaction that this is a part of must not happen either. `forced` is for one of its own.
        """
        if within is None:
            with self._attachments.writing(forced=forced) as db:
                self._commit(ids, db)
        else:
            self._commit(ids, within)

    def chunks(self, id: str) -> Chunks:
        """Read an attachment piece by piece; a context manager, and an iterator."""
        return self._attachments.chunks(self.reference(id).ref.id)

    def read(self, id: str) -> bytes:
        """All of an attachment, checked before any of it is returned."""
        with self.chunks(id) as chunks:
            return b"".join(chunks)

    def local(self, id: str) -> contextlib.AbstractContextManager[Path | None]:
        """Have a large attachment in a file, to be mapped and never written; None for a small one.

        The file is there while inside. What is read from it is not checked: `chunks` does that.
        """
        return self._attachments.local(self.reference(id).ref.id)

    def reference(self, id: str) -> Reference:
        """What this session knows of an attachment that it holds."""
        found = self._attachments.references(self.session_id, check_storage_id(id))
        if not found:
            raise AttachmentNotFound(id=id)
        return found[0]

    def references(self, *, within: Transaction = None) -> Sequence[Reference]:
        """Everything this session holds or intends to, in the order it came."""
        return self._attachments.references(self.session_id, within=within)

    def delete(self, id: str, *, within: Transaction = None) -> None:
        """Let go of an attachment. Its bytes stay for others, and until a sweep finds none."""
        self._attachments.forget(self.session_id, check_storage_id(id), within=within)

    def delete_all(self, *, within: Transaction = None) -> None:
        """Let go of everything, as when the session itself is removed."""
        self._attachments.forget_session(self.session_id, within=within)

    # -- inside --------------------------------------------------------------------------------

    def _owner(self, ref: AttachmentRef) -> str | None:
        try:
            return self._attachments.owner()
        except AttachmentError as error:
            raise ManifestRecordFailed.of_intent(ref.id, error) from error

    def _put(self, staged: Staged, within: Transaction, *, owner: str | None) -> None:
        """The intent, then the bytes. If there can be no intent, there are no bytes."""
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
    """Puts that come into being together with what refers to them.

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

        If that transaction fails, this can be called again in another.
        """
        if within is None:
            with self._attachments.writing(forced=True) as db:
                self._write(db)
        else:
            self._write(within)

    def _write(self, db: Transaction) -> None:
        self._attachments.keep_committed(self._session.session_id, self._staged, within=db)
        self._session._commit(list(self._filed), db)
