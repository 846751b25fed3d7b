"""Export and import of one run as a single file.

An export carries the whole chain. Imported, it is a **copy**: the same entries under the same id,
to be read, verified and replayed, never gone on with. An export with `move` is the run's **title**:
the run ends here, and the ledger that imports the file goes on with it. `custody` has the rule that
keeps two ledgers from owning one run, and what it cannot stop.

The order of a move: the file is begun under another name; the run is marked as moved, and the mark
is on disk; the entries are written and are on disk; the file gets its name. A failure after the
mark leaves the run moved and no file: export it again, with `move`, to get it. Attachments are read
through before the mark, so that a run whose bytes are gone or damaged is not given away.

An import reads its input again and again. The first time checks everything and holds no lock, so an
input that lies or is slow keeps no other run waiting. The second, if there are attachments, hands
them to the receiver, which keeps them for now. The last checks again while it writes the entries,
all in one transaction, in which the receiver commits. It ends behind the entries: a gigabyte of
attachments is not read while others wait to write.

Rejected: attachments before the entries, which would save a reading. What an attachment is for, and
whether the run may have it, is known from the entries.

A fork shares the first entries of the run it grew from, which may itself be a fork. Its export
carries what it shares, of each run as much as the next one grew from and no more, in front of its
own. Imported, those are copies, whatever the export is for the fork itself. If such a run is there
already, it has to agree, and stays as it is.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from tallystick.core.chain import Sealed
from tallystick.core.errors import LedgerCorrupt, RunNotFound, TransferRefused
from tallystick.ledger.ancestry import whole_ancestors_of
from tallystick.ledger.custody import known_head, required, shared_head
from tallystick.ledger.port import (
    ATTACHMENTS_MAX,
    Ancestor,
    Carried,
    ExportHeader,
    Ledger,
    Receiver,
    RunRow,
    TransferLedger,
    find_row,
)
from tallystick.ledger.stream import (
    FORMAT,
    FORMAT_ALONE,
    Readable,
    StreamReader,
    write_stream,
)

__all__ = ["export_run", "import_run", "name_of"]

_STREAM = "the given stream"


def export_run(
    ledger: TransferLedger,
    run: str,
    target: Path | BinaryIO,
    *,
    move: bool = False,
    carried: Callable[[], Sequence[Carried]] = tuple,
) -> RunRow:
    """Write a run to a new file, or to an open one. Returns where the run stands.

    A run that does not verify, or shares what does not, is not exported: nobody could import it.
    `carried` gives its attachments and is asked twice: once to read them through before anything is
    written, and once more when the run can get no others that its entries here speak of.
    """
    ancestors = _ancestors(ledger, run, name_of(target))
    for each in _few_enough(carried(), run, target):
        for _ in each.pieces:
            pass
    with _destination(target) as file:
        row = ledger.release(run) if move else required(find_row(ledger, run), run)
        attachments = _few_enough(carried(), run, target)
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
    """Take in an exported run and return its id. What does not hold is refused, and nothing kept.

    A run that is here already and the same is left as it is; one that is here and not the same is
    refused, unless the file is a title to what was moved away or copied here before. Without a
    receiver, a file that carries attachments is refused too.
    """
    name = name_of(source)
    receiver = receiver or _Nowhere()
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(_opened(source, name))
        start = 0
        if file.seekable():
            start = file.tell()
            first = _checked(file, name, receiver)
        else:
            spool = stack.enter_context(tempfile.TemporaryFile())
            first = _checked(_Kept(file, spool), name, receiver)
            file = spool
        header = first.header
        if header.attachments:
            # Asked here too, before bytes are kept that nobody will commit.
            _check_known(ledger, header)
            file.seek(start)
            _take(_reread(file, name, header), name, header, receiver)
        file.seek(start)
        reader = _reread(file, name, header)
        ledger.adopt(
            header,
            _entries_again(reader, name, first),
            also=receiver.commit if header.attachments else None,
        )
    return header.run


def _few_enough(
    attachments: Sequence[Carried], run: str, target: Path | BinaryIO
) -> Sequence[Carried]:
    if len(attachments) > ATTACHMENTS_MAX:
        raise TransferRefused(
            file=name_of(target),
            why=f"run {run} has {len(attachments):,} attachments, and an export carries at most "
            f"{ATTACHMENTS_MAX:,}; nothing was exported",
        )
    return attachments


def _ancestors(ledger: Ledger, run: str, name: str) -> tuple[Ancestor, ...]:
    try:
        return whole_ancestors_of(ledger, run)
    except RunNotFound as error:
        if error.run == run:
            raise
        why = f"run {run} shares entries of run {error.run}, which is not here"
    except LedgerCorrupt as error:
        why = f"{error.path}, {error.why}"
    raise TransferRefused(file=name, why=f"{why}; nothing was exported")


def _check_known(ledger: TransferLedger, header: ExportHeader) -> None:
    """Refuse a run that will not be adopted, and one whose ancestors will not be."""
    rows = {row.run: row for row in ledger.runs()}
    known_head(rows.get(header.run), header)

    def hash_at(run: str, seq: int) -> str | None:
        entry = next(ledger.read(run, start=seq, stop=seq + 1), None)
        return None if entry is None else entry.hash

    for ancestor in header.ancestors:
        shared_head(rows.get(ancestor.run), ancestor, run=header.run, hash_at=hash_at)


class _Nowhere:
    """Takes nothing in."""

    def shared(self, run: str, seq: int, entry: Sealed) -> str | None:
        return None

    def entry(self, seq: int, entry: Sealed) -> str | None:
        return None

    def attachment(self, carried: Carried) -> str | None:
        return "it carries attachments, and here is nowhere to keep them"

    def checked(self, header: ExportHeader) -> str | None:
        return None

    def take(self, carried: Carried) -> str | None:
        return self.attachment(carried)

    def commit(self, db: sqlite3.Connection | None) -> None: ...


class _Kept:
    """Reads from what can be read once, such as a pipe, and keeps it for the second time."""

    def __init__(self, source: Readable, spool: BinaryIO) -> None:
        self._source = source
        self._spool = spool

    def read(self, count: int, /) -> bytes:
        piece = self._source.read(count)
        self._spool.write(piece)
        return piece


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checked:
    """What the first reading found: the header, and the digest of all up to the attachments."""

    header: ExportHeader
    digest: bytes


def _checked(file: Readable, name: str, receiver: Receiver) -> _Checked:
    reader = StreamReader(file, name=name)
    header = reader.header()
    for run, seq, entry in reader.entries(header):
        own = run == header.run
        why = receiver.entry(seq, entry) if own else receiver.shared(run, seq, entry)
        _accept(why, name)
    digest = reader.so_far()
    for carried in reader.attachments(header):
        _accept(receiver.attachment(carried), name)
    reader.end()
    _accept(receiver.checked(header), name)
    return _Checked(header=header, digest=digest)


def _reread(file: Readable, name: str, header: ExportHeader) -> StreamReader:
    reader = StreamReader(file, name=name)
    if reader.header() != header:
        raise _changed(name)
    return reader


def _take(reader: StreamReader, name: str, header: ExportHeader, receiver: Receiver) -> None:
    for _ in reader.entries(header):
        pass
    for carried in reader.attachments(header):
        _accept(receiver.take(carried), name)
    reader.end()


def _entries_again(reader: StreamReader, name: str, first: _Checked) -> Iterator[Sealed]:
    """The entries that were checked, up to the attachments; to the very end if there are none."""
    for _, _, entry in reader.entries(first.header):
        yield entry
    if reader.so_far() != first.digest:
        raise _changed(name)
    if not first.header.attachments:
        reader.end()


def _accept(why: str | None, name: str) -> None:
    if why is not None:
        raise TransferRefused(file=name, why=f"{why}; nothing was imported")


def _changed(name: str) -> TransferRefused:
    return TransferRefused(file=name, why="it changed while it was read; nothing was imported")


@contextlib.contextmanager
def _opened(source: Path | BinaryIO, name: str) -> Iterator[BinaryIO]:
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
    """A file that has its name only once it is whole and on disk."""
    if not isinstance(target, Path):
        yield target
        target.flush()
        return
    if target.exists():
        raise TransferRefused(file=str(target), why="it is there already; name a new file")
    partial = target.with_name(f".tally-{secrets.token_hex(6)}.partial")
    try:
        with open(partial, "xb", opener=_private) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
        _force_directory(target.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError):
            raise TransferRefused(
                file=str(target), why=f"it cannot be written: {error.strerror}"
            ) from error
        raise


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _force_directory(directory: Path) -> None:
    """Make the new name as durable as the bytes behind it."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def name_of(file: Path | BinaryIO) -> str:
    """What messages call it."""
    return str(file) if isinstance(file, Path) else _STREAM
