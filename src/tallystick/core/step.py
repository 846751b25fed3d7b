"""Named steps of a host program: how one is declared, what it used and became, what it raises.

Rule 1: a definition is checked when it is made. A limit is a limit, zero included, or an error that
names its field; nothing that was written is passed over.
Rule 2: a charge is a fact. What a provider reports below zero counts as zero, and a cost finer than
a nano-dollar as the next one up; neither is a reason to lose the rest.
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

# What steps raise: one error for every budget that is exhausted, one for a record they left.
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
    """A step is defined by something that defines none. `field` says where."""

    code = "usage.step"
    says = "{field}: {why}"

    field: str
    why: str


class StepsNotReplayed(Facts, UsageError):
    """A chain of steps is no run: what they did is host code, which nobody runs again."""

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

    `step` is the path of the step, `run` the recorded run, None where there is none.
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


# Named steps of a host program: how one is declared, what it used, and what became of it.


_BOUNDARIES: tuple[ErrorBoundary, ...] = get_args(ErrorBoundary)
_KEYS = ("name", "model", "budget", "error_boundary")
_BUDGET_KEYS = ("max_tokens", "max_usd")


class StepDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """What a step is: its names, its default model, its limits, and what exhaustion becomes.

    Made by `of`, which checks what it is given.
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
        """A definition from what a person wrote. None is absent."""
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
        """Declare a function to be a step. A second registration replaces the first."""
        if not isinstance(function_name, str):
            raise UsageError("__register_step: expected (function_name, metadata_dict)")
        if not isinstance(metadata, dict):
            raise UsageError("__register_step: metadata argument must be a dict")
        _check_keys(metadata, _KEYS, within="")
        definition = StepDefinition.of(function_name, **metadata)
        self._definitions[function_name] = definition
        return definition

    def find(self, function_name: str) -> StepDefinition | None:
        """The step that a function is, None if it is none."""
        return self._definitions.get(function_name)

    def reset(self) -> None:
        """Forget every registration."""
        self._definitions.clear()


class StepUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What a step and everything inside it used so far. `model` is the last that was asked.

    `usd` is in nano-dollars; the `unpriced` calls are in no figure of it.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    usd: int = 0
    llm_calls: int = 0
    unpriced: int = 0
    model: str | None = None

    def with_call(self, charge: Charge, *, model: str) -> StepUsage:
        """The same with one more model call."""
        return StepUsage(
            input_tokens=self.input_tokens + charge.tokens_in,
            output_tokens=self.output_tokens + charge.tokens_out,
            usd=self.usd + (charge.usd or 0),
            llm_calls=self.llm_calls + 1,
            unpriced=self.unpriced + (charge.usd is None),
            model=model or self.model,
        )

    def with_step(self, receipt: StepReceipt) -> StepUsage:
        """The same with all that a step used which is not run again."""
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

    `usd` is in nano-dollars; the `unpriced` calls are in no figure of it. `path` says which of the
    steps it was: those around it, and how often each was entered there before.
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
        """A step that was left in an earlier life of its program."""
        return msgspec.convert(receipt, cls, from_attributes=True)

    @property
    def cost_usd(self) -> float:
        """Dollars, as near as a float comes."""
        return in_units("usd", self.usd)

    def to_dict(self) -> dict[str, object]:
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
    """What one model call came to, from what somebody reported. A cost of None is not known."""
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
    """Dollars as nano-dollars, rounded up. Absurd sums count as the largest there is."""
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
    # Nothing is smaller than one, so what is far below it need not be written out.
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
