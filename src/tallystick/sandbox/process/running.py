"""Run one program or command in its box, from a thread of the host, and make its result.

`Program` and `Command` have the interface of a WASM instance: `invoke`, and callbacks for calls,
output and ticks. `invoke` returns when the program has ended, and raises if a callback stops it.
Everything from the box may come from a hostile program, so lengths are limited before anything is
kept.
"""

from __future__ import annotations

import abc
import contextlib
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tallystick.sandbox.output import OutputStream, ProgramOutput
from tallystick.sandbox.port import (
    KINDS,
    NOT_RUN,
    ExecutionContext,
    ExecutionResult,
    ProgramCharge,
    ProgramError,
    ProgramReport,
    Stop,
    metadata_of,
)
from tallystick.sandbox.process.inside import messages
from tallystick.sandbox.process.launch import Box
from tallystick.sandbox.wasm.engine import BadPointer
from tallystick.sandbox.wasm.execution import Execution, stop_of
from tallystick.sandbox.wasm.instance import Ended
from tallystick.storage.clock import new_id

# Turn the end of a program or a command into a result.


_SIGNALLED = 128


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The way in which a program or a command ended."""

    stop: Stop = "finished"
    error: ProgramError | None = None
    exit_code: int = 0
    value: str | None = None
    metadata: Mapping[str, object] = {}


def trap_verdict(message: str) -> Verdict:
    """Return the verdict on a program that broke its own interpreter."""
    error = ProgramError(kind=KINDS["trap"], message=message)
    return Verdict(stop="trap", error=error, exit_code=NOT_RUN)


def memory_verdict(memory_bytes: int, *, traceback: str = "") -> Verdict:
    """Return the verdict on a program or command that passed its memory limit, in bytes."""
    message = f"memory: more than {memory_bytes:,} bytes were needed"
    error = ProgramError(kind=KINDS["memory"], message=message, traceback=traceback)
    return Verdict(stop="memory", error=error, exit_code=NOT_RUN)


def stop_verdict(ended: BaseException) -> Verdict:
    """Return the verdict on a program or command that an exception stopped from outside.

    Raise `TypeError` for an exception that does not stop programs.
    """
    stop, message = stop_of(ended)
    error = ProgramError(kind=KINDS[stop], message=message)
    return Verdict(stop=stop, error=error, exit_code=NOT_RUN)


def verdict_of_program(
    said: ProgramReport | None, ended: BaseException | None, *, memory_bytes: int
) -> Verdict:
    """Return the verdict on a Python program, from its report or from what stopped it.

    Without either, it broke its interpreter. A `MemoryError` that it did not catch counts as the
    memory limit. Raise `TypeError` as `stop_verdict` does.
    """
    if ended is not None:
        return stop_verdict(ended)
    if said is None:
        return trap_verdict("the program broke its own interpreter: it gave no result")
    if said.kind == "MemoryError" and not said.ok:
        return memory_verdict(memory_bytes, traceback=said.traceback)
    metadata = metadata_of(said, finished=True)
    if said.ok:
        return Verdict(value=said.value, metadata=metadata)
    error = ProgramError(
        kind=said.kind, message=said.message, traceback=said.traceback, line=said.line
    )
    return Verdict(error=error, exit_code=said.exit & 0xFF or 1, metadata=metadata)


def exit_code_of(status: int) -> int:
    """Return an exit code as shells give it: 128 plus the signal if a signal ended the process.

    `status` is the exit code, or the signal as a negative number.
    """
    return status if status >= 0 else _SIGNALLED - status


def describe_end(status: int | None) -> str:
    """Describe how a process ended, in words. A signal is negative; None is unknown."""
    if status is None:
        return "it is gone"
    if status >= 0:
        return f"it ended itself with exit code {status}"
    try:
        return f"it was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"it was ended by signal {-status}"


def output_for(context: ExecutionContext, folder: Path | None) -> ProgramOutput:
    """Return the streams of one execution. Without `folder`, long output is not kept."""
    stem = f"{context.file_stem}-{new_id()}"

    def stream(suffix: str, keep: bool) -> OutputStream:
        return OutputStream(
            inline_max=context.max_output_bytes,
            place=None if folder is None else lambda: folder / f"{stem}.{suffix}",
            keep=keep,
        )

    return ProgramOutput(
        stdout=stream("stdout", context.capture_stdout),
        stderr=stream("stderr", context.capture_stderr),
        bytes_max=context.limits.output_bytes,
    )


def result_of(
    verdict: Verdict,
    execution: Execution,
    output: ProgramOutput,
    *,
    context: ExecutionContext,
    took_ms: int,
    memory_bytes: int = 0,
    flags: Mapping[str, bool],
) -> ExecutionResult:
    """Return the result of a program or a command that has ended, and close its streams.

    Each name in `flags` that is True is set in the metadata. `took_ms` is the whole time, and
    `memory_bytes` the most that the interpreter had, 0 if unknown.
    """
    streams = (output.stdout, output.stderr)
    kept = context.outputs_before
    stdout = output.stdout.text(kept)
    if kept is not None and output.stdout.path is not None:
        kept += 1
    stderr = output.stderr.text(kept)
    path = next((stream.path for stream in streams if stream.path is not None), None)
    metadata: dict[str, object] = {"backend": "process", **verdict.metadata}
    metadata.update((name, True) for name, so in flags.items() if so)
    if output.stderr.path is not None:
        metadata["stderr_file_path"] = str(output.stderr.path)
    return ExecutionResult(
        stdout=stdout,
        stderr=stderr,
        value=verdict.value,
        exit_code=verdict.exit_code,
        timed_out=verdict.stop in ("wall", "deadline"),
        output_truncated=any(stream.truncated for stream in streams) or verdict.stop == "output",
        output_file_path=None if path is None else str(path),
        error=verdict.error,
        stop=verdict.stop,
        charge=ProgramCharge(
            wall_ms=execution.wall_ms,
            memory_bytes=memory_bytes,
            host_calls=len(execution.calls),
            output_bytes=output.bytes_total,
        ),
        calls=tuple(execution.calls),
        execution_time_ms=took_ms,
        metadata=metadata,
    )


# One program or command in its box, as the thread that runs it sees it.


_TICK_MS = 10
# The limit for answers that a program has not read yet. One answer alone may be longer.
_UNREAD_BYTES_MAX = 64 * 1024 * 1024
_READ_BYTES = 65_536
_RESULT = 3
_RESULT_BYTES_MAX = 1024 * 1024
_STATE_BYTES_MAX = 1024 * 1024
_STREAMS = (1, 2)


class _Invocation(abc.ABC):
    """The common part of a program and a command: streams, callbacks, and the loop that polls."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._over = False
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._outputs: dict[int, int] = {}
        self.request_bytes_max = 0
        self.result_bytes_max = _RESULT_BYTES_MAX
        self.on_call: Callable[[bytes], bytes] = lambda request: b""
        self.on_oversized: Callable[[int], bytes] = lambda length: b""
        self.on_stdio: Callable[[int, bytes], None] = lambda handle, data: None
        self.on_tick: Callable[[], str | None] = lambda: None

    def fuel_used(self) -> int:
        """Return 0, because the instructions of native code are not counted."""
        return 0

    def invoke(self, kind: int, payload: bytes, *, fuel: int) -> None:
        """Run to the end. Raise `Ended` if a tick stops it, or if it ends without a result.

        `on_tick` is called about every 10 ms, or more often. Exceptions of the callbacks are raised
        as they are. Raise `BadPointer` if it breaks the rules of the connection, and `SandboxError`
        if the box is gone. What it started may still run. `kind` and `fuel` are not used.
        """
        with contextlib.ExitStack() as stack:
            self._begin(stack, payload)
            while not self._over:
                for descriptor, event in self._poll.poll(_TICK_MS):
                    handler = self._handlers.get(descriptor)
                    if handler is not None:
                        handler(event)
                reason = self.on_tick()
                if reason is not None:
                    self._drain()
                    raise Ended(reason)
            self._drain()

    @abc.abstractmethod
    def _begin(self, stack: contextlib.ExitStack, payload: bytes) -> None:
        """Start the program. What it needs stays open until the stack is closed.

        Called once, by `invoke`. Raise `Ended` if it cannot be started.
        """

    def _streams(self, stack: contextlib.ExitStack) -> list[int]:
        """Make a pipe for each stream. Return the ends that the program writes to."""
        writing = []
        for handle in _STREAMS:
            reading, theirs = os.pipe2(os.O_CLOEXEC)
            stack.callback(os.close, reading)
            os.set_blocking(reading, False)
            self._outputs[reading] = handle
            self._register(reading, self._on_output(reading))
            writing.append(theirs)
        stack.callback(self._outputs.clear)
        return writing

    def _register(self, descriptor: int, handler: Callable[[int], None]) -> None:
        self._handlers[descriptor] = handler
        self._poll.register(descriptor, select.POLLIN)

    def _forget(self, descriptor: int) -> None:
        if self._handlers.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def _on_output(self, descriptor: int) -> Callable[[int], None]:
        def read(event: int) -> None:
            data = _read(descriptor, _READ_BYTES)
            if data:
                self.on_stdio(self._outputs[descriptor], data)
            elif data is not None:
                self._forget(descriptor)

        return read

    def _drain(self) -> None:
        """Read output that is still in the pipes, at most 64 KiB of each.

        Without that limit, a process that outlives its program could write for ever. Raise what
        `on_stdio` raises.
        """
        for descriptor, handle in self._outputs.items():
            left = _READ_BYTES
            while left > 0:
                data = _read(descriptor, left)
                if not data:
                    break
                left -= len(data)
                self.on_stdio(handle, data)


def _read(descriptor: int, count: int) -> bytes | None:
    """Read what is there: b"" at the end, None if there is nothing yet."""
    try:
        return os.read(descriptor, count)
    except BlockingIOError:
        return None


class Program(_Invocation):
    """A Python program, which exchanges frames with the host.

    `names` encodes the names of its namespace. It is called at the start, unless the namespace has
    them already (`bound`) and is not lost. `where` is the directory to start in, `seed` that of the
    random numbers; with None, both stay as they are.

    `lost` says that the variables of earlier programs were gone. `swept` says that processes had to
    be ended to make room. Both are known once it has started.
    """

    def __init__(
        self,
        box: Box,
        *,
        names: Callable[[], bytes],
        bound: bool,
        memory_bytes: int,
        where: str | None,
        seed: int | None,
    ) -> None:
        super().__init__(box)
        self._names = names
        # True if the namespace already has these names. A namespace that was lost does not.
        self._bound = bound
        self._order = {"do": "run", "memory_bytes": memory_bytes, "where": where, "seed": seed}
        self._channel: socket.socket | None = None
        self._outgoing: list[memoryview] = []
        self._incoming = bytearray()
        self._skip = 0
        self._skipped = 0
        self.lost = self.swept = False

    def _begin(self, stack: contextlib.ExitStack, payload: bytes) -> None:
        ours, theirs = socket.socketpair()
        stack.enter_context(ours)
        ours.setblocking(False)
        writing = self._streams(stack)
        try:
            self._box.send(self._order, [theirs.fileno(), *writing])
        finally:
            theirs.close()
            messages.close_quietly(writing)
        begun, _ = self._box.receive("begun")
        if not begun["begun"]:
            raise Ended("it could not be started")
        self.lost, self.swept = begun["lost"], begun["swept"]
        self._channel = ours
        self._register(ours.fileno(), self._on_channel)
        if self.lost or not self._bound:
            self._write(messages.BIND, self._names())
        self._write(messages.RUN, payload)

    def _write(self, kind: int, body: bytes) -> None:
        """Queue a frame, and send as much of the queue as the socket takes now.

        Raise `Ended` if the program has closed its connection.
        """
        self._outgoing += [memoryview(messages.HEAD.pack(kind, len(body)) + body)]
        self._flush()

    def _flush(self) -> None:
        # Never wait here: a program that does not read would hold this thread, and its tick.
        assert self._channel is not None
        try:
            while self._outgoing:
                sent = self._channel.send(self._outgoing[0], socket.MSG_NOSIGNAL)
                self._outgoing[0] = self._outgoing[0][sent:]
                if not self._outgoing[0]:
                    del self._outgoing[0]
        except BlockingIOError:
            pass
        except OSError:
            raise Ended("it closed its connection") from None
        wanted = select.POLLIN | (select.POLLOUT if self._outgoing else 0)
        self._poll.modify(self._channel, wanted)

    def _on_channel(self, event: int) -> None:
        """Answer the frames that have arrived. Raise `Ended` if the connection is closed.

        Raise `BadPointer` for a frame that breaks the rules, or at a call while over 64 MiB of
        answers are not read. Nothing is read after the result.
        """
        assert self._channel is not None
        if event & select.POLLOUT:
            self._flush()
        # Only room to send was reported: there is nothing to read.
        if not event & ~select.POLLOUT:
            return
        try:
            data = self._channel.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            raise Ended("gone")
        self._incoming += data
        for kind, body in self._frames():
            if kind == messages.CALL:
                # Checked before the call is made, or its effect would happen without an answer.
                if sum(map(len, self._outgoing)) > _UNREAD_BYTES_MAX:
                    raise BadPointer("it asks on, and does not read what it is answered")
                self._write(messages.REPLY, self.on_call(body))
            elif kind == messages.RESULT:
                self.on_stdio(_RESULT, body)
                self._over = True
                return
            else:
                raise BadPointer(f"it sent a frame of kind {kind}")

    def _frames(self) -> Iterator[tuple[int, bytes]]:
        """Yield the complete frames that have arrived. A request that is too long is skipped.

        It is refused once all of it has arrived. Raise `BadPointer` for a result that is too long.
        """
        while True:
            if self._skip:
                gone = min(self._skip, len(self._incoming))
                del self._incoming[:gone]
                self._skip -= gone
                if self._skip:
                    return
                self._write(messages.REPLY, self.on_oversized(self._skipped))
            if len(self._incoming) < messages.HEAD.size:
                return
            kind, length = messages.HEAD.unpack_from(self._incoming)
            if kind == messages.CALL and length > self.request_bytes_max:
                # Its bytes are dropped as they arrive, and then `on_oversized` makes the answer.
                del self._incoming[: messages.HEAD.size]
                self._skip = self._skipped = length
                continue
            if kind != messages.CALL and length > self.result_bytes_max:
                raise BadPointer(f"it sent a frame of {length:,} bytes")
            end = messages.HEAD.size + length
            if len(self._incoming) < end:
                return
            body = bytes(self._incoming[messages.HEAD.size : end])
            del self._incoming[:end]
            yield kind, body


class Command(_Invocation):
    """A command of the shell.

    At the end, `status` is the status of bash, as `exit_code_of` takes it. `memory` is the memory
    limit, in bytes, that the command passed, None if it passed none.
    """

    def __init__(self, box: Box, *, order: bytes, memory_bytes: int) -> None:
        super().__init__(box)
        self._order = order
        self._memory_bytes = memory_bytes
        self._left = bytearray()
        self._left_too_much = False
        self.status: int | None = None
        self.memory: int | None = None

    def _begin(self, stack: contextlib.ExitStack, payload: bytes) -> None:
        writing = self._streams(stack)
        state, theirs = os.pipe2(os.O_CLOEXEC)
        stack.callback(os.close, state)
        os.set_blocking(state, False)
        self._register(state, lambda event: self._on_state(state))
        given = [_memory_file("order", self._order), _memory_file("command", payload)]
        try:
            order = {"do": "command", "memory_bytes": self._memory_bytes}
            self._box.send(order, [*given, *writing, theirs])
        finally:
            messages.close_quietly([*given, *writing, theirs])
        self._register(self._box.keeper.fileno(), lambda event: self._on_keeper(state))

    def _on_state(self, descriptor: int) -> None:
        data = _read(descriptor, _READ_BYTES)
        if data == b"":
            self._forget(descriptor)
        elif data is not None and len(self._left) + len(data) > _STATE_BYTES_MAX:
            self._left_too_much = True
        elif data is not None:
            self._left += data

    def _on_keeper(self, state: int) -> None:
        message, _ = self._box.receive("ended")
        self.status, self.memory = message["ended"], message["memory"]
        self._on_state(state)
        self._over = True

    def final_state(self) -> tuple[str, dict[str, str]] | None:
        """Return the last directory and the exported variables; None if they were not reported.

        None too if the report is cut off or over 1 MiB. Left out are exported functions, names that
        are no identifiers of ASCII, and those that begin with `LD_` or `__tally_`.
        """
        parts = bytes(self._left).split(b"\0")
        if self._left_too_much or len(parts) < 2 or parts[-1]:
            return None
        where, *variables = [os.fsdecode(part) for part in parts[:-1]]
        return where, _variables(variables)


def _variables(entries: list[str]) -> dict[str, str]:
    named: dict[str, Any] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        # Exported functions are left out: a later bash would import them, and they could replace
        # the commands of our own script.
        if equals and _plain(name) and not name.startswith("__tally_"):
            named[name] = value
    return named


def _plain(name: str) -> bool:
    return name.isascii() and name.isidentifier() and not name.startswith("LD_")


def _memory_file(name: str, content: bytes) -> int:
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
