"""Money is exact, or refused."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.charge import NANO_MAX, Money, nano_usd, shown_usd
from tallystick.core.errors import InvalidLimit

DOLLARS_MAX = NANO_MAX // 10**9


class LoudFloat(float):
    def __repr__(self) -> str:
        return "LoudFloat"


@pytest.mark.parametrize(
    ("value", "nano"),
    [
        (0, 0),
        ("0.50", 500_000_000),
        (" 1 ", 1_000_000_000),
        (3, 3_000_000_000),
        (0.1, 100_000_000),
        (1e-9, 1),
        ("1e-9", 1),
        ("0.0000000010", 1),
        (-0.0, 0),
        (Decimal("2.000000001"), 2_000_000_001),
        (DOLLARS_MAX, DOLLARS_MAX * 10**9),
        (LoudFloat(0.25), 250_000_000),
    ],
)
def test_dollars_become_whole_nano_dollars(value: Money, nano: int) -> None:
    assert nano_usd(value) == nano


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (-1, "not negative"),
        ("-0.01", "not negative"),
        (float("nan"), "finite"),
        ("sNaN", "finite"),
        (float("inf"), "finite"),
        (True, "a decimal number"),
        (None, "a decimal number"),
        ([], "a decimal number"),
        ("a lot", "a decimal number"),
        ("", "a decimal number"),
        (1e-10, "nine decimals"),
        ("0.1234567891", "nine decimals"),
        ("1e-999999999", "nine decimals"),
        (DOLLARS_MAX + 1, "at most"),
        ("1e999999", "at most"),
        (10**400, "at most"),
    ],
)
def test_what_is_no_exact_sum_is_an_error_that_names_the_field(value: Any, why: str) -> None:
    with pytest.raises(InvalidLimit, match=why) as caught:
        nano_usd(value, field="max_usd")

    assert caught.value.field == "max_usd"
    assert str(caught.value).startswith("max_usd: ")


@pytest.mark.parametrize(
    ("nano", "text"),
    [
        (0, "$0.00"),
        (500_000_000, "$0.50"),
        (123_000, "$0.000123"),
        (1, "$0.000000001"),
        (1_204_500_000_000, "$1,204.50"),
        (-20_000_000, "-$0.02"),
        (None, "unpriced"),
    ],
)
def test_a_sum_is_shown_to_its_last_place_and_at_least_in_cents(
    nano: int | None, text: str
) -> None:
    assert shown_usd(nano) == text


@given(nano=st.integers(0, DOLLARS_MAX * 10**9))
def test_a_sum_that_is_shown_reads_back_as_itself(nano: int) -> None:
    assert nano_usd(shown_usd(nano).replace("$", "").replace(",", "")) == nano
