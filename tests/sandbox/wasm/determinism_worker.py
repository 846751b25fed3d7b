"""Runs the mixed programs in a process of its own: records answers, or serves recorded ones.

Usage: determinism_worker.py record|replay JOURNAL RESULTS
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
from tests.sandbox.wasm.mixed_programs import LIVE, PROGRAMS, facts

from tallystick.sandbox.host import Answer, HostTable, RecordedHost, call_digest
from tallystick.sandbox.port import ExecutionContext, Host, HostCall, HostNames, Limits
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.settings.paths import cache_directory


class Recorder:
    """Keeps what a live host answers."""

    def __init__(self, host: HostTable) -> None:
        self._host = host
        self.replies: list[tuple[HostCall, bytes]] = []

    @property
    def names(self) -> HostNames:
        return self._host.names

    def serve(self, call: HostCall) -> Any:
        reply = self._host.serve(call)
        if isinstance(reply, bytes):
            self.replies.append((call, reply))
            return reply
        if callable(reply):
            answered = reply()
            self.replies.append((call, answered))
            return answered
        return self._later(call, reply)

    async def _later(self, call: HostCall, reply: Any) -> bytes:
        answered: bytes = await reply
        self.replies.append((call, answered))
        return answered


def read(path: Path) -> bytes:
    return path.read_bytes()


def write(path: Path, value: object) -> None:
    path.write_bytes(msgspec.json.encode(value))


async def main(mode: str, journal: Path, results: Path) -> None:
    sandbox = WasmSandbox.load(cache=cache_directory())
    recorded: list[list[Answer]] = []
    if mode == "replay":
        recorded = msgspec.json.decode(read(journal), type=list[list[Answer]])
    found = []
    for number, program in enumerate(PROGRAMS):
        session = await sandbox.open(session_id=f"S{number}", seed=number)
        recorder = Recorder(LIVE)
        host: Host = recorder
        if mode == "replay":
            host = RecordedHost(recorded[number], then=HostTable())
            # The names must be those of the record, whoever answers.
            host = type("Named", (), {"names": LIVE.names, "serve": host.serve})()
        context = ExecutionContext(
            session_id="S", program_name="program.py", limits=Limits(fuel=30_000_000_000)
        )
        result = await session.execute(program, context=context, host=host)
        found.append({**facts(result), "digest": await session.digest()})
        if mode == "record":
            recorded.append(
                [
                    Answer(request_sha256=call_digest(call.request), fuel=call.fuel, reply=reply)
                    for call, reply in recorder.replies
                ]
            )
        await session.close()
    if mode == "record":
        write(journal, recorded)
    write(results, found)
    await sandbox.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
