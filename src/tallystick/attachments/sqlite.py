"""Attachments beside a ledger: small ones in its file, large ones in files next to it.

Small means that a row costs less than a file, and can be part of the transaction that appends an
event. Measured, put and forced one by one: at 4 KiB a row takes a third of a file's time, at 64 KiB
under a half, at 256 KiB a half, at 1 MiB more than a file. The limit is below that, since a row
makes the ledger's file and its log grow, and is written twice.

The directory is named after the ledger's file, as SQLite names its log: two ledgers in one
directory must not sweep each other's files.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

from tallystick.attachments import rows
from tallystick.attachments.files import BlobFiles, FileChunks
from tallystick.attachments.media import HEAD_BYTES, described
from tallystick.attachments.port import (
    NOTHING_DECLARED,
    AttachmentCorrupt,
    AttachmentIoFailed,
    AttachmentMetaMissing,
    AttachmentNotFound,
    Attachments,
    Chunks,
    Declared,
    Intent,
    Persistence,
    ReclamationInFlight,
    Reference,
    Source,
    Staged,
    Transaction,
    chunked,
    is_digest,
)
from tallystick.core.records import AttachmentRef
from tallystick.storage.clock import now_ms
from tallystick.storage.owner import FileOwners, Owner, Owners

INLINE_BYTES_MAX = 64 << 10
_WAIT_SECONDS = 10.0
_PAUSE_SECONDS = 0.005


class Database(Protocol):
    """The file under a ledger, as far as attachments need it."""

    @property
    def path(self) -> Path: ...

    def reading(self) -> contextlib.AbstractContextManager[sqlite3.Connection]: ...

    def writing(self, *, forced: bool) -> contextlib.AbstractContextManager[sqlite3.Connection]: ...

    def sweep(self) -> None: ...


class SqliteAttachments:
    """Keeps attachments across processes. Closed, it gives up its ownership of open intents."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Callable[[], int] = now_ms,
        wait_seconds: float = _WAIT_SECONDS,
    ) -> None:
        root = database.path.with_name(f"{database.path.name}-attachments")
        self.files = BlobFiles(root)
        self.owners: Owners = FileOwners(root / "owners", failed=AttachmentIoFailed.of)
        self._clock = clock
        self._database = database
        self._wait_seconds = wait_seconds
        self._guard = threading.Lock()
        self._owner: Owner | None = None
        self._made = False

    def __enter__(self) -> SqliteAttachments:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def persistence(self) -> Persistence:
        return Persistence.DURABLE

    def clock(self) -> int:
        return self._clock()

    def owner(self) -> str:
        with self._guard:
            if self._owner is None:
                self._owner = self.owners.hold()
            return self._owner.id

    def close(self) -> None:
        """Let go. Intents that were not committed are from now on a dead owner's."""
        with self._guard:
            owner, self._owner = self._owner, None
        if owner is not None:
            named = True
            with contextlib.suppress(Exception), self.reading() as db:
                named = db is not None and owner.id in rows.named_owners(db)
                named = named or any(owner.id == each for each, _ in self.files.staged())
            owner.release(remove=not named)

    # -- the store -----------------------------------------------------------------------------

    def stage(self, source: Source, declared: Declared = NOTHING_DECLARED) -> Staged:
        self._make()
        if isinstance(source, bytes) and len(source) <= INLINE_BYTES_MAX:
            return _staged_whole(source, declared)
        pieces = chunked(source)
        head = bytearray()
        for piece in pieces:
            head += piece
            if len(head) > INLINE_BYTES_MAX:
                break
        if len(head) <= INLINE_BYTES_MAX:
            return _staged_whole(bytes(head), declared)
        in_memory = isinstance(source, bytes | bytearray | memoryview)
        return self._stage_file(bytes(head), pieces, declared, in_memory=in_memory)

    def keep(self, staged: Staged, *, within: Transaction = None) -> None:
        id, now = staged.ref.id, self.clock()
        if staged.data is not None:
            data = staged.data
            with self._joined(within) as db:
                rows.keep_inline(db, id, data, now=now)
        elif staged.path is not None:
            # Also over one that is there: it is the same bytes, or a damaged file that is mended.
            self.files.publish(staged.path, id)
            with self._joined(within) as db:
                found = rows.blob_of(db, id)
                if found is not None and self._being_deleted(found):
                    raise ReclamationInFlight(id=id)
                if found is None or found.state != rows.FREE or not found.filed:
                    rows.keep_file(db, id, staged.ref.byte_len, now=now)
        staged.discard()

    def keep_committed(
        self, session_id: str, staged: Sequence[Staged], *, within: Transaction = None
    ) -> None:
        blobs = [(each.ref, each.data) for each in staged if each.data is not None]
        with self._joined(within) as db:
            rows.insert_committed(db, session_id, blobs, now=self.clock())

    def chunks(self, id: str) -> Chunks:
        blob, data = self._found(id)
        if blob.filed:
            return FileChunks(self.files.path(id), id=id, byte_len=blob.byte_len)
        if data is None or hashlib.sha256(data).hexdigest() != id:
            raise AttachmentCorrupt(id=id, why="the bytes in its row are others")
        return WholeChunks(data)

    def byte_len(self, id: str) -> int:
        return self._found(id, data=False)[0].byte_len

    def local_path(self, id: str) -> Path | None:
        blob, _ = self._found(id, data=False)
        return self.files.path(id) if blob.filed else None

    # -- the manifest --------------------------------------------------------------------------

    def record_intent(
        self, intent: Intent, ref: AttachmentRef, *, within: Transaction = None
    ) -> None:
        give_up = time.monotonic() + self._wait_seconds
        while True:
            with self._joined(within) as db:
                if self._admitted(db, intent.attachment_id, ref):
                    rows.upsert(db, intent, ref)
                    return
            if within is not None or time.monotonic() >= give_up:
                raise ReclamationInFlight(id=intent.attachment_id)
            time.sleep(_PAUSE_SECONDS)

    def commit_refs(
        self, session_id: str, ids: Sequence[str], *, within: Transaction = None
    ) -> Sequence[str]:
        if not ids:
            return []
        with self._joined(within) as db:
            return rows.commit(db, session_id, ids, now=self.clock())

    def list_uncommitted(self, cutoff_epoch_ms: int) -> Sequence[Intent]:
        with self.reading() as db:
            found = [] if db is None else rows.uncommitted(db, cutoff_epoch_ms)
        return [reference.intent for reference in found]

    def forget(self, session_id: str, id: str, *, within: Transaction = None) -> None:
        with self._joined(within) as db:
            rows.forget(db, session_id, id)

    def forget_session(self, session_id: str, *, within: Transaction = None) -> None:
        with self._joined(within) as db:
            rows.forget(db, session_id, None)

    def references(
        self, session_id: str | None = None, id: str | None = None, *, within: Transaction = None
    ) -> Sequence[Reference]:
        with self.reading() if within is None else contextlib.nullcontext(within) as db:
            return [] if db is None else list(rows.references(db, session_id=session_id, id=id))

    # -- transactions --------------------------------------------------------------------------

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection | None]:
        """Look at the tables; None if there are none yet."""
        with self._database.reading() as db:
            self._made = self._made or rows.made(db, create=False)
            yield db if self._made else None

    @contextlib.contextmanager
    def writing(self, *, forced: bool) -> Iterator[sqlite3.Connection]:
        self._make()
        with self._database.writing(forced=forced) as db:
            yield db

    def scrub(self) -> None:
        """Take deleted bytes out of the ledger's log too, as far as no reader still needs it."""
        self._database.sweep()

    @contextlib.contextmanager
    def _joined(self, within: Transaction) -> Iterator[sqlite3.Connection]:
        """The transaction that was given, or one of our own."""
        if within is None:
            with self.writing(forced=False) as db:
                yield db
        else:
            if not self._made:
                # Not remembered: that transaction may yet be rolled back.
                rows.made(within, create=True)
            yield within

    def _make(self) -> None:
        """Make the tables, in a transaction of their own."""
        if not self._made:
            with self._database.writing(forced=False) as db:
                rows.made(db, create=True)
            self._made = True

    # -- inside --------------------------------------------------------------------------------

    def _stage_file(
        self,
        head: bytes,
        rest: Iterator[bytes | memoryview],
        declared: Declared,
        *,
        in_memory: bool,
    ) -> Staged:
        seen = bytearray(head[:HEAD_BYTES])

        def all_of_it() -> Iterator[bytes | memoryview]:
            yield head
            for piece in rest:
                if len(seen) < HEAD_BYTES:
                    seen.extend(piece[: HEAD_BYTES - len(seen)])
                yield piece

        # Before anything is written: a bad declaration is the caller's to mend.
        described(id="", byte_len=0, head=b"", declared=declared)
        path, id, length = self.files.write(all_of_it(), owner=self.owner(), in_memory=in_memory)
        ref = described(id=id, byte_len=length, head=bytes(seen), declared=declared)
        return Staged(ref=ref, path=path)

    def _found(self, id: str, *, data: bool = True) -> tuple[rows.Blob, bytes | None]:
        if not is_digest(id):
            raise AttachmentNotFound(id=id)
        with self.reading() as db:
            blob = None if db is None else rows.blob_of(db, id)
            if db is not None and blob is not None and blob.state != rows.DELETING:
                if blob.filed or not data:
                    return blob, None
                # Between the two looks another process may have deleted what nobody holds.
                if row := db.execute(rows.DATA, (id,)).fetchone():
                    return blob, row[0] if isinstance(row[0], bytes) else None
                blob = None
        if blob is None and self.files.size(id) is not None:
            raise AttachmentMetaMissing(id=id)
        raise AttachmentNotFound(id=id)

    def _admitted(self, db: sqlite3.Connection, id: str, ref: AttachmentRef) -> bool:
        """Whether an intent may be recorded now: nobody is deleting the bytes it is about."""
        rows.revoke(db, id)
        if ref.byte_len <= INLINE_BYTES_MAX:
            return True  # its row takes the place of whatever is going
        blob = rows.blob_of(db, id)
        if blob is None or blob.state == rows.FREE:
            return True
        if self._being_deleted(blob):
            return False
        rows.drop_blob(db, id)
        return True

    def _being_deleted(self, blob: rows.Blob) -> bool:
        if blob.state != rows.DELETING or blob.sweep is None:
            return False
        return not self.owners.proven_dead(blob.sweep)


def _staged_whole(data: bytes, declared: Declared) -> Staged:
    id = hashlib.sha256(data).hexdigest()
    return Staged(ref=described(id=id, byte_len=len(data), head=data, declared=declared), data=data)


class WholeChunks:
    """Bytes that are in memory and were checked, in pieces of at most a chunk."""

    def __init__(self, data: bytes) -> None:
        self._pieces = (bytes(piece) for piece in chunked(data))

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return next(self._pieces)

    def __enter__(self) -> WholeChunks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pieces.close()


_: type[Attachments] = SqliteAttachments
