"""Turns over HTTP: what a turn costs in whole, beside the bare `openai` client and `exec`.

Question: is the processor time of a turn, with ledger and sandbox, at most that of a loop over the
bare client that keeps nothing and isolates nothing?

Sketch before measuring. httpx costs 1 ms for a request and a reply in one piece, the openai client
as much again for its own layers and models; a stream costs it 30 us for each event. Ours: httpx 1
ms, the record 1 ms, a program in the sandbox 0.5 ms, a tenth of a run's start and end 0.5 ms. So
about 1.5 times the bare client where replies come whole, and level where they are streamed.

Each client takes whole runs of ten turns by turns, so that a busy moment falls on both.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from bench.measure import Bench, Row, World
from bench.turn_server import TURNS

from tallystick.client import Session
from tallystick.core.charge import RunLimits
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.model.endpoint import Endpoint, Secret
from tallystick.model.http import HttpModel

__all__ = ["BENCHES"]

_HERE = Path(__file__).parent
_ROUNDS = 41
_ANSWER = sum(range(500)) * (TURNS - 1)  # the rows of the last program but one
_Run = Callable[[bool], float]


@contextlib.contextmanager
def _server() -> Iterator[str]:
    command = [sys.executable, str(_HERE / "turn_server.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.kill()


@contextlib.contextmanager
def _bare(url: str, versions: list[str]) -> Iterator[_Run | None]:
    """Yield what makes a run with the peer and says how many milliseconds a turn took."""
    # The locked environment has the client already: something else of it needs one.
    here = sys.executable if importlib.util.find_spec("openai") is not None else ""
    python = os.environ.get("TALLYSTICK_BENCH_OPENAI", here)
    if not python or not Path(python).exists():
        yield None
        return
    command = [python, str(_HERE / "peers" / "openai_turn.py")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:

        def run(stream: bool) -> float:
            assert process.stdin is not None
            assert process.stdout is not None
            asked = {"url": url, "turns": TURNS, "stream": stream}
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
            told: dict[str, Any] = json.loads(process.stdout.readline())
            if told["answer"] != _ANSWER:
                raise RuntimeError(f"the bare client's run came to {told['answer']!r}")
            versions[:] = [str(told["version"])]
            return float(told["cpu_ms"])

        try:
            yield run
        finally:
            process.kill()


@contextlib.contextmanager
def ours(world: World, url: str, *, stream: bool) -> Iterator[_Run]:
    """Yield what makes a run here and says how many milliseconds of all threads a turn took."""
    key = Secret("k" * 40)
    endpoint = Endpoint(
        provider="bench", dialect="openai", base_url=url, model="m", key=key, stream=stream
    )
    ledger = SqliteLedger(world.directory / f"turn-http-{stream}.db")
    model = HttpModel(endpoint)
    with Session(config=None, model=model, ledger=ledger, sandbox=world.sandbox) as session:

        def run(_: bool) -> float:
            began = time.process_time()
            done = session.run("sum them", limits=RunLimits(turns=TURNS), strategy="code")
            took = (time.process_time() - began) * 1000 / TURNS
            if done.answer != str(_ANSWER):
                raise RuntimeError(f"the run ended with {done.stop}: {done.answer!r}")
            return took

        yield run
    ledger.close()


def turn_http(world: World) -> Iterable[Row]:
    versions: list[str] = []
    with _server() as url, _bare(url, versions) as bare:
        for stream in (False, True):
            how = "streamed" if stream else "in one piece"
            with ours(world, url, stream=stream) as run:
                pairs = [
                    (run(stream), 0.0 if bare is None else bare(stream)) for _ in range(_ROUNDS)
                ]
            del pairs[0]  # it connects and imports
            yield Row(
                bench="turn-http",
                name=f"processor time of a turn over HTTP, {how}",
                unit="ms",
                samples=[took for took, _ in pairs],
            )
            if bare is None:
                why = "set TALLYSTICK_BENCH_OPENAI to a Python that has openai"
                yield Row(bench="turn-http", name="openai", unit="", samples=[], skipped=why)
                continue
            (version,) = versions
            yield Row(
                bench="turn-http",
                name=f"the same with the bare client and exec, {how}",
                unit="ms",
                samples=[took for _, took in pairs],
                who=version,
            )
            yield Row(
                bench="turn-http",
                name=f"a turn to the bare client's, {how}",
                unit="x",
                samples=[took / theirs for took, theirs in pairs],
                target=1.0,
                against=version,
            )


BENCHES: dict[str, Bench] = {"turn-http": turn_http}
