"""Runs that were cut off inside a run that they began: what a kill would have left on the disk."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tallystick.client import Session
from tallystick.core.budget.amount import Budget
from tallystick.core.charge import RunLimits
from tallystick.ledger.scopes import Hold, SharedScopes
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.spend.scopes import DEPLOYMENT
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import PRICING, ModelCall, ModelDouble, block

GOAL = "the root asks"
WIDE = RunLimits(tokens=10_000_000)
TOTAL = Budget.of(usd=1)
ONE = "FINAL(rlm_query('child please', context='abc'))"
Said = Callable[[ModelCall], str | None]


def is_root(call: ModelCall) -> bool:
    return GOAL in call.text


def says(root: str, *child: str | None) -> Said:
    """The root says one program, and a child those of its turns; None is never answered."""

    def said(call: ModelCall) -> str | None:
        program = root if is_root(call) else child[call.turn]
        return None if program is None else block(program)

    return said


def opened(sandbox: WasmSandbox, ledger: SqliteLedger, said: Any, **more: Any) -> Session:
    model = said if isinstance(said, ModelDouble) else ModelDouble(said)
    return Session(
        config=None, model=model, ledger=ledger, sandbox=sandbox, pricing=PRICING, **more
    )


def cut_off(
    sandbox: WasmSandbox,
    folder: Path,
    model: ModelDouble,
    *,
    until: threading.Event | None = None,
    wanted: int = 1,
    **more: Any,
) -> Path:
    """Run the goal until it waits for ever, and return the folder that a kill leaves.

    That is when `until` is set, or when so many calls of the model wait as are `wanted`.
    """
    with SqliteLedger(folder / "alive" / "ledger.db") as ledger:
        session = opened(sandbox, ledger, model, **more)
        thread = threading.Thread(target=lambda: session.run(GOAL, limits=WIDE))
        thread.start()
        reached = model.wait_until_hung(wanted) if until is None else until.wait(20)
        assert reached, "it came to its end before"
        _rest(ledger)
        ignored = shutil.ignore_patterns("*-shm", "*-runs")
        shutil.copytree(folder / "alive", folder / "dead", ignore=ignored)
        session.close()
        thread.join()
    return folder / "dead"


def _rest(ledger: SqliteLedger) -> None:
    """Wait until nothing was written for a while: others of a batch may still begin."""
    rows, quiet = ledger.runs(), 0
    while quiet < 5:
        time.sleep(0.02)
        now = ledger.runs()
        quiet, rows = (quiet + 1 if now == rows else 0), now


def holds(ledger: SqliteLedger) -> list[Hold]:
    """What is held of the shared total."""
    with SharedScopes(ledger.file) as scopes:
        return list(scopes.holds())


def spent(ledger: SqliteLedger) -> int:
    """What is spent of the shared total, in nano-dollars."""
    with SharedScopes(ledger.file) as scopes:
        (row,) = [row for row in scopes.rows() if row.scope.id == DEPLOYMENT]
    return row.spent.usd or 0
