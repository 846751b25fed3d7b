"""Resuming: how long a run that was cut off takes to its next call, beside what the run took.

The model answers at once. With one that takes seconds the run takes minutes, and resuming the same.
"""

from __future__ import annotations

import shutil
import sqlite3
import statistics
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from bench.durability_worker import GOAL, TurnsModel, limits_of
from bench.measure import Row, World, now

from tallystick.client import Session
from tallystick.core.records import ProgramFinished, Record
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.model.port import Heard, ModelReply, ModelRequest
from tallystick.sandbox.wasm.sandbox import WasmSandbox

__all__ = ["cut_off", "resume"]

_ROUNDS = 5
_TURNS = 30


def resume(world: World) -> Iterable[Row]:
    name = f"resume of {_TURNS} turns to its next call, to run"
    if not hasattr(Session, "resume"):
        yield Row(bench="durability", name=name, unit="x", samples=[], skipped="not built")
        return
    pairs = []
    for number in range(_ROUNDS + 1):
        path, copy = (world.directory / f"resume-{number}-{each}.db" for each in ("run", "copy"))
        run, ran = cut_off(world.sandbox, path, copy)
        pairs.append((ran, _resumed(world, copy, run)))
    pairs = pairs[1:]  # the first warms up
    ran, resumed = (statistics.median(pair[at] for pair in pairs) * 1e3 for at in (0, 1))
    yield Row(
        bench="durability",
        name=name,
        unit="x",
        samples=[resumed / ran for ran, resumed in pairs],
        target=1.0,
        against=f"{resumed:.0f} ms; the run to that call {ran:.0f} ms, its model answering at once",
    )


def cut_off(
    sandbox: WasmSandbox, path: Path, copy: Path, *, turns: int = _TURNS
) -> tuple[str, float]:
    """A run whose ledger was copied before its last call. Its id, and seconds to that place.

    The copy is what a killed process leaves there: a result that only rides along is not in it.
    """
    finished, seconds = 0, 0.0

    def watch(run: str, record: Record) -> None:
        nonlocal finished, seconds
        if not isinstance(record, ProgramFinished):
            return
        finished += 1
        if finished == turns - 1:
            seconds = now() - began
            _copied(path, copy)

    model = TurnsModel(turns)
    with (
        SqliteLedger(path) as ledger,
        Session(config=None, model=model, ledger=ledger, sandbox=sandbox) as session,
    ):
        ledger.runs()
        began = now()
        run = session.run(GOAL, limits=limits_of(turns), compact_at=0, watch=watch)
    if run.turns != turns or not copy.exists():
        raise RuntimeError(f"the run was not cut off: {run.turns} turns, {run.stop}")
    return run.run, seconds


def _copied(path: Path, copy: Path) -> None:
    """Copy a ledger that is in use, with the attachments beside it."""
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    beside, there = (each.with_name(f"{each.name}-attachments") for each in (path, copy))
    if beside.exists():
        shutil.copytree(beside, there)


def _resumed(world: World, copy: Path, run: str) -> float:
    """Seconds from resuming to the one call that the run still has to make."""
    model = _Noting(_TURNS)
    with (
        SqliteLedger(copy) as ledger,
        Session(config=None, model=model, ledger=ledger, sandbox=world.sandbox) as session,
    ):
        ledger.runs()
        began = now()
        ended = session.resume(run)
    if len(model.asked) != 1 or ended.turns != _TURNS or not ended.answered:
        raise RuntimeError(
            f"the run that was resumed made {len(model.asked)} calls, not one, and ended after "
            f"{ended.turns} turns: {ended.stop}, {ended.detail}"
        )
    return model.asked[0] - began


class _Noting(TurnsModel):
    """A model that notes when it was asked."""

    def __init__(self, turns: int) -> None:
        super().__init__(turns)
        self.asked: list[float] = []

    async def ask(self, request: ModelRequest, *, heard: Heard = lambda chars: None) -> ModelReply:
        self.asked.append(now())
        return await super().ask(request, heard=heard)
