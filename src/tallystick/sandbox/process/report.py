"""What came of a program or a command, as a result."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tallystick.sandbox.identity import new_id
from tallystick.sandbox.output import OutputStream, ProgramOutput
from tallystick.sandbox.port import (
    ExecutionContext,
    ExecutionResult,
    ProgramCharge,
    ProgramError,
    Stop,
)
from tallystick.sandbox.said import KINDS, NOT_RUN, Said, metadata_of
from tallystick.sandbox.wasm.execution import Execution, describe

__all__ = [
    "Verdict",
    "ended_from_outside",
    "exit_code_of",
    "how",
    "output_for",
    "result_of",
    "too_much_memory",
    "trap",
    "verdict_of_program",
]

_SIGNALLED = 128


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended."""

    stop: Stop = "finished"
    error: ProgramError | None = None
    exit_code: int = 0
    value: str | None = None
    metadata: Mapping[str, object] = {}


def trap(message: str) -> Verdict:
    """The verdict on what broke its own interpreter."""
    error = ProgramError(kind=KINDS["trap"], message=message)
    return Verdict(stop="trap", error=error, exit_code=NOT_RUN)


def too_much_memory(memory_bytes: int, *, traceback: str = "") -> Verdict:
    """The verdict on what needed more memory than there was for it."""
    message = f"memory: more than {memory_bytes:,} bytes were needed"
    error = ProgramError(kind=KINDS["memory"], message=message, traceback=traceback)
    return Verdict(stop="memory", error=error, exit_code=NOT_RUN)


def ended_from_outside(ended: BaseException) -> Verdict:
    """The verdict on what did not end by itself."""
    stop, message = describe(ended)
    error = ProgramError(kind=KINDS[stop], message=message)
    return Verdict(stop=stop, error=error, exit_code=NOT_RUN)


def verdict_of_program(
    said: Said | None, ended: BaseException | None, *, memory_bytes: int
) -> Verdict:
    """How a Python program ended."""
    if ended is not None:
        return ended_from_outside(ended)
    if said is None:
        return trap("the program broke its own interpreter: it gave no result")
    if said.kind == "MemoryError" and not said.ok:
        return too_much_memory(memory_bytes, traceback=said.traceback)
    metadata = metadata_of(said, finished=True)
    if said.ok:
        return Verdict(value=said.value, metadata=metadata)
    error = ProgramError(kind=said.kind, message=said.message, traceback=said.traceback)
    return Verdict(error=error, exit_code=said.exit & 0xFF or 1, metadata=metadata)


def exit_code_of(status: int) -> int:
    """An exit code as shells give it: 128 and the signal for what a signal ended."""
    return status if status >= 0 else _SIGNALLED - status


def how(status: int | None) -> str:
    """Say how a process ended."""
    if status is None:
        return "it is gone"
    if status >= 0:
        return f"it ended itself with exit code {status}"
    try:
        return f"it was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"it was ended by signal {-status}"


def output_for(context: ExecutionContext, folder: Path | None, *, session_id: str) -> ProgramOutput:
    """Where the streams of one execution go."""
    stem = f"{session_id}-{new_id()}"

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
    told: Mapping[str, bool],
) -> ExecutionResult:
    """Make the result."""
    streams = (output.stdout, output.stderr)
    kept = context.outputs_before
    stdout = output.stdout.text(kept)
    if kept is not None and output.stdout.path is not None:
        kept += 1
    stderr = output.stderr.text(kept)
    path = next((stream.path for stream in streams if stream.path is not None), None)
    metadata: dict[str, object] = {"backend": "process", **verdict.metadata}
    metadata.update((name, True) for name, so in told.items() if so)
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
            host_calls=len(execution.calls),
            output_bytes=output.bytes_total,
        ),
        calls=tuple(execution.calls),
        execution_time_ms=took_ms,
        metadata=metadata,
    )
