"""What becomes of the writer when its process forks or ends."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.ledger.builders import OTHER, RUN, run_id

from tallystick.core.chain import Head
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
FORK_WORKER = Path(__file__).with_name("fork_worker.py")
BEGINNING = f"""
import atexit, os, sys, threading
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from tests.ledger.builders import EMPTY, RUN, draft, drafts, filled
from tallystick.ledger.sqlite import SqliteLedger
ledger = SqliteLedger(Path(sys.argv[1]))
"""
MANY = """
fence = ledger.claim(RUN, create=True)
head = EMPTY
for number in range(200):
    head, _ = ledger.submit(RUN, [draft(number)], expected=head, fence=fence, forced=False)
"""


def ran(path: Path, *command: object) -> list[str]:
    done = subprocess.run(
        [sys.executable, *map(str, command), str(path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def program(path: Path, text: str) -> list[str]:
    return ran(path, "-c", BEGINNING + text)


def forked(path: Path, what: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, FORK_WORKER, path, what],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def counts(path: Path) -> dict[str, int]:
    with SqliteLedger(path) as ledger:
        report = verify_ledger(ledger)
        assert report.ok, report.first_bad
        return {row.run: row.head.count for row in ledger.runs()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


# -- forks ---------------------------------------------------------------------------------------


def test_a_forked_child_and_its_parent_both_write_and_lose_nothing(path: Path) -> None:
    forked(path, "both")

    assert counts(path) == {RUN: 6, OTHER: 3}


def test_what_was_queued_when_a_process_forked_is_written_by_the_parent_alone(path: Path) -> None:
    said = forked(path, "queued")

    assert said == ["1"]
    assert counts(path) == {RUN: 5}


def test_a_child_forked_inside_a_transaction_is_refused_and_harms_nothing(path: Path) -> None:
    said = forked(path, "in_use")

    assert len(said) == 3
    assert all(each.startswith("ledger.unavailable") for each in said)
    assert all("was in use when this process was forked" in each for each in said)
    assert counts(path) == {RUN: 4}


def test_a_fork_does_not_wait_for_ever(path: Path) -> None:
    assert forked(path, "slow") == ["ledger.unavailable"]
    assert counts(path) == {RUN: 4}


def test_forks_in_the_middle_of_everything_lose_nothing_of_either_side(path: Path) -> None:
    said = [line.split() for line in forked(path, "storm")]

    heads = {run: Head(count=int(count), hash=entry_hash) for run, count, entry_hash in said}
    with SqliteLedger(path) as ledger:
        report = verify_ledger(ledger, heads=heads)
    assert report.ok, report.first_bad
    assert counts(path) == {run: head.count for run, head in heads.items()} | {
        run_id(number): 4 for number in range(10, 20)
    }


# -- the end -------------------------------------------------------------------------------------


def test_a_process_ends_with_its_ledger_open_and_nothing_awaited_is_lost(path: Path) -> None:
    said = program(path, "print(filled(ledger).count)")

    assert said == ["4"]
    assert counts(path) == {RUN: 4}


def test_what_was_submitted_is_written_before_the_process_ends(path: Path) -> None:
    program(path, MANY)

    assert counts(path) == {RUN: 200}


def test_a_process_that_is_left_at_once_loses_only_what_nobody_waited_for(path: Path) -> None:
    said = program(path, "print(filled(ledger).count, flush=True)\nos._exit(0)")

    assert said == ["4"]
    assert counts(path) == {RUN: 4}


def test_what_is_done_at_the_very_end_can_still_write(path: Path) -> None:
    last = """
def last():
    global head
    head = ledger.append(RUN, drafts(1), expected=head, fence=1, forced=True)
    head, written = ledger.submit(RUN, drafts(1), expected=head, fence=1, forced=True)
    print(written.done(), flush=True)
    ledger.close()
    print([each.name for each in threading.enumerate()], flush=True)
# The first that was registered is called last, when the writer has ended.
atexit._clear()
from tallystick.ledger import writer
atexit.register(last)
atexit.register(writer._at_exit)
"""

    said = program(path, MANY + last)

    assert said == ["True", "['MainThread']"]
    assert counts(path) == {RUN: 202}


def test_an_object_that_writes_while_the_interpreter_is_taken_down_does_not_hang(
    path: Path,
) -> None:
    last = """
class Late:
    def __del__(self):
        global head
        head = self.ledger.append(RUN, self.drafts(1), expected=self.head, fence=1, forced=True)
        self.ledger.close()
late = Late()
late.ledger, late.drafts, late.head = ledger, drafts, head
late.me = late
"""

    program(path, MANY + last)

    assert counts(path)[RUN] in (200, 201)
