"""Several processes on one ledger, and the death of one of them."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.ledger.builders import EMPTY, RUN, drafts, filled

from tallystick.core.chain import Head
from tallystick.core.errors import LedgerConflict
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger

WORKER = Path(__file__).with_name("append_worker.py")


def started(ledger: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, WORKER, ledger, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def line_of(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    return worker.stdout.readline()


@pytest.mark.parametrize("how", ["committed", "forced"])
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, how: str) -> None:
    path = tmp_path / "ledger.db"
    for round_ in range(3):
        with started(path, "forever", how) as worker:
            acknowledged = [line_of(worker) for _ in range(7 + 30 * round_)]
            worker.kill()
            assert worker.stdout is not None
            acknowledged += worker.stdout.readlines()

        count, entry_hash = acknowledged[-1].split()
        with SqliteLedger(path) as ledger:
            report = verify_ledger(ledger, heads={RUN: Head(count=int(count), hash=entry_hash)})
            ledger.remove(RUN)

        # One more may be there: the worker can die between its commit and its word.
        assert report.ok, report.first_bad
        assert int(count) <= report.entries <= int(count) + 1


def test_a_run_goes_on_after_kill_9_under_a_new_fence(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with started(path, "forever") as worker:
        line_of(worker)
        worker.kill()

    with SqliteLedger(path) as ledger:
        fence = ledger.claim(RUN, create=False)
        head = ledger.runs()[0].head
        ledger.append(RUN, drafts(3), expected=head, fence=fence, forced=True)

        assert fence == 2
        assert verify_ledger(ledger).entries == head.count + 3


def test_a_process_that_lost_its_run_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with SqliteLedger(path) as ours:
        fence = ours.claim(RUN, create=True)
        with started(path, "race", "1") as other:
            line_of(other)
            other.communicate("go\n")

        with pytest.raises(
            LedgerConflict, match="another writer came first: its fence is 2, not 1"
        ):
            ours.append(RUN, drafts(1), expected=EMPTY, fence=fence, forced=True)

        assert verify_ledger(ours).entries == 1


def test_processes_that_take_a_run_from_each_other_write_one_chain(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with SqliteLedger(path) as ledger:
        before = filled(ledger)

    with ExitStack() as stack:
        workers = [stack.enter_context(started(path, "race", "40")) for _ in range(3)]
        for worker in workers:
            assert line_of(worker) == "ready\n"
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        conflicts = sum(int(worker.communicate()[0]) for worker in workers)

    with SqliteLedger(path) as ledger:
        report = verify_ledger(ledger, heads={RUN: before})
        assert report.ok, report.first_bad
        assert report.entries == before.count + 3 * 40
        assert ledger.runs()[0].fence == 1 + 3 * 40 + conflicts


def test_processes_that_make_one_ledger_at_the_same_time_all_succeed(tmp_path: Path) -> None:
    program = (
        "import sys, os; from pathlib import Path; from tallystick.core.ids import ulid\n"
        "from tallystick.ledger.sqlite import SqliteLedger\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "with SqliteLedger(Path(sys.argv[1])) as ledger:\n"
        "    ledger.claim(ulid(time_ms=1, entropy=os.urandom(10)), create=True)\n"
    )
    path = tmp_path / "new" / "ledger.db"
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", program, path],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(4)
        ]
        for worker in workers:
            line_of(worker)
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        assert [worker.wait() for worker in workers] == [0] * 4

    with SqliteLedger(path) as ledger:
        assert len(ledger.runs()) == 4
