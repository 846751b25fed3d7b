"""Works in a session until it is killed inside a host call, or goes on from what was left.

Usage: resume_worker.py whole|killed|resumed DIRECTORY CALL
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec

from tallystick.sandbox.host import Answer, HostFunction, HostTable, call_digest, text_reply
from tallystick.sandbox.port import ExecutionContext, HostCall, HostNames
from tallystick.sandbox.snapshot import SnapshotStore
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.sessions.snapshots import open_snapshots
from tallystick.settings.paths import cache_directory

BEFORE = "import random, time\nstate = [random.random() for _ in range(100)]\nseen = {}"
PROGRAM = """
total = 0
for number in range(10):
    reply = answer(f"{number} {random.random():.9f} {time.time():.6f} {state[number]}")
    total += len(reply)
    seen[reply] = hash(reply)
    print(number, reply[:8])
total, sorted(seen.values())[0], random.random()
"""


class Journalled:
    """Answers from the journal as far as it goes, then live; each live answer is written first."""

    def __init__(self, path: Path, *, kill_at: int | None) -> None:
        self._path = path
        self._kill_at = kill_at
        lines = path.read_bytes().splitlines() if path.exists() else []
        self._answers = [msgspec.json.decode(line, type=Answer) for line in lines]
        self._table = HostTable([HostFunction(name="answer", function=lambda prompt: prompt)])

    @property
    def names(self) -> HostNames:
        return self._table.names

    def serve(self, call: HostCall) -> bytes:
        if call.index < len(self._answers):
            kept = self._answers[call.index]
            assert (kept.request_sha256, kept.fuel) == (call_digest(call.request), call.fuel)
            return kept.reply
        if call.index == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        reply = text_reply(f"answer to call {call.index} " * (call.index + 1))
        answer = Answer(request_sha256=call_digest(call.request), fuel=call.fuel, reply=reply)
        with open(self._path, "ab") as journal:
            journal.write(msgspec.json.encode(answer) + b"\n")
        return reply


async def main(mode: str, directory: Path, kill_at: int, store: SnapshotStore) -> None:
    sandbox = WasmSandbox.load(cache=cache_directory(), store=store)
    session = await sandbox.open(session_id="S", seed=5)
    context = ExecutionContext(session_id="S")
    host = Journalled(directory / "journal", kill_at=kill_at if mode == "killed" else None)
    if mode == "resumed":
        await session.restore("before")
    else:
        await session.execute(BEFORE, context=context, host=host)
        await session.snapshot("before")
    result = await session.execute(PROGRAM, context=context, host=host)
    found = {
        "value": result.value,
        "stdout": result.stdout,
        "fuel": result.charge.fuel,
        "calls": [[call.request_sha256, call.fuel] for call in result.calls],
        "digest": await session.digest(),
    }
    (directory / "result.json").write_bytes(msgspec.json.encode(found))
    await sandbox.close()


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    with open_snapshots(folder / "ledger.db") as opened:
        asyncio.run(main(sys.argv[1], folder, int(sys.argv[3]), opened))
