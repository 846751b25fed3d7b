"""What one reading of a chain says about pruning it: what goes, and what speaks against it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from tallystick.core.chain import Head, Header, Sealed
from tallystick.core.entry import Root, check_entry, root_of
from tallystick.core.open_intents import open_calls
from tallystick.core.receipt import Tally
from tallystick.core.records import (
    ReceiptIssued,
    Record,
    RunEnded,
    RunForked,
    RunPruned,
    RunResumed,
    RunStarted,
    StepEntered,
    StepLeft,
    decode_record,
    tag_of,
)
from tallystick.core.step_records import StepReceipt
from tallystick.ledger.port import Ledger, RunRow
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.mention import mentions

__all__ = ["KEPT_TAGS", "Plan", "disk_bytes", "read_chain", "record_in", "stays"]

# Whose bodies stay, but for what a step gave.
KEPT_TAGS = frozenset({"receipt.issued", "run.forked", "run.pruned", "step.left"})


@dataclass(slots=True, kw_only=True)
class Plan:
    """What one reading of a chain found: what is to be taken out, and what speaks against it."""

    row: RunRow
    head: Head
    latest: int
    seqs: list[int] = field(default_factory=list)
    bytes: int = 0
    begun: Record | None = None
    ended: RunEnded | None = None
    in_doubt: bool = False
    marked: bool = False
    issued: bool = False
    tally: Tally = field(default_factory=Tally)
    mentioned: set[str] = field(default_factory=set)
    steps_open: set[str] = field(default_factory=set)
    to_issue: dict[str, StepReceipt] = field(default_factory=dict)
    of_steps: bool = False
    broken: str | None = None

    @property
    def run(self) -> str:
        return self.row.run

    @property
    def owned(self) -> bool:
        return not (self.row.moved or self.row.imported)

    @property
    def session(self) -> str | None:
        begun = self.begun
        return begun.session_id if isinstance(begun, RunStarted | RunForked) else None

    def goes(self, record: Record) -> bool:
        """Whether the body of a record is to be taken out.

        What a step gave stands beside its receipt, so that goes too, and the receipt is written
        again; where nothing can be written, it stays.
        """
        if isinstance(record, StepLeft):
            return self.owned and bool(record.value)
        if isinstance(record, StepEntered) and record.missed:
            return False  # nothing else says how many steps are not there
        return tag_of(record) not in KEPT_TAGS

    def note(self, record: Record) -> None:
        """Take in one record, in its turn."""
        self.tally.add(record)
        match record:
            case RunStarted(started_at=at) | RunForked(at=at) | RunResumed(at=at):
                self.latest = max(self.latest, at)
            case ReceiptIssued(receipt=receipt):
                self.issued = True
                self.latest = max(self.latest, receipt.completed_at)
            case StepEntered(path=path):
                self.steps_open.add(path)
            case StepLeft(receipt=left):
                self.steps_open.discard(left.path)
                self.latest = max(self.latest, left.completed_at)
                self.to_issue.pop(left.path, None)
                if self.goes(record):
                    self.to_issue[left.path] = left
            case _:
                pass
        if isinstance(record, RunEnded):
            self.ended = record
        elif isinstance(record, RunPruned):
            self.marked = True
        elif not isinstance(record, ReceiptIssued):
            self.ended = None


def read_chain(ledger: Ledger, row: RunRow) -> Plan:
    """Read a chain once, and check it. Raises what the ledger does where it cannot be read."""
    plan = Plan(row=row, head=Head.of_nothing(), latest=row.created_at)
    plan.in_doubt = bool(open_calls(_records(ledger, plan)))
    if plan.broken is None and plan.head != row.head and plan.head.count:
        plan.broken = f"{plan.head.count} entries are there, its head counts {row.head.count}"
    return plan


def _records(ledger: Ledger, plan: Plan) -> Iterator[Record]:
    """The records of a chain, each noted. Ends at an entry that does not hold."""
    previous = ""
    for seq, entry in enumerate(ledger.read(plan.run)):
        root = root_of(entry, run=plan.run) if seq == 0 else None
        if isinstance(root, Root):
            previous = root.hash
            plan.begun = record_in(entry)
            plan.of_steps = _tag(entry).startswith("step.")
        why = (
            root
            if isinstance(root, str)
            else check_entry(entry, run=plan.run, seq=seq, previous=previous)
        )
        if why is not None:
            plan.broken = f"entry {seq}: {why}"
            return
        previous = entry.hash
        plan.head = Head(count=seq + 1, hash=previous)
        if entry.body is None or entry.salt is None:
            continue
        record = decode_record(entry.body)
        if plan.goes(record):
            plan.seqs.append(seq)
            plan.bytes += len(entry.salt) + len(entry.body)
            plan.mentioned.update(ref.id for ref in mentions(entry))
        plan.note(record)
        yield record


def record_in(entry: Sealed) -> Record | None:
    """What an entry says, if that is still there and can be read."""
    if entry.body is None:
        return None
    try:
        return decode_record(entry.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def stays(entry: Sealed) -> bool:
    """Whether an entry is one whose body stays."""
    return _tag(entry) in KEPT_TAGS


def _tag(entry: Sealed) -> str:
    try:
        return msgspec.json.decode(entry.header, type=Header).tag
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""


def disk_bytes(ledger: SqliteLedger) -> int:
    """How large the file of a ledger is, with its log."""
    log = ledger.path.with_name(f"{ledger.path.name}-wal")
    return sum(path.stat().st_size for path in (ledger.path, log) if path.exists())
