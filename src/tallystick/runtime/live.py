"""The live world: a real model, a real sandbox, real host functions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager

from tallystick.core.machine import RunState
from tallystick.core.prompt import Message
from tallystick.core.records import (
    AskModel,
    HostAnswered,
    ModelFailed,
    ModelReplied,
    ProgramFailure,
    ProgramFinished,
    RunProgram,
)
from tallystick.model.port import Heard, Model, ModelError, ModelRequest
from tallystick.runtime.driver import Asked, WaitedTooLong, World
from tallystick.runtime.functions import FunctionPolicy
from tallystick.sandbox.host import Blocking, HostTable, request_digest
from tallystick.sandbox.port import (
    ExecutionContext,
    ExecutionResult,
    HostCall,
    HostNames,
    Limits,
)
from tallystick.sandbox.wasm.session import WasmSession

__all__ = ["LiveWorld", "finished_of", "program_context"]

_PROGRAM_MS_MAX = 30_000
_ERROR_TAG = b"1"


class LiveWorld:
    """Asks the model and runs programs in one sandbox session."""

    def __init__(
        self,
        *,
        model: Model,
        session: WasmSession,
        table: HostTable,
        names: HostNames,
        policies: Mapping[str, FunctionPolicy],
        heard: Heard = lambda chars: None,
    ) -> None:
        self._heard = heard
        self._asking_since = 0.0
        self._model = model
        self._session = session
        self._table = table
        self._names = names
        self._policies = policies

    @asynccontextmanager
    async def admitted(self, intent: AskModel, *, wall_ms_left: int) -> AsyncIterator[None]:
        self._asking_since = time.monotonic()
        place = self._model.admitted()
        try:
            async with asyncio.timeout(wall_ms_left / 1000):
                await asyncio.sleep(intent.wait_ms / 1000)
                await place.__aenter__()
        except TimeoutError:
            raise WaitedTooLong(f"{wall_ms_left:,} ms passed before the model was free") from None
        try:
            yield
        finally:
            await place.__aexit__(None, None, None)

    async def ask(
        self, intent: AskModel, messages: tuple[Message, ...], *, wall_ms_left: int
    ) -> ModelReplied | ModelFailed:
        began = self._asking_since
        request = ModelRequest(
            messages=messages,
            tokens_out_max=intent.tokens_out_max,
            temperature=intent.temperature,
        )
        try:
            async with asyncio.timeout(max(0.0, wall_ms_left / 1000 - (time.monotonic() - began))):
                reply = await self._model.ask(request, heard=self._heard)
        except ModelError as error:
            return _failed(intent, error, began)
        except TimeoutError:
            late = ModelError(reason="timeout", message=f"no reply in {wall_ms_left:,} ms")
            return _failed(intent, late, began)
        return ModelReplied(
            intent=intent.intent,
            turn=intent.turn,
            text=reply.text,
            usage=reply.usage,
            cut=reply.cut,
            wall_ms=_since(began),
            served_by=reply.served_by,
            finish=reply.finish,
        )

    async def run(
        self, intent: RunProgram, source: str, asked: Asked, *, state: RunState
    ) -> ProgramFinished:
        host = _WrittenHost(self._table, self._names, self._policies, asked, program=intent.intent)
        result = await self._session.execute(
            source, context=program_context(intent, state), host=host
        )
        return finished_of(intent, result)


class _WrittenHost:
    """Serves calls from a table and has each one written down."""

    def __init__(
        self,
        table: HostTable,
        names: HostNames,
        policies: Mapping[str, FunctionPolicy],
        asked: Asked,
        *,
        program: int,
    ) -> None:
        self._table = table
        self._names = names
        self._policies = policies
        self._asked = asked
        self._program = program

    @property
    def names(self) -> HostNames:
        return self._names

    def serve(self, call: HostCall) -> bytes | Awaitable[bytes]:
        sha256 = request_digest(call.request)
        effect = self._policies.get(call.name) == "effect"
        intent = self._asked.calling(
            index=call.index, name=call.name, request_sha256=sha256, effect=effect
        )
        reply = self._table.serve(call)
        if isinstance(reply, bytes):
            return self._noted(call, intent, sha256, reply)
        if isinstance(reply, Blocking):
            return Blocking(lambda: self._noted(call, intent, sha256, reply()))
        return self._awaited(call, intent, sha256, reply)

    async def _awaited(
        self, call: HostCall, intent: int, sha256: str, reply: Awaitable[bytes]
    ) -> bytes:
        return self._noted(call, intent, sha256, await reply)

    def _noted(self, call: HostCall, intent: int, sha256: str, reply: bytes) -> bytes:
        self._asked.answered(
            HostAnswered(
                intent=intent,
                program=self._program,
                index=call.index,
                name=call.name,
                request_sha256=sha256,
                fuel=call.fuel,
                reply=reply,
                ok=not reply.startswith(_ERROR_TAG),
            )
        )
        return reply


def program_context(intent: RunProgram, state: RunState) -> ExecutionContext:
    """The limits of one program: its own, and what the run has left."""
    limits, used = state.started.limits, state.charge
    wall_ms_left = max(0, limits.wall_ms - used.wall_ms)
    return ExecutionContext(
        session_id=state.started.session_id,
        timeout_ms=min(_PROGRAM_MS_MAX, wall_ms_left),
        deadline_ms=wall_ms_left,
        program_name=f"<turn {intent.turn}>",
        limits=Limits(host_calls=max(0, limits.host_calls - used.host_calls)),
    )


def finished_of(intent: RunProgram, result: ExecutionResult) -> ProgramFinished:
    """What a run records of a result."""
    failure = None
    if result.error is not None:
        failure = ProgramFailure(
            kind=result.error.kind,
            message=result.error.message,
            traceback=result.error.traceback,
        )
    answer = result.metadata.get("answer")
    assigned = result.metadata.get("assigned")
    return ProgramFinished(
        intent=intent.intent,
        turn=intent.turn,
        stop=result.stop,
        stdout=result.stdout,
        stderr=result.stderr,
        value=result.value,
        failure=failure,
        answer=answer if isinstance(answer, str) else None,
        names_restored=_names_in(result, "names_restored"),
        names_kept=_names_in(result, "names_kept"),
        assigned=assigned if isinstance(assigned, tuple) and len(assigned) == 2 else None,
        fuel=result.charge.fuel,
        host_calls=result.charge.host_calls,
        truncated=result.output_truncated,
        wall_ms=result.execution_time_ms,
    )


def _names_in(result: ExecutionResult, which: str) -> tuple[str, ...]:
    found = result.metadata.get(which, ())
    return tuple(str(name) for name in found) if isinstance(found, list) else ()


def _failed(intent: AskModel, error: ModelError, began: float) -> ModelFailed:
    return ModelFailed(
        intent=intent.intent,
        turn=intent.turn,
        reason=error.reason,
        message=error.message,
        wall_ms=_since(began),
        kind=error.kind,
        status=error.status,
        retry_after_ms=error.retry_after_ms,
        billed=error.billed,
        usage=error.usage,
    )


def _since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)


_: type[World] = LiveWorld
