"""Which notes a reader sees: of the others nothing is said, not even that they are there."""

from __future__ import annotations

from collections.abc import Sequence

from tallystick.memory.selection import EVERYTHING, select_notes
from tallystick.memory.sqlite import SqliteMemory

__all__ = ["visible_ids"]


def visible_ids(memory: SqliteMemory, ids: Sequence[str], *, reader: str | None) -> list[str]:
    """Those of these notes that a reader sees, deleted ones too; None sees all."""
    if reader is None:
        return list(ids)
    with memory.reading() as db:
        seq = memory.resolve(None)
        return [
            id
            for id in ids
            if select_notes(db, reader=reader, filters=EVERYTHING, seq=seq, at=0, id=id)
        ]
