"""What the strategies draw can be written, read again and added up."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import find, given
from hypothesis import strategies as st

from tallystick.core.budget.amount import Amount, Budget
from tallystick.core.charge import ModelUsage
from tallystick.testing.strategies import amounts, budgets, json_values, texts, usages


@given(text=texts(max_size=20), value=json_values())
def test_what_is_drawn_can_be_encoded_and_comes_back(text: str, value: Any) -> None:
    assert text.encode().decode() == text
    assert json.loads(json.dumps(value)) == value


@given(value=json_values(integers=st.integers(0, 9), floats=False))
def test_numbers_can_be_bounded(value: Any) -> None:
    def numbers(value: Any) -> list[int]:
        if isinstance(value, dict | list):
            inner = value.values() if isinstance(value, dict) else value
            return [number for each in inner for number in numbers(each)]
        return [value] if type(value) in (int, float) else []

    assert all(type(each) is int and 0 <= each <= 9 for each in numbers(value))


@given(usage=usages(st.integers(3, 5)))
def test_usage_has_the_counts_that_it_is_given(usage: ModelUsage) -> None:
    assert {usage.tokens_in, usage.tokens_out} <= {3, 4, 5}
    assert usage.raw == {}


def test_each_kind_that_a_law_must_meet_is_among_them() -> None:
    def nested(value: Any) -> bool:
        return isinstance(value, dict) and any(isinstance(each, list) for each in value.values())

    assert nested(find(json_values(), nested))
    assert find(amounts(unpriced=True), lambda each: each.usd is None) == Amount(usd=None)
    assert find(budgets(), lambda each: each.usd is None and each.tokens == 0) == Budget(tokens=0)
