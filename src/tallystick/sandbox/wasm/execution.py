"""Run one program: serve its calls, count what it uses, stop it at a limit, and make its result.

`Execution.run` is called in a program thread and blocks there. While the program waits for the
host, its own time does not count and its slot is free. The deadline still counts, and a cancel
ends the wait.
"""

from __future__ import annotations

import asyncio
import inspect
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from tallystick.core.errors import ReplayDiverged, UsageError
from tallystick.sandbox import scheduling
from tallystick.sandbox.host import Answer, Blocking, call_digest, error_reply
from tallystick.sandbox.output import OutputOverflow, ProgramOutput
from tallystick.sandbox.port import (
    KINDS,
    NOT_RUN,
    CallRecord,
    ExecutionContext,
    ExecutionResult,
    Host,
    HostCall,
    HostNames,
    ProgramCharge,
    ProgramError,
    ProgramReport,
    Stop,
    metadata_of,
    read_report,
)
from tallystick.sandbox.scheduling import SlotRequest, Slots
from tallystick.sandbox.wasm.engine import BadPointer
from tallystick.sandbox.wasm.instance import Ended, Instance

_RESULT = 3
_RESULT_BYTES_MAX = 1024 * 1024
_ERROR_TAG = b"1"[0]
# The engine checks the fuel only where functions and loops begin, so it may notice an overrun some
# units late. A program gets this much more than its limit, and our own check compares the exact
# amount with the limit.
FUEL_MARGIN = 4_096
_NAME_BYTES_MAX = 130
_ANSWER_BYTES_MAX = 8 * 1024 * 1024


class Stopped(Exception):
    """The program was stopped from outside: `stop` says by what, `message` why."""

    def __init__(self, stop: Stop, message: str) -> None:
        super().__init__(message)
        self.stop = stop
        self.message = message


class _Box:
    """A box in which the answer arrives for a program thread that waits."""

    __slots__ = ("abandoned", "arrived", "reply", "task")

    def __init__(self) -> None:
        self.abandoned = False
        self.arrived = threading.Event()
        self.reply: bytes | BaseException | None = None
        self.task: asyncio.Task[bytes] | None = None

    def check(self) -> None:
        """Raise `Stopped` if the program that this host thread works for has stopped waiting."""
        if self.abandoned:
            raise Stopped("cancelled", "the program no longer waits for this call")

    def put(self, reply: bytes | BaseException) -> None:
        self.reply = reply
        self.arrived.set()


class Execution:
    """The execution of one program, from start to end. Each object is used once.

    Coroutines of `host` run on `loop`. `calls` has a record of each call that was answered.
    `answers` has the answers too, or is None once they take over 8 MiB.
    """

    def __init__(
        self,
        *,
        context: ExecutionContext,
        host: Host,
        output: ProgramOutput,
        slots: Slots,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._instance: Instance | None = None
        self._context = context
        self._host = host
        self._output = output
        self._slots = slots
        self._loop = loop
        self._cancelled = False
        self._box: _Box | None = None
        self._slot_request: SlotRequest | None = None
        self._active_since = 0.0
        self._active_before = 0.0
        self._slot_since = 0.0
        self._holding = False
        self._deadline = time.monotonic() + context.deadline_ms / 1000
        self._wall_seconds = context.timeout_ms / 1000
        # Set while the program repeats what is recorded. No time limit counts then.
        self._rerun = context.rerun
        self.live_since = time.monotonic()
        self._stopped: Stopped | None = None
        self.task: asyncio.Task[bytes] | None = None
        self.result: bytes | None = None
        self.calls: list[CallRecord] = []
        # Kept to run the program again if a later one is stopped. None once the replies take over
        # 8 MiB: the namespace is then copied instead.
        self.answers: list[Answer] | None = []
        self._answer_bytes = 0

    # -- from other threads ----------------------------------------------------------------------

    def cancel(self) -> None:
        """End the program, even while it waits. Safe to call from any thread."""
        self._cancelled = True
        request = self._slot_request
        if request is not None:
            request.wake()
        box = self._box
        if box is not None:
            box.arrived.set()

    # -- in the program's thread -----------------------------------------------------------------

    def run(self, instance: Instance, kind: int, payload: bytes) -> None:
        """Run the program to its end, and hold a slot while it is active.

        Raise `Stopped` if it was stopped from outside, and `Ended` or `BadPointer` if it broke its
        interpreter. Errors of the host, such as `ReplayDiverged`, are raised as they are.
        """
        self._instance = instance
        instance.on_call = self._on_call
        instance.on_oversized = self._on_oversized
        instance.on_stdio = self._on_stdio
        instance.on_tick = self._on_tick
        instance.request_bytes_max = self._context.limits.request_bytes
        instance.result_bytes_max = self._result_bytes_max
        try:
            self._check_limits()
            self._resume()
            with scheduling.watched_by(self._check_limits):
                instance.invoke(kind, payload, fuel=self._fuel_max + FUEL_MARGIN)
            self._check_fuel(instance.fuel_used())
        except Ended as ended:
            if self._stopped is not None:
                raise self._stopped from None
            if ended.reason == "out_of_fuel":
                self._check_fuel(self._fuel_max + 1)
            raise
        finally:
            self._pause()

    @property
    def wall_ms(self) -> int:
        """The milliseconds that the program itself was active."""
        return round(self._active_before * 1000)

    def _resume(self) -> None:
        if not self._slots.try_acquire():
            self._queue_up()
        self._holding = True
        self._active_since = self._slot_since = time.monotonic()

    def _queue_up(self) -> None:
        """Wait for a slot. Raise `Stopped` at a cancel or at the deadline."""
        self._slot_request = SlotRequest()
        self._check_limits()
        if not self._slots.acquire(self._slot_request, seconds=self._seconds_left()):
            self._check_limits()
            raise self._stop("deadline", "deadline: it passed while waiting for a slot")
        self._slot_request = None

    def _pause(self) -> None:
        if self._holding:
            self._holding = False
            self._active_before += time.monotonic() - self._active_since
            self._slots.release()

    def _check_limits(self) -> None:
        """Raise `Stopped` if the program was cancelled or a time limit is over.

        While recorded calls are repeated, only a cancel counts. A limit of zero is always over.
        """
        now = time.monotonic()
        if self._cancelled:
            raise self._stop("cancelled", "cancelled")
        if self._rerun is not None:
            return
        if now > self._deadline or not self._context.deadline_ms:
            raise self._stop(
                "deadline", f"deadline: {self._context.deadline_ms:,} ms passed since the start"
            )
        active = self._active_before + (now - self._active_since if self._holding else 0)
        if active > self._wall_seconds or not self._wall_seconds:
            raise self._stop(
                "wall", f"wall: the program was active for {self._context.timeout_ms:,} ms"
            )

    @property
    def _fuel_max(self) -> int:
        limit = self._context.limits.fuel
        return limit if self._rerun is None else min(limit, self._rerun.fuel)

    def _check_fuel(self, used: int) -> None:
        """Raise `Stopped` beyond the fuel limit, `ReplayDiverged` beyond the recorded fuel."""
        limit, most = self._context.limits.fuel, self._fuel_max
        if used > most and most < limit:
            # By the record, the program made its next call or ended at this fuel. Now it did not.
            raise ReplayDiverged(
                index=len(self.calls), field="fuel", recorded=most, now=f"more than {most:,}"
            )
        if used > limit:
            raise self._stop("fuel", f"fuel: all {limit:,} units used")

    def _seconds_left(self) -> float:
        """Return the seconds until the deadline; no limit while recorded calls are repeated."""
        if self._rerun is not None:
            return threading.TIMEOUT_MAX
        return max(0.0, self._deadline - time.monotonic())

    def _begin_live(self) -> None:
        """Continue live after the last recorded answer: start its time, and allow all its fuel."""
        assert self._instance is not None
        self._rerun = None
        self._instance.set_fuel_max(self._fuel_max + FUEL_MARGIN)
        self.live_since = self._active_since = now = time.monotonic()
        self._active_before = 0.0
        self._deadline = now + self._context.deadline_ms / 1000

    def _stop(self, stop: Stop, message: str) -> Stopped:
        self._stopped = Stopped(stop, message)
        return self._stopped

    def _on_tick(self) -> str | None:
        """Check the limits, and pass the slot on if it is used up. Return why to end, or None."""
        try:
            self._check_limits()
        except Stopped as stopped:
            return stopped.stop
        if self._slots.used_up(self._slot_since):
            self._pause()
            try:
                self._resume()
            except Stopped as stopped:
                return stopped.stop
        return None

    def _on_stdio(self, handle: int, data: bytes) -> None:
        """Keep the report or the printed bytes. Raise `Stopped` beyond the output limit."""
        if handle == _RESULT:
            self._check_result(data)
            self.result = data
            return
        try:
            self._output.write(handle, data)
        except OutputOverflow as overflow:
            limit = self._context.limits.output_bytes
            raise self._stop(
                "output", f"output: {overflow.total:,} bytes printed, {limit:,} allowed"
            ) from None

    @property
    def _result_bytes_max(self) -> int:
        """The longest report that is accepted, in bytes. In JSON, an answer may double in size."""
        return _RESULT_BYTES_MAX + 2 * self._context.limits.output_bytes

    def _check_result(self, data: bytes) -> None:
        """Raise `Stopped` if the answer in a report is longer than the output that is left.

        Raise it too if the report itself is longer than `_result_bytes_max`. A short report is not
        decoded for that.
        """
        limit, printed = self._context.limits.output_bytes, self._output.bytes_total
        if len(data) <= min(limit - printed, _RESULT_BYTES_MAX):
            return
        if len(data) > self._result_bytes_max:
            raise self._stop(
                "output", f"output: a result of {len(data):,} bytes; {limit:,} allowed"
            )
        said = read_report(data)
        size = 0 if said is None or said.answer is None else len(said.answer.encode("utf-8"))
        if size > limit - printed:
            raise self._stop(
                "output",
                f"output: an answer of {size:,} bytes after {printed:,} printed; {limit:,} allowed",
            )

    def _on_oversized(self, length: int) -> bytes:
        """Refuse a request that is too long, without reading it.

        It counts as a call, and the refusal is recorded, so a repeated program gets it again.
        """
        limit = self._context.limits.request_bytes
        refused = error_reply(UsageError(f"a request of {length:,} bytes; at most {limit:,}"))
        return self._answer(oversized_request(length), "", lambda call: refused)

    def _on_call(self, request: bytes) -> bytes:
        return self._answer(request, _name_of(request), self._host.serve)

    def _answer(
        self, request: bytes, name: str, serve: Callable[[HostCall], bytes | Awaitable[bytes]]
    ) -> bytes:
        """Answer a call, record it, and return the reply. `serve` makes the answer.

        A reply over the limit is replaced by an error reply. After the last recorded answer, the
        program continues live.
        Raise `Stopped` if it was cancelled, or if the host calls, the fuel or the time is used up.
        Raise `ReplayDiverged` beyond the recorded fuel, and what `serve` raises.
        """
        index = len(self.calls)
        limits = self._context.limits
        if index >= limits.host_calls:
            raise self._stop("host_calls", f"host_calls: all {limits.host_calls:,} used")
        assert self._instance is not None
        fuel = self._instance.fuel_used()
        self._check_fuel(fuel)
        asked = time.monotonic()
        reply = serve(HostCall(index=index, name=name, request=request, fuel=fuel))
        # Work of the host in the program's thread does not count as the program's time.
        self._active_since += time.monotonic() - asked
        if not isinstance(reply, bytes):
            reply = self._wait(reply, name)
        if len(reply) > limits.reply_bytes:
            reply = error_reply(
                UsageError(f"a reply of {len(reply):,} bytes; at most {limits.reply_bytes:,}")
            )
        digest = call_digest(request)
        self._keep(Answer(request_sha256=digest, fuel=fuel, reply=reply))
        self.calls.append(
            CallRecord(
                index=index,
                name=name,
                request_sha256=digest,
                request_bytes=len(request),
                reply_bytes=len(reply),
                fuel=fuel,
                ok=reply[0] != _ERROR_TAG,
            )
        )
        if self._rerun is not None and self._rerun.calls == len(self.calls):
            self._begin_live()
        return reply

    def _keep(self, answer: Answer) -> None:
        self._answer_bytes += len(answer.reply)
        if self.answers is not None:
            self.answers.append(answer)
            if self._answer_bytes > _ANSWER_BYTES_MAX:
                self.answers = None

    # -- waiting ---------------------------------------------------------------------------------

    def _wait(self, answer: Awaitable[bytes] | Blocking, name: str) -> bytes:
        """Wait for an answer without holding a slot, then take a slot again.

        Raise `Stopped` at the deadline or at a cancel, or what the host function raised.
        """
        self._box = box = _Box()
        self._pause()
        if isinstance(answer, Blocking):
            _in_thread(answer, box, name)
        else:
            self._loop.call_soon_threadsafe(self._begin, answer, box)
        # A cancel before the box was set could not wake it. A later one finds the box.
        if self._cancelled:
            box.arrived.set()
        if not box.arrived.wait(self._seconds_left()):
            self._abandon(box)
            waited = self._context.deadline_ms
            raise self._stop(
                "deadline", f"deadline: {waited:,} ms passed while {name!r} had not answered"
            )
        self._box = None
        if self._cancelled:
            self._abandon(box)
            raise self._stop("cancelled", f"cancelled while waiting for {name!r}")
        if isinstance(box.reply, BaseException):
            raise box.reply
        assert box.reply is not None
        self._resume()
        return box.reply

    def _begin(self, answer: Awaitable[bytes], box: _Box) -> None:
        """Start a coroutine on the loop; its end wakes the program. To be called on the loop.

        If its wait was abandoned, it is closed instead.
        """
        if box.abandoned and not isinstance(answer, asyncio.Future):
            # The program has stopped waiting, and the call has not started: it never will.
            if inspect.iscoroutine(answer):
                answer.close()
            return
        task: asyncio.Task[bytes] = asyncio.ensure_future(answer)
        box.task = self.task = task
        task.add_done_callback(lambda done: box.put(_outcome(done)))
        if self._cancelled:
            task.cancel()

    def _abandon(self, box: _Box) -> None:
        """Stop waiting for an answer, and cancel its task on the loop if it has started."""
        box.abandoned = True

        def cancel() -> None:
            if box.task is not None:
                box.task.cancel()

        self._loop.call_soon_threadsafe(cancel)


def stop_of(error: BaseException) -> tuple[Stop, str]:
    """Return the stop and the message for the exception that stopped a program.

    Raise `TypeError` for an exception that does not stop programs.
    """
    if isinstance(error, Stopped):
        return error.stop, error.message
    if isinstance(error, BadPointer):
        return "trap", f"the program broke the rules of the host interface: {error}"
    if isinstance(error, Ended):
        return "trap", _TRAPS.get(error.reason, f"the interpreter was ended: {error.reason}")
    raise TypeError(f"not an end of a program: {error!r}")


_TRAPS = {
    "stack_overflow": "the program recursed too deeply in native code and overflowed the stack",
    "unreachable": "the interpreter aborted",
    "memory_out_of_bounds": "the interpreter read or wrote outside its memory",
}


def _outcome(task: asyncio.Task[bytes]) -> bytes | BaseException:
    if task.cancelled():
        return Stopped("cancelled", "the host function was cancelled")
    return task.exception() or task.result()


def _in_thread(work: Callable[[], bytes], box: _Box, name: str) -> None:
    """Run a blocking function in a thread of its own, for which nothing has to wait.

    If the program stops waiting, the next `scheduling.check` in that thread raises.
    """

    def serve() -> None:
        try:
            with scheduling.watched_by(box.check):
                box.put(work())
        except BaseException as error:
            box.put(error)

    threading.Thread(target=serve, name=f"tally-host-{name}", daemon=True).start()


def oversized_request(length: int) -> bytes:
    """Return the bytes that are recorded in place of a request that was too long to read."""
    return b"oversized:%d" % length


def _name_of(request: bytes) -> str:
    """Return the function's name without decoding the request, which starts as `["name",`.

    Return "" if it does not, or if the name is too long.
    """
    if request[:2] != b'["':
        return ""
    end = request.find(b'"', 2, _NAME_BYTES_MAX)
    return request[2:end].decode("utf-8", "replace") if end > 0 else ""


# Convert between programs and bytes, and between the end of a program and its result.


def source_of(program: str | bytes, bytes_max: int) -> tuple[bytes, ExecutionResult | None]:
    """Return the program as UTF-8 and None, or b"" and the result that says why it cannot run."""
    try:
        source = program if isinstance(program, bytes) else program.encode("utf-8")
        source.decode("utf-8")
    except UnicodeError as error:
        return b"", _error_result("SyntaxError", f"the program is not UTF-8: {error}")
    if len(source) > bytes_max:
        message = f"the program is {len(source):,} bytes long; at most {bytes_max:,}"
        return b"", _error_result("ProgramTooLong", message)
    return source, None


def _error_result(kind: str, message: str) -> ExecutionResult:
    return ExecutionResult(exit_code=1, error=ProgramError(kind=kind, message=message))


def broken_result(message: str) -> ExecutionResult:
    """Return the result of a program that could not start because its interpreter is broken."""
    error = ProgramError(kind=KINDS["trap"], message=message)
    return ExecutionResult(exit_code=NOT_RUN, stop="trap", error=error)


def program_payload(source: bytes, context: ExecutionContext) -> bytes:
    """Encode a program for the guest: a line with its name and environment, then the source.

    In the name, characters that cannot be printed become "?". Without environment variables, that
    part of the line is left out.
    """
    name = "".join(each if each.isprintable() else "?" for each in context.program_name)
    environment = context.environment
    env = b"\0" + msgspec.json.encode(environment) if environment else b""
    return name.encode("utf-8", "replace") + env + b"\n" + source


def names_payload(before: HostNames, after: HostNames) -> bytes:
    """Encode the change of the guest's namespace from the names `before` to those `after`."""
    return msgspec.json.encode(
        {
            "removed": sorted(_all_names(before) - _all_names(after)),
            "functions": after.functions,
            "texts": after.texts,
            "values": after.values,
            "answering": after.answering,
            "views": after.views,
            "files": after.files,
        }
    )


def _all_names(names: HostNames) -> set[str]:
    functions = {each.name.partition(".")[0] for each in names.functions}
    return functions | {each.name for each in names.texts} | set(names.values)


def recover_output(
    instance: Instance, windows: Sequence[tuple[int, int, int]], output: ProgramOutput
) -> None:
    """Write to `output` what a stopped program had printed but not sent.

    The guest's buffers are read from its memory. Sizes that do not fit are skipped, and bytes
    beyond the output limit are dropped.
    """
    for handle, address, size in windows:
        head = instance.read(address, 4)
        if len(head) == 4:
            (count,) = struct.unpack("<I", head)
            if 0 < count <= size:
                try:
                    output.write(handle, instance.read(address + 4, count))
                except OutputOverflow:
                    return


def result_of(
    instance: Instance,
    execution: Execution,
    output: ProgramOutput,
    *,
    ended: BaseException | None,
    context: ExecutionContext,
    took_ms: int,
) -> ExecutionResult:
    """Return the result of a program that has ended. `ended` is what stopped it, None if nothing.

    `took_ms` is the time from start to end, waiting included. Both streams are closed.
    """
    refused = instance.get("grow_refused")
    room = context.limits.output_bytes - output.bytes_total
    said = None if ended is not None else read_report(execution.result, bytes_max=room)
    stop, error, exit_code = _verdict(said, ended, refused=refused, context=context)
    streams = (output.stdout, output.stderr)
    kept = context.outputs_before
    stdout = output.stdout.text(kept)
    if kept is not None and output.stdout.kept:
        kept += 1
    stderr = output.stderr.text(kept)
    path = next((stream.path for stream in streams if stream.path is not None), None)
    metadata: dict[str, Any] = {"backend": "wasm"}
    metadata |= metadata_of(said, finished=stop == "finished")
    if stop in ("wall", "deadline", "cancelled"):
        # The engine keeps part of the fuel count in registers while guest code runs.
        metadata["fuel_exact"] = False
    if output.stderr.path is not None:
        metadata["stderr_file_path"] = str(output.stderr.path)
    if context.rerun is not None:
        metadata["stdout_whole"] = output.stdout.whole
        metadata["stderr_whole"] = output.stderr.whole
    return ExecutionResult(
        stdout=stdout,
        stderr=stderr,
        value=said.value if said is not None and stop == "finished" else None,
        exit_code=exit_code,
        timed_out=stop in ("wall", "deadline"),
        output_truncated=any(stream.truncated for stream in streams) or stop == "output",
        output_file_path=str(path) if path is not None else None,
        error=error,
        stop=stop,
        charge=ProgramCharge(
            fuel=min(instance.fuel_used(), context.limits.fuel),
            wall_ms=execution.wall_ms,
            memory_bytes=instance.memory_size(),
            host_calls=len(execution.calls),
            output_bytes=output.bytes_total,
        ),
        calls=tuple(execution.calls),
        execution_time_ms=took_ms,
        metadata=metadata,
    )


def _verdict(
    said: ProgramReport | None,
    ended: BaseException | None,
    *,
    refused: int,
    context: ExecutionContext,
) -> tuple[Stop, ProgramError | None, int]:
    """Return the stop, the error and the exit code of a program.

    `refused` counts refused memory growth: with any, a trap or a `MemoryError` is the memory limit.
    """
    memory = f"memory: more than {context.limits.memory_bytes:,} bytes were needed"
    if ended is not None:
        stop, message = stop_of(ended)
        if stop == "trap" and refused:
            # Native code in the guest aborts if it cannot allocate memory.
            stop, message = "memory", memory
        return stop, ProgramError(kind=KINDS[stop], message=message), NOT_RUN
    if said is None:
        message = "the program broke its own interpreter: it gave no result"
        return "trap", ProgramError(kind=KINDS["trap"], message=message), NOT_RUN
    if said.ok:
        return "finished", None, 0
    if said.kind == "MemoryError" and refused:
        error = ProgramError(kind=KINDS["memory"], message=memory, traceback=said.traceback)
        return "memory", error, NOT_RUN
    error = ProgramError(
        kind=said.kind, message=said.message, traceback=said.traceback, line=said.line
    )
    return "finished", error, said.exit & 0xFF or 1
