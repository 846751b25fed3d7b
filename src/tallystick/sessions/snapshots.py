"""Snapshots as attachments: each is one blob, and a session's references are its list.

A snapshot is a container (`tallystick.sandbox.snapshot`), held under the label `name:id:time`. So
its bytes are checked when they are read, live as long as their reference does, and no table beside
the manifest can disagree with it.

They are held by a session of their own, `SESSION/snapshots`. What a program puts and lists is held
by the session itself: so it can neither put what would be restored nor see when one was taken.

Replacing a snapshot is one transaction: the new reference is committed, the old one forgotten. The
old bytes are reclaimed right after it, and only those; if the process dies in between, they are no
longer anybody's and the next sweep takes them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from tallystick.attachments.collect import reclaim_forgotten
from tallystick.attachments.memory import MemoryAttachments
from tallystick.attachments.port import (
    AttachmentError,
    AttachmentNotFound,
    Attachments,
    Transaction,
)
from tallystick.attachments.session import SessionAttachments, snapshots_holder
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.core.errors import InvalidName, LedgerError, SnapshotNotFound, StoreError
from tallystick.core.records import AttachmentRef
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.sandbox.snapshot import (
    SNAPSHOT_TYPE,
    Image,
    ImageOrigin,
    SnapshotId,
    SnapshotStore,
    packed,
    read_origin,
    unpacked,
)

_Kept = tuple[SnapshotId, AttachmentRef]


@contextlib.contextmanager
def open_snapshots(ledger: Path) -> Iterator[AttachmentSnapshotStore]:
    """The snapshots beside a ledger, which is made if it is not there."""
    with SqliteLedger(ledger) as opened, SqliteAttachments(opened.file) as attachments:
        yield AttachmentSnapshotStore(attachments)


class AttachmentSnapshotStore:
    """Keeps snapshots among attachments, for as long as those are kept."""

    def __init__(self, attachments: Attachments) -> None:
        self._attachments = attachments

    def save(self, snapshot: SnapshotId, image: Image) -> None:
        """Keep an image. One of that name is replaced; a crash leaves the one or the other."""
        label = _label_of(snapshot)
        with _translated(snapshot.name):
            held = self._held(snapshot.session_id)
            batch = held.batch()
            ref = batch.add(packed(snapshot, image), media_type=SNAPSHOT_TYPE, label=label)
            with self._attachments.writing(forced=True) as db:
                replaced = [
                    old.id
                    for each, old in self._kept(snapshot.session_id, within=db)
                    if each.name == snapshot.name and old.id != ref.id
                ]
                batch.commit(db)
                for id in replaced:
                    held.delete(id, within=db)
        self._reclaim(replaced)

    def load(self, session_id: str, name: str) -> tuple[SnapshotId, Image]:
        with _translated(name):
            found = self._find(session_id, name)
            while True:
                snapshot, ref = found
                try:
                    with self._held(session_id).chunks(ref.id) as chunks:
                        kept, image = unpacked(chunks)
                    break
                except AttachmentNotFound:
                    # Replaced while we looked, or its bytes are lost.
                    before, found = found, self._find(session_id, name)
                    if found == before:
                        raise
            if kept != snapshot:
                raise StoreError(f"its bytes are those of {kept.name!r}")
        return snapshot, image

    def origin(self, session_id: str, name: str) -> ImageOrigin | None:
        """Return who made a snapshot, from its first bytes. None if there is none, or unreadable.

        The bytes are not checked: `load` does that.
        """
        try:
            _, ref = self._find(session_id, name)
            with self._held(session_id).chunks(ref.id) as chunks:
                return read_origin(chunks)
        except (AttachmentError, LedgerError, SnapshotNotFound, StoreError):
            return None

    def list(self, session_id: str) -> Sequence[SnapshotId]:
        with _translated(None):
            return [snapshot for snapshot, _ in self._kept(session_id)]

    def delete(self, session_id: str, name: str) -> None:
        with _translated(name), self._attachments.writing(forced=True) as db:
            _, ref = self._find(session_id, name, within=db)
            self._held(session_id).delete(ref.id, within=db)
        self._reclaim([ref.id])

    # -- inside --------------------------------------------------------------------------------

    def _held(self, session_id: str) -> SessionAttachments:
        return SessionAttachments(self._attachments, session_id=snapshots_holder(session_id))

    def _kept(self, session_id: str, *, within: Transaction = None) -> Sequence[_Kept]:
        """A session's snapshots in the order of their ids. An intent is none yet."""
        references = self._attachments.references(snapshots_holder(session_id), within=within)
        found = [
            (snapshot, each.ref)
            for each in references
            if each.committed_at_epoch_ms is not None and each.ref.media_type == SNAPSHOT_TYPE
            if (snapshot := _identity(session_id, each.ref.label)) is not None
        ]
        return sorted(found, key=lambda each: each[0].id)

    def _find(self, session_id: str, name: str, *, within: Transaction = None) -> _Kept:
        for snapshot, ref in reversed(self._kept(session_id, within=within)):
            if name in (snapshot.name, str(snapshot)):
                return snapshot, ref
        raise SnapshotNotFound(name=name)

    def _reclaim(self, ids: Sequence[str]) -> None:
        """Take bytes away that we let go of. It is done when we say so; this may fail, or wait."""
        if not ids:
            return
        with contextlib.suppress(AttachmentError, LedgerError):
            if isinstance(self._attachments, SqliteAttachments):
                reclaim_forgotten(self._attachments, ids)
            elif isinstance(self._attachments, MemoryAttachments):
                self._attachments.reclaim_forgotten(ids)


def _label_of(snapshot: SnapshotId) -> str:
    if ":" in snapshot.id:
        raise InvalidName(what="snapshot id", given=snapshot.id, why="it holds a colon")
    return f"{snapshot}:{snapshot.created_at}"


def _identity(session_id: str, label: str | None) -> SnapshotId | None:
    """What a label says, read from the right: a name may hold colons. None if it is not ours."""
    name, *rest = (label or "").rsplit(":", 2)
    if len(rest) != 2 or not (rest[1].isascii() and rest[1].removeprefix("-").isdigit()):
        return None
    return SnapshotId(id=rest[0], name=name, session_id=session_id, created_at=int(rest[1]))


@contextlib.contextmanager
def _translated(name: str | None) -> Iterator[None]:
    try:
        yield
    except (AttachmentError, LedgerError, StoreError) as error:
        what = "snapshots" if name is None else f"snapshot {name!r}"
        raise StoreError(f"{what}: {error}") from error


_: type[SnapshotStore] = AttachmentSnapshotStore
