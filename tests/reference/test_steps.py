"""The reference behaviour of steps, value for value: definition, charging, errors, boundaries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

from tallystick.core.budget.amount import Budget
from tallystick.core.errors import InvalidLimit, TallystickError, UsageError
from tallystick.core.records import ErrorBoundary
from tallystick.core.step import (
    CompletedStep,
    Escalation,
    InvalidStep,
    PreflightRefusal,
    StepBudgetError,
    StepDefinition,
    StepExhaustion,
    StepRegistry,
    StepUsage,
    is_budget_error,
    mark_escalated,
)
from tallystick.steps.active import StepLog
from tallystick.steps.decorator import (
    charge_step,
    completed_steps,
    current_step,
    enter_step,
    reset_steps,
    step,
    step_log,
    step_model,
)

PLAN = {
    "name": "plan",
    "model": "claude-haiku-4-5",
    "budget": {"max_tokens": 100, "max_usd": 0.05},
    "error_boundary": "continue",
}
STEP_KEYS = {
    "category", "kind", "reason", "step", "function", "limit", "limit_value", "consumed_tokens",
    "consumed_cost_usd", "error_boundary", "message",
}  # fmt: skip
PREFLIGHT_KEYS = {
    "category", "kind", "reason", "limit", "limit_value", "projected_cost_usd",
    "session_cost_usd", "projected_input_tokens", "projected_output_tokens", "provider", "model",
    "message",
}  # fmt: skip
OUTER = Escalation(step="outer", function="outer_step")


@pytest.fixture
def log() -> Iterator[StepLog]:
    with step_log() as opened:
        yield opened


def defined(**metadata: object) -> StepDefinition:
    return StepRegistry().register("plan_step", metadata)


def exhaustion(**more: Any) -> StepExhaustion:
    return StepExhaustion(
        **{
            "step": "plan",
            "function": "plan_step",
            "limit": "max_tokens",
            "limit_value": 100,
            "consumed_tokens": 130,
            "consumed_usd": 1_000_000,
            "error_boundary": "continue",
            **more,
        }
    )


def preflight() -> PreflightRefusal:
    return PreflightRefusal(
        dimension="usd",
        limit_value=50_000_000,
        projected_usd=60_000_000,
        session_usd=10_000_000,
        projected_input_tokens=1_000,
        projected_output_tokens=4_096,
        provider="anthropic",
        model="anthropic:claude-haiku-4-5",
        message="usd: $0.06 needed, $0.04 left in step plan",
    )


# -- the vectors -------------------------------------------------------------------------------


def test_a_registered_function_is_charged_and_recorded(log: StepLog) -> None:
    registry = StepRegistry()
    registry.register("plan_step", PLAN)

    with enter_step(registry.find("plan_step"), depth=3) as active:
        assert active is not None
        assert active is current_step()
        assert active.depth == 3
        assert step_model() == "claude-haiku-4-5"
        charge_step(10, 20, 0.001)
        assert (active.usage.input_tokens, active.usage.output_tokens) == (10, 20)
        assert active.usage.usd / 1e9 == pytest.approx(0.001, abs=1e-9)
        with pytest.raises(StepBudgetError) as caught:
            charge_step(50, 50, 0)
        assert is_budget_error(caught.value)

    assert caught.value.to_dict()["consumed_tokens"] == 130
    assert caught.value.to_dict()["limit"] == "max_tokens"
    assert current_step() is None
    (record,) = log.drain()
    assert record.llm_calls == 2
    assert record.to_dict() == {
        "name": "plan",
        "function": "plan_step",
        "model": "claude-haiku-4-5",
        "input_tokens": 60,
        "output_tokens": 70,
        "cost_usd": 0.001,
        "llm_calls": 2,
        "status": "completed",
        "error": None,
    }


def test_a_function_that_is_not_registered_activates_nothing(log: StepLog) -> None:
    registry = StepRegistry()
    registry.register("plan_step", PLAN)

    with enter_step(registry.find("other")) as active:
        assert active is None
        assert current_step() is None
        assert step_model() is None
        charge_step(1_000, 1_000, 5)

    assert log.peek() == []


# -- definition and parsing ----------------------------------------------------------------------


def test_a_name_defaults_to_the_function() -> None:
    assert defined().name == "plan_step"
    assert defined(name="plan").name == "plan"
    assert defined(name="plan").function == "plan_step"


@pytest.mark.parametrize("name", ["", 5, b"plan", ["plan"]])
def test_a_name_is_a_text(name: object) -> None:
    with pytest.raises(InvalidStep, match=r"^name: "):
        defined(name=name)


@pytest.mark.parametrize(("given", "model"), [("m", "m"), ("", None), (None, None)])
def test_an_empty_model_is_no_model(given: object, model: str | None) -> None:
    assert defined(model=given).model == model


def test_a_model_is_given_by_name() -> None:
    with pytest.raises(InvalidStep, match=r"^model: "):
        defined(model=7)


@pytest.mark.parametrize(
    ("given", "limit"), [(0, 0), (1, 1), (100.0, 100), (0.0, 0), (10**15, 10**15)]
)
def test_a_token_limit_is_a_whole_number_and_zero_is_one(given: float, limit: int) -> None:
    assert defined(budget={"max_tokens": given}).budget == Budget(tokens=limit)


@pytest.mark.parametrize(
    "given",
    [
        -1,
        0.5,
        99.9,
        -1.0,
        float("nan"),
        float("inf"),
        "100",
        None,
        True,
        [100],
        Decimal(100),
        2**70,
    ],
)
def test_anything_else_is_no_token_limit(given: object) -> None:
    with pytest.raises(InvalidLimit, match=r"^budget\.max_tokens: "):
        defined(budget={"max_tokens": given})


@pytest.mark.parametrize(
    ("given", "nano"),
    [
        (0, 0),
        (0.0, 0),
        (0.05, 50_000_000),
        (0.1, 100_000_000),
        (3, 3_000_000_000),
        (Decimal("0.000000001"), 1),
        (1e-09, 1),
    ],
)
def test_a_money_limit_is_an_exact_decimal(given: object, nano: int) -> None:
    assert defined(budget={"max_usd": given}).budget == Budget(usd=nano)


@pytest.mark.parametrize(
    "given",
    [
        -0.01,
        -1,
        float("nan"),
        float("inf"),
        "0.05",
        "much",
        None,
        False,
        [],
        Decimal("1e-10"),
        1e30,
    ],
)
def test_anything_else_is_no_money_limit(given: object) -> None:
    with pytest.raises(InvalidLimit, match=r"^budget\.max_usd: "):
        defined(budget={"max_usd": given})


@pytest.mark.parametrize("given", [100, "100", [100], ("max_tokens", 1), Budget(tokens=1)])
def test_a_budget_that_is_no_dictionary_is_an_error_that_names_the_field(given: object) -> None:
    with pytest.raises(InvalidStep, match=r"^budget: "):
        defined(budget=given)


def test_a_definition_without_a_budget_has_no_limits() -> None:
    assert defined().budget == Budget()
    assert defined(budget={}).budget == Budget()


@pytest.mark.parametrize("given", ["fail", "continue", "escalate"])
def test_the_boundaries(given: str) -> None:
    assert defined(error_boundary=given).error_boundary == given


def test_a_boundary_that_is_absent_is_fail() -> None:
    assert defined().error_boundary == "fail"


@pytest.mark.parametrize("given", ["Continue", "skip", "", "fail ", 3, True, ["fail"]])
def test_an_unknown_boundary_is_an_error(given: object) -> None:
    with pytest.raises(InvalidStep, match=r"^error_boundary: .*fail, continue, escalate"):
        defined(error_boundary=given)


@pytest.mark.parametrize(
    ("metadata", "key"),
    [
        ({"nmae": "plan"}, "nmae"),
        ({"function": "x"}, "function"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"budget": {"max_token": 3}}, "budget.max_token"),
        ({"budget": {"max_usd": 1, "usd": 3}}, "budget.usd"),
        ({5: 6}, "5"),
    ],
)
def test_an_unknown_key_is_an_error_that_names_it(metadata: dict[Any, object], key: str) -> None:
    with pytest.raises(InvalidStep, match=f"^{key}: unknown"):
        StepRegistry().register("plan_step", metadata)


@pytest.mark.parametrize("name", [None, 5, b"plan_step", ["plan_step"]])
def test_a_registration_without_a_function_name_is_refused(name: object) -> None:
    with pytest.raises(UsageError) as caught:
        StepRegistry().register(name, {})

    assert str(caught.value) == "__register_step: expected (function_name, metadata_dict)"


@pytest.mark.parametrize("metadata", [None, [], "plan", 5, [("name", "plan")]])
def test_a_registration_without_a_dictionary_is_refused(metadata: object) -> None:
    with pytest.raises(UsageError) as caught:
        StepRegistry().register("plan_step", metadata)

    assert str(caught.value) == "__register_step: metadata argument must be a dict"


def test_a_second_registration_replaces_the_first() -> None:
    registry = StepRegistry()
    registry.register("plan_step", PLAN)
    again = registry.register("plan_step", {"model": "other"})

    assert registry.find("plan_step") == again
    assert again == StepDefinition(name="plan_step", function="plan_step", model="other")


def test_a_registration_that_fails_leaves_the_one_before() -> None:
    registry = StepRegistry()
    first = registry.register("plan_step", PLAN)
    with pytest.raises(InvalidStep):
        registry.register("plan_step", {"typo": 1})

    assert registry.find("plan_step") == first


# -- activation and charging ---------------------------------------------------------------------


def test_the_innermost_model_is_the_default_and_an_outer_one_is_not(log: StepLog) -> None:
    with enter_step(defined(model="large")):
        with enter_step(defined(model="small")):
            assert step_model() == "small"
        with enter_step(defined(model="")):
            assert step_model() is None
        assert step_model() == "large"
    assert step_model() is None


def test_negative_usage_counts_as_none(log: StepLog) -> None:
    with enter_step(defined(budget={"max_tokens": 0, "max_usd": 0})):
        charge_step(-5, -7, -0.5)

    (record,) = log.peek()
    assert (record.input_tokens, record.output_tokens, record.usd) == (0, 0, 0)
    assert record.llm_calls == 1


def test_exactly_at_a_limit_is_allowed(log: StepLog) -> None:
    with enter_step(defined(budget={"max_tokens": 100, "max_usd": 0.05})):
        charge_step(60, 40, 0.05)

    assert [each.status for each in log.peek()] == ["completed"]


@pytest.mark.parametrize(
    ("budget", "usage", "limit"),
    [
        ({"max_tokens": 0}, (1, 0, 0), "max_tokens"),
        ({"max_tokens": 0}, (0, 1, 0), "max_tokens"),
        ({"max_tokens": 100}, (100, 1, 0), "max_tokens"),
        ({"max_usd": 0}, (5, 5, 0.000000001), "max_usd"),
        ({"max_usd": 0.05}, (5, 5, 0.0500000001), "max_usd"),
        ({"max_tokens": 9, "max_usd": 0.05}, (5, 5, 1), "max_tokens"),
    ],
)
def test_a_limit_is_broken_by_more_and_tokens_are_tested_first(
    budget: dict[str, float], usage: tuple[int, int, float], limit: str, log: StepLog
) -> None:
    with pytest.raises(StepBudgetError) as caught, enter_step(defined(budget=budget)):
        charge_step(*usage)

    assert caught.value.to_dict()["limit"] == limit


def test_usage_counts_in_every_enclosing_step_and_is_recorded_before_it_is_raised(
    log: StepLog,
) -> None:
    outer = defined(name="outer", budget={"max_tokens": 10})
    inner = defined(name="inner", budget={"max_tokens": 1_000})
    with pytest.raises(StepBudgetError) as caught, enter_step(outer), enter_step(inner):
        charge_step(6, 5, 0.25, "m")

    assert caught.value.to_dict()["step"] == "outer"
    assert [(each.name, each.input_tokens, each.output_tokens) for each in log.peek()] == [
        ("inner", 6, 5),
        ("outer", 6, 5),
    ]
    assert [each.cost_usd for each in log.peek()] == [0.25, 0.25]


def test_the_last_model_that_is_not_empty_is_remembered(log: StepLog) -> None:
    with enter_step(defined(model="declared")):
        charge_step(1, 1, 0, "first")
        charge_step(1, 1, 0, "second")
        charge_step(1, 1, 0, "")
    with enter_step(defined(model="declared")):
        charge_step(1, 1, 0)
    with enter_step(defined()):
        pass

    assert [each.model for each in log.peek()] == ["second", "declared", None]


def test_drain_takes_and_peek_copies(log: StepLog) -> None:
    with enter_step(defined()):
        pass

    peeked = log.peek()
    peeked.clear()
    assert len(log.peek()) == 1
    assert len(log.drain()) == 1
    assert log.peek() == log.drain() == []


def test_reset_clears_registry_stack_and_log_together(log: StepLog) -> None:
    registry = StepRegistry()
    definition = registry.register("plan_step", PLAN)
    with enter_step(definition):
        pass

    with enter_step(definition):
        reset_steps(registry)
        assert current_step() is None
        charge_step(1_000, 1_000, 1)

    assert registry.find("plan_step") is None
    assert completed_steps().peek() == []


# -- error shapes --------------------------------------------------------------------------------


def test_the_shape_of_a_step_budget_error() -> None:
    error = StepBudgetError(exhaustion())

    assert isinstance(error, TallystickError)
    assert set(error.to_dict()) == STEP_KEYS
    assert error.to_dict() == {
        "category": "budget_exceeded",
        "kind": "budget_exhausted",
        "reason": "step_budget_exhausted",
        "step": "plan",
        "function": "plan_step",
        "limit": "max_tokens",
        "limit_value": 100.0,
        "consumed_tokens": 130.0,
        "consumed_cost_usd": 0.001,
        "error_boundary": "continue",
        "message": "step `plan` exceeded max_tokens budget (130 > 100)",
    }
    assert str(error) == error.to_dict()["message"]
    for key in ("limit_value", "consumed_tokens", "consumed_cost_usd"):
        assert type(error.to_dict()[key]) is float


def test_the_message_is_in_the_units_of_the_limit_that_broke() -> None:
    facts = exhaustion(limit="max_usd", limit_value=50_000_000, consumed_usd=150_500_000)
    error = StepBudgetError(facts)

    assert str(error) == "step `plan` exceeded max_usd budget ($0.1505 > $0.05)"
    assert error.to_dict()["limit_value"] == 0.05
    assert error.to_dict()["consumed_cost_usd"] == 0.1505


@pytest.mark.parametrize("boundary", ["fail", "escalate", "continue"])
def test_the_error_says_which_boundary_was_declared(boundary: str, log: StepLog) -> None:
    definition = defined(budget={"max_tokens": 0}, error_boundary=boundary)
    with enter_step(definition), pytest.raises(StepBudgetError) as caught:
        charge_step(1, 0, 0)

    assert caught.value.to_dict()["error_boundary"] == boundary


def test_the_shape_of_a_preflight_error() -> None:
    error = StepBudgetError(preflight())

    assert set(error.to_dict()) == PREFLIGHT_KEYS
    assert error.to_dict() == {
        "category": "budget_exceeded",
        "kind": "terminal",
        "reason": "budget_exceeded",
        "limit": "max_usd",
        "limit_value": 0.05,
        "projected_cost_usd": 0.06,
        "session_cost_usd": 0.01,
        "projected_input_tokens": 1_000,
        "projected_output_tokens": 4_096,
        "provider": "anthropic",
        "model": "anthropic:claude-haiku-4-5",
        "message": "usd: $0.06 needed, $0.04 left in step plan",
    }


def test_an_escalated_step_error_keeps_its_step() -> None:
    error = StepBudgetError(exhaustion())
    marked = error.escalated_by(OUTER)

    assert marked.to_dict() == {
        **error.to_dict(),
        "escalated": True,
        "category": "handoff_escalation",
    }
    assert not error.escalated
    assert "escalated" not in error.to_dict()


def test_an_escalated_preflight_error_is_given_the_step_that_escalated_it() -> None:
    error = StepBudgetError(preflight())
    marked = error.escalated_by(OUTER)

    assert marked.to_dict() == {
        **error.to_dict(),
        "escalated": True,
        "category": "handoff_escalation",
        "step": "outer",
        "function": "outer_step",
    }
    again = marked.escalated_by(Escalation(step="further", function="out"))
    assert again.to_dict() == marked.to_dict()


@pytest.mark.parametrize("facts", [exhaustion(), preflight()], ids=["step", "preflight"])
def test_a_budget_error_is_recognised_raised_and_as_data_and_escalated(
    facts: StepExhaustion | PreflightRefusal,
) -> None:
    error = StepBudgetError(facts)
    marked = error.escalated_by(OUTER)

    assert is_budget_error(error)
    assert is_budget_error(error.to_dict())
    assert is_budget_error(marked)
    assert is_budget_error(marked.to_dict())


@pytest.mark.parametrize(
    ("found", "recognised"),
    [
        ({"kind": "budget_exhausted", "reason": "step_budget_exhausted"}, True),
        ({"category": "budget_exceeded"}, True),
        ({"kind": "budget_exhausted"}, False),
        ({"reason": "step_budget_exhausted"}, False),
        ({"kind": "terminal", "reason": "budget_exceeded"}, False),
        ({"category": "handoff_escalation"}, False),
        ({}, False),
        ("budget_exceeded", False),
        (None, False),
        (ValueError("budget_exceeded"), False),
    ],
)
def test_recognition_is_by_kind_and_reason_or_by_category(found: object, recognised: bool) -> None:
    assert is_budget_error(found) is recognised


def test_marking_data_copies_it_and_fills_only_what_is_absent() -> None:
    given = {"category": "budget_exceeded", "step": "inner", "more": 1}
    marked = mark_escalated(given, OUTER)

    assert marked == {
        "category": "handoff_escalation",
        "step": "inner",
        "function": "outer_step",
        "more": 1,
        "escalated": True,
    }
    assert given == {"category": "budget_exceeded", "step": "inner", "more": 1}


@pytest.mark.parametrize("found", ["budget exceeded", None, 5, ValueError("x"), ["a"]])
def test_what_is_no_dictionary_passes_through_unchanged(found: object) -> None:
    assert mark_escalated(found, OUTER) is found


# -- boundaries ----------------------------------------------------------------------------------


def spend_too_much(boundary: ErrorBoundary) -> Callable[[], str | None]:
    @step("plan", budget={"max_tokens": 10}, error_boundary=boundary)
    def plan_step() -> str:
        charge_step(8, 8, 0.5, "m")
        return "done"

    return plan_step


MESSAGE = "step `plan` exceeded max_tokens budget (16 > 10)"


def test_continue_returns_none_and_records_skipped(log: StepLog) -> None:
    assert spend_too_much("continue")() is None

    (record,) = log.peek()
    assert (record.status, record.error) == ("skipped", MESSAGE)


def test_escalate_raises_it_marked_and_records_escalated(log: StepLog) -> None:
    with pytest.raises(StepBudgetError) as caught:
        spend_too_much("escalate")()

    assert caught.value.escalated
    assert caught.value.to_dict()["category"] == "handoff_escalation"
    assert caught.value.to_dict()["step"] == "plan"
    (record,) = log.peek()
    assert (record.status, record.error) == ("escalated", MESSAGE)


def test_fail_raises_it_unchanged_and_records_failed(log: StepLog) -> None:
    with pytest.raises(StepBudgetError) as caught:
        spend_too_much("fail")()

    assert not caught.value.escalated
    assert caught.value.to_dict()["category"] == "budget_exceeded"
    (record,) = log.peek()
    assert (record.status, record.error) == ("failed", MESSAGE)


@pytest.mark.parametrize("boundary", ["fail", "continue", "escalate"])
def test_another_error_is_recorded_and_raised_whatever_the_boundary(
    boundary: str, log: StepLog
) -> None:
    error = ValueError("no such file")

    with (
        pytest.raises(ValueError, match="no such") as caught,
        enter_step(defined(error_boundary=boundary)),
    ):
        raise error

    assert caught.value is error
    assert [(each.status, each.error) for each in log.peek()] == [
        ("failed", "ValueError: no such file")
    ]


def test_a_boundary_is_not_consulted_for_what_was_caught_inside(log: StepLog) -> None:
    with enter_step(defined(error_boundary="escalate")), pytest.raises(StepBudgetError):
        spend_too_much("fail")()

    assert [each.status for each in log.peek()] == ["failed", "completed"]


def test_deeper_boundaries_come_first(log: StepLog) -> None:
    definition = defined(name="outer", error_boundary="continue")
    with enter_step(definition):
        spend_too_much("escalate")()

    assert [(each.name, each.status) for each in log.peek()] == [
        ("plan", "escalated"),
        ("outer", "skipped"),
    ]


@pytest.mark.parametrize("facts", [exhaustion(), preflight()], ids=["step", "preflight"])
def test_outer_steps_see_what_inner_ones_escalated(
    facts: StepExhaustion | PreflightRefusal, log: StepLog
) -> None:
    with (
        enter_step(defined(name="outer", error_boundary="continue")),
        enter_step(defined(name="inner", error_boundary="escalate")),
    ):
        raise StepBudgetError(facts)

    assert [each.status for each in log.peek()] == ["escalated", "skipped"]


def test_a_record_has_the_fields_of_the_reference() -> None:
    record = CompletedStep.of(defined(), StepUsage(), status="completed")

    assert list(record.to_dict()) == [
        "name", "function", "model", "input_tokens", "output_tokens", "cost_usd", "llm_calls",
        "status", "error",
    ]  # fmt: skip
