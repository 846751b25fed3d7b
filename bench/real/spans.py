"""Spans of days: how many lines, or how much in them, from one day to another."""

from __future__ import annotations

import calendar
import datetime
import random

from bench.real.draw import NOUNS, csv_text, dates, identifiers, people, source
from bench.real.task import Task, money, number_check

__all__ = ["date_count", "date_sum"]

_DAY = datetime.timedelta(days=1)


def _span(rng: random.Random, first: datetime.date) -> tuple[datetime.date, datetime.date]:
    """A span well inside a year, across the end of a month."""
    start = first + _DAY * rng.randint(40, 200)
    return start, start + _DAY * rng.randint(31, 110)


def date_count(seed: int) -> Task:
    """How many tickets were opened from one day to another, both counted."""
    rng = source("date-count", seed)
    first = datetime.date(rng.randint(2015, 2024), 1, 1)
    start, end = _span(rng, first)
    count = rng.randint(800, 1_500)
    days = dates(rng, count, first=first, days=365)
    # Both ends are hit, so that leaving one out shows.
    days += [start] * rng.randint(2, 5) + [end] * rng.randint(2, 5)
    rng.shuffle(days)
    form = rng.choice(
        [
            "{iso} ticket {id} opened by {who}",
            "{iso} {clock} ticket {id} opened by {who}",
            "ticket {id}; opened {dots}; {who}",
        ]
    )
    owners = people(rng, 40)
    lines = [
        form.format(
            iso=day.isoformat(),
            dots=day.strftime("%d.%m.%Y"),
            clock=f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}",
            id=number,
            who=rng.choice(owners),
        )
        for day, number in zip(days, identifiers(rng, len(days)), strict=True)
    ]
    dotted = "{dots}" in form
    shown = "%d.%m.%Y" if dotted else "%Y-%m-%d"
    told = " Dates are written day.month.year." if dotted else ""
    question = (
        f"How many tickets were opened from {start.strftime(shown)} to {end.strftime(shown)}, "
        f"both days included?{told}"
    )
    right = sum(start <= day <= end for day in days)
    at_start, at_end = days.count(start), days.count(end)
    misses = [right - at_end, right - at_start, right - at_start - at_end, len(days), right + 1]
    return Task(
        name="date-count",
        kind="date range",
        seed=seed,
        question=question,
        files={"tickets.txt": "\n".join(lines) + "\n"},
        expected=str(right),
        check=number_check(str(right), question=question),
        near_misses=tuple(str(miss) for miss in misses),
    )


def date_sum(seed: int) -> Task:
    """What was spent in a month, or from one day to another."""
    rng = source("date-sum", seed)
    year = rng.randint(2016, 2023)
    first = datetime.date(year, 1, 1)
    count = rng.randint(900, 1_600)
    column = rng.choice(["amount", "Cost", "price_eur", "Total Paid"])
    day_column = rng.choice(["date", "Booking Date", "day"])
    # Two years, so that a month alone does not say which.
    days = dates(rng, count, first=first, days=730)
    start, end = _span(rng, first)
    days += [start] * 3 + [end] * 3
    rng.shuffle(days)
    cents = [rng.randint(150, 60_000) for _ in days]
    paid = list(zip(days, cents, strict=True))
    if rng.random() < 0.4:
        start = start.replace(day=1)
        end = (start + 31 * _DAY).replace(day=1) - _DAY
        span = f"in {calendar.month_name[start.month]} {year}"
        near = [sum(cent for day, cent in paid if day.month == start.month)]
    else:
        span = f"from {start.isoformat()} to {end.isoformat()}, both days included"
        near = [sum(cent for day, cent in paid if start <= day < end)]
    rows = [
        [number, day.isoformat(), rng.choice(NOUNS), money(cent)]
        for number, (day, cent) in zip(identifiers(rng, len(days)), paid, strict=True)
    ]
    question = f'What is the sum of "{column}" over the rows dated {span}?'
    right = sum(cent for day, cent in paid if start <= day <= end)
    near += [sum(cents), right + 1, right - 100]
    return Task(
        name="date-sum",
        kind="date range",
        seed=seed,
        question=question,
        files={"expenses.csv": csv_text(["id", day_column, "item", column], rows)},
        expected=money(right),
        check=number_check(money(right), question=question),
        near_misses=tuple(money(miss) for miss in near),
    )
