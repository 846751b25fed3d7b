"""Snapshots: the interpreter's memory as pages, as one run of bytes, and kept in memory.

    16 bytes  magic
     4 bytes  format, then 4 bytes length of the header, both big-endian
     header   canonical JSON: the snapshot's identity, the guest, the state, the pages' places
     the rest the pages, one after another, as one raw deflate stream

Rule 1: written and read piece by piece. Beside the image itself, memory holds a piece or two.
Rule 2: hostile until parsed. Nothing is unpacked beyond what the header says, the header is bounded
before it is read, and whatever is not exactly what `packed` writes is a `StoreError`.
Rule 3: bytes are not checked against a digest here. Whoever keeps them does that.

Deflate costs as much as the bytes that it cannot make fewer: pages of objects halve, at 60 MB/s;
pages of repetitive data shrink to a tenth, five times as fast. So a group of pages is deflated only
if a page out of its middle becomes an eighth; else it is stored, in the same stream. Measured, 9.7
MB of objects: 11 ms and 9.6 MB instead of 167 ms and 4.6 MB, unpacked in 5 ms instead of 59; 138 MB
of repetitive text: 219 ms and 15 MB instead of 493 ms and 9 MB. Rejected: level 1 for all of it,
since a session is kept anew after every program; nothing at all, since 138 MB are not 15.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from tallystick.core.errors import InvalidName, SnapshotNotFound, StoreError
from tallystick.core.json_text import canonical

# Snapshots: the interpreter's memory as pages, with all that is needed to put them back.


PAGE_BYTES = 4_096
SNAPSHOT_TYPE = "application/vnd.tallystick.snapshot"
SNAPSHOTS_MAX = 10
# Of what a session tells of its variables.
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

    `pages` are those that differ from the guest's own image, in order. `guest` and `engine` name
    what made it; with another, the pages mean nothing. `session` is what the session itself needs.
    """

    guest: str
    engine: str
    memory_bytes: int
    state: Mapping[str, int]
    session: bytes
    indices: Sequence[int]
    pages: Sequence[bytes]


class SessionImage(msgspec.Struct, frozen=True, kw_only=True):
    """What a session keeps of a run's programs: their interpreter, or an archive of their files.

    `names` tells its variables in short, `values` are those that JSON can hold, where the backend
    can say them.
    """

    image: Image | bytes
    names: str
    values: bytes | None = None


class ImageOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """Who made an image: the digest of the guest, and the name of the engine."""

    guest: str
    engine: str


class SnapshotStore(Protocol):
    """Keeps images. A session has at most one current image, and named ones beside it."""

    def save(self, snapshot: SnapshotId, image: Image) -> None: ...

    def load(self, session_id: str, name: str) -> tuple[SnapshotId, Image]: ...

    def list(self, session_id: str) -> Sequence[SnapshotId]: ...

    def delete(self, session_id: str, name: str) -> None: ...


def check_snapshot_name(name: str) -> str:
    """Return `name`, or refuse it: it may end up in a path or a listing."""
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


# A snapshot as one run of bytes: what it is, a header, and its pages in one compressed stream.


MAGIC = b"tally snapshot\r\n"
FORMAT = 1
# Places of all pages of the largest memory take half of it.
HEADER_BYTES_MAX = 16 << 20
# What 32-bit addresses reach.
_MEMORY_BYTES_MAX = 1 << 32
_PREFIX = struct.Struct(f">{len(MAGIC)}sII")
_GROUP_PAGES = 64
_WORTH_IT = 8
_STORED, _FAST = 0, 1
_RAW = -zlib.MAX_WBITS
_PIECE_BYTES = _GROUP_PAGES * PAGE_BYTES


class _Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of a snapshot but the pages."""

    snapshot: SnapshotId
    guest: str
    engine: str
    memory_bytes: int
    state: dict[str, int]
    session: bytes
    indices: list[int]


_decode = msgspec.json.Decoder(_Header).decode


def packed(snapshot: SnapshotId, image: Image) -> Iterator[bytes]:
    """A snapshot in pieces. Refused, before the first, if it could not be read again."""
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


def unpacked(chunks: Iterable[bytes]) -> tuple[SnapshotId, Image]:
    """Read what `packed` wrote, to its last byte."""
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
    """Return who made a snapshot, from its first bytes. The pages are not read."""
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
        # Flushed to a whole byte and without a look back: the next group goes on in that stream.
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
    """So many bytes from the front, then the rest as it comes."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._left = b""

    def exactly(self, count: int) -> bytes:
        while len(self._left) < count:
            chunk = next(self._chunks, None)
            if chunk is None:
                raise StoreError("it ends in the middle")
            self._left += chunk
        taken, self._left = self._left[:count], self._left[count:]
        return taken

    def rest(self) -> Iterator[bytes]:
        yield self._left
        yield from self._chunks


def _header(encoded: bytes) -> _Header:
    try:
        header = _decode(encoded)
        # Else one snapshot could be spelled in two ways, or hold what nobody reads.
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
    """Unpack exactly so many pages. One piece too much is the most that is unpacked in vain."""
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
        # A full piece with nothing left to read may still have something to say.
        if not chunk and len(piece) < _PIECE_BYTES:
            return


# Snapshots kept in memory: for tests, and for sessions that end with their process.


class MemorySnapshotStore:
    """Images by session and name."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], tuple[SnapshotId, Image]] = {}

    def save(self, snapshot: SnapshotId, image: Image) -> None:
        self._kept[snapshot.session_id, snapshot.name] = (snapshot, image)

    def load(self, session_id: str, name: str) -> tuple[SnapshotId, Image]:
        return self._kept[self._find(session_id, name)]

    def list(self, session_id: str) -> Sequence[SnapshotId]:
        mine = [each for each, _ in self._kept.values() if each.session_id == session_id]
        return sorted(mine, key=lambda each: each.id)

    def delete(self, session_id: str, name: str) -> None:
        del self._kept[self._find(session_id, name)]

    def _find(self, session_id: str, name: str) -> tuple[str, str]:
        for snapshot in reversed(self.list(session_id)):
            if name in (snapshot.name, str(snapshot)):
                return session_id, snapshot.name
        raise SnapshotNotFound(name=name)


_: type[SnapshotStore] = MemorySnapshotStore
