"""Large attachments, each a file of its own under its digest.

    <root>/ab/abcd…            an attachment, whole: it came here by a rename, never by writing
    <root>/staging/<owner>.<n> bytes on their way in; whose they are is in the name
    <root>/owners/<owner>.lock held by a living owner (`tallystick.storage.owner`)

Written, forced, renamed, and the directory forced: in this order a final name never stands for a
part, also after a power cut.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import itertools
import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

from tallystick.attachments.port import (
    CHUNK_BYTES,
    AttachmentCorrupt,
    AttachmentIoFailed,
    AttachmentNotFound,
    is_digest,
)
from tallystick.storage import system
from tallystick.storage.private_file import force_directory, make_private, open_new

_STAGING = "staging"
_FOLLOWED_BYTES_MIN = 2 << 20
_FLUSH_BYTES = 8 << 20
_HANDED_MAX = 8
_numbers = itertools.count()


class BlobFiles:
    """The directory of one ledger's large attachments. Made private, when the first one comes."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, id: str) -> Path:
        if not is_digest(id):
            raise AttachmentNotFound(id=id)
        return self.root / id[:2] / id

    def write(
        self, chunks: Iterable[bytes | memoryview], *, owner: str, in_memory: bool = False
    ) -> tuple[Path, str, int]:
        """Write bytes to a file in staging and force it. Returns it, their digest and length.

        `in_memory`: the caller has all of them in memory anyway, so that keeping pieces is free.
        """
        folder = self.root / _STAGING
        path = folder / f"{owner}.{next(_numbers)}"
        try:
            make_private(folder, forced=True)
            descriptor = open_new(path)
            try:
                digest, length = _write_hashed(descriptor, chunks, in_memory=in_memory)
            finally:
                os.close(descriptor)
        except BaseException as error:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise AttachmentIoFailed.of(path, error) from error
            raise
        return path, digest, length

    def publish(self, staged: Path, id: str) -> None:
        """Give a staged file its final name. One that is there already is the same bytes."""
        path = self.path(id)
        try:
            make_private(path.parent, forced=True)
            staged.rename(path)
            force_directory(path.parent)
        except OSError as error:
            raise AttachmentIoFailed.of(path, error) from error

    def size(self, id: str) -> int | None:
        """How long the file is, None if there is none."""
        path = self.path(id)
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return None
        except OSError as error:
            raise AttachmentIoFailed.of(path, error) from error

    def remove(self, id: str) -> None:
        """Unlink an attachment. Those who read it now can go on to its end."""
        path = self.path(id)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise AttachmentIoFailed.of(path, error) from error

    def ids(self) -> Iterator[str]:
        """Every final name there is, with or without a row."""
        for folder in sorted(self._entries(self.root)):
            if len(folder) == 2:
                for name in sorted(self._entries(self.root / folder)):
                    if name[:2] == folder and is_digest(name):
                        yield name

    def staged(self) -> Iterator[tuple[str, Path]]:
        """Every file in staging, with its owner."""
        folder = self.root / _STAGING
        for name in sorted(self._entries(folder)):
            yield name.partition(".")[0], folder / name

    def _entries(self, folder: Path) -> list[str]:
        try:
            return os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise AttachmentIoFailed.of(folder, error) from error


class FileChunks:
    """Reads a file, and hands out its last piece only when the digest of the whole is right.

    The file is open from the start, so that a sweep cannot take it away in the middle.
    """

    def __init__(self, path: Path, *, id: str, byte_len: int) -> None:
        self._id = id
        self._left = byte_len
        self._path = path
        self._hash = hashlib.sha256()
        try:
            # Nonblocking: a pipe in the place of the file would wait for its writer for ever.
            self._descriptor = os.open(
                path, os.O_RDONLY | system.CLOEXEC | system.NOFOLLOW | system.NONBLOCK
            )
        except FileNotFoundError:
            raise AttachmentNotFound(id=id) from None
        except OSError as error:
            raise AttachmentIoFailed.of(path, error) from error
        self._close = weakref.finalize(self, os.close, self._descriptor)
        found = os.fstat(self._descriptor).st_size
        if found != byte_len:
            self._close()
            raise AttachmentCorrupt(id=id, why=f"{path} has {found} bytes, not {byte_len}")

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if not self._left or not self._close.alive:
            self.close()
            raise StopIteration
        try:
            piece = os.read(self._descriptor, min(CHUNK_BYTES, self._left))
        except OSError as error:
            raise AttachmentIoFailed.of(self._path, error) from error
        self._hash.update(piece)
        self._left -= len(piece)
        if not piece or (not self._left and self._hash.hexdigest() != self._id):
            self.close()
            raise AttachmentCorrupt(id=self._id, why=f"the bytes in {self._path} are others")
        return piece

    def __enter__(self) -> FileChunks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._left = 0
        self._close()


# One core writes and waits for the disk while another hashes: SHA-256 takes as long as the disk, so
# one after the other would be half as fast as the disk. Pieces are handed over as long as few wait;
# beyond that the follower reads them back from the page cache. So it may fall behind without the
# pieces piling up in memory, and the disk is forced while it catches up.
class _Follower:
    """Hashes a file in a thread of its own while it is being written."""

    def __init__(
        self, descriptor: int, *, hashed: hashlib._Hash, start: int, handed_max: int | None
    ) -> None:
        self._descriptor = descriptor
        self._hash = hashed
        self._at = start
        self._written = start
        self._handed_max = handed_max
        self._handed: collections.deque[tuple[int, bytes | memoryview]] = collections.deque()
        self._ended = False
        self._error: OSError | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._follow, name="attachment-digest", daemon=True)
        self._thread.start()

    def wrote(self, piece: bytes | memoryview) -> None:
        with self._changed:
            if self._handed_max is None or len(self._handed) < self._handed_max:
                self._handed.append((self._written, piece))
            self._written += len(piece)
            self._changed.notify()

    def join(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _follow(self) -> None:
        buffer = memoryview(bytearray(CHUNK_BYTES))
        try:
            while (piece := self._next(buffer)) is not None:
                self._hash.update(piece)
                self._at += len(piece)
        except OSError as error:
            self._error = error

    def _next(self, buffer: memoryview) -> bytes | memoryview | None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._written > self._at)
            if self._handed and self._handed[0][0] == self._at:
                return self._handed.popleft()[1]
            end = self._handed[0][0] if self._handed else self._written
            room = min(CHUNK_BYTES, end - self._at)
        if not room:
            return None
        return buffer[: os.preadv(self._descriptor, [buffer[:room]], self._at)]


def _write_hashed(
    descriptor: int, chunks: Iterable[bytes | memoryview], *, in_memory: bool
) -> tuple[str, int]:
    hashed = hashlib.sha256()
    length = flushed = 0
    handed_max = None if in_memory else _HANDED_MAX
    follower: _Follower | None = None
    try:
        for chunk in chunks:
            _write_all(descriptor, chunk)
            length += len(chunk)
            if follower is not None:
                follower.wrote(chunk)
            else:
                hashed.update(chunk)
                if length >= _FOLLOWED_BYTES_MIN:
                    follower = _Follower(
                        descriptor, hashed=hashed, start=length, handed_max=handed_max
                    )
            if length - flushed >= _FLUSH_BYTES:
                _start_writing_back(descriptor, flushed, length - flushed)
                flushed = length
        os.fsync(descriptor)
    finally:
        if follower is not None:
            follower.join()
    return hashed.hexdigest(), length


def _start_writing_back(descriptor: int, start: int, count: int) -> None:
    """Have the disk begin now what the end will wait for. Pages that are dirty stay in memory."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, start, count, os.POSIX_FADV_DONTNEED)


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
