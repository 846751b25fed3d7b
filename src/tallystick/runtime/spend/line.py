"""The lines of calls that wait for money which other calls hold.

Rule 1: first come, first served. Only the first in a line looks at the budget. If all looked
whenever one call is settled, a thousand calls would take a million looks.
Rule 2: a settled or released reservation wakes the first in line, from any thread and event loop.
Nobody polls for what this process holds.
Rule 3: what another process holds gives no sign when it is given back. So the first in line of a
shared scope looks again after 20 ms, and then at growing intervals of at most a second.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from collections.abc import Iterable

LOOK_AGAIN_S = 0.02
_LOOK_AGAIN_S_MAX = 1.0


class Waiter:
    """One call that waits. It belongs to the event loop that it was made on."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._called = asyncio.Event()
        self._pause = LOOK_AGAIN_S

    def call(self) -> bool:
        """Wake it, from any thread. Returns False if its loop is gone, and the call with it."""
        try:
            self._loop.call_soon_threadsafe(self._called.set)
        except RuntimeError:
            return False
        return True

    async def wait(self, seconds: float) -> None:
        """Return when it is called, or after so many seconds; infinity is no limit.

        A call that came before the wait counts too.
        """
        try:
            async with asyncio.timeout(None if seconds == math.inf else max(0.0, seconds)):
                await self._called.wait()
        except TimeoutError:
            return
        self._called.clear()

    def next_pause(self) -> float:
        """Return the seconds until the next look at what another process holds.

        It doubles with each call, from 0.02 to 1.
        """
        pause = self._pause
        self._pause = min(2 * pause, _LOOK_AGAIN_S_MAX)
        return pause


class WaitingLines:
    """The lines at the scopes of one budget, by the id of the scope that refused."""

    def __init__(self, *, polled: bool = False) -> None:
        # True if other processes share the scopes.
        self.polled = polled
        self._guard = threading.Lock()
        self._lines: dict[str, deque[Waiter]] = {}

    def first_line(self, scopes: Iterable[str]) -> str | None:
        """Return the first of these scopes at which calls wait; None if there is no line."""
        with self._guard:
            return next((each for each in scopes if each in self._lines), None)

    def is_first(self, scope: str, waiter: Waiter) -> bool:
        """Return True if no other call waits before this one at the scope."""
        with self._guard:
            line = self._lines.get(scope)
            return line is not None and line[0] is waiter

    def join(self, scope: str, waiter: Waiter) -> None:
        """Stand last in a line. The first is called at once.

        The money may have come back after the call was refused and before it stood in line.
        """
        with self._guard:
            line = self._lines.setdefault(scope, deque())
            line.append(waiter)
            if len(line) == 1:
                waiter.call()

    def leave(self, scope: str, waiter: Waiter) -> None:
        """Leave a line and call the first of the rest: there may be money left for it too.

        Do nothing if the call is not in that line.
        """
        with self._guard:
            line = self._lines.get(scope)
            if line is not None and waiter in line:
                line.remove(waiter)
                self._call_first(scope)

    def wake(self, scopes: Iterable[str]) -> None:
        """Call the first in line at each of these scopes: something was given back there.

        A scope without a line is skipped. Waiters whose event loop is gone are removed.
        """
        with self._guard:
            for scope in scopes:
                if scope in self._lines:
                    self._call_first(scope)

    def _call_first(self, scope: str) -> None:
        line = self._lines[scope]
        while line and not line[0].call():
            line.popleft()
        if not line:
            del self._lines[scope]
