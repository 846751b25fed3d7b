"""Builds what the calls of one program need, without a run around them: scope, effects, queries.

The journal, its writer and the ledger behind them are real ones.
"""

from __future__ import annotations

import itertools
from typing import Any

from tallystick.attachments.memory import MemoryAttachments
from tallystick.attachments.session import SessionAttachments
from tallystick.core.chain import Head
from tallystick.core.charge import Reserved, RunLimits
from tallystick.core.errors import UsageError
from tallystick.core.history import History
from tallystick.core.records import QueryAsked, Record, RunProgram
from tallystick.core.views.open_calls import call_key
from tallystick.ledger.memory import MemoryLedger
from tallystick.model.port import Model
from tallystick.runtime.calls.queries import AskedModels, FindModel, Queries
from tallystick.runtime.calls.scope import Call, CallScope, NumberedRun, Times
from tallystick.runtime.context.attachments import RunAttachments
from tallystick.runtime.journal.effects import Effects
from tallystick.runtime.journal.journal import Journal
from tallystick.runtime.journal.writer import LedgerWriter
from tallystick.runtime.spend.door import ModelDoor

RUN = "0" * 26


class Numbers:
    """Numbers the calls of a run that never ends."""

    has_ended = False

    def __init__(self, first: int) -> None:
        self._numbers = itertools.count(first)

    def next_number(self) -> int:
        return next(self._numbers)


_: type[NumberedRun] = Numbers


def no_models(name: str | None) -> Model:
    raise UsageError("there is no model for programs here")


class ProgramCalls:
    """The calls of one program of a new run.

    `records` is what was written of the run, in order: each is there before anybody who waits for
    it continues. `reserved` is what is on record as held for each attempt, by the key under which
    it is known outside. Calls are numbered from `first` on.
    """

    def __init__(
        self,
        door: ModelDoor | None = None,
        find_model: FindModel = no_models,
        *,
        limits: RunLimits | None = None,
        temperature: float | None = None,
        program: int = 0,
        first: int = 1,
        seconds: float = 300.0,
        host_calls_left: int = 0,
        session_id: str = "0" * 32,
    ) -> None:
        self.records: list[Record] = []
        self.reserved: dict[str, Reserved] = {}
        self.ledger = MemoryLedger()
        held = SessionAttachments(MemoryAttachments(), session_id=session_id)
        self.run_attachments = RunAttachments(held)
        history = History()
        journal = Journal(history, run=RUN)
        writer = LedgerWriter(
            self.ledger,
            run=RUN,
            fence=self.ledger.claim(RUN, create=True),
            head=Head.of_nothing(),
            to_commit=self.run_attachments.to_commit,
        )
        journal.open(writer, None)
        journal.listen(self._hear)
        self.effects = Effects(history, journal)
        self.queries = Queries(
            self.effects,
            AskedModels(
                run=RUN,
                door=door,
                find_model=find_model,
                run_attachments=self.run_attachments,
                temperature=temperature,
            ),
        )
        self.scope = CallScope(
            RUN,
            RunProgram(intent=program, turn=1, part=0, sha256=""),
            journal,
            Numbers(first),
            limits=limits or RunLimits(),
            times=Times(lambda: seconds),
            host_calls_left=host_calls_left,
        )
        self._indexes = itertools.count()

    def call(self, name: str) -> Call:
        """Return the next call of the program."""
        return self.scope.call(name, b"", index=next(self._indexes))

    def of(self, kind: type) -> list[Any]:
        """Return the records of one type."""
        return [each for each in self.records if isinstance(each, kind)]

    def _hear(self, record: Record, new: bool) -> None:
        self.records.append(record)
        if isinstance(record, QueryAsked):
            key = call_key(RUN, record.intent, item=record.item, attempt=record.attempt)
            self.reserved[key] = record.reserved
