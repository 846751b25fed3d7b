"""Turn the result of a sandbox into the record of a program's end."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tallystick.core.records import AttachmentRef, ProgramFailure, ProgramFinished, RunProgram
from tallystick.runtime.context.attachments import INLINE_BYTES_MAX
from tallystick.sandbox.port import ExecutionResult


def output_files(intent: RunProgram, result: ExecutionResult) -> list[tuple[Path, str]]:
    """Return the files with output that was too long to show, each with a label.

    At most two: of stdout and of stderr, in this order. `intent` is the program.
    """
    stderr = result.metadata.get("stderr_file_path")
    stdout = result.output_file_path if result.output_file_path != stderr else None
    named = [(stdout, "stdout"), (stderr, "stderr")]
    return [
        (Path(path), f"{stream} of program {intent.intent}")
        for path, stream in named
        if isinstance(path, str)
    ]


def whole_outputs(intent: RunProgram, result: ExecutionResult) -> list[tuple[bytes, str]]:
    """Return the whole output of a repeated program where it was too long to show, with labels.

    A repeated program writes no files: its output is in memory.
    """
    return [
        (data, f"{stream} of program {intent.intent}")
        for stream in ("stdout", "stderr")
        if isinstance(data := result.metadata.get(f"{stream}_whole"), bytes)
    ]


def long_answer(intent: RunProgram, result: ExecutionResult) -> tuple[bytes, str] | None:
    """Return the bytes of an answer that is too long for a record, with a label.

    Return None for at most 65,536 characters, and without an answer that is text.
    """
    answer = result.metadata.get("answer")
    if not isinstance(answer, str) or len(answer) <= INLINE_BYTES_MAX:
        return None
    return answer.encode("utf-8", "surrogatepass"), f"answer of program {intent.intent}"


def finished_of(
    intent: RunProgram,
    result: ExecutionResult,
    outputs: tuple[AttachmentRef, ...] = (),
    answer_ref: AttachmentRef | None = None,
) -> ProgramFinished:
    """Return the record of a program's end.

    `outputs` are attachments with its whole output, `answer_ref` that with a long answer.
    """
    failure = None
    if result.error is not None:
        failure = ProgramFailure(
            kind=result.error.kind,
            message=result.error.message,
            traceback=result.error.traceback,
            line=result.error.line or msgspec.UNSET,
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
        answer_ref=msgspec.UNSET if answer_ref is None else answer_ref,
    )


def cut_off(intent: RunProgram, stop: str, why: str, *, host_calls: int = 0) -> ProgramFinished:
    """Return the record of the end of a native program that was cut off.

    `why` is the message of its failure, `host_calls` the number of its recorded answers.
    """
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
