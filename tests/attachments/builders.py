"""Stores, sessions and bytes for the tests of attachments."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from tallystick.attachments.collect import EmptyRootSet, ReclaimPolicy
from tallystick.attachments.memory import MemoryAttachments
from tallystick.attachments.port import Intent
from tallystick.attachments.session import SessionAttachments
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.attachments.store import INLINE_BYTES_MAX
from tallystick.core.records import AttachmentRef
from tallystick.ledger.sqlite import SqliteLedger

Kept = MemoryAttachments | SqliteAttachments
SMALL = b"hello"
LARGE = bytes(range(256)) * 1024
AT_ONCE = ReclaimPolicy(grace_period_ms=0)
EVERYTHING = ReclaimPolicy(grace_period_ms=0, empty_root_set=EmptyRootSet.AUTHORIZE_DELETE_ALL)
assert len(SMALL) <= INLINE_BYTES_MAX < len(LARGE)


class Ticks:
    """A clock that moves when it is told to."""

    def __init__(self, now: int = 1_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


class _WithLedger(SqliteAttachments):
    """Attachments that close the file of their ledger too: here nothing else uses it."""

    def __init__(
        self, ledger: SqliteLedger, *, clock: Callable[[], int], wait_seconds: float
    ) -> None:
        super().__init__(ledger.file, clock=clock, wait_seconds=wait_seconds)
        self._ledger = ledger

    def close(self) -> None:
        super().close()
        self._ledger.close()


def stored(
    folder: Path, clock: Callable[[], int] | None = None, *, wait_seconds: float = 0.05
) -> SqliteAttachments:
    ledger = SqliteLedger(folder / "ledger.db")
    return _WithLedger(ledger, clock=clock or Ticks(), wait_seconds=wait_seconds)


def session(kept: Kept, name: str = "s1") -> SessionAttachments:
    return SessionAttachments(kept, session_id=name)


def in_memory_beside(
    kept: MemoryAttachments, clock: Callable[[], int], *, wait_seconds: float = 0.05
) -> MemoryAttachments:
    """Another client of what is kept in memory: its intents have an owner of their own."""
    made = MemoryAttachments(clock=clock, wait_seconds=wait_seconds)
    made._turn, made._rows = kept._turn, kept._rows
    made._blobs, made.owners = kept._blobs, kept.owners
    return made


def local_path(held: SessionAttachments | Kept, id: str) -> Path | None:
    """The file of a large attachment, None for a small one."""
    with held.local(id) as path:
        return path


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def intent(name: str, id: str, *, at: int = 1, owner: str | None = None) -> Intent:
    return Intent(session_id=name, attachment_id=id, intent_at_epoch_ms=at, owner=owner)


def ref_of(data: bytes) -> AttachmentRef:
    return AttachmentRef(id=digest(data), media_type="text/plain", byte_len=len(data))


def final_file(kept: SqliteAttachments, id: str) -> Path:
    return kept.files.path(id)


def crash(kept: Kept) -> None:
    """End an owner as the kernel does: its lock is gone, and it tidied up nothing."""
    if kept._owner is not None:
        kept._owner.release(remove=False)
        kept._owner = None
