"""Exit codes, in one place."""

from __future__ import annotations

from tallystick.core.errors import Cancelled, TallystickError, UsageError
from tallystick.sandbox.port import ExecutionResult

__all__ = ["exit_code_of", "exit_code_of_result"]

OK, FAILED, USAGE, BUDGET, SANDBOX, INTERRUPTED = 0, 1, 2, 3, 4, 130
_LIMITS = frozenset({"fuel", "memory", "wall", "deadline", "output", "host_calls"})


def exit_code_of(error: BaseException) -> int:
    """The exit code for an error that ended the command."""
    if isinstance(error, UsageError):
        return USAGE
    if isinstance(error, Cancelled):
        return INTERRUPTED
    return SANDBOX if isinstance(error, TallystickError) else FAILED


def exit_code_of_result(result: ExecutionResult) -> int:
    """The exit code for a program that ended."""
    if result.stop in _LIMITS:
        return BUDGET
    if result.stop == "cancelled":
        return INTERRUPTED
    return OK if result.succeeded else FAILED
