"""Whether every committed reference has its bytes, and whether they are the ones that were put."""

from __future__ import annotations

import msgspec

from tallystick.attachments import rows
from tallystick.attachments.errors import AttachmentError, AttachmentNotFound
from tallystick.attachments.sqlite import SqliteAttachments

__all__ = ["BadAttachment", "VerifyReport", "verify_attachments"]


class BadAttachment(msgspec.Struct, frozen=True, kw_only=True):
    """An attachment that somebody holds and nobody can have, and why."""

    id: str
    sessions: tuple[str, ...]
    why: str


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was read again. Each blob is read once, however many hold it."""

    ok: bool
    references: int
    blobs: int
    bytes: int
    bad: tuple[BadAttachment, ...]


def verify_attachments(
    attachments: SqliteAttachments, *, session_id: str | None = None
) -> VerifyReport:
    """Read the bytes of every committed reference, of one session or of all."""
    holders: dict[str, list[str]] = {}
    lengths: dict[str, set[int]] = {}
    with attachments.reading() as db:
        if db is not None:
            for each in rows.references(db, session_id=session_id):
                if each.committed_at_epoch_ms is not None:
                    holders.setdefault(each.ref.id, []).append(each.intent.session_id)
                    lengths.setdefault(each.ref.id, set()).add(each.ref.byte_len)
    bad = []
    total = 0
    for id, sessions in holders.items():
        try:
            length = _length(attachments, id)
            why = None if lengths[id] == {length} else f"it has {length} bytes, not as referred to"
            total += length
        except AttachmentNotFound:
            why = "its bytes are gone"
        except AttachmentError as error:
            why = str(error)
        if why is not None:
            bad.append(BadAttachment(id=id, sessions=tuple(sessions), why=why))
    return VerifyReport(
        ok=not bad,
        references=sum(map(len, holders.values())),
        blobs=len(holders),
        bytes=total,
        bad=tuple(bad),
    )


def _length(attachments: SqliteAttachments, id: str) -> int:
    with attachments.chunks(id) as chunks:
        return sum(map(len, chunks))
