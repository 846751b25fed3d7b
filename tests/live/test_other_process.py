"""Runs of other processes are followed live, and stopped."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tallystick
from tallystick.interop.trajectory_events import LlmResponse, QueryComplete, TrajectoryEvent
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.live.follow import follow
from tallystick.runtime.calls.deltas import TextDelta

# Starts processes: CI runs them.
pytestmark = pytest.mark.slow

# Runs turns for a while, or waits for ever if it is told so, and says which run that is.
WORKS = """
import asyncio, sys
from pathlib import Path
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.client import Session
from tallystick.testing.models import ModelDouble, block

def before(call):
    last = call.number == int(sys.argv[2])
    return asyncio.sleep(3600 if last and sys.argv[3] == "waits" else 0.03)

programs = [block(f"n = {n}\\nprint(n)") for n in range(int(sys.argv[2]))]
model = ModelDouble([*programs, block("FINAL(n)")], before=before)
ledger = SqliteLedger(Path(sys.argv[1]))
with Session(model=model, ledger=ledger, config=None) as session:
    said = []
    def watch(run, record):
        if not said:
            said.append(run)
            print(run, flush=True)
    print(session.run("what is it?", watch=watch).stop, flush=True)
"""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqliteLedger]:
    with SqliteLedger(tmp_path / "ledger.db") as made:
        yield made


def worker(ledger: SqliteLedger, turns: int, how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORKS, str(ledger.path), str(turns), how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def named(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def events_of(ledger: SqliteLedger, run: str) -> list[TrajectoryEvent]:
    return [each for each in follow(run, ledger=ledger) if not isinstance(each, TextDelta)]


def test_a_run_of_another_process_is_followed_live_from_commit_to_reader_in_250_ms(
    ledger: SqliteLedger,
) -> None:
    with worker(ledger, 20, "answers") as process:
        run, late, events = named(process), [], []
        for event in follow(run, ledger=ledger):
            assert not isinstance(event, TextDelta)
            if isinstance(event, LlmResponse) and event.at is not None:
                # Committed at once, so the time of the entry is that of the commit.
                late.append(time.time() * 1000 - event.at)
            events.append(event)
        process.wait(30)

    assert isinstance(events[-1], QueryComplete)
    assert events == events_of(ledger, run)
    late.sort()
    # The first may be on record before the reader is there.
    assert late[: len(late) * 19 // 20][-1] <= 250, late


def test_a_reader_ends_when_the_process_of_the_run_is_killed(ledger: SqliteLedger) -> None:
    with worker(ledger, 1, "waits") as process:
        run = named(process)
        time.sleep(0.5)
        process.kill()
        process.wait(10)

        events = events_of(ledger, run)

    assert not any(isinstance(each, QueryComplete) for each in events)
    assert events


def test_a_run_of_another_process_is_stopped_within_half_a_second_and_resumed(
    ledger: SqliteLedger,
) -> None:
    with worker(ledger, 1, "waits") as process:
        run = named(process)
        time.sleep(0.5)
        began = time.monotonic()
        done = tallystick.stop(run, ledger=ledger)
        took = time.monotonic() - began
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "cancelled"
        process.wait(10)

    assert done.stop == "cancelled"
    assert took < 1.0  # 0.5 s on a quiet machine
