"""Keep large attachments, each in a file of its own named by its digest.

    <root>/ab/abcd…            an attachment, whole: it came here by a rename, never by writing
    <root>/staging/<owner>.<n> bytes on their way in, with their owner in the name
    <root>/owners/<owner>.lock held by a living owner (`tallystick.storage.owner`)

A file is written, forced, renamed, and then its directory is forced: in this order a final name
never stands for a part, also after a power cut.
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

from tallystick.attachments.port import (
    CHUNK_BYTES,
    AttachmentIoFailed,
    AttachmentNotFound,
    Blobs,
    is_digest,
)
from tallystick.storage import system
from tallystick.storage.clock import new_id
from tallystick.storage.private_file import force_directory, make_private, open_new

_STAGING = "staging"
_FOLLOWED_BYTES_MIN = 2 << 20
_FLUSH_BYTES = 8 << 20
_HANDED_MAX = 8
_numbers = itertools.count()


class BlobFiles:
    """The directory of one ledger's large attachments.

    It is made private, with the first of them. A method with an id raises `AttachmentNotFound` if
    it is no digest, and `InvalidName` if it is not safe as a file name. Each raises
    `AttachmentIoFailed` if the system fails.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, id: str) -> Path:
        """Return the path of an attachment, whether or not it is there.

        Raise `AttachmentNotFound` if the id is no digest, and `InvalidName` if it is not safe as a
        file name.
        """
        if not is_digest(id):
            raise AttachmentNotFound(id=id)
        return self.root / id[:2] / id

    def write(
        self, chunks: Iterable[bytes | memoryview], *, owner: str, in_memory: bool = False
    ) -> tuple[Path, str, int]:
        """Write bytes to a file in staging and force it. Return the file, their digest and length.

        With `in_memory`, the caller has all of them in memory anyway, so that keeping pieces is
        free. Raise `AttachmentIoFailed` if the system fails, and what `chunks` raises as it is; in
        both cases the file is removed.
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

    def put(self, id: str, source: Path | bytes) -> None:
        """Give a staged file its final name, also over one that is there: that repairs it.

        The file is moved. Bytes are staged first; if they then cannot be named, they stay in
        staging. Raise `AttachmentIoFailed` if the system fails.
        """
        if isinstance(source, bytes):
            source, _, _ = self.write([source], owner=new_id(), in_memory=True)
        path = self.path(id)
        try:
            make_private(path.parent, forced=True)
            source.rename(path)
            force_directory(path.parent)
        except OSError as error:
            raise AttachmentIoFailed.of(path, error) from error

    def open(self, id: str, start: int = 0, length: int | None = None) -> FileReader:
        """Open an attachment, or `length` bytes from `start`.

        Raise `AttachmentNotFound` if it is not there.
        """
        return FileReader(self.path(id), id=id, start=start, length=length)

    @contextlib.contextmanager
    def local(self, id: str) -> Iterator[Path]:
        """Give the path of the file while inside. What is mapped outlives the name of the file.

        Raise `AttachmentNotFound` if it is not there. Nothing keeps a sweep from removing it.
        """
        path = self.path(id)
        if self.size(id) is None:
            raise AttachmentNotFound(id=id)
        yield path

    def size(self, id: str) -> int | None:
        """Return the length of the file in bytes, None if there is none."""
        path = self.path(id)
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return None
        except OSError as error:
            raise AttachmentIoFailed.of(path, error) from error

    def remove(self, id: str) -> None:
        """Unlink an attachment. It is harmless if there is none.

        Processes that read it now can read on to its end.
        """
        path = self.path(id)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise AttachmentIoFailed.of(path, error) from error

    def ids(self) -> Iterator[str]:
        """Yield every final name there is, sorted, with or without a row."""
        for folder in sorted(self._entries(self.root)):
            if len(folder) == 2:
                for name in sorted(self._entries(self.root / folder)):
                    if name[:2] == folder and is_digest(name):
                        yield name

    def staged(self) -> Iterator[tuple[str, Path]]:
        """Yield every file in staging, sorted by name: its owner, by that name, and its path."""
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


class FileReader:
    """Reads a file, or a part of it.

    It is open from the start, so that a sweep cannot remove it in the middle. Making one raises
    `AttachmentNotFound` if there is no file, and `AttachmentIoFailed` if it cannot be opened.
    """

    def __init__(self, path: Path, *, id: str, start: int, length: int | None) -> None:
        self._path = path
        self._left = length
        try:
            # Nonblocking: opening a pipe in the place of the file would wait for its writer.
            self._descriptor = os.open(
                path, os.O_RDONLY | system.CLOEXEC | system.NOFOLLOW | system.NONBLOCK
            )
        except FileNotFoundError:
            raise AttachmentNotFound(id=id) from None
        except OSError as error:
            raise AttachmentIoFailed.of(path, error) from error
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self.byte_len = os.fstat(self._descriptor).st_size
        if start:
            os.lseek(self._descriptor, start, os.SEEK_SET)

    @property
    def where(self) -> str:
        return str(self._path)

    def read(self, size: int) -> bytes:
        wanted = size if self._left is None else min(size, self._left)
        if not wanted or not self._close.alive:
            return b""
        try:
            piece = os.read(self._descriptor, wanted)
        except OSError as error:
            raise AttachmentIoFailed.of(self._path, error) from error
        if self._left is not None:
            self._left -= len(piece)
        return piece

    def close(self) -> None:
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

    def note_written(self, piece: bytes | memoryview) -> None:
        """Note the piece that was written last. It may be kept until it is hashed."""
        with self._changed:
            if self._handed_max is None or len(self._handed) < self._handed_max:
                self._handed.append((self._written, piece))
            self._written += len(piece)
            self._changed.notify()

    def join(self) -> None:
        """Wait until all that was written is hashed. Raise `OSError` if it could not be read."""
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
    """Write pieces to an open file and force it. Return their digest and their length.

    Once 2 MiB are written, a thread computes the digest of the rest (`_Follower`). Its error is
    raised at the end. Raise `OSError` if the system fails, and what `chunks` raises.
    """
    hashed = hashlib.sha256()
    length = flushed = 0
    handed_max = None if in_memory else _HANDED_MAX
    follower: _Follower | None = None
    try:
        for chunk in chunks:
            _write_all(descriptor, chunk)
            length += len(chunk)
            if follower is not None:
                follower.note_written(chunk)
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
    """Start writing pages to the disk now, so that the `fsync` at the end has less to wait for.

    Dirty pages stay in memory. Do nothing on a system without such advice.
    """
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, start, count, os.POSIX_FADV_DONTNEED)


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


_: type[Blobs] = BlobFiles
