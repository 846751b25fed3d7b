"""Recall programs over very many notes, each in a new process, with their default limits.

    .venv/bin/python -m bench.memory.programs [NOTES]     100,000 unless given

Writes bench/results/memory-programs.json if no size is given.

Question: does a program of one recall end well under its own limits (50 ms for a list of
operations, 2 s for Python), whatever must be made ready before; and what does it add to that?
Guess: a recall takes 2 to 5 ms from a standing index, and starting the interpreter 20 ms. Making
the index and counting the tokens of 100,000 notes takes 2.5 s of CPU, in every new process.

The floor is the same process without the program: the imports, the open memory made ready, and for
Python the sandbox with its interpreter. A process that a limit ended counts as missed, however
quick it was. Notes and queries are words drawn by rank, as in `bench.memory.scale`; no weights are
used.
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
from tallystick.memory.remember import remember_all
from tallystick.memory.store.sqlite import SqliteMemory
from tallystick.settings.paths import cache_directory

__all__ = ["Process", "main", "measure"]

_OUT = ROOT / "bench" / "results" / "memory-programs.json"
_NOTES = 100_000
_RUNS = 5
_WORDS, _NOTE_WORDS, _BATCH = 50_000, 20, 5_000
_LISTED = '{"operations": [{"op": "recall", "query": "w7 w900 w12", "k": 3}]}'
_PYTHON = "print(len(recall('w7 w900 w12', 3)))"
# Makes everything ready, then runs the program if there is one, and prints what it added.
_FROM_PYTHON = """
import asyncio, sys, time, tallystick
from tallystick.memory.code_mode.running import open_sandbox, run_recall_program
form, program = sys.argv[1:]
sandbox = None
with tallystick.Memory.open(owner=True) as memory:
    memory.prepare()
    if form == "python":
        import tallystick.memory.code_mode.python
        sandbox = open_sandbox()
        async def ready():
            session = await sandbox.open(session_id="bench")
            await session.prepare()
            await session.close()
        asyncio.run(ready())
    if program:
        began = time.process_time()
        bundle = run_recall_program(memory, program, sandbox=lambda: sandbox)
        print(1000 * (time.process_time() - began))
        assert bundle.records_seen == 3
    elif sandbox is not None:
        asyncio.run(sandbox.close())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What one process took, in milliseconds, and if it ended well.

    `added_ms` is what the program added, if the process itself says so.
    """

    wall_ms: float
    cpu_ms: float
    ended_well: bool
    added_ms: float | None


def measure(home: Path, *, runs: int = _RUNS) -> Iterator[Row]:
    """Rows of the memory in `home`, which is there already."""
    command = [str(Path(sys.executable).with_name("tally")), "recall", "--program"]
    for form, program in (("operations", _LISTED), ("python", _PYTHON)):
        file = home / f"program.{form}"
        file.write_text(program, encoding="utf-8")
        ways = {
            "floor": [sys.executable, "-c", _FROM_PYTHON, form, ""],
            "command line": [*command, str(file)],
            "Python": [sys.executable, "-c", _FROM_PYTHON, form, program],
        }
        for words in ways.values():
            _run(words, home)
        # In turn, so that a busy moment falls on all.
        taken = [{way: _run(words, home) for way, words in ways.items()} for _ in range(runs)]
        yield from _rows(form, taken)


def _rows(form: str, taken: Sequence[dict[str, Process]]) -> Iterator[Row]:
    for way in ("command line", "Python"):
        name = f"{form}, {way}"
        of = [each[way] for each in taken]
        added = [_added(each[way], each["floor"]) for each in taken]
        yield _row(f"{name}: within its limits", "of 1", [each.ended_well for each in of], 1.0)
        yield _row(f"{name}: above the floor, CPU", "ms", added, 150.0)
        yield _row(f"{name}: in all, CPU", "ms", [each.cpu_ms for each in of])
        yield _row(f"{name}: in all, by the clock", "ms", [each.wall_ms for each in of])
    floor = [each["floor"].cpu_ms for each in taken]
    yield _row(f"{form}: floor (imports, memory made ready), CPU", "ms", floor)


def _added(process: Process, floor: Process) -> float:
    """What a program added, by its process or else by comparison, which a busy machine blurs."""
    return process.cpu_ms - floor.cpu_ms if process.added_ms is None else process.added_ms


def _run(words: Sequence[str], home: Path) -> Process:
    environ = {
        **os.environ,
        "HOME": str(home),
        "TALLYSTICK_CACHE_DIR": str(cache_directory()),
    }
    before, began = _cpu_seconds(), time.perf_counter()
    done = subprocess.run(words, env=environ, check=False, capture_output=True)
    wall = time.perf_counter() - began
    return Process(
        wall_ms=1000 * wall,
        cpu_ms=1000 * (_cpu_seconds() - before),
        ended_well=done.returncode == 0,
        added_ms=float(done.stdout)
        if words[1] == "-c" and words[-1] and not done.returncode
        else None,
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


def _fill(path: Path, notes: int) -> None:
    drawn = random.Random(9)
    edges = list(itertools.accumulate(1 / rank for rank in range(1, _WORDS + 1)))

    def text() -> str:
        ranks = (bisect(edges, drawn.random() * edges[-1]) for _ in range(_NOTE_WORDS))
        return " ".join(f"w{rank}" for rank in ranks)

    path.parent.mkdir(parents=True)
    with SqliteMemory(path) as memory:
        for start in range(0, notes, _BATCH):
            count = min(_BATCH, notes - start)
            remember_all(memory, [NewNote(agent_id="bench", content=text()) for _ in range(count)])


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def main(arguments: Sequence[str]) -> int:
    notes = int(arguments[0]) if arguments else _NOTES
    load = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="tally-programs-") as name:
        home = Path(name)
        _fill(home / ".local" / "share" / "tallystick" / "memory" / "default.db", notes)
        rows = list(measure(home))
    for row in rows:
        verdict = {True: "MET", False: "MISSED", None: ""}[row.met]
        print(f"  {notes:,} notes: {row.name:56}{row.median:>10,.1f} {row.unit:6} {verdict}")
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
