"""One run as a stream of bytes: written in one pass, read as if an enemy had written it.

    magic        "tallystick ledger export" and a line feed
    header       one line of canonical JSON: format, run, count, hash of the head, fence, moved, and
                 how many attachments, if any
    entries      `count` times: length of header (4 bytes), 1 if it has a body or 0 if that was
                 erased (1 byte), length of body (4 bytes), hash (32 bytes), header, and with a body
                 its salt (16 bytes) and the body
    attachments  so many times: length of reference (4 bytes), length of bytes (8 bytes), the
                 reference as canonical JSON, the bytes
    digest       SHA-256 of everything above

Format 1 is the same without attachments. Lengths are big-endian. Nothing is compressed and no
length is believed before as many bytes were read, so a reader holds at most one body or one piece
of an attachment, and an importer stores no more than it was sent. Nothing in the stream becomes a
path.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Protocol

import msgspec

from tallystick.core.canonical import canonical
from tallystick.core.chain import GENESIS, SALT_BYTES, Sealed
from tallystick.core.errors import TransferRefused
from tallystick.core.ids import is_ulid
from tallystick.ledger.port import ATTACHMENTS_MAX, BODY_BYTES_MAX, Carried, ExportHeader
from tallystick.ledger.verify import check_entry

__all__ = ["FORMAT", "MAGIC", "Readable", "StreamReader", "write_stream"]

FORMAT = 2
_FORMATS = (1, 2)
MAGIC = b"tallystick ledger export\n"
_HEADER_LINE_BYTES_MAX = 1_024
_ENTRY_HEADER_BYTES_MAX = 65_536
# A label of a thousand characters takes at most 6,000 bytes; the rest of a reference is short.
_REF_BYTES_MAX = 8_192
_NUMBER_MAX = 1 << 53
_PIECE_BYTES = 1 << 20
_HASH_BYTES = 32
_FRAME = struct.Struct(">IBI")
_CARRIED_FRAME = struct.Struct(">IQ")


class _Format(msgspec.Struct, frozen=True):
    """The one field that every version of the header has."""

    format: int


class Readable(Protocol):
    """What a stream is read from."""

    def read(self, count: int, /) -> bytes: ...


def write_stream(
    file: BinaryIO,
    header: ExportHeader,
    entries: Iterable[Sealed],
    carried: Iterable[Carried] = (),
) -> None:
    """Write a run. `entries` and `carried` are as many as the header says, in order.

    The pieces of an attachment have to be as long as it says. That they are is for them to see to:
    a file in which they are not is refused by every reader.
    """
    digest = hashlib.sha256()

    def put(data: bytes) -> None:
        digest.update(data)
        file.write(data)

    put(MAGIC + canonical(header) + b"\n")
    for entry in entries:
        body = entry.body or b""
        there = entry.body is not None
        put(_FRAME.pack(len(entry.header), there, len(body)) + bytes.fromhex(entry.hash))
        put(entry.header + (entry.salt or b""))
        put(body)
    for each in carried:
        put(_CARRIED_FRAME.pack(len(each.ref), each.byte_len) + each.ref)
        for piece in each.pieces:
            put(piece)
    file.write(digest.digest())


class StreamReader:
    """Reads a run and believes nothing. Called in order: header, entries, attachments, end.

    Only who came to the end knows that all of it holds. What the attachments are is not looked at.
    """

    def __init__(self, file: Readable, *, name: str) -> None:
        self._file = file
        self._name = name
        self._digest = hashlib.sha256()

    def header(self) -> ExportHeader:
        """Read the beginning."""
        if self._some(len(MAGIC)) != MAGIC:
            raise self._refused("it is no export of a run")
        self._digest.update(MAGIC)
        line = bytearray()
        while not line.endswith(b"\n"):
            if len(line) == _HEADER_LINE_BYTES_MAX:
                raise self._refused("its header is too long")
            line += self._exactly(1, "its header")
        return self._parsed(bytes(line[:-1]))

    def entries(self, header: ExportHeader) -> Iterator[Sealed]:
        """Read and check every entry, and that they end in the head."""
        previous = GENESIS.hex()
        for seq in range(header.count):
            entry = self._entry(seq)
            why = check_entry(entry, run=header.run, seq=seq, previous=previous)
            if why is not None:
                raise self._refused(f"entry {seq} does not hold: {why}")
            previous = entry.hash
            yield entry
        if previous != header.hash:
            raise self._refused("its entries do not end in the head that its header names")

    def attachments(self, header: ExportHeader) -> Iterator[Carried]:
        """Read every attachment, piece by piece. What is left of one is passed over."""
        for number in range(header.attachments):
            what = f"attachment {number}"
            ref_bytes, byte_len = _CARRIED_FRAME.unpack(self._exactly(_CARRIED_FRAME.size, what))
            if ref_bytes > _REF_BYTES_MAX or byte_len > _NUMBER_MAX:
                raise self._refused(f"{what} claims to be longer than any attachment may be")
            ref = self._exactly(ref_bytes, what)
            pieces = self._pieces(byte_len, what)
            yield Carried(ref=ref, byte_len=byte_len, pieces=pieces)
            for _ in pieces:
                pass

    def so_far(self) -> bytes:
        """The digest of what was read until now."""
        return self._digest.digest()

    def end(self) -> None:
        """Read the digest, and that nothing comes after it."""
        expected = self._digest.digest()
        if self._exactly(_HASH_BYTES, "its digest") != expected:
            raise self._refused("its digest is not that of its bytes")
        if self._some(1):
            raise self._refused("it goes on behind its end")

    def _parsed(self, line: bytes) -> ExportHeader:
        try:
            found = msgspec.json.decode(line, type=_Format).format
            if found not in _FORMATS:
                known = " and ".join(map(str, _FORMATS))
                raise self._refused(f"it has format {found}; this version reads {known}")
            header = msgspec.json.decode(line, type=ExportHeader)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._refused("its header cannot be read") from error
        if canonical(header) != line:
            raise self._refused("its header is not in canonical form")
        if not is_ulid(header.run):
            raise self._refused(f"{header.run[:40]!r} is no id of a run")
        attachments_max = ATTACHMENTS_MAX if header.format > 1 else 0
        if not (
            0 <= header.count <= _NUMBER_MAX
            and 0 <= header.fence <= _NUMBER_MAX
            and 0 <= header.attachments <= attachments_max
        ):
            raise self._refused("its header counts what cannot be")
        return header

    def _entry(self, seq: int) -> Sealed:
        what = f"entry {seq}"
        header_bytes, there, body_bytes = _FRAME.unpack(self._exactly(_FRAME.size, what))
        if header_bytes > _ENTRY_HEADER_BYTES_MAX or body_bytes > BODY_BYTES_MAX:
            raise self._refused(f"{what} claims to be longer than any entry may be")
        if there > 1 or (body_bytes and not there):
            raise self._refused(f"{what} says neither that it has a body nor that it has none")
        entry_hash = self._exactly(_HASH_BYTES, what).hex()
        header = self._exactly(header_bytes, what)
        if not there:
            return Sealed(header=header, hash=entry_hash, salt=None, body=None)
        salt = self._exactly(SALT_BYTES, what)
        return Sealed(
            header=header, hash=entry_hash, salt=salt, body=self._exactly(body_bytes, what)
        )

    def _pieces(self, byte_len: int, what: str) -> Iterator[bytes]:
        while byte_len:
            piece = self._exactly(min(byte_len, _PIECE_BYTES), what)
            byte_len -= len(piece)
            yield piece

    def _exactly(self, count: int, what: str) -> bytes:
        data = self._some(count)
        if len(data) != count:
            raise self._refused(f"it ends in the middle of {what}")
        self._digest.update(data)
        return data

    def _some(self, count: int) -> bytes:
        """At most `count` bytes, less only at the end; in pieces, so memory follows what came."""
        pieces = []
        try:
            while count > 0 and (piece := self._file.read(min(count, _PIECE_BYTES))):
                pieces.append(piece)
                count -= len(piece)
        except OSError as error:
            raise self._refused(f"it cannot be read: {error.strerror}") from error
        return b"".join(pieces)

    def _refused(self, why: str) -> TransferRefused:
        return TransferRefused(file=self._name, why=f"{why}; nothing was imported")
