"""The live world: a real model, a real sandbox, real host functions."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tallystick.attachments.port import AttachmentError
from tallystick.core.budget.amount import Amount, BudgetExhausted, BudgetUnpriced
from tallystick.core.machine import prompt
from tallystick.core.machine.prompt import Message
from tallystick.core.machine.state import RunState
from tallystick.core.records import (
    LEFT,
    AskModel,
    ModelFailed,
    ModelReplied,
    ProgramFinished,
    RunProgram,
)
from tallystick.core.views.open_calls import call_key
from tallystick.model.port import Heard, Model, ModelError, ModelRequest
from tallystick.runtime.calls.children import ChildCalls
from tallystick.runtime.calls.functions import FunctionPolicy
from tallystick.runtime.calls.host import RecordingHost
from tallystick.runtime.calls.queries import JournaledCalls, Queries
from tallystick.runtime.context.attachments import (
    PUT_BYTES_MAX,
    WRITE,
    RunAttachments,
    with_pictures,
)
from tallystick.runtime.journal.world import (
    CallLog,
    CallRefused,
    Kept,
    World,
    cut_off,
    failed_of,
    finished_of,
    long_answer,
    ms_since,
    output_files,
    refused_by,
)
from tallystick.runtime.spend.door import (
    ModelDoor,
    ReservedCall,
    WaitedTooLong,
    refused_call,
)
from tallystick.sandbox.host import HostTable
from tallystick.sandbox.port import (
    ExecutionContext,
    ExecutionResult,
    Host,
    HostNames,
    Limits,
    Programs,
    Rerun,
)

if TYPE_CHECKING:
    from tallystick.memory.runs import MemoryCalls
    from tallystick.skills.runs import SkillCalls


_PROGRAM_MS_MAX = 30_000
# What packages map is several times what they use.
_NATIVE_BYTES = 1 << 30
# About two seconds of a program's own work: what a snapshot saves, and several times its cost.
SNAPSHOT_FUEL = 6_000_000_000
_REQUEST_BYTES = Limits().request_bytes
_PUT_REQUEST_BYTES = 2 * PUT_BYTES_MAX


class LiveWorld:
    """Asks the model and runs programs. `bridges` are for commands of a shell."""

    def __init__(
        self,
        *,
        run: str,
        model: Model,
        programs: Programs,
        table: HostTable,
        names: HostNames,
        policies: Mapping[str, FunctionPolicy],
        run_attachments: RunAttachments,
        model_door: ModelDoor,
        desk: JournaledCalls,
        queries: Queries,
        children: ChildCalls,
        skills: SkillCalls | None = None,
        memory: MemoryCalls | None = None,
        heard: Heard = lambda chars: None,
        bridges: Path | None = None,
    ) -> None:
        self._programs = programs
        self._bridges = bridges
        self._children = children
        self._skills = skills
        self._memory = memory
        self._run = run
        self._run_attachments = run_attachments
        self._model_door = model_door
        self._desk = desk
        self._queries = queries
        self._terms = model_door.terms(model)
        self._ticket: ReservedCall | None = None
        self._heard = heard
        self._asking_since = 0.0
        self._temperature: float | None = None
        self._model = model
        self._table = table
        self._names = names
        self._policies = policies

    @asynccontextmanager
    async def admitted(
        self, intent: AskModel, messages: tuple[Message, ...], *, model: str, wall_ms_left: int
    ) -> AsyncIterator[AskModel]:
        self._asking_since = time.monotonic()
        try:
            async with self._model_door.admitted(
                self._model,
                messages,
                tokens_out_max=intent.tokens_out_max,
                turns=1,
                wait_ms=intent.wait_ms,
                ends_at=self._asking_since + wall_ms_left / 1000,
            ) as reserved_call:
                self._ticket = reserved_call
                yield self._written(intent, messages, reserved_call)
        except WaitedTooLong:
            said = f"{wall_ms_left:,} ms passed before the model was free"
            raise WaitedTooLong(said) from None
        except (BudgetExhausted, BudgetUnpriced) as error:
            raise self._refusal(intent, messages, error) from error

    def _refusal(
        self,
        intent: AskModel,
        messages: tuple[Message, ...],
        error: BudgetExhausted | BudgetUnpriced,
    ) -> CallRefused:
        refused = refused_by(error, intent)
        if isinstance(error, BudgetUnpriced):
            why = f"usd: {self._terms.decision.why}"
            refused = msgspec.structs.replace(refused, message=why)
        wanted = intent.tokens_out_max
        call = refused_call(error, self._terms, messages, tokens_out_max=wanted)
        return CallRefused(refused, call)

    def _written(
        self, intent: AskModel, messages: tuple[Message, ...], reserved_call: ReservedCall
    ) -> AskModel:
        """The intent with what is reserved for it, and the cap of its reply as it is sent."""
        cap = reserved_call.tokens_out_max
        if cap == intent.tokens_out_max:
            return msgspec.structs.replace(intent, reserved=reserved_call.reserved)
        return msgspec.structs.replace(
            intent,
            tokens_out_max=cap,
            reserved=reserved_call.reserved,
            request_sha256=prompt.request_digest(
                self._model.name, messages, tokens_out_max=cap, temperature=intent.temperature
            ),
        )

    def left(self, intent: AskModel, *, sent: bool) -> ModelFailed:
        said = "left in the middle by a cancel" if sent else "left by a cancel before it was sent"
        error = ModelError(reason="unknown", message=said, billed=sent)
        assert self._ticket is not None
        settled = self._model_door.cancelled(self._ticket, sent=sent)
        event = failed_of(intent, error, self._asking_since, settled)
        return msgspec.structs.replace(event, reason=LEFT)

    async def ask(
        self, intent: AskModel, messages: tuple[Message, ...], *, wall_ms_left: int
    ) -> ModelReplied | ModelFailed:
        began = self._asking_since
        try:
            messages = with_pictures(messages, self._run_attachments.read)
        except AttachmentError as error:
            missing = ModelError(reason="invalid_request", message=str(error), billed=False)
            return self._failed(intent, missing)
        request = ModelRequest(
            messages=messages,
            tokens_out_max=intent.tokens_out_max,
            temperature=intent.temperature,
            key=call_key(self._run, intent.intent),
        )
        reply = await self._model_door.ask(
            self._model, request, heard=self._heard, ends_at=began + wall_ms_left / 1000
        )
        if isinstance(reply, ModelError):
            return self._failed(intent, reply)
        assert self._ticket is not None
        self._model_door.run_scopes.spend(Amount(wall_ms=ms_since(began)))
        return ModelReplied(
            intent=intent.intent,
            turn=intent.turn,
            text=reply.text,
            usage=reply.usage,
            cut=reply.cut,
            wall_ms=ms_since(began),
            served_by=reply.served_by,
            finish=reply.finish,
            settled=self._model_door.replied(self._ticket, reply),
        )

    def _failed(self, intent: AskModel, error: ModelError) -> ModelFailed:
        assert self._ticket is not None
        settled = self._model_door.failed(self._ticket, error)
        return failed_of(intent, error, self._asking_since, settled)

    async def run(
        self,
        intent: RunProgram,
        source: str,
        asked: CallLog,
        *,
        state: RunState,
        behind: Callable[[RecordingHost], Host] = lambda host: host,
        rerun: Rerun | None = None,
    ) -> ProgramFinished:
        """Run a program. `behind` is a host in front of the live one.

        `rerun` says how much of the program is on its record, and done again.
        """
        self._run_attachments.outputs = state.outputs
        self._desk.written = asked.queries
        self._queries.limits = state.started.limits
        self._temperature = state.started.temperature
        context = program_context(intent, state, rerun)
        self._children.written = asked.queries
        self.begin_time(state)
        if self._skills is not None:
            self._skills.begin(
                self._children.ends_at, context.limits.host_calls, state.skills.tools
            )
        host = RecordingHost(
            self._table,
            self._names,
            self._policies,
            asked,
            self._run_attachments,
            self._queries,
            run=self._run,
            program=intent.intent,
            desk=self._skills,
            memory=self._memory,
            tools=state.skills.tools,
        )
        try:
            result = await self._executed(intent, source, context, behind(host), asked)
        finally:
            await self._children.over()
        outputs = tuple(
            self._run_attachments.keep_output(path, label=label)
            for path, label in output_files(intent, result)
        )
        long = long_answer(intent, result)
        ref = None
        if long is not None:
            ref = self._run_attachments.keep(long[0], media_type="text/plain", label=long[1])
        self._model_door.run_scopes.spend(
            Amount(
                fuel=result.charge.fuel,
                host_calls=result.charge.host_calls,
                wall_ms=result.execution_time_ms,
                output_bytes=result.charge.output_bytes,
            )
        )
        return finished_of(intent, result, outputs, ref)

    def begin_time(self, state: RunState) -> None:
        """Count the time that is left for what programs ask of others from now on."""
        self._children.ends_at = time.monotonic() + wall_ms_left(state) / 1000
        if self._skills is not None:
            self._skills.begin_time(self._children.ends_at)

    async def _executed(
        self,
        intent: RunProgram,
        source: str,
        context: ExecutionContext,
        host: Host,
        asked: CallLog,
    ) -> ExecutionResult:
        async with self._bridged(intent, asked, context) as given:
            return await self._programs.execute(
                intent,
                source,
                context=context.with_env(given),
                host=host,
                attempted=asked.attempted,
            )

    def _bridged(
        self, intent: RunProgram, asked: CallLog, context: ExecutionContext
    ) -> AbstractAsyncContextManager[dict[str, str]]:
        """By what a command of a shell asks models. A program in Python has functions for it."""
        if self._bridges is None or intent.kind != "bash":
            return nullcontext({})
        # Imported where there is a shell: most runs have none.
        from tallystick.bridge.door import ShellBridge

        bridge = ShellBridge(
            folder=self._bridges,
            run=self._run,
            session_id=self._programs.session_id,
            desk=self._queries.desk,
            run_scopes=self._model_door.run_scopes,
            run_attachments=self._run_attachments,
            temperature=self._temperature,
        )
        return bridge.open(
            asked,
            program=intent.intent,
            limits=self._queries.limits,
            ends_at=self._children.ends_at,
            calls_max=context.limits.host_calls,
        )

    def check_begun(self, intent: RunProgram) -> None:
        """Nothing has ended it: it is live."""

    def left_program(self, intent: RunProgram) -> ProgramFinished:
        return cut_off(intent, "cancelled", "cancelled by the user; its files were put back")

    async def kept(self, finished: ProgramFinished, *, state: RunState) -> Kept | None:
        """Keep what a program left."""
        return await self._programs.keep(finished, fuel_saved=SNAPSHOT_FUEL)


def wall_ms_left(state: RunState) -> int:
    """Return the milliseconds that a run may still take."""
    return max(0, state.started.limits.wall_ms - state.charge.wall_ms)


def program_context(
    intent: RunProgram, state: RunState, rerun: Rerun | None = None
) -> ExecutionContext:
    """The limits of one program: its own, and what the run has left."""
    limits, used = state.started.limits, state.charge
    left = wall_ms_left(state)
    return ExecutionContext(
        session_id=state.started.session_id,
        timeout_ms=min(_PROGRAM_MS_MAX, left),
        deadline_ms=left,
        program_name=f"<turn {intent.turn}>",
        outputs_before=len(state.outputs),
        rerun=rerun,
        limits=Limits(
            memory_bytes=_NATIVE_BYTES if intent.effect else Limits().memory_bytes,
            host_calls=max(0, limits.host_calls - used.host_calls),
            request_bytes=_PUT_REQUEST_BYTES if WRITE in state.started.grants else _REQUEST_BYTES,
        ),
    )


_: type[World] = LiveWorld
