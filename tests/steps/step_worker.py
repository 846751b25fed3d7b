"""A program of steps in a process that its model may kill: `step_worker.py FILE ORDER`.

FILE is the ledger, ORDER is `begin`, `killed` or `resume`. The model notes each call that it is
paid for beside the ledger; `killed` ends the process in the middle of the second step's second.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from tests.steps.step_processes import chains_in, tasks

from tallystick.client import Session
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.runs.history import records_of
from tallystick.steps.decorator import step
from tallystick.testing.models import PRICING, ModelCall, ModelDouble

KILLED_AT = 3


def paid(notes: Path, *, kills: bool) -> ModelDouble:
    """A model that notes what it is paid for, where that outlives the process."""

    def note(call: ModelCall) -> None:
        with notes.open("a") as file:
            file.write(f"{call.key}\n")
        if kills and len(notes.read_text().splitlines()) == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)

    return tasks(before=note)


def program(session: Session) -> dict[str, object]:
    called: list[str] = []

    @step
    def first(name: str) -> str | None:
        called.append("first")
        return session.run(f"task {name} in 1").answer

    @step
    def second() -> str | None:
        called.append("second")
        return session.run("task b in 3").answer

    @step("all", budget={"max_usd": 1})
    def everything() -> list[str | None]:
        called.append("all")
        return [first("a"), second(), first("c")]

    return {"value": everything(), "called": called}


def main(path: Path, order: str) -> None:
    model = paid(path.with_name("paid"), kills=order == "killed")
    ledger = SqliteLedger(path)
    with Session(config=None, model=model, ledger=ledger, pricing=PRICING) as session:
        if order != "resume":
            found = program(session)
        else:
            (chain,) = chains_in(ledger)
            with session.resume_steps(chain, in_doubt="retry"):
                found = program(session)
        (chain,) = chains_in(ledger)
        *_, left = records_of(ledger, chain)
        receipt = getattr(left, "receipt", None)
        found["calls"] = getattr(receipt, "llm_calls", None)
        found["status"] = getattr(receipt, "status", None)
        with session.replay_steps(chain) as report:
            program(session)
        found["replay_held"] = report.held
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
