"""What was done to a session since its last checkpoint: enough to do it again.

A program that is ended from outside leaves its interpreter in the middle of something. The
namespace before it is not kept as a copy for each program, which would cost every program to save
the few that are ended; it is made again from the last checkpoint by running what came after on
recorded answers. That is sound because programs are deterministic, and it is checked by their fuel.
A checkpoint is taken before a program once making up for its predecessors would cost more than
copying their pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tallystick.core.errors import SandboxError
from tallystick.sandbox.host import Answer, request_digest
from tallystick.sandbox.wasm.abi import BadPointer
from tallystick.sandbox.wasm.execution import oversized_request
from tallystick.sandbox.wasm.instance import RUN, Ended, Instance

__all__ = ["Entry", "Journal"]

# About a fifth of a second of guest time, where a checkpoint of a usual session costs ten
# milliseconds; and a bound on what the recorded answers may hold.
_FUEL_MAX = 1_500_000_000
_ANSWER_BYTES_MAX = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One call into the guest that went well, and what it was told."""

    kind: int
    payload: bytes
    memory_bytes_max: int
    request_bytes_max: int
    fuel_limit: int
    fuel: int
    answers: Sequence[Answer] = ()


class Journal:
    """Entries since the last checkpoint."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._fuel = 0
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def long(self) -> bool:
        """True once a checkpoint is the cheaper way back."""
        return self._fuel > _FUEL_MAX or self._bytes > _ANSWER_BYTES_MAX

    def append(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._fuel += entry.fuel
        self._bytes += len(entry.payload) + sum(len(answer.reply) for answer in entry.answers)

    def clear(self) -> None:
        self._entries.clear()
        self._fuel = self._bytes = 0

    def replay(self, instance: Instance) -> None:
        """Do it all again in a fresh instance, and check that it came out the same."""
        for entry in self._entries:
            try:
                _again(instance, entry)
            except (Ended, BadPointer) as error:
                raise SandboxError(f"a program could not be run again: {error}") from error
            if instance.fuel_used() != entry.fuel:
                raise SandboxError("a program used other fuel when it was run again")


def _again(instance: Instance, entry: Entry) -> None:
    answers = iter(entry.answers)

    def serve(request: bytes) -> bytes:
        answer = next(answers, None)
        if answer is None or answer.request_sha256 != request_digest(request):
            raise SandboxError("a program asked for something else when it was run again")
        return answer.reply

    instance.on_call = serve
    instance.on_oversized = lambda length: serve(oversized_request(length))
    instance.request_bytes_max = entry.request_bytes_max
    instance.set_memory_max(entry.memory_bytes_max)
    if entry.kind == RUN:
        instance.set("grow_refused", 0)
    instance.invoke(entry.kind, entry.payload, fuel=entry.fuel_limit)
