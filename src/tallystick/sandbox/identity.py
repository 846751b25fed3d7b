"""New identifiers: where this package reads the clock and the system's randomness for them."""

from __future__ import annotations

import os
import time

from tallystick.core.ids import ENTROPY_BYTES, ulid

__all__ = ["new_id", "now_ms"]


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def new_id(*, time_ms: int | None = None) -> str:
    """A new ULID, of now or of when something began."""
    return ulid(time_ms=now_ms() if time_ms is None else time_ms, entropy=os.urandom(ENTROPY_BYTES))
