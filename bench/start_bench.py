"""Starting: how long a user waits for `tally exec` of a one-liner.

Question: is the first result there within 0.4 s of starting a process?

Sketch before measuring. Python itself 15 to 20 ms, our imports (click, msgspec, asyncio, the
engine) 80 ms, the digest of 50 MB of compiled code 30 to 60 ms, mapping it 2 ms, a fresh session
4 ms: about 0.2 s. The floor is `python -c` of the same program.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from bench.measure import Bench, Row, World, now

__all__ = ["BENCHES"]

_PROGRAM = "print(1 + 1)\n"


def _timed(command: list[str], environ: dict[str, str]) -> float:
    began = now()
    done = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
    took = now() - began
    if done.stdout.strip() != "2":
        raise RuntimeError(f"{command[0]} printed {done.stdout!r}")
    return took


def start(world: World) -> Iterable[Row]:
    program = world.directory / "one_line.py"
    program.write_text(_PROGRAM, encoding="utf-8")
    environ = {**os.environ, "TALLYSTICK_DATA_DIR": str(world.directory / "data")}
    ours = [str(Path(sys.executable).with_name("tally")), "exec", str(program)]
    plain = [sys.executable, "-c", _PROGRAM]
    _timed(ours, environ), _timed(plain, environ)
    # In turn, so that a busy moment falls on both.
    pairs = [(_timed(ours, environ), _timed(plain, environ)) for _ in range(15)]
    native = sorted(pair[1] for pair in pairs)[len(pairs) // 2]
    row = Row(
        bench="start",
        name="new process to first result",
        unit="s",
        samples=[pair[0] for pair in pairs],
        target=0.4,
    )
    yield Row(
        bench=row.bench,
        name=row.name,
        unit=row.unit,
        samples=row.samples,
        target=row.target,
        against=f"{row.median / native:.1f}x python -c ({native * 1e3:.0f} ms)",
    )


BENCHES: dict[str, Bench] = {"start": start}
