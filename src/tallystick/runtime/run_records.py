"""The records of a run, found by what they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from tallystick.core.records import (
    AskModel,
    CallHost,
    FilesKept,
    HostAnswered,
    ModelFailed,
    ModelRefused,
    ModelReplied,
    ProgramFinished,
    QueryRecord,
    Record,
    RunEnded,
    RunProgram,
    SnapshotTaken,
)
from tallystick.runtime.pen import Passage

__all__ = ["RunRecords"]

Kind = TypeVar("Kind", AskModel, ModelRefused, ProgramFinished, SnapshotTaken, FilesKept)


class RunRecords:
    """What was asked, answered and run; each by the intent it belongs to."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.asked = _by_intent(records, AskModel)
        self.replies: dict[int, ModelReplied | ModelFailed] = {
            each.intent: each for each in records if isinstance(each, ModelReplied | ModelFailed)
        }
        self.refused = _by_intent(records, ModelRefused)
        self.programs = {each.intent for each in records if isinstance(each, RunProgram)}
        self.finished = _by_intent(records, ProgramFinished)
        self.snapshots = _by_intent(records, SnapshotTaken)
        self.files = _by_intent(records, FilesKept)
        calls = [each for each in records if isinstance(each, CallHost)]
        # How often each effect was begun.
        self.effects = {each.intent: each.attempt for each in calls}
        # The host calls of each program that were answered, in their order.
        self.answers: dict[int, list[HostAnswered]] = {}
        answered = [each for each in records if isinstance(each, HostAnswered)]
        for each in answered:
            self.answers.setdefault(each.program, []).append(each)
        # The effects of each program that have no answer.
        self.unanswered: dict[int, list[CallHost]] = {}
        known = {each.intent for each in answered}
        for call in calls:
            if call.intent not in known and call.attempt == 1:
                self.unanswered.setdefault(call.program, []).append(call)
        self.queries = _queries_by_program(records)
        places = [place for place, each in enumerate(records) if isinstance(each, Passage)]
        self._gone_on_at = max(places, default=-1)
        self._replied_at = {
            each.intent: place
            for place, each in enumerate(records)
            if isinstance(each, ModelReplied | ModelFailed | ProgramFinished)
        }
        # How it ended, unless it was gone on with.
        ends = [each for each in records[self._gone_on_at + 1 :] if isinstance(each, RunEnded)]
        self.ended = ends[-1] if ends else None

    def gone_on_after(self, intent: int) -> bool:
        """Whether the run was gone on with after a model call, or a program, had its outcome."""
        return self._replied_at.get(intent, -1) < self._gone_on_at


def _by_intent(records: Sequence[Record], kind: type[Kind]) -> dict[int, Kind]:
    return {each.intent: each for each in records if isinstance(each, kind)}


def _queries_by_program(records: Sequence[Record]) -> dict[int, list[QueryRecord]]:
    """The model calls of each program, in the order they were written."""
    found: dict[int, list[QueryRecord]] = {}
    running = 0
    for record in records:
        if isinstance(record, RunProgram):
            running = record.intent
        elif isinstance(record, QueryRecord):
            found.setdefault(running, []).append(record)
    return found
