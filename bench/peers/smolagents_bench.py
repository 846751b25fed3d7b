"""smolagents' local executor: prints one JSON line of milliseconds. Programs come on stdin.

Run by a Python that has smolagents: smolagents_bench.py start|all. It uses nothing of ours.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from collections.abc import Callable

from smolagents.local_python_executor import (  # type: ignore[import-not-found]
    LocalPythonExecutor,
)


def opened() -> LocalPythonExecutor:
    executor = LocalPythonExecutor(additional_authorized_imports=["json"])
    executor.send_tools({"echo": lambda value: value})
    return executor


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


def processor_timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1e3


def fresh() -> None:
    opened()("1+1")


def cpu(executor: LocalPythonExecutor, program: str) -> list[float] | str:
    """Milliseconds of each run, or why it could not be run."""
    try:
        executor(program)
        return [processor_timed(lambda: executor(program)) for _ in range(7)]
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def call_times(executor: LocalPythonExecutor) -> list[float]:
    def loop(body: str) -> str:
        return f"for i in range(2000):\n    {body}\n"

    found = []
    for _ in range(8):
        empty = timed(lambda: executor(loop("i")))
        found.append((timed(lambda: executor(loop("echo(1)"))) - empty) / 2_000)
    return found[1:]


def main() -> None:
    if sys.argv[1] == "start":
        fresh()
        print(json.dumps({}))
        return
    executor = opened()
    warm = [timed(lambda: executor("1+1")) for _ in range(1_000)]
    measured = {
        "version": f"smolagents {importlib.metadata.version('smolagents')}",
        "fresh": [timed(fresh) for _ in range(100)][10:],
        "warm": warm[100:],
        "call": call_times(executor),
        "call_what": "tool, an integer",
        "cpu": {name: cpu(executor, each) for name, each in json.load(sys.stdin).items()},
    }
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
