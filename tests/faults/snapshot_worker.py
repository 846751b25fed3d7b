"""Saves a snapshot over another and dies at each place in turn: `snapshot_worker.py DIR STEP`.

For every STEP-th call that a save makes, Python's or C's, a child of this process saves in a copy
of the directory and kills itself as it makes that call. What is left must be the old snapshot or
the new one, whole; another save must work; and a sweep must leave that one only. Prints how many
deaths there were, and after how many the new one was there.

Forked from here and not from the tests: this process has one thread.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from random import Random
from types import FrameType

from tallystick.attachments.collect import EmptyRootSet, ReclaimPolicy, reclaim, verify_attachments
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.sandbox.snapshot import PAGE_BYTES, Image, SnapshotId
from tallystick.sessions.snapshots import SessionImages, open_snapshots

ALL = ReclaimPolicy(grace_period_ms=0, empty_root_set=EmptyRootSet.AUTHORIZE_DELETE_ALL)


def identity(number: int) -> SnapshotId:
    return SnapshotId(id=str(number), name="current", session_id="S", created_at=number)


def image(number: int, *, count: int) -> Image:
    return Image(
        guest="g",
        engine="e",
        memory_bytes=count * PAGE_BYTES,
        state={"number": number},
        session=b"{}",
        indices=range(count),
        pages=[Random(number + page).randbytes(PAGE_BYTES) for page in range(count)],
    )


def die_at(place: int) -> None:
    left = [place]

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)


def saved_until(place: int, folder: Path, *, count: int) -> bool:
    """Save in another process. Says whether it died."""
    child = os.fork()
    if not child:
        with open_snapshots(folder / "ledger.db") as store:
            new = image(2, count=count)
            store.list("S")
            die_at(place)
            store.save(identity(2), new)
            sys.setprofile(None)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) not in (0, -signal.SIGKILL):
        raise SystemExit(f"the save at {place} ended with {status}")
    return status != 0


def check(folder: Path, *, count: int, place: int) -> bool:
    """Says whether the new one is there."""
    with SqliteLedger(folder / "ledger.db") as ledger, SqliteAttachments(ledger.file) as kept:
        store = SessionImages(kept)
        (listed,) = store.list("S")
        snapshot, found = store.load("S", "current")
        number = snapshot.created_at
        assert listed == snapshot == identity(number), place
        assert found.pages == image(number, count=count).pages, place
        store.save(identity(3), image(3, count=count))
        report = reclaim(kept, policy=ALL)
        assert report.failed_ids == report.deleted_while_referenced == [], place
        assert verify_attachments(kept).ok, place
        assert store.load("S", "current")[0] == identity(3), place
        with kept.reading() as db:
            assert db is not None
            assert db.execute("SELECT count(*) FROM attachment_blob").fetchone() == (1,), place
        assert len(list(kept.files.ids())) <= 1, place
        assert list(kept.files.staged()) == [], place
    return number == 2


def main(folder: Path, step: int) -> None:
    for count in (2, 40):  # in a row of the ledger, in a file
        before = folder / f"before-{count}"
        with open_snapshots(before / "ledger.db") as store:
            store.save(identity(1), image(1, count=count))
        deaths = arrived = 0
        place, died = 1, True
        while died:
            after = folder / "after"
            shutil.copytree(before, after)
            died = saved_until(place, after, count=count)
            deaths += died
            arrived += check(after, count=count, place=place) and died
            shutil.rmtree(after)
            place += step
        print(deaths, arrived)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
