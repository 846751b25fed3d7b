"""Export and import of one run as a single file.

An export carries the whole chain. Imported, it is a **copy**: the same entries under the same id,
to be read, verified and replayed, never gone on with. An export with `move` is the run's **title**:
the run ends here, and the ledger that imports the file goes on with it. `custody` has the rule that
keeps two ledgers from owning one run, and what it cannot stop.

The order of a move: the file is begun under another name; the run is marked as moved, and the mark
is on disk; the entries are written and are on disk; the file gets its name. A failure after the
mark leaves the run moved and no file: export it again, with `move`, to get it.

An import reads its input twice. The first time checks everything and holds no lock, so an input
that lies or is slow keeps no other run waiting. The second checks again while it writes, all in one
transaction.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from tallystick.core.errors import TransferRefused
from tallystick.ledger.custody import required
from tallystick.ledger.port import ExportHeader, RunRow, TransferLedger, find_row
from tallystick.ledger.stream import FORMAT, Readable, StreamReader, write_stream
from tallystick.ledger.verify import verify

__all__ = ["export_run", "import_run"]

_STREAM = "the given stream"


def export_run(
    ledger: TransferLedger, run: str, target: Path | BinaryIO, *, move: bool = False
) -> RunRow:
    """Write a run to a new file, or to an open one. Returns where the run stands.

    A run that does not verify is not exported: nobody could import it.
    """
    bad = verify(ledger, [run]).first_bad
    if bad is not None:
        raise TransferRefused(
            file=_name_of(target),
            why=f"run {run}, entry {bad.seq}: {bad.why}; nothing was exported",
        )
    with _destination(target) as file:
        row = ledger.release(run) if move else required(find_row(ledger, run), run)
        header = ExportHeader(
            format=FORMAT,
            run=run,
            count=row.head.count,
            hash=row.head.hash,
            fence=row.fence if move else 0,
            moved=move,
        )
        write_stream(file, header, islice(ledger.read(run), row.head.count))
    return row


def import_run(ledger: TransferLedger, source: Path | BinaryIO) -> str:
    """Take in an exported run and return its id. What does not hold is refused, and nothing kept.

    A run that is here already and the same is left as it is; one that is here and not the same is
    refused, unless the file is a title to what was moved away or copied here before.
    """
    name = _name_of(source)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(_opened(source, name))
        if file.seekable():
            start = file.tell()
            header = _checked(file, name)
            file.seek(start)
        else:
            spool = stack.enter_context(tempfile.TemporaryFile())
            header = _checked(_Kept(file, spool), name)
            spool.seek(0)
            file = spool
        reader = StreamReader(file, name=name)
        if reader.header() != header:
            raise TransferRefused(
                file=name, why="it changed while it was read; nothing was imported"
            )
        ledger.adopt(header, reader.entries(header))
    return header.run


class _Kept:
    """Reads from what can be read once, such as a pipe, and keeps it for the second time."""

    def __init__(self, source: Readable, spool: BinaryIO) -> None:
        self._source = source
        self._spool = spool

    def read(self, count: int, /) -> bytes:
        piece = self._source.read(count)
        self._spool.write(piece)
        return piece


def _checked(file: Readable, name: str) -> ExportHeader:
    reader = StreamReader(file, name=name)
    header = reader.header()
    for _ in reader.entries(header):
        pass
    return header


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


def _name_of(file: Path | BinaryIO) -> str:
    return str(file) if isinstance(file, Path) else _STREAM
