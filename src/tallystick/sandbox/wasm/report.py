"""Between bytes and results: what goes into the guest, and what its end means."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from tallystick.sandbox.output import OutputOverflow, ProgramOutput
from tallystick.sandbox.port import (
    ExecutionContext,
    ExecutionResult,
    HostNames,
    ProgramCharge,
    ProgramError,
    Stop,
)
from tallystick.sandbox.said import KINDS, NOT_RUN, Said, metadata_of, read_said
from tallystick.sandbox.wasm.execution import Execution, describe
from tallystick.sandbox.wasm.instance import Instance

__all__ = [
    "broken",
    "names_payload",
    "program_payload",
    "recover_output",
    "result_of",
    "source_of",
]


def source_of(program: str | bytes, bytes_max: int) -> tuple[bytes, ExecutionResult | None]:
    """The program as UTF-8, or the result that says why it cannot be run."""
    try:
        source = program if isinstance(program, bytes) else program.encode("utf-8")
        source.decode("utf-8")
    except UnicodeError as error:
        return b"", _unrunnable("SyntaxError", f"the program is not UTF-8: {error}")
    if len(source) > bytes_max:
        message = f"the program is {len(source):,} bytes long; at most {bytes_max:,}"
        return b"", _unrunnable("ProgramTooLong", message)
    return source, None


def _unrunnable(kind: str, message: str) -> ExecutionResult:
    return ExecutionResult(exit_code=1, error=ProgramError(kind=kind, message=message))


def broken(message: str) -> ExecutionResult:
    """The result of a program that could not be begun in what earlier ones have left."""
    error = ProgramError(kind=KINDS["trap"], message=message)
    return ExecutionResult(exit_code=NOT_RUN, stop="trap", error=error)


def program_payload(source: bytes, context: ExecutionContext) -> bytes:
    """A header line, which is the name and the environment if there is one, and the source."""
    name = "".join(each if each.isprintable() else "?" for each in context.program_name)
    env = b"\0" + msgspec.json.encode(context.env_vars) if context.env_vars else b""
    return name.encode("utf-8", "replace") + env + b"\n" + source


def names_payload(before: HostNames, after: HostNames) -> bytes:
    """What changes in the guest's namespace."""
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
    """Read what an ended program had printed but not sent."""
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
    """Make the result of a program that has ended, by itself or from outside."""
    refused = instance.get("grow_refused")
    said = None if ended is not None else read_said(execution.result)
    stop, error, exit_code = _verdict(said, ended, refused=refused, context=context)
    streams = (output.stdout, output.stderr)
    kept = context.outputs_before
    stdout = output.stdout.text(kept)
    if kept is not None and output.stdout.path is not None:
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
    said: Said | None, ended: BaseException | None, *, refused: int, context: ExecutionContext
) -> tuple[Stop, ProgramError | None, int]:
    memory = f"memory: more than {context.limits.memory_bytes:,} bytes were needed"
    if ended is not None:
        stop, message = describe(ended)
        if stop == "trap" and refused:
            # Native code that cannot allocate aborts.
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
    error = ProgramError(kind=said.kind, message=said.message, traceback=said.traceback)
    return "finished", error, said.exit & 0xFF or 1
