"""Define the clock of a run: its start, and the sentence about it in the prompt.

The start is in the record of the run. Programs see the clock move a microsecond at each reading and
by what they sleep, so a replay reads the same times. A record without a start means
`FIXED_CLOCK_NS`.
"""

from __future__ import annotations

import datetime

import msgspec

# 2026-01-01T00:00:00Z, where every clock started before runs recorded the present.
FIXED_CLOCK_NS = 1_767_225_600_000_000_000
UTC = "UTC"
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
# Not `strftime`: its names of days follow the locale, and a replay may run under another one.
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class RunClock(msgspec.Struct, frozen=True, kw_only=True):
    """The start of a run's clock, in nanoseconds since 1970, and the time zone of its user.

    The offset of the zone is recorded with its name, because another version of the zone database
    could give another one. A replay has to compute the same prompt again. `is_present` is True if
    the clock was to start at the start of the run, not at a chosen time.
    """

    clock_ns: int = FIXED_CLOCK_NS
    timezone: str = UTC
    utc_offset_s: int = 0
    is_present: bool = False


def clock_sentence(clock: RunClock) -> str:
    """Return the sentence that gives a model the time, to the minute, with its time zone.

    In another zone than UTC, a second sentence says that the clock of programs is in UTC.
    """
    at = _EPOCH + datetime.timedelta(seconds=clock.clock_ns // 10**9 + clock.utc_offset_s)
    said = f"It is {_DAYS[at.weekday()]}, {at:%Y-%m-%d %H:%M}"
    if clock.timezone == UTC:
        return f"{said} UTC."
    # Programs have no zone of their own: the same variable would mean another time elsewhere.
    return (
        f"{said} in {clock.timezone} (UTC{_offset(clock.utc_offset_s)}). The clock of programs is "
        "in UTC."
    )


def _offset(seconds: int) -> str:
    sign = "-" if seconds < 0 else "+"
    minutes = abs(seconds) // 60
    return f"{sign}{minutes // 60:02}:{minutes % 60:02}"
