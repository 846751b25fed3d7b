"""What is thought of notes: as a row of the store has it, and what was thought of them before.

Needs the extra `memory`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tallystick.memory.arrays import Column
from tallystick.memory.projection_schema import OPEN
from tallystick.memory.selection import Filters

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Past", "StateRow", "end_of", "hidden_by"]

DELETED, QUARANTINED, ARCHIVED = 2, 4, 8


class StateRow(NamedTuple):
    """A row of `state`, without the number of its note."""

    seq_from: int
    seq_to: int
    body_seq: int
    importance: float
    valid_to: int | None
    expires_at: int | None
    deleted_at: int | None
    state: str
    quarantine: str

    @property
    def flags(self) -> int:
        return (
            (DELETED if self.deleted_at is not None else 0)
            | (QUARANTINED if self.quarantine else 0)
            | (ARCHIVED if self.state in ("archived", "forgotten") else 0)
        )


class Past:
    """What was thought of notes, and no longer is."""

    def __init__(self) -> None:
        import numpy as np

        self._place = Column(np.int64)
        self._seq_from, self._seq_to = Column(np.int64), Column(np.int64)
        self._flags, self._importance = Column(np.uint8), Column(np.float64)
        self._valid_to, self._expires_at = Column(np.int64), Column(np.int64)

    def add(self, places: Sequence[int], states: Sequence[StateRow]) -> None:
        self._place.extend(places)
        self._seq_from.extend([state.seq_from for state in states])
        self._seq_to.extend([state.seq_to for state in states])
        self._flags.extend([state.flags for state in states])
        self._importance.extend([state.importance for state in states])
        self._valid_to.extend([end_of(state.valid_to) for state in states])
        self._expires_at.extend([end_of(state.expires_at) for state in states])

    def importance(self, place: int, seq: int) -> float:
        """How important a note was."""
        import numpy as np

        then = (self._place.values == place) & (self._seq_from.values <= seq)
        then &= self._seq_to.values > seq
        return float(self._importance.values[np.flatnonzero(then)[0]])

    def at(self, filters: Filters, *, seq: int, at: int) -> NDArray[np.int64]:
        """The places of notes of which something passed by the filters was thought then."""
        mask = (self._seq_from.values <= seq) & (self._seq_to.values > seq)
        mask &= (self._flags.values & hidden_by(filters)) == 0
        if not filters.expired:
            mask &= self._expires_at.values > at
        if filters.current:
            mask &= self._valid_to.values > at
        if filters.min_importance is not None:
            mask &= self._importance.values >= filters.min_importance
        return self._place.values[mask]


def end_of(time: int | None) -> int:
    return OPEN if time is None else time


def hidden_by(filters: Filters) -> int:
    return (
        (0 if filters.deleted else DELETED)
        | (0 if filters.quarantined else QUARANTINED)
        | (0 if filters.archived else ARCHIVED)
    )
