"""Moments: milliseconds since 1970 inside, RFC 3339 at the surfaces."""

from __future__ import annotations

from datetime import UTC, datetime

from tallystick.core.errors import UsageError

__all__ = ["moment_ms", "moment_text"]

_YEAR_10000_MS = 253_402_300_800_000


def moment_ms(text: str) -> int:
    """A moment as people write it: `2026-03-01`, `2026-03-01T09:30:00Z`. Without a zone, UTC."""
    try:
        read = datetime.fromisoformat(text)
        return round((read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError, TypeError):
        raise UsageError(f"{text!r:.80} is no time; one is 2026-03-01T09:30:00Z") from None


def moment_text(at_ms: int) -> str:
    """A moment to the second, in UTC; as milliseconds where calendars end."""
    if not 0 <= at_ms < _YEAR_10000_MS:
        return f"{at_ms} ms"
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
