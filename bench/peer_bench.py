"""Other ways to run a model's Python, measured in the same minute where installed.

Question: where does this sandbox stand beside them?

Sketch before measuring. Pyodide is the same idea without metering, under a JavaScript engine that
compiles as it goes: starting costs it about a second, a warm cell less than ours since it runs in
the caller's thread, and its CPU ratio should be near ours without fuel. smolagents' local executor
walks the syntax tree in the host's own Python: nothing to start, and a hundred times slower per
operation. What each of them isolates differs; bench/README.md says how.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.cpu_bench import native_value
from bench.measure import Bench, Row, World, now
from bench.workloads import WORKLOADS

__all__ = ["BENCHES"]

_PEERS = Path(__file__).parent / "peers"
_SECONDS_MAX = 300


def pyodide(world: World) -> Iterable[Row]:
    where = os.environ.get("TALLYSTICK_BENCH_PYODIDE", "")
    if not (Path(where) / "node_modules" / "pyodide").is_dir() or not where:
        yield _skipped("pyodide", "set TALLYSTICK_BENCH_PYODIDE to a directory with node_modules")
        return
    driver = str(_PEERS / "pyodide_bench.mjs")
    programs = {workload.name: workload.program for workload in WORKLOADS}
    starts = []
    for _ in range(5):
        began = now()
        _run(["node", driver, where, "start"], {})
        starts.append(now() - began)
    found = _run(["node", driver, where, "all"], programs)
    yield _row("pyodide", "start", "new process to first result", "s", starts)
    yield from _common("pyodide", found)
    yield from _ratios("pyodide", found, small=False)


def smolagents(world: World) -> Iterable[Row]:
    python = os.environ.get("TALLYSTICK_BENCH_SMOLAGENTS", "")
    if not python or not Path(python).exists():
        yield _skipped("smolagents", "set TALLYSTICK_BENCH_SMOLAGENTS to a Python that has it")
        return
    driver = str(_PEERS / "smolagents_bench.py")
    programs = {workload.name: workload.small_program for workload in WORKLOADS}
    starts = []
    for _ in range(3):
        began = now()
        _run([python, driver, "start"], {})
        starts.append(now() - began)
    found = _run([python, driver, "all"], programs)
    yield _row("smolagents", "start", "new process to first result", "s", starts)
    yield from _common("smolagents", found)
    yield from _ratios("smolagents", found, small=True)


def _run(command: list[str], programs: dict[str, str]) -> dict[str, Any]:
    """Start a driver, give it the programs, and read what it measured, in milliseconds."""
    # Away from the repository: a peer's own imports must not find our modules.
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            command,
            input=json.dumps(programs),
            capture_output=True,
            text=True,
            cwd=directory,
            timeout=_SECONDS_MAX,
        )
    if done.returncode:
        raise RuntimeError(f"{command[1]} failed: {done.stderr.strip()[-500:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _common(who: str, found: dict[str, Any]) -> Iterable[Row]:
    version = str(found.get("version", ""))
    yield _row(who, "fresh", "fresh interpreter to first result", "ms", found["fresh"], version)
    yield _row(who, "warm", "warm cell `1+1`", "ms", found["warm"])
    calls = [milliseconds * 1e3 for milliseconds in found["call"]]
    yield _row(who, "host-call", f"host call: {found['call_what']}", "us", calls)
    if found.get("memory_mib"):
        yield _row(who, "memory", "memory of a live interpreter", "MiB", found["memory_mib"])


def _ratios(who: str, found: dict[str, Any], *, small: bool) -> Iterable[Row]:
    """CPU ratios to this Python, on the same programs; less of them if the peer caps operations."""
    ratios = []
    for workload in WORKLOADS:
        measured = found["cpu"].get(workload.name)
        if not isinstance(measured, list):
            yield _skipped(who, f"cpu {workload.name}: {str(measured)[:80]}")
            continue
        native = _native(workload.small_program if small else workload.program)
        ratios.append(min(measured) / native)
        size = f", size {workload.small:,} for {workload.size:,}" if small else ""
        what = f"{ratios[-1]:.2f}x native ({native:.2f} ms{size}), least to least"
        yield _row(who, "cpu", f"cpu: {workload.name}", "ms", measured, what)
    if ratios:
        yield _row(
            who, "cpu", "cpu: ratio to native, median of five", "x", [statistics.median(ratios)]
        )
        yield _row(who, "cpu", "cpu: ratio to native, worst of five", "x", [max(ratios)])


def _native(program: str) -> float:
    """Milliseconds of processor time in this Python, the least of several."""
    found = []
    for _ in range(7):
        began = time.process_time()
        native_value(program)
        found.append((time.process_time() - began) * 1e3)
    return min(found)


def _row(
    who: str, bench: str, name: str, unit: str, samples: list[float], against: str = ""
) -> Row:
    return Row(bench=bench, name=name, unit=unit, samples=samples, against=against, who=who)


def _skipped(who: str, why: str) -> Row:
    return Row(bench="peer", name=who, unit="", samples=[], skipped=why, who=who)


BENCHES: dict[str, Bench] = {"pyodide": pyodide, "smolagents": smolagents}
