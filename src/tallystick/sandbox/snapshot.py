"""Snapshots: interpreter memory as pages, its encoding as bytes, and a store in memory.

    16 bytes  magic
     4 bytes  format, then 4 bytes length of the header, both big-endian
     header   canonical JSON: the snapshot's identity, the guest, the state, the pages' places
     the rest the pages, one after another, as one raw deflate stream

Rule 1: snapshots are written and read piece by piece. Besides the image itself, memory holds one
or two pieces.
Rule 2: a snapshot is hostile until parsed. The size of the header is limited before it is read. No
more is unpacked than the header declares. Anything that `pack_snapshot` would not write is a
`StoreError`.
Rule 3: bytes are not checked against a digest here. The store that keeps them does that.

The time of deflate depends on how far the data shrinks. Pages of objects shrink to a half, at 60
MB/s. Pages of repetitive data shrink to a tenth, five times as fast. So a group of pages is
deflated only if one page from its middle shrinks to an eighth; otherwise it is stored, in the same
stream. Measured with 9.7 MB of objects: 11 ms and 9.6 MB instead of 167 ms and 4.6 MB, unpacked in
5 ms instead of 59. With 138 MB of repetitive text: 219 ms and 15 MB instead of 493 ms and 9 MB.
Rejected: level 1 for everything, because a session is stored again after every program; and no
compression, because 138 MB are too many where 15 are enough.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from tallystick.core.errors import InvalidName, SnapshotNotFound, StoreError
from tallystick.core.json_text import canonical

# Snapshots: interpreter memory as pages, with all that is needed to restore it.


PAGE_BYTES = 4_096
SNAPSHOT_TYPE = "application/vnd.tallystick.snapshot"
SNAPSHOTS_MAX = 10
# The longest list of names and types of a session's variables.
SESSION_NAMES_CHARS_MAX = 400
_NAME_CHARS_MAX = 256


class SnapshotId(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot's identity. `created_at` is milliseconds since 1970."""

    id: str
    name: str
    session_id: str
    created_at: int

    def __str__(self) -> str:
        return f"{self.name}:{self.id}"


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """Interpreter state between two programs.

    `pages` are those that differ from the guest's own image, each `PAGE_BYTES` long, at the page
    numbers `indices`, in order. `guest` and `engine` name what made them; with another guest or
    engine, the pages mean nothing. `session` holds the session's own data, encoded.
    """

    guest: str
    engine: str
    memory_bytes: int
    state: Mapping[str, int]
    session: bytes
    indices: Sequence[int]
    pages: Sequence[bytes]


class SessionImage(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run's programs for the next run: an interpreter, or an archive of their files.

    `names` lists the variables in short. `values` are the variables that JSON can hold, as JSON;
    None if the backend cannot read them.
    """

    image: Image | bytes
    names: str
    values: bytes | None = None


class ImageOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of an image: the digest of the guest, and the name of the engine."""

    guest: str
    engine: str


class SnapshotStore(Protocol):
    """Store images, each under its session and a name that is unique there."""

    def save(self, snapshot: SnapshotId, image: Image) -> None:
        """Store an image, in place of one with the same session and name."""
        ...

    def load(self, session_id: str, name: str) -> tuple[SnapshotId, Image]:
        """Return a snapshot of a session, by its name or by `name:id`.

        Raise `SnapshotNotFound` if there is none, and `StoreError` if it cannot be read.
        """
        ...

    def list(self, session_id: str) -> Sequence[SnapshotId]:
        """Return the snapshots of a session, sorted by id."""
        ...

    def delete(self, session_id: str, name: str) -> None:
        """Delete a snapshot of a session. Raise `SnapshotNotFound` if there is none."""
        ...


def check_snapshot_name(name: str) -> str:
    """Return `name`, or raise `InvalidName` if it would be unsafe in a path or a listing.

    That is an empty one, one of over 256 characters, or one with `/`, a backslash, `..` or a NUL.
    """
    why = None
    if not name:
        why = "it is empty"
    elif len(name) > _NAME_CHARS_MAX:
        why = f"it is longer than {_NAME_CHARS_MAX} characters"
    elif "/" in name or "\\" in name:
        why = "it holds a path separator"
    elif ".." in name:
        why = "it holds '..'"
    elif "\0" in name:
        why = "it holds a NUL"
    if why is not None:
        raise InvalidName(what="snapshot name", given=name, why=why)
    return name


# A snapshot as bytes: a magic number, a header, and the pages in one compressed stream.


MAGIC = b"tally snapshot\r\n"
FORMAT = 1
# The page numbers of the largest memory take half of this.
HEADER_BYTES_MAX = 16 << 20
# The limit of 32-bit addresses.
_MEMORY_BYTES_MAX = 1 << 32
_PREFIX = struct.Struct(f">{len(MAGIC)}sII")
_GROUP_PAGES = 64
_WORTH_IT = 8
_STORED, _FAST = 0, 1
_RAW = -zlib.MAX_WBITS
_PIECE_BYTES = _GROUP_PAGES * PAGE_BYTES


class _Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a snapshot without its pages."""

    snapshot: SnapshotId
    guest: str
    engine: str
    memory_bytes: int
    state: dict[str, int]
    session: bytes
    indices: list[int]


_decode = msgspec.json.Decoder(_Header).decode


def pack_snapshot(snapshot: SnapshotId, image: Image) -> Iterator[bytes]:
    """Encode a snapshot, in pieces.

    Raise `StoreError`, before the first piece, if `unpack_snapshot` could not read the result: its
    pages do not fit its places, or its header takes over 16 MiB.
    """
    header = _Header(
        snapshot=snapshot,
        guest=image.guest,
        engine=image.engine,
        memory_bytes=image.memory_bytes,
        state=dict(image.state),
        session=image.session,
        indices=list(image.indices),
    )
    _check_places(header)
    if len(image.pages) != len(header.indices):
        raise StoreError(f"{len(image.pages)} pages at {len(header.indices)} places")
    if any(len(page) != PAGE_BYTES for page in image.pages):
        raise StoreError(f"a page that does not have {PAGE_BYTES:,} bytes")
    try:
        encoded = canonical(header)
    except ValueError as error:
        raise StoreError(f"what cannot be written: {error}") from error
    if len(encoded) > HEADER_BYTES_MAX:
        raise StoreError(f"a header of {len(encoded):,} bytes; at most {HEADER_BYTES_MAX:,}")
    return _pieces(_PREFIX.pack(MAGIC, FORMAT, len(encoded)) + encoded, image.pages)


def unpack_snapshot(chunks: Iterable[bytes]) -> tuple[SnapshotId, Image]:
    """Decode a snapshot, to its last byte.

    Raise `StoreError` if `pack_snapshot` did not write it.
    """
    reader = _Reader(chunks)
    header = _read_header(reader)
    image = Image(
        guest=header.guest,
        engine=header.engine,
        memory_bytes=header.memory_bytes,
        state=header.state,
        session=header.session,
        indices=header.indices,
        pages=_pages(reader.rest(), count=len(header.indices)),
    )
    return header.snapshot, image


def read_origin(chunks: Iterable[bytes]) -> ImageOrigin:
    """Return the origin of a snapshot from its header. The pages are not read.

    Raise `StoreError` if the header is not one that `pack_snapshot` wrote.
    """
    header = _read_header(_Reader(chunks))
    return ImageOrigin(guest=header.guest, engine=header.engine)


def _read_header(reader: _Reader) -> _Header:
    magic, found, header_bytes = _PREFIX.unpack(reader.exactly(_PREFIX.size))
    if magic != MAGIC:
        raise StoreError("it is no snapshot")
    if found != FORMAT:
        raise StoreError(f"it has format {found}; this version reads {FORMAT}")
    if header_bytes > HEADER_BYTES_MAX:
        raise StoreError(f"a header of {header_bytes:,} bytes; at most {HEADER_BYTES_MAX:,}")
    return _header(reader.exactly(header_bytes))


# -- writing -----------------------------------------------------------------------------------


def _pieces(head: bytes, pages: Sequence[bytes]) -> Iterator[bytes]:
    yield head
    for start in range(0, len(pages), _GROUP_PAGES):
        group = pages[start : start + _GROUP_PAGES]
        # Ends at a whole byte and has no reference back, so another compressor can continue the
        # stream with the next group.
        packer = _packer(_level(group[len(group) // 2]))
        yield packer.compress(b"".join(group))
        yield packer.flush(zlib.Z_SYNC_FLUSH)
    yield _packer(_FAST).flush()


def _level(sample: bytes) -> int:
    packer = _packer(_FAST)
    length = len(packer.compress(sample)) + len(packer.flush())
    return _FAST if length * _WORTH_IT <= len(sample) else _STORED


def _packer(level: int) -> zlib._Compress:
    return zlib.compressobj(level, zlib.DEFLATED, _RAW)


# -- reading -----------------------------------------------------------------------------------


class _Reader:
    """A reader of chunks: an exact number of bytes from the front, then the rest as it comes."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._left = b""

    def exactly(self, count: int) -> bytes:
        """Return the next `count` bytes. Raise `StoreError` if there are fewer."""
        while len(self._left) < count:
            chunk = next(self._chunks, None)
            if chunk is None:
                raise StoreError("it ends in the middle")
            self._left += chunk
        taken, self._left = self._left[:count], self._left[count:]
        return taken

    def rest(self) -> Iterator[bytes]:
        """Yield the bytes that `exactly` has not returned."""
        yield self._left
        yield from self._chunks


def _header(encoded: bytes) -> _Header:
    try:
        header = _decode(encoded)
        # Otherwise one snapshot could be encoded in two ways, or hide data that is never read.
        if canonical(header) != encoded:
            raise StoreError("its header is not written as headers are")
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreError(f"its header cannot be read: {error}") from error
    _check_places(header)
    return header


def _check_places(header: _Header) -> None:
    if not 0 <= header.memory_bytes <= _MEMORY_BYTES_MAX:
        raise StoreError(f"a memory of {header.memory_bytes:,} bytes")
    end = header.memory_bytes // PAGE_BYTES
    before = -1
    for index in header.indices:
        if not before < index < end:
            raise StoreError(f"a page at {index} after {before}, of {end}")
        before = index


def _pages(chunks: Iterable[bytes], *, count: int) -> list[bytes]:
    """Unpack exactly `count` pages. Raise `StoreError` if there are more or fewer.

    At most one piece too many is unpacked before that is noticed.
    """
    unpacker = zlib.decompressobj(_RAW)
    pages: list[bytes] = []
    part = b""
    for chunk in chunks:
        if chunk and unpacker.eof:
            raise StoreError("bytes come after its end")
        for piece in _unpacked_pieces(unpacker, chunk):
            part += piece
            whole = len(part) // PAGE_BYTES * PAGE_BYTES
            pages += [part[at : at + PAGE_BYTES] for at in range(0, whole, PAGE_BYTES)]
            part = part[whole:]
            if len(pages) + bool(part) > count:
                raise StoreError(f"more than the {count} pages that it names")
    if not unpacker.eof or part or len(pages) != count:
        raise StoreError(f"fewer than the {count} pages that it names")
    if unpacker.unused_data:
        raise StoreError("bytes come after its end")
    return pages


def _unpacked_pieces(unpacker: zlib._Decompress, chunk: bytes) -> Iterator[bytes]:
    while not unpacker.eof:
        try:
            piece = unpacker.decompress(chunk, _PIECE_BYTES)
        except zlib.error as error:
            raise StoreError(f"its pages cannot be unpacked: {error}") from error
        chunk = unpacker.unconsumed_tail
        yield piece
        # After a full piece, the decompressor may hold more output even without more input.
        if not chunk and len(piece) < _PIECE_BYTES:
            return


# Snapshots kept in memory: for tests, and for sessions that end with their process.


class MemorySnapshotStore:
    """A snapshot store in memory. A snapshot is found by its name, or by `name:id`."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], tuple[SnapshotId, Image]] = {}

    def save(self, snapshot: SnapshotId, image: Image) -> None:
        """Keep an image, in place of one with the same session and name."""
        self._kept[snapshot.session_id, snapshot.name] = (snapshot, image)

    def load(self, session_id: str, name: str) -> tuple[SnapshotId, Image]:
        """Return a snapshot of a session. Raise `SnapshotNotFound` if there is none."""
        return self._kept[self._find(session_id, name)]

    def list(self, session_id: str) -> Sequence[SnapshotId]:
        """Return the snapshots of a session, sorted by id."""
        mine = [each for each, _ in self._kept.values() if each.session_id == session_id]
        return sorted(mine, key=lambda each: each.id)

    def delete(self, session_id: str, name: str) -> None:
        """Delete a snapshot of a session. Raise `SnapshotNotFound` if there is none."""
        del self._kept[self._find(session_id, name)]

    def _find(self, session_id: str, name: str) -> tuple[str, str]:
        for snapshot in reversed(self.list(session_id)):
            if name in (snapshot.name, str(snapshot)):
                return session_id, snapshot.name
        raise SnapshotNotFound(name=name)


_: type[SnapshotStore] = MemorySnapshotStore
