"""What to know of data before computing with it: how dates are written, upper and lower case.

A date that is compared as text in the wrong order gives a wrong answer and no error. So the model
is told which way it is written and what makes it comparable.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

__all__ = ["about_time", "dates_in_column", "dates_in_lines", "differing_in_case"]

_SAMPLED = 200
_SHARE = 0.9

# As a pattern, as `strptime` reads it, and whether it sorts as text.
_YEAR_FIRST = (r"[0-9]{4}-[0-9]{2}-[0-9]{2}", "%Y-%m-%d")
_FORMS = (
    _YEAR_FIRST,
    (r"[0-9]{2}\.[0-9]{2}\.[0-9]{4}", "%d.%m.%Y"),
    (r"[0-9]{2}/[0-9]{2}/[0-9]{4}", "%d/%m/%Y"),
)

_TIME = re.compile(
    r"\b(?:date[sd]?|days?|weeks?|months?|years?|since|until|before|after|between|earliest|latest|"
    r"oldest|newest|when|january|february|march|april|may|june|july|august|september|october|"
    r"november|december)\b|\b(?:19|20)[0-9]{2}\b|[0-9]{1,2}[./-][0-9]{1,2}[./-][0-9]{2,4}",
    re.IGNORECASE,
)


def about_time(question: str) -> bool:
    """Whether a question has to do with dates."""
    return _TIME.search(question) is not None


def dates_in_column(name: str, column: Sequence[str]) -> list[str]:
    """A remark on a column of dates, or none."""
    found = _form([cell for cell in column if cell], whole=True)
    if found is None:
        return []
    (pattern, form), example = found
    cell = f"row[{name!r}]"
    if (pattern, form) == _YEAR_FIRST:
        return [
            f"{name!r} is text like {example!r}: it compares as text, {cell}[:7] is its month "
            f"({example[:7]!r}), {cell}[:4] its year."
        ]
    return [
        f"{name!r} is text like {example!r}: compare datetime.strptime({cell}, {form!r}) "
        "(from datetime import datetime)."
    ]


def dates_in_lines(lines: Sequence[str]) -> list[str]:
    """A remark on dates inside lines, or none."""
    found = _form([line for line in lines if line], whole=False)
    if found is None:
        return []
    (pattern, form), example = found
    taken = f're.search(r"{_short(pattern)}", line)[0]'
    if (pattern, form) == _YEAR_FIRST:
        return [f"{taken} is the date of a line, such as {example!r}; it compares as text."]
    return [
        f"{taken} is the date of a line, such as {example!r}: compare "
        f"datetime.strptime(..., {form!r}) (from datetime import datetime)."
    ]


def differing_in_case(values: Collection[str], what: str) -> list[str]:
    """A remark if some values are the same but for upper and lower case."""
    first: dict[str, str] = {}
    for value in values:
        other = first.setdefault(value.lower(), value)
        if other != value and len(value) <= 40:
            low, high = sorted((other, value))
            return [f"Upper and lower case differ: {what} can be {low!r} or {high!r}."]
    return []


def _sampled(items: Sequence[str]) -> Sequence[str]:
    return items[:: max(1, len(items) // _SAMPLED)]


def _form(items: Sequence[str], *, whole: bool) -> tuple[tuple[str, str], str] | None:
    """The form of date that nearly all of these have, and one of them."""
    if not items:
        return None
    for pattern, form in _FORMS:
        compiled = re.compile(rf"(?<![0-9]){pattern}(?![0-9])")
        seek = compiled.fullmatch if whole else compiled.search
        found = [match[0] for item in _sampled(items) if (match := seek(item))]
        if len(found) < _SHARE * len(_sampled(items)):
            continue
        if form == "%d/%m/%Y":
            order = _order([match[0] for item in items if (match := seek(item))])
            return None if order is None else ((pattern, order), found[-1])
        return (pattern, form), found[-1]
    return None


def _order(dates: Sequence[str]) -> str | None:
    """Whether the day or the month comes first, if any of the dates shows it."""
    if any(int(date[3:5]) > 12 for date in dates):
        return "%m/%d/%Y"
    return "%d/%m/%Y" if any(int(date[:2]) > 12 for date in dates) else None


def _short(pattern: str) -> str:
    return re.sub(r"\[0-9\]\{(\d)\}", lambda match: r"\d" * int(match[1]), pattern)
