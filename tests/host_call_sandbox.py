"""A sandbox that makes the host calls a program names in its first line, and nothing else.

For tests of what stands around a sandbox, through whole sessions, where real programs would take
most of the time: the model's reply says what is called, and whether the run has its answer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace

from tallystick.sandbox.port import ExecutionContext, ExecutionResult, Host
from tallystick.sandbox.scripted import Scripted, ScriptedInterpreter
from tallystick.testing.models import block

Call = tuple[str, Sequence[object]]


def calling(calls: Sequence[Call], *, answer: str = "", note: str = "") -> str:
    """A model's reply that has these calls made; with an answer, it is the last."""
    line = json.dumps({"calls": calls, "answer": answer})
    return block(f"# {line}\n{note!r}")


class ToldSession(ScriptedInterpreter):
    """Does what the first line says."""

    def __init__(self, session_id: str) -> None:
        super().__init__(session_id, iter(()))

    async def execute(
        self, program: str | bytes, *, context: ExecutionContext, host: Host
    ) -> ExecutionResult:
        said = json.loads(str(program).splitlines()[0].removeprefix("# "))
        metadata = {"answer": said["answer"]} if said["answer"] else {}
        step = Scripted(calls=said["calls"], result=ExecutionResult(metadata=metadata))
        self._script = iter([step])
        return await super().execute(program, context=context, host=host)


class HostCallSandbox:
    """Opens such sessions, under the name of some guest."""

    guest = SimpleNamespace(image=SimpleNamespace(sha256="0" * 64))

    async def open(self, *, session_id: str, seed: int = 0, clock_ns: int = 0) -> ToldSession:
        return ToldSession(session_id)

    async def close(self) -> None: ...
