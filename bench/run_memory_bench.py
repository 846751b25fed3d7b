"""Live runs: what one holds that waits in the middle of a program, alone and with 199 others.

Question: does a live run hold at most 9 MB, and do 200 at once stay under 2 GB?

Sketch before measuring. An idle session writes 400 pages of its guest, 1.6 MB; a run's prelude, a
turn and what it is told write more of them, 2 to 3 MB in all. The thread that waits in the guest
has touched 100 KB of its stack. Records, prompt and names are 200 KB of Python objects. 3 to 5 MB.

Each run takes a turn that keeps a list, and then asks a model from its second program; that model
answers once all runs wait there. The kernel's counts are read before and then, in a new process
that has made one whole run before.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.measure import MIB, ROOT, Bench, Row, World

from tallystick.client import Session
from tallystick.core.charge import ModelUsage, RunLimits
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.model.port import ModelReply, ModelRequest
from tallystick.model.scripted import ScriptedModel
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.settings.paths import cache_directory

__all__ = ["BENCHES"]

_COUNTS = (1, 200)
_PROCESSES = 3
_LOOK = "```python\nrows = [i * 3 for i in range(500)]\nprint(sum(rows))\n```"
_ASK = "```python\nsaid = llm_query('wait')\nFINAL(said)\n```"
# What a run writes is its own. Private is that and the pages of the compiled guest's file that no
# other run has mapped: all of them for one run, none for 200. Resident counts those pages, which
# lie in the page cache once, again for every run.
_KINDS = {
    "written": ("Private_Dirty", "Swap"),
    "private": ("Private_Dirty", "Private_Clean", "Swap"),
    "resident": ("Rss",),
}
_TARGETS = {"written": 9.0, "private": 9.0}
_USAGE = ModelUsage(tokens_in=300, tokens_out=60, reported=True)


class _Holding(ScriptedModel):
    """A model that answers what programs ask once it is let go. It lives in the session's loop."""

    def __init__(self) -> None:
        super().__init__([])
        self._loop: asyncio.AbstractEventLoop | None = None
        self._let_go = asyncio.Event()
        self._waiting = 0
        self.all_wait = threading.Event()
        self.count = 0

    async def ask(self, request: ModelRequest, **_: object) -> ModelReply:
        if len(request.messages) == 1 and "wait" in request.messages[0].text:
            self._loop = asyncio.get_running_loop()
            self._waiting += 1
            if self._waiting == self.count:
                self.all_wait.set()
            if self.count:
                await self._let_go.wait()
            return ModelReply(text="done", usage=_USAGE)
        turned = any(message.role == "assistant" for message in request.messages)
        return ModelReply(text=_ASK if turned else _LOOK, usage=_USAGE)

    def hold(self, count: int) -> None:
        """Keep those that ask from now on, and say by `all_wait` when they are so many."""
        self._waiting, self.count = 0, count

    def let_go(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._let_go.set)


async def _held(count: int, directory: Path) -> dict[str, float]:
    """Megabytes that so many runs hold together while each waits in its program."""
    ledger = SqliteLedger(directory / "ledger.db")
    sandbox = WasmSandbox.load(cache=cache_directory(), output_directory=directory / "output")
    model = _Holding()
    async with Session(config=None, model=model, ledger=ledger, sandbox=sandbox) as session:

        async def run() -> None:
            done = await session.arun("ask", limits=RunLimits(turns=4), strategy="code")
            if done.answer != "done":
                raise RuntimeError(f"a run ended with {done.stop}: {done.detail}")

        await run()
        model.hold(count)
        gc.collect()
        before = _memory()
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(run())
            await asyncio.to_thread(model.all_wait.wait)
            gc.collect()
            after = _memory()
            model.let_go()
    ledger.close()
    await sandbox.close()
    return {name: (after[name] - before[name]) / MIB for name in before}


def _memory() -> dict[str, int]:
    """Bytes of this process by the kernel's count: written, private, and resident."""
    found = {"written": 0, "private": 0, "resident": 0}
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        for line in file:
            name, _, rest = line.partition(":")
            for kind, names in _KINDS.items():
                if name in names:
                    found[kind] += int(rest.split()[0]) * 1024
    return found


def _measured(count: int) -> dict[str, float]:
    command = [sys.executable, str(Path(__file__)), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-500:])
    found: dict[str, float] = json.loads(done.stdout)
    return found


def run_memory(world: World) -> Iterable[Row]:
    for count in _COUNTS:
        found = [_measured(count) for _ in range(_PROCESSES)]
        for kind in _KINDS:
            samples = [each[kind] for each in found]
            yield Row(
                bench="run-memory",
                name=f"a live run's memory, {kind}, {count} at once",
                unit="MB",
                samples=[each / count for each in samples],
                target=_TARGETS.get(kind),
                against=f"together {sorted(samples)[_PROCESSES // 2]:,.0f} MB",
            )


BENCHES: dict[str, Bench] = {"run-memory": run_memory}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="tally-bench-") as found:
        print(json.dumps(asyncio.run(_held(int(sys.argv[1]), Path(found)))))
