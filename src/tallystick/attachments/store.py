"""Store attachments and their manifest, over the rows, large blobs and owners of any backend.

Small ones are kept in their rows, large ones as blobs. Small means that a row costs less than a
file, and can be part of the transaction that appends an event. Measured, put and forced one by one:
at 4 KiB a row takes a third of a file's time, at 64 KiB under a half, at 256 KiB a half, at 1 MiB
more than a file. The limit is below that, since a row makes the ledger's file and its log grow, and
is written twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from tallystick.attachments.manifest import DELETING, FREE, Blob, ManifestRows
from tallystick.attachments.media import HEAD_BYTES, reference_to
from tallystick.attachments.port import (
    CHUNK_BYTES,
    NOTHING_DECLARED,
    AttachmentCorrupt,
    AttachmentMetaMissing,
    AttachmentNotFound,
    BlobReader,
    Blobs,
    Chunks,
    Declared,
    Intent,
    ReclamationInFlight,
    Reference,
    Source,
    Staged,
    Transaction,
    in_chunks,
    is_digest,
)
from tallystick.core.records import AttachmentRef
from tallystick.storage.owner import Owner, Owners

INLINE_BYTES_MAX = 64 << 10
WAIT_SECONDS = 10.0
_PAUSE_SECONDS = 0.005


class StoredAttachments:
    """The part that all backends share. A backend provides rows, and stages what is large.

    A method that reads or writes rows raises the errors of the backend, and `AttachmentCorrupt` for
    a damaged row. `chunks`, `byte_len` and `local` raise `InvalidName` for an id that is not safe
    as a file name.
    """

    def __init__(
        self, *, blobs: Blobs, owners: Owners, clock: Callable[[], int], wait_seconds: float
    ) -> None:
        self._blobs = blobs
        self.owners = owners
        self._clock = clock
        self._wait_seconds = wait_seconds
        self._guard = threading.Lock()
        self._owner: Owner | None = None

    @property
    def blobs(self) -> Blobs:
        """The store of large bytes."""
        return self._blobs

    def clock(self) -> int:
        return self._clock()

    def owner(self) -> str:
        """Return the owner of this process's intents.

        The first call makes one, and so does the first after `close`. Raise the error of
        `Owners.hold` if it cannot be made.
        """
        with self._guard:
            if self._owner is None:
                self._owner = self.owners.hold()
            return self._owner.id

    def close(self) -> None:
        """Give up ownership. Intents that were not committed are from now on a dead owner's.

        The proof of that death is removed if nothing names the owner; it stays if that cannot be
        read. No error is raised. Closing twice is harmless.
        """
        with self._guard:
            owner, self._owner = self._owner, None
        if owner is not None:
            named = True
            with contextlib.suppress(Exception), self.looking() as rows:
                found = rows is not None and owner.id in rows.named_owners()
                # Last: if either cannot be read, the proof has to stay.
                named = found or any(owner.id == each for each, _ in self.staged_files())
            owner.release(remove=not named)

    # -- implemented by a backend --------------------------------------------------------------

    def looking(self) -> contextlib.AbstractContextManager[ManifestRows | None]:
        """Give the rows, to be read in one state; None if there are none yet."""
        raise NotImplementedError

    def changing(self, *, forced: bool) -> contextlib.AbstractContextManager[ManifestRows]:
        """Give the rows, to be changed in a transaction of its own, undone if the block raises.

        A forced one is on the disk when it ends, if there is a disk.
        """
        raise NotImplementedError

    def changing_within(
        self, within: Transaction
    ) -> contextlib.AbstractContextManager[ManifestRows]:
        """Give the rows, to be changed in the given transaction.

        With None, it is one of its own that is not forced.
        """
        raise NotImplementedError

    def staged_files(self) -> Iterable[tuple[str, Path]]:
        """Yield the files in staging, each after the id of its owner; nothing without staging."""
        raise NotImplementedError

    def _begin(self) -> None:
        """Make the backend ready to be written.

        It is called before every staging, and by SQLite before every transaction that writes. So it
        has to be cheap, and harmless when repeated.
        """
        raise NotImplementedError

    def _stage_large(
        self, chunks: Iterable[bytes | memoryview], *, in_memory: bool
    ) -> tuple[Path | bytes, str, int]:
        """Store large bytes under no name. Return them, their digest and their length.

        It is called once for each source above 64 KiB. With `in_memory`, the caller has all of the
        bytes in memory anyway, so that keeping pieces is free.
        """
        raise NotImplementedError

    # -- the store -----------------------------------------------------------------------------

    def stage(self, source: Source, declared: Declared = NOTHING_DECLARED) -> Staged:
        """Take in bytes, with bounded memory, and detect their media type and size.

        Up to 64 KiB stay in memory (`data`); more is a `blob`. Raise `AttachmentSourceFailed` if
        the source cannot be read, and `InvalidName` or `InvalidLimit` for a declaration that is not
        valid: then nothing is left behind. Raise `AttachmentIoFailed` if large bytes cannot be
        written.
        """
        self._begin()
        if isinstance(source, bytes) and len(source) <= INLINE_BYTES_MAX:
            return _stage_whole(source, declared)
        pieces = in_chunks(source)
        head = bytearray()
        for piece in pieces:
            head += piece
            if len(head) > INLINE_BYTES_MAX:
                break
        if len(head) <= INLINE_BYTES_MAX:
            return _stage_whole(bytes(head), declared)
        in_memory = isinstance(source, bytes | bytearray | memoryview)
        # Checks the declaration before anything is written.
        reference_to(id="", byte_len=0, head=b"", declared=declared)
        seen = bytearray(head[:HEAD_BYTES])
        whole = _note_head(bytes(head), pieces, seen)
        blob, id, length = self._stage_large(whole, in_memory=in_memory)
        ref = reference_to(id=id, byte_len=length, head=bytes(seen), declared=declared)
        return Staged(ref=ref, blob=blob)

    def keep(self, staged: Staged, *, within: Transaction = None) -> None:
        """Make staged bytes findable by their id, and release them. Discarded ones are passed over.

        Raise `ReclamationInFlight` if a sweep is deleting the same large bytes. Their file may have
        been moved by then, so discard them and stage them again. Raise `AttachmentIoFailed` if a
        large blob cannot be put.
        """
        id, now = staged.ref.id, self.clock()
        if staged.data is not None:
            data = staged.data
            with self.changing_within(within) as rows:
                rows.keep_inline(id, data, now=now)
        elif staged.blob is not None:
            # Also over one that is there: it has the same bytes, or is damaged and gets repaired.
            self.blobs.put(id, staged.blob)
            with self.changing_within(within) as rows:
                found = rows.blob_of(id)
                if found is not None and self._is_being_deleted(found):
                    raise ReclamationInFlight(id=id)
                if found is None or found.state != FREE or not found.filed:
                    rows.keep_file(id, staged.ref.byte_len, now=now)
        staged.discard()

    def keep_committed(
        self, session_id: str, staged: Sequence[Staged], *, within: Transaction = None
    ) -> None:
        """Write intent, bytes and commit of staged bytes that are in memory, all at once.

        Those without `data` are passed over: large ones, and those that were discarded.
        """
        blobs = [(each.ref, each.data) for each in staged if each.data is not None]
        with self.changing_within(within) as rows:
            rows.insert_committed(session_id, blobs, now=self.clock())

    def chunks(self, id: str) -> Chunks:
        """Read an attachment. Raise `AttachmentNotFound`, or `AttachmentCorrupt` for damaged bytes.

        Raise `AttachmentMetaMissing` if there are large bytes without a row. A small attachment is
        checked at once, a large one before its last piece. One that a sweep is deleting is not
        found. Raise `AttachmentIoFailed` if a file cannot be read.
        """
        blob, data = self._find(id)
        if blob.filed:
            return BlobChunks(self.blobs.open(id), id=id, byte_len=blob.byte_len)
        if data is None or hashlib.sha256(data).hexdigest() != id:
            raise AttachmentCorrupt(id=id, why="the bytes in its row are others")
        return WholeChunks(data)

    def byte_len(self, id: str) -> int:
        return self._find(id, data=False)[0].byte_len

    @contextlib.contextmanager
    def local(self, id: str) -> Iterator[Path | None]:
        blob, _ = self._find(id, data=False)
        with self.blobs.local(id) if blob.filed else contextlib.nullcontext() as path:
            yield path

    # -- the manifest --------------------------------------------------------------------------

    def record_intent(
        self, intent: Intent, ref: AttachmentRef, *, within: Transaction = None
    ) -> None:
        """Insert a row, and withdraw a sweep's decision to delete those bytes.

        A row that is there keeps its time and gets the new `ref`; until it is committed, it gets
        this owner too. If a sweep is deleting large bytes, this asks every 5 ms until it is done or
        dead, 10 seconds by default. Raise `ReclamationInFlight` after that, or at once inside the
        transaction `within`.
        """
        give_up = time.monotonic() + self._wait_seconds
        while True:
            with self.changing_within(within) as rows:
                if self._may_be_recorded(rows, intent.attachment_id, ref):
                    rows.upsert(intent, ref)
                    return
            if within is not None or time.monotonic() >= give_up:
                raise ReclamationInFlight(id=intent.attachment_id)
            time.sleep(_PAUSE_SECONDS)

    def commit_refs(
        self, session_id: str, ids: Sequence[str], *, within: Transaction = None
    ) -> Sequence[str]:
        if not ids:
            return []
        with self.changing_within(within) as rows:
            return rows.commit(session_id, ids, now=self.clock())

    def list_uncommitted(self, cutoff_epoch_ms: int) -> Sequence[Intent]:
        with self.looking() as rows:
            found = [] if rows is None else rows.uncommitted_references(cutoff_epoch_ms)
        return [reference.intent for reference in found]

    def forget(self, session_id: str, id: str, *, within: Transaction = None) -> None:
        with self.changing_within(within) as rows:
            rows.forget(session_id, id)

    def forget_session(self, session_id: str, *, within: Transaction = None) -> None:
        with self.changing_within(within) as rows:
            rows.forget(session_id, None)

    def references(
        self, session_id: str | None = None, id: str | None = None, *, within: Transaction = None
    ) -> Sequence[Reference]:
        with self.looking() if within is None else self.changing_within(within) as rows:
            found = () if rows is None else rows.references(session_id=session_id, id=id)
            return list(found)

    # -- inside --------------------------------------------------------------------------------

    def _find(self, id: str, *, data: bool = True) -> tuple[Blob, bytes | None]:
        """Return the row of an attachment, and its bytes if they are small and `data` is True.

        Raise `AttachmentNotFound` if there is none, or a sweep is deleting it. Raise
        `AttachmentMetaMissing` if there is a large blob without a row.
        """
        if not is_digest(id):
            raise AttachmentNotFound(id=id)
        with self.looking() as rows:
            blob = None if rows is None else rows.blob_of(id)
            if rows is not None and blob is not None and blob.state != DELETING:
                return blob, None if blob.filed or not data else rows.data(id)
        if blob is None and self.blobs.size(id) is not None:
            raise AttachmentMetaMissing(id=id)
        raise AttachmentNotFound(id=id)

    def _may_be_recorded(self, rows: ManifestRows, id: str, ref: AttachmentRef) -> bool:
        """Return True if an intent may be recorded: no living sweep is deleting its large bytes.

        A sweep's decision to delete them is withdrawn, and the row that a dead sweep was deleting
        is removed: those bytes count as gone.
        """
        rows.revoke(id)
        if ref.byte_len <= INLINE_BYTES_MAX:
            return True  # its row replaces a blob that is being deleted
        blob = rows.blob_of(id)
        if blob is None or blob.state == FREE:
            return True
        if self._is_being_deleted(blob):
            return False
        rows.drop_blob(id)
        return True

    def _is_being_deleted(self, blob: Blob) -> bool:
        if blob.state != DELETING or blob.sweep is None:
            return False
        return not self.owners.proven_dead(blob.sweep)


def _note_head(
    head: bytes, rest: Iterator[bytes | memoryview], seen: bytearray
) -> Iterator[bytes | memoryview]:
    """Yield all pieces, and add those of `rest` to `seen` until it has `HEAD_BYTES`."""
    yield head
    for piece in rest:
        if len(seen) < HEAD_BYTES:
            seen.extend(piece[: HEAD_BYTES - len(seen)])
        yield piece


def _stage_whole(data: bytes, declared: Declared) -> Staged:
    id = hashlib.sha256(data).hexdigest()
    return Staged(
        ref=reference_to(id=id, byte_len=len(data), head=data, declared=declared), data=data
    )


class WholeChunks:
    """Bytes that are in memory and were checked, in pieces of at most a chunk."""

    def __init__(self, data: bytes) -> None:
        self._pieces = (bytes(piece) for piece in in_chunks(data))

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return next(self._pieces)

    def __enter__(self) -> WholeChunks:
        return self

    def __exit__(self, *raised: object) -> None:
        self._pieces.close()


class BlobChunks:
    """Reads a blob, and returns its last piece only if the digest of the whole is right.

    Else it raises `AttachmentCorrupt`: at once if the length is wrong, or in the place of the piece
    that is missing or last. The reader is then closed. An `AttachmentIoFailed` of the reader passes
    as it is.
    """

    def __init__(self, reader: BlobReader, *, id: str, byte_len: int) -> None:
        self._reader = reader
        self._id = id
        self._left = byte_len
        self._hash = hashlib.sha256()
        if reader.byte_len != byte_len:
            reader.close()
            why = f"{reader.where} has {reader.byte_len} bytes, not {byte_len}"
            raise AttachmentCorrupt(id=id, why=why)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if not self._left:
            self.close()
            raise StopIteration
        piece = self._reader.read(min(CHUNK_BYTES, self._left))
        self._hash.update(piece)
        self._left -= len(piece)
        if not piece or (not self._left and self._hash.hexdigest() != self._id):
            self.close()
            why = f"the bytes in {self._reader.where} are others"
            raise AttachmentCorrupt(id=self._id, why=why)
        return piece

    def __enter__(self) -> BlobChunks:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the reader. No further piece comes, and no error of the rest."""
        self._left = 0
        self._reader.close()
