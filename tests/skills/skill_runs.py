"""Skills for tests of runs: folders on disk, and runs that have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tallystick.client import Session
from tallystick.core.records import AskModel, HostAnswered, ProgramFinished, Record
from tallystick.ledger.memory import MemoryLedger
from tallystick.model.scripted import ScriptedModel
from tallystick.runtime.calls.functions import RunFunction
from tallystick.runtime.runs.history import records_of
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.skills.skills import Skills
from tallystick.testing.models import block
from tallystick.testing.runs import Played

__all__ = ["answers", "asked", "make_skill", "outputs", "play_with"]


def make_skill(
    root: Path,
    name: str,
    *,
    body: str = "Do it.\n",
    files: Mapping[str, str | bytes] | None = None,
    **fields: str,
) -> Path:
    """A skill's folder. `fields` go into its head, with hyphens for underscores."""
    folder = root / name
    folder.mkdir(parents=True)
    head = {"name": name, "description": f"About {name}.", **fields}
    lines = [f"{key.replace('_', '-')}: {value}" for key, value in head.items()]
    (folder / "SKILL.md").write_text("---\n" + "\n".join(lines) + f"\n---\n{body}")
    for path, content in (files or {}).items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def play_with(
    sandbox: WasmSandbox,
    skills: Skills | None,
    *programs: str,
    functions: Sequence[RunFunction] = (),
    goal: str = "what is it?",
    put: Sequence[str] = (),
    **more: Any,
) -> Played:
    """Run programs one after another; each is a reply of its own."""
    ledger = MemoryLedger()
    model = ScriptedModel.of(*(block(each) for each in programs))
    session = Session(
        model=model, functions=functions, ledger=ledger, sandbox=sandbox, skills=skills
    )
    run = session.run(goal, skills=put, **more)
    records = list(records_of(ledger, run.run))
    return Played(run=run, records=records, ledger=ledger, session=session)


def outputs(records: Sequence[Record]) -> list[str]:
    """What each program printed, or what it failed with."""
    return [
        each.stdout if each.failure is None else each.failure.message
        for each in records
        if isinstance(each, ProgramFinished)
    ]


def answers(records: Sequence[Record]) -> list[HostAnswered]:
    return [each for each in records if isinstance(each, HostAnswered)]


def asked(records: Sequence[Record]) -> list[AskModel]:
    return [each for each in records if isinstance(each, AskModel)]
