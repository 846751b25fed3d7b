"""The steps that were left, in the order in which they were, until somebody takes them."""

from __future__ import annotations

import threading
from collections import Counter, deque

from tallystick.core.step import CompletedStep

__all__ = ["STEPS_KEPT_MAX", "StepLog"]

# Nobody has to take them: a program that runs for months keeps the last of them, and says how many
# it does not have.
STEPS_KEPT_MAX = 10_000


class StepLog:
    """Completed steps, shared by whatever runs side by side in one context."""

    def __init__(self, *, records_max: int = STEPS_KEPT_MAX) -> None:
        self._records: deque[CompletedStep] = deque(maxlen=records_max)
        self._entered: Counter[str] = Counter()
        self._guard = threading.Lock()
        self._dropped = 0

    @property
    def dropped(self) -> int:
        """How many were not taken in time, since the last reset."""
        return self._dropped

    def peek(self) -> list[CompletedStep]:
        """A copy of what is there."""
        with self._guard:
            return list(self._records)

    def drain(self) -> list[CompletedStep]:
        """Take what is there."""
        with self._guard:
            taken = list(self._records)
            self._records.clear()
        return taken

    def reset(self) -> None:
        """Forget everything, also how often a step was entered."""
        with self._guard:
            self._records.clear()
            self._entered.clear()
            self._dropped = 0

    def add(self, record: CompletedStep) -> None:
        with self._guard:
            self._dropped += len(self._records) == self._records.maxlen
            self._records.append(record)

    def occurrence(self, path: str) -> int:
        """Count one more step that is entered at a path: 1 for the first."""
        with self._guard:
            self._entered[path] += 1
            return self._entered[path]
