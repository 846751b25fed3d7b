"""A process killed at any system call of a run that remembers: each note is there once.

A note is written under the key of the call, so a call that was under way is simply made again.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.faults.killed_runs import Whole, Workers, go_on, played_whole
from tests.faults.memory_script import check_notes
from tests.faults.paid_server import PaidServer
from tests.faults.soak_record import noted, outcome_table
from tests.faults.sweeps import at_calls, of, provider, spread
from tests.faults.tracer import available

FULL = os.environ.get("TALLYSTICK_SOAK") == "full"
POINTS_SLOW, POINTS_SOAK = 16, (None if FULL else 4)
needs_tracer = pytest.mark.skipif(not available(), reason="system calls are traced with ptrace")


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    folder = tmp_path_factory.mktemp("runs")
    with PaidServer() as server, Workers(folder, server, subject="memory") as made:
        yield made


@pytest.fixture(scope="module")
def whole(workers: Workers) -> Whole:
    made = played_whole(workers)
    check_notes(workers.data)
    return made


def swept(workers: Workers, whole: Whole, *, count: int | None, asked: bool) -> None:
    """Kill the run at system calls, go on with it, and look at the notes."""
    workers.begin_anew()
    listed = workers.traced(kill_at=None)
    assert listed.result == whole.result
    outcomes = []
    for place in spread(listed.seen, count, each_kind=False):
        workers.begin_anew()
        killed = workers.traced(kill_at=place, asked=asked)
        if killed.killed:
            with at_calls([killed]):
                outcome = go_on(workers, killed, whole, asked=asked)
                outcomes.append((killed.seen[-1].split()[0], outcome))
                check_notes(workers.data)
    counted = Counter(outcomes)
    assert of(counted, "went on") >= len(outcomes) // 3
    noted(f"runs that remember, killed at system calls; {provider(asked)}", outcome_table(counted))


@pytest.mark.slow
@needs_tracer
def test_after_a_death_at_a_system_call_each_note_is_there_once(
    workers: Workers, whole: Whole
) -> None:
    swept(workers, whole, count=POINTS_SLOW, asked=True)


@pytest.mark.soak
@needs_tracer
@pytest.mark.parametrize("asked", [False, True])
def test_after_a_death_at_every_system_call_each_note_is_there_once(
    asked: bool, workers: Workers, whole: Whole
) -> None:
    swept(workers, whole, count=POINTS_SOAK, asked=asked)
