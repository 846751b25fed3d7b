"""Steps: named parts of your own code, each with a budget, on one record that can be resumed.

These names are the contract of this module; what else is in the package is internal.
`Session.resume_steps` and `Session.replay_steps` run recorded steps again.

- `step` makes a function a step with a name, a budget and a boundary for errors
- `step_log` and `completed_steps` give a `StepLog` of the steps that ended: each a `CompletedStep`
  with its `StepUsage`
- `current_step` returns the `ActiveStep` around the caller, and `step_model` its model;
  `charge_step` charges it for work of your own, and `within_step` takes it to a thread of your own
- `StepRegistry` holds a `StepDefinition` for each function that a host calls by its name;
  `enter_step` enters one, and `reset_steps` clears all
- `StepsReport` is the result of a replay: whether it held, or the first `StepDivergence`
- the errors are `StepBudgetError`, which `is_budget_error` recognizes in what other code raised and
  `mark_escalated` marks, and `InvalidStep`, `StepsDiverged` and `StepsNotReplayed`
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
        mark_escalated,
    )
    from tallystick.steps.active import ActiveStep, StepLog
    from tallystick.steps.decorator import (
        charge_step,
        completed_steps,
        current_step,
        enter_step,
        reset_steps,
        step,
        step_log,
        step_model,
        within_step,
    )
    from tallystick.steps.replay import StepDivergence, StepsReport

__all__ = [
    "ActiveStep",
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
    "enter_step",
    "is_budget_error",
    "mark_escalated",
    "reset_steps",
    "step",
    "step_log",
    "step_model",
    "within_step",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "tallystick.core.step": (
                "CompletedStep InvalidStep StepBudgetError StepDefinition StepRegistry "
                "StepUsage StepsDiverged StepsNotReplayed is_budget_error mark_escalated"
            ),
            "tallystick.steps.active": "ActiveStep StepLog",
            "tallystick.steps.replay": "StepDivergence StepsReport",
            "tallystick.steps.decorator": (
                "charge_step completed_steps current_step enter_step reset_steps step step_log "
                "step_model within_step"
            ),
        },
    )
