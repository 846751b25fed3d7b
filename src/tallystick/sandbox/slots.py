"""How many programs may be active at once, first come first served.

A program holds a slot only while its own code runs. It gives the slot back while it waits for the
host, so programs that wait for each other cannot deadlock on slots, and it passes the slot on when
it has had its share and others wait.
"""

from __future__ import annotations

import collections
import threading
import time

__all__ = ["Slots", "Turn"]

_SHARE_SECONDS = 0.1


class Turn:
    """A place in the queue. Woken when its slot has come, or by whoever ends the wait."""

    __slots__ = ("_woken", "granted")

    def __init__(self) -> None:
        self._woken = threading.Event()
        self.granted = False

    def wake(self) -> None:
        self._woken.set()

    def wait(self, seconds: float) -> None:
        self._woken.wait(seconds)


class Slots:
    """A fair, counted gate."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError("at least one slot is needed")
        self._free = count
        self._queue: collections.deque[Turn] = collections.deque()
        self._guard = threading.Lock()

    @property
    def waiting(self) -> int:
        """How many programs wait for a slot."""
        return len(self._queue)

    def try_acquire(self) -> bool:
        """Take a slot if one is free and nobody waits."""
        with self._guard:
            if self._free and not self._queue:
                self._free -= 1
                return True
            return False

    def acquire(self, turn: Turn | None = None, *, seconds: float = threading.TIMEOUT_MAX) -> bool:
        """Wait for a slot. False if the time is over, or if the turn was woken without one."""
        turn = turn or Turn()
        with self._guard:
            if self._free and not self._queue:
                self._free -= 1
                return True
            self._queue.append(turn)
        turn.wait(seconds)
        with self._guard:
            if not turn.granted:
                self._queue.remove(turn)
            return turn.granted

    def release(self) -> None:
        """Give the slot back; the longest waiting gets it."""
        with self._guard:
            if self._queue:
                turn = self._queue.popleft()
                turn.granted = True
                turn.wake()
            else:
                self._free += 1

    def used_up(self, since: float) -> bool:
        """Say whether who got the slot at `since` should pass it on."""
        return bool(self._queue) and time.monotonic() - since > _SHARE_SECONDS
