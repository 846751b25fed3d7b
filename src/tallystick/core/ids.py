"""Create and check ids that sort by time, and convert moments to and from text.

Moments are milliseconds since 1970 inside the package, and RFC 3339 outside.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from tallystick.core.errors import UsageError

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TIME_MS_MAX = (1 << 48) - 1
ENTROPY_BYTES = 10
ULID_CHARS = 26


def ulid(*, time_ms: int, entropy: bytes) -> str:
    """Return the 26-character ULID of a millisecond and ten bytes of randomness.

    Raise `ValueError` if the time does not fit 48 bits, or `entropy` is not ten bytes.
    """
    if not 0 <= time_ms <= _TIME_MS_MAX:
        raise ValueError(f"time_ms does not fit 48 bits: {time_ms}")
    if len(entropy) != ENTROPY_BYTES:
        raise ValueError(f"entropy is {ENTROPY_BYTES} bytes, not {len(entropy)}")
    number = (time_ms << 80) | int.from_bytes(entropy, "big")
    return "".join(_ALPHABET[(number >> shift) & 31] for shift in range(125, -5, -5))


def is_ulid(text: str) -> bool:
    """Return True if `text` is a ULID in its canonical upper-case form."""
    return len(text) == ULID_CHARS and text[0] in "01234567" and set(text) <= set(_ALPHABET)


# Moments: milliseconds since 1970 inside, RFC 3339 at the surfaces.


_YEAR_10000_MS = 253_402_300_800_000
_TO_THE_SECOND = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)


def moment_ms(text: str) -> int:
    """Return a moment in milliseconds since 1970, from text like `2026-03-01T09:30:00Z`.

    A date alone, such as `2026-03-01`, is its midnight. Without a zone it is UTC. It is rounded to
    the millisecond, and negative before 1970. Raise `UsageError` if the text is no time.
    """
    try:
        read = datetime.fromisoformat(text)
        return round((read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError, TypeError):
        raise UsageError(f"{text!r:.80} is no time; one is 2026-03-01T09:30:00Z") from None


def moment_text(at_ms: int) -> str:
    """Return a moment in UTC, rounded down to the second.

    Outside of the years 1970 to 9999, return its milliseconds as "N ms".
    """
    if not 0 <= at_ms < _YEAR_10000_MS:
        return f"{at_ms} ms"
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def is_moment(text: str) -> bool:
    """Return True if a text is a moment to the second in UTC, in the form of `moment_text`.

    It has to be on the calendar. Years before 1970 are allowed too.
    """
    try:
        return _TO_THE_SECOND.fullmatch(text) is not None and bool(datetime.fromisoformat(text))
    except ValueError:
        return False
