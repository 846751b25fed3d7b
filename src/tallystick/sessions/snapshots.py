"""The images of interpreters that sessions keep, as attachments.

    with open_snapshots(ledger_path()) as images:
        sandbox = WasmSandbox.load(cache=cache_directory(), store=images)

An image is a container (`tallystick.sandbox.snapshot`). Its bytes are checked when they are read,
and live as long as a reference to them. All images of a session have a holder of their own,
`SESSION/snapshots`. What a program puts and lists belongs to the holder of the session itself. So a
program can neither put bytes that would be restored, nor see when an image was taken.

The book of sessions names images by their references (`keep`, `load_image`, `free`). A sandbox
without a book names them itself (`save`, `load`, `list`, `delete`): the label `name:id:time` of the
reference is the snapshot's identity, so no table beside the manifest can disagree with it.

Replacing a named image is one transaction: the new reference is committed, the old one deleted. The
old bytes are reclaimed right after it, and only those. If the process dies in between, they have no
holder any more, and the next garbage collection deletes them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import msgspec

from tallystick.attachments.collect import CollectableAttachments, reclaim_forgotten
from tallystick.attachments.port import (
    AttachmentError,
    AttachmentNotFound,
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
    pack_snapshot,
    read_origin,
    unpack_snapshot,
)
from tallystick.sessions.values import VALUES_TYPE

_OF_A_SESSION = "of a session"
_NamedImage = tuple[SnapshotId, AttachmentRef]


@contextlib.contextmanager
def open_snapshots(ledger: Path) -> Iterator[SessionImages]:
    """Open the images in the attachments of a ledger, which is created if it is not there.

    Both are closed on the way out.
    """
    with SqliteLedger(ledger) as opened, SqliteAttachments(opened.file) as attachments:
        yield SessionImages(attachments)


class SessionImages:
    """Images among attachments. The same image is stored once, however many names it has.

    Methods for the book of sessions raise `AttachmentError` and `LedgerError` unless they say
    otherwise.
    """

    def __init__(self, attachments: CollectableAttachments) -> None:
        self._attachments = attachments

    # -- images that the book of sessions names ------------------------------------------------

    def keep(self, session: str, *, run: str, image: Image | bytes) -> AttachmentRef:
        """Store an image on the disk for a session, and return its reference.

        The caller must add it to the book, or `free` releases it. An image that is bytes is the
        files of a session of native programs.
        """
        # The time is always 0, so that the same interpreter is stored as the same bytes.
        snapshot = SnapshotId(id=run, name="session", session_id=session, created_at=0)
        held = self._holder(session)
        pieces = image if isinstance(image, bytes) else pack_snapshot(snapshot, image)
        ref = held.put(pieces, media_type=SNAPSHOT_TYPE, label=_OF_A_SESSION)
        held.commit([ref.id])
        return ref

    def keep_values(self, session: str, values: bytes) -> AttachmentRef:
        """Store the recorded values of an interpreter. The caller must add them to the book."""
        held = self._holder(session)
        ref = held.put(values, media_type=VALUES_TYPE, label="values of a session")
        held.commit([ref.id])
        return ref

    def share(self, session: str, ref: AttachmentRef) -> AttachmentRef:
        """Make a session a holder of another one's image. The caller must add it to the book.

        Raise `AttachmentNotFound` if its bytes are gone.
        """
        ref = msgspec.structs.replace(ref, label=_OF_A_SESSION)
        held = self._holder(session)
        held.intend([ref])
        held.commit([ref.id])
        return ref

    def read(self, session: str, ref: AttachmentRef) -> bytes:
        """Return the bytes of an attachment of a session.

        Raise `StoreError` if they are gone or damaged, and `LedgerError` if rows cannot be read.
        """
        try:
            return self._holder(session).read(ref.id)
        except AttachmentError as error:
            raise StoreError(f"session {session}: {error}") from error

    def load_image(self, session: str, ref: AttachmentRef) -> Image:
        """Read an image of the WASM sandbox. Raise `AttachmentError` or `StoreError` on failure."""
        with self._holder(session).chunks(ref.id) as chunks:
            return unpack_snapshot(chunks)[1]

    def origin(self, session: str, ref: AttachmentRef) -> ImageOrigin | None:
        """Return who made an image, read from its first bytes; None if that cannot be read.

        The bytes are not checked: only reading all of them does that.
        """
        try:
            with self._holder(session).chunks(ref.id) as chunks:
                return read_origin(chunks)
        except (AttachmentError, LedgerError, StoreError):
            return None

    def free(self, session: str, needed: Collection[str] = ()) -> int:
        """Release the images that are not needed, and delete bytes that have no other holder.

        Return how many were released. Bytes that cannot be deleted now are left to garbage
        collection.
        """
        held = self._holder(session)
        ids = [each.ref.id for each in held.references() if each.ref.id not in needed]
        for id in ids:
            held.delete(id)
        self._reclaim(ids)
        return len(ids)

    # -- images that a sandbox names -----------------------------------------------------------

    def save(self, snapshot: SnapshotId, image: Image) -> None:
        """Store an image, replacing one of that name. A crash leaves the old one or the new one.

        Raise `StoreError` if that fails, and `InvalidName` if the id holds a colon.
        """
        label = _label_of(snapshot)
        with _translate_errors(snapshot.name):
            held = self._holder(snapshot.session_id)
            batch = held.batch()
            ref = batch.add(pack_snapshot(snapshot, image), media_type=SNAPSHOT_TYPE, label=label)
            with self._attachments.writing(forced=True) as db:
                replaced = [
                    old.id
                    for each, old in self._named_images(snapshot.session_id, within=db)
                    if each.name == snapshot.name and old.id != ref.id
                ]
                batch.commit(db)
                for id in replaced:
                    held.delete(id, within=db)
        self._reclaim(replaced)

    def load(self, session_id: str, name: str) -> tuple[SnapshotId, Image]:
        """Return a named image, by its name or `name:id`.

        If the name is replaced meanwhile, the newer image is read. Raise `SnapshotNotFound` if
        there is none, and `StoreError` if its bytes are lost, damaged or another's.
        """
        with _translate_errors(name):
            found = self.find(session_id, name)
            while True:
                snapshot, ref = found
                try:
                    with self._holder(session_id).chunks(ref.id) as chunks:
                        kept, image = unpack_snapshot(chunks)
                    break
                except AttachmentNotFound:
                    # It was replaced since `find`, or its bytes are lost: if the name still
                    # leads to the same reference, they are lost.
                    before, found = found, self.find(session_id, name)
                    if found == before:
                        raise
            if kept != snapshot:
                raise StoreError(f"its bytes are those of {kept.name!r}")
        return snapshot, image

    def list(self, session_id: str) -> Sequence[SnapshotId]:
        """Return the identities of the named images of a session, in the order of their ids.

        Raise `StoreError` if the rows cannot be read.
        """
        with _translate_errors(None):
            return [snapshot for snapshot, _ in self._named_images(session_id)]

    def delete(self, session_id: str, name: str) -> None:
        """Delete a named image, by its name or `name:id`, and its bytes if no one else holds them.

        Raise `SnapshotNotFound` if there is none, and `StoreError` if that fails.
        """
        with _translate_errors(name), self._attachments.writing(forced=True) as db:
            _, ref = self.find(session_id, name, within=db)
            self._holder(session_id).delete(ref.id, within=db)
        self._reclaim([ref.id])

    def find(self, session_id: str, name: str, *, within: Transaction = None) -> _NamedImage:
        """Return the identity and the reference of a named image, by its name or `name:id`.

        Of several with the name, the newest counts. Raise `SnapshotNotFound` if there is none.
        """
        for snapshot, ref in reversed(self._named_images(session_id, within=within)):
            if name in (snapshot.name, str(snapshot)):
                return snapshot, ref
        raise SnapshotNotFound(name=name)

    # -- inside --------------------------------------------------------------------------------

    def _holder(self, session_id: str) -> SessionAttachments:
        return SessionAttachments(self._attachments, session_id=snapshots_holder(session_id))

    def _named_images(
        self, session_id: str, *, within: Transaction = None
    ) -> Sequence[_NamedImage]:
        """Return a session's named images in the order of their ids, committed ones only."""
        references = self._attachments.references(snapshots_holder(session_id), within=within)
        found = [
            (snapshot, each.ref)
            for each in references
            if each.committed_at_epoch_ms is not None and each.ref.media_type == SNAPSHOT_TYPE
            if (snapshot := _identity(session_id, each.ref.label)) is not None
        ]
        return sorted(found, key=lambda each: each[0].id)

    def _reclaim(self, ids: Sequence[str]) -> None:
        """Delete bytes without a holder. A failure is ignored: garbage collection does it later."""
        if not ids:
            return
        with contextlib.suppress(AttachmentError, LedgerError):
            reclaim_forgotten(self._attachments, ids)


def _label_of(snapshot: SnapshotId) -> str:
    if ":" in snapshot.id:
        raise InvalidName(what="snapshot id", given=snapshot.id, why="it holds a colon")
    return f"{snapshot}:{snapshot.created_at}"


def _identity(session_id: str, label: str | None) -> SnapshotId | None:
    """Return the identity in a label; None if it has another form.

    Parsed from the right, because a name may contain colons.
    """
    name, *rest = (label or "").rsplit(":", 2)
    if len(rest) != 2 or not (rest[1].isascii() and rest[1].removeprefix("-").isdigit()):
        return None
    return SnapshotId(id=rest[0], name=name, session_id=session_id, created_at=int(rest[1]))


@contextlib.contextmanager
def _translate_errors(name: str | None) -> Iterator[None]:
    try:
        yield
    except (AttachmentError, LedgerError, StoreError) as error:
        what = "snapshots" if name is None else f"snapshot {name!r}"
        raise StoreError(f"{what}: {error}") from error


_: type[SnapshotStore] = SessionImages
