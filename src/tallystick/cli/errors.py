"""Map each error that can end a command to its exit code.

The other exit codes are in `exit_codes`. This module imports the errors of every package, so it is
loaded only after an error: a command that ends well does not pay for it.
"""

from __future__ import annotations

from tallystick.attachments.port import AttachmentError, ReclamationRefused
from tallystick.cli.exit_codes import (
    BUDGET,
    DIVERGED,
    FAILED,
    IN_DOUBT,
    INTERRUPTED,
    LEDGER,
    PROVIDER,
    SANDBOX,
    USAGE,
)
from tallystick.core.budget.amount import BudgetExhausted, BudgetUnpriced, HoldAlive
from tallystick.core.errors import (
    Cancelled,
    LedgerError,
    ReplayDiverged,
    ReplayStopped,
    TallystickError,
    UsageError,
)
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
from tallystick.skills.errors import (
    SkillDisabled,
    SkillPathRefused,
    SkillUnreadable,
    SkillUntrusted,
)

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
    """Return the exit code for an error that ended the command; 1 for an unknown error.

    The order of the checks matters, since many errors derive from others: `RecallDiffers` is a
    `LedgerError` too, `ResumeRefused` a `UsageError`, and almost all are a `TallystickError`.
    """
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
