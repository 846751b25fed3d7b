"""Remembers notes in a process of its own: `append_notes.py PATH NAME COUNT`."""

from __future__ import annotations

import sys
from pathlib import Path

from tallystick.memory.note import NewNote
from tallystick.memory.remember import remember
from tallystick.memory.store.sqlite import SqliteMemory

if __name__ == "__main__":
    path, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    with SqliteMemory(path, busy_seconds=60) as memory:
        for number in range(count):
            remember(memory, NewNote(agent_id=name, content=f"{name} {number}", thread_id="t"))
