"""The WASM sandbox: open interpreters, run programs in them, keep snapshots, test itself."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import os
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from tallystick.core.clock import FIXED_CLOCK_NS
from tallystick.core.errors import (
    GuestBroken,
    InvalidLimit,
    MaxSnapshotsReached,
    NotSupported,
    TallystickError,
    UsageError,
)
from tallystick.sandbox.host import HostFunction, HostTable
from tallystick.sandbox.output import OutputStream, ProgramOutput
from tallystick.sandbox.port import (
    ExecutionContext,
    ExecutionResult,
    Host,
    Limits,
    Sandbox,
    SandboxInterpreter,
)
from tallystick.sandbox.scheduling import CancellationTokens, ProgramThreads, Slots
from tallystick.sandbox.snapshot import (
    SNAPSHOTS_MAX,
    Image,
    MemorySnapshotStore,
    SnapshotId,
    SnapshotStore,
    check_snapshot_name,
)
from tallystick.sandbox.wasm.engine import BadPointer, Guest, load_guest
from tallystick.sandbox.wasm.execution import (
    Execution,
    Stopped,
    broken_result,
    program_payload,
    recover_output,
    result_of,
    source_of,
)
from tallystick.sandbox.wasm.image import load_image
from tallystick.sandbox.wasm.instance import CLOCK_LATEST_NS, RUN, WHEEL, Ended, Instance
from tallystick.sandbox.wasm.namespace import Namespace
from tallystick.storage.clock import new_id, now_ms

# Wheels for a session: pure Python, of limited size, checked before anything is unpacked.


WHEEL_BYTES_MAX = 64 * 1024 * 1024
_UNPACKED_BYTES_MAX = 256 * 1024 * 1024
_FILES_MAX = 20_000
_DIRECTORY_BYTES_MAX = 4 * 1024 * 1024
_NATIVE = (".so", ".pyd", ".dylib", ".dll")


def check_wheel(data: bytes, *, name: str) -> None:
    """Raise `UsageError` with the reason if the bytes are not a pure-Python wheel within limits.

    Those are 64 MiB, 256 MiB unpacked, 20,000 files, and 4 MiB of their names. Nothing is unpacked
    here.
    """
    why = _wheel_problem(data)
    if why is not None:
        raise UsageError(f"{name} cannot be added to a session: {why}")


def _wheel_problem(data: bytes) -> str | None:
    """Return why the bytes are not an acceptable wheel, or None if they are."""
    import zipfile

    if len(data) > WHEEL_BYTES_MAX:
        return f"it is {len(data):,} bytes; at most {WHEEL_BYTES_MAX:,}"
    try:
        with zipfile.ZipFile(_DirectoryReader(data)) as wheel:
            members = wheel.infolist()
    except _DirectoryTooLong:
        return f"it holds too many files: over {_DIRECTORY_BYTES_MAX:,} bytes of names"
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError, struct.error):
        return "it is not a wheel (not a zip file)"
    if len(members) > _FILES_MAX:
        return f"it holds {len(members):,} files; at most {_FILES_MAX:,}"
    unpacked = sum(member.file_size for member in members)
    if unpacked > _UNPACKED_BYTES_MAX:
        return f"it unpacks to {unpacked:,} bytes; at most {_UNPACKED_BYTES_MAX:,}"
    native = next((each.filename for each in members if each.filename.endswith(_NATIVE)), None)
    if native is not None:
        return f"it holds native code ({native}); only pure-Python wheels run here"
    if not any(each.filename.endswith(".dist-info/WHEEL") for each in members):
        return "it is not a wheel (no .dist-info/WHEEL in it)"
    return None


class _DirectoryTooLong(Exception):
    """The zip directory of a wheel is too long to be read."""


class _DirectoryReader(io.BytesIO):
    """A reader of a wheel that raises `_DirectoryTooLong` for any read of over 4 MiB.

    `zipfile` reads the whole zip directory before it returns a name. A zip file gives the length of
    its directory in three places, and not every reader looks at each of them. So the reads
    themselves are checked, not the declared length.
    """

    def read(self, size: int | None = -1, /) -> bytes:
        """Read up to `size` bytes. Raise `_DirectoryTooLong` if that would be over 4 MiB."""
        left = len(self.getbuffer()) - self.tell()
        wanted = left if size is None or size < 0 else min(size, left)
        if wanted > _DIRECTORY_BYTES_MAX:
            raise _DirectoryTooLong
        return super().read(wanted)


# A session of the WASM sandbox: one interpreter, and its snapshots by name.


Result = TypeVar("Result")
_WHY_CHARS_MAX = 500
# A deadline limits the program. The preparation of the interpreter has at least this long.
_PREPARE_SECONDS_LEAST = 1.0


class WasmInterpreter:
    """One interpreter that runs programs one after another; a call waits for the one before."""

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
        """Run one program. Its own failure is a result, and only failures of the host are raised.

        Raise `NotSupported` for a working directory, and `InvalidLimit` for a memory limit outside
        of what the sandbox allows. Raise `UsageError` if the session is closed or the cancellation
        token is in use, and `SandboxError` if the interpreter cannot be rebuilt. If the waiting
        task is cancelled, the program is stopped first.
        """
        if context.working_dir is not None:
            raise NotSupported(backend="wasm", operation="a working directory: it has no files")
        self._check_memory(context.limits.memory_bytes)
        source, problem = source_of(program, context.limits.source_bytes)
        if problem is not None:
            return problem
        payload = program_payload(source, context)
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

    async def prepare(self) -> None:
        """Make the interpreter now, so that the first program need not wait for it.

        Do nothing if there is one. Raise `UsageError` if the session is closed, `SandboxError` if a
        dropped interpreter cannot be rebuilt, and `GuestBroken` if the guest does not start.
        """
        async with self._turn:
            await self._in_thread(self._namespace.live_instance)

    async def add_wheel(self, data: bytes, *, name: str) -> Sequence[str]:
        """Make a pure-Python wheel importable. Return the names of its modules.

        Raise `UsageError` if it is refused, here or by the guest, or if the session is closed.
        Raise `GuestBroken` if the guest fails, and `SandboxError` if it cannot be rebuilt.
        """
        async with self._turn:
            await self._in_thread(lambda: check_wheel(data, name=name))
            added = await self._in_thread(lambda: self._namespace.call(WHEEL, data))
        if added.modules is None:
            why = added.message[:_WHY_CHARS_MAX] or "the guest gave no reason"
            raise UsageError(f"{name} cannot be added to a session: {why}")
        return added.modules

    async def close(self) -> None:
        """Cancel the running program, wait for its end, and free the interpreter.

        Closing twice is harmless.
        """
        self.cancel()
        async with self._turn:
            self._namespace.close()

    # -- snapshots -----------------------------------------------------------------------------

    async def snapshot(self, name: str) -> SnapshotId:
        """Store the current state under a name.

        Raise `InvalidName` for an unusable name, `UsageError` if it is in use, and
        `MaxSnapshotsReached` if the session already has 10 snapshots. Raise what `image` raises.
        """
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
        """Load a snapshot of this session, by its name or by `name:id`.

        Raise `SnapshotNotFound` if there is none, `StoreError` if the store cannot read it, and
        `SnapshotMismatch` if it cannot be loaded; the state is unchanged then.
        """
        snapshot, image = self._sandbox.store.load(self._session_id, name)
        await self.load(image)
        return snapshot

    def snapshots(self) -> Sequence[SnapshotId]:
        """Return the snapshots of this session, sorted by id."""
        return self._sandbox.store.list(self._session_id)

    def delete_snapshot(self, name: str) -> None:
        """Delete a snapshot of this session. Raise `SnapshotNotFound` if there is none."""
        self._sandbox.store.delete(self._session_id, name)

    async def image(self) -> Image:
        """Return the current state as an image. The next rebuild starts from it.

        Raise `SandboxError` if a dropped interpreter cannot be rebuilt, `GuestBroken` if the guest
        does not start, and `UsageError` if the session is closed.
        """
        async with self._turn:
            return await self._in_thread(self._namespace.checkpoint)

    async def load(self, image: Image) -> None:
        """Replace the state by an image; it is loaded into an instance at the next use.

        Raise `SnapshotMismatch` if it does not fit; the state is unchanged then.
        """
        async with self._turn:
            self._namespace.load(image)

    async def digest(self) -> str:
        """Return the SHA-256 of memory and state, in hex: equal digests mean equal interpreters.

        A dropped interpreter is rebuilt first; raise what `image` raises.
        """
        async with self._turn:
            return await self._in_thread(lambda: self._namespace.live_instance().digest())

    # -- in a program thread -------------------------------------------------------------------

    def _run(
        self,
        execution: Execution,
        payload: bytes,
        context: ExecutionContext,
        host: Host,
        output: ProgramOutput,
    ) -> ExecutionResult:
        """Run a prepared program in this thread, and keep or discard the instance afterwards.

        It is discarded if the program did not end by itself, or the host failed. A broken
        interpreter is a result, with the stop `trap`. Raise what `host` raises, and what
        `Namespace.prepare` raises otherwise.
        """
        namespace = self._namespace
        seconds_max = max(_PREPARE_SECONDS_LEAST, context.deadline_ms / 1000)
        try:
            instance = namespace.prepare(
                context.limits,
                host.names,
                seconds_max=None if context.rerun is not None else seconds_max,
            )
        except GuestBroken as error:
            return broken_result(str(error))
        began = time.monotonic()
        ended: BaseException | None = None
        try:
            with self._sandbox.guest.ticker:
                execution.run(instance, RUN, payload)
        except (Stopped, Ended, BadPointer) as error:
            ended = error
            recover_output(instance, namespace.windows, output)
        except BaseException:
            # The host failed, not the program. Its changes are undone as after any interruption.
            namespace.drop()
            raise
        # The time in which recorded calls were repeated does not count.
        took_ms = round((time.monotonic() - max(began, execution.live_since)) * 1000)
        result = result_of(
            instance, execution, output, ended=ended, context=context, took_ms=took_ms
        )
        instance.refuse_calls()
        if result.stop != "finished":
            namespace.drop()
        elif execution.answers is None:
            namespace.checkpoint()
        else:
            fuel = result.charge.fuel
            namespace.add_program(
                payload, limits=context.limits, fuel=fuel, answers=execution.answers
            )
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
        """Return the streams for one program. Both files share a name that is made on demand."""
        folder = self._sandbox.output_directory
        stem = functools.cache(lambda: f"{context.file_stem}-{new_id()}")

        rerun = context.rerun
        in_memory = rerun is not None and rerun.calls is None
        lost = ("", "") if rerun is None else rerun.lost

        def stream(suffix: str, keep: bool, lost: str) -> OutputStream:
            return OutputStream(
                inline_max=context.max_output_bytes,
                place=None if folder is None else lambda: folder / f"{stem()}.{suffix}",
                keep=keep,
                whole=bytearray() if in_memory else None,
                lost=lost or None,
            )

        return ProgramOutput(
            stdout=stream("stdout", context.capture_stdout, lost[0]),
            stderr=stream("stderr", context.capture_stderr, lost[1]),
            bytes_max=context.limits.output_bytes,
        )

    async def _in_thread(
        self, work: Callable[[], Result], *, on_cancel: Callable[[], None] | None = None
    ) -> Result:
        """Run `work` in a program thread and wait for its end, even if the task is cancelled.

        A cancel calls `on_cancel`, waits for the thread, and is raised then. The thread may be
        inside the guest: to continue earlier would let two threads into one store of the engine,
        which crashes the process.
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
                    await begun.wait_until_over()
            raise


async def _settle(task: asyncio.Task[bytes] | None) -> None:
    """Cancel the host function that the program left running, and wait up to 1 s for its end."""
    if task is not None and not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=1.0)


_wasm_session_is_a_sandbox_session: type[SandboxInterpreter] = WasmInterpreter


# The self-test: try on this machine what the WASM sandbox claims to do.


_LIMITS = Limits()
_Probe = Callable[["WasmInterpreter"], Awaitable[str | None]]


async def run_self_test(sandbox: WasmSandbox) -> Sequence[tuple[str, str | None]]:
    """Test each capability in a new session. Return it with None, or with what went wrong.

    Errors of `open` are raised, not returned.
    """
    outcomes = []
    for capability, probe in _PROBES:
        session = await sandbox.open(session_id=new_id())
        try:
            why = await probe(session)
        except TallystickError as error:
            why = f"{error.code}: {error}"
        finally:
            await session.close()
        outcomes.append((capability, why))
    return outcomes


async def _run(
    session: WasmInterpreter, program: str, *, limits: Limits = _LIMITS, **more: int
) -> ExecutionResult:
    context = ExecutionContext(
        session_id=session.session_id, limits=limits, timeout_ms=more.get("timeout_ms", 10_000)
    )
    return await session.execute(program, context=context, host=_ECHO)


async def _python(session: WasmInterpreter) -> str | None:
    result = await _run(
        session, "import json, asyncio\nawait asyncio.sleep(1)\njson.dumps([6 * 7])"
    )
    return None if result.value == "'[42]'" else f"gave {result.value!r}"


async def _limits(session: WasmInterpreter) -> str | None:
    await _run(session, "kept = 1")
    stops = [
        (await _run(session, "while True: pass", limits=Limits(fuel=50_000_000))).stop,
        (await _run(session, "while True: pass", timeout_ms=50)).stop,
        (await _run(session, "x = []\nwhile True: x.append(bytes(1 << 20))")).stop,
        (await _run(session, "kept")).value,
    ]
    return None if stops == ["fuel", "wall", "memory", "1"] else f"gave {stops}"


async def _isolation(session: WasmInterpreter) -> str | None:
    tried = (
        "def tried(f):\n    try:\n        f()\n"
        "    except OSError as error:\n        return type(error).__name__\n"
        "import os, socket, subprocess\n"
        "[tried(lambda: open('/etc/passwd')), tried(lambda: socket.socket()),"
        " tried(lambda: subprocess.run(['id'])), dict(os.environ)]"
    )
    result = await _run(session, tried)
    wanted = "['SandboxViolation', 'SandboxViolation', 'SandboxViolation', {}]"
    return None if result.value == wanted else f"gave {result.value or result.error}"


async def _snapshots(session: WasmInterpreter) -> str | None:
    await _run(session, "value = 1")
    image = await session.image()
    await _run(session, "value = 2")
    await session.load(image)
    result = await _run(session, "value")
    return None if result.value == "1" else f"gave {result.value!r}"


async def _bridge(session: WasmInterpreter) -> str | None:
    result = await _run(session, "echo({'a': [1, None, 'ü']})")
    return None if result.value == "{'a': [1, None, 'ü']}" else f"gave {result.value!r}"


def _echo(value: object) -> object:
    """Return what was given."""
    return value


_ECHO = HostTable([HostFunction(name="echo", function=_echo, local=True)])

_PROBES: tuple[tuple[str, _Probe], ...] = (
    ("PythonExecution", _python),
    ("ResourceLimits", _limits),
    ("Isolation", _isolation),
    ("Snapshots", _snapshots),
    ("HostCalls", _bridge),
)


# The WASM sandbox: the compiled guest, and the objects that its sessions share.


# The default start of a session's clock. It is fixed, so that a program always sees the same times.
CLOCK_NS = FIXED_CLOCK_NS
_MEMORY_BYTES_MAX = 2 * 1024 * 1024 * 1024


class WasmSandbox:
    """Open sessions, which share compiled code, slots and threads but no state of programs.

    One sandbox per process is enough.
    """

    name = "wasm"

    def __init__(
        self,
        guest: Guest,
        *,
        store: SnapshotStore,
        output_directory: Path | None,
        active_max: int,
    ) -> None:
        self.guest = guest
        self.store = store
        self.output_directory = output_directory
        self.memory_bytes_max = _MEMORY_BYTES_MAX
        self.slots = Slots(active_max)
        self.cancels = CancellationTokens()
        self.threads = ProgramThreads()
        # Never run: its memory is the fresh one that checkpoints are compared with.
        self.pristine = self.new_instance()
        self.memory_bytes_least = self.pristine.memory_size()

    @classmethod
    def load(
        cls,
        *,
        cache: Path,
        store: SnapshotStore | None = None,
        output_directory: Path | None = None,
        active_max: int | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> WasmSandbox:
        """Load the guest that ships with the package, and compile it if the cache lacks it.

        `cache` is the directory of compiled code. Output over the inline limit goes to files in
        `output_directory`; without that, it is lost. Without `store`, snapshots are kept in memory.
        `active_max` is the number of programs that are active at once: by default one per
        processor, and at least two. `say` is called with each line for the user. Raise
        `GuestMissing` if the guest image cannot be used.
        """
        return cls(
            load_guest(load_image(), cache=cache, say=say),
            store=store if store is not None else MemorySnapshotStore(),
            output_directory=output_directory,
            active_max=active_max or max(2, os.cpu_count() or 1),
        )

    async def open(
        self, *, session_id: str, seed: int = 0, clock_ns: int = CLOCK_NS
    ) -> WasmInterpreter:
        """Open a session. Its interpreter is made for its first program, or by `prepare`.

        Its random numbers come from `seed`. `clock_ns` is the start of its clock, in nanoseconds
        since 1970. Raise `InvalidLimit` if that is negative or too late.
        """
        if not 0 <= clock_ns <= CLOCK_LATEST_NS:
            raise InvalidLimit(
                field="clock_ns",
                given=clock_ns,
                why=f"between 0 and {CLOCK_LATEST_NS:,}, which is in the year 2260",
            )
        return WasmInterpreter(self, session_id=session_id, seed=seed, clock_ns=clock_ns)

    def cancel(self, cancellation_token: str) -> bool:
        """Cancel the program with this token in its context. Return False if there is none."""
        return self.cancels.cancel(cancellation_token)

    async def self_test(self) -> Sequence[tuple[str, str | None]]:
        """Try each capability here. Return it with None, or with what went wrong."""
        return await run_self_test(self)

    def new_instance(self) -> Instance:
        """Return a fresh instance of the guest, in which nothing has run."""
        return Instance(self.guest, memory_bytes_max=self.memory_bytes_max)

    async def close(self) -> None:
        """Stop the threads and the ticker, and free the fresh instance.

        Wait up to 1 s for each thread. Sessions are not closed; close them first.
        """
        self.threads.close()
        self.pristine.close()
        self.guest.close()


_wasm_sandbox_is_a_sandbox: type[Sandbox] = WasmSandbox
