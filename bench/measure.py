"""Rows, timing and the sandbox they share: what every benchmark here is made of."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tallystick.sandbox.host import HostFunction, HostTable
from tallystick.sandbox.port import ExecutionContext, ExecutionResult, Host, Limits
from tallystick.sandbox.wasm.sandbox import WasmInterpreter, WasmSandbox
from tallystick.settings.paths import cache_directory
from tallystick.storage.clock import new_id

__all__ = ["ECHO", "MIB", "ROOT", "Bench", "Row", "World", "now", "per_call", "private_bytes"]

ROOT = Path(__file__).resolve().parents[1]
MIB = 1024 * 1024
Result = TypeVar("Result")
now = time.perf_counter


def echo(value: object) -> object:
    """Return what was given."""
    return value


ECHO = HostTable([HostFunction(name="echo", function=echo, local=True)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. `samples` are in `unit`; more is better if `higher_is_better`."""

    bench: str
    name: str
    unit: str
    samples: Sequence[float]
    target: float | None = None
    higher_is_better: bool = False
    against: str = ""
    who: str = "tallystick"
    skipped: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def met(self) -> bool | None:
        """Whether the median meets the target; None without a target or a measurement."""
        if self.target is None or not self.samples:
            return None
        return self.median >= self.target if self.higher_is_better else self.median <= self.target


@dataclass(slots=True)
class World:
    """The loaded sandbox, one event loop, and a directory that goes away afterwards."""

    sandbox: WasmSandbox
    runner: asyncio.Runner
    directory: Path

    @classmethod
    @contextlib.contextmanager
    def open(cls) -> Iterator[World]:
        """Load the sandbox as a program would. The first time on a machine this compiles it."""
        with tempfile.TemporaryDirectory(prefix="tally-bench-") as directory, asyncio.Runner() as r:
            sandbox = WasmSandbox.load(
                cache=cache_directory(), output_directory=Path(directory) / "output", say=print
            )
            try:
                yield cls(sandbox, r, Path(directory))
            finally:
                r.run(sandbox.close())

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(work)

    @contextlib.contextmanager
    def session(self) -> Iterator[WasmInterpreter]:
        """A session, closed afterwards."""
        opened = self.do(self.sandbox.open(session_id=new_id()))
        try:
            yield opened
        finally:
            self.do(opened.close())

    def run(self, session: WasmInterpreter, program: str, *, host: Host = ECHO) -> ExecutionResult:
        return self.do(checked(session, program, host=host))


Bench = Callable[[World], Iterable[Row]]
CONTEXT = ExecutionContext(
    session_id="bench", timeout_ms=300_000, limits=Limits(host_calls=1_000_000)
)


async def checked(session: WasmInterpreter, program: str, *, host: Host = ECHO) -> ExecutionResult:
    """Run a program that must end well: a benchmark of a failure measures nothing."""
    result = await session.execute(program, context=CONTEXT, host=host)
    if result.error is not None:
        raise RuntimeError(result.error.traceback or result.error.message)
    return result


async def timed(session: WasmInterpreter, program: str, *, host: Host = ECHO) -> float:
    """Seconds from asking to the result. The loop is running already, as in a program."""
    began = now()
    await checked(session, program, host=host)
    return now() - began


def per_call(
    world: World, session: WasmInterpreter, call: str, *, count: int, repeats: int, host: Host
) -> list[float]:
    """Seconds for one `call` inside a program: a loop of many, less the same loop around `pass`."""

    async def measure() -> list[float]:
        def program(body: str) -> str:
            return (
                f"def tally_bench():\n    for i in range({count}):\n        {body}\ntally_bench()"
            )

        found = []
        for _ in range(repeats + 1):
            empty = await timed(session, program("pass"), host=host)
            whole = await timed(session, program(call), host=host)
            found.append(max(whole - empty, 0.0) / count)
        return found[1:]  # the first run pays for pages it touches first

    return world.do(measure())


def private_bytes() -> int:
    """Memory of this process that no other shares, by the kernel's own count."""
    total = 0
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        for line in file:
            if line.startswith(("Private_Clean:", "Private_Dirty:", "Swap:")):
                total += int(line.split()[1]) * 1024
    return total
