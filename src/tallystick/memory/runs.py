"""The memory of a run, for runs with and without one: the one module that the runtime asks.

What memory needs takes a while to import, so it is imported once a run has one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tallystick.core.records import MemoryGiven, Record, RunStarted
from tallystick.core.resume_errors import ResumeRefused
from tallystick.runtime.calls.functions import RunFunction

if TYPE_CHECKING:
    # Under their own names again: the runtime takes these types from here too.
    from tallystick.memory.calls import MemoryCalls as MemoryCalls
    from tallystick.memory.memory import Memory as Memory

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


def memory_calls_of(
    memory: Memory | None, *, session_id: str, records: Iterable[Record] = ()
) -> MemoryCalls | None:
    """The desk of a run; None for one without memory."""
    if memory is None:
        return None
    from tallystick.memory.calls import MemoryCalls

    return MemoryCalls(memory, session_id=session_id, records=records)


def functions_of(desk: MemoryCalls | None) -> list[RunFunction]:
    """The functions of memory that a run has."""
    return [] if desk is None else desk.functions()


def memory_calls_again(
    run: str, started: RunStarted, memory: Memory | None, records: Iterable[Record]
) -> MemoryCalls | None:
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
    return memory_calls_of(memory, session_id=started.session_id, records=records)
