"""A sandbox that follows a script, for tests of the code around a sandbox."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from tallystick.core.errors import SandboxError
from tallystick.sandbox.host import Blocking, call_digest
from tallystick.sandbox.port import (
    CallRecord,
    ExecutionContext,
    ExecutionResult,
    Host,
    HostCall,
    ProgramCharge,
    Sandbox,
    SandboxInterpreter,
)


class Scripted(msgspec.Struct, frozen=True, kw_only=True):
    """The script of one program: make these host calls, then end with this result."""

    calls: Sequence[tuple[str, Sequence[object]]] = ()
    result: ExecutionResult = ExecutionResult()


class ScriptedInterpreter:
    """Play the script, one entry for each program; the text of the program has no effect."""

    def __init__(self, session_id: str, script: Iterator[Scripted]) -> None:
        self._session_id = session_id
        self._script = script
        self.programs: list[str] = []
        self.replies: list[bytes] = []

    @property
    def session_id(self) -> str:
        return self._session_id

    async def execute(
        self, program: str | bytes, *, context: ExecutionContext, host: Host
    ) -> ExecutionResult:
        """Make the host calls of the next entry and return its result.

        `calls` and `charge` of that result are replaced by the calls that were made. Each counts as
        one unit of fuel. Raise `SandboxError` if the script is at its end, and what `host` raises.
        """
        step = next(self._script, None)
        if step is None:
            raise SandboxError("the script has no more programs")
        self.programs.append(program if isinstance(program, str) else program.decode())
        records = []
        for index, (name, args) in enumerate(step.calls):
            request = msgspec.json.encode([name, args, {}])
            reply = host.serve(HostCall(index=index, name=name, request=request, fuel=index))
            if not isinstance(reply, bytes):
                reply = reply() if isinstance(reply, Blocking) else await reply
            assert isinstance(reply, bytes)
            self.replies.append(reply)
            records.append(
                CallRecord(
                    index=index,
                    name=name,
                    request_sha256=call_digest(request),
                    request_bytes=len(request),
                    reply_bytes=len(reply),
                    fuel=index,
                    ok=not reply.startswith(b"1"),
                )
            )
        charge = ProgramCharge(fuel=len(records), host_calls=len(records))
        return msgspec.structs.replace(step.result, calls=tuple(records), charge=charge)

    def cancel(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


class ScriptedSandbox:
    """Open sessions that share one script."""

    name = "scripted"

    def __init__(self, script: Iterable[Scripted]) -> None:
        self._script = iter(script)

    async def open(self, *, session_id: str, seed: int = 0) -> ScriptedInterpreter:
        """Open a session that takes the next entries of the script. `seed` is not used."""
        return ScriptedInterpreter(session_id, self._script)

    async def self_test(self) -> Sequence[tuple[str, str | None]]:
        """Return nothing, because there is nothing to test."""
        return []

    async def close(self) -> None:
        """Do nothing."""


_session: type[SandboxInterpreter] = ScriptedInterpreter
_sandbox: type[Sandbox] = ScriptedSandbox
