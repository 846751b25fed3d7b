"""Speed of programs: how much slower than native, and whether two run at once.

Question: is the ratio to native at most 3.5 in the median and 5 at worst?

Sketch before measuring. An interpreter in WebAssembly without fuel is 1.5 to 3 times native; fuel
adds a counter to every block and gives 2 to 4. Native is the Python that `TALLYSTICK_NATIVE_PYTHON`
names, or else the one that runs this file; each row says its version. For a figure about the
sandbox alone, name an optimised build of the guest's own version. Against CPython 3.14.10 as Debian
builds it (`-O2`; whether with profiles, its configuration does not say), the seven ratios were 2.4
to 5.6, and the median of the five was 4.5. Guest code runs without the interpreter lock of the
host, so two programs on two cores should take the time of one: 1.9 of 2.0. What two native
processes reach in the same minute is the limit of the machine.

Ratios are of processor time, which other processes disturb less than the clock on the wall.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable

from bench.measure import Bench, Row, World, checked, now
from bench.workloads import FURTHER, WORKLOADS, Workload

from tallystick.sandbox.wasm.sandbox import WasmInterpreter

__all__ = ["BENCHES", "native_value"]

_NATIVE = "TALLYSTICK_NATIVE_PYTHON"
_REPEATS = 11
_BUSY = "total = 0\nfor i in range(6_000_000):\n    total += i\n"


def native_value(program: str) -> object:
    """Run a program natively as a cell is run: the value of its last expression."""
    tree = ast.parse(program)
    last = tree.body.pop()
    assert isinstance(last, ast.Expr)
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compile(tree, "<native>", "exec"), names)
    value: object = eval(compile(ast.Expression(last.value), "<native>", "eval"), names)
    return value


# What runs programs in another Python: one a line, answered by its processor time and value.
_SERVER = """
import ast, json, sys, time
print(json.dumps(sys.version.split()[0]), flush=True)
for line in sys.stdin:
    tree = ast.parse(json.loads(line))
    last = ast.Expression(tree.body.pop().value)
    program, last = compile(tree, "<native>", "exec"), compile(last, "<native>", "eval")
    names = {"__name__": "__main__"}
    began = time.process_time()
    exec(program, names)
    value = eval(last, names)
    print(json.dumps([time.process_time() - began, repr(value)]), flush=True)
"""


class _Native:
    """The Python that is compared with, in a process of its own."""

    def __init__(self, python: str) -> None:
        self._process = subprocess.Popen(
            [python, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.version = json.loads(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def run(self, program: str) -> tuple[float, str]:
        """Return the processor seconds of a program, and the repr of its last value."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(program) + "\n")
        self._process.stdin.flush()
        seconds, value = json.loads(self._line())
        return seconds, value

    def close(self) -> None:
        self._process.communicate()


def cpu(world: World) -> Iterable[Row]:
    ratios = {}
    native_python = _Native(os.environ.get(_NATIVE, sys.executable))
    with world.session() as session, contextlib.closing(native_python):
        for workload in (*WORKLOADS, *FURTHER):
            ours, native = _both(world, session, native_python, workload)
            # The least of each: on a busy machine that is what the code costs.
            ratios[workload.name] = ratio = min(ours) / min(native)
            yield Row(
                bench="cpu",
                name=f"cpu: {workload.name}",
                unit="ms",
                samples=[seconds * 1e3 for seconds in ours],
                against=(
                    f"{ratio:.2f}x native {native_python.version} "
                    f"({min(native) * 1e3:.1f} ms), least to least"
                ),
            )
    five = [ratios[workload.name] for workload in WORKLOADS]
    worst = max(ratios, key=lambda name: ratios[name])
    yield Row(
        bench="cpu",
        name="cpu: ratio to native, median of five",
        unit="x",
        samples=[statistics.median(five)],
        target=3.5,
    )
    yield Row(
        bench="cpu",
        name="cpu: ratio to native, worst of five",
        unit="x",
        samples=[max(five)],
        target=5,
        against=f"worst of all {len(ratios)}: {ratios[worst]:.2f}x, {worst}",
    )


def _both(
    world: World, session: WasmInterpreter, native_python: _Native, workload: Workload
) -> tuple[list[float], list[float]]:
    """Processor seconds here and natively, in turn, without the first of each."""
    ours, native = [], []
    for _ in range(_REPEATS + 1):
        seconds, expected = native_python.run(workload.program)
        native.append(seconds)
        began = time.process_time()
        found = world.run(session, workload.program).value
        ours.append(time.process_time() - began)
        if found != expected:
            raise RuntimeError(f"{workload.name}: {found}, natively {expected}")
    return ours[1:], native[1:]


def parallel(world: World) -> Iterable[Row]:
    async def measure() -> list[float]:
        first, second = [await world.sandbox.open(session_id=name) for name in ("one", "two")]
        await asyncio.gather(checked(first, "1"), checked(second, "1"))
        found = []
        for _ in range(3):
            began = now()
            await checked(first, _BUSY)
            await checked(second, _BUSY)
            apart = now()
            await asyncio.gather(checked(first, _BUSY), checked(second, _BUSY))
            found.append((apart - began) / (now() - apart))
        await first.close()
        await second.close()
        return found

    limit = statistics.median(_native_speed_up() for _ in range(3))
    yield Row(
        bench="parallel",
        name="two programs at once: speed-up over one",
        unit="x",
        samples=world.do(measure()),
        higher_is_better=True,
        against=f"two native processes now: {limit:.2f}x",
    )


def _native_speed_up() -> float:
    command = [sys.executable, "-c", _BUSY]

    def together(count: int) -> float:
        began = now()
        running = [subprocess.Popen(command) for _ in range(count)]
        for each in running:
            each.wait()
        return now() - began

    return 2 * together(1) / together(2)


BENCHES: dict[str, Bench] = {"cpu": cpu, "parallel": parallel}
