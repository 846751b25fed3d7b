"""Puts, commits and collects attachments, to be killed anywhere: `attachment_worker.py WORK DIR`.

Two lines on its output bracket the work, so that the system calls of the work can be told from
those of starting and ending. After each commit it says what it committed.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from tests.ledger.builders import RUN, draft

from tallystick.attachments.collect import EmptyRootSet, ReclaimPolicy, reclaim
from tallystick.attachments.session import SessionAttachments
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.ledger.sqlite import SqliteLedger

SESSION = "worker"
SMALL = [b"small %d" % number for number in range(3)]
LARGE = [bytes([number]) * 70_000 for number in range(3)]
ALL = ReclaimPolicy(grace_period_ms=0, empty_root_set=EmptyRootSet.AUTHORIZE_DELETE_ALL)


def tell(word: str) -> None:
    os.write(1, f"{word}\n".encode())


def put(ledger: SqliteLedger, kept: SqliteAttachments) -> None:
    """Put and commit a small and a large one, then a batch with an entry of the ledger."""
    held = SessionAttachments(kept, session_id=SESSION)
    tell("mark")
    for data in (SMALL[0], LARGE[0]):
        ref = held.put(data)
        held.commit([ref.id])
        tell(f"committed {ref.id}")
    batch = held.batch()
    refs = [batch.add(data) for data in (SMALL[1], LARGE[1])]
    row = ledger.row(RUN)
    assert row is not None
    ledger.append(
        RUN,
        [draft(0, text=" ".join(ref.id for ref in refs))],
        expected=row.head,
        fence=row.fence,
        forced=True,
        also=batch.commit,
    )
    tell("appended")
    tell("mark")


def gc(ledger: SqliteLedger, kept: SqliteAttachments) -> None:
    """Collect what an earlier process, now dead, left behind."""
    tell("mark")
    reclaim(kept, policy=ALL)
    tell("mark")


def prepare(ledger: SqliteLedger, kept: SqliteAttachments) -> None:
    """A run, committed attachments, and dead ones of each kind."""
    ledger.claim(RUN, create=True)
    held = SessionAttachments(kept, session_id=SESSION)
    for data in (SMALL[2], LARGE[2]):
        held.commit([held.put(data).id])
    other = SessionAttachments(kept, session_id="dead")
    for number in range(3):
        other.put(b"dead %d" % number)
        other.put(bytes([100 + number]) * 70_000)
    # The same bytes as the living: only the row may go.
    other.put(LARGE[2])
    path, _, _ = kept.files.write([b"staged"], owner=kept.owner())
    assert path.exists()
    stray, id, _ = kept.files.write([b"stray"], owner=kept.owner())
    kept.files.put(id, stray)


if __name__ == "__main__":
    work = {"put": put, "gc": gc, "prepare": prepare}[sys.argv[1]]
    opened = SqliteLedger(Path(sys.argv[2]) / "ledger.db")
    work(opened, SqliteAttachments(opened.file, clock=lambda: time.time_ns() // 1_000_000))
