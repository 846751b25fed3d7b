"""Remarks on dates and on upper and lower case: each can be followed to the letter."""

from __future__ import annotations

import datetime
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.inputs.shapes import (
    about_time,
    dates_in_column,
    dates_in_lines,
    differing_in_case,
)

# Dates are slow to draw and to read: fewer of them, in proportion to what the profile says.
EXAMPLES = settings().max_examples * 2 // 5
FORMS = ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y")
days = st.dates(datetime.date(1900, 1, 1), datetime.date(2099, 12, 31))
# Days that cannot be taken for months: they tell in which order they are written.
telling = st.builds(
    datetime.date, year=st.integers(1900, 2099), month=st.integers(1, 12), day=st.integers(13, 28)
)
FORM = re.compile(r"strptime\([^']*(?:'[^']*'[^']*)?, '(%[^']+)'\)")


def form_in(remark: str) -> str:
    found = FORM.search(remark)
    assert found is not None, remark
    return found[1]


@settings(max_examples=EXAMPLES)
@given(dates=st.lists(telling, min_size=1, max_size=20), form=st.sampled_from(FORMS[1:]))
def test_the_form_that_is_told_reads_every_date_of_the_column(
    dates: list[datetime.date], form: str
) -> None:
    column = [f"{day:{form}}" for day in dates]

    (remark,) = dates_in_column("due", column)

    assert "row['due']" in remark
    told = form_in(remark)
    assert [datetime.datetime.strptime(cell, told).date() for cell in column] == dates  # noqa: DTZ007


@settings(max_examples=EXAMPLES)
@given(dates=st.lists(days, min_size=1, max_size=10))
def test_dates_with_the_year_first_are_said_to_compare_as_text(
    dates: list[datetime.date],
) -> None:
    column = [f"{day:%Y-%m-%d}" for day in dates]

    (remark,) = dates_in_column("due", column)

    assert "compares as text" in remark
    assert f"({column[-1][:7]!r})" in remark
    assert sorted(column) == [f"{day:%Y-%m-%d}" for day in sorted(dates)]


@pytest.mark.parametrize("place", [0, 1, 500, 998, 999])
def test_one_date_of_a_long_column_is_enough_to_tell_the_order(place: int) -> None:
    column = ["01/02/2031"] * 1_000
    column[place] = "01/31/2031"

    (remark,) = dates_in_column("due", column)

    assert form_in(remark) == "%m/%d/%Y"


@pytest.mark.parametrize(
    "column",
    [
        [],
        ["", ""],
        ["soon", "later"],
        ["2031-05-06", "soon"],
        ["2031-05-06 10:00", "2031-05-07 11:00"],
        ["6.5.2031", "7.5.2031"],
        ["106.05.2031", "107.05.2031"],
    ],
)
def test_a_column_of_something_else_gets_no_remark(column: list[str]) -> None:
    assert dates_in_column("due", column) == []


def test_empty_cells_are_no_reason_not_to_tell() -> None:
    assert len(dates_in_column("due", ["06.05.2031", "", "", "07.05.2031"])) == 1


@settings(max_examples=EXAMPLES)
@given(dates=st.lists(telling, min_size=1, max_size=10), form=st.sampled_from(FORMS))
def test_what_is_told_of_lines_finds_the_date_in_each(
    dates: list[datetime.date], form: str
) -> None:
    lines = [f"{day:{form}} | V-{day.day} left" for day in dates]

    (remark,) = dates_in_lines(lines)

    taken, _, _ = remark.partition("[0] is the date")
    pattern = re.search(r're\.search\(r"(.+)", line\)', taken)
    assert pattern is not None
    found = [re.search(pattern[1], line) for line in lines]
    assert [match and match[0] for match in found] == [line.partition(" ")[0] for line in lines]
    if form != "%Y-%m-%d":
        assert form_in(remark) == form


def test_lines_of_which_few_have_a_date_get_no_remark() -> None:
    assert dates_in_lines(["2031-05-06 left", "no date", "nor here"]) == []
    assert dates_in_lines([]) == []


@given(values=st.lists(st.text("abAB", max_size=4)))
def test_case_is_remarked_on_if_and_only_if_two_values_differ_in_it_alone(
    values: list[str],
) -> None:
    remarks = differing_in_case(values, "'state'")

    assert bool(remarks) == (len({value.lower() for value in values}) < len(set(values)))
    for remark in remarks:
        found = re.fullmatch(
            r"Upper and lower case differ: 'state' can be '(\w+)' or '(\w+)'\.", remark
        )
        assert found is not None
        assert found[1] in values
        assert found[2] in values
        assert found[1] != found[2]
        assert found[1].lower() == found[2].lower()


@pytest.mark.parametrize(
    ("question", "time"),
    [
        ("which came after 2031-05-06?", True),
        ("what was sold in March?", True),
        ("the oldest one?", True),
        ("how many in 2031?", True),
        ("on which date?", True),
        ("before 6.5.31?", True),
        ("who owns V-2764?", False),
        ("which company owns it?", False),
        ("how many dayshifts?", False),
        ("", False),
    ],
)
def test_a_question_is_about_time_if_it_names_some(question: str, time: bool) -> None:
    assert about_time(question) is time
