"""Days and months that a query names."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.memory.recall.rank import Period, named_periods, nearness


def ms(year: int, month: int, day: int, hour: int = 0) -> int:
    moment = datetime.datetime(year, month, day, hour, tzinfo=datetime.UTC)
    return int(moment.timestamp()) * 1000


@pytest.mark.parametrize(
    "query",
    ["on 3 June 2023", "3rd of June, 2023", "June 3, 2023?", "june 3rd 2023", "at 2023-06-03."],
)
def test_a_day_is_read_however_it_is_written(query: str) -> None:
    assert named_periods(query) == (Period(year=2023, month=6, day=3),)


def test_months_are_read_with_and_without_a_year() -> None:
    assert named_periods("in June 2023") == (Period(year=2023, month=6),)
    assert named_periods("camping in July") == (Period(year=0, month=7),)


@pytest.mark.parametrize(
    "query",
    ["", "may I?", "march on", "31 February 2023", "2023-13-01", "June 99, 2023", "0000-01-01"],
)
def test_what_is_no_date_is_none(query: str) -> None:
    assert named_periods(query) == ()


def test_a_note_is_of_a_period_or_told_in_the_week_after() -> None:
    day = named_periods("3 June 2023")

    assert nearness(ms(2023, 6, 3, 23), day) == 1.0
    assert nearness(ms(2023, 6, 10), day) == 0.5
    assert nearness(ms(2023, 6, 11), day) == 0.0
    assert nearness(ms(2023, 6, 2, 23), day) == 0.0


def test_a_month_without_a_year_is_of_every_year() -> None:
    december = named_periods("in December")

    assert [nearness(ms(year, 12, 31), december) for year in (1999, 2023)] == [1.0, 1.0]
    assert nearness(ms(2024, 1, 5), december) == 0.5
    assert nearness(ms(2024, 2, 1), december) == 0.0


@given(st.text() | st.from_regex(r"\d{1,2} (May|June),? \d{4}"), st.integers(-(2**60), 2**60))
def test_any_text_and_time_have_a_nearness(query: str, created_at: int) -> None:
    assert nearness(created_at, named_periods(query)) in (0.0, 0.5, 1.0)
