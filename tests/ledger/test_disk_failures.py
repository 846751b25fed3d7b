"""Disks that fail in the middle of an append, by injecting errors into system calls."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.ledger.builders import RUN

from tallystick.core.records import ModelReplied, decode_record
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger

WORKER = Path(__file__).with_name("append_worker.py")
LOG = "ledger.db-wal"
APPENDS = 8
FAILURES = {
    "pwrite64:error=ENOSPC": "ledger.full",
    "pwrite64:error=EIO": "ledger.unavailable",
    "fdatasync:error=EIO": "ledger.unavailable",
}
pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="injects errors with strace")


def appended(folder: Path, failure: str, *files: str) -> list[str]:
    """Append in a process whose disk fails. Returns how each append ended."""
    with SqliteLedger(folder / "ledger.db") as ledger:
        ledger.claim(RUN, create=True)
    calls = "trace=pwrite64,fdatasync,fsync"
    strace = ["strace", "-f", "-qq", "-y", "-o", str(folder / "trace"), "-e", calls]
    failing = ["-e", f"inject={failure}"]
    for file in files:
        failing += ["-P", str(folder / file)]
    work = [sys.executable, str(WORKER), str(folder / "ledger.db"), "failing", str(APPENDS)]
    done = subprocess.run([*strace, *failing, *work], capture_output=True, text=True, check=True)
    return done.stdout.split()


def numbers(folder: Path) -> list[int]:
    """Which appends are there, in a ledger that must hold."""
    with SqliteLedger(folder / "ledger.db") as ledger:
        report = verify_ledger(ledger)
        assert report.ok, report.first_bad
        records = [decode_record(entry.body or b"") for entry in ledger.read(RUN)]
    assert all(isinstance(record, ModelReplied) for record in records)
    return [int(record.text[0]) for record in records if isinstance(record, ModelReplied)]


def assert_one_failed(folder: Path, failure: str, place: int) -> None:
    ended = appended(folder, f"{failure}:when={place}", LOG)

    # The last of the disk may be reached only when the file is closed.
    assert ended.count("ok") >= APPENDS - 1
    assert set(ended) <= {"ok", FAILURES[failure]}
    # What was acknowledged is there, once, and what failed was not tried again.
    assert numbers(folder) == [number for number, word in enumerate(ended) if word == "ok"]


@pytest.mark.parametrize(("failure", "place"), [(name, 2) for name in sorted(FAILURES)])
def test_an_append_whose_disk_fails_is_told_so_and_the_next_one_works(
    tmp_path: Path, failure: str, place: int
) -> None:
    assert_one_failed(tmp_path, failure, place)


@pytest.mark.slow
@pytest.mark.parametrize("failure", sorted(FAILURES))
def test_wherever_the_disk_fails_nothing_that_was_acknowledged_is_lost(
    tmp_path: Path, failure: str
) -> None:
    for place in range(1, 24, 1 if failure.startswith("pwrite") else 6):
        (tmp_path / str(place)).mkdir()
        assert_one_failed(tmp_path / str(place), failure, place)


def test_after_a_failed_wait_for_the_disk_the_log_is_begun_anew(tmp_path: Path) -> None:
    # The system tells of what it lost once. A later sync of the same log would seem to succeed.
    ended = appended(tmp_path, "fdatasync:error=EIO:when=3", "ledger.db", LOG)

    _, after = (tmp_path / "trace").read_text().split("(INJECTED)", 1)
    lines = [line for line in after.splitlines() if "sync(" in line or "pwrite64(" in line]
    begun = next(n for n, line in enumerate(lines) if "-wal>" in line and ", 32, 0)" in line)
    before = [line for line in lines[:begun] if "-wal>" not in line]

    assert ended[:4] == ["ok", "ok", "ledger.unavailable", "ok"]
    assert "pwrite64(" in before[0]
    assert "fdatasync(" in before[-1]
    assert numbers(tmp_path) == [0, 1, 3, 4, 5, 6, 7]


def test_a_disk_that_is_full_and_stays_full_fails_every_append(tmp_path: Path) -> None:
    ended = appended(tmp_path, "pwrite64:error=ENOSPC:when=1+", LOG)

    assert ended == ["ledger.full"] * APPENDS
    assert numbers(tmp_path) == []
