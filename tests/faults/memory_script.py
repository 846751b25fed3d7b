"""A run that remembers and recalls, as it is played by processes that are killed."""

from __future__ import annotations

from pathlib import Path

from tallystick.memory.memory import Memory
from tallystick.memory.recall.selection import EVERYTHING
from tallystick.memory.recall.view import view
from tallystick.memory.receipts.keys import MemoryKeys
from tallystick.memory.receipts.receipt import Key
from tallystick.memory.store.sqlite import SqliteMemory
from tallystick.memory.store.verify import verify_memory

__all__ = ["MEMORY_GOAL", "MEMORY_PROGRAMS", "check_notes", "open_memory"]

MEMORY_GOAL = "Note when the harbour opens, and enter it."
FOUR, FIVE = "the harbour opens at four", "the harbour opens at five"
_PROGRAMS = (
    f"""
kept = remember({FOUR!r}, key="harbour")
first = enter("alpha")
print(recall("harbour", k=3)[0]["content"])
""",
    f"""
later = remember({FIVE!r}, key="harbour", related_to=[kept["id"]])
notes = recall("when does the harbour open?", k=3)
print(len(notes), later["superseded"] == [kept["id"]])
""",
    """
second = enter(notes[0]["content"])
cited = cite(notes[0]["id"])
FINAL(f"{first}, {second}, {notes[0]['content']}, {cited.startswith('note:')}, {len(notes)}")
""",
)
MEMORY_PROGRAMS = {MEMORY_GOAL: _PROGRAMS}
_SECRET = b"k" * 32


def open_memory(folder: Path) -> Memory:
    """The memory of the run, with a key that every process has."""
    keys = MemoryKeys(current=Key(id="k", secret=_SECRET), by_id={"k": _SECRET})
    return Memory(SqliteMemory(folder / "memory.db"), keys=keys, embedder=None)


def check_notes(folder: Path) -> None:
    """Both notes are there once, the first one superseded, and the log holds."""
    with open_memory(folder) as memory:
        report = verify_memory(memory.store)
        assert report.valid, report.error_message
        seen = view(memory.store, reader=None, filters=EVERYTHING)
        assert [seen.note(id).content for id in seen.ids] == [FOUR, FIVE]
        sightings = [seen.seen(id).sightings for id in seen.ids]
        assert sightings == [0, 0], sightings
        now = view(memory.store, reader=None)
        assert [now.note(id).content for id in now.ids] == [FIVE]
