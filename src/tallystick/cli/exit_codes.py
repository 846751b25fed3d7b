"""Exit codes, in one place."""

from __future__ import annotations

from tallystick.attachments.port import AttachmentError, ReclamationRefused
from tallystick.core.budget.amount import BudgetExhausted, BudgetUnpriced, HoldAlive
from tallystick.core.errors import (
    Cancelled,
    LedgerError,
    ReplayDiverged,
    ReplayStopped,
    TallystickError,
    UsageError,
)
from tallystick.core.records import StopReason
from tallystick.core.resume_errors import RunInDoubt
from tallystick.core.step import StepBudgetError
from tallystick.memory.code_mode.operations import CodeModeError, Halted, WallTimeExceeded
from tallystick.memory.errors import (
    BackendUnsupported,
    EmbedderNotConfigured,
    EmbeddingFailed,
    IndexFailed,
    MemoryPermissionDenied,
    ModelMismatch,
    NoteErased,
    NoteNotFound,
    StorageFailed,
)
from tallystick.memory.receipts.receipt import NotRecalled, RecallDiffers
from tallystick.model.port import ModelError
from tallystick.sandbox.port import ExecutionResult
from tallystick.skills.errors import (
    SkillDisabled,
    SkillPathRefused,
    SkillUnreadable,
    SkillUntrusted,
)

OK, FAILED, USAGE, BUDGET, SANDBOX, PROVIDER, LEDGER, IN_DOUBT, DIVERGED = range(9)
INTERRUPTED = 130
_LIMITS = frozenset({"fuel", "memory", "wall", "deadline", "output", "host_calls"})


_REFUSED_BY_MEMORY = (
    BackendUnsupported,
    CodeModeError,
    EmbedderNotConfigured,
    EmbeddingFailed,
    MemoryPermissionDenied,
    ModelMismatch,
    NoteErased,
    NoteNotFound,
    NotRecalled,
)
_OF_MEMORY = (*_REFUSED_BY_MEMORY, IndexFailed, StorageFailed)


def exit_code_of(error: BaseException) -> int:
    """The exit code for an error that ended the command."""
    if isinstance(error, UsageError):
        return USAGE
    if isinstance(error, RunInDoubt):
        return IN_DOUBT
    if isinstance(error, ReplayDiverged | RecallDiffers):
        return DIVERGED
    if isinstance(error, Cancelled | ReplayStopped):
        timed_out = isinstance(error, ReplayStopped) and error.timed_out
        return BUDGET if timed_out else INTERRUPTED
    if isinstance(error, StepBudgetError | BudgetExhausted | BudgetUnpriced):
        return BUDGET
    if isinstance(error, _OF_MEMORY):
        return _code_of_memory(error)
    if isinstance(error, LedgerError | AttachmentError | ReclamationRefused | HoldAlive):
        return LEDGER
    if isinstance(error, ModelError):
        return PROVIDER
    if isinstance(error, SkillUnreadable | SkillPathRefused | SkillUntrusted | SkillDisabled):
        return FAILED
    return SANDBOX if isinstance(error, TallystickError) else FAILED


def _code_of_memory(error: BaseException) -> int:
    if isinstance(error, Halted | WallTimeExceeded):
        return BUDGET
    return FAILED if isinstance(error, _REFUSED_BY_MEMORY) else LEDGER


_STOPS: dict[StopReason, int] = {
    "answered": OK,
    "max_turns": BUDGET,
    "budget": BUDGET,
    "deadline": BUDGET,
    "cancelled": INTERRUPTED,
    "refused": FAILED,
    "model_error": PROVIDER,
    "sandbox_error": SANDBOX,
    "in_doubt": IN_DOUBT,
    "no_progress": FAILED,
}


def exit_code_of_stop(stop: StopReason) -> int:
    """The exit code for a run that ended."""
    return _STOPS[stop]


def exit_code_of_result(result: ExecutionResult) -> int:
    """The exit code for a program that ended."""
    if result.stop in _LIMITS:
        return BUDGET
    if result.stop == "cancelled":
        return INTERRUPTED
    return OK if result.succeeded else FAILED
