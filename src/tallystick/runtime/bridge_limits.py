"""What a client of the bridge may use of us: sizes, times, and how often it asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from tallystick.core.errors import InvalidLimit
from tallystick.runtime.bridge_protocol import BridgeRefused

__all__ = ["BridgeLimits", "Pace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeLimits:
    """Limits of one bridge. `connections` is for each place it listens, the next four for a token.

    `request_ms` counts from the end of the head to the reply. `queries_per_second` is the pace at
    which `burst` queries are given back; a batch takes one for each that it holds.
    """

    connections: int = 64
    under_way: int = 16
    batch_max: int = 10
    queries_per_second: int = 50
    burst: int = 100
    head_bytes: int = 16_384
    body_bytes: int = 4 * 1024 * 1024
    request_ms: int = 30_000
    head_ms: int = 5_000
    body_ms: int = 10_000
    write_ms: int = 5_000
    idle_ms: int = 15_000
    linger_ms: int = 1_000
    close_ms: int = 5_000

    def __post_init__(self) -> None:
        for each in fields(self):
            given = getattr(self, each.name)
            if isinstance(given, bool) or not isinstance(given, int) or given < 1:
                raise InvalidLimit(field=each.name, given=given, why="a whole number from 1 up")
        if self.burst < self.batch_max:
            why = f"at least a batch, which is {self.batch_max:,}"
            raise InvalidLimit(field="burst", given=self.burst, why=why)

    def pace(self, clock: Callable[[], float]) -> Pace:
        return Pace(per_second=self.queries_per_second, burst=self.burst, clock=clock)


class Pace:
    """How often may be asked: so many at once, and then so many in a second."""

    def __init__(self, *, per_second: int, burst: int, clock: Callable[[], float]) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._held = float(burst)
        self._at = clock()

    def take(self, count: int) -> None:
        """Take for so many queries, or refuse and take nothing."""
        now = self._clock()
        self._held = min(self._burst, self._held + (now - self._at) * self._per_second)
        self._at = now
        if count > self._held:
            wait_ms = int((count - self._held) * 1000 / self._per_second) + 1
            raise BridgeRefused(
                "LlmCallFailed",
                f"asked too often: {self._per_second:,} queries in a second; wait {wait_ms:,} ms",
                status=429,
                retry_after_ms=wait_ms,
            )
        self._held -= count
