"""The process sandbox: how far above its limit of memory a box gets before it is stopped.

    .venv/bin/python -m bench.process.memory_limit      writes bench/results/process-memory.json
    .venv/bin/python -m bench.process.memory_limit 3    three runs of each; writes nothing

Question: does a box whose processes fill memory together ever hold more than its 256 MB?

Sketch before measuring. Control groups are left out, since they would answer for the kernel alone.
Two cores fill up to 12 GB a second between them. Near the limit the keeper lets the box run for
half a millisecond at a time: 6 MB, and it keeps a thirty-second of the limit for that, 8 MB. So
never, unless the keeper itself is kept from the processor.

What a box holds is read from outside once a millisecond, in so far as the machine allows, beside
two processes for each core that never wait.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from bench.process.run import ROOT, about

from tallystick.sandbox.host import HostTable
from tallystick.sandbox.port import ExecutionContext, Limits
from tallystick.sandbox.process.sandbox import ProcessSandbox
from tallystick.storage.clock import new_id

_MIB = 1024 * 1024
_LIMIT_BYTES = 256 * _MIB
_CONTEXT = ExecutionContext(
    session_id="bench", timeout_ms=20_000, limits=Limits(memory_bytes=_LIMIT_BYTES)
)
_FILL = """\
import os, time
def fill(room):
    for at in range(0, 120 << 20, 4096): room[at] = 1
"""
_PROGRAMS = {
    "twelve processes": """\
for _ in range(12):
    if os.fork() == 0: fill(bytearray(120 << 20)); time.sleep(20)
time.sleep(20)
""",
    "twelve daemons": """\
for _ in range(12):
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
        fill(bytearray(120 << 20)); time.sleep(20)
time.sleep(20)
""",
    "what a fork shares, written by all": """\
room = bytearray(120 << 20); fill(room)
for _ in range(8):
    if os.fork() == 0: fill(room); time.sleep(20)
time.sleep(20)
""",
}


def _living_in(namespace: str) -> list[str]:
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.readlink(f"/proc/{name}/ns/pid") == namespace:
                found.append(name)
        except OSError:
            continue
    return found


def _held_bytes(namespace: str) -> int:
    """Return the private and shared memory of a box, where what two share counts once.

    The keeper is left out: it is the first process of the box, and no program's. When a process
    ends, its part of what is shared goes to those that are read after it: then return 0.
    """
    total = 0
    living = _living_in(namespace)
    for pid in living:
        try:
            if Path(f"/proc/{pid}/status").read_text().partition("NSpid:")[2].split()[1] == "1":
                continue
            text = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
        except OSError:
            continue
        for line in text.split(b"\n"):
            if line.startswith((b"Pss_Anon:", b"Pss_Shmem:")):
                total += int(line.split()[1]) * 1024
    return total if set(living) <= set(_living_in(namespace)) else 0


async def _measure(sandbox: ProcessSandbox, program: str) -> tuple[float, float]:
    """Return the most that one run of a program held, in MiB, and its seconds."""
    session = await sandbox.open(session_id=new_id())
    namespace = os.readlink(f"/proc/{session.box_pid}/ns/pid_for_children")
    most, over = 0, threading.Event()

    def look() -> None:
        nonlocal most
        while not over.wait(0.001):
            most = max(most, _held_bytes(namespace))

    looking = threading.Thread(target=look)
    looking.start()
    began = time.perf_counter()
    try:
        result = await session.execute(_FILL + program, context=_CONTEXT, host=HostTable([]))
    finally:
        seconds = time.perf_counter() - began
        over.set()
        looking.join()
        await session.close()
    if result.stop != "memory":
        raise RuntimeError(f"the program was to be stopped for its memory: {result}")
    return most / _MIB, seconds


async def _measured(count: int) -> dict[str, dict[str, object]]:
    sandbox = ProcessSandbox(spares=0)
    sandbox.pretend("cgroup", "left out")
    found: dict[str, dict[str, object]] = {}
    for name, program in _PROGRAMS.items():
        runs = [await _measure(sandbox, program) for _ in range(count)]
        most = sorted(round(held) for held, _ in runs)
        found[name] = {
            "limit_mib": _LIMIT_BYTES // _MIB,
            "most_mib": most,
            "above_limit": sum(held > _LIMIT_BYTES // _MIB for held in most),
            "seconds_max": round(max(seconds for _, seconds in runs), 2),
        }
        print(f"{name}: {most[0]} to {most[-1]} MiB, {found[name]['above_limit']} of {count} above")
    await sandbox.close()
    return found


def main() -> None:
    """Measure, and print; write the result unless a number of runs was given."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", type=int, nargs="?", help="write nothing, and take so many of each")
    asked = parser.parse_args().runs
    began = os.getloadavg()
    spinning = [
        subprocess.Popen([sys.executable, "-c", "while 1: pass"])
        for _ in range(2 * (os.cpu_count() or 1))
    ]
    try:
        rows = asyncio.run(_measured(asked or 20))
    finally:
        for each in spinning:
            each.kill()
            each.wait()
    if asked is None:
        path = ROOT / "bench" / "results" / "process-memory.json"
        path.write_text(json.dumps({**about(began), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
