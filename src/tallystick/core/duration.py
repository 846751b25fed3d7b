"""Read durations that people write: a whole number and a unit, such as 90s, 30m, 12h, 7d or 2w."""

from __future__ import annotations

import re

from tallystick.core.errors import InvalidLimit

_SECOND_MS = 1_000
_UNIT_MS = {
    "s": _SECOND_MS,
    "m": 60 * _SECOND_MS,
    "h": 3_600 * _SECOND_MS,
    "d": 86_400 * _SECOND_MS,
    "w": 604_800 * _SECOND_MS,
}
_DURATION = re.compile(r"(0|[1-9][0-9]{0,5})([smhdw])", re.ASCII)


def duration_ms(text: str, *, field: str, units: str = "smhdw", why: str) -> int:
    """Return a duration in milliseconds. `units` are those that are allowed here.

    The number has at most six digits, without a leading zero. Raise `InvalidLimit` for any other
    text, with `field` and `why`.
    """
    found = _DURATION.fullmatch(text)
    if found is None or found[2] not in units:
        raise InvalidLimit(field=field, given=text, why=why)
    return int(found[1]) * _UNIT_MS[found[2]]
