"""Named steps of a host program: how one is declared, what it used, and what became of it.

Rule 1: a definition is checked when it is made. A limit is a limit, zero included, or an error that
names its field; nothing that was written is passed over.
Rule 2: a charge is a fact. What a provider reports below zero counts as zero, and a cost finer than
a nano-dollar as the next one up; neither is a reason to lose the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import get_args

import msgspec

from tallystick.core.budget_amount import LIMIT_MAX, Budget
from tallystick.core.charge import Charge
from tallystick.core.errors import InvalidLimit, UsageError
from tallystick.core.money import NANO_MAX, Money, nano_usd
from tallystick.core.step_errors import InvalidStep, in_units
from tallystick.core.step_records import ErrorBoundary, StepReceipt, StepStatus

__all__ = [
    "CompletedStep",
    "ErrorBoundary",
    "StepDefinition",
    "StepRegistry",
    "StepStatus",
    "StepUsage",
    "charge_of_call",
]

_BOUNDARIES: tuple[ErrorBoundary, ...] = get_args(ErrorBoundary)
_KEYS = ("name", "model", "budget", "error_boundary")
_BUDGET_KEYS = ("max_tokens", "max_usd")
_PER_DOLLAR = 10**9


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
        return cls(
            name=receipt.name,
            function=receipt.function,
            model=receipt.model,
            input_tokens=receipt.input_tokens,
            output_tokens=receipt.output_tokens,
            usd=receipt.usd,
            llm_calls=receipt.llm_calls,
            status=receipt.status,
            error=receipt.error,
            unpriced=receipt.unpriced,
            path=receipt.path,
        )

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
