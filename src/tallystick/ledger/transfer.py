"""Export and import one run as a single file, which is read as if it were hostile.

An export carries the whole chain. Imported, it is a **copy**: the same entries under the same id,
which can be read, verified and replayed, but not resumed. An export with `move` is the run's
**title**: the run ends here, and the ledger that imports the file owns it. `custody` has the rule
that keeps two ledgers from owning one run, and names what it cannot stop.

The order of a move: the file is begun under another name; the run is marked as moved, and the mark
is on disk; the entries are written and are on disk; the file gets its name. A failure after the
mark leaves the run moved and no file: export it again, with `move`, to get it. Attachments are read
through before the mark, so that a run whose bytes are gone or damaged is not given away.

An import reads its input up to three times. The first reading checks everything and holds no lock,
so an input that is slow or wrong keeps no other run waiting. The second, if there are attachments,
hands them to the receiver, which keeps them provisionally. The last checks again while it writes
the entries, all in one transaction, in which the receiver commits. It ends after the entries: a
gigabyte of attachments is not read while others wait to write.

Rejected: attachments before the entries, which would save a reading. The entries say what an
attachment is for, and whether the run may have it.

A fork shares the first entries of its parent, which may itself be a fork. Its export carries the
shared entries before its own, of each run as many as the next one shares. Imported, the runs that
they come from are copies, even if the fork itself is moved. If such a run is there already, its
entries have to agree, and it stays as it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from tallystick.core.chain import GENESIS, SALT_BYTES, Head, Root, Sealed, check_entry, root_of
from tallystick.core.errors import LedgerCorrupt, RunNotFound, TransferRefused
from tallystick.core.ids import is_ulid
from tallystick.core.json_text import canonical
from tallystick.ledger.custody import known_head, require_row, shared_head
from tallystick.ledger.port import (
    ANCESTORS_MAX,
    ATTACHMENTS_MAX,
    BODY_BYTES_MAX,
    Ancestor,
    Carried,
    ExportHeader,
    Ledger,
    Receiver,
    RunRow,
    TransferLedger,
)
from tallystick.ledger.verify import verified_ancestors_of
from tallystick.storage.private_file import whole_file
from tallystick.storage.transaction import Transaction

# One run as a stream of bytes, written in one pass.
#
#   magic        "tallystick ledger export" and a line feed
#   header       one line of canonical JSON: format, run, count, hash of the head, fence, moved, how
#                many attachments, if any, and of a fork its ancestors: run, count, hash of each
#   entries      of each ancestor the first `count`, the oldest first, then the run's own: length of
#                header (4 bytes), 1 if it has a body or 0 if that was erased (1 byte), length of
#                body (4 bytes), hash (32 bytes), header, and with a body its salt (16 bytes) and
#                the body
#   attachments  of each one: length of reference (4 bytes), length of bytes (8 bytes), the
#                reference as canonical JSON, the bytes
#   digest       SHA-256 of everything above
#
# Format 1 has no attachments, format 2 no ancestors, format 3 at least one ancestor. A run without
# ancestors is written in format 2, which earlier versions read. Each ancestor is exactly what the
# next one says it was forked from; the first was forked from nothing.
#
# Lengths are big-endian. Nothing is compressed, and a length is only trusted as far as bytes were
# read, so a reader holds at most one body or one piece of an attachment, and an importer stores no
# more than it was sent. Nothing in the stream becomes a path.


FORMAT = 3
# The format of a run that is no fork.
FORMAT_ALONE = 2
_FORMATS = (1, 2, 3)
MAGIC = b"tallystick ledger export\n"
# An ancestor takes at most 150 bytes, all other fields together fewer than 1,000.
_HEADER_LINE_BYTES_MAX = 1_024 + 150 * ANCESTORS_MAX
_ENTRY_HEADER_BYTES_MAX = 65_536
# A label of a thousand characters takes at most 6,000 bytes; the rest of a reference is short.
_REF_BYTES_MAX = 8_192
_NUMBER_MAX = 1 << 53
_PIECE_BYTES = 1 << 20
_HASH_BYTES = 32
_FRAME = struct.Struct(">IBI")
_CARRIED_FRAME = struct.Struct(">IQ")


class _Format(msgspec.Struct, frozen=True):
    """The one field that the header has in every version."""

    format: int


class Readable(Protocol):
    """A source of bytes, such as an open file or a pipe."""

    def read(self, count: int, /) -> bytes: ...


def write_stream(
    file: BinaryIO,
    header: ExportHeader,
    entries: Iterable[Sealed],
    carried: Iterable[Carried] = (),
) -> None:
    """Write a run. `entries`, those of its ancestors first, and `carried` must match the header.

    The pieces of an attachment must add up to its `byte_len`. Neither is checked here: a file in
    which they do not is refused by every reader. Raises what `file`, the entries and the pieces
    raise, after a part was written. The file is neither flushed nor closed.
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


def _parent_mismatch(root: Root, parent: Ancestor | None) -> str | None:
    """Return why a first entry is not a fork of the run before it in the file, None if it is.

    `parent` None is no run before it.
    """
    fork = root.fork
    if fork is None:
        return None if parent is None else f"it did not grow from run {parent.run}"
    if parent is None:
        return f"it grew from run {fork.parent}, which does not come with it"
    if (fork.parent, fork.count, fork.hash) != (parent.run, parent.count, parent.hash):
        return f"it grew from another entry than the last of run {parent.run} in the file"
    return None


class StreamReader:
    """Reads a run and trusts nothing. Call in order: header, entries, attachments, end.

    The content is known to be valid only after `end`. The meaning of attachments is not checked. A
    stream that is wrong or cannot be read raises `TransferRefused`.
    """

    def __init__(self, file: Readable, *, name: str) -> None:
        self._file = file
        self._name = name
        self._digest = hashlib.sha256()

    def header(self) -> ExportHeader:
        """Read the magic bytes and the header. Raise `TransferRefused` if they are not valid."""
        if self._read_up_to(len(MAGIC)) != MAGIC:
            raise self._refusal("it is no export of a run")
        self._digest.update(MAGIC)
        line = bytearray()
        while not line.endswith(b"\n"):
            if len(line) == _HEADER_LINE_BYTES_MAX:
                raise self._refusal("its header is too long")
            line += self._read_exactly(1, "its header")
        return self._parse_header(bytes(line[:-1]))

    def entries(self, header: ExportHeader) -> Iterator[tuple[str, int, Sealed]]:
        """Read and check every entry; yield it with its run and its position in that run.

        Those of the ancestors come first. Each ancestor must be what the next run was forked from.
        The entries of each run must end in the head that the header names.
        """
        parent: Ancestor | None = None
        for ancestor in header.ancestors:
            yield from self._chain(ancestor.run, ancestor.head, parent, f" of run {ancestor.run}")
            parent = ancestor
        yield from self._chain(header.run, header.head, parent, "")

    def _chain(
        self, run: str, head: Head, parent: Ancestor | None, of: str
    ) -> Iterator[tuple[str, int, Sealed]]:
        previous = GENESIS.hex()
        for seq in range(head.count):
            entry = self._entry(seq)
            why: str | None = None
            if seq == 0:
                root = root_of(entry, run=run)
                why = root if isinstance(root, str) else _parent_mismatch(root, parent)
                previous = previous if isinstance(root, str) else root.hash
            why = why or check_entry(entry, run=run, seq=seq, previous=previous)
            if why is not None:
                raise self._refusal(f"entry {seq}{of} does not hold: {why}")
            previous = entry.hash
            yield run, seq, entry
        if previous != head.hash:
            raise self._refusal(f"its entries{of} do not end in the head that its header names")

    def attachments(self, header: ExportHeader) -> Iterator[Carried]:
        """Yield every attachment, to be read in pieces. Pieces that the caller leaves are skipped.

        Raise `TransferRefused` if one is too long, or ends too early.
        """
        for number in range(header.attachments):
            what = f"attachment {number}"
            ref_bytes, byte_len = _CARRIED_FRAME.unpack(
                self._read_exactly(_CARRIED_FRAME.size, what)
            )
            if ref_bytes > _REF_BYTES_MAX or byte_len > _NUMBER_MAX:
                raise self._refusal(f"{what} claims to be longer than any attachment may be")
            ref = self._read_exactly(ref_bytes, what)
            pieces = self._pieces(byte_len, what)
            yield Carried(ref=ref, byte_len=byte_len, pieces=pieces)
            for _ in pieces:
                pass

    def digest_of_read(self) -> bytes:
        """Return the digest of what was read so far, in the order of the stream."""
        return self._digest.digest()

    def end(self) -> None:
        """Read the digest, compare it, and check that nothing comes after it.

        Raise `TransferRefused` otherwise.
        """
        expected = self._digest.digest()
        if self._read_exactly(_HASH_BYTES, "its digest") != expected:
            raise self._refusal("its digest is not that of its bytes")
        if self._read_up_to(1):
            raise self._refusal("it has bytes after its end")

    def _parse_header(self, line: bytes) -> ExportHeader:
        try:
            found = msgspec.json.decode(line, type=_Format).format
            if found not in _FORMATS:
                known = f"{_FORMATS[0]} to {_FORMATS[-1]}"
                raise self._refusal(f"it has format {found}; this version reads {known}")
            header = msgspec.json.decode(line, type=ExportHeader)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._refusal("its header cannot be read") from error
        if canonical(header) != line:
            raise self._refusal("its header is not in canonical form")
        self._check_ancestry(header)
        attachments_max = ATTACHMENTS_MAX if header.format > 1 else 0
        if not (
            0 <= header.count <= _NUMBER_MAX
            and 0 <= header.fence <= _NUMBER_MAX
            and 0 <= header.attachments <= attachments_max
            and all(0 < ancestor.count <= _NUMBER_MAX for ancestor in header.ancestors)
        ):
            raise self._refusal("its header counts what cannot be")
        return header

    def _check_ancestry(self, header: ExportHeader) -> None:
        """Raise `TransferRefused` for impossible ancestors: too many, one twice, or the run itself.

        Also for ids that are no ULIDs, for ancestors that do not go with the format, and for a fork
        without an entry.
        """
        runs = [header.run, *(ancestor.run for ancestor in header.ancestors)]
        if bool(header.ancestors) is not (header.format > FORMAT_ALONE):
            count = len(header.ancestors)
            raise self._refusal(f"it has format {header.format} and {count} ancestors")
        if len(runs) > ANCESTORS_MAX + 1:
            raise self._refusal(f"its run has more than {ANCESTORS_MAX} ancestors")
        for run in runs:
            if not is_ulid(run):
                raise self._refusal(f"{run[:40]!r} is no id of a run")
        if len(set(runs)) < len(runs):
            raise self._refusal("its run is said to have grown from itself")
        if header.ancestors and header.count == 0:
            raise self._refusal("its run has no entry that says what it grew from")

    def _entry(self, seq: int) -> Sealed:
        what = f"entry {seq}"
        header_bytes, there, body_bytes = _FRAME.unpack(self._read_exactly(_FRAME.size, what))
        if header_bytes > _ENTRY_HEADER_BYTES_MAX or body_bytes > BODY_BYTES_MAX:
            raise self._refusal(f"{what} claims to be longer than any entry may be")
        if there > 1 or (body_bytes and not there):
            raise self._refusal(f"{what} says neither that it has a body nor that it has none")
        entry_hash = self._read_exactly(_HASH_BYTES, what).hex()
        header = self._read_exactly(header_bytes, what)
        if not there:
            return Sealed(header=header, hash=entry_hash, salt=None, body=None)
        salt = self._read_exactly(SALT_BYTES, what)
        return Sealed(
            header=header, hash=entry_hash, salt=salt, body=self._read_exactly(body_bytes, what)
        )

    def _pieces(self, byte_len: int, what: str) -> Iterator[bytes]:
        while byte_len:
            piece = self._read_exactly(min(byte_len, _PIECE_BYTES), what)
            byte_len -= len(piece)
            yield piece

    def _read_exactly(self, count: int, what: str) -> bytes:
        data = self._read_up_to(count)
        if len(data) != count:
            raise self._refusal(f"it ends in the middle of {what}")
        self._digest.update(data)
        return data

    def _read_up_to(self, count: int) -> bytes:
        """Read `count` bytes, or fewer at the end, in pieces: memory follows what was received.

        Raise `TransferRefused` if the system fails.
        """
        pieces = []
        try:
            while count > 0 and (piece := self._file.read(min(count, _PIECE_BYTES))):
                pieces.append(piece)
                count -= len(piece)
        except OSError as error:
            raise self._refusal(f"it cannot be read: {error.strerror}") from error
        return b"".join(pieces)

    def _refusal(self, why: str) -> TransferRefused:
        return TransferRefused(file=self._name, why=f"{why}; nothing was imported")


_STREAM = "the given stream"


def export_run(
    ledger: TransferLedger,
    run: str,
    target: Path | BinaryIO,
    *,
    move: bool = False,
    carried: Callable[[], Sequence[Carried]] = tuple,
) -> RunRow:
    """Write a run to a new file, or to an open one. Return the row of the run.

    Raise `TransferRefused` if its entries or the ones it shares are not valid, since such a file
    could not be imported. Raise it also if the target exists or cannot be written, or if there are
    more than `ATTACHMENTS_MAX` attachments. Raise `RunNotFound` if the run is not here, and with
    `move` `RunNotOwned` if it is an imported copy.

    With `move`, the run is marked as moved before the file is written. After a later error it stays
    moved: export it again. A new file that failed is removed; in an open one a part stays.

    `carried` gives its attachments and is called twice. The first result is read through before
    anything is written. The second is taken when the head to export is fixed, so that it has every
    attachment which the exported entries name.
    """
    ancestors = _ancestors(ledger, run, display_name(target))
    for each in _check_attachment_count(carried(), run, target):
        for _ in each.pieces:
            pass
    with _destination(target) as file:
        row = ledger.release(run) if move else require_row(ledger.row(run), run)
        attachments = _check_attachment_count(carried(), run, target)
        header = ExportHeader(
            format=FORMAT if ancestors else FORMAT_ALONE,
            run=run,
            count=row.head.count,
            hash=row.head.hash,
            fence=row.fence if move else 0,
            moved=move,
            attachments=len(attachments),
            ancestors=ancestors,
        )
        shared = [ledger.read(each.run, stop=each.count) for each in ancestors]
        entries = chain(*shared, ledger.read(run, stop=row.head.count))
        write_stream(file, header, entries, attachments)
    return row


def import_run(
    ledger: TransferLedger, source: Path | BinaryIO, *, receiver: Receiver | None = None
) -> str:
    """Import an exported run and return its id.

    Raise `TransferRefused`, and keep nothing, if the file is not valid. A run that is here already
    with the same entries stays as it is. One that is here and differs is refused. It is not if the
    file is a title to what was moved away or copied here before, or a longer copy of a copy.
    Without a receiver, a file that carries attachments is refused too.

    The source is read up to three times. One that cannot be sought is copied to a temporary file.
    """
    name = display_name(source)
    receiver = receiver or _RefusesAttachments()
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(_open_source(source, name))
        start = 0
        if file.seekable():
            start = file.tell()
            first = _check_stream(file, name, receiver)
        else:
            spool = stack.enter_context(tempfile.TemporaryFile())
            first = _check_stream(_SpooledSource(file, spool), name, receiver)
            file = spool
        header = first.header
        if header.attachments:
            # Checked here too, before bytes are kept that no transaction would commit.
            _check_known(ledger, header)
            file.seek(start)
            _hand_over_attachments(_read_again(file, name, header), name, header, receiver)
        file.seek(start)
        reader = _read_again(file, name, header)
        ledger.adopt(
            header,
            _unchanged_entries(reader, name, first),
            also=receiver.commit if header.attachments else None,
        )
    return header.run


def _check_attachment_count(
    attachments: Sequence[Carried], run: str, target: Path | BinaryIO
) -> Sequence[Carried]:
    if len(attachments) > ATTACHMENTS_MAX:
        raise TransferRefused(
            file=display_name(target),
            why=f"run {run} has {len(attachments):,} attachments, and an export carries at most "
            f"{ATTACHMENTS_MAX:,}; nothing was exported",
        )
    return attachments


def _ancestors(ledger: Ledger, run: str, name: str) -> tuple[Ancestor, ...]:
    try:
        return verified_ancestors_of(ledger, run)
    except RunNotFound as error:
        if error.run == run:
            raise
        why = f"run {run} shares entries of run {error.run}, which is not here"
    except LedgerCorrupt as error:
        why = f"{error.where}, {error.why}"
    raise TransferRefused(file=name, why=f"{why}; nothing was exported")


def _check_known(ledger: TransferLedger, header: ExportHeader) -> None:
    """Raise `TransferRefused` for a run that `adopt` would refuse, or whose ancestors it would."""
    known_head(ledger.row(header.run), header)

    def hash_at(run: str, seq: int) -> str | None:
        entry = next(ledger.read(run, start=seq, stop=seq + 1), None)
        return None if entry is None else entry.hash

    for ancestor in header.ancestors:
        shared_head(ledger.row(ancestor.run), ancestor, run=header.run, hash_at=hash_at)


class _RefusesAttachments:
    """A receiver that refuses attachments."""

    def check_shared(self, run: str, seq: int, entry: Sealed) -> str | None:
        return None

    def check_entry(self, seq: int, entry: Sealed) -> str | None:
        return None

    def check_attachment(self, carried: Carried) -> str | None:
        return "it carries attachments, and here is nowhere to keep them"

    def check_whole(self, header: ExportHeader) -> str | None:
        return None

    def take(self, carried: Carried) -> str | None:
        return self.check_attachment(carried)

    def commit(self, within: Transaction | None) -> None: ...


class _SpooledSource:
    """A source that can be read once, such as a pipe, copied to a file for further readings."""

    def __init__(self, source: Readable, spool: BinaryIO) -> None:
        self._source = source
        self._spool = spool

    def read(self, count: int, /) -> bytes:
        piece = self._source.read(count)
        self._spool.write(piece)
        return piece


@dataclass(frozen=True, slots=True, kw_only=True)
class _FirstReading:
    """The result of the first reading: the header, and the digest up to the attachments."""

    header: ExportHeader
    digest: bytes


def _check_stream(file: Readable, name: str, receiver: Receiver) -> _FirstReading:
    reader = StreamReader(file, name=name)
    header = reader.header()
    for run, seq, entry in reader.entries(header):
        own = run == header.run
        why = receiver.check_entry(seq, entry) if own else receiver.check_shared(run, seq, entry)
        _raise_refusal(why, name)
    digest = reader.digest_of_read()
    for carried in reader.attachments(header):
        _raise_refusal(receiver.check_attachment(carried), name)
    reader.end()
    _raise_refusal(receiver.check_whole(header), name)
    return _FirstReading(header=header, digest=digest)


def _read_again(file: Readable, name: str, header: ExportHeader) -> StreamReader:
    reader = StreamReader(file, name=name)
    if reader.header() != header:
        raise _changed_refusal(name)
    return reader


def _hand_over_attachments(
    reader: StreamReader, name: str, header: ExportHeader, receiver: Receiver
) -> None:
    for _ in reader.entries(header):
        pass
    for carried in reader.attachments(header):
        _raise_refusal(receiver.take(carried), name)
    reader.end()


def _unchanged_entries(reader: StreamReader, name: str, first: _FirstReading) -> Iterator[Sealed]:
    """Yield the entries that were checked. Raise `TransferRefused` if the file has changed.

    It reads to the end of the file if there are no attachments, else to the first of them.
    """
    for _, _, entry in reader.entries(first.header):
        yield entry
    if reader.digest_of_read() != first.digest:
        raise _changed_refusal(name)
    if not first.header.attachments:
        reader.end()


def _raise_refusal(why: str | None, name: str) -> None:
    if why is not None:
        raise TransferRefused(file=name, why=f"{why}; nothing was imported")


def _changed_refusal(name: str) -> TransferRefused:
    return TransferRefused(file=name, why="it changed while it was read; nothing was imported")


@contextlib.contextmanager
def _open_source(source: Path | BinaryIO, name: str) -> Iterator[BinaryIO]:
    if not isinstance(source, Path):
        yield source
        return
    try:
        file = source.open("rb")
    except OSError as error:
        raise TransferRefused(file=name, why=f"it cannot be opened: {error.strerror}") from error
    with file:
        yield file


@contextlib.contextmanager
def _destination(target: Path | BinaryIO) -> Iterator[BinaryIO]:
    """Give a file that gets its name only once it is whole and on disk.

    Raise `TransferRefused` if it exists already or cannot be written. An open file is given as it
    is, and flushed at the end; its errors are raised as they are.
    """
    if not isinstance(target, Path):
        yield target
        target.flush()
        return
    if target.exists():
        raise TransferRefused(file=str(target), why="it is there already; name a new file")
    try:
        with whole_file(target) as file:
            yield file
    except OSError as error:
        why = f"it cannot be written: {error.strerror}"
        raise TransferRefused(file=str(target), why=why) from error


def display_name(file: Path | BinaryIO) -> str:
    """Return the name of a file in error messages: its path, or "the given stream"."""
    return str(file) if isinstance(file, Path) else _STREAM
