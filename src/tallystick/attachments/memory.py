"""Keep attachments in memory: for tests, and for runs whose results are not needed afterwards."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from tallystick.attachments.manifest import MemoryManifest
from tallystick.attachments.port import (
    AttachmentNotFound,
    Attachments,
    Blobs,
    Intent,
    Manifest,
    Persistence,
    Reference,
    Transaction,
    is_digest,
)
from tallystick.attachments.store import WAIT_SECONDS, StoredAttachments
from tallystick.core.records import AttachmentRef
from tallystick.storage.clock import now_ms
from tallystick.storage.owner import MemoryOwners


class MemoryReader:
    """Reads bytes that are in memory, or a part of them."""

    where = "memory"

    def __init__(self, data: bytes, *, start: int, length: int | None) -> None:
        self.byte_len = len(data)
        stop = len(data) if length is None else start + length
        self._rest = memoryview(data)[start:stop]

    def read(self, size: int) -> bytes:
        piece, self._rest = self._rest[:size], self._rest[size:]
        return bytes(piece)

    def close(self) -> None:
        self._rest = memoryview(b"")


class MemoryBlobs:
    """Large bytes in memory. Putting a file reads it whole and removes it."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}

    def put(self, id: str, source: Path | bytes) -> None:
        if not is_digest(id):
            raise AttachmentNotFound(id=id)
        if isinstance(source, Path):
            self._blobs[id] = source.read_bytes()
            source.unlink()
        else:
            self._blobs[id] = source

    def open(self, id: str, start: int = 0, length: int | None = None) -> MemoryReader:
        if not is_digest(id) or (data := self._blobs.get(id)) is None:
            raise AttachmentNotFound(id=id)
        return MemoryReader(data, start=start, length=length)

    def size(self, id: str) -> int | None:
        data = self._blobs.get(id)
        return None if data is None else len(data)

    def remove(self, id: str) -> None:
        self._blobs.pop(id, None)

    def ids(self) -> Iterator[str]:
        return iter(sorted(self._blobs))

    @contextlib.contextmanager
    def local(self, id: str) -> Iterator[None]:
        self.open(id).close()
        yield None


class MemoryAttachments(StoredAttachments):
    """Keeps attachments as long as the process lives. Safe to share between threads."""

    def __init__(
        self, *, clock: Callable[[], int] = now_ms, wait_seconds: float = WAIT_SECONDS
    ) -> None:
        super().__init__(
            blobs=MemoryBlobs(), owners=MemoryOwners(), clock=clock, wait_seconds=wait_seconds
        )
        self._turn = threading.RLock()
        self._rows = MemoryManifest()

    @property
    def persistence(self) -> Persistence:
        return Persistence.EPHEMERAL

    @contextlib.contextmanager
    def writing(self, *, forced: bool) -> Iterator[None]:
        """Make one transaction: all of it or nothing, and no other thread sees half of it.

        `forced` changes nothing here. The transaction itself is None.
        """
        with self.changing(forced=forced):
            yield None

    @contextlib.contextmanager
    def looking(self) -> Iterator[MemoryManifest]:
        with self._turn:
            yield self._rows

    @contextlib.contextmanager
    def changing(self, *, forced: bool) -> Iterator[MemoryManifest]:
        with self._turn, self._rows.undone_if_it_fails():
            yield self._rows

    def changing_within(
        self, within: Transaction
    ) -> contextlib.AbstractContextManager[MemoryManifest]:
        # An outer transaction of this thread has the lock, and undoes this with the rest.
        return self.changing(forced=False)

    def scrub(self) -> None:
        """Do nothing: deleted bytes are not kept anywhere."""

    def staged_files(self) -> Iterable[tuple[str, Path]]:
        return ()

    def _begin(self) -> None:
        pass

    def _stage_large(
        self, chunks: Iterable[bytes | memoryview], *, in_memory: bool
    ) -> tuple[bytes, str, int]:
        data = b"".join(chunks)
        return data, hashlib.sha256(data).hexdigest(), len(data)


class NoManifest:
    """A manifest that stays empty, for bytes that are never collected.

    So no id is ever held: `commit_refs` returns none.
    """

    def record_intent(
        self, intent: Intent, ref: AttachmentRef, *, within: Transaction = None
    ) -> None: ...

    def commit_refs(
        self, session_id: str, ids: Sequence[str], *, within: Transaction = None
    ) -> Sequence[str]:
        return []

    def list_uncommitted(self, cutoff_epoch_ms: int) -> Sequence[Intent]:
        return []

    def forget(self, session_id: str, id: str, *, within: Transaction = None) -> None: ...

    def references(
        self, session_id: str | None = None, id: str | None = None, *, within: Transaction = None
    ) -> Sequence[Reference]:
        return []


_: type[Attachments] = MemoryAttachments
__: type[Manifest] = NoManifest
___: type[Blobs] = MemoryBlobs
