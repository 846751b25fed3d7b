"""Choose the start of a run's clock: the present, a fixed time, or a given one.

The time zone is UTC, or one that the caller names. The zone of this machine is never read.
"""

from __future__ import annotations

import datetime
import time
import zoneinfo

from tallystick.core.clock import FIXED_CLOCK_NS, UTC, RunClock
from tallystick.core.errors import UsageError

NOW, FIXED = "now", "fixed"
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
# The guest counts nanoseconds in 64 bits with a sign, which end in 2262. A program may sleep, so
# it starts well before.
_END = datetime.datetime(2260, 1, 1, tzinfo=datetime.UTC)
_SHOWN_CHARS_MAX = 60


def run_clock(
    clock: str | datetime.datetime | None = None, timezone: str | None = None
) -> RunClock:
    """Return the clock that a run starts with.

    `clock` is `now` (the default), `fixed` (2026-01-01T00:00:00Z), or a time: a datetime, or text
    such as `2026-03-01` or `2026-03-01T09:30+01:00`. A time without an offset is in `timezone`.
    The offset of the zone at the start is kept for the whole run. Raise `UsageError` for anything
    else, for a time outside of 1970 to 2259, and for an unknown time zone.
    """
    name = UTC if timezone is None else timezone
    zone = _zone(name)
    clock_ns = _start(clock, zone)
    is_present = clock is None or clock == NOW
    if zone is None:
        return RunClock(clock_ns=clock_ns, is_present=is_present)
    at = _EPOCH + datetime.timedelta(seconds=clock_ns // 10**9)
    try:
        offset = at.astimezone(zone).utcoffset()
    except OverflowError:
        # Some zones cannot compute the offset of a very early or late time.
        offset = None
    seconds = 0 if offset is None else round(offset.total_seconds())
    return RunClock(clock_ns=clock_ns, timezone=name, utc_offset_s=seconds, is_present=is_present)


def _start(clock: str | datetime.datetime | None, zone: datetime.tzinfo | None) -> int:
    """Return the start in nanoseconds since 1970. Raise `UsageError` if `clock` is no such time."""
    if clock is None or clock == NOW:
        return time.time_ns()
    if clock == FIXED:
        return FIXED_CLOCK_NS
    at = clock
    if isinstance(at, str):
        try:
            at = datetime.datetime.fromisoformat(at.strip())
        except ValueError:
            raise _not_a_time(clock) from None
    if not isinstance(at, datetime.datetime):
        raise _not_a_time(clock)
    if at.tzinfo is None:
        at = at.replace(tzinfo=zone or datetime.UTC)
    if not _EPOCH <= at < _END:
        raise UsageError(f"clock: {_shortened(clock)} is not between 1970 and 2259")
    # In whole numbers: a float has too few digits for microseconds.
    return (at - _EPOCH) // datetime.timedelta(microseconds=1) * 1_000


def _zone(name: str) -> zoneinfo.ZoneInfo | None:
    """Return a time zone by its name, None for UTC. Raise `UsageError` for an unknown one."""
    if name == UTC:
        return None
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        raise UsageError(
            f"timezone: {_shortened(name)} is not known here; give a name such as UTC or "
            "Europe/Berlin (where a system has no zones, pip install tzdata)"
        ) from None


def _not_a_time(clock: object) -> UsageError:
    return UsageError(
        f"clock: must be {NOW}, {FIXED} or a time such as 2026-03-01T09:30, not {_shortened(clock)}"
    )


def _shortened(value: object) -> str:
    text = str(value) if isinstance(value, datetime.datetime) else repr(value)
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"
