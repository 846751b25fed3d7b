"""What forgetting is asked and answers: strategies, criteria, failures and receipts."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import msgspec

from tallystick.core.canonical import canonical, digest
from tallystick.memory.note import MemoryType
from tallystick.memory.sqlite import SqliteMemory

__all__ = ["Criteria", "DeleteReceipt", "Failure", "Forgotten", "Strategy", "check_receipt"]


class Strategy(enum.StrEnum):
    """How a note is forgotten. `consolidate` has a name and is not done here."""

    SOFT_DELETE = "soft_delete"
    HARD_DELETE = "hard_delete"
    DECAY = "decay"
    CONSOLIDATE = "consolidate"
    ARCHIVE = "archive"
    REDACT = "redact"


@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """Which notes to forget: those that meet all that is said. Of `tags` one is enough."""

    max_age_hours: float | None = None
    min_importance_below: float | None = None
    memory_type: MemoryType | None = None
    tags: frozenset[str] = frozenset()
    agent_id: str | None = None
    thread_id: str | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A note that was not forgotten, and why."""

    id: str
    code: str
    message: str


class DeleteReceipt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was forgotten, where the log says so, and the hash of the log then.

    `entries` are the places whose bytes are gone. `exports` are exports from before, by name and
    place, that may hold some of it. `scrubbed` is False if somebody was reading older pages: the
    bytes are gone from the log and still in the file until it is opened next.
    """

    store: str
    strategy: Strategy
    ids: tuple[str, ...]
    seq_from: int
    seq_to: int
    hash: str
    at: int
    entries: tuple[int, ...] = ()
    exports: tuple[tuple[int, str], ...] = ()
    scrubbed: bool | None = None

    @property
    def sha256(self) -> str:
        """The digest of the receipt's canonical bytes."""
        return digest(canonical(self))


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a request. The receipt is None if nothing was forgotten."""

    forgotten: tuple[str, ...]
    errors: tuple[Failure, ...]
    receipt: DeleteReceipt | None


def check_receipt(memory: SqliteMemory, receipt: DeleteReceipt) -> str | None:
    """Say why a receipt does not hold in this store; None if it does."""
    if receipt.store != memory.identity():
        return "it is of another memory"
    last = next(memory.entries(start=receipt.seq_to, stop=receipt.seq_to), None)
    if last is None:
        return f"entry {receipt.seq_to} is gone: the log was cut off"
    if last.hash != receipt.hash:
        return f"entry {receipt.seq_to} is another one"
    with memory.reading() as db:
        for seq in receipt.entries:
            row = db.execute("SELECT body FROM log WHERE seq = ?", (seq,)).fetchone()
            if row is None or row[0] is not None:
                return f"the bytes of entry {seq} are there"
    return None
