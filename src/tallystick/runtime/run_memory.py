"""The memory of a run: what it records of it, and the desk that serves its programs.

What memory needs takes a while to import, so it is, once there is one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tallystick.core.passage_errors import ResumeRefused
from tallystick.core.records import MemoryGiven, Record, RunStarted
from tallystick.runtime.functions import RunFunction

if TYPE_CHECKING:
    from tallystick.runtime.memory import Memory
    from tallystick.runtime.memory_desk import MemoryDesk

__all__ = ["desk_again", "desk_of", "functions_of", "memory_given"]

_GOAL_CHARS_MAX = 200


def memory_given(memory: Memory | None, *, goal: str, has_data: bool) -> MemoryGiven | None:
    """What a run that begins records of its memory. Over data, the data is looked at first."""
    if memory is None:
        return None
    asked = " ".join(goal.split())[:_GOAL_CHARS_MAX]
    # Without ids and times: weak models take one of those for the answer.
    begin = f"for note in recall({asked!r}):\n    print(note['content'], note['author'])"
    return MemoryGiven(
        tenant=memory.tenant,
        store=memory.store.identity(),
        agent_id=memory.agent_id,
        begin="" if has_data else begin,
    )


def desk_of(
    memory: Memory | None, *, session_id: str, records: Iterable[Record] = ()
) -> MemoryDesk | None:
    """The desk of a run; None for one without memory."""
    if memory is None:
        return None
    from tallystick.runtime.memory_desk import MemoryDesk

    return MemoryDesk(memory, session_id=session_id, records=records)


def functions_of(desk: MemoryDesk | None) -> list[RunFunction]:
    """The functions of memory that a run has."""
    return [] if desk is None else desk.functions()


def desk_again(
    run: str, started: RunStarted, memory: Memory | None, records: Iterable[Record]
) -> MemoryDesk | None:
    """The desk of a run that is gone on with. Raises `ResumeRefused` for another memory."""
    given = started.memory
    if given is None:
        return None
    if memory is None:
        why = f"has the memory {given.tenant!r}; resume it with that one"
        raise ResumeRefused(run=run, why=why)
    if memory.store.identity() != given.store or memory.agent_id != given.agent_id:
        why = f"has the memory {given.tenant!r} of {given.agent_id!r}, and this is another one"
        raise ResumeRefused(run=run, why=why)
    return desk_of(memory, session_id=started.session_id, records=records)
