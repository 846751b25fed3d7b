"""What a driver needs of everything outside it, and what is recorded of how it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import msgspec

from tallystick.core.budget.amount import BudgetExhausted, BudgetUnpriced
from tallystick.core.charge import Settled
from tallystick.core.machine.prompt import Message
from tallystick.core.machine.state import RunState
from tallystick.core.records import (
    AskModel,
    AttachmentRef,
    CheckProgram,
    EvidenceRef,
    FilesKept,
    HostAnswered,
    ModelFailed,
    ModelRefused,
    ModelReplied,
    NetworkAttempted,
    ProgramChecked,
    ProgramFailure,
    ProgramFinished,
    RunProgram,
    SnapshotTaken,
)
from tallystick.model.port import ModelError
from tallystick.runtime.context.attachments import INLINE_BYTES_MAX
from tallystick.runtime.journal.journal import PendingWrite, QueryWriter
from tallystick.runtime.spend.door import RefusedCall
from tallystick.sandbox.port import ExecutionResult

# What a driver needs of everything outside it, and how that reports back.


# What is kept after a program.
Kept = SnapshotTaken | FilesKept


class CallLog(Protocol):
    """How a world reports the host calls of a program it runs."""

    def calling(self, *, index: int, name: str, request_sha256: str, effect: bool) -> int:
        """Note that a call is about to be served. Returns its intent.

        Waits until an effect is on the disk.
        """
        ...

    def again(self, intent: int, *, index: int, name: str, request_sha256: str) -> None:
        """Note that an effect whose outcome nobody knows is begun once more."""
        ...

    def answered(self, answered: HostAnswered) -> PendingWrite:
        """Note what it was answered. Of an effect that is to be committed before it is told."""
        ...

    def attempted(self, attempt: NetworkAttempted) -> None:
        """Note that a program tries to reach something. Waits until that is committed."""
        ...

    @property
    def queries(self) -> QueryWriter:
        """Where the model calls of the program are written."""
        ...


class CallRefused(Exception):
    """No budget pays for the call: it is not made, and the run ends.

    `call` is what was to be paid for, None of a refusal that is read from the record.
    """

    def __init__(self, event: ModelRefused, call: RefusedCall | None = None) -> None:
        super().__init__(event.message)
        self.event = event
        self.call = call


class World(Protocol):
    """What a driver needs of everything outside it."""

    def admitted(
        self, intent: AskModel, messages: tuple[Message, ...], *, model: str, wall_ms_left: int
    ) -> AbstractAsyncContextManager[AskModel]:
        """Wait until the model may be asked, and reserve what that may cost.

        Gives the intent as it is to be written, with what is reserved and the cap that it pays for.
        Raises `WaitedTooLong` or `CallRefused`. Nothing is begun yet.
        """
        ...

    async def ask(
        self, intent: AskModel, messages: tuple[Message, ...], *, wall_ms_left: int
    ) -> ModelReplied | ModelFailed: ...

    def left(self, intent: AskModel, *, sent: bool) -> ModelFailed:
        """What is written of a call that was left in the middle, by a cancel."""
        ...

    async def run(
        self, intent: RunProgram, source: str, asked: CallLog, *, state: RunState
    ) -> ProgramFinished: ...

    def check_begun(self, intent: RunProgram) -> None:
        """Raise what ended the run before a program of it was begun, if something did."""
        ...

    def left_program(self, intent: RunProgram) -> ProgramFinished:
        """What is written of a native program that was left in the middle, by a cancel."""
        ...

    async def kept(self, finished: ProgramFinished, *, state: RunState) -> Kept | None:
        """What a program leaves, if it is worth keeping: its interpreter, or its files."""
        ...


# What a run records of a program that has ended.


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


def whole_outputs(intent: RunProgram, result: ExecutionResult) -> list[tuple[bytes, str]]:
    """Return what a program that was run again printed where not all is shown, with its labels."""
    return [
        (data, f"{stream} of program {intent.intent}")
        for stream in ("stdout", "stderr")
        if isinstance(data := result.metadata.get(f"{stream}_whole"), bytes)
    ]


def long_answer(intent: RunProgram, result: ExecutionResult) -> tuple[bytes, str] | None:
    """Return the bytes of an answer that is kept as an attachment, and what to call it."""
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
        answer_ref=msgspec.UNSET if answer_ref is None else answer_ref,
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


# What is written of a model call of a turn that came to nothing.


def failed_of(intent: AskModel, error: ModelError, began: float, settled: Settled) -> ModelFailed:
    return ModelFailed(
        intent=intent.intent,
        turn=intent.turn,
        reason=error.reason,
        message=error.message,
        wall_ms=ms_since(began),
        kind=error.kind,
        status=error.status,
        retry_after_ms=error.retry_after_ms,
        billed=error.billed,
        usage=error.usage,
        settled=settled,
    )


def refused_by(error: BudgetExhausted | BudgetUnpriced, intent: AskModel) -> ModelRefused:
    """What is written of a call that no budget pays for."""
    return ModelRefused(
        intent=intent.intent,
        turn=intent.turn,
        message=str(error),
        dimension=error.dimension if isinstance(error, BudgetExhausted) else "usd",
        scope=str(error.scope),
    )


def ms_since(began: float) -> int:
    """Whole milliseconds since a moment of the monotonic clock."""
    return round((time.monotonic() - began) * 1000)


# The evidence of the turn that a state is about to ask in; None for a run without skills.
EvidenceOf = Callable[[RunState], EvidenceRef | None]


def no_evidence(state: RunState) -> None:
    """Of a run without skills."""
    return None


CheckOf = Callable[[str, RunState, CheckProgram], ProgramChecked]
