"""A process killed at any system call of a put, a commit or a sweep leaves nothing half done.

A first run under strace lists the calls; then one process each dies as it enters the n-th. Sampled
in CI, all of them in a full soak.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.faults.attachment_worker import ALL, LARGE, SESSION, SMALL
from tests.ledger.builders import RUN

from tallystick.attachments.collect import reclaim, verify_attachments
from tallystick.attachments.session import SessionAttachments
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.core.records import ModelReplied, decode_record
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger

ROOT = Path(__file__).parents[2]
FULL = os.environ.get("TALLYSTICK_SOAK") == "full"
STEP_SOAK, STEP_SLOW, STEP_DEFAULT = (1 if FULL else 20), 10, 120
# Calls that change nothing anybody else can see: memory, signals, clocks, threads.
UNSEEN = (
    "mmap,munmap,mprotect,mremap,madvise,brk,futex,rt_sigaction,rt_sigprocmask,sigaltstack,"
    "getpid,gettid,getuid,geteuid,getgid,getegid,getrandom,clock_gettime,sched_yield,set_robust_list,"
    "rseq,prlimit64,arch_prctl,set_tid_address,uname,sysinfo,sched_getaffinity,exit_group"
)
needs_strace = pytest.mark.skipif(
    shutil.which("strace") is None, reason="kills at system calls with strace"
)

Place = tuple[str, int]


def worker(*arguments: str, under: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*under, sys.executable, "-m", "tests.faults.attachment_worker", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    done = worker("prepare", str(folder))
    assert done.returncode == 0, done.stderr
    return folder


def places(work: str, prepared: Path, folder: Path) -> list[Place]:
    """Every system call of a work, as its name and which of that name it is in its process."""
    shutil.copytree(prepared, folder / "listed")
    trace = folder / "trace"
    done = worker(
        work,
        str(folder / "listed"),
        under=["strace", "-f", "-e", f"trace=!{UNSEEN}", "-o", str(trace)],
    )
    assert done.returncode == 0, done.stderr
    counts: Counter[str] = Counter()
    found: list[Place] = []
    marks = 0
    for line in trace.read_text(errors="replace").splitlines():
        called = re.match(r"\d+\s+(\w+)\(", line)
        if called is None:
            continue
        counts[called[1]] += 1
        marks += 'write(1, "mark\\n"' in line
        if marks == 1:
            found.append((called[1], counts[called[1]]))
    return found


def killed_at(place: Place, work: str, prepared: Path, folder: Path) -> tuple[bool, list[str]]:
    """Run a work that dies as it enters a call. Returns whether it did, and what it had said."""
    name, count = place
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(prepared, folder)
    inject = ["-e", f"trace={name}", "-e", f"inject={name}:signal=SIGKILL:when={count}"]
    done = worker(work, str(folder), under=["strace", "-f", *inject, "-o", "/dev/null"])
    assert done.returncode in (0, -signal.SIGKILL, 128 + signal.SIGKILL), done.stderr
    return done.returncode != 0, done.stdout.splitlines()


def check(folder: Path, said: list[str]) -> None:
    """What must hold after any death, and that a later process can go on and tidy up."""
    with SqliteLedger(folder / "ledger.db") as ledger, SqliteAttachments(ledger.file) as kept:
        held = SessionAttachments(kept, session_id=SESSION)
        no_half_file(kept)
        assert verify_ledger(ledger).ok
        report = verify_attachments(kept)
        assert report.ok, report.bad
        for line in said:
            if line.startswith("committed "):
                assert held.reference(line.split()[1]).committed_at_epoch_ms is not None
        entries = [decode_record(entry.body) for entry in ledger.read(RUN) if entry.body]
        assert len(entries) == 1 or "appended" not in said
        for entry in entries:
            assert isinstance(entry, ModelReplied)
            assert [len(held.read(id)) for id in entry.text.split()] == [7, 70_000]
        for data in (SMALL[2], LARGE[2]):
            assert held.read(hashlib.sha256(data).hexdigest()) == data

        swept = reclaim(kept, policy=ALL)
        assert (
            swept.failed_ids == swept.condemn_deferred_ids == swept.deleted_while_referenced == []
        )
        committed = {each.ref.id for each in held.references()}
        assert all(each.committed_at_epoch_ms for each in held.references())
        with kept.reading() as db:
            assert db is not None
            assert {id for (id,) in db.execute("SELECT id FROM attachment_blob")} == committed
        assert set(kept.files.ids()) <= committed
        assert list(kept.files.staged()) == []
        for data in (*SMALL, *LARGE):
            held.commit([held.put(data).id], forced=False)
        assert verify_attachments(kept).ok


def no_half_file(kept: SqliteAttachments) -> None:
    for id in kept.files.ids():
        assert hashlib.sha256(kept.files.path(id).read_bytes()).hexdigest() == id


def sweep_through(work: str, step: int, prepared: Path, folder: Path) -> None:
    found = places(work, prepared, folder)
    chosen = [*found[::step], found[-1]]
    deaths = 0
    for place in chosen:
        died, said = killed_at(place, work, prepared, folder / "killed")
        deaths += died
        try:
            check(folder / "killed", said)
        except AssertionError as error:
            error.add_note(f"killed at {place[0]} number {place[1]} of {work}")
            raise
    # Starting Python takes a call more or less now and then; hitting nothing must not be the rule.
    assert deaths >= 0.8 * len(chosen)


@needs_strace
@pytest.mark.slow
@pytest.mark.parametrize("work", ["put", "gc"])
def test_a_death_at_a_few_system_calls_leaves_nothing_half_done(
    work: str, prepared: Path, tmp_path: Path
) -> None:
    sweep_through(work, STEP_DEFAULT, prepared, tmp_path)


@needs_strace
@pytest.mark.slow
@pytest.mark.parametrize("work", ["put", "gc"])
def test_a_death_at_every_tenth_system_call_leaves_nothing_half_done(
    work: str, prepared: Path, tmp_path: Path
) -> None:
    sweep_through(work, STEP_SLOW, prepared, tmp_path)


@needs_strace
@pytest.mark.soak
@pytest.mark.parametrize("work", ["put", "gc"])
def test_a_death_at_every_system_call_leaves_nothing_half_done(
    work: str, prepared: Path, tmp_path: Path
) -> None:
    sweep_through(work, STEP_SOAK, prepared, tmp_path)


def test_without_a_death_all_of_it_is_there(prepared: Path, tmp_path: Path) -> None:
    shutil.copytree(prepared, tmp_path / "whole")

    done = [worker(work, str(tmp_path / "whole")) for work in ("put", "gc")]

    assert [each.returncode for each in done] == [0, 0]
    check(tmp_path / "whole", done[0].stdout.splitlines())
