"""Play a run from beginning to end: a model's answers go in, a run and its records come out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tallystick.agent.agent import Agent
from tallystick.core.charge import RunLimits
from tallystick.core.records import Record
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.port import Ledger
from tallystick.model.port import Model
from tallystick.model.price_table import Pricing
from tallystick.model.scripted import ScriptedModel, ScriptedReply
from tallystick.runtime.calls.functions import RunFunction
from tallystick.runtime.run.replay import ReplayReport
from tallystick.runtime.runs.history import records_of
from tallystick.runtime.runs.result import Run

LIMITS = RunLimits()
# Enough tokens that no run of a test reaches the limit.
ROOMY = RunLimits(tokens=10_000_000)
Kind = TypeVar("Kind", bound=Record)


@dataclass
class Played:
    """A run that was played, and what it left."""

    run: Run
    records: list[Record]
    ledger: Ledger
    session: Agent

    def of(self, kind: type[Kind]) -> list[Kind]:
        """Return the records of one type, in order."""
        return [each for each in self.records if isinstance(each, kind)]

    @property
    def transcript(self) -> str:
        """The records as lines, without times that differ from machine to machine."""
        from tallystick.cli.show import transcript_lines

        lines = [line for record in self.records for line in transcript_lines(record)]
        return re.sub(r"\b\d+ ms passed", "N ms passed", "\n".join(lines) + "\n")

    def replayed(self) -> ReplayReport:
        """Replay the run in its own session. Raise what `Agent.replay` raises."""
        return self.session.replay(self.run.run)


def play(
    sandbox: Any,  # noqa: ANN401 (each backend has a sandbox of its own)
    answers: Sequence[str | ScriptedReply] | Model,
    *,
    goal: str = "what is it?",
    limits: RunLimits = LIMITS,
    functions: Sequence[RunFunction] = (),
    ledger: Ledger | None = None,
    pricing: Pricing | None = None,
    strategy: Any = "code",  # noqa: ANN401 (as `Agent.run` takes it)
    schema: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    **run: Any,  # noqa: ANN401 (as `Agent.run` takes them)
) -> Played:
    """Run a goal with a model, or with one that gives these answers, in a session of its own.

    The session has a fixed clock and no configuration, and stays open. `options` are arguments of
    `Agent`, which replace those made here; the rest are those of `Agent.run`. What has a method
    `ask` is taken as a model. Without `ledger`, there is a new one in memory. Raise what
    `Agent.run` raises.
    """
    model = answers if hasattr(answers, "ask") else scripted(answers)
    kept = MemoryLedger() if ledger is None else ledger
    session = Agent(
        config=None,
        **{
            "model": model,
            "tools": functions,
            "ledger": kept,
            "sandbox": sandbox,
            "pricing": pricing,
            "clock": "fixed",
            **(options or {}),
        },
    )
    answer: Any = schema
    ended = session.run(goal, answer=answer, limits=limits, strategy=strategy, **run)
    return Played(
        run=ended, records=list(records_of(kept, ended.run)), ledger=kept, session=session
    )


def scripted(answers: Sequence[str | ScriptedReply]) -> ScriptedModel:
    """Return the product's own scripted model with these replies; a text is a reply of its own."""
    return ScriptedModel(
        [ScriptedReply(text=each) if isinstance(each, str) else each for each in answers]
    )
