"""Runs, drafts and small ledgers for the tests of the ledger."""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from tallystick.core.chain import Draft, Head
from tallystick.core.charge import Charge, ModelUsage, RunLimits
from tallystick.core.ids import ulid
from tallystick.core.records import (
    Caller,
    ModelReplied,
    ReceiptIssued,
    Record,
    RunEnded,
    RunForked,
    RunProgram,
    RunStarted,
    StopReason,
    encode_record,
    intent_of,
    tag_of,
)
from tallystick.core.views.receipt import Tally
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


def start_record(
    number: int, *, caller: str | None = None, parent: str | None = None
) -> RunStarted:
    """Make the first record of the n-th run, begun by a program of another, or in steps."""
    return RunStarted(
        goal="find it",
        model="m:1",
        limits=RunLimits(),
        grants=(),
        contexts=(),
        functions=(),
        texts=(),
        seed=1,
        session_id=session_of(number),
        template="t",
        guest="g",
        engine="e",
        started_at=number + 1,
        caller=None if caller is None else Caller(run=caller, intent=1, item=0, depth=1),
        parent=parent,
    )


def session_of(number: int) -> str:
    return run_id(1_000_000_000 + number)


def end_records(start: RunStarted, stop: StopReason = "answered") -> list[Record]:
    """Make the last records of a run: its receipt, issued 0 ms after its start, and its end."""
    end = RunEnded(stop=stop, detail="", answer="Greco", partial=False, charge=Charge(turns=1))
    return [ReceiptIssued(receipt=Tally().receipt(start, end)), end]


def made(
    ledger: Ledger,
    number: int,
    *,
    caller: str | None = None,
    parent: str | None = None,
    stop: StopReason | None = "answered",
) -> str:
    """Make the n-th run: a start, two entries, and an end unless `stop` is None."""
    run, start = run_id(number), start_record(number, caller=caller, parent=parent)
    end = [] if stop is None else end_records(start, stop)
    ledger.append(
        run,
        [drafted(start), draft(1), draft(2), *map(drafted, end)],
        expected=EMPTY,
        fence=ledger.claim(run, create=True),
        forced=False,
    )
    return run


def bodies(ledger: Ledger, run: str = RUN, *, start: int = 0) -> Sequence[bytes | None]:
    return [entry.body for entry in ledger.read(run, start=start)]


# The tables of runs and entries as the versions before the columns of runs had them.
OLD_TABLES = {
    "run": """CREATE TABLE run (
        id TEXT PRIMARY KEY, created_at INTEGER NOT NULL, count INTEGER NOT NULL,
        hash BLOB NOT NULL, fence INTEGER NOT NULL, moved INTEGER NOT NULL,
        imported INTEGER NOT NULL
    ) WITHOUT ROWID""",
    "entry": """CREATE TABLE entry (
        run TEXT NOT NULL, seq INTEGER NOT NULL, header BLOB NOT NULL, hash BLOB NOT NULL,
        PRIMARY KEY (run, seq)
    ) WITHOUT ROWID""",
}


def as_before_columns(path: Path, *, version: int = 1) -> None:
    """Make of a ledger's file what a version before the columns of runs would have written."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for (name,) in db.execute(
            "SELECT name FROM sqlite_master WHERE type = 'index' AND name LIKE 'run@_%' ESCAPE '@'"
        ).fetchall():
            db.execute(f"DROP INDEX {name}")
        for table, made in OLD_TABLES.items():
            db.execute(f"ALTER TABLE {table} RENAME TO new_{table}")
            db.execute(made)
            known = ", ".join(row[1] for row in db.execute(f"PRAGMA table_info({table})"))
            db.execute(f"INSERT INTO {table} SELECT {known} FROM new_{table}")
            db.execute(f"DROP TABLE new_{table}")
        db.execute(f"PRAGMA user_version = {version}")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
