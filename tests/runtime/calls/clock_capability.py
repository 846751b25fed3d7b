"""A clock that programs may ask, as a capability: the whole of what one takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tallystick.core.history import History
from tallystick.core.records import RunStarted
from tallystick.runtime.calls.capability import CapabilityBase, RunCapability, RunServices
from tallystick.runtime.calls.functions import RunFunction


class Clock(CapabilityBase, RunCapability):
    """Programs ask what time it is. It is a read, so a replay is served what it was."""

    name = "clock"

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now

    def now(self) -> int:
        """Tell the time in seconds."""
        return self._now()

    def functions(self) -> Sequence[RunFunction]:
        """Give `now`."""
        return [RunFunction(function=self.now, name="now", policy="read", needs="", local=True)]

    def open(
        self, started: RunStarted, history: History, services: RunServices
    ) -> RunCapability | None:
        """Give the same to every run."""
        return self
