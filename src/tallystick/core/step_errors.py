"""What steps raise: one error for every budget that is exhausted, one for a record they left.

    TallystickError
    ├── StepBudgetError   a step passed its limit, or a call inside it is not paid for
    ├── ReplayDiverged
    │   └── StepsDiverged     run again on their record, steps did something else
    └── UsageError
        ├── InvalidStep       a definition that makes no sense, refused when it is made
        └── StepsNotReplayed  a chain of steps, asked to be run again

Rule 1: one type, three shapes. `to_dict()` gives the keys of the shape and no others: a limit that
was passed, a call that was refused before it was sent, and either of them marked as escalated.
Rule 2: a mark is put on a copy. It never hides what the error is: an escalated one is still
recognised as a budget error by the steps around.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Literal

import msgspec

from tallystick.core.budget_amount import Dimension
from tallystick.core.errors import ReplayDiverged, TallystickError, UsageError
from tallystick.core.money import shown_usd

__all__ = [
    "Escalation",
    "InvalidStep",
    "PreflightRefusal",
    "StepBudgetError",
    "StepExhaustion",
    "StepLimit",
    "StepsDiverged",
    "StepsNotReplayed",
    "budget_error_in",
    "escalated",
    "in_units",
    "is_budget_error",
]

StepLimit = Literal["max_tokens", "max_usd"]

_CATEGORY = "budget_exceeded"
_ESCALATED = "handoff_escalation"
_STEP = ("budget_exhausted", "step_budget_exhausted")
_PREFLIGHT = ("terminal", "budget_exceeded")
_PER_DOLLAR = 10**9
_RUNS_TOLD_MAX = 10


class InvalidStep(UsageError):
    """A step is defined by something that defines none. `field` says where."""

    code = "usage.step"

    def __init__(self, *, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field
        self.why = why


class StepsNotReplayed(UsageError):
    """A chain of steps is no run: what they did is host code, which nobody runs again."""

    code = "usage.steps"

    def __init__(self, *, chain: str, runs: list[str]) -> None:
        told = ", ".join(runs[:_RUNS_TOLD_MAX]) or "none is in this ledger"
        more = f" and {len(runs) - _RUNS_TOLD_MAX:,} more" if len(runs) > _RUNS_TOLD_MAX else ""
        super().__init__(
            f"{chain} holds steps, which are host code; replay its runs: {told}{more}; or call the "
            f"program again inside `Session.replay_steps`"
        )
        self.chain = chain
        self.runs = runs


class StepsDiverged(ReplayDiverged):
    """At the same place, a program of steps asked for something else than the record says.

    `step` is the path of the step, `run` the recorded run, None where there is none.
    """

    code = "replay.diverged"

    def __init__(
        self,
        *,
        chain: str,
        step: str,
        run: str | None,
        field: str,
        recorded: object,
        now: object,
    ) -> None:
        super().__init__(index=0, field=field, recorded=recorded, now=now)
        named = "" if run is None else f", run {run}"
        self.args = (f"steps {chain}, step {step}{named}: {field} was {recorded!r} and is {now!r}",)
        self.chain = chain
        self.step = step
        self.run = run


class StepExhaustion(msgspec.Struct, frozen=True, kw_only=True):
    """A step that has used more than it may. `limit_value` and `consumed` are exact.

    Money is in nano-dollars here and in dollars in the dictionary.
    """

    step: str
    function: str
    limit: StepLimit
    limit_value: int
    consumed_tokens: int
    consumed_usd: int
    error_boundary: str

    @property
    def message(self) -> str:
        if self.limit == "max_usd":
            over = f"{shown_usd(self.consumed_usd)} > {shown_usd(self.limit_value)}"
        else:
            over = f"{self.consumed_tokens} > {self.limit_value}"
        return f"step `{self.step}` exceeded {self.limit} budget ({over})"

    def to_dict(self) -> dict[str, object]:
        kind, reason = _STEP
        return {
            "category": _CATEGORY,
            "kind": kind,
            "reason": reason,
            "step": self.step,
            "function": self.function,
            "limit": self.limit,
            "limit_value": in_units(
                "usd" if self.limit == "max_usd" else "tokens", self.limit_value
            ),
            "consumed_tokens": in_units("tokens", self.consumed_tokens),
            "consumed_cost_usd": in_units("usd", self.consumed_usd),
            "error_boundary": self.error_boundary,
            "message": self.message,
        }


class PreflightRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """A call that was never made: a scope around it does not pay for the worst it could cost.

    `projected_usd` is None where nobody knows the price, which is then the reason; `limit_value`
    where the scope is kept by others.
    """

    dimension: Dimension
    limit_value: int | None
    projected_usd: int | None
    session_usd: int
    projected_input_tokens: int
    projected_output_tokens: int
    provider: str
    model: str
    message: str

    def to_dict(self) -> dict[str, object]:
        kind, reason = _PREFLIGHT
        return {
            "category": _CATEGORY,
            "kind": kind,
            "reason": reason,
            "limit": f"max_{self.dimension}",
            "limit_value": _known(self.dimension, self.limit_value),
            "projected_cost_usd": _known("usd", self.projected_usd),
            "session_cost_usd": in_units("usd", self.session_usd),
            "projected_input_tokens": self.projected_input_tokens,
            "projected_output_tokens": self.projected_output_tokens,
            "provider": self.provider,
            "model": self.model,
            "message": self.message,
        }


class Escalation(msgspec.Struct, frozen=True, kw_only=True):
    """Which step handed an error on to whoever is above it."""

    step: str
    function: str


class StepBudgetError(TallystickError):
    """A budget around this point is exhausted. Steps decide at their boundary what it becomes.

    `run` and `answer` are of the run that ended by it: its id in the ledger, and the best it had.
    """

    code = "budget.step"

    def __init__(
        self,
        facts: StepExhaustion | PreflightRefusal,
        *,
        escalation: Escalation | None = None,
        run: str | None = None,
        answer: str | None = None,
    ) -> None:
        super().__init__(facts.message)
        self.facts = facts
        self.escalation = escalation
        self.run = run
        self.answer = answer

    @property
    def escalated(self) -> bool:
        return self.escalation is not None

    def escalated_by(self, by: Escalation) -> StepBudgetError:
        """A copy that is marked. The first step that marked it stays."""
        return StepBudgetError(
            self.facts,
            escalation=self.escalation or by,
            run=self.run,
            answer=self.answer,
        )

    def to_dict(self) -> dict[str, object]:
        """The error as data, with the keys of its shape."""
        facts = self.facts.to_dict()
        if self.escalation is None:
            return facts
        return _marked(facts, self.escalation)


def is_budget_error(found: object) -> bool:
    """Whether an error, raised or as a dictionary, says that a budget is exhausted."""
    match found:
        case BaseException():
            return budget_error_in(found) is not None
        case Mapping():
            kind, reason = found.get("kind"), found.get("reason")
            category = found.get("category")
            return (
                (kind, reason) == _STEP
                or category == _CATEGORY
                or (category == _ESCALATED and (kind, reason) == _PREFLIGHT)
            )
        case _:
            return False


def budget_error_in(error: BaseException) -> StepBudgetError | None:
    """The budget error that this is. A group is one if there is nothing else in it: then its first.

    Tasks that run side by side raise in groups; one other error among them has to be seen.
    """
    match error:
        case StepBudgetError():
            return error
        case BaseExceptionGroup():
            found = [budget_error_in(each) for each in error.exceptions]
            return None if None in found else found[0]
        case _:
            return None


def escalated(error: object, by: Escalation) -> object:
    """A marked copy of an error, raised or as a dictionary. Anything else is given back."""
    if isinstance(error, StepBudgetError):
        return error.escalated_by(by)
    if isinstance(error, dict):
        return _marked(error, by)
    return error


def in_units(dimension: Dimension, figure: int) -> float:
    """A figure as a float: dollars for money, a count for the rest. Saturates, never raises."""
    try:
        return figure / (_PER_DOLLAR if dimension == "usd" else 1)
    except OverflowError:
        return sys.float_info.max


def _known(dimension: Dimension, figure: int | None) -> float | None:
    return None if figure is None else in_units(dimension, figure)


def _marked(facts: Mapping[str, object], by: Escalation) -> dict[str, object]:
    filled = {"step": by.step, "function": by.function}
    return {**filled, **facts, "escalated": True, "category": _ESCALATED}
