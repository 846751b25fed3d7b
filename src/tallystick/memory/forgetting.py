"""What is about to be erased, written down first: notes, and the runs that go with them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tallystick.memory.records import NotesForgetting, decode_memory_record
from tallystick.memory.sqlite import SqliteMemory

__all__ = ["begin_forgetting", "runs_begun"]


def begin_forgetting(memory: SqliteMemory, ids: Sequence[str], *, runs: Sequence[str]) -> None:
    """Write down which runs are erased with notes. On disk when this returns."""
    with memory.writing() as pen:
        pen.append(NotesForgetting(ids=tuple(ids), runs=tuple(runs), at=pen.at))


def runs_begun(memory: SqliteMemory, ids: Collection[str]) -> frozenset[str]:
    """The runs that were to be erased with one of these notes, whether or not they were."""
    found: set[str] = set()
    with memory.reading() as db:
        for (body,) in db.execute("SELECT body FROM forgetting JOIN log USING (seq)"):
            record = None if body is None else decode_memory_record(body)
            if isinstance(record, NotesForgetting) and not set(record.ids).isdisjoint(ids):
                found.update(record.runs)
    return frozenset(found)
