"""Group commit: what eight runs, or eight threads, gain from waiting for the disk together.

Rates are measured in rounds, each kind in turn, so that a busy moment falls on all of them. That
waits are shared is counted apart, since a rate cannot tell it from a quick disk.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from bench.durability_count import of_ours
from bench.durability_trace import TRACE_MISSING, trace_available
from bench.durability_worker import REPLY_BYTES, TurnsModel, append_at_once, run_at_once
from bench.measure import Row, World, now

from tallystick.client import Session
from tallystick.ledger.sqlite import SqliteLedger

__all__ = ["group_commit"]

_ROUNDS = 5
_COUNTS = 3
_MANY = 8
_TURNS = 50
_APPENDS = 100


@dataclass(frozen=True, slots=True)
class _Rates:
    """One round. All are per second."""

    bare: float
    append_one: float
    append_many: float
    turn_one: float
    turn_many: float


def group_commit(world: World) -> Iterable[Row]:
    # The first round imports and warms up.
    rounds = [_round(world) for _ in range(_ROUNDS + 1)][1:]

    def middle(rate: Callable[[_Rates], float]) -> str:
        return f"{statistics.median(map(rate, rounds)):,.0f}/s"

    bare = f"bare append and fdatasync {middle(lambda each: each.bare)}"
    yield Row(
        bench="durability",
        name="forced appends, 1 thread, to bare fdatasync",
        unit="x",
        samples=[each.append_one / each.bare for each in rounds],
        target=0.8,
        higher_is_better=True,
        against=f"{middle(lambda each: each.append_one)}; {bare}",
    )
    yield Row(
        bench="durability",
        name=f"forced appends, {_MANY} threads, to bare fdatasync",
        unit="x",
        samples=[each.append_many / each.bare for each in rounds],
        target=5,
        higher_is_better=True,
        against=f"{middle(lambda each: each.append_many)}; {bare}",
    )
    yield Row(
        bench="durability",
        name=f"forced appends, {_MANY} threads to 1",
        unit="x",
        samples=[each.append_many / each.append_one for each in rounds],
        target=3,
        higher_is_better=True,
    )
    yield Row(
        bench="durability",
        name=f"turns per second, {_MANY} runs at once to 1",
        unit="x",
        samples=[each.turn_many / each.turn_one for each in rounds],
        target=1.5,
        higher_is_better=True,
        against=f"{middle(lambda each: each.turn_many)}; one run "
        f"{middle(lambda each: each.turn_one)}; in one process, the model answering at once",
    )
    yield from _waits_shared()


def _round(world: World) -> _Rates:
    with tempfile.TemporaryDirectory(dir=world.directory) as directory:
        folder = Path(directory)
        return _Rates(
            _bare_per_second(folder / "bare"),
            _appends_per_second(folder / "append-one.db", threads=1),
            _appends_per_second(folder / "append-many.db", threads=_MANY),
            _turns_per_second(world, folder / "turn-one.db", runs=1),
            _turns_per_second(world, folder / "turn-many.db", runs=_MANY),
        )


def _bare_per_second(path: Path) -> float:
    """Appends of 1 KB to a file, each forced: what the disk gives."""
    data = b"x" * REPLY_BYTES
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    try:
        began = now()
        for _ in range(_APPENDS):
            os.write(descriptor, data)
            os.fdatasync(descriptor)
        return _APPENDS / (now() - began)
    finally:
        os.close(descriptor)


def _appends_per_second(path: Path, *, threads: int) -> float:
    with SqliteLedger(path) as ledger:
        ledger.runs()
        began = now()
        append_at_once(ledger, threads=threads, count=_APPENDS)
        return threads * _APPENDS / (now() - began)


def _turns_per_second(world: World, path: Path, *, runs: int) -> float:
    model = TurnsModel(_TURNS)
    with (
        SqliteLedger(path) as ledger,
        Session(config=None, model=model, ledger=ledger, sandbox=world.sandbox) as session,
    ):
        ledger.runs()
        began = now()
        world.do(run_at_once(session, runs=runs, turns=_TURNS))
        return runs * _TURNS / (now() - began)


def _waits_shared() -> Iterable[Row]:
    if not trace_available():
        name = f"forced writes per append, {_MANY} threads"
        yield Row(bench="durability", name=name, unit="", samples=[], skipped=TRACE_MISSING)
        return
    appends = [of_ours("appends", many=_MANY, each=_APPENDS) for _ in range(_COUNTS)]
    yield Row(
        bench="durability",
        name=f"forced writes per append, {_MANY} threads",
        unit="",
        samples=[each.forced for each in appends],
        target=0.25,
        against=f"the least is {1 / _MANY:g}",
    )
    pairs = [
        (of_ours("runs", many=1, each=_TURNS), of_ours("runs", many=_MANY, each=_TURNS))
        for _ in range(_COUNTS)
    ]
    one, many = (statistics.median(pair[at].forced for pair in pairs) for at in (0, 1))
    yield Row(
        bench="durability",
        name=f"forced writes per turn, {_MANY} runs at once to 1",
        unit="x",
        samples=[many.forced / one.forced for one, many in pairs],
        target=0.5,
        against=f"{many:.2f} a turn; one run {one:.2f}",
    )
