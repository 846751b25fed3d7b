"""Map our errors to the names and codes of other systems: one closed table for every surface.

The names and numbers are those of the reference (a JSON-RPC server): they are promised to clients,
and nothing is added to them. Our errors are mapped onto it. An error whose class has a name of the
table is that row; any other is found by the longest beginning of its dotted `code`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tallystick.core.errors import Cancelled, TallystickError
from tallystick.core.records import StopReason

_GENERAL = -32000


class ErrorCode(msgspec.Struct, frozen=True, kw_only=True):
    """One row: the name of an error, its number, and what a client may do about it."""

    name: str
    code: int
    retryable: bool = False
    budget_exhausted: bool = False
    requires_user_action: bool = False


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """An error as `--json` and other surfaces show it. `kind` is our own dotted code."""

    type: str
    code: int
    kind: str
    message: str
    retryable: bool
    budget_exhausted: bool
    requires_user_action: bool


_NUMBERED = {
    "CommandParseFailed": -32700,
    "ConfigError": -32602,
    "SessionNotFound": -32001,
    "SessionExpired": -32002,
    "TokenBudgetExceeded": -32010,
    "TimeBudgetExceeded": -32011,
    "RecursionDepthExceeded": -32012,
    "ExecutionFailed": -32020,
    "ExecutionTimeout": -32021,
    "VmCrashed": -32022,
    "KgValidationFailed": -32030,
    "KgEscalationRequired": -32031,
    "SnapshotNotFound": -32040,
    "NoBackendAvailable": -32050,
    "DnsBlocked": -32060,
    "NotSupported": -32070,
    "Cancelled": -32099,
}
_UNNUMBERED = (
    "InvalidSessionState",
    "MaxExtensionsReached",
    "MaxSnapshotsReached",
    "SnapshotCreationFailed",
    "SnapshotRestoreFailed",
    "BackendInitFailed",
    "StrictDiagnosticsBusy",
    "StrictDiagnosticsShuttingDown",
    "PoolExhausted",
    "VmAllocationTimeout",
    "NetworkBlocked",
    "LlmCallFailed",
    "LlmNotConfigured",
    "LlmBridgeAuthFailed",
    "InvalidSessionToken",
    "BatchSizeTooLarge",
    "OutputTooLarge",
    "AutoRemediationFailed",
    "AlertWebhookFailed",
    "Internal",
    "Io",
    "Serialization",
)
_RETRYABLE = {"ExecutionTimeout", "VmAllocationTimeout", "LlmCallFailed", "AlertWebhookFailed"}
_BUDGET = {"TokenBudgetExceeded", "TimeBudgetExceeded", "RecursionDepthExceeded"}
_USER = {"KgEscalationRequired", "MaxExtensionsReached", "NoBackendAvailable"}


def _row(name: str, code: int) -> ErrorCode:
    return ErrorCode(
        name=name,
        code=code,
        retryable=name in _RETRYABLE,
        budget_exhausted=name in _BUDGET,
        requires_user_action=name in _USER,
    )


ERROR_CODES: Mapping[str, ErrorCode] = {
    name: _row(name, code)
    for name, code in (*_NUMBERED.items(), *((name, _GENERAL) for name in _UNNUMBERED))
}

# Our errors whose class has another name, by the beginning of their code. The longest counts.
_OURS = {
    "backend": "ExecutionFailed",
    "no_answer": "ExecutionFailed",
    "backend.attachment": "Io",
    "backend.guest": "BackendInitFailed",
    "backend.guest_broken": "VmCrashed",
    "backend.memory": "Io",
    "backend.memory.embedding": "LlmCallFailed",
    "backend.memory.format": "Serialization",
    "backend.memory.not_found": "ConfigError",
    "backend.model": "LlmCallFailed",
    "backend.sandbox": "VmCrashed",
    "backend.session_busy": "InvalidSessionState",
    "backend.session_not_kept": "SnapshotCreationFailed",
    "backend.snapshot_mismatch": "SnapshotRestoreFailed",
    "backend.store": "Io",
    "backend.store.format": "Serialization",
    "budget": "TokenBudgetExceeded",
    "cancelled": "Cancelled",
    "error": "Internal",
    "in_doubt": "ExecutionFailed",
    "ledger": "Io",
    "ledger.format": "Serialization",
    "ledger.illegal_event": "Internal",
    "ledger.record": "Serialization",
    "ledger.run_not_found": "ConfigError",
    "query": "LlmCallFailed",
    "refused": "NotSupported",
    "refused.budget": "TokenBudgetExceeded",
    "refused.denied": "NotSupported",
    "refused.code_mode": "ExecutionFailed",
    "refused.code_mode.empty": "CommandParseFailed",
    "refused.code_mode.fuel": "TokenBudgetExceeded",
    "refused.code_mode.program": "ExecutionFailed",
    "refused.code_mode.wall": "TimeBudgetExceeded",
    "refused.memory.embedder": "ConfigError",
    "refused.memory.model": "ConfigError",
    "refused.overrun": "TokenBudgetExceeded",
    "refused.sessions_full": "SnapshotCreationFailed",
    "refused.unpriced": "TokenBudgetExceeded",
    "replay": "ExecutionFailed",
    "usage": "ConfigError",
    "usage.recall_program": "CommandParseFailed",
    "usage.snapshot_exists": "SnapshotCreationFailed",
    "waiting": "NotSupported",
}
# The row for the dimension of a budget. The table has three kinds; any dimension but time and depth
# counts as tokens.
_DIMENSIONS = {"wall_ms": "TimeBudgetExceeded", "depth": "RecursionDepthExceeded"}
_STOPS: Mapping[StopReason, str] = {
    "max_turns": "TokenBudgetExceeded",
    "budget": "TokenBudgetExceeded",
    "deadline": "TimeBudgetExceeded",
    "cancelled": "Cancelled",
    "refused": "NotSupported",
    "model_error": "LlmCallFailed",
    "sandbox_error": "VmCrashed",
    "in_doubt": "ExecutionFailed",
    "no_progress": "ExecutionFailed",
    "waiting": "NotSupported",
}


def entry_of(error: BaseException) -> ErrorCode:
    """Return the row of an error. An error that is not ours is `Internal`.

    An error of a budget gets the row of its dimension. Any other gets the row with the name of its
    class or of a class above it, or else that of its code.
    """
    if not isinstance(error, TallystickError | Cancelled):
        return ERROR_CODES["Internal"]
    dimension = getattr(error, "dimension", None)
    if isinstance(dimension, str) and error.code.startswith(("refused.budget", "budget.")):
        return ERROR_CODES[_DIMENSIONS.get(dimension, "TokenBudgetExceeded")]
    named = next((each.__name__ for each in type(error).__mro__ if each.__name__ in _NAMES), None)
    return ERROR_CODES[named or _name_of_code(error.code)]


def entry_of_stop(stop: StopReason) -> ErrorCode | None:
    """Return the row for the end of a run; None if it was answered."""
    return None if stop == "answered" else ERROR_CODES[_STOPS[stop]]


def error_report(error: BaseException) -> ErrorReport:
    """Return an error with its row, to be written as JSON. `kind` is "error" without a code."""
    entry = entry_of(error)
    return ErrorReport(
        type=entry.name,
        code=entry.code,
        kind=str(getattr(error, "code", "error")),
        message=str(error),
        retryable=entry.retryable,
        budget_exhausted=entry.budget_exhausted,
        requires_user_action=entry.requires_user_action,
    )


_NAMES = frozenset(ERROR_CODES)


def _name_of_code(code: str) -> str:
    """Return the name in the table for the longest known beginning of a code; else `Internal`."""
    parts = code.split(".")
    for length in range(len(parts), 0, -1):
        found = _OURS.get(".".join(parts[:length]))
        if found is not None:
            return found
    return "Internal"
