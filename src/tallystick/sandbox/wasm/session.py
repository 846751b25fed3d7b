"""A session of the WASM sandbox: one namespace, from program to program.

The instance is the namespace. It is dropped whenever a program is ended from outside, and made again
when it is next needed: from the checkpoint if there is one, else from the guest's image, then by the
journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tallystick.core.errors import (
    InvalidLimit,
    MaxSnapshotsReached,
    NotSupported,
    SandboxError,
    SnapshotMismatch,
    TallystickError,
    UsageError,
)
from tallystick.sandbox.identity import new_id, now_ms
from tallystick.sandbox.output import OutputStream, ProgramOutput
from tallystick.sandbox.port import (
    ExecutionContext,
    ExecutionResult,
    Host,
    HostNames,
    SandboxSession,
)
from tallystick.sandbox.snapshot import (
    PAGE_BYTES,
    SNAPSHOTS_MAX,
    Image,
    SnapshotId,
    check_snapshot_name,
)
from tallystick.sandbox.wasm import report
from tallystick.sandbox.wasm.engine import ENGINE
from tallystick.sandbox.wasm.execution import Execution
from tallystick.sandbox.wasm.instance import BIND, BOOT, RUN, WASM_PAGE_BYTES, WHEEL, Instance
from tallystick.sandbox.wasm.journal import Entry, Journal
from tallystick.sandbox.wasm.pages import changed_pages, put_pages
from tallystick.sandbox.wasm.wheels import check_wheel

if TYPE_CHECKING:
    from tallystick.sandbox.wasm.sandbox import WasmSandbox

__all__ = ["WasmSession"]

_HOUSEKEEPING_FUEL = 1 << 50
Result = TypeVar("Result")


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot carries for the session itself."""

    seed: int
    clock_ns: int
    names: HostNames
    windows: tuple[tuple[int, int, int], ...]
    python: str


class WasmSession:
    """Runs programs one after another in one interpreter."""

    def __init__(self, sandbox: WasmSandbox, *, session_id: str, seed: int, clock_ns: int) -> None:
        self._sandbox = sandbox
        self._session_id = session_id
        self._kept = _Kept(seed=seed, clock_ns=clock_ns, names=HostNames(), windows=(), python="")
        self._instance: Instance | None = None
        self._checkpoint: Image | None = None
        self._journal = Journal()
        self._execution: Execution | None = None
        self._turn = asyncio.Lock()
        self._closed = False

    @property
    def session_id(self) -> str:
        return self._session_id

    # -- programs --------------------------------------------------------------------------------

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
        async with self._turn:
            output = self._output(context)
            execution = Execution(
                context=context,
                host=host,
                output=output,
                slots=self._sandbox.slots,
                loop=asyncio.get_running_loop(),
            )
            self._execution = execution
            work = self._in_thread(lambda: self._run(execution, source, context, host, output))
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                execution.cancel()
                with contextlib.suppress(Exception):
                    await work
                raise
            finally:
                self._execution = None
                await _settle(execution.task)

    def cancel(self) -> None:
        """End the running program, if there is one. Safe to call from any thread."""
        execution = self._execution
        if execution is not None:
            execution.cancel()

    async def add_wheel(self, data: bytes, *, name: str) -> Sequence[str]:
        """Make a pure-Python wheel importable. Returns the names of its modules."""
        check_wheel(data, name=name)
        async with self._turn:
            answered = await self._in_thread(lambda: self._call(WHEEL, data))
        modules = answered.get("modules")
        if not isinstance(modules, list):
            raise UsageError(
                f"{name} cannot be added: {answered.get('message', 'no reason given')}"
            )
        return [str(module) for module in modules]

    # -- snapshots -------------------------------------------------------------------------------

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
            return await self._in_thread(self._take_checkpoint)

    async def load(self, image: Image) -> None:
        """Replace the namespace. Refused by name for another guest or engine."""
        guest = self._sandbox.guest.image.sha256
        if image.guest != guest:
            raise SnapshotMismatch(
                f"the snapshot was made by guest {image.guest[:12]}; this is guest {guest[:12]}"
            )
        if image.engine != ENGINE:
            raise SnapshotMismatch(
                f"the snapshot was made by engine {image.engine!r}; this is {ENGINE!r}"
            )
        _check_pages(image, state=self._sandbox.guest.image.state)
        try:
            kept = msgspec.json.decode(image.session, type=_Kept)
        except msgspec.MsgspecError as error:
            raise SnapshotMismatch(
                f"the snapshot's session part cannot be read: {error}"
            ) from error
        async with self._turn:
            self._drop()
            self._checkpoint, self._kept = image, kept
            self._journal.clear()

    async def digest(self) -> str:
        """SHA-256 over memory and state: equal digests, equal sessions."""
        async with self._turn:
            return await self._in_thread(lambda: self._living().digest())

    async def close(self) -> None:
        """Free the interpreter. Closing twice is harmless."""
        self.cancel()
        async with self._turn:
            self._closed = True
            self._drop()
            self._journal.clear()
            self._checkpoint = None

    # -- in a program thread ---------------------------------------------------------------------

    def _prepare(self, context: ExecutionContext, host: Host) -> Instance:
        """A living instance with the host's names bound and the program's limits set."""
        if self._journal.long:
            self._take_checkpoint()
        instance = self._living()
        if host.names != self._kept.names:
            self._bind(host.names)
            instance = self._living()
        instance.set_memory_max(context.limits.memory_bytes)
        instance.set("grow_refused", 0)
        return instance

    def _run(
        self,
        execution: Execution,
        source: bytes,
        context: ExecutionContext,
        host: Host,
        output: ProgramOutput,
    ) -> ExecutionResult:
        instance = self._prepare(context, host)
        payload = report.program_payload(source, context)
        began = time.monotonic()
        ended: BaseException | None = None
        try:
            with self._sandbox.guest.ticker:
                execution.run(instance, RUN, payload)
        except TallystickError:
            self._drop()
            raise
        except Exception as error:
            ended = error
            report.recover_output(instance, self._kept.windows, output)
        took_ms = round((time.monotonic() - began) * 1000)
        result = report.result_of(
            instance, execution, output, ended=ended, context=context, took_ms=took_ms
        )
        if result.stop == "finished":
            self._journal.append(
                Entry(
                    kind=RUN,
                    payload=payload,
                    memory_bytes_max=context.limits.memory_bytes,
                    fuel_limit=context.limits.fuel,
                    fuel=result.charge.fuel,
                    answers=execution.answers,
                )
            )
        else:
            self._drop()
        return result

    def _living(self) -> Instance:
        """The instance, made again if the last program was ended from outside."""
        if self._closed:
            raise UsageError("the session is closed")
        if self._instance is None:
            try:
                self._instance = self._made()
            except BaseException:
                self._drop()
                raise
        return self._instance

    def _made(self) -> Instance:
        instance = self._sandbox.new_instance()
        try:
            if self._checkpoint is not None:
                self._put(instance, self._checkpoint)
            elif len(self._journal) == 0:
                self._instance = instance
                self._boot()
                return instance
            else:
                self._set_seed(instance)
            with self._sandbox.guest.ticker:
                self._journal.replay(instance)
        except BaseException:
            instance.close()
            raise
        return instance

    def _set_seed(self, instance: Instance) -> None:
        instance.set("clock", self._kept.clock_ns)
        instance.set("rng", _signed(_mixed(self._kept.seed)))

    def _boot(self) -> None:
        assert self._instance is not None
        self._set_seed(self._instance)
        answered = self._call(BOOT, report.names_payload(HostNames(), HostNames()))
        windows = tuple(tuple(window) for window in answered["windows"])
        self._kept = msgspec.structs.replace(
            self._kept, windows=windows, python=str(answered.get("python", ""))
        )

    def _bind(self, names: HostNames) -> None:
        self._call(BIND, report.names_payload(self._kept.names, names))
        self._kept = msgspec.structs.replace(self._kept, names=names)

    def _call(self, kind: int, payload: bytes) -> dict[str, Any]:
        """Call the guest on our own account: no host calls, no output, and it must not fail."""
        instance = self._living()
        answers: list[bytes] = []
        instance.on_stdio = lambda handle, data: answers.append(data) if handle == 3 else None
        instance.on_tick = lambda: None
        memory_max = self._sandbox.memory_bytes_max
        instance.set_memory_max(memory_max)
        try:
            with self._sandbox.guest.ticker:
                instance.invoke(kind, payload, fuel=_HOUSEKEEPING_FUEL)
            answered: dict[str, Any] = msgspec.json.decode(answers[-1])
        except Exception as error:
            self._drop()
            raise SandboxError(f"the guest could not be prepared: {error}") from error
        self._journal.append(
            Entry(
                kind=kind,
                payload=payload,
                memory_bytes_max=memory_max,
                fuel_limit=_HOUSEKEEPING_FUEL,
                fuel=instance.fuel_used(),
            )
        )
        return answered

    def _take_checkpoint(self) -> Image:
        """Copy what differs from the guest's image; the journal starts afresh from there."""
        instance = self._living()
        pristine = self._sandbox.pristine
        size = instance.memory_size()
        indices = changed_pages(
            base=instance.base,
            size=size,
            image_base=pristine.base,
            image_size=pristine.memory_size(),
        )
        self._checkpoint = Image(
            guest=self._sandbox.guest.image.sha256,
            engine=ENGINE,
            memory_bytes=size,
            state=instance.state(),
            session=msgspec.json.encode(self._kept),
            indices=indices,
            pages=[instance.page(index) for index in indices],
        )
        self._journal.clear()
        return self._checkpoint

    def _put(self, instance: Instance, image: Image) -> None:
        if image.memory_bytes > self._sandbox.memory_bytes_max:
            raise SnapshotMismatch(
                f"the snapshot needs {image.memory_bytes:,} bytes of memory; "
                f"at most {self._sandbox.memory_bytes_max:,} are allowed"
            )
        instance.grow_to(image.memory_bytes)
        put_pages(base=instance.base, indices=image.indices, pages=image.pages)
        for name, value in image.state.items():
            instance.set(name, value)

    # -- small things ----------------------------------------------------------------------------

    def _drop(self) -> None:
        instance, self._instance = self._instance, None
        if instance is not None:
            instance.close()

    def _check_memory(self, memory_bytes: int) -> None:
        least, most = self._sandbox.pristine.memory_size(), self._sandbox.memory_bytes_max
        if not least <= memory_bytes <= most:
            raise InvalidLimit(
                field="memory_bytes",
                given=memory_bytes,
                why=f"between {least:,} (the interpreter itself) and {most:,}",
            )

    def _output(self, context: ExecutionContext) -> ProgramOutput:
        folder = self._sandbox.output_directory
        stem = f"{self._session_id}-{new_id()}"

        def stream(suffix: str, keep: bool) -> OutputStream:
            path = folder / f"{stem}.{suffix}" if folder is not None else Path()
            return OutputStream(
                inline_max=context.max_output_bytes,
                path=path,
                keep=keep,
                spill=folder is not None,
            )

        return ProgramOutput(
            stdout=stream("stdout", context.capture_stdout),
            stderr=stream("stderr", context.capture_stderr),
            bytes_max=context.limits.output_bytes,
        )

    def _in_thread(self, work: Callable[[], Result]) -> asyncio.Future[Result]:
        return self._sandbox.threads.run(work)


def _check_pages(image: Image, *, state: Sequence[str]) -> None:
    """A page outside the memory would be written outside the guest: refuse it here, for any store."""
    pages_max = image.memory_bytes // PAGE_BYTES
    fits = (
        image.memory_bytes % WASM_PAGE_BYTES == 0
        and len(image.indices) == len(image.pages)
        and all(0 <= index < pages_max for index in image.indices)
        and all(len(page) == PAGE_BYTES for page in image.pages)
        and list(image.indices) == sorted(set(image.indices))
        and set(image.state) == set(state)
    )
    if not fits:
        raise SnapshotMismatch("the snapshot's pages do not fit its own memory")


async def _settle(task: asyncio.Task[bytes] | None) -> None:
    """Let a host function that was left behind end its own cancelling, for a moment."""
    if task is not None and not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=1.0)


def _mixed(seed: int) -> int:
    """Spread a seed over 64 bits, so that small seeds do not begin alike."""
    return (seed * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) & 0xFFFF_FFFF_FFFF_FFFF


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_: type[SandboxSession] = WasmSession
