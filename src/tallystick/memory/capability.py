"""The memory as a capability of runs: what a run records of it, and its functions for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tallystick.core.history import History
from tallystick.core.records import MemoryGiven, NotesTouched, RunStarted
from tallystick.core.resume_errors import ResumeRefused
from tallystick.memory.calls import MemoryCalls, merge_touched
from tallystick.memory.memory import Memory
from tallystick.runtime.calls.capability import AskedRun, CapabilityBase, RunCapability, RunServices
from tallystick.runtime.calls.functions import RunFunction
from tallystick.runtime.context.attachments import RunAttachments

_GOAL_CHARS_MAX = 200


class MemoryCapability(CapabilityBase):
    """The memory of a client's runs; None if the client has none."""

    name = "memory"

    def __init__(self, memory: Memory | None) -> None:
        self._memory = memory

    def start_fields(self, asked: AskedRun, run_attachments: RunAttachments) -> Mapping[str, Any]:
        """Return the record of the memory, with a first program to suggest, or {} without a memory.

        The program is left out if the run has inputs: those are to be read first.
        """
        if self._memory is None:
            return {}
        goal = " ".join(asked.goal.split())[:_GOAL_CHARS_MAX]
        # Without ids and times: weak models take one of those for the answer.
        begin = f"for note in recall({goal!r}):\n    print(note['content'], note['author'])"
        given = MemoryGiven(
            tenant=self._memory.tenant,
            store=self._memory.store.identity(),
            agent_id=self._memory.agent_id,
            begin="" if asked.inputs else begin,
        )
        return {"memory": given}

    def check_resume(self, run: str, history: History) -> None:
        """Raise `ResumeRefused` if the run has a memory, and this is another one or none."""
        given = history.started.memory
        if given is None:
            return
        if self._memory is None:
            why = f"has the memory {given.tenant!r}; resume it with that one"
            raise ResumeRefused(run=run, why=why)
        if self._memory.store.identity() != given.store or self._memory.agent_id != given.agent_id:
            why = f"has the memory {given.tenant!r} of {given.agent_id!r}, and this is another one"
            raise ResumeRefused(run=run, why=why)

    def known_functions(self) -> Sequence[RunFunction]:
        """Return the functions, to decide about calls in doubt; none without a memory."""
        return [] if self._memory is None else MemoryCalls(self._memory, session_id="").functions()

    def open(
        self, started: RunStarted, history: History, services: RunServices
    ) -> RunCapability | None:
        """Return the functions for a live run; None if the run or this client has no memory.

        A replay has no door, so it gets None: its calls are answered from the record.
        """
        if started.memory is None or self._memory is None or services.door is None:
            return None
        calls = MemoryCalls(self._memory, session_id=started.session_id, records=history.records)
        return _MemoryOfRun(calls)


class _MemoryOfRun(RunCapability):
    """The functions of a live run, and the record of what its calls did with notes."""

    def __init__(self, calls: MemoryCalls) -> None:
        self._functions = calls.functions()

    def functions(self) -> Sequence[RunFunction]:
        """Return the functions that programs of the run can call."""
        return self._functions

    def fields_of(self, notes: Sequence[msgspec.Struct]) -> Mapping[str, Any]:
        """Return the field `memory` of a call's record, or nothing if it did nothing with notes."""
        touched = merge_touched([each for each in notes if isinstance(each, NotesTouched)])
        return {} if touched is None else {"memory": touched}
