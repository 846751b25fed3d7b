"""A process that puts or collects with others: `race_worker.py (put|gc) LEDGER SEED COUNT`."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tallystick.attachments.collect import EmptyRootSet, ReclaimPolicy, reclaim
from tallystick.attachments.session import SessionAttachments
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.ledger.sqlite import SqliteLedger

DATA = [bytes([number]) * (70_000 if number % 2 else 300) for number in range(6)]
ALL = ReclaimPolicy(grace_period_ms=0, empty_root_set=EmptyRootSet.AUTHORIZE_DELETE_ALL)


def put(kept: SqliteAttachments, seed: int, count: int) -> str:
    """Put, read, sometimes commit and mostly let go of the same few bytes that others put too."""
    chance = random.Random(seed)
    held = SessionAttachments(kept, session_id=f"session {seed}")
    for _ in range(count):
        data = chance.choice(DATA)
        ref = held.put(data)
        assert held.read(ref.id) == data, "what was put was deleted"
        if chance.random() < 0.5:
            held.commit([ref.id], forced=False)
            assert held.read(ref.id) == data, "what was committed was deleted"
        if chance.random() < 0.8:
            held.delete(ref.id)
    for each in held.references():
        assert len(held.read(each.ref.id)) == each.ref.byte_len, "what is held was deleted"
    return "ok"


def gc(kept: SqliteAttachments, seed: int, count: int) -> str:
    reclaimed = 0
    for _ in range(count):
        report = reclaim(kept, policy=ALL)
        assert report.deleted_while_referenced == report.failed_ids == []
        reclaimed += report.reclaimed_count
    return str(reclaimed)


if __name__ == "__main__":
    work = {"put": put, "gc": gc}[sys.argv[1]]
    with SqliteLedger(Path(sys.argv[2])) as ledger, SqliteAttachments(ledger.file) as opened:
        print("ready", flush=True)
        sys.stdin.readline()
        print(work(opened, int(sys.argv[3]), int(sys.argv[4])))
