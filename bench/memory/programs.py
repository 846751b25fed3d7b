"""Recall from very many notes, each time in a new process; and programs with default limits.

    .venv/bin/python -m bench.memory.programs [NOTES]     100,000 unless given

Writes bench/results/memory-programs.json if no size is given.

Question: what does a recall cost a process that was just started, and does a program of one recall
end well under its own limits (50 ms for a list of operations, 2 s for Python)? Guess, in CPU time:
imports 150 ms and numpy 60 ms; 20 ms to load the index of the file, 10 ms for the first recall.

The floor is the same process without a memory: the imports, for a recall that is not by words alone
the weights, loaded and used once, and for Python the sandbox with its interpreter. Modules are
compiled before, as an installer does. A process that a limit ended counts as missed, however quick
it was. The index is in the file: the first process made it, and a row says what that cost.

Notes and queries are words drawn by rank, as in `bench.memory.scale`. If the weights are there,
every note has a synthetic vector of the model's length, and queries are embedded by the model.
"""

from __future__ import annotations

import datetime
import itertools
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.measure import ROOT, Row

from tallystick.memory.note import NewNote
from tallystick.memory.recall.minilm import DIMENSIONS, MiniLm, missing
from tallystick.memory.remember import remember_all
from tallystick.memory.store.sqlite import SqliteMemory
from tallystick.memory.store.vectors import Vectors, choose_model, keep_vectors
from tallystick.settings.paths import cache_directory

__all__ = ["Process", "main", "measure"]

_OUT = ROOT / "bench" / "results" / "memory-programs.json"
_NOTES = 100_000
_RUNS = 5
_WORDS, _NOTE_WORDS, _BATCH = 50_000, 20, 5_000
_SMALL_NOTES, _WARM_RECALLS = 2_000, 60
_LISTED = '{"operations": [{"op": "recall", "query": "w7 w900 w12", "k": 3}]}'
_PYTHON = "print(len(recall('w7 w900 w12', 3)))"
_CLI_MODULES = "tallystick.cli.main, tallystick.cli.commands.memory.recall_checks"
# Loads what a program needs; then runs it, if there is one.
_PROCESS = """
import asyncio, sys
import numpy, tallystick.memory.code_mode.running, tallystick.memory.recall.index, CLI
from tallystick.memory.memory import Memory
form, strategy, program = sys.argv[1:]
if program:
    with Memory.open(owner=True) as memory:
        bundle = memory.run_program(program, strategy=strategy)
    assert bundle.records_seen == 3
else:
    if strategy != "lexical":
        from tallystick.memory.recall.minilm import MiniLm
        from tallystick.settings.paths import cache_directory
        MiniLm.load(cache=cache_directory()).embed("warm")
    if form == "python":
        import tallystick.memory.code_mode.python
        from tallystick.memory.code_mode.running import open_sandbox
        async def ready():
            sandbox = open_sandbox()
            session = await sandbox.open(session_id="bench")
            await session.prepare()
            await session.close()
            await sandbox.close()
        asyncio.run(ready())
"""
# Prints the CPU milliseconds of recalls, one after the other, in a process that opened the memory.
_RECALLS = """
import sys, time, numpy, tallystick.memory.recall.index
from tallystick.memory.memory import Memory
strategy, count = sys.argv[1], int(sys.argv[2])
with Memory.open(owner=True, embedder=None if strategy == "lexical" else "auto") as memory:
    memory.store.head()
    if strategy != "lexical":
        memory._load_embedder().embed("warm")
    for number in range(count):
        began = time.process_time()
        memory.recall(f"w7 w{900 + number} w12", 3, strategy=strategy)
        print(1000 * (time.process_time() - began))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What one process took, in milliseconds, what it printed, and if it ended well."""

    wall_ms: float
    cpu_ms: float
    ended_well: bool
    printed: bytes


def measure(home: Path, small: Path, *, weights: bool, runs: int = _RUNS) -> Iterator[Row]:
    """Rows of the memory in `home`, which has no index yet, and of a smaller one in `small`."""
    yield _row("index made in the file, once, CPU", "ms", [_recalls(home, "lexical", 1)[0]])
    for strategy in ("lexical", "auto") if weights else ("lexical",):
        named = "by words" if strategy == "lexical" else "with weights"
        _recalls(home, strategy, 1)
        firsts = [_recalls(home, strategy, 1)[0] for _ in range(runs)]
        yield _row(f"first recall of an open store, {named}, CPU", "ms", firsts, 100.0)
        _recalls(small, strategy, 1)
        warm = _recalls(small, strategy, _WARM_RECALLS)[5:]
        name = f"recall of {_SMALL_NOTES:,} notes, {named}, CPU"
        yield _row(name, "ms", warm, 8.0 if strategy == "lexical" else None)
        for form, program in (("operations", _LISTED), ("python", _PYTHON)):
            yield from _programs(home, form, program, strategy, f"{form} {named}", runs)


def _programs(
    home: Path, form: str, program: str, strategy: str, named: str, runs: int
) -> Iterator[Row]:
    file = home / f"program.{form}"
    file.write_text(program, encoding="utf-8")
    tally = str(Path(sys.executable).with_name("tally"))
    plain = _PROCESS.replace(", CLI", "")
    with_cli = _PROCESS.replace("CLI", _CLI_MODULES)
    ways = {
        "command line": [tally, "recall", "--strategy", strategy, "--program", str(file)],
        "command line, floor": [sys.executable, "-c", with_cli, form, strategy, ""],
        "Python": [sys.executable, "-c", plain, form, strategy, program],
        "Python, floor": [sys.executable, "-c", plain, form, strategy, ""],
    }
    for words in ways.values():
        _run(words, home)
    # In turn, so that a busy moment falls on all.
    taken = [{way: _run(words, home) for way, words in ways.items()} for _ in range(runs)]
    for way in ("command line", "Python"):
        name = f"{named}, {way}"
        of, floor = [each[way] for each in taken], [each[f"{way}, floor"] for each in taken]
        assert all(each.ended_well for each in floor), floor[0].printed
        added = [one.cpu_ms - other.cpu_ms for one, other in zip(of, floor, strict=True)]
        quick = named == "operations by words"
        yield _row(f"{name}: within its limits", "of 1", [each.ended_well for each in of], 1.0)
        yield _row(
            f"{name}: in all, CPU", "ms", [each.cpu_ms for each in of], 300.0 * quick or None
        )
        yield _row(f"{name}: in all, by the clock", "ms", [each.wall_ms for each in of])
        yield _row(f"{name}: floor, CPU", "ms", [each.cpu_ms for each in floor])
        yield _row(f"{name}: above the floor, CPU", "ms", added, None if quick else 150.0)


def _recalls(home: Path, strategy: str, count: int) -> list[float]:
    done = _run([sys.executable, "-c", _RECALLS, strategy, str(count)], home)
    assert done.ended_well, done.printed
    return [float(line) for line in done.printed.split()]


def _run(words: Sequence[str], home: Path) -> Process:
    environ = {
        **os.environ,
        "HOME": str(home),
        "TALLYSTICK_CACHE_DIR": str(cache_directory()),
        "PYTHONPYCACHEPREFIX": str(home / "compiled"),
    }
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    before, began = _cpu_seconds(), time.perf_counter()
    done = subprocess.run(words, env=environ, check=False, capture_output=True)
    wall = time.perf_counter() - began
    return Process(
        wall_ms=1000 * wall,
        cpu_ms=1000 * (_cpu_seconds() - before),
        ended_well=done.returncode == 0,
        printed=done.stdout or done.stderr,
    )


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _row(name: str, unit: str, samples: Sequence[float], target: float | None = None) -> Row:
    return Row(
        bench="memory-programs",
        name=name,
        unit=unit,
        samples=samples,
        target=target,
        higher_is_better=unit == "of 1",
    )


def _fill(home: Path, notes: int, *, weights: bool) -> None:
    path = home / ".local" / "share" / "tallystick" / "memory" / "default.db"
    drawn = random.Random(9)
    edges = list(itertools.accumulate(1 / rank for rank in range(1, _WORDS + 1)))

    def text() -> str:
        ranks = (bisect(edges, drawn.random() * edges[-1]) for _ in range(_NOTE_WORDS))
        return " ".join(f"w{rank}" for rank in ranks)

    path.parent.mkdir(parents=True)
    with SqliteMemory(path) as memory:
        model = MiniLm.load(cache=cache_directory()).digest if weights else ""
        if model:
            choose_model(memory, model, dimensions=DIMENSIONS)
        for start in range(0, notes, _BATCH):
            count = min(_BATCH, notes - start)
            new = [NewNote(agent_id="bench", content=text()) for _ in range(count)]
            made = remember_all(memory, new)
            if model:
                vectors = _vectors(count, seed=start)
                rows = [(each.id, [one]) for each, one in zip(made, vectors, strict=True)]
                keep_vectors(memory, rows, model=model)


def _vectors(count: int, *, seed: int) -> list[Vectors]:
    """Vectors of about length one in fixed point."""
    # The extra `memory` has it, and without its weights there are no vectors.
    import numpy as np

    rows = np.random.default_rng(seed).standard_normal((count, DIMENSIONS))
    return [Vectors(row.astype("<i2").tobytes()) for row in rows * (32_767 / DIMENSIONS**0.5)]


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def main(arguments: Sequence[str]) -> int:
    notes = int(arguments[0]) if arguments else _NOTES
    load = os.getloadavg()
    weights = not missing()
    with tempfile.TemporaryDirectory(prefix="tally-programs-") as name:
        home, small = Path(name) / "large", Path(name) / "small"
        _fill(home, notes, weights=weights)
        _fill(small, _SMALL_NOTES, weights=weights)
        rows = []
        for row in measure(home, small, weights=weights):
            rows.append(row)
            verdict = {True: "MET", False: "MISSED", None: ""}[row.met]
            print(f"  {row.name:62}{row.median:>10,.1f} {row.unit:6} {verdict}", flush=True)
    if not arguments:
        about = {
            "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
            "python": f"{platform.python_implementation()} {platform.python_version()}",
            "commit": _commit(),
            "notes": notes,
            "load": {"start": load, "end": os.getloadavg()},
            "rows": [
                {
                    "name": row.name,
                    "unit": row.unit,
                    "median": row.median,
                    "least": min(row.samples),
                    "most": max(row.samples),
                    "samples": len(row.samples),
                    "target": row.target,
                    "met": row.met,
                }
                for row in rows
            ],
        }
        _OUT.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        print(f"written to {_OUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
