"""The limits of a box hold for everything in it together, whatever the box does to its keeper."""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.escape.process.boxes import ProcessTestSession, living_in, made_sandbox, opened
from tests.escape.process.case import MIB, Case
from tests.escape.process.programs.together import MEMORY, REFUSED_MEMORY, TASKS

from tallystick.sandbox.port import ExecutionResult
from tallystick.sandbox.process.inside.watch import memory
from tallystick.sandbox.process.sandbox import ProcessSandbox

# How long after its limit a program may still be there.
LATE_SECONDS = 1.0
# What may be filled before the keeper has seen it. Only root can have it run before the programs.
# Without a common limit it would be a gigabyte and more.
ABOVE_BYTES = (96 if os.geteuid() == 0 else 256) * MIB

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the programs make system calls by x86-64 numbers"
)


def of(cases: list[Case], by_default: int) -> list[object]:
    """The first few are tried by default, the others where there is more time."""
    return [
        pytest.param(case, id=case.name, marks=pytest.mark.slow if place >= by_default else ())
        for place, case in enumerate(cases)
    ]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[ProcessSandbox]:
    made = made_sandbox(spares=0)
    # Where the host has groups for boxes, what the keeper does alone would not be seen.
    made.pretend("cgroup", "left out")
    yield made
    asyncio.run(made.close())


@pytest.fixture
def session(sandbox: ProcessSandbox) -> Iterator[ProcessTestSession]:
    with opened(sandbox) as made:
        made.value("kept = 41")
        yield made
    assert living_in(made.namespace) == []


class Held:
    """Looks at what the processes of a box hold, as long as the block lasts."""

    def __init__(self, namespace: str) -> None:
        self.most = 0
        self._namespace = namespace
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Held:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.005):
            self.most = max(self.most, held_by(living_in(self._namespace)))


def held_by(pids: list[int]) -> int:
    """Private and shared memory of processes, where what two share counts once."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
        except OSError:
            continue
        for line in text.split(b"\n"):
            if line.startswith((b"Pss_Anon:", b"Pss_Shmem:")):
                total += int(line.split()[1]) * 1024
    return total


@contextmanager
def busy_machine() -> Iterator[None]:
    """Two processes for each processor that never wait."""
    count = 2 * (os.cpu_count() or 1)
    spinning = [subprocess.Popen([sys.executable, "-c", "while 1: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for each in spinning:
            each.kill()
            each.wait()


def run(session: ProcessTestSession, case: Case) -> tuple[ExecutionResult, float]:
    perform = session.run if case.python else session.command
    began = time.monotonic()
    result = perform(case.text, wall_ms=case.wall_ms, **case.limits)
    return result, time.monotonic() - began


@pytest.mark.parametrize("case", of(TASKS, 2))
def test_a_program_with_too_many_tasks_ends_with_its_time(
    case: Case, session: ProcessTestSession
) -> None:
    result, seconds = run(session, case)

    assert result.stop == "wall", result
    assert seconds < case.wall_ms / 1000 + LATE_SECONDS
    assert session.value("kept + 1") == "42"
    assert session.said("echo here") == "here\n"


@pytest.mark.slow
@pytest.mark.parametrize("case", of(TASKS, len(TASKS)))
def test_a_program_with_too_many_tasks_ends_with_its_time_on_a_busy_machine(
    case: Case, session: ProcessTestSession
) -> None:
    with busy_machine():
        result, seconds = run(session, case)

    assert result.stop == "wall", result
    assert seconds < case.wall_ms / 1000 + LATE_SECONDS


@pytest.mark.parametrize("case", of(MEMORY, 3))
def test_everything_in_a_box_is_held_to_one_limit_of_memory(
    case: Case, session: ProcessTestSession
) -> None:
    limit = case.limits["memory_bytes"]
    with Held(session.namespace) as held:
        result, seconds = run(session, case)

    assert result.stop == "memory", result
    assert result.error is not None
    assert f"{limit:,}" in result.error.message
    assert held.most < limit + ABOVE_BYTES
    # Some take a while to fill it: they would hold it for twenty seconds.
    assert seconds < 5
    assert session.value("kept + 1") == "42"
    assert session.said("echo here") == "here\n"


@pytest.mark.slow
@pytest.mark.parametrize("case", of(MEMORY, len(MEMORY)))
def test_everything_in_a_box_is_held_to_one_limit_of_memory_on_a_busy_machine(
    case: Case, session: ProcessTestSession
) -> None:
    with busy_machine(), Held(session.namespace) as held:
        result, _ = run(session, case)

    assert result.stop == "memory", result
    assert held.most < case.limits["memory_bytes"] + ABOVE_BYTES


@pytest.mark.parametrize("case", of(REFUSED_MEMORY, len(REFUSED_MEMORY)))
def test_memory_that_belongs_to_no_process_is_not_to_be_had(
    case: Case, session: ProcessTestSession
) -> None:
    result, _ = run(session, case)

    assert result.stop == "finished", result
    assert [part for part in case.shows if part not in result.stdout] == [], result


def test_memory_that_is_held_would_be_seen(session: ProcessTestSession) -> None:
    with Held(session.namespace) as held:
        session.value("import time\nheld = b'x' * (120 << 20)\ntime.sleep(0.2)")

    assert held.most > 120 * MIB


# -- what is not too much ------------------------------------------------------------------------


ORDINARY = {
    "four processes": (
        "import os, time\nchildren = []\n"
        "for _ in range(4):\n"
        "    child = os.fork()\n"
        "    if child == 0: held = bytearray(45 << 20); time.sleep(0.3); os._exit(0)\n"
        "    children.append(child)\n"
        "[os.waitpid(child, 0)[1] for child in children]",
        "[0, 0, 0, 0]",
    ),
    "a pool that shares what its parent has": (
        "import multiprocessing\nbig = bytearray(120 << 20)\n"
        "def part(at): return sum(big[at : at + 1000]) + at\n"
        "with multiprocessing.get_context('fork').Pool(4) as pool:\n"
        "    found = pool.map(part, range(400))\n"
        "del big\nlen(found)",
        "400",
    ),
    "shared memory that is given back": (
        "import mmap\n"
        "for _ in range(6):\n"
        "    shared = mmap.mmap(-1, 100 << 20); shared[0] = 1; shared.close()\n'given back'",
        "'given back'",
    ),
    "shared memory with a name": (
        "from multiprocessing import shared_memory\n"
        "shared = shared_memory.SharedMemory(create=True, size=20 << 20)\n"
        "shared.buf[0] = 1; shared.close(); shared.unlink()\n'given back'",
        "'given back'",
    ),
    "shared memory with a child": (
        "import mmap, os\nshared = mmap.mmap(-1, 10 << 20)\nchild = os.fork()\n"
        "if child == 0: shared[0] = 7; os._exit(0)\n"
        "os.waitpid(child, 0); shared[0]",
        "7",
    ),
    "many threads that wait": (
        "import threading, time\n"
        "threads = [threading.Thread(target=time.sleep, args=(0.3,)) for _ in range(20)]\n"
        "for each in threads: each.start()\n"
        "for each in threads: each.join()\nlen(threads)",
        "20",
    ),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_a_program_within_its_limits_is_left_alone(name: str, session: ProcessTestSession) -> None:
    program, value = ORDINARY[name]

    assert session.value(program, memory_bytes=256 * MIB) == value


def test_a_program_may_change_all_that_an_earlier_one_left(session: ProcessTestSession) -> None:
    session.value("held = bytearray(140 << 20)", memory_bytes=256 * MIB)

    program = "import time\nfor at in range(0, len(held), 4096): held[at] = 1\ntime.sleep(0.3)"
    assert session.run(program, memory_bytes=256 * MIB).stop == "finished"


def test_a_pipeline_and_many_waiting_children_are_left_alone(session: ProcessTestSession) -> None:
    said = session.said(
        "seq 100000 | sort -n | uniq | wc -l; head -c 1000000 /dev/zero | wc -c; "
        "for n in $(seq 40); do sleep 0.2 & done; wait; echo over"
    )

    assert said.split() == ["100000", "1000000", "over"]


# -- the counting itself ---------------------------------------------------------------------------


def test_shared_mappings_count_until_they_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    there, now = 2, 10.0
    monkeypatch.setattr(memory, "_count_mappings", lambda pids: there)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    mappings = memory.SharedMappings()
    for length in (5, 7, 3):
        mappings.add(length)

    # Which two of them are there is not known: the two longest. The third may be about to come.
    assert mappings.forget_unmapped([]) == 12
    assert (mappings.total, mappings.any_recent) == (15, True)
    now = 11.0
    assert mappings.forget_unmapped([]) == 12
    assert (mappings.total, mappings.any_recent) == (12, False)
    there = 0
    assert mappings.forget_unmapped([]) == mappings.total == 0


def test_the_name_of_a_process_does_not_change_what_is_read_of_it() -> None:
    text = (
        "Name:\tState:\\nRssAnon:\t0 kB\nState:\tR (running)\nThreads:\t2\n"
        "VmPTE:\t      8 kB\nRssAnon:\t     100 kB\nVmSwap:\t      20 kB\n"
    )

    task = memory._read_status(text.encode())

    assert task == memory.Task(busy=2, private=120 * 1024, page_tables=8 * 1024)
