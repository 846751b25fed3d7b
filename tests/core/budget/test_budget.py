"""The budget tree, by example: what is refused, what is recorded, and what is said of it."""

from __future__ import annotations

import inspect
from fractions import Fraction
from types import ModuleType
from typing import Any

import msgspec
import pytest
from tests.core.budget.flat_price import flat_price

from tallystick.core import errors
from tallystick.core.budget import amount
from tallystick.core.budget.amount import (
    DIMENSIONS,
    LIMIT_MAX,
    Amount,
    Budget,
    BudgetExhausted,
    BudgetOverrun,
    BudgetUnpriced,
    InvalidScope,
    NegativeAmount,
    Remaining,
    ReservationClosed,
    Scope,
    ScopeKind,
    ScopeUnknown,
    tightest,
)
from tallystick.core.budget.tree import BudgetTree, Reservation, affordable_output
from tallystick.core.charge import Charge
from tallystick.core.errors import InvalidLimit

CALL = Amount(tokens=100, usd=50, model_calls=1)
PLAN = Scope(id="plan", parent="run", kind="step", name="plan")


def a_tree(
    *, session: Budget | None = None, run: Budget | None = None, step: Budget | None = None
) -> BudgetTree:
    tree = BudgetTree()
    none = Budget()
    tree.enter("session", parent=None, budget=session or none, kind="session", name="mine")
    tree.enter("run", parent="session", budget=run or none, kind="run", name="01H")
    tree.enter("plan", parent="run", budget=step or none, kind="step", name="plan")
    return tree


# -- limits --------------------------------------------------------------------------------------


def test_a_budget_is_made_of_dollars_and_whole_numbers() -> None:
    budget = Budget.of(usd="0.50", tokens=100.0, turns=0, depth=LIMIT_MAX)

    assert budget == Budget(usd=500_000_000, tokens=100, turns=0, depth=LIMIT_MAX)
    assert type(budget.tokens) is int


@pytest.mark.parametrize("field", [each for each in DIMENSIONS if each != "usd"])
@pytest.mark.parametrize(
    "value", [-1, 1.5, float("nan"), float("inf"), True, "100", [], LIMIT_MAX + 1]
)
def test_what_is_no_limit_is_an_error_that_names_the_field(field: str, value: Any) -> None:
    with pytest.raises(InvalidLimit, match=f"^{field}: a limit is") as caught:
        Budget.of(**{field: value})

    assert caught.value.field == field


def test_money_that_is_no_limit_names_its_field_too() -> None:
    with pytest.raises(InvalidLimit, match=r"^usd: "):
        Budget.of(usd=-1)


def test_a_stored_budget_below_zero_is_not_read() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"tokens": -1}', type=Budget)


def test_every_struct_has_its_fields_in_the_order_of_the_dimensions() -> None:
    for struct, names in ((Budget, DIMENSIONS), (Amount, DIMENSIONS[:-1])):
        assert struct.__struct_fields__ == names
    assert Remaining.__struct_fields__ == (*DIMENSIONS, "by")


# -- reserving -----------------------------------------------------------------------------------


def test_exactly_at_the_limit_is_allowed_and_one_more_is_not() -> None:
    tree = a_tree(step=Budget(tokens=100))

    tree.reserve("plan", CALL)

    with pytest.raises(BudgetExhausted, match="tokens: 1 needed, 0 left in step plan"):
        tree.reserve("plan", Amount(tokens=1))


def test_zero_stops_and_none_does_not() -> None:
    assert a_tree(step=Budget(tokens=0)).refusal("plan", Amount(tokens=1)) is not None
    assert a_tree(step=Budget()).refusal("plan", Amount(tokens=10**30)) is None


def test_a_refusal_holds_nothing_in_any_scope() -> None:
    tree = a_tree(session=Budget(usd=49), run=Budget(tokens=1_000), step=Budget(tokens=1_000))

    with pytest.raises(BudgetExhausted) as caught:
        tree.reserve("plan", CALL)

    refused = caught.value
    assert (refused.dimension, refused.scope.id, refused.needed, refused.left) == (
        "usd",
        "session",
        50,
        49,
    )
    assert "$0.00000005 needed, $0.000000049 left in session mine" in str(refused)
    assert all(row.reserved == Amount() for row in tree.rows())


def test_where_several_limits_refuse_tokens_are_named_before_money_and_the_tightest_scope() -> None:
    tree = a_tree(session=Budget(tokens=10), run=Budget(tokens=20), step=Budget(usd=1))

    refused = tree.refusal("plan", CALL)

    assert isinstance(refused, BudgetExhausted)
    assert (refused.dimension, refused.scope.id, refused.left) == ("tokens", "session", 10)


def test_what_another_scope_has_reserved_is_not_there_for_this_one() -> None:
    tree = a_tree(run=Budget(tokens=150))
    tree.enter("do", parent="run", budget=Budget(), kind="step", name="do")

    first = tree.reserve("plan", CALL)

    assert tree.refusal("do", CALL) is not None
    tree.release(first)
    assert tree.refusal("do", CALL) is None


def test_a_scope_that_is_over_one_limit_reserves_nothing_in_any_dimension() -> None:
    tree = a_tree(step=Budget(wall_ms=10, tokens=1_000))

    tree.spend("plan", Amount(wall_ms=11))

    refused = tree.refusal("plan", CALL)
    assert isinstance(refused, BudgetExhausted)
    assert (refused.dimension, refused.left) == ("wall_ms", -1)


# -- settling ------------------------------------------------------------------------------------


def test_settling_records_everywhere_before_it_reports_every_limit_that_is_over() -> None:
    tree = a_tree(session=Budget(tokens=120), run=Budget(), step=Budget(tokens=100, usd=50))
    held = tree.reserve("plan", CALL)

    breaches = tree.settle(held, Amount(tokens=130, usd=60, model_calls=1))

    assert [(each.scope.id, each.dimension, each.limit, each.spent) for each in breaches] == [
        ("plan", "tokens", 100, 130),
        ("plan", "usd", 50, 60),
        ("session", "tokens", 120, 130),
    ]
    assert str(breaches[0]) == "step plan: 130 tokens spent of 100"
    assert [row.spent.tokens for row in tree.rows()] == [130, 130, 130]
    assert [row.reserved for row in tree.rows()] == [Amount()] * 3
    assert tree.remaining("plan").tokens == -30
    assert tree.refusal("plan", Amount()) is not None


def test_what_was_spent_before_counts_in_the_next_breach() -> None:
    tree = a_tree(step=Budget(tokens=100))

    first = tree.settle(tree.reserve("plan", Amount(tokens=30)), Amount(tokens=30))
    second = tree.settle(tree.reserve("plan", Amount(tokens=70)), Amount(tokens=100))

    assert first == []
    assert [each.spent for each in second] == [130]


def test_exactly_at_the_limit_is_no_breach() -> None:
    tree = a_tree(step=Budget(tokens=100))

    assert tree.settle(tree.reserve("plan", CALL), CALL) == []


@pytest.mark.parametrize("first", ["settle", "release"])
def test_a_reservation_is_closed_once(first: str) -> None:
    tree = a_tree()
    held = tree.reserve("plan", CALL)
    tree.settle(held, CALL) if first == "settle" else tree.release(held)
    before = tree.rows()

    with pytest.raises(ReservationClosed, match="reservation 1 of scope plan is not open"):
        tree.settle(held, CALL)
    with pytest.raises(ReservationClosed):
        tree.release(held)

    assert tree.rows() == before


def test_a_reservation_of_another_tree_is_not_taken_for_this_ones() -> None:
    tree, other = a_tree(), a_tree()
    held, foreign = tree.reserve("plan", CALL), other.reserve("plan", CALL)

    with pytest.raises(ReservationClosed):
        tree.release(foreign)
    with pytest.raises(ReservationClosed):
        tree.release(Reservation(id=held.id, scope="plan", amount=Amount(tokens=10**6)))

    tree.release(held)


def test_an_amount_below_zero_changes_nothing() -> None:
    tree = a_tree()
    held = tree.reserve("plan", CALL)
    before = tree.rows()

    for act in (
        lambda bad: tree.reserve("plan", bad),
        lambda bad: tree.settle(held, bad),
        lambda bad: tree.spend("plan", bad),
    ):
        with pytest.raises(NegativeAmount, match="usd: an amount is not negative, not -1"):
            act(Amount(usd=-1))

    assert tree.rows() == before
    tree.release(held)


# -- money that nobody knows ---------------------------------------------------------------------


def test_an_unknown_price_is_refused_where_money_is_limited() -> None:
    tree = a_tree(session=Budget(usd=10**9))

    with pytest.raises(BudgetUnpriced, match="session mine has a limit"):
        tree.reserve("plan", Amount(usd=None, tokens=5))

    assert all(row.reserved == Amount() for row in tree.rows())


@pytest.mark.parametrize("limit", [None, 0])
def test_a_waived_or_unlimited_call_of_unknown_price_is_counted_apart(limit: int | None) -> None:
    tree = a_tree(run=Budget(usd=limit))

    held = tree.reserve("plan", Amount(usd=None, tokens=5), usd_waived=limit is not None)
    breaches = tree.settle(held, Amount(usd=None, tokens=4))

    assert breaches == []
    assert [(row.unpriced, row.spent.usd) for row in tree.rows()] == [(1, 0)] * 3


def test_a_waived_call_that_was_not_billed_is_not_counted() -> None:
    tree = a_tree(run=Budget(usd=0))

    tree.release(tree.reserve("plan", Amount(usd=None), usd_waived=True))

    assert [row.unpriced for row in tree.rows()] == [0, 0, 0]


def test_a_price_that_becomes_unknown_settles_at_what_was_reserved() -> None:
    tree = a_tree(run=Budget(usd=100))

    tree.settle(tree.reserve("plan", CALL), Amount(usd=None, tokens=7))

    row = tree.rows()[1]
    assert (row.spent.usd, row.spent.tokens, row.unpriced) == (50, 7, 0)


def test_a_charge_that_asked_no_model_cost_nothing_and_one_that_did_is_unpriced() -> None:
    assert Amount.of_charge(Charge(turns=1, wall_ms=5)) == Amount(turns=1, wall_ms=5)
    assert Amount.of_charge(Charge(tokens_in=3, tokens_out=4, model_calls=1)) == Amount(
        tokens=7, usd=None, model_calls=1
    )


# -- scopes --------------------------------------------------------------------------------------


def test_what_remains_is_the_tightest_of_all_scopes_with_its_name() -> None:
    tree = a_tree(
        session=Budget(tokens=1_000, usd=5), run=Budget(tokens=300), step=Budget(tokens=400)
    )
    tree.reserve("plan", Amount(tokens=100))
    tree.spend("run", Amount(tokens=50))

    left = tree.remaining("plan")

    assert (left.tokens, left.usd, left.turns) == (150, 5, None)
    assert {dimension: str(scope) for dimension, scope in left.by.items()} == {
        "tokens": "run 01H",
        "usd": "session mine",
    }


def test_of_two_sources_the_tighter_figure_wins_with_its_scope() -> None:
    other = Scope(id="d", parent=None, kind="deployment", name="acme")
    near = Remaining(tokens=5, usd=9, turns=1, by={"tokens": PLAN, "usd": PLAN, "turns": PLAN})
    far = Remaining(tokens=6, usd=-1, fuel=3, by={"tokens": other, "usd": other, "fuel": other})

    both = tightest(near, far)

    assert (both.tokens, both.usd, both.turns, both.fuel, both.depth) == (5, -1, 1, 3, None)
    assert both.by == {"tokens": PLAN, "usd": other, "turns": PLAN, "fuel": other}


def test_a_run_inside_a_run_needs_depth_and_a_step_does_not() -> None:
    tree = a_tree(session=Budget(depth=2), run=Budget(depth=1))
    tree.enter("child", parent="plan", budget=Budget(depth=9), kind="run", name="child")
    tree.enter("inner", parent="child", budget=Budget(), kind="step", name="inner")

    with pytest.raises(BudgetExhausted, match="depth: 1 needed, 0 left in run 01H"):
        tree.enter("grandchild", parent="inner", budget=Budget(), kind="run", name="x")

    assert (tree.remaining("run").depth, tree.remaining("inner").depth) == (1, 0)
    assert [row.deepest for row in tree.rows()] == [1, 1, 1, 0, 0]
    assert [row.scope.id for row in tree.rows()][-1] == "inner"


def test_runs_side_by_side_are_no_deeper_than_one() -> None:
    tree = a_tree(run=Budget(depth=1))

    for number in range(50):
        tree.enter(f"child {number}", parent="run", budget=Budget(), kind="run", name="")

    assert tree.remaining("run").depth == 1


def test_a_run_with_depth_zero_has_no_runs_in_it_but_may_be_entered() -> None:
    tree = a_tree(session=Budget(depth=0))

    with pytest.raises(BudgetExhausted, match="depth"):
        tree.enter("child", parent="run", budget=Budget(), kind="run", name="")


def test_leaving_gives_the_last_row_and_forgets_the_scope() -> None:
    tree = a_tree(step=Budget(tokens=100))
    tree.settle(tree.reserve("plan", CALL), Amount(tokens=40))

    row = tree.leave("plan")

    assert (row.spent.tokens, row.remaining.tokens, row.left) == (40, 60, True)
    assert [row.scope.id for row in tree.rows()] == ["session", "run"]
    for act in (tree.remaining, tree.leave):
        with pytest.raises(ScopeUnknown):
            act("plan")
    tree.enter("plan", parent="run", budget=Budget(), kind="step", name="again")


def test_a_scope_left_with_something_reserved_stays_until_that_is_settled() -> None:
    tree = a_tree(step=Budget(tokens=100), run=Budget(tokens=200))
    held = tree.reserve("plan", CALL)

    assert tree.leave("plan").reserved == CALL
    tree.leave("run")
    with pytest.raises(ScopeUnknown):
        tree.reserve("plan", Amount())
    breaches = tree.settle(held, Amount(tokens=300))

    assert [(each.scope.id, each.spent) for each in breaches] == [("plan", 300), ("run", 300)]
    assert [row.scope.id for row in tree.rows()] == ["session"]


def test_a_scope_is_not_left_before_those_inside_it() -> None:
    tree = a_tree()

    with pytest.raises(InvalidScope, match="1 scopes inside it are open"):
        tree.leave("run")


@pytest.mark.parametrize(
    ("kind", "parent"),
    [("deployment", "session"), ("deployment", "run"), ("session", "session"), ("session", "plan")],
)
def test_deployments_and_sessions_do_not_stand_inside_what_they_hold(
    kind: ScopeKind, parent: str
) -> None:
    with pytest.raises(InvalidScope, match=f"a {kind} does not stand in a"):
        a_tree().enter("new", parent=parent, budget=Budget(), kind=kind, name="")


def test_an_id_is_entered_once_and_a_parent_must_be_open() -> None:
    tree = a_tree()

    with pytest.raises(InvalidScope, match="open already"):
        tree.enter("plan", parent="run", budget=Budget(), kind="step", name="plan")
    with pytest.raises(ScopeUnknown):
        tree.enter("new", parent="gone", budget=Budget(), kind="step", name="plan")


@pytest.mark.parametrize(
    ("charged", "dimension"),
    [
        (Amount(tokens=101, usd=1, model_calls=1), "tokens"),
        (Amount(tokens=1, usd=101, model_calls=1), "usd"),
    ],
)
def test_after_a_charge_above_its_reservation_the_next_call_is_refused(
    charged: Amount, dimension: str
) -> None:
    tree = BudgetTree()
    tree.enter("all", parent=None, budget=Budget(usd=10**9), kind="session", name="")
    tree.enter("free", parent="all", budget=Budget(turns=9), kind="run", name="")
    tree.enter("run", parent="free", budget=Budget(tokens=10**6), kind="run", name="")
    worst = Amount(tokens=100, usd=100, model_calls=1)

    tree.settle(tree.reserve("run", worst), charged)

    for scope, by in (("run", "run"), ("free", "all"), ("all", "all")):
        with pytest.raises(BudgetOverrun, match="max_tokens") as caught:
            tree.reserve(scope, worst)
        assert (caught.value.scope.id, caught.value.dimension) == (by, dimension)
        assert (caught.value.left, caught.value.needed) == (100, 101)
    assert [row.reserved for row in tree.rows()] == [Amount()] * 3


def test_a_scope_that_limits_no_tokens_and_no_money_pays_after_an_overrun() -> None:
    tree = BudgetTree()
    tree.enter("run", parent=None, budget=Budget(turns=9), kind="run", name="")

    tree.settle(tree.reserve("run", Amount(tokens=1)), Amount(tokens=2))

    assert tree.refusal("run", Amount(tokens=1)) is None


def test_a_charge_as_large_as_its_reservation_refuses_nothing() -> None:
    tree = BudgetTree()
    tree.enter("run", parent=None, budget=Budget(tokens=10, usd=10), kind="run", name="")

    tree.settle(tree.reserve("run", Amount(tokens=2, usd=2)), Amount(tokens=2, usd=2))

    assert tree.refusal("run", Amount(tokens=1, usd=1)) is None


# -- errors --------------------------------------------------------------------------------------


def test_every_error_stands_in_the_drawing_and_has_a_code_of_its_own() -> None:
    classes = errors_of(amount)
    codes = [each.code for each in classes + errors_of(errors)]

    assert classes
    assert amount.__doc__ is not None
    assert [each for each in classes if each.__name__ not in amount.__doc__] == []
    assert len(set(codes)) == len(codes)


def errors_of(module: ModuleType) -> list[Any]:
    return [
        each
        for _, each in inspect.getmembers(module, inspect.isclass)
        if each.__module__ == module.__name__
        and issubclass(each, BaseException)
        and each is not errors.Facts
    ]


# -- the output cap ------------------------------------------------------------------------------

# A third of a nano-dollar for input, two and a half for output: no whole numbers anywhere.
PRICE = flat_price(nano_in=Fraction(1, 3), nano_out=Fraction(5, 2))


def left_with(**left: int) -> Remaining:
    return Remaining(by=dict.fromkeys(DIMENSIONS, PLAN), **left)


def test_a_price_is_rounded_up() -> None:
    assert [PRICE(1, 0), PRICE(3, 0), PRICE(0, 1), PRICE(3, 2), PRICE(4, 2)] == [1, 1, 3, 6, 7]


@pytest.mark.parametrize(
    ("left", "cap"),
    [
        (left_with(), 500),
        (left_with(tokens=600), 500),
        (left_with(tokens=599), 499),
        (left_with(tokens=110), 10),
        (left_with(usd=1_284), 500),
        (left_with(usd=1_283), 499),
        (left_with(usd=1_281), 499),
        (left_with(usd=1_280), 498),
        (left_with(usd=100, tokens=110), 10),
        (left_with(usd=59), 10),
    ],
)
def test_the_output_cap_is_what_the_tightest_limit_still_pays(left: Remaining, cap: int) -> None:
    found = affordable_output(
        left, tokens_in=100, tokens_out_wanted=500, tokens_out_min=10, price=PRICE
    )

    assert found == cap


@pytest.mark.parametrize(
    ("left", "dimension", "needed"),
    [(left_with(tokens=109), "tokens", 110), (left_with(usd=58), "usd", 59)],
)
def test_below_a_useful_minimum_a_call_is_refused(
    left: Remaining, dimension: str, needed: int
) -> None:
    with pytest.raises(BudgetExhausted) as caught:
        affordable_output(
            left, tokens_in=100, tokens_out_wanted=500, tokens_out_min=10, price=PRICE
        )

    assert (caught.value.dimension, caught.value.needed) == (dimension, needed)
    assert caught.value.left == needed - 1
    assert caught.value.scope == PLAN


def test_a_short_reply_that_is_wanted_short_is_no_less_useful() -> None:
    cap = affordable_output(
        left_with(tokens=103), tokens_in=100, tokens_out_wanted=3, tokens_out_min=10, price=PRICE
    )

    assert cap == 3


def test_without_a_price_money_is_no_measure_unless_it_is_limited() -> None:
    tree = a_tree(run=Budget(tokens=150))
    unpriced: dict[str, Any] = {
        "tokens_in": 100, "tokens_out_wanted": 90, "tokens_out_min": 1, "price": None
    }  # fmt: skip

    assert affordable_output(tree.remaining("plan"), **unpriced) == 50
    tree = a_tree(run=Budget(tokens=150, usd=10**9))
    with pytest.raises(BudgetUnpriced):
        affordable_output(tree.remaining("plan"), **unpriced)
    assert affordable_output(tree.remaining("plan"), **unpriced, usd_waived=True) == 50
