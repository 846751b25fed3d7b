"""Runs and appends whose forced writes are counted: imported by the bench, or a process of its own.

    durability_worker.py runs FOLDER RUNS TURNS        runs at once, each of so many paid turns
    durability_worker.py appends FOLDER THREADS COUNT  threads at once, each of so many appends

Everything that is stored goes into the folder. A turn is a reply of 1 KB, whose program computes a
sum and prints it; no program has an effect on anything outside it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path

from tallystick.client import Session
from tallystick.core.chain import Draft, Head
from tallystick.core.charge import ModelUsage, RunLimits
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.model.port import Heard, Model, ModelReply, ModelRequest
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.settings.paths import cache_directory
from tallystick.storage.clock import new_id

__all__ = ["GOAL", "REPLY_BYTES", "TurnsModel", "append_at_once", "limits_of", "run_at_once"]

GOAL = "add them up"
REPLY_BYTES = 1_024
_ROOMY = 1_000_000_000
_USAGE = ModelUsage(tokens_in=10, tokens_out=250, reported=True, raw={"in": 10, "out": 250})
_DRAFT = Draft(tag="bench.noted", intent=None, body=b"x" * REPLY_BYTES)


class TurnsModel:
    """A model in this process: tells the turn by the prompt, so that many runs can share it."""

    name = "bench:turns"

    def __init__(self, turns: int) -> None:
        self._turns = turns

    def admitted(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def ask(self, request: ModelRequest, *, heard: Heard = lambda chars: None) -> ModelReply:
        turn = 1 + sum(each.role == "assistant" for each in request.messages)
        return ModelReply(text=_reply(turn, last=turn >= self._turns), usage=_USAGE)

    async def close(self) -> None: ...


def _reply(turn: int, *, last: bool) -> str:
    does = "FINAL(total)" if last else "print(total)"
    program = f"total = sum(each * {turn} for each in range(1, 100))\n{does}\n# "
    fence = "```python\n{}\n```"
    return fence.format(program.ljust(REPLY_BYTES - len(fence.format("")), "."))


def limits_of(turns: int) -> RunLimits:
    """Limits that only the turns can reach."""
    return RunLimits(turns=turns, tokens=_ROOMY, wall_ms=_ROOMY)


async def run_at_once(session: Session, *, runs: int, turns: int) -> Sequence[Run]:
    """Runs of one session side by side. Each must have taken the turns and answered.

    Their model counts its replies in the prompt, which stays whole for that.
    """
    goals = (session.arun(GOAL, limits=limits_of(turns), compact_at=0) for _ in range(runs))
    ended = await asyncio.gather(*goals)
    for run in ended:
        if not run.answered or run.turns != turns:
            raise RuntimeError(f"a run ended after {run.turns} turns: {run.stop}, {run.detail}")
    return ended


def append_at_once(ledger: SqliteLedger, *, threads: int, count: int) -> None:
    """Forced appends of 1 KB, one run to each thread."""
    failed: list[BaseException] = []

    def append() -> None:
        try:
            run, head = new_id(), Head.of_nothing()
            fence = ledger.claim(run, create=True)
            for _ in range(count):
                head = ledger.append(run, [_DRAFT], expected=head, fence=fence, forced=True)
        except BaseException as error:
            failed.append(error)

    begun = [threading.Thread(target=append) for _ in range(threads)]
    for thread in begun:
        thread.start()
    for thread in begun:
        thread.join()
    if failed:
        raise failed[0]


def main(what: str, folder: Path, many: int, each: int) -> None:
    with SqliteLedger(folder / "ledger.db") as ledger:
        if what == "appends":
            append_at_once(ledger, threads=many, count=each)
            return
        sandbox = WasmSandbox.load(cache=cache_directory(), output_directory=folder / "output")
        with Session(
            config=None, model=TurnsModel(each), ledger=ledger, sandbox=sandbox
        ) as session:
            asyncio.run(run_at_once(session, runs=many, turns=each))
        asyncio.run(sandbox.close())


_: type[Model] = TurnsModel

if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
