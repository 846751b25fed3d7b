"""A session of the process sandbox: run programs and commands over one set of files."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from tallystick.core.errors import (
    MaxSnapshotsReached,
    SandboxError,
    SnapshotNotFound,
    StoreError,
    UsageError,
)
from tallystick.sandbox.output import ProgramOutput
from tallystick.sandbox.port import (
    ExecutionContext,
    ExecutionResult,
    Host,
    HostNames,
    SandboxInterpreter,
    read_report,
)
from tallystick.sandbox.process.inside.layers import WORK
from tallystick.sandbox.process.launch import Box
from tallystick.sandbox.process.proxy import PROXY_PORT, NetworkGrant, Proxy
from tallystick.sandbox.process.running import (
    Command,
    Program,
    Verdict,
    describe_end,
    exit_code_of,
    memory_verdict,
    output_for,
    result_of,
    stop_verdict,
    trap_verdict,
    verdict_of_program,
)
from tallystick.sandbox.process.settings import check_context
from tallystick.sandbox.snapshot import SNAPSHOTS_MAX, SnapshotId, check_snapshot_name
from tallystick.sandbox.wasm.engine import BadPointer
from tallystick.sandbox.wasm.execution import (
    Execution,
    Stopped,
    broken_result,
    names_payload,
    program_payload,
    source_of,
)
from tallystick.sandbox.wasm.instance import Ended, Instance
from tallystick.storage.clock import new_id, now_ms
from tallystick.storage.private_file import make_private, open_new

if TYPE_CHECKING:
    from tallystick.sandbox.process.sandbox import ProcessSandbox


# The start of a program or command: its directory and its environment.


# The variables of every environment; a context may replace them.
ENVIRONMENT = {
    "HOME": WORK,
    "LANG": "C.UTF-8",
    "LOGNAME": "user",
    "MALLOC_ARENA_MAX": "2",
    "SHELL": "/bin/bash",
    "TMPDIR": "/tmp",
    # The time zone of the host is not given to programs: every box has this one.
    "TZ": "UTC",
    "USER": "user",
}
_PROXY = f"http://127.0.0.1:{PROXY_PORT}"
# The names of a box for itself.
_LOCAL = ("localhost", "127.0.0.1", "::1")


def proxy_variables(grant: NetworkGrant) -> dict[str, str]:
    """Return the variables by which programs find the proxy; both spellings are in use.

    A program reaches its own servers without the proxy, by the names of the box for itself. If one
    of these names is granted, it means the host: then all of them go through the proxy, and a
    program reaches its own servers by socket alone. A port cannot be left out in `no_proxy`.
    """
    spellings = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    names_host = any(entry.rpartition(":")[0] in _LOCAL for entry in grant.private)
    return {
        **dict.fromkeys(spellings, _PROXY),
        "no_proxy": "" if names_host else ",".join(_LOCAL),
    }


_SHELL_VARIABLES = frozenset({"PWD", "OLDPWD", "SHLVL", "_"})


class ShellState(msgspec.Struct, frozen=True, kw_only=True):
    """The state that one command leaves for the next: its directory and exported variables."""

    where: str = WORK
    exported: Mapping[str, str] = {}

    def after(
        self,
        left: tuple[str, Mapping[str, str]] | None,
        *,
        given: Mapping[str, str],
        base: Mapping[str, str],
    ) -> ShellState:
        """Return the state after a command that left `left`; the same state if that is None.

        A variable of `base`, the environment of every command, is kept only if it was changed. For
        names in `given`, which were set for this command alone, the earlier export comes back
        unless the command changed it.
        """
        if left is None:
            return self
        where, variables = left
        exported = {
            name: value
            for name, value in variables.items()
            if name not in _SHELL_VARIABLES and base.get(name) != value
        }
        for name in given:
            if name in self.exported and name not in exported:
                exported[name] = self.exported[name]
        return ShellState(where=where, exported=exported)


def session_directory(working_dir: str) -> str:
    """Return the path in the box of a directory that is given from the working directory.

    Raise `UsageError` if it is absolute, or has a '..' or a NUL.
    """
    path = PurePosixPath(working_dir)
    if path.is_absolute() or ".." in path.parts or "\0" in working_dir:
        raise UsageError(
            f"working_dir {working_dir[:80]!r}: a path from the session's working directory is "
            "needed, without '..'"
        )
    return str(PurePosixPath(WORK) / path)


# A session on disk, to be opened again elsewhere: its files, its variables, and the shell's state.
#
# It is a directory with `files.tar` and `session.json`. Their contents come from a box and go back
# into one. The host itself reads only the format, the shell's state, and names.


_FORMAT = 1
_VARIABLES_BYTES_MAX = 256 * 1024 * 1024
_SECONDS = 60.0
_CHUNK_BYTES = 1 << 20
_LISTING_BYTES_MAX = 64 << 20


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """A saved session, without its files.

    `kept` has the Python variables, encoded by the box, and `imported` the names of modules by
    variable. `refused` gives the reason for each variable that was not kept.
    """

    format: int = _FORMAT
    shell: ShellState = ShellState()
    kept: dict[str, str] = {}
    imported: dict[str, str] = {}
    refused: dict[str, str] = {}
    files_left_out: int = 0


class _Variables(msgspec.Struct, frozen=True):
    kept: dict[str, str]
    imported: dict[str, str]
    refused: dict[str, str]


def save_session(box: Box, directory: Path, *, shell: ShellState, bytes_max: int) -> Saved:
    """Write a session to a new directory, whole or not at all.

    The directory above is made if it is missing. Raise `UsageError` if the directory exists, and
    `StoreError` if it cannot be made or written. Raise `SandboxError` if the box fails, or sends
    over `bytes_max` of files or 256 MiB of variables.
    """
    if directory.exists():
        raise UsageError(f"{directory} already exists; name a new directory")
    made = directory.with_name(f".{directory.name}.{new_id()}")
    try:
        make_private(made.parent)
        made.mkdir(mode=0o700)
        variables = bytearray()
        _read_pipe(box, {"do": "pack_variables"}, variables.extend, _VARIABLES_BYTES_MAX)
        try:
            found = msgspec.json.decode(bytes(variables), type=_Variables)
        except (msgspec.MsgspecError, UnicodeError):
            raise SandboxError("the interpreter did not give its variables") from None
        with open(open_new(made / "files.tar"), "wb") as file:
            _read_pipe(box, {"do": "pack_files"}, file.write, bytes_max)
            file.flush()
            os.fsync(file.fileno())
        answer, _ = box.receive("packed")
        if not answer["packed"]:
            raise SandboxError(f"the files could not be packed: {answer.get('why')}")
        saved = Saved(
            shell=shell,
            kept=found.kept,
            imported=found.imported,
            refused=found.refused,
            files_left_out=int(answer.get("left_out", 0)),
        )
        # `json`, not `msgspec`: the shell's directory and variables may hold bytes that are not
        # text, as lone surrogates.
        text = json.dumps(msgspec.to_builtins(saved))
        (made / "session.json").write_bytes(text.encode())
        made.rename(directory)
    except OSError as error:
        raise StoreError(f"{directory}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return saved


def read_listing(box: Box, order: Mapping[str, Any], known: bytes) -> bytes:
    """Return the listing of the working directory that the box writes.

    `known` has a line for each file whose content is not wanted. Raise `SandboxError` if the box
    fails, or sends over 64 MiB more than the `bytes_max` of the order.
    """
    written = bytearray()
    with open(os.memfd_create("known"), "w+b") as file:
        file.write(known)
        file.flush()
        bytes_max = order["bytes_max"] + _LISTING_BYTES_MAX
        _read_pipe(box, order, written.extend, bytes_max, more=[file.fileno()])
    answer, _ = box.receive("packed")
    if not answer["packed"]:
        raise SandboxError(f"its files could not be listed: {str(answer.get('why'))[:200]}")
    return bytes(written)


def _read_pipe(
    box: Box,
    order: Mapping[str, Any],
    take: Callable[[bytes], object],
    bytes_max: int,
    *,
    more: Sequence[int] = (),
) -> None:
    """Let the box write into a pipe, and pass what arrives to `take`, up to its end.

    `more` are further descriptors for the box. Raise `SandboxError` if it pauses once 60 s are
    over, or sends more than `bytes_max`; what the box started for this is ended then.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    until, count = time.monotonic() + _SECONDS, 0
    try:
        try:
            box.send(order, [writing, *more])
        finally:
            os.close(writing)
        poll = select.poll()
        poll.register(reading, select.POLLIN)
        while True:
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                raise SandboxError("the session did not give what it holds in time")
            data = os.read(reading, _CHUNK_BYTES)
            if not data:
                return
            count += len(data)
            if count > bytes_max:
                raise SandboxError(f"the session holds more than {bytes_max:,} bytes")
            take(data)
    except SandboxError:
        box.send({"do": "drop"})
        box.receive("dropped")
        raise
    finally:
        os.close(reading)


def load_session(box: Box, directory: Path) -> Saved:
    """Fill a new box from a saved session, and return it without its files.

    Variables that cannot be loaded in the box are left out. Raise `StoreError` if the directory is
    no saved session or its files cannot be put back, and `SandboxError` if the box is gone.
    """
    try:
        text = (directory / "session.json").read_bytes()
        saved = msgspec.convert(json.loads(text), type=Saved)
        files = os.open(directory / "files.tar", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StoreError(f"{directory}: {error.strerror or error}") from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise StoreError(f"{directory}: not a saved session: {error}") from None
    try:
        if saved.format != _FORMAT:
            raise StoreError(f"{directory}: format {saved.format}; this version reads {_FORMAT}")
        box.send({"do": "unpack_files"}, [files])
        answer, _ = box.receive("unpacked")
    finally:
        os.close(files)
    if not answer["unpacked"]:
        raise StoreError(f"{directory}: the files cannot be put back: {answer.get('why')}")
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        box.send({"do": "unpack_variables"}, [reading])
    finally:
        os.close(reading)
    with open(writing, "wb") as file:
        file.write(msgspec.json.encode({"kept": saved.kept, "imported": saved.imported}))
    box.receive("begun")
    box.send({"do": "keep"})
    if not box.receive("kept")[0]["kept"]:
        raise StoreError(f"{directory}: the variables cannot be put back")
    return saved


# A session of the process sandbox: Python programs and shell commands over the same files.


Result = TypeVar("Result")


class _KeptSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The host's part of a snapshot; files and variables are in the box."""

    id: SnapshotId
    bound: HostNames
    shell: ShellState
    seed: int | None


class ProcessInterpreter:
    """One box that runs programs and commands one after another; a call waits for the last one."""

    def __init__(
        self,
        sandbox: ProcessSandbox,
        box: Box,
        *,
        session_id: str,
        seed: int | None,
        proxy: Proxy | None = None,
    ) -> None:
        self._sandbox = sandbox
        self._box = box
        self._proxy = proxy
        self._session_id = session_id
        # Only until a program has ended by itself: from then on, the state of the random numbers is
        # in the namespace.
        self._seed: int | None = seed
        self._bound = HostNames()
        self._shell = ShellState()
        self._kept: dict[str, _KeptSnapshot] = {}
        self._execution: Execution | None = None
        self._turn = asyncio.Lock()
        self._closed = False

    @property
    def session_id(self) -> str:
        return self._session_id

    @property
    def box_pid(self) -> int:
        """The id of the process outside of the box that waits for the end of its processes."""
        return self._box.waiter

    @property
    def shell(self) -> ShellState:
        """The directory in which the next command starts, and its exported variables."""
        return self._shell

    # -- programs and commands -----------------------------------------------------------------

    async def execute(
        self, program: str | bytes, *, context: ExecutionContext, host: Host
    ) -> ExecutionResult:
        """Run one Python program. Its own failure is a result.

        Raise `NotSupported`, `InvalidLimit` or `UsageError` for a context that no box can run.
        Raise `UsageError` if the session is closed or the cancellation token is in use,
        `SandboxError` if the sandbox fails, and what `host` raises. If the whole box has ended,
        that is a result with the stop `trap`.
        """
        where = self._check(context)
        source, problem = source_of(program, context.limits.source_bytes)
        if problem is not None:
            return problem
        environment = {**self._environment(), **context.environment}
        payload = program_payload(source, context.with_env(environment))

        def run(execution: Execution, output: ProgramOutput) -> ExecutionResult:
            return self._run_program(execution, output, payload, context, host, where)

        return await self._perform(run, context, host)

    async def command(
        self, text: str | bytes, *, context: ExecutionContext, host: Host
    ) -> ExecutionResult:
        """Run one command of bash, in the last directory and with the last exported variables.

        Raise what `execute` raises, and `UsageError` for a command with a NUL.
        """
        where = self._check(context)
        source, problem = source_of(text, context.limits.source_bytes)
        if problem is not None:
            return problem
        if b"\0" in source:
            raise UsageError("a command holds no NUL")

        def run(execution: Execution, output: ProgramOutput) -> ExecutionResult:
            return self._run_command(execution, output, source, context, where)

        return await self._perform(run, context, host)

    def cancel(self) -> None:
        """Stop the running program or command, if there is one. Safe to call from any thread."""
        execution = self._execution
        if execution is not None:
            execution.cancel()

    async def close(self) -> None:
        """End every process of the session and free its files. Closing twice is harmless.

        A running program is cancelled first, and its end is waited for.
        """
        self.cancel()
        async with self._turn:
            if not self._closed:
                self._closed = True
                await self._in_thread(self._end)
                self._sandbox.forget(self)

    # -- snapshots -----------------------------------------------------------------------------

    async def snapshot(self, name: str) -> SnapshotId:
        """Save files, Python's variables and the shell's state under a name, inside the box.

        The snapshot lives as long as the session. Processes that are still running continue, but
        cannot write to the working directory any more: they keep the files of the snapshot. Raise
        `UsageError` if the name is in use, or a file is open for writing; `InvalidName`,
        `MaxSnapshotsReached` after 10 snapshots, or `SandboxError` if it fails.
        """
        check_snapshot_name(name)
        async with self._turn:
            if name in self._kept:
                raise UsageError(f"the session has a snapshot {name!r}; delete it first")
            if len(self._kept) >= SNAPSHOTS_MAX:
                raise MaxSnapshotsReached(limit=SNAPSHOTS_MAX)
            made = SnapshotId(
                id=new_id(), name=name, session_id=self._session_id, created_at=now_ms()
            )
            await self._in_thread(lambda: self._change("freeze", name))
            self._kept[name] = _KeptSnapshot(
                id=made, bound=self._bound, shell=self._shell, seed=self._seed
            )
            return made

    async def restore(self, name: str) -> SnapshotId:
        """Restore a snapshot of this session, by its name or by `name:id`.

        Processes that are still running are ended. Later snapshots stay. Raise `SnapshotNotFound`
        if there is no such snapshot, and `SandboxError` if it fails.
        """
        async with self._turn:
            kept = self._find(name)
            await self._in_thread(lambda: self._change("restore", kept.id.name))
            self._bound, self._shell, self._seed = kept.bound, kept.shell, kept.seed
            return kept.id

    def snapshots(self) -> Sequence[SnapshotId]:
        """Return the snapshots of this session, sorted by id."""
        return sorted((kept.id for kept in self._kept.values()), key=lambda each: each.id)

    async def delete_snapshot(self, name: str) -> None:
        """Delete a snapshot of this session.

        Raise `SnapshotNotFound` if there is none, and `SandboxError` if the box fails.
        """
        async with self._turn:
            kept = self._find(name)
            await self._in_thread(lambda: self._change("forget", kept.id.name))
            del self._kept[kept.id.name]

    async def save(self, directory: Path) -> Saved:
        """Write files, shell state and variables to a new directory, to open elsewhere.

        Variables that cannot be kept are named in the result, each with the reason. Raise what
        `save_session` raises.
        """
        async with self._turn:
            return await self._in_thread(
                lambda: save_session(
                    self._box,
                    directory,
                    shell=self._shell,
                    bytes_max=2 * self._sandbox.settings.disk_bytes,
                )
            )

    async def list_files(self, known: bytes, *, bytes_max: int, path_bytes_max: int) -> bytes:
        """Return the listing of the working directory, as the box writes it. Hostile until parsed.

        `known` has a line for each file whose content is not wanted. The contents of the others
        follow, from the smallest on, until all files together, known ones included, would exceed
        `bytes_max`. Files with a path of over `path_bytes_max` are left out. Raise `SandboxError`
        if the box fails.
        """
        order = {"do": "list_files", "bytes_max": bytes_max, "path_bytes_max": path_bytes_max}
        async with self._turn:
            return await self._in_thread(lambda: read_listing(self._box, order, known))

    async def load(self, directory: Path) -> Saved:
        """Load a saved session. Only for a session that has run nothing yet.

        Raise what `load_session` raises.
        """
        async with self._turn:
            saved = await self._in_thread(lambda: load_session(self._box, directory))
            self._shell = saved.shell
            return saved

    def _find(self, name: str) -> _KeptSnapshot:
        for kept in self._kept.values():
            if name in (kept.id.name, str(kept.id)):
                return kept
        raise SnapshotNotFound(name=name)

    def _change(self, what: str, name: str) -> None:
        answer = self._ask({"do": what, "name": name}, "done")
        if answer.get("held"):
            raise UsageError(f"no snapshot now: {answer['held']}")
        if not answer["done"]:
            raise SandboxError(f"snapshot {name!r}: {answer.get('why')}")

    # -- in a program thread -------------------------------------------------------------------

    def _run_program(
        self,
        execution: Execution,
        output: ProgramOutput,
        payload: bytes,
        context: ExecutionContext,
        host: Host,
        where: str | None,
    ) -> ExecutionResult:
        names = host.names
        program = Program(
            self._box,
            names=lambda: names_payload(self._bound, names),
            bound=names.key == self._bound.key and names.key != "",
            memory_bytes=context.limits.memory_bytes,
            where=where,
            seed=self._seed,
        )
        began = time.monotonic()
        ended = self._invoke(execution, program, payload)
        room = context.limits.output_bytes - output.bytes_total
        said = None if ended is not None else read_report(execution.result, bytes_max=room)
        verdict = verdict_of_program(said, ended, memory_bytes=context.limits.memory_bytes)
        peak = 0
        if verdict.stop == "finished":
            kept = self._ask({"do": "keep"}, "kept")
            peak = kept["memory_bytes"]
            if not kept["kept"]:
                verdict = trap_verdict("the program gave a result and went on")
        if verdict.stop == "finished":
            self._bound, self._seed = names, None
        else:
            status, memory, peak = self._drop()
            if isinstance(ended, Ended):
                verdict = trap_verdict(f"the interpreter ended first: {describe_end(status)}")
            if memory is not None:
                verdict = memory_verdict(memory)
        flags = {"namespace_lost": program.lost, "processes_ended": program.swept}
        return result_of(
            verdict,
            execution,
            output,
            context=context,
            took_ms=_since(began),
            memory_bytes=peak,
            flags=flags,
        )

    def _run_command(
        self,
        execution: Execution,
        output: ProgramOutput,
        source: bytes,
        context: ExecutionContext,
        where: str | None,
    ) -> ExecutionResult:
        given = {**self._environment(), **self._shell.exported, **context.environment}
        order = {
            "environment": given,
            "where": where or self._shell.where,
            "memory_bytes": context.limits.memory_bytes,
        }
        # Names and directories may hold bytes that are no text.
        command = Command(
            self._box,
            order=json.dumps(order).encode(),
            memory_bytes=context.limits.memory_bytes,
        )
        began = time.monotonic()
        ended = self._invoke(execution, command, source)
        if ended is not None:
            verdict = stop_verdict(ended)
            self._drop()
        elif command.memory is not None:
            verdict = memory_verdict(command.memory)
        else:
            assert command.status is not None
            verdict = Verdict(exit_code=exit_code_of(command.status))
            base = {**self._environment(), **context.environment}
            self._shell = self._shell.after(
                command.final_state(), given=context.environment, base=base
            )
        return result_of(
            verdict, execution, output, context=context, took_ms=_since(began), flags={}
        )

    def _invoke(
        self, execution: Execution, running: Program | Command, payload: bytes
    ) -> BaseException | None:
        """Run a program to its end. Return the exception that stopped it, None if it ended itself.

        A failure of the host is raised, after what the program started was ended.
        """
        try:
            # It is no WASM instance, but it has all that `Execution` uses of one.
            execution.run(cast("Instance", running), 0, payload)
        except (Stopped, Ended, BadPointer) as error:
            return error
        except BaseException:
            with contextlib.suppress(SandboxError):
                self._drop()
            raise
        return None

    def _end(self) -> None:
        self._box.close()
        if self._proxy is not None:
            self._proxy.close()

    def _drop(self) -> tuple[int | None, int | None, int]:
        """End what the program or command started.

        Return the status of the interpreter, None if unknown, the memory limit that was passed,
        None if none was, and the most bytes that the interpreter had, 0 if unknown. Raise
        `SandboxError` if the box does not answer.
        """
        answer = self._ask({"do": "drop"}, "dropped")
        status, memory = answer["status"], answer["memory"]
        return (
            status if isinstance(status, int) else None,
            memory if isinstance(memory, int) else None,
            answer["memory_bytes"],
        )

    def _ask(self, message: Mapping[str, Any], wanted: str) -> dict[str, Any]:
        self._box.send(message)
        return self._box.receive(wanted)[0]

    # -- small things --------------------------------------------------------------------------

    async def _perform(
        self,
        run: Callable[[Execution, ProgramOutput], ExecutionResult],
        context: ExecutionContext,
        host: Host,
    ) -> ExecutionResult:
        """Run `run` in a program thread, with its output, limits and cancellation token.

        If the box has ended as a whole, return the result `trap`. Otherwise raise `SandboxError`.
        Raise `UsageError` if the session is closed or the token is in use. Output of a program
        without a result is removed.
        """
        async with self._turn:
            if self._closed:
                raise UsageError("the session is closed")
            output = output_for(context, self._sandbox.output_directory)
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
                        lambda: run(execution, output), on_cancel=execution.cancel
                    )
                except SandboxError as error:
                    output.discard()
                    if not self._box.ended:
                        raise
                    return broken_result(f"everything in the session was ended: {error}")
                except BaseException:
                    output.discard()
                    raise
                finally:
                    self._execution = None
                    await _settle(execution.task)

    def _check(self, context: ExecutionContext) -> str | None:
        """Refuse a context that no box can run. Return the directory to start in, or None.

        Raise `NotSupported`, `InvalidLimit` or `UsageError`.
        """
        check_context(context, memory_bytes_max=self._sandbox.settings.memory_bytes_max)
        return None if context.working_dir is None else session_directory(context.working_dir)

    def _environment(self) -> dict[str, str]:
        proxied = {} if self._proxy is None else proxy_variables(self._proxy.grant)
        return {**ENVIRONMENT, **proxied, **self._sandbox.environment}

    async def _in_thread(
        self, work: Callable[[], Result], *, on_cancel: Callable[[], None] | None = None
    ) -> Result:
        """Run `work` in a program thread and wait for its end, even if the task is cancelled.

        A cancel calls `on_cancel`, waits for the thread, and is raised then.
        """
        begun = self._sandbox.threads.run(work)
        try:
            return await begun.outcome
        except asyncio.CancelledError:
            if on_cancel is not None:
                on_cancel()
            while not begun.over:
                with contextlib.suppress(asyncio.CancelledError):
                    await begun.wait_until_over()
            raise


def _since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)


async def _settle(task: asyncio.Task[bytes] | None) -> None:
    """Cancel the host function that the program left running, and wait up to 1 s for its end."""
    if task is not None and not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=1.0)


_: type[SandboxInterpreter] = ProcessInterpreter
