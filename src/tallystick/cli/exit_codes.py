"""Define the exit codes, and map ended runs and programs to them.

`tallystick.cli.errors` does the same for errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tallystick.core.records import StopReason
    from tallystick.sandbox.port import ExecutionResult

OK, FAILED, USAGE, BUDGET, SANDBOX, PROVIDER, LEDGER, IN_DOUBT, DIVERGED, WAITING = range(10)
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
    "waiting": WAITING,
}


def exit_code_of_stop(stop: StopReason) -> int:
    """Return the exit code for a run that ended for this reason."""
    return _STOPS[stop]


def exit_code_of_result(result: ExecutionResult) -> int:
    """Return the exit code for a program that ended: 0, 1, 3 for a limit, 130 if cancelled."""
    if result.stop in _LIMITS:
        return BUDGET
    if result.stop == "cancelled":
        return INTERRUPTED
    return OK if result.succeeded else FAILED
