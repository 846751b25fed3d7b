"""Define named steps of a host program: their definition, their usage, and the errors they raise.

Rule 1: a definition is checked when it is made. A limit is a limit, zero included, or an error that
names its field; nothing in it is ignored.
Rule 2: a charge is a fact. A reported figure below zero counts as zero, and a cost finer than a
nano-dollar as the next one up. Neither is a reason to lose the rest.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Literal, get_args

import msgspec

from tallystick.core.budget.amount import LIMIT_MAX, Budget, Dimension
from tallystick.core.charge import NANO_MAX, Charge, Money, nano_usd, shown_usd
from tallystick.core.errors import (
    Facts,
    InvalidLimit,
    ReplayDiverged,
    TallystickError,
    UsageError,
)
from tallystick.core.records import ErrorBoundary, StepReceipt, StepStatus

# The errors of steps: one for every budget that is exhausted, one for a record they left.
#
#     TallystickError
#     ├── StepBudgetError   a step passed its limit, or a call inside it is not paid for
#     ├── ReplayDiverged
#     │   └── StepsDiverged     run again on their record, steps did something else
#     └── UsageError
#         ├── InvalidStep       a definition that makes no sense, refused when it is made
#         └── StepsNotReplayed  a chain of steps, asked to be run again
#
# Rule 1: one type, three shapes. `to_dict()` gives the keys of the shape and no others: a limit
# that was passed, a call that was refused before it was sent, and either of them marked as
# escalated.
# Rule 2: a mark is put on a copy. It never hides what the error is: an escalated one is still
# recognised as a budget error by the steps around.


StepLimit = Literal["max_tokens", "max_usd"]

_CATEGORY = "budget_exceeded"
_ESCALATED = "handoff_escalation"
_STEP = ("budget_exhausted", "step_budget_exhausted")
_PREFLIGHT = ("terminal", "budget_exceeded")
_PER_DOLLAR = 10**9
_RUNS_TOLD_MAX = 10


class InvalidStep(Facts, UsageError):
    """A step has an invalid definition or value. `field` names the part."""

    code = "usage.step"
    says = "{field}: {why}"

    field: str
    why: str


class StepsNotReplayed(Facts, UsageError):
    """A chain of steps is no run: steps are host code, which replay does not run."""

    code = "usage.steps"

    chain: str
    runs: list[str]

    def text(self) -> str:
        told = ", ".join(self.runs[:_RUNS_TOLD_MAX]) or "none is in this ledger"
        left_out = len(self.runs) - _RUNS_TOLD_MAX
        more = f" and {left_out:,} more" if left_out > 0 else ""
        return (
            f"{self.chain} holds steps, which are host code; replay its runs: {told}{more}; or "
            f"call the program again inside `Session.replay_steps`"
        )


class StepsDiverged(ReplayDiverged):
    """At the same place, a program of steps asked for something else than the record says.

    `step` is the path of the step, `run` the recorded run, None if there is none.
    """

    code = "replay.diverged"

    chain: str
    step: str
    run: str | None

    def text(self) -> str:
        named = "" if self.run is None else f", run {self.run}"
        changed = f"{self.field} was {self.recorded!r} and is {self.now!r}"
        return f"steps {self.chain}, step {self.step}{named}: {changed}"


class StepExhaustion(msgspec.Struct, frozen=True, kw_only=True):
    """A step that has used more than its limit. `limit_value` and the consumed figures are exact.

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
        """The message of the error."""
        if self.limit == "max_usd":
            over = f"{shown_usd(self.consumed_usd)} > {shown_usd(self.limit_value)}"
        else:
            over = f"{self.consumed_tokens} > {self.limit_value}"
        return f"step `{self.step}` exceeded {self.limit} budget ({over})"

    def to_dict(self) -> dict[str, object]:
        """Return the facts as data, with money in dollars and every figure a float."""
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

    `projected_usd` is None if the price is unknown, which is then the reason; `limit_value` is None
    if the scope's limits are kept elsewhere.
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
        """Return the facts as data, with money in dollars."""
        kind, reason = _PREFLIGHT
        return {
            "category": _CATEGORY,
            "kind": kind,
            "reason": reason,
            "limit": f"max_{self.dimension}",
            "limit_value": _units_or_none(self.dimension, self.limit_value),
            "projected_cost_usd": _units_or_none("usd", self.projected_usd),
            "session_cost_usd": in_units("usd", self.session_usd),
            "projected_input_tokens": self.projected_input_tokens,
            "projected_output_tokens": self.projected_output_tokens,
            "provider": self.provider,
            "model": self.model,
            "message": self.message,
        }


class Escalation(msgspec.Struct, frozen=True, kw_only=True):
    """The step that passed an error on to the code above it."""

    step: str
    function: str


class StepBudgetError(TallystickError):
    """A budget around this point is exhausted. Steps decide at their boundary what follows.

    `run` and `answer` are of the run that ended by it: its id in the ledger, and its best answer.
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
        """True if a step has marked the error."""
        return self.escalation is not None

    def escalated_by(self, by: Escalation) -> StepBudgetError:
        """Return a marked copy. If a step marked the error before, that mark stays."""
        return StepBudgetError(
            self.facts,
            escalation=self.escalation or by,
            run=self.run,
            answer=self.answer,
        )

    def to_dict(self) -> dict[str, object]:
        """Return the error as data, with the keys of its shape."""
        facts = self.facts.to_dict()
        if self.escalation is None:
            return facts
        return _with_mark(facts, self.escalation)


def is_budget_error(found: object) -> bool:
    """Return True if an error, raised or as a dictionary, says that a budget is exhausted.

    A group does if it has only such errors. False for any other value.
    """
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
    """Return the budget error that an error is, or None for any other.

    A group counts if it has only budget errors: then the first one is returned. Tasks that run side
    by side raise in groups, and another error among them must not be hidden.
    """
    match error:
        case StepBudgetError():
            return error
        case BaseExceptionGroup():
            found = [budget_error_in(each) for each in error.exceptions]
            return None if None in found else found[0]
        case _:
            return None


def mark_escalated(error: object, by: Escalation) -> object:
    """Return a marked copy of a `StepBudgetError` or of any dictionary.

    Names of a step that are there already stay. Anything else is returned as it is.
    """
    if isinstance(error, StepBudgetError):
        return error.escalated_by(by)
    if isinstance(error, dict):
        return _with_mark(error, by)
    return error


def in_units(dimension: Dimension, figure: int) -> float:
    """Return a figure as a float: dollars for money, a count for the rest.

    Saturates, never raises.
    """
    try:
        return figure / (_PER_DOLLAR if dimension == "usd" else 1)
    except OverflowError:
        return sys.float_info.max


def _units_or_none(dimension: Dimension, figure: int | None) -> float | None:
    return None if figure is None else in_units(dimension, figure)


def _with_mark(facts: Mapping[str, object], by: Escalation) -> dict[str, object]:
    filled = {"step": by.step, "function": by.function}
    return {**filled, **facts, "escalated": True, "category": _ESCALATED}


_BOUNDARIES: tuple[ErrorBoundary, ...] = get_args(ErrorBoundary)
_KEYS = ("name", "model", "budget", "error_boundary")
_BUDGET_KEYS = ("max_tokens", "max_usd")


class StepDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """The definition of a step: its names, default model, limits, and what exhaustion becomes.

    `of` makes one and checks what it is given.
    """

    name: str
    function: str
    model: str | None = None
    budget: Budget = Budget()
    error_boundary: ErrorBoundary = "fail"

    @classmethod
    def of(
        cls,
        function: str,
        *,
        name: object = None,
        model: object = None,
        budget: object = None,
        error_boundary: object = None,
    ) -> StepDefinition:
        """Return a definition from values that a person wrote. None is absent.

        The default name is `function`. `budget` is a dictionary of `max_tokens` and `max_usd`.
        Raise `InvalidStep` or `InvalidLimit`, which name the field.
        """
        return cls(
            name=_name(function if name is None else name),
            function=function,
            model=_model(model),
            budget=Budget() if budget is None else _budget(budget),
            error_boundary="fail" if error_boundary is None else _boundary(error_boundary),
        )


class StepRegistry:
    """Definitions by the name of their function, for hosts that enter functions by name."""

    def __init__(self) -> None:
        self._definitions: dict[str, StepDefinition] = {}

    def register(self, function_name: object, metadata: object) -> StepDefinition:
        """Declare a function to be a step. A second registration replaces the first.

        Raise `UsageError` if the arguments have the wrong types, `InvalidStep` for an unknown key,
        and as `StepDefinition.of` does. Then an earlier registration stays.
        """
        if not isinstance(function_name, str):
            raise UsageError("__register_step: expected (function_name, metadata_dict)")
        if not isinstance(metadata, dict):
            raise UsageError("__register_step: metadata argument must be a dict")
        _check_keys(metadata, _KEYS, within="")
        definition = StepDefinition.of(function_name, **metadata)
        self._definitions[function_name] = definition
        return definition

    def find(self, function_name: str) -> StepDefinition | None:
        """Return the definition of a function, None if it is not registered."""
        return self._definitions.get(function_name)

    def reset(self) -> None:
        """Forget every registration."""
        self._definitions.clear()


class StepUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The sums of a step and everything inside it so far. `model` is the last that was asked.

    `usd` is in nano-dollars; the `unpriced` calls are in no figure of it.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    usd: int = 0
    llm_calls: int = 0
    unpriced: int = 0
    model: str | None = None

    def with_call(self, charge: Charge, *, model: str) -> StepUsage:
        """Return the sums with one more model call. An empty `model` leaves the last one."""
        return StepUsage(
            input_tokens=self.input_tokens + charge.tokens_in,
            output_tokens=self.output_tokens + charge.tokens_out,
            usd=self.usd + (charge.usd or 0),
            llm_calls=self.llm_calls + 1,
            unpriced=self.unpriced + (charge.usd is None),
            model=model or self.model,
        )

    def with_step(self, receipt: StepReceipt) -> StepUsage:
        """Return the sums with those of a step that is not run again, from its receipt."""
        return StepUsage(
            input_tokens=self.input_tokens + receipt.input_tokens,
            output_tokens=self.output_tokens + receipt.output_tokens,
            usd=self.usd + receipt.usd,
            llm_calls=self.llm_calls + receipt.llm_calls,
            unpriced=self.unpriced + receipt.unpriced,
            model=receipt.model if receipt.llm_calls else self.model,
        )


class CompletedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that was left. `model` is the last that was asked, else the declared one.

    `usd` is in nano-dollars; the `unpriced` calls are in no figure of it. `path` names the step:
    those around it, and how often each was entered there before.
    """

    name: str
    function: str
    model: str | None
    input_tokens: int
    output_tokens: int
    usd: int
    llm_calls: int
    status: StepStatus
    error: str | None = None
    unpriced: int = 0
    path: str = ""

    @classmethod
    def of(
        cls,
        definition: StepDefinition,
        usage: StepUsage,
        *,
        status: StepStatus,
        error: str | None = None,
        path: str = "",
    ) -> CompletedStep:
        """Return a step that was left now."""
        return cls(
            name=definition.name,
            function=definition.function,
            model=usage.model or definition.model,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            usd=usage.usd,
            llm_calls=usage.llm_calls,
            status=status,
            error=error,
            unpriced=usage.unpriced,
            path=path,
        )

    @classmethod
    def of_receipt(cls, receipt: StepReceipt) -> CompletedStep:
        """Return a step that was left in an earlier process."""
        return msgspec.convert(receipt, cls, from_attributes=True)

    @property
    def cost_usd(self) -> float:
        """Dollars, as near as a float comes."""
        return in_units("usd", self.usd)

    def to_dict(self) -> dict[str, object]:
        """Return the step as data, with money in dollars, without `unpriced` and `path`."""
        return {
            "name": self.name,
            "function": self.function,
            "model": self.model,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cost_usd": self.cost_usd,
            "llm_calls": self.llm_calls,
            "status": self.status,
            "error": self.error,
        }


def charge_of_call(*, input_tokens: int, output_tokens: int, cost_usd: Money | None) -> Charge:
    """Return the charge of one model call, from reported figures. A cost of None is unknown.

    Negative figures count as zero. A cost is rounded up to the nano-dollar, and is at most
    `NANO_MAX`. Raise `InvalidStep` if a count is not whole, or the cost not a finite number.
    """
    return Charge(
        tokens_in=_count(input_tokens, "input_tokens"),
        tokens_out=_count(output_tokens, "output_tokens"),
        usd=None if cost_usd is None else _cost(cost_usd),
        model_calls=1,
    )


def _count(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidStep(field=field, why=f"a count of tokens is a whole number, not {value!r}")
    return max(0, value)


def _cost(value: Money) -> int:
    """Return dollars as nano-dollars, rounded up; 0 for a negative sum, `NANO_MAX` at most.

    Raise `InvalidStep` if it is not a finite number of dollars.
    """
    wrong = InvalidStep(
        field="cost_usd", why=f"a cost is a finite number of dollars, not {value!r}"
    )
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise wrong
    try:
        # A float counts as the decimal that prints it.
        dollars = Decimal(float.__repr__(value) if isinstance(value, float) else value)
    except ArithmeticError:
        raise wrong from None
    if not dollars.is_finite():
        raise wrong
    if dollars <= 0:
        return 0
    if dollars >= NANO_MAX // _PER_DOLLAR:
        return NANO_MAX
    # At least one nano-dollar; `Fraction` would write out the digits of a tiny exponent first.
    return 1 if dollars.adjusted() < -9 else math.ceil(Fraction(dollars) * _PER_DOLLAR)


def _name(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidStep(
            field="name", why=f"a step's name is a text that is not empty, not {value!r}"
        )
    return value


def _model(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidStep(field="model", why=f"a model is given by its name, not {value!r}")
    return value or None


def _boundary(value: object) -> ErrorBoundary:
    for known in _BOUNDARIES:
        if value == known:
            return known
    why = f"{value!r} is none of {', '.join(_BOUNDARIES)}"
    raise InvalidStep(field="error_boundary", why=why)


def _budget(given: object) -> Budget:
    if not isinstance(given, dict):
        why = f"a dictionary of {' and '.join(_BUDGET_KEYS)} is needed, not {given!r}"
        raise InvalidStep(field="budget", why=why)
    _check_keys(given, _BUDGET_KEYS, within="budget.")
    tokens = _tokens(given["max_tokens"]) if "max_tokens" in given else None
    usd = _usd(given["max_usd"]) if "max_usd" in given else None
    return Budget(tokens=tokens, usd=usd)


def _tokens(value: object) -> int:
    field = "budget.max_tokens"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        why = "a limit is a whole number; leave it out for no limit"
        raise InvalidLimit(field=field, given=value, why=why)
    if value < 0:
        raise InvalidLimit(field=field, given=value, why="a limit is not negative")
    if value > LIMIT_MAX:
        raise InvalidLimit(field=field, given=value, why=f"a limit is at most {LIMIT_MAX:,}")
    return value


def _usd(value: object) -> int:
    # Text is for people and files; a definition is code, where a text is a mistake.
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        why = "a sum of dollars is a number; leave it out for no limit"
        raise InvalidLimit(field="budget.max_usd", given=value, why=why)
    return nano_usd(value, field="budget.max_usd")


def _check_keys(given: Mapping[object, object], known: tuple[str, ...], *, within: str) -> None:
    for key in given:
        if key not in known:
            raise InvalidStep(field=f"{within}{key}", why=f"unknown; known are {', '.join(known)}")
