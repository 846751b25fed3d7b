"""Plays a scripted world: replies in, a run and its records out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tallystick.cli.show import transcript_lines
from tallystick.client import Session
from tallystick.core.charge import RunLimits
from tallystick.core.records import Record
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.port import Ledger
from tallystick.model.port import Model
from tallystick.model.price_table import Pricing
from tallystick.model.scripted import ScriptedModel, ScriptedReply
from tallystick.runtime.calls.functions import RunFunction
from tallystick.runtime.context.inputs import Input
from tallystick.runtime.run.replay import ReplayReport
from tallystick.runtime.runs.history import records_of
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.wasm.sandbox import WasmSandbox

LIMITS = RunLimits()


def block(source: str) -> str:
    return f"```repl\n{source}\n```"


@dataclass
class Played:
    """A run that was played, and what it left."""

    run: Run
    records: list[Record]
    ledger: Ledger
    session: Session

    @property
    def transcript(self) -> str:
        lines = [line for record in self.records for line in transcript_lines(record)]
        # How long things took before a deadline is not the run's doing.
        return re.sub(r"\b\d+ ms passed", "N ms passed", "\n".join(lines) + "\n")

    def replayed(self) -> ReplayReport:
        return self.session.replay(self.run.run)


def play_priced(
    sandbox: WasmSandbox, model: Model, *, limits: RunLimits, pricing: Pricing, **more: Any
) -> Played:
    """Play with a model that costs something."""
    ledger = MemoryLedger()
    session = Session(
        config=None, model=model, ledger=ledger, sandbox=sandbox, pricing=pricing, **more
    )
    run = session.run("what is it?", limits=limits, strategy="code")
    return Played(
        run=run, records=list(records_of(ledger, run.run)), ledger=ledger, session=session
    )


def play(
    sandbox: WasmSandbox,
    replies: Sequence[str | ScriptedReply] | Model,
    *,
    goal: str = "what is it?",
    limits: RunLimits = LIMITS,
    functions: Sequence[RunFunction] = (),
    inputs: Sequence[Input] = (),
    grants: Sequence[str] = (),
    **more: Any,
) -> Played:
    more.setdefault("strategy", "code")
    model: Any = replies
    if not hasattr(replies, "ask"):
        model = ScriptedModel(
            [ScriptedReply(text=each) if isinstance(each, str) else each for each in model]
        )
    ledger = MemoryLedger()
    session = Session(
        config=None,
        model=model,
        functions=functions,
        ledger=ledger,
        sandbox=sandbox,
        clock="fixed",
    )
    run = session.run(goal, limits=limits, inputs=inputs, grants=grants, **more)
    return Played(
        run=run, records=list(records_of(ledger, run.run)), ledger=ledger, session=session
    )
