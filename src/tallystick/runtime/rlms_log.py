"""Logs of the rlms package as runs of ours: to be read, listed, compared and exported.

Rule 1: a log has no chain. One is made here, so what it proves is what was imported, not that it
happened. The start of each run has the digest of the log.
Rule 2: nothing is kept before all of the log was read and fits. Then each run is adopted, as a copy
is: nobody goes on with it. Runs inside others come first, so that who names them finds them.
Rule 3: the same log gives the same runs, entries and hashes everywhere. Ids and salts are made from
its bytes; only who has those can make the salts again.
Rule 4: what the log does not say is not made up. Requests have no digest of ours: they have that of
the prompt as the log has it, marked `rlms:`. Usage of turns is missing, and said to be.
"""

from __future__ import annotations

import hashlib
import io
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import msgspec

from tallystick.core.errors import TransferRefused
from tallystick.core.passage_errors import ResumeRefused
from tallystick.core.records import ContextRef, RunStarted
from tallystick.ledger.port import TransferLedger
from tallystick.runtime.rlms_format import FILE_BYTES_MAX, lines_of, read_line
from tallystick.runtime.rlms_records import FROM_LOG, TEMPLATE
from tallystick.runtime.rlms_runs import Log

__all__ = ["ImportedLog", "ImportedRun", "import_rlms_log", "refuse_foreign"]

_FOREIGN = (
    f"came {FROM_LOG}, which has neither its requests nor its interpreter: it can be read and "
    "verified, not replayed or gone on with"
)
_PIECE_BYTES = 1 << 20
# Every byte that does not begin a character.
_CONTINUED = bytes(range(0x80, 0xC0))


class ImportedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A completion of the log, and how many runs are inside it. `new` is False if it was here."""

    run: str
    children: int
    new: bool


class ImportedLog(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a log, in its order."""

    runs: tuple[ImportedRun, ...]


def refuse_foreign(run: str, started: RunStarted) -> None:
    """Refuse to replay, resume or fork a run that came from such a log."""
    if started.template == TEMPLATE:
        raise ResumeRefused(run=run, why=_FOREIGN)


def import_rlms_log(ledger: TransferLedger, file: BinaryIO, *, name: str) -> ImportedLog:
    """Take in every completion of a log as a run. What does not fit is refused, and nothing kept.

    A log that is here already is left as it is. `file` is read from where it stands.
    """
    with _seekable(file) as source:
        log = _measured(source, name)
        again = hashlib.sha256()
        for number, line in enumerate(lines_of(source), start=1):
            again.update(line)
            log.line = number
            if line.strip():
                log.add(read_line(line))
    log.close()
    log.line = 0
    if again.hexdigest() != log.source.sha256:
        raise log.refused("it changed while it was read")
    if not log.completions:
        raise log.refused("it has no iteration")
    before = {row.run for row in ledger.runs()}
    for chain in log.chains:
        if chain.run not in before:
            ledger.adopt(chain.header, iter(chain.entries))
    return ImportedLog(
        runs=tuple(
            ImportedRun(run=run, children=children, new=run not in before)
            for run, children in log.completions
        )
    )


@contextmanager
def _seekable(file: BinaryIO) -> Iterator[BinaryIO]:
    """The file, or a copy of what can be read once only. It is read twice."""
    if file.seekable():
        yield file
        return
    with tempfile.TemporaryFile() as spool:
        left = FILE_BYTES_MAX + 1
        while left > 0 and (piece := file.read(min(left, _PIECE_BYTES))):
            spool.write(piece)
            left -= len(piece)
        spool.seek(0)
        yield spool


def _measured(file: BinaryIO, name: str) -> Log:
    """Read a log for its digests and its size, and go back."""
    start = file.tell()
    plain, salted = hashlib.sha256(), hashlib.blake2b(person=b"tally rlms salts")
    size = chars = 0
    while piece := file.read(_PIECE_BYTES):
        size += len(piece)
        if size > FILE_BYTES_MAX:
            why = f"it has more than {FILE_BYTES_MAX:,} bytes; nothing was imported"
            raise TransferRefused(file=name, why=why)
        plain.update(piece)
        salted.update(piece)
        chars += len(piece.translate(None, _CONTINUED))
    file.seek(start, io.SEEK_SET)
    source = ContextRef(name=TEMPLATE, sha256=plain.hexdigest(), bytes=size, chars=chars, sample="")
    return Log(name=name, source=source, salt_key=salted.digest())
