"""Runs that were cut off inside a run that they began: what a kill would have left on the disk."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.runtime.run.priced_model import PRICING, Costed
from tests.scripted_run import block

from tallystick.client import Session
from tallystick.core.budget.amount import Budget
from tallystick.core.charge import RunLimits
from tallystick.ledger.scopes import Hold, SharedScopes
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.model.port import ModelReply, ModelRequest
from tallystick.runtime.spend.scopes import DEPLOYMENT
from tallystick.sandbox.wasm.sandbox import WasmSandbox

GOAL = "the root asks"
WIDE = RunLimits(tokens=10_000_000)
TOTAL = Budget.of(usd=1)
ONE = "FINAL(rlm_query('child please', context='abc'))"
Said = Callable[[ModelRequest], str | None]


class Talks(Costed):
    """Says to each request what a function makes of it; to None it never says anything.

    `hung` is set when so many wait as are `wanted`.
    """

    def __init__(self, said: Said, *, wanted: int = 1, name: str = "fake:model") -> None:
        super().__init__(name=name)
        self.said = said
        self.hung = threading.Event()
        self.keys: list[str] = []
        self.temperatures: list[float | None] = []
        self._wanted = wanted

    async def _reply(self, request: ModelRequest) -> ModelReply:
        self.keys.append(request.key)
        self.temperatures.append(request.temperature)
        text = self.said(request)
        if text is None:
            self._wanted -= 1
            if not self._wanted:
                self.hung.set()
            await asyncio.Event().wait()
        assert text is not None
        self.answer = lambda prompt: text
        return await super()._reply(request)


def is_root(request: ModelRequest) -> bool:
    return any(GOAL in each.text for each in request.messages)


def turn_of(request: ModelRequest) -> int:
    return sum(each.role == "assistant" for each in request.messages)


def says(root: str, *child: str | None) -> Said:
    """The root says one program, and a child those of its turns; None is never answered."""

    def said(request: ModelRequest) -> str | None:
        program = root if is_root(request) else child[turn_of(request)]
        return None if program is None else block(program)

    return said


def opened(sandbox: WasmSandbox, ledger: SqliteLedger, said: Any, **more: Any) -> Session:
    model = said if isinstance(said, Costed) else Talks(said)
    return Session(
        config=None, model=model, ledger=ledger, sandbox=sandbox, pricing=PRICING, **more
    )


def cut_off(
    sandbox: WasmSandbox,
    folder: Path,
    model: Talks,
    *,
    until: threading.Event | None = None,
    **more: Any,
) -> Path:
    """Run the goal until something waits that never ends. Gives the folder that a kill leaves."""
    with SqliteLedger(folder / "alive" / "ledger.db") as ledger:
        session = opened(sandbox, ledger, model, **more)
        thread = threading.Thread(target=lambda: session.run(GOAL, limits=WIDE))
        thread.start()
        assert (until or model.hung).wait(20), "it came to its end before"
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
