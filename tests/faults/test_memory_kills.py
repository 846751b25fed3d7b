"""A process killed while it remembers or erases loses nothing that it acknowledged.

Killed with signal 9 after some of its acknowledgements, again and again on one file; and, under
strace, as it enters the n-th call that changes a file.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest
from tests.faults.memory_worker import SECRET
from tests.memory.memory_store import raw_bytes, tables

from tallystick.memory.note import NewNote
from tallystick.memory.recall.selection import EVERYTHING
from tallystick.memory.recall.view import view
from tallystick.memory.remember import remember
from tallystick.memory.store.sqlite import SqliteMemory
from tallystick.memory.store.verify import verify_memory

ROOT = Path(__file__).parents[2]
FULL = os.environ.get("TALLYSTICK_SOAK") == "full"
KILLS_SOAK, KILLS_DEFAULT = (1_000 if FULL else 20), 3
CALLS = "pwrite64,write,fdatasync,fsync,ftruncate,unlink,openat"
needs_strace = pytest.mark.skipif(
    shutil.which("strace") is None, reason="kills at system calls with strace"
)


def started(work: str, path: Path, name: str, under: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    command = [*under, sys.executable, "-m", "tests.faults.memory_worker", work, str(path), name]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def check(path: Path, acknowledged: set[str], gone: set[str]) -> None:
    """What must hold after any death, and that the next process can go on."""
    with SqliteMemory(path) as memory:
        report = verify_memory(memory)
        assert report.error_message is None
        seen = view(memory, reader=None, filters=EVERYTHING)
        assert acknowledged - gone <= set(seen.ids)
        assert gone.isdisjoint(seen.ids)
        before = tables(path)
        memory.rebuild()
        assert tables(path) == before
        remember(memory, NewNote(agent_id="ada", content=f"after {report.total_records}"))
        assert not memory.scrub_due


# -- killed by a signal ------------------------------------------------------------------------


def kill_again_and_again(path: Path, *, count: int, seed: int) -> tuple[int, int]:
    """Kill writers of one file, the checks in between. Returns acknowledgements and notes."""
    chance = Random(seed)
    acknowledged: set[str] = set()
    for number in range(count):
        writer = started("insert", path, f"w{number}")
        assert writer.stdout is not None
        for _ in range(chance.randrange(1, 40)):
            words = writer.stdout.readline().split()
            assert words, "it ended by itself"
            acknowledged.update(word.decode() for word in words[1:])
        # Not only right after an acknowledgement.
        time.sleep(chance.random() * 0.004)
        writer.send_signal(signal.SIGKILL)
        rest, _ = writer.communicate(timeout=60)
        acknowledged.update(_told(rest.decode(errors="replace"), "kept"))
        assert writer.returncode == -signal.SIGKILL
        if number % 10 == count % 10 or count < 10:
            check(path, acknowledged, set())
    check(path, acknowledged, set())
    with SqliteMemory(path) as memory:
        return len(acknowledged), len(view(memory, reader=None, filters=EVERYTHING))


def test_a_few_kills_lose_no_acknowledged_note(tmp_path: Path) -> None:
    acknowledged, there = kill_again_and_again(tmp_path / "memory.db", count=KILLS_DEFAULT, seed=1)

    # Besides those of the checks, at most one act of each writer was not acknowledged.
    assert acknowledged <= there <= acknowledged + KILLS_DEFAULT * 6 + 1


@pytest.mark.soak
def test_many_kills_lose_no_acknowledged_note(tmp_path: Path) -> None:
    acknowledged, there = kill_again_and_again(tmp_path / "memory.db", count=KILLS_SOAK, seed=2)

    assert acknowledged <= there


@pytest.mark.slow
def test_two_writers_one_killed_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    writers = [started("insert", path, f"w{n}") for n in range(2)]
    acknowledged: set[str] = set()
    for place, writer in enumerate(writers):
        assert writer.stdout is not None
        for _ in range(30):
            acknowledged.update(word.decode() for word in writer.stdout.readline().split()[1:])
        if place == 0:
            writer.kill()
    writers[1].kill()
    for writer in writers:
        rest, _ = writer.communicate(timeout=60)
        acknowledged.update(_told(rest.decode(errors="replace"), "kept"))

    check(path, acknowledged, set())


# -- killed at a call --------------------------------------------------------------------------


def calls(folder: Path, work: str) -> list[tuple[str, int]]:
    """Every call of a work that changes a file, as its name and which of that name it is."""
    trace = folder / "trace"
    under = ["strace", "-f", "-e", f"trace={CALLS}", "-o", str(trace)]
    done = started(work, folder / "listed" / "memory.db", "w", under)
    out, errors = done.communicate(timeout=60)
    assert done.returncode == 0, errors
    assert b"erased" in out
    counts: Counter[str] = Counter()
    found: list[tuple[str, int]] = []
    for line in trace.read_text(errors="replace").splitlines():
        if called := re.match(r"\d+\s+(\w+)\(", line):
            counts[called[1]] += 1
            # Before the file is there, Python is starting.
            if found or "memory.db" in line:
                found.append((called[1], counts[called[1]]))
    return found


def sweep(folder: Path, step: int, work: str = "erase") -> int:
    places = calls(folder, work)
    deaths = 0
    for name, count in [*places[::step], places[-1]]:
        path = folder / "killed" / "memory.db"
        shutil.rmtree(path.parent, ignore_errors=True)
        inject = ["-e", f"trace={name}", "-e", f"inject={name}:signal=SIGKILL:when={count}"]
        dying = started(work, path, "w", ["strace", "-f", *inject, "-o", "/dev/null"])
        out, _ = dying.communicate(timeout=60)
        deaths += dying.returncode != 0
        said = out.decode()
        kept, gone = _told(said, "kept"), _told(said, "erased")
        with at_call(name, count):
            with SqliteMemory(path) as memory:
                erased = view(memory, reader=None, as_of=min(4, memory.head().count)).erased
            check(path, kept, gone | set(erased))
            if erased:
                assert SECRET.encode() not in raw_bytes(path.parent)
    return deaths


@contextlib.contextmanager
def at_call(name: str, count: int) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        error.add_note(f"killed at {name} number {count}")
        raise


def _told(said: str, word: str) -> set[str]:
    """The ids that were told with a word, as far as the line was told to its end."""
    whole = [line.split() for line in said.split("\n")[:-1]]
    return {id for line in whole if line and line[0] == word for id in line[1:]}


@needs_strace
@pytest.mark.slow
def test_a_death_at_some_calls_of_an_erasure_leaves_the_note_or_nothing_of_it(
    tmp_path: Path,
) -> None:
    assert sweep(tmp_path, step=20) >= 4


@needs_strace
@pytest.mark.soak
def test_a_death_at_every_call_of_an_erasure_leaves_the_note_or_nothing_of_it(
    tmp_path: Path,
) -> None:
    assert sweep(tmp_path, step=1 if FULL else 20) >= 10


@needs_strace
@pytest.mark.slow
def test_a_death_at_some_calls_of_an_erasure_leaves_no_block_of_the_index_with_the_note(
    tmp_path: Path,
) -> None:
    pytest.importorskip("numpy")
    assert sweep(tmp_path, step=25, work="index") >= 4


@needs_strace
@pytest.mark.soak
def test_a_death_at_every_call_of_an_erasure_leaves_no_block_of_the_index_with_the_note(
    tmp_path: Path,
) -> None:
    pytest.importorskip("numpy")
    assert sweep(tmp_path, step=1 if FULL else 20, work="index") >= 10
