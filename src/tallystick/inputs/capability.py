"""The data of runs as a capability: kept, described to the model, found by programs, cited.

It is the first capability of every run. A new run is laid out once, when its start is made; a
recorded one is read from its attachments.
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
    """The layout of a run between the making of its start and its opening."""

    layout: InputLayout
    strategy: AskedStrategy | None


class InputsCapability(CapabilityBase):
    """Give runs the texts and pictures that they are asked about."""

    name = "inputs"

    def __init__(self) -> None:
        # By the holder of a run's attachments, which every new run has for itself.
        self._new: dict[str, _NewRun] = {}

    def start_fields(self, asked: AskedRun, run_attachments: RunAttachments) -> Mapping[str, Any]:
        """Keep the inputs, and return what the start records of them.

        Raise `UsageError` for a strategy that cannot be taken, and for inputs that cannot be read.
        """
        check_strategy(asked.strategy, asked.inputs)
        store = store_inputs(asked.inputs, run_attachments)
        # Laid out from the copies: others may change the files that were named.
        layout = layout_of(store.inputs, question=asked.goal)
        self._new[asked.session_id] = _NewRun(layout, asked.strategy)
        return input_fields(store, layout)

    def open(self, started: RunStarted, history: History, services: RunServices) -> RunCapability:
        """Give a new run what was laid out for it, and a recorded one what its record names."""
        new = None if history.records else self._new.pop(started.session_id, None)
        if new is not None:
            data = RunData(values=new.layout.values, texts=new.layout.texts)
            return _InputsOfNewRun(data, services, new)
        return _InputsOfRun(recorded_data(started, services.run_attachments), services)

    def cite_recorded(
        self, ended: RunEnded, started: RunStarted, run_attachments: RunAttachments
    ) -> Cited | None:
        """Check the answer of a recorded run against what it was given."""
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
