"""What a memory reports to people: which note is meant by the beginning of an id."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.memory.memory_store import Clock, a_note, open_memory

from tallystick.core.errors import UsageError
from tallystick.memory.memory import Memory
from tallystick.memory.receipts.keys import open_keys
from tallystick.memory.remember import remember, remember_all
from tallystick.memory.report import whole_id


def test_notes_of_others_that_begin_alike_do_not_hide_the_one_that_is_seen(tmp_path: Path) -> None:
    """More of them than are looked at for one beginning, and all before it."""
    clock = Clock()
    store = open_memory(tmp_path, clock=clock)
    keys = open_keys(tmp_path / "keys")
    others = [a_note(f"note {number}", agent_id="ada") for number in range(101)]
    remember_all(store, others)
    clock.now += 1
    mine = remember(store, a_note("the ferry is late", agent_id="bob")).id

    with Memory(store, agent_id="bob", keys=keys, embedder=None) as memory:
        assert whole_id(memory, mine[:8]) == mine
    with (
        Memory(open_memory(tmp_path), keys=keys, embedder=None, owner=True) as memory,
        pytest.raises(UsageError, match="100 or more notes"),
    ):
        whole_id(memory, mine[:8])
