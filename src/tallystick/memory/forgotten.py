"""What forgetting is asked, and what it says of a note that it could not do it to."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import msgspec

from tallystick.memory.note import MemoryType

__all__ = ["Criteria", "Failure", "Strategy"]


class Strategy(enum.StrEnum):
    """How a note is forgotten. `consolidate` has a name and is not done here."""

    SOFT_DELETE = "soft_delete"
    HARD_DELETE = "hard_delete"
    DECAY = "decay"
    CONSOLIDATE = "consolidate"
    ARCHIVE = "archive"
    REDACT = "redact"

    @property
    def erases(self) -> bool:
        """Whether what a note said is gone afterwards."""
        return self in (Strategy.HARD_DELETE, Strategy.REDACT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """Which notes to forget: those that meet all that is said. Of `tags` one is enough."""

    max_age_hours: float | None = None
    min_importance_below: float | None = None
    memory_type: MemoryType | None = None
    tags: frozenset[str] = frozenset()
    agent_id: str | None = None
    thread_id: str | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A note that was not forgotten, and why."""

    id: str
    code: str
    message: str
