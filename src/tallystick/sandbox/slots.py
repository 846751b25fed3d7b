"""How many programs may be active at once, first come first served.

A program holds a slot only while its own code runs. It gives the slot back while it waits for the
host, so programs that wait for each other cannot deadlock on slots, and it passes the slot on when
it has had its share and others wait.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable

__all__ = ["Slots"]

_SHARE_SECONDS = 0.1
_LOOK_SECONDS = 0.01


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

    def acquire(self, look: Callable[[], None] = lambda: None) -> None:
        """Wait for a slot. `look` is called while waiting and raises to give up."""
        with self._guard:
            if self._free and not self._queue:
                self._free -= 1
                return
            turn = threading.Lock()
            turn.acquire()
            self._queue.append(turn)
        try:
            while not turn.acquire(timeout=_LOOK_SECONDS):
                look()
        except BaseException:
            self._give_up(turn)
            raise

    def _give_up(self, turn: threading.Lock) -> None:
        """Leave the queue; a slot that was handed over in this moment goes to the next."""
        with self._guard:
            if turn in self._queue:
                self._queue.remove(turn)
                return
        self.release()

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
