"""Export and import of one run as a single file.

An export carries the whole chain. Imported, it is a **copy**: the same entries under the same id,
to be read, verified and replayed, never gone on with. An export with `move` is the run's **title**:
the run ends here, and the ledger that imports the file goes on with it. `custody` has the rule that
keeps two ledgers from owning one run, and what it cannot stop.

The order of a move: the file is begun under another name; the run is marked as moved, and the mark
is on disk; the entries are written and are on disk; the file gets its name. A failure after the mark
leaves the run moved and no file: export it again, with `move`, to get it.

An import reads its input twice. The first time checks everything and holds no lock, so an input that
lies or is slow keeps no other run waiting. The second checks again while it writes one transaction.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, cast

from tallystick.core.errors import TransferRefused
from tallystick.ledger.custody import required
from tallystick.ledger.port import ExportHeader, RunRow, TransferLedger, find_row
from tallystick.ledger.stream import FORMAT, StreamReader, write_stream
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
            file=_name_of(target), why=f"run {run}, entry {bad.seq}: {bad.why}; nothing was exported"
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
    with _rereadable(source, name) as (first, again):
        header = _checked(first, name)
        reader = StreamReader(again(), name=name)
        if reader.header() != header:
            raise TransferRefused(file=name, why="it changed while it was read; nothing was imported")
        ledger.adopt(header, reader.entries(header))
    return header.run
