"""A pass over all notes: what hardly matters any more is put away."""

from __future__ import annotations

from tallystick.memory.decay import effective_importance
from tallystick.memory.errors import NoteInvalid
from tallystick.memory.forget_which import living
from tallystick.memory.note import ConsolidationState, MemoryType
from tallystick.memory.records import NoteArchived
from tallystick.memory.sqlite import SqliteMemory

__all__ = ["decay_pass"]

_HOUR_MS = 3_600_000


def decay_pass(
    memory: SqliteMemory, *, archive_below: float = 0.2, forget_below: float = 0.05
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Archive notes that hardly matter any more, and mark as forgotten those that do not.

    Returns the ids of both. Procedural notes do not decay.
    """
    if not 0.0 <= forget_below <= archive_below <= 1.0:
        raise NoteInvalid(field="forget_below", why="from 0 to `archive_below`, which is up to 1")
    archived: list[str] = []
    forgotten: list[str] = []
    with memory.writing() as pen:
        counts = dict(pen.db.execute("SELECT number, count(*) FROM access GROUP BY number"))
        for row in living(pen.db, pen.head.count, pen.at):
            if row.note.memory_type is MemoryType.PROCEDURAL:
                continue
            left = effective_importance(
                row.state.importance,
                hours=(pen.at - row.note.created_at) / _HOUR_MS,
                access_count=counts.get(row.number, 0),
                rate=row.note.decay_rate,
                function=row.note.decay_function,
            )
            if left < archive_below:
                gone = left < forget_below
                state = ConsolidationState.FORGOTTEN if gone else ConsolidationState.ARCHIVED
                pen.append(NoteArchived(state=state), note=row.note.id)
                (forgotten if gone else archived).append(row.note.id)
    return tuple(archived), tuple(forgotten)
