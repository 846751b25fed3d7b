"""A session of the WASM sandbox: programs one after another, and snapshots by name."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from tallystick.core.errors import (
    GuestBroken,
    InvalidLimit,
    MaxSnapshotsReached,
    NotSupported,
    UsageError,
)
from tallystick.sandbox.identity import new_id, now_ms
from tallystick.sandbox.output import OutputStream, ProgramOutput
from tallystick.sandbox.port import ExecutionContext, ExecutionResult, Host, SandboxSession
from tallystick.sandbox.snapshot import SNAPSHOTS_MAX, Image, SnapshotId, check_snapshot_name
from tallystick.sandbox.wasm import report
from tallystick.sandbox.wasm.abi import BadPointer
from tallystick.sandbox.wasm.execution import Execution, Stopped
from tallystick.sandbox.wasm.instance import RUN, WHEEL, Ended
from tallystick.sandbox.wasm.namespace import Namespace
from tallystick.sandbox.wasm.wheels import check_wheel

if TYPE_CHECKING:
    from tallystick.sandbox.wasm.sandbox import WasmSandbox

__all__ = ["WasmSession"]

Result = TypeVar("Result")
_WHY_CHARS_MAX = 500
# A deadline is for the program. What comes before it has at least this long.
_PREPARE_SECONDS_LEAST = 1.0


class WasmSession:
    """Runs programs in one interpreter. Calls that come while one runs wait their turn."""

    def __init__(self, sandbox: WasmSandbox, *, session_id: str, seed: int, clock_ns: int) -> None:
        self._sandbox = sandbox
        self._session_id = session_id
        self._namespace = Namespace(sandbox, seed=seed, clock_ns=clock_ns)
        self._execution: Execution | None = None
        self._turn = asyncio.Lock()

    @property
    def session_id(self) -> str:
        return self._session_id

    # -- programs ------------------------------------------------------------------------------

    async def execute(
        self, program: str | bytes, *, context: ExecutionContext, host: Host
    ) -> ExecutionResult:
        """Run one program. What it does wrong is in the result; what we do wrong is raised."""
        if context.working_dir is not None:
            raise NotSupported(backend="wasm", operation="a working directory: it has no files")
        self._check_memory(context.limits.memory_bytes)
        source, problem = report.source_of(program, context.limits.source_bytes)
        if problem is not None:
            return problem
        payload = report.program_payload(source, context)
        async with self._turn:
            output = self._output(context)
            self._execution = execution = Execution(
                context=context,
                host=host,
                output=output,
                slots=self._sandbox.slots,
                loop=asyncio.get_running_loop(),
            )
            with self._sandbox.cancels.cancellable(context.cancellation_token, execution.cancel):
                try:
                    return await self._in_thread(
                        lambda: self._run(execution, payload, context, host, output),
                        on_cancel=execution.cancel,
                    )
                except BaseException:
                    output.discard()
                    raise
                finally:
                    self._execution = None
                    await _settle(execution.task)

    def cancel(self) -> None:
        """End the running program, if there is one. Safe to call from any thread."""
        self._namespace.interrupted = True
        execution = self._execution
        if execution is not None:
            execution.cancel()

    async def add_wheel(self, data: bytes, *, name: str) -> Sequence[str]:
        """Make a pure-Python wheel importable. Returns the names of its modules."""
        async with self._turn:
            await self._in_thread(lambda: check_wheel(data, name=name))
            added = await self._in_thread(lambda: self._namespace.call(WHEEL, data))
        if added.modules is None:
            why = added.message[:_WHY_CHARS_MAX] or "the guest gave no reason"
            raise UsageError(f"{name} cannot be added to a session: {why}")
        return added.modules

    async def close(self) -> None:
        """Free the interpreter. Closing twice is harmless."""
        self.cancel()
        async with self._turn:
            self._namespace.close()

    # -- snapshots -----------------------------------------------------------------------------

    async def snapshot(self, name: str) -> SnapshotId:
        """Keep the namespace as it is now under a name."""
        check_snapshot_name(name)
        store = self._sandbox.store
        taken = store.list(self._session_id)
        if any(each.name == name for each in taken):
            raise UsageError(f"the session has a snapshot {name!r}; delete it first")
        if len(taken) >= SNAPSHOTS_MAX:
            raise MaxSnapshotsReached(limit=SNAPSHOTS_MAX)
        snapshot = SnapshotId(
            id=new_id(), name=name, session_id=self._session_id, created_at=now_ms()
        )
        store.save(snapshot, await self.image())
        return snapshot

    async def restore(self, name: str) -> SnapshotId:
        """Go back to a snapshot of this session, by name or by `name:id`."""
        snapshot, image = self._sandbox.store.load(self._session_id, name)
        await self.load(image)
        return snapshot

    def snapshots(self) -> Sequence[SnapshotId]:
        return self._sandbox.store.list(self._session_id)

    def delete_snapshot(self, name: str) -> None:
        self._sandbox.store.delete(self._session_id, name)

    async def image(self) -> Image:
        """The namespace as it is now."""
        async with self._turn:
            return await self._in_thread(self._namespace.checkpoint)

    async def load(self, image: Image) -> None:
        """Replace the namespace by an image."""
        async with self._turn:
            self._namespace.load(image)

    async def digest(self) -> str:
        """SHA-256 over memory and state: equal digests, equal namespaces."""
        async with self._turn:
            return await self._in_thread(lambda: self._namespace.living().digest())

    # -- in a program thread -------------------------------------------------------------------

    def _run(
        self,
        execution: Execution,
        payload: bytes,
        context: ExecutionContext,
        host: Host,
        output: ProgramOutput,
    ) -> ExecutionResult:
        namespace = self._namespace
        try:
            instance = namespace.prepared(
                context.limits,
                host.names,
                seconds_max=max(_PREPARE_SECONDS_LEAST, context.deadline_ms / 1000),
            )
        except GuestBroken as error:
            return report.broken(str(error))
        began = time.monotonic()
        ended: BaseException | None = None
        try:
            with self._sandbox.guest.ticker:
                execution.run(instance, RUN, payload)
        except (Stopped, Ended, BadPointer) as error:
            ended = error
            report.recover_output(instance, namespace.windows, output)
        except BaseException:
            # The host broke, not the program. What it did is undone like any other interruption.
            namespace.drop()
            raise
        took_ms = round((time.monotonic() - began) * 1000)
        result = report.result_of(
            instance, execution, output, ended=ended, context=context, took_ms=took_ms
        )
        instance.refuse_calls()
        if result.stop != "finished":
            namespace.drop()
        elif execution.answers is None:
            namespace.checkpoint()
        else:
            fuel = result.charge.fuel
            namespace.ran(payload, limits=context.limits, fuel=fuel, answers=execution.answers)
        return result

    # -- small things --------------------------------------------------------------------------

    def _check_memory(self, memory_bytes: int) -> None:
        least, most = self._sandbox.memory_bytes_least, self._sandbox.memory_bytes_max
        if not least <= memory_bytes <= most:
            raise InvalidLimit(
                field="memory_bytes",
                given=memory_bytes,
                why=f"between {least:,} (the interpreter itself) and {most:,}",
            )

    def _output(self, context: ExecutionContext) -> ProgramOutput:
        folder = self._sandbox.output_directory
        stem = functools.cache(lambda: f"{self._session_id}-{new_id()}")

        def stream(suffix: str, keep: bool) -> OutputStream:
            return OutputStream(
                inline_max=context.max_output_bytes,
                place=None if folder is None else lambda: folder / f"{stem()}.{suffix}",
                keep=keep,
            )

        return ProgramOutput(
            stdout=stream("stdout", context.capture_stdout),
            stderr=stream("stderr", context.capture_stderr),
            bytes_max=context.limits.output_bytes,
        )

    async def _in_thread(
        self, work: Callable[[], Result], *, on_cancel: Callable[[], None] | None = None
    ) -> Result:
        """Do work in a program thread and wait for its end, however often we are cancelled.

        The thread may be inside the guest: going on before it is out would let two threads into
        one store, and that ends the process.
        """
        namespace = self._namespace
        namespace.interrupted = False
        begun = self._sandbox.threads.run(work)
        try:
            return await begun.outcome
        except asyncio.CancelledError:
            namespace.interrupted = True
            if on_cancel is not None:
                on_cancel()
            while not begun.over:
                with contextlib.suppress(asyncio.CancelledError):
                    await begun.ended()
            raise


async def _settle(task: asyncio.Task[bytes] | None) -> None:
    """Let a host function that was left behind end its own cancelling, for a moment."""
    if task is not None and not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=1.0)


_: type[SandboxSession] = WasmSession
