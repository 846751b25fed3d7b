"""Several processes that put and collect the same bytes at the same time."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tallystick.attachments.collect import EmptyRootSet, ReclaimPolicy, reclaim, verify_attachments
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.ledger.sqlite import SqliteLedger

WORKER = Path(__file__).with_name("race_worker.py")
FULL = os.environ.get("TALLYSTICK_SOAK") == "full"
ALL = ReclaimPolicy(grace_period_ms=0, empty_root_set=EmptyRootSet.AUTHORIZE_DELETE_ALL)


def race(folder: Path, *, puts: int, sweeps: int, killed: int = 0) -> list[str]:
    """Three that put against two that collect. The last `killed` of those that put are killed."""
    path = folder / "ledger.db"
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, WORKER, kind, path, str(seed), str(count)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for seed, (kind, count) in enumerate([("gc", sweeps)] * 2 + [("put", puts)] * 3)
        ]
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        ended = [worker.communicate(timeout=300) for worker in workers[: 5 - killed]]
        for worker in workers[5 - killed :]:
            worker.kill()
        assert [errors for _, errors in ended] == [""] * len(ended)
        return [said.strip() for said, _ in ended]


def left_alone(folder: Path) -> None:
    """When all have ended, one sweep leaves what was committed, and all of it."""
    with SqliteLedger(folder / "ledger.db") as ledger, SqliteAttachments(ledger.file) as kept:
        reclaim(kept, policy=ALL)
        report = verify_attachments(kept)
        assert report.ok, report.bad
        with kept.reading() as db:
            assert db is not None
            assert db.execute("SELECT count(*) FROM attachment_blob").fetchone() == (report.blobs,)
        assert list(kept.files.staged()) == []
        assert kept.owners.ids() == []


def test_puts_and_sweeps_of_several_processes_lose_nothing_that_is_held(tmp_path: Path) -> None:
    said = race(tmp_path, puts=60, sweeps=20)

    assert said[2:] == ["ok"] * 3
    assert sum(map(int, said[:2])) > 0
    left_alone(tmp_path)


@pytest.mark.slow
def test_the_same_with_one_that_is_killed(tmp_path: Path) -> None:
    race(tmp_path, puts=500, sweeps=60, killed=1)

    left_alone(tmp_path)


@pytest.mark.soak
def test_the_same_for_longer(tmp_path: Path) -> None:
    said = race(tmp_path, puts=20_000 if FULL else 1_000, sweeps=2_000 if FULL else 100)

    assert said[2:] == ["ok"] * 3
    left_alone(tmp_path)
