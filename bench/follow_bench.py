"""Follow and stop: how soon a reader in another process has an event, and how soon a run has ended.

Question: is an event with its reader within 250 ms of its commit, and is a run of another process
over within half a second of the request to stop it?

Sketch before measuring. A reader looks every 50 ms, so an event waits 25 ms on average and 50 at
most, beside the query. A driver looks every 150 ms, then cancels the call and forces two records to
the disk: 75 ms on average and about 200 at most.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from bench.measure import Bench, Row, World

from tallystick.interop.trajectory_events import LlmResponse
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.live.follow import follow
from tallystick.live.stop import stop

__all__ = ["BENCHES"]

_TURNS = 60
_STOPS = 8
# Runs turns of 30 ms; the last one waits for ever if it is told so. Says which run that is.
_WORKS = """
import asyncio, sys
from pathlib import Path
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.client import Session
from tallystick.core.charge import RunLimits
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
    session.run("what is it?", watch=watch, limits=RunLimits(turns=100, tokens=10_000_000))
"""


def _worker(path: Path, turns: int, how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _WORKS, str(path), str(turns), how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _named(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def followed(world: World) -> Iterable[Row]:
    with SqliteLedger(world.directory / "followed.db") as ledger:
        late = []
        with _worker(ledger.path, _TURNS, "answers") as process:
            for event in follow(_named(process), ledger=ledger):
                if isinstance(event, LlmResponse) and event.at is not None:
                    late.append(time.time() * 1000 - event.at)
        late.sort()
        yield Row(
            bench="follow",
            name="from the commit of an event to its reader in another process, p95",
            unit="ms",
            samples=[late[len(late) * 95 // 100]],
            target=250,
            against=f"median {late[len(late) // 2]:.0f} ms, most {late[-1]:.0f} ms",
        )
        took = []
        for _ in range(_STOPS):
            with _worker(ledger.path, 1, "waits") as process:
                run = _named(process)
                time.sleep(0.5)
                began = time.monotonic()
                stop(run, ledger=ledger)
                took.append((time.monotonic() - began) * 1000)
        yield Row(
            bench="follow",
            name="from the request to stop a run of another process to its end",
            unit="ms",
            samples=took,
            target=500,
        )


BENCHES: dict[str, Bench] = {"follow": followed}
