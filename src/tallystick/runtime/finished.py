"""What a run records of a program that has ended."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tallystick.core.attachment import AttachmentRef
from tallystick.core.records import HostAnswered, ProgramFailure, ProgramFinished, RunProgram
from tallystick.sandbox.port import ExecutionResult

__all__ = ["cut_off", "finished_of", "output_files", "unanswered"]


def output_files(intent: RunProgram, result: ExecutionResult) -> list[tuple[Path, str]]:
    """The files into which a program printed more than is shown, and what to call them."""
    stderr = result.metadata.get("stderr_file_path")
    stdout = result.output_file_path if result.output_file_path != stderr else None
    named = [(stdout, "stdout"), (stderr, "stderr")]
    return [
        (Path(path), f"{stream} of program {intent.intent}")
        for path, stream in named
        if isinstance(path, str)
    ]


def finished_of(
    intent: RunProgram, result: ExecutionResult, outputs: tuple[AttachmentRef, ...] = ()
) -> ProgramFinished:
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
        outputs=outputs,
        exit_code=result.exit_code if intent.kind == "bash" else msgspec.UNSET,
    )


def cut_off(intent: RunProgram, stop: str, why: str, *, host_calls: int = 0) -> ProgramFinished:
    """What is recorded of a native program that was left in the middle."""
    return ProgramFinished(
        intent=intent.intent,
        turn=intent.turn,
        stop=stop,
        stdout="",
        stderr="",
        value=None,
        failure=ProgramFailure(kind="CutOff", message=why, traceback=""),
        answer=None,
        names_restored=(),
        fuel=0,
        host_calls=host_calls,
        truncated=False,
    )


def _names_in(result: ExecutionResult, which: str) -> tuple[str, ...]:
    found = result.metadata.get(which, ())
    return tuple(str(name) for name in found) if isinstance(found, list) else ()


def unanswered(
    program: RunProgram, intent: int, index: int, name: str, request_sha256: str
) -> HostAnswered:
    """What is recorded of a call that a native program did not wait for: it has no answer."""
    return HostAnswered(
        intent=intent,
        program=program.intent,
        index=index,
        name=name,
        request_sha256=request_sha256,
        fuel=0,
        reply=b"",
        ok=False,
    )
