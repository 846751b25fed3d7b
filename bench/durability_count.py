"""Forced writes and bytes of a paid turn, counted; and of the same turn elsewhere.

A run of one turn pays for opening and closing too. What a hundred turns cost beyond it, is theirs.
Peers run in a Python of their own, and store as much a turn as a reply has here.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.durability_trace import TRACE_MISSING, Traced, trace, trace_available
from bench.durability_worker import REPLY_BYTES
from bench.measure import ROOT, Row, World

__all__ = ["PEERS", "Peer", "PerTurn", "counts", "of_ours"]

# As often as shows that they are the same each time.
_COUNTS = 2
_TURNS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PerTurn:
    """A run of one turn and a longer one: what each further turn costs."""

    short: Traced
    long: Traced
    further: int

    @property
    def forced(self) -> float:
        return (self.long.forced - self.short.forced) / self.further

    @property
    def kilobytes(self) -> float:
        return (self.long.bytes_written - self.short.bytes_written) / 1e3 / self.further


def of_ours(what: str, *, many: int, each: int) -> PerTurn:
    """Count so many runs or threads at once, of so many turns or appends each."""

    def traced(number: int) -> Traced:
        with tempfile.TemporaryDirectory(prefix="tally-durability-") as folder:
            worker = str(ROOT / "bench" / "durability_worker.py")
            command = [sys.executable, worker, what, folder, str(many), str(number)]
            return trace(command, Path(folder))

    return PerTurn(short=traced(1), long=traced(each), further=many * (each - 1))


def counts(world: World) -> Iterable[Row]:
    if not trace_available():
        name = "forced writes per paid turn"
        yield Row(bench="durability", name=name, unit="", samples=[], skipped=TRACE_MISSING)
        return
    ours = [of_ours("runs", many=1, each=_TURNS) for _ in range(_COUNTS)]
    long = ours[-1].long
    yield Row(
        bench="durability",
        name=f"forced writes per paid turn, {_TURNS} turns",
        unit="",
        samples=[each.forced for each in ours],
        target=1.2,
        against=f"the least is 1; {long.forced / _TURNS:.2f} with opening and closing",
    )
    yield Row(
        bench="durability",
        name=f"written per paid turn, {_TURNS} turns",
        unit="KB",
        samples=[each.kilobytes for each in ours],
        against=f"{REPLY_BYTES / 1e3:.1f} KB of it the reply; "
        f"{long.bytes_written / 1e3 / _TURNS:.1f} KB with opening and closing",
    )
    for peer in PEERS:
        yield from peer.rows(ours)


# -- elsewhere ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Whoever does the same elsewhere, and what is aimed at beside it, if anything."""

    who: str
    mode: str
    variable: str
    driver: str
    asked: dict[str, object]
    forced_most: float | None = None
    bytes_most: float | None = None

    def rows(self, ours: Sequence[PerTurn]) -> Iterable[Row]:
        forced = f"forced writes per turn, {self.mode}"
        python = os.environ.get(self.variable, "")
        why = f"set {self.variable} to a Python that has it"
        theirs: Sequence[PerTurn] = []
        if python and Path(python).exists():
            try:
                theirs = [self._per_turn(python) for _ in range(_COUNTS)]
            except Exception as error:
                why = f"failed: {error}"
        if not theirs:
            yield Row(
                bench="durability", name=forced, unit="", samples=[], skipped=why, who=self.who
            )
            return
        long = theirs[-1].long
        yield Row(
            bench="durability",
            name=forced,
            unit="",
            samples=[each.forced for each in theirs],
            against=f"{long.forced / _TURNS:.2f} with opening and closing; "
            f"{_said(long)['version']}",
            who=self.who,
        )
        yield Row(
            bench="durability",
            name=f"written per turn, {self.mode}",
            unit="KB",
            samples=[each.kilobytes for each in theirs],
            against=f"{long.bytes_written / 1e3 / _TURNS:.1f} KB with opening and closing",
            who=self.who,
        )
        pairs = list(zip(ours, theirs, strict=True))
        beside = f"per turn, to {self.who}, {self.mode}"
        if self.forced_most is not None:
            yield Row(
                bench="durability",
                name=f"forced writes {beside}",
                unit="x",
                samples=[our.forced / their.forced for our, their in pairs],
                target=self.forced_most,
            )
        if self.bytes_most is not None:
            yield Row(
                bench="durability",
                name=f"written {beside}",
                unit="x",
                samples=[our.kilobytes / their.kilobytes for our, their in pairs],
                target=self.bytes_most,
            )

    def _per_turn(self, python: str) -> PerTurn:
        short, long = self._traced(python, 1), self._traced(python, _TURNS)
        return PerTurn(short=short, long=long, further=_TURNS - 1)

    def _traced(self, python: str, turns: int) -> Traced:
        with tempfile.TemporaryDirectory(prefix="tally-durability-") as folder:
            asked = {"folder": folder, "turns": turns, "bytes": REPLY_BYTES, **self.asked}
            command = [python, str(ROOT / "bench" / self.driver)]
            found = trace(command, Path(folder), given=json.dumps(asked))
        if _said(found)["turns"] != turns:
            raise RuntimeError(f"{self.driver} did not take {turns} turns: {found.output[-200:]}")
        return found


def _said(traced: Traced) -> dict[str, object]:
    said: dict[str, object] = json.loads(traced.output.splitlines()[-1])
    return said


_LANGGRAPH = "TALLYSTICK_BENCH_LANGGRAPH"
PEERS = [
    Peer(
        who="langgraph",
        mode="sync",
        variable=_LANGGRAPH,
        driver="durability_langgraph.py",
        asked={"durability": "sync"},
        forced_most=0.6,
        bytes_most=1.0,
    ),
    # It writes the same, but does not wait for it before it goes on.
    Peer(
        who="langgraph",
        mode="its default",
        variable=_LANGGRAPH,
        driver="durability_langgraph.py",
        asked={"durability": None},
    ),
    Peer(
        who="dbos",
        mode="SQLite",
        variable="TALLYSTICK_BENCH_DBOS",
        driver="durability_dbos.py",
        asked={},
        forced_most=0.3,
        bytes_most=1.0,
    ),
]
