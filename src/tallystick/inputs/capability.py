"""Give runs their data: store it, describe it to the model, and cite it.

This is the first capability of every run. The inputs of a new run are laid out once, when its start
is made. Those of a recorded run are read from its attachments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tallystick.core.citation.cited import Cited
from tallystick.core.history import History
from tallystick.core.records import RunEnded, RunStarted
from tallystick.core.strategy import AskedStrategy
from tallystick.inputs.kept import cite_answer, input_fields, recorded_data, store_inputs
from tallystick.inputs.layout import InputLayout, layout_of
from tallystick.inputs.strategy import check_strategy, with_strategy
from tallystick.runtime.calls.capability import (
    AskedRun,
    CapabilityBase,
    RunCapability,
    RunData,
    RunServices,
)
from tallystick.runtime.context.attachments import RunAttachments


@dataclass(frozen=True, slots=True)
class _NewRun:
    """The layout of a new run, kept from the time its start is made until the run is opened."""

    layout: InputLayout
    strategy: AskedStrategy | None


class InputsCapability(CapabilityBase):
    """The capability that gives runs their texts and pictures.

    The layout of a new run is kept here from `start_fields` until `open`, so both need one object.
    """

    name = "inputs"

    def __init__(self) -> None:
        # By the id of the holder of the attachments. Each new run has a holder of its own.
        self._new: dict[str, _NewRun] = {}

    def start_fields(self, asked: AskedRun, run_attachments: RunAttachments) -> Mapping[str, Any]:
        """Store the inputs as attachments, and return the fields that the start records of them.

        Raise `UsageError` if the strategy cannot be used, or if an input cannot be read.
        """
        check_strategy(asked.strategy, asked.inputs)
        store = store_inputs(asked.inputs, run_attachments)
        # Lay out the copies: another process may change the files that were named.
        layout = layout_of(store.inputs, question=asked.goal, aids=asked.aids)
        self._new[asked.session_id] = _NewRun(layout, asked.strategy)
        return input_fields(store, layout)

    def open(self, started: RunStarted, history: History, services: RunServices) -> RunCapability:
        """Return the capability of a run: with its new layout, or with the data of its record.

        For a recorded run, raise `AttachmentError` if its data cannot be read.
        """
        new = None if history.records else self._new.pop(started.session_id, None)
        if new is not None:
            data = RunData(values=new.layout.values, texts=new.layout.texts)
            return _InputsOfNewRun(data, services, new)
        return _InputsOfRun(recorded_data(started, services.run_attachments), services)

    def cite_recorded(
        self, ended: RunEnded, started: RunStarted, run_attachments: RunAttachments
    ) -> Cited | None:
        """Check the answer of a recorded run against its inputs, and return the citations.

        They are empty if it has no answer, never None. Raise `AttachmentError` if the data cannot
        be read.
        """
        return cite_answer(ended, started, recorded_data(started, run_attachments), run_attachments)


class _InputsOfRun(RunCapability):
    def __init__(self, data: RunData, services: RunServices) -> None:
        self._data = data
        self._services = services

    def data(self) -> RunData:
        return self._data

    async def cite(self, ended: RunEnded | None, started: RunStarted) -> Cited | None:
        asked = (ended, started, self._data, self._services.run_attachments)
        if self._data.texts:
            # Long texts take seconds to search, and the event loop belongs to other runs too.
            return await asyncio.to_thread(cite_answer, *asked)
        return cite_answer(*asked)


class _InputsOfNewRun(_InputsOfRun):
    def __init__(self, data: RunData, services: RunServices, new: _NewRun) -> None:
        super().__init__(data, services)
        self._new = new

    def finish(self, started: RunStarted) -> RunStarted:
        assert self._services.model is not None, "a new run has a model"
        assert self._services.door is not None, "a new run has a door to it"
        return with_strategy(
            started,
            self._new.strategy,
            layout=self._new.layout,
            model=self._services.model,
            model_door=self._services.door,
        )
