"""How many programs may be active at once, first come first served.

A program holds a slot only while its own code runs. It gives the slot back while it waits for the
host, so programs that wait for each other cannot deadlock on slots, and it passes the slot on when
it has had its share and others wait.
"""

from __future__ import annotations

import collections
import threading
import time

__all__ = ["Slots"]

_SHARE_SECONDS = 0.1


class Slots:
    """A fair, counted gate."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError("at least one slot is needed")
        self._free = count
        self._queue: collections.deque[threading.Lock] = collections.deque()
        self._guard = threading.Lock()

    @property
    def waiting(self) -> int:
        """How many programs wait for a slot."""
        return len(self._queue)

    def acquire(self) -> float:
        """Wait for a slot and return the time at which it was got."""
        with self._guard:
            if self._free and not self._queue:
                self._free -= 1
                return time.monotonic()
            turn = threading.Lock()
            turn.acquire()
            self._queue.append(turn)
        turn.acquire()
        return time.monotonic()

    def release(self) -> None:
        """Give the slot back; the longest waiting gets it."""
        with self._guard:
            if self._queue:
                self._queue.popleft().release()
            else:
                self._free += 1

    def used_up(self, since: float) -> bool:
        """Say whether who got the slot at `since` should pass it on."""
        return bool(self._queue) and time.monotonic() - since > _SHARE_SECONDS
