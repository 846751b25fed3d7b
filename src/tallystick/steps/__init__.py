"""Steps: named parts of your own code, each with a budget, on one record that can be resumed.

These names are the contract of this module; what else is in the package is internal.
`Session.resume_steps` and `Session.replay_steps` run recorded steps again.

- `step` makes a function a step with a name, a budget and a boundary for errors
- `step_log` and `completed_steps` give a `StepLog` of the steps that ended: each a `CompletedStep`
  with its `StepUsage`
- `current_step` returns the step around the caller; `charge_step` charges it for work of your own
- `StepRegistry` holds a `StepDefinition` for each step that was defined
- `StepsReport` is the result of a replay: whether it held, or the first `StepDivergence`
- the errors are `StepBudgetError`, which `is_budget_error` recognizes in what other code raised,
  and `InvalidStep`, `StepsDiverged` and `StepsNotReplayed`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.lazy_names import lazy_names

if TYPE_CHECKING:
    from tallystick.core.step import (
        CompletedStep,
        InvalidStep,
        StepBudgetError,
        StepDefinition,
        StepRegistry,
        StepsDiverged,
        StepsNotReplayed,
        StepUsage,
        is_budget_error,
    )
    from tallystick.steps.active import StepLog
    from tallystick.steps.decorator import (
        charge_step,
        completed_steps,
        current_step,
        step,
        step_log,
    )
    from tallystick.steps.replay import StepDivergence, StepsReport

__all__ = [
    "CompletedStep",
    "InvalidStep",
    "StepBudgetError",
    "StepDefinition",
    "StepDivergence",
    "StepLog",
    "StepRegistry",
    "StepUsage",
    "StepsDiverged",
    "StepsNotReplayed",
    "StepsReport",
    "charge_step",
    "completed_steps",
    "current_step",
    "is_budget_error",
    "step",
    "step_log",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "tallystick.core.step": (
                "CompletedStep InvalidStep StepBudgetError StepDefinition StepRegistry "
                "StepUsage StepsDiverged StepsNotReplayed is_budget_error"
            ),
            "tallystick.steps.active": "StepLog",
            "tallystick.steps.replay": "StepDivergence StepsReport",
            "tallystick.steps.decorator": "charge_step completed_steps current_step step step_log",
        },
    )
