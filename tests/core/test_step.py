"""Steps as data: what a call is charged, what a record says, which errors are budget errors."""

from __future__ import annotations

import json
from decimal import Decimal

import msgspec
import pytest

from tallystick.core.charge import NANO_MAX, Charge
from tallystick.core.step import (
    CompletedStep,
    Escalation,
    InvalidStep,
    PreflightRefusal,
    StepBudgetError,
    StepDefinition,
    StepExhaustion,
    StepUsage,
    budget_error_in,
    charge_of_call,
    in_units,
    is_budget_error,
)

BY = Escalation(step="outer", function="outer_step")
EXHAUSTED = StepBudgetError(
    StepExhaustion(
        step="plan",
        function="plan_step",
        limit="max_tokens",
        limit_value=1,
        consumed_tokens=10**400,
        consumed_usd=0,
        error_boundary="fail",
    ),
    run="R",
    answer="half",
)
UNPRICED = StepBudgetError(
    PreflightRefusal(
        dimension="usd",
        limit_value=None,
        projected_usd=None,
        session_usd=0,
        projected_input_tokens=1,
        projected_output_tokens=1,
        provider="",
        model="scripted",
        message="nobody knows",
    )
)


@pytest.mark.parametrize(
    ("cost", "nano"),
    [
        (0, 0),
        (0.1 + 0.2, 300_000_001),
        (0.3, 300_000_000),
        ("0.25", 250_000_000),
        (Decimal("1e-99"), 1),
        (1e-10, 1),
        (1.5e-9, 2),
        (-3, 0),
        (10**30, NANO_MAX),
        (1e300, NANO_MAX),
        (Decimal("1e999999"), NANO_MAX),
        (None, None),
    ],
)
def test_a_cost_is_rounded_up_to_a_nano_dollar_and_never_lost(
    cost: float | str | Decimal | None, nano: int | None
) -> None:
    assert charge_of_call(input_tokens=1, output_tokens=2, cost_usd=cost) == Charge(
        tokens_in=1, tokens_out=2, usd=nano, model_calls=1
    )


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), "much", True, [1], Decimal("sNaN")])
def test_what_is_no_cost_is_refused_before_anything_is_recorded(cost: float) -> None:
    with pytest.raises(InvalidStep, match=r"^cost_usd: "):
        charge_of_call(input_tokens=1, output_tokens=1, cost_usd=cost)


@pytest.mark.parametrize("count", [1.0, "1", None, True])
def test_tokens_are_counted_in_whole_numbers(count: int) -> None:
    with pytest.raises(InvalidStep, match=r"^output_tokens: "):
        charge_of_call(input_tokens=1, output_tokens=count, cost_usd=0)


def test_a_price_that_is_not_known_is_counted_apart_and_not_as_zero() -> None:
    usage = StepUsage().with_call(Charge(tokens_in=3, usd=None), model="a")
    usage = usage.with_call(Charge(tokens_out=4, usd=5), model="")

    assert usage == StepUsage(
        input_tokens=3, output_tokens=4, usd=5, llm_calls=2, unpriced=1, model="a"
    )


def test_a_record_can_be_stored_and_read_again() -> None:
    definition = StepDefinition.of("plan_step", name="plan", budget={"max_tokens": 3})
    record = CompletedStep.of(definition, StepUsage(usd=7), status="failed", error="E", path="p")

    assert msgspec.json.decode(msgspec.json.encode(record), type=CompletedStep) == record


@pytest.mark.parametrize("error", [EXHAUSTED, UNPRICED, UNPRICED.escalated_by(BY)])
def test_every_shape_is_json(error: StepBudgetError) -> None:
    assert json.loads(json.dumps(error.to_dict(), allow_nan=False)) == error.to_dict()


def test_a_price_that_is_not_known_is_none_in_the_error_too() -> None:
    assert UNPRICED.to_dict()["projected_cost_usd"] is None
    assert UNPRICED.to_dict()["limit_value"] is None


def test_an_absurd_figure_saturates() -> None:
    assert in_units("tokens", 10**400) == in_units("usd", 10**400) > 1e308


def test_a_mark_keeps_what_the_run_had() -> None:
    marked = EXHAUSTED.escalated_by(BY)

    assert (marked.run, marked.answer) == ("R", "half")
    assert marked.escalation == BY


def test_a_group_of_nothing_but_budget_errors_is_one() -> None:
    group = ExceptionGroup("tasks", [ExceptionGroup("more", [UNPRICED]), EXHAUSTED])

    assert budget_error_in(group) is UNPRICED
    assert is_budget_error(group)


@pytest.mark.parametrize(
    "error",
    [
        ExceptionGroup("tasks", [UNPRICED, ValueError("seen")]),
        BaseExceptionGroup("tasks", [KeyboardInterrupt(), EXHAUSTED]),
        KeyboardInterrupt(),
        RuntimeError("budget"),
    ],
)
def test_another_error_among_them_is_not_hidden(error: BaseException) -> None:
    assert budget_error_in(error) is None
    assert not is_budget_error(error)
