"""The lock of a run: one process works on it, a dead one lets go, and a thief says so."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.descriptors import new_descriptors, open_descriptors
from tests.unprivileged import unprivileged

from tallystick.client import Session
from tallystick.core.errors import CleanUpWarning, LedgerUnavailable, RunNotFound, UsageError
from tallystick.core.records import RunResumed
from tallystick.core.resume_errors import RunInDoubt
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger
from tallystick.runtime.runs.history import whole_records
from tallystick.runtime.runs.lock import is_running, lock_run, require_idle, running_runs
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.storage.clock import new_id
from tallystick.testing.models import ModelDouble, block, by_prompt

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
RUN = "01M7H9059YPYTCBKVW1YQJBKX4"
# Runs to its second call, and goes on when it is told to.
WORKS = """
import asyncio, sys
from pathlib import Path
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.client import Session
from tallystick.testing.models import ModelDouble, programs

def before(call):
    print("asked", call.request.key, flush=True)
    return asyncio.to_thread(sys.stdin.readline) if call.number == 1 else None

model = ModelDouble(programs("n = 20", "print(n)", "FINAL(n)"), before=before)
with Session(model=model, ledger=SqliteLedger(Path(sys.argv[1]))) as session:
    try:
        print("ended", session.run("what is it?").stop, flush=True)
    except BaseException as error:
        print("error", type(error).__name__, flush=True)
"""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqliteLedger]:
    with SqliteLedger(tmp_path / "ledger.db") as made:
        yield made


def locks(ledger: SqliteLedger) -> list[str]:
    folder = ledger.path.with_name(f"{ledger.path.name}-runs")
    return sorted(each.name for each in folder.iterdir()) if folder.exists() else []


# -- in one process ----------------------------------------------------------------------------


def test_a_lock_is_held_while_inside_and_leaves_nothing_behind(ledger: SqliteLedger) -> None:
    assert not is_running(ledger, RUN)
    with lock_run(ledger, RUN) as stolen:
        assert is_running(ledger, RUN)
        assert locks(ledger) == [f"{RUN}.lock"]
        with pytest.raises(UsageError, match=f"run {RUN} is running"):
            require_idle(ledger, RUN)
    assert not stolen
    assert not is_running(ledger, RUN)
    assert locks(ledger) == []


def test_the_runs_that_are_worked_on_are_found_by_their_locks(ledger: SqliteLedger) -> None:
    first, second, third = (new_id() for _ in range(3))
    before = list(running_runs(ledger))

    with lock_run(ledger, first), lock_run(ledger, second):
        # What a dead process left is a lock that nobody holds.
        assert ledger.lock_folder is not None
        (ledger.lock_folder / f"{third}.lock").touch()
        found = list(running_runs(ledger))

    assert (before, found, list(running_runs(ledger))) == ([], sorted([first, second]), [])
    assert list(running_runs(MemoryLedger())) == []


def test_a_second_one_is_refused_and_the_first_keeps_it(ledger: SqliteLedger) -> None:
    with lock_run(ledger, RUN):
        for _ in range(2):
            with pytest.raises(UsageError, match="is running"), lock_run(ledger, RUN):
                pass
        assert is_running(ledger, RUN)
        # Others are not in the way.
        with lock_run(ledger, RUN[:-1] + "5"):
            assert len(locks(ledger)) == 2
    assert locks(ledger) == []


def test_it_is_let_go_of_by_whatever_is_raised(ledger: SqliteLedger) -> None:
    with pytest.raises(KeyboardInterrupt), lock_run(ledger, RUN):
        raise KeyboardInterrupt

    assert locks(ledger) == []
    with lock_run(ledger, RUN):
        pass


def test_a_stolen_lock_is_the_thiefs_when_the_other_leaves(ledger: SqliteLedger) -> None:
    first = lock_run(ledger, RUN)
    first.__enter__()

    with lock_run(ledger, RUN, steal=True) as stolen:
        assert stolen
        first.__exit__(None, None, None)
        assert is_running(ledger, RUN)
        with pytest.raises(UsageError), lock_run(ledger, RUN):
            pass
        # And may be stolen in its turn.
        with lock_run(ledger, RUN, steal=True) as again:
            assert again
    assert locks(ledger) == []


def test_whoever_steals_and_writes_nothing_gives_it_back(ledger: SqliteLedger) -> None:
    ledger.claim(RUN, create=True)
    with lock_run(ledger, RUN):
        for _ in range(2):
            with lock_run(ledger, RUN, steal=True) as stolen:
                assert stolen
            assert is_running(ledger, RUN)
            assert locks(ledger) == [f"{RUN}.lock"]
    assert locks(ledger) == []


def test_whoever_steals_and_claims_the_run_keeps_it(ledger: SqliteLedger) -> None:
    ledger.claim(RUN, create=True)
    with lock_run(ledger, RUN):
        with lock_run(ledger, RUN, steal=True):
            ledger.claim(RUN, create=False)
        # The first can write nothing any more: there is nobody to wait for.
        assert not is_running(ledger, RUN)
    assert locks(ledger) == []


def test_a_thief_that_fails_leaves_no_descriptor(ledger: SqliteLedger) -> None:
    ledger.claim(RUN, create=True)
    assert len(ledger.runs()) == 1
    with lock_run(ledger, RUN):
        before = open_descriptors()
        for _ in range(5):
            with pytest.raises(KeyError), lock_run(ledger, RUN, steal=True):
                raise KeyError
        assert new_descriptors(before) == {}


def test_nothing_is_stolen_where_nobody_holds_it(ledger: SqliteLedger) -> None:
    with lock_run(ledger, RUN, steal=True) as stolen:
        assert not stolen


def test_a_file_that_a_dead_process_left_is_no_lock(ledger: SqliteLedger) -> None:
    with lock_run(ledger, RUN):
        pass
    path = ledger.path.with_name("ledger.db-runs") / f"{RUN}.lock"
    path.write_bytes(b"")

    assert not is_running(ledger, RUN)
    assert locks(ledger) == [path.name]
    with lock_run(ledger, RUN) as stolen:
        assert not stolen
    assert locks(ledger) == []


def test_of_many_at_once_one_holds_it(ledger: SqliteLedger) -> None:
    inside: list[int] = []
    most: list[int] = []
    refused: list[int] = []
    guard = threading.Lock()

    def works() -> None:
        for _ in range(50):
            try:
                with lock_run(ledger, RUN):
                    with guard:
                        inside.append(1)
                        most.append(len(inside))
                    with guard:
                        inside.pop()
            except UsageError:
                refused.append(1)

    threads = [threading.Thread(target=works) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert max(most) == 1
    assert len(most) + len(refused) == 200
    assert locks(ledger) == []


def test_descriptors_do_not_leak(ledger: SqliteLedger) -> None:
    with lock_run(ledger, RUN):
        before = open_descriptors()
        for _ in range(20):
            with pytest.raises(UsageError), lock_run(ledger, RUN):
                pass
            assert is_running(ledger, RUN)
        assert new_descriptors(before) == {}


def test_a_ledger_without_a_file_has_no_others_to_tell() -> None:
    ledger = MemoryLedger()

    with lock_run(ledger, RUN), lock_run(ledger, RUN) as stolen:
        assert not stolen
        assert is_running(ledger, RUN)
        assert not is_running(MemoryLedger(), RUN)
    assert not is_running(ledger, RUN)


def test_where_no_lock_can_be_made_it_is_said() -> None:
    with unprivileged() as folder:
        ledger = SqliteLedger(folder / "ledger.db")
        folder.chmod(0o500)
        with pytest.raises(LedgerUnavailable, match="Permission denied"), lock_run(ledger, RUN):
            pass
        folder.chmod(0o700)
        ledger.close()


def test_a_lock_that_cannot_be_read_is_no_answer(ledger: SqliteLedger) -> None:
    """Neither that the run is running nor that it is not."""
    path = ledger.path.with_name("ledger.db-runs") / f"{RUN}.lock"
    path.mkdir(parents=True)

    for ask in (is_running, require_idle):
        with pytest.raises(LedgerUnavailable, match="Is a directory") as caught:
            ask(ledger, RUN)
        assert "\n" not in str(caught.value)
    with pytest.raises(LedgerUnavailable), lock_run(ledger, RUN):
        pass


def test_a_lock_that_belongs_to_somebody_else_is_no_answer() -> None:
    with (
        unprivileged() as folder,
        SqliteLedger(folder / "ledger.db") as ledger,
        lock_run(ledger, RUN),
    ):
        (folder / "ledger.db-runs" / f"{RUN}.lock").chmod(0o000)

        with pytest.raises(LedgerUnavailable, match="Permission denied"):
            is_running(ledger, RUN)


@pytest.mark.parametrize("name", ["../victim", "", RUN.lower(), RUN + "0", "x\0y", "last"])
def test_what_is_no_id_is_locked_nowhere(ledger: SqliteLedger, name: str) -> None:
    assert list(ledger.runs()) == []
    (ledger.path.parent / "victim.lock").write_text("precious")

    with pytest.raises(RunNotFound), lock_run(ledger, name):
        pass

    assert (ledger.path.parent / "victim.lock").read_text() == "precious"
    assert not ledger.path.with_name("ledger.db-runs").exists()


def test_a_ledger_has_the_same_locks_by_whichever_name(
    ledger: SqliteLedger, tmp_path: Path
) -> None:
    assert list(ledger.runs()) == []
    (tmp_path / "link.db").symlink_to(ledger.path)

    with SqliteLedger(tmp_path / "link.db") as other, lock_run(ledger, RUN):
        assert is_running(other, RUN)
        with pytest.raises(UsageError, match="is running"), lock_run(other, RUN):
            pass
    assert not (tmp_path / "link.db-runs").exists()


# -- between processes -------------------------------------------------------------------------


class Worker:
    """A process that runs something, kept waiting in its second call."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKS, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self.process.stdout is not None
        self.lines = [self.process.stdout.readline() for _ in range(2)]
        assert all(each.startswith("asked") for each in self.lines), self.lines

    def go_on(self) -> list[str]:
        """Let it go on, and wait for its end. Returns what it said then."""
        said, _ = self.process.communicate("\n", timeout=60)
        return said.splitlines()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=60)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    made = Worker(tmp_path / "ledger.db")
    yield made
    if made.process.poll() is None:
        made.kill()
    for each in (made.process.stdin, made.process.stdout):
        if each is not None:
            each.close()


def opened(sandbox: WasmSandbox, ledger: SqliteLedger) -> tuple[Session, ModelDouble, str]:
    model = ModelDouble(block("FINAL(n + 1)"))
    session = Session(model=model, ledger=ledger, sandbox=sandbox)
    (row,) = ledger.runs()
    return session, model, row.run


def test_a_run_is_refused_while_its_process_lives_and_goes_on_when_it_was_killed(
    wasm_sandbox: WasmSandbox, ledger: SqliteLedger, worker: Worker
) -> None:
    session, model, run = opened(wasm_sandbox, ledger)
    before = whole_records(ledger, run)
    for _ in range(2):
        with pytest.raises(UsageError, match=f"run {run} is running") as caught:
            session.resume(run, in_doubt="retry")
        assert "\n" not in str(caught.value)
    assert (model.asked, whole_records(ledger, run)) == ([], before)

    worker.kill()
    # Its lock went with it; its file is there, and no lock.
    assert locks(ledger) == [f"{run}.lock"]
    with pytest.raises(RunInDoubt):
        session.resume(run)
    assert locks(ledger) == []
    ended = session.resume(run, in_doubt="retry")

    assert ended.answer == "21"
    assert len(model.asked) == 1
    (resumed,) = [each for each in whole_records(ledger, run) if isinstance(each, RunResumed)]
    assert not resumed.stolen
    assert verify_ledger(ledger, [run]).first_bad is None
    assert locks(ledger) == []
    session.close()


def test_a_thief_ends_the_run_and_the_zombie_writes_and_asks_nothing_more(
    wasm_sandbox: WasmSandbox, ledger: SqliteLedger, worker: Worker
) -> None:
    session, _, run = opened(wasm_sandbox, ledger)

    ended = session.resume(run, in_doubt="retry", steal=True)
    after = whole_records(ledger, run)
    said = worker.go_on()

    assert ended.answer == "21"
    assert said == ["error LedgerConflict"]
    assert whole_records(ledger, run) == after
    (resumed,) = [each for each in after if isinstance(each, RunResumed)]
    assert resumed.stolen
    assert verify_ledger(ledger, [run]).first_bad is None
    assert session.replay(run).held
    assert locks(ledger) == []
    session.close()


def test_a_zombie_that_ends_takes_no_lock_with_it(ledger: SqliteLedger, worker: Worker) -> None:
    (row,) = ledger.runs()

    with lock_run(ledger, row.run, steal=True) as stolen:
        # Nothing was written yet: it is still the owner, and ends its run.
        said = worker.go_on()
        assert said[-1] == "ended answered"
        assert stolen
        # The lock is the thief's. What was the zombie's lies beside it until the thief is done.
        assert f"{row.run}.lock" in locks(ledger)
        assert is_running(ledger, row.run)
    assert locks(ledger) == []


class _Held:
    """A directory of locks from which nothing can be removed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        unlink = Path.unlink
        self.tried: list[str] = []

        def refused(path: Path, missing_ok: bool = False) -> None:
            if path.suffix == ".lock":
                self.tried.append(path.name)
                raise PermissionError(13, "Permission denied", str(path))
            unlink(path, missing_ok=missing_ok)

        monkeypatch.setattr(Path, "unlink", refused)


@pytest.mark.parametrize(
    "program",
    ["FINAL(rlm_query('q'))", "FINAL(','.join(rlm_query_batched(['q'] * 3)))"],
    ids=["one", "batch"],
)
def test_a_lock_that_cannot_be_removed_is_a_warning_and_not_a_failure(
    tmp_path: Path, sandbox: WasmSandbox, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    def answer(prompt: str) -> str:
        return block(program if "the root" in prompt else "FINAL('child')")

    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        session = Session(model=ModelDouble(by_prompt(answer)), ledger=ledger, sandbox=sandbox)
        with session, monkeypatch.context() as patched:
            held = _Held(patched)
            with pytest.warns(CleanUpWarning, match="could not be removed: Permission denied"):
                run = session.run("the root")

        assert run.stop == "answered"
        assert set(str(run.answer).split(",")) == {"child"}
        assert len(held.tried) == len(ledger.runs())
        assert not any(is_running(ledger, row.run) for row in ledger.runs())
        # What is left behind locks nothing.
        with lock_run(ledger, run.run):
            assert is_running(ledger, run.run)
