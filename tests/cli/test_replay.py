"""`tally replay` of a process that is paused, interrupted or out of time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.cli.test_resume import Tally, tally

__all__ = ["tally"]

pytestmark = pytest.mark.slow

PROGRAM = "total = 0\nfor number in range(10_000_000):\n    total += number\nFINAL(total)"
RUN_SECONDS = 60
# Longer than a program may be active, so that a limit of time would end it.
PAUSE_SECONDS = 31


@pytest.fixture
def long_run(tally: Tally) -> str:
    tally.script(PROGRAM)
    done = tally.run("--timeout", str(RUN_SECONDS), "--quiet")
    assert done.code == 0
    return tally.last()


def wait_until_busy(process: subprocess.Popen[str], *, seconds: float) -> None:
    """Wait until the process has used as much processor time, most of it in its program."""
    ticks = os.sysconf("SC_CLK_TCK")
    until = time.monotonic() + 60
    while time.monotonic() < until:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        if (int(fields[11]) + int(fields[12])) / ticks > seconds:
            return
        time.sleep(0.02)
    raise AssertionError("the process did not get that far")


def test_a_replay_that_is_paused_in_the_middle_holds(tally: Tally, long_run: str) -> None:
    with tally.started("replay", long_run, "--json") as process:
        wait_until_busy(process, seconds=1.5)
        process.send_signal(signal.SIGSTOP)
        time.sleep(PAUSE_SECONDS)
        process.send_signal(signal.SIGCONT)
        out, said = process.communicate(timeout=60)

    assert (process.returncode, said) == (0, "")
    report = json.loads(out)
    assert report["held"]
    assert (report["programs"], report["served"]) == (1, 0)


def test_a_replay_that_is_interrupted_is_stopped_and_not_diverged(
    tally: Tally, long_run: str
) -> None:
    with tally.started("replay", long_run) as process:
        wait_until_busy(process, seconds=1.5)
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=30)

    assert (process.returncode, out) == (130, "")
    assert said.startswith(f"stopped: the replay of run {long_run} was interrupted")


def test_a_replay_that_its_timeout_ends_is_stopped_and_not_diverged(
    tally: Tally, long_run: str
) -> None:
    done = tally("replay", long_run, "--timeout", "0.2")

    assert (done.code, done.out) == (3, "")
    assert f"the replay of run {long_run} was stopped at entry" in done.line
    assert "its timeout of 0.2 s passed" in done.line
    assert tally("replay", long_run, "--timeout", "60").code == 0
