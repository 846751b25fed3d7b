"""Runs, drafts and small ledgers for the tests of the ledger."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tallystick.core.chain import Draft, Head
from tallystick.core.charge import ModelUsage
from tallystick.core.ids import ulid
from tallystick.core.records import (
    ModelReplied,
    Record,
    RunForked,
    RunProgram,
    encode_record,
    intent_of,
    tag_of,
)
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.port import Ledger, TransferLedger
from tallystick.ledger.sqlite import SqliteLedger

LedgerMaker = Callable[[Path], TransferLedger]
LEDGERS: dict[str, LedgerMaker] = {
    "memory": lambda folder: MemoryLedger(),
    "sqlite": lambda folder: SqliteLedger(folder / "ledger.db"),
}
EMPTY = Head.of_nothing()


def run_id(number: int = 1) -> str:
    return ulid(time_ms=number, entropy=bytes(range(0xF0, 0xFA)))


RUN = run_id(1)
OTHER = run_id(2)


def drafted(record: Record) -> Draft:
    return Draft(tag=tag_of(record), intent=intent_of(record), body=encode_record(record))


def draft(number: int, *, text: str | None = None) -> Draft:
    """Draft the n-th entry of a small run: programs and replies by turns."""
    if number % 2 and text is None:
        return drafted(RunProgram(intent=number, turn=number, part=0, sha256="5a" * 32))
    usage = ModelUsage(tokens_in=number, tokens_out=1, reported=True)
    return drafted(
        ModelReplied(intent=number, turn=number, text=text or f"reply {number}", usage=usage)
    )


def drafts(count: int, *, start: int = 0) -> list[Draft]:
    return [draft(number) for number in range(start, start + count)]


def filled(ledger: Ledger, *, run: str = RUN, count: int = 4) -> Head:
    """Make a run of `count` entries."""
    fence = ledger.claim(run, create=True)
    return ledger.append(run, drafts(count), expected=EMPTY, fence=fence, forced=False)


def fork_record(parent: str, count: int, entry_hash: str) -> RunForked:
    return RunForked(
        parent=parent, count=count, hash=entry_hash, turn=1, at=7, session_id=run_id(99)
    )


def grown(
    ledger: Ledger, *, run: str = OTHER, parent: str = RUN, shared: int = 2, count: int = 3
) -> Head:
    """Grow a run of `count` entries from the first `shared` of another."""
    *_, last = ledger.read(parent, stop=shared)
    fence = ledger.claim(run, create=True, grown_from=last.hash)
    first = drafted(fork_record(parent, shared, last.hash))
    return ledger.append(
        run,
        [first, *drafts(count - 1)],
        expected=Head(count=0, hash=last.hash),
        fence=fence,
        forced=False,
    )


def bodies(ledger: Ledger, run: str = RUN, *, start: int = 0) -> Sequence[bytes | None]:
    return [entry.body for entry in ledger.read(run, start=start)]
