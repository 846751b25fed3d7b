"""Read the system's clock and randomness, for timestamps and new identifiers."""

from __future__ import annotations

import os
import time

from tallystick.core.ids import ENTROPY_BYTES, ulid


def now_ms() -> int:
    """Return the milliseconds since 1970. The time can go back if the system's clock is set."""
    return time.time_ns() // 1_000_000


def new_id(*, time_ms: int | None = None) -> str:
    """Return a new ULID, of now or of a time in milliseconds since 1970.

    Two of the same millisecond are in no order. Raise `ValueError` if a given time is negative or
    does not fit 48 bits.
    """
    return ulid(time_ms=now_ms() if time_ms is None else time_ms, entropy=os.urandom(ENTROPY_BYTES))
