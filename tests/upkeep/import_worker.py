"""Imports a file over and over and is killed at another place each time.

`carry_worker.py FILE FOLDER STEP`: makes a folder for every death, named after its place. Each
death is a child's: it kills itself as it begins the n-th reading of the file, or in the transaction
that adopts the run, after everything in it was done.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.core.chain import Sealed
from tallystick.ledger.port import Also, ExportHeader
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.storage.transaction import Transaction
from tallystick.upkeep.transfer import import_run_with_attachments

IN_THE_TRANSACTION = 0


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Counted(io.FileIO):
    """Counts readings, and dies as one begins."""

    def __init__(self, path: Path, *, dies_at: int) -> None:
        super().__init__(path)
        self.count = 0
        self._dies_at = dies_at

    def read(self, size: int | None = -1, /) -> bytes:
        self.count += 1
        if self.count == self._dies_at:
            die()
        return super().read(size) or b""


class Doomed(SqliteLedger):
    """Dies before it commits what it adopted."""

    def adopt(
        self, header: ExportHeader, entries: Iterator[Sealed], *, also: Also | None = None
    ) -> None:
        def last(db: Transaction | None) -> None:
            if also is not None:
                also(db)
            die()

        super().adopt(header, entries, also=last)


def imports(file: Counted, folder: Path, kind: type[SqliteLedger] = SqliteLedger) -> None:
    with kind(folder / "ledger.db") as ledger, SqliteAttachments(ledger.file) as kept:
        import_run_with_attachments(ledger, kept, file)


def dies(path: Path, folder: Path, place: int) -> None:
    """Import in a child, which must not come back."""
    child = os.fork()
    if child == 0:
        kind = Doomed if place == IN_THE_TRANSACTION else SqliteLedger
        imports(Counted(path, dies_at=place), folder / str(place), kind)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"it lived at {place}"
    assert os.WTERMSIG(status) == signal.SIGKILL


def main(path: Path, folder: Path, step: int) -> None:
    whole = Counted(path, dies_at=-1)
    imports(whole, folder / "whole")
    for place in (IN_THE_TRANSACTION, *range(1, whole.count, step), whole.count):
        dies(path, folder, place)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
