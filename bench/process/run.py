"""The process sandbox: how long a session, a program, a command and a way back take.

    .venv/bin/python -m bench.process.run           writes bench/results/process.json
    .venv/bin/python -m bench.process.run --quick   a tenth of it; writes nothing

Question: is a new session there in 15 ms, a bash command done in 10 ms, and do snapshot and
rollback of 100 MB take as long as those of nothing?

Sketch before measuring. A box is three forks of a launcher with 25 MB (1 ms each), seven namespaces
(3 ms, most of it the network's), about 25 mounts (50 us each) and the rights of the first process
(1 ms): 8 to 10 ms; one that was made before costs nothing to take. A program is a fork (1.5 ms) and
two messages: 2.5 ms. A command is a start of bash (2 ms), a fork in it for its variables (0.5 ms),
and two messages: 4 ms. A snapshot is two mounts and a fork whatever the size: 3 ms; the way back
the same, and the end of whatever ran.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tallystick.sandbox.host import HostFunction, HostTable
from tallystick.sandbox.port import ExecutionContext, ExecutionResult, Limits
from tallystick.sandbox.process.sandbox import ProcessSandbox
from tallystick.sandbox.process.session import ProcessInterpreter
from tallystick.sandbox.process.settings import BoxSettings
from tallystick.storage.clock import new_id

ROOT = Path(__file__).resolve().parents[2]
_MIB = 1024 * 1024
_CONTEXT = ExecutionContext(
    session_id="bench", timeout_ms=300_000, limits=Limits(host_calls=1_000_000)
)


def _echo(value: object) -> object:
    return value


_HOST = HostTable([HostFunction(name="echo", function=_echo, local=True)])
Rows = list[tuple[str, str, Sequence[float], float | None]]


def _checked(result: ExecutionResult) -> ExecutionResult:
    if result.exit_code != 0:
        raise RuntimeError(f"{result.error or result.stderr}")
    return result


async def _run(session: ProcessInterpreter, program: str) -> ExecutionResult:
    return _checked(await session.execute(program, context=_CONTEXT, host=_HOST))


async def _command(session: ProcessInterpreter, text: str) -> ExecutionResult:
    return _checked(await session.command(text, context=_CONTEXT, host=_HOST))


async def _sessions(count: int, *, spares: int) -> tuple[list[float], list[float]]:
    """Opening a session; and the same with its first result. Between two there is time to rest."""
    sandbox = ProcessSandbox(spares=spares)
    opened, answered = [], []
    for _ in range(count + 2):
        began = time.perf_counter()
        session = await sandbox.open(session_id=new_id())
        opened.append((time.perf_counter() - began) * 1e3)
        await _run(session, "1 + 1")
        answered.append((time.perf_counter() - began) * 1e3)
        await session.close()
        await asyncio.sleep(0.15)
    await sandbox.close()
    return opened[2:], answered[2:]


async def _repeated(session: ProcessInterpreter, what: str, text: str, count: int) -> list[float]:
    perform = _run if what == "python" else _command
    found = []
    for _ in range(count + 3):
        began = time.perf_counter()
        await perform(session, text)
        found.append((time.perf_counter() - began) * 1e3)
    return found[3:]


async def _snapshots(sandbox: ProcessSandbox, mib: int, count: int) -> list[list[float]]:
    session = await sandbox.open(session_id=new_id())
    if mib:
        await _command(
            session, f"for n in 1 2 3 4; do head -c {mib // 4}M /dev/urandom > f$n; done"
        )
    await _run(session, "kept = 1")
    taken, back = [], []
    for number in range(count):
        name = f"s{number}"
        began = time.perf_counter()
        await session.snapshot(name)
        taken.append((time.perf_counter() - began) * 1e3)
        await _command(session, "echo changed > changed; rm -f f1")
        began = time.perf_counter()
        await session.restore(name)
        back.append((time.perf_counter() - began) * 1e3)
        if mib:
            await _command(session, "test -e f1 && ! test -e changed")
        await session.delete_snapshot(name)
    await session.close()
    return [taken, back]


async def measure(quick: bool) -> Rows:
    few, many = (5, 20) if quick else (30, 200)
    rows: Rows = []
    opened, answered = await _sessions(few, spares=1)
    rows.append(("new session, from one made before", "ms", opened, 15.0))
    rows.append(("new session to first result, from one made before", "ms", answered, 15.0))
    opened, answered = await _sessions(few, spares=0)
    rows.append(("new session, made from nothing", "ms", opened, 15.0))
    rows.append(("new session to first result, made from nothing", "ms", answered, None))
    sandbox = ProcessSandbox(settings=BoxSettings(disk_bytes=300 * _MIB))
    session = await sandbox.open(session_id=new_id())
    rows.append(("bash command `true`", "ms", await _repeated(session, "bash", "true", many), 10.0))
    piped = await _repeated(session, "bash", "echo a | tr a b", many)
    rows.append(("bash command `echo a | tr a b`, two more programs", "ms", piped, None))
    rows.append(
        ("Python program `1 + 1`", "ms", await _repeated(session, "python", "1 + 1", many), None)
    )
    calls = 500
    loop = f"for n in range({calls}): echo(n)"
    each = [took * 1e3 / calls for took in await _repeated(session, "python", loop, few)]
    rows.append(("host call from Python", "us", each, None))
    await session.close()
    for mib in (0, 100):
        taken, back = await _snapshots(sandbox, mib, few)
        rows.append((f"snapshot, {mib} MB of files", "ms", taken, 25.0))
        rows.append((f"rollback, {mib} MB of files", "ms", back, 25.0))
    await sandbox.close()
    return rows


def _stored(row: tuple[str, str, Sequence[float], float | None]) -> dict[str, Any]:
    name, unit, samples, target = row
    median = statistics.median(samples)
    return {
        "name": name,
        "unit": unit,
        "median": round(median, 3),
        "least": round(min(samples), 3),
        "most": round(max(samples), 3),
        "samples": len(samples),
        "target": target,
        "met": None if target is None else median <= target,
    }


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def about(began: tuple[float, float, float]) -> dict[str, Any]:
    """Return what a result is measured on, with the load at its beginning and now."""
    return {
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "commit": _commit(),
        "load": {"start": began, "end": os.getloadavg()},
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="A tenth of it; writes nothing.")
    quick = parser.parse_args(arguments).quick
    began = os.getloadavg()
    rows = [_stored(row) for row in asyncio.run(measure(quick))]
    for row in rows:
        verdict = {True: "met", False: "MISSED", None: ""}[row["met"]]
        spread = f"{row['median']:.2f} {row['unit']} [{row['least']:.2f}..{row['most']:.2f}]"
        print(f"{row['name']:<52}{spread:<32}{row['target'] or '':<8}{verdict}".rstrip())
    if not quick:
        path = ROOT / "bench" / "results" / "process.json"
        path.write_text(json.dumps({**about(began), "rows": rows}, indent=1) + "\n")
        print(f"written to {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
