"""When: the days and months that a query names, and whether a note is from then.

Only dates that are written out: `3 June 2023`, `June 3rd, 2023`, `2023-06-03`, `June 2023`, `in
June`. Words such as `yesterday` depend on who asks and when, and are not read. Days are UTC.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass

__all__ = ["Period", "named_periods", "nearness"]

_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september",
    "october", "november", "december",
)  # fmt: skip
_MONTH = f"(?P<month>{'|'.join(_MONTHS)})"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>\d{4})"
# The longest first: what one has read, the next ones do not see. `may` alone is mostly a verb.
_FORMS = tuple(
    re.compile(rf"\b{form}\b", re.IGNORECASE | re.ASCII)
    for form in (
        rf"{_YEAR}-(?P<number>\d{{2}})-{_DAY}",
        rf"{_DAY} (?:of )?{_MONTH},? {_YEAR}",
        rf"{_MONTH} {_DAY},? {_YEAR}",
        rf"{_MONTH},? {_YEAR}",
        rf"(?:in|during|since|of) {_MONTH}",
    )
)
_PERIODS_MAX = 8
# What happened is told on the same day or some days later.
_LATER_DAYS, _LATER_SHARE = 7, 0.5
_DAY_MS = 86_400_000
_EPOCH = datetime.date(1970, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A day, a month, or with year 0 a month of any year."""

    year: int
    month: int
    day: int = 0


def named_periods(query: str) -> tuple[Period, ...]:
    """The periods of a query, each once. What is no date, such as 31 February, is none."""
    found: dict[Period, None] = {}
    for form in _FORMS:
        for match in form.finditer(query):
            period = _period(match.groupdict())
            if period is not None:
                found[period] = None
        query = form.sub(" ", query)
    return tuple(found)[:_PERIODS_MAX]


def nearness(created_at: int, periods: tuple[Period, ...]) -> float:
    """1 for a note of one of the periods, a half in the week after it, else 0."""
    day = created_at // _DAY_MS
    return max((_near(day, period) for period in periods), default=0.0)


def _near(day: int, period: Period) -> float:
    if not period.year:
        try:
            date = _EPOCH + datetime.timedelta(days=day)
        except OverflowError:
            return 0.0
        # The month of this year, or at its turn the one of the year before.
        years = (date.year, date.year - 1)
        return max(_near(day, Period(year=year, month=period.month)) for year in years)
    first, last = _days(period)
    if first <= day <= last:
        return 1.0
    return _LATER_SHARE if last < day <= last + _LATER_DAYS else 0.0


def _days(period: Period) -> tuple[int, int]:
    """The first and the last day, counted from 1970."""
    first = datetime.date(period.year, period.month, period.day or 1)
    if period.day:
        return (first - _EPOCH).days, (first - _EPOCH).days
    # A month never has 32 days: the first of the next is in the week after the 28th.
    beyond = (first.replace(day=28) + datetime.timedelta(days=4)).replace(day=1)
    return (first - _EPOCH).days, (beyond - _EPOCH).days - 1


def _period(written: dict[str, str | None]) -> Period | None:
    number, month = written.get("number"), written.get("month")
    period = Period(
        year=int(written.get("year") or 0),
        month=int(number) if number else _MONTHS.index((month or "").lower()) + 1,
        day=int(written.get("day") or 0),
    )
    try:
        if written.get("day") is not None:
            datetime.date(period.year, period.month, period.day)
        # The month after must be one too.
        return period if not written.get("year") or 1 <= period.year < datetime.MAXYEAR else None
    except ValueError:
        return None
