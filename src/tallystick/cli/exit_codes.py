"""Exit codes, in one place; those of errors are told by `tallystick.cli.errors`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tallystick.core.records import StopReason
    from tallystick.sandbox.port import ExecutionResult

OK, FAILED, USAGE, BUDGET, SANDBOX, PROVIDER, LEDGER, IN_DOUBT, DIVERGED = range(9)
INTERRUPTED = 130
_LIMITS = frozenset({"fuel", "memory", "wall", "deadline", "output", "host_calls"})

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
