"""The interpreters of sessions as attachments: kept, read, and let go of.

They are held by the manifest's session `SESSION/snapshots`, where no program sees them. Which of
them a session needs is the book's word; what it does not name is let go of.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from tallystick.attachments.collect import reclaim_forgotten
from tallystick.attachments.errors import AttachmentError
from tallystick.attachments.port import AttachmentRef
from tallystick.attachments.session import SessionAttachments
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.core.errors import LedgerError
from tallystick.runtime.shelf import SNAPSHOT_TYPE
from tallystick.runtime.snapshots import holder_of
from tallystick.sandbox.container import packed
from tallystick.sandbox.snapshot import Image, SnapshotId

__all__ = ["SessionImages"]


class SessionImages:
    """Images among attachments, each once, however many snapshots are of it."""

    def __init__(self, attachments: SqliteAttachments) -> None:
        self._attachments = attachments

    def keep(self, session: str, *, run: str, image: Image | bytes) -> AttachmentRef:
        """Keep an image for a session, on the disk. It is the book's to name it.

        Bytes are the files of a session of native programs.
        """
        # The same interpreter is the same bytes, whenever it was left.
        snapshot = SnapshotId(id=run, name="session", session_id=session, created_at=0)
        held = self._held(session)
        pieces = image if isinstance(image, bytes) else packed(snapshot, image)
        ref = held.put(pieces, media_type=SNAPSHOT_TYPE, label="of a session")
        held.commit([ref.id])
        return ref

    def free(self, session: str, needed: Collection[str] = ()) -> int:
        """Let go of all that is not needed. Gives how many; bytes that nobody else holds go."""
        held = self._held(session)
        ids = [each.ref.id for each in held.references() if each.ref.id not in needed]
        for id in ids:
            held.delete(id)
        if ids:
            # It is done when we say so. The bytes may stay for a sweep.
            with contextlib.suppress(AttachmentError, LedgerError):
                reclaim_forgotten(self._attachments, ids)
        return len(ids)

    def _held(self, session: str) -> SessionAttachments:
        return SessionAttachments(self._attachments, session_id=holder_of(session))
