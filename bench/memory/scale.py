"""Recall from very many notes: processor time on one core, and agreement with exact search.

    .venv/bin/python -m bench.memory.scale [NOTES ...]     100,000 and 1,000,000 unless given

Writes bench/results/memory-scale.json if no sizes are given. A million notes are a file of some
gigabytes in the temporary directory, made in several minutes and removed afterwards.

Question: is a scan of everything quick enough to do without an approximate index? Guess for a
million: 48 MB of codes are read at 10 GB/s, so 8 ms; as much for the words of a query; 5 ms to read
the six hundred candidates from the file, 10 ms to rank them, 2 ms for the receipt and its hits.

Notes are remembered and given vectors by the store's own functions. Vectors are synthetic and
clustered, texts are 20 words drawn by rank (the n-th word is as frequent as 1/n). The model's own
time is left out, and token vectors are not kept. `ranking` is everything up to the hits, from the
standing index; `recall` is the call that a program makes, with its receipt written and forced.
Exact search ranks every note by the same lanes.
"""

from __future__ import annotations

import datetime
import gc
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.measure import ROOT, Row
from bench.memory.scale_world import AGENTS, PROFILE, Fixed, Question, World

from tallystick.memory.note import NewNote
from tallystick.memory.recall.index import StandingIndex
from tallystick.memory.recall.minilm import MiniLm, missing
from tallystick.memory.recall.recall import Asking, looking, recall
from tallystick.memory.recall.selection import NOW
from tallystick.memory.receipts.receipt import Key
from tallystick.memory.remember import remember, remember_all
from tallystick.memory.store.sqlite import SqliteMemory
from tallystick.memory.store.vectors import embed_missing
from tallystick.settings.paths import cache_directory

__all__ = ["main", "measure"]

_OUT = ROOT / "bench" / "results" / "memory-scale.json"
_SIZES = (100_000, 1_000_000)
_QUERIES = 200
# Exact search over a million takes seconds.
_COMPARED = 30
_EMBEDDED = 200
_KEY = Key(id="bench", secret=b"s" * 32)


def _target_ms(notes: int) -> float | None:
    return {100_000: 20.0, 1_000_000: 40.0}.get(notes)


def measure(world: World, *, queries: int = _QUERIES, compared: int = _COMPARED) -> Iterator[Row]:
    """Rows of one size. The world is filled here."""
    size = f"{world.notes:,} notes"
    target = _target_ms(world.notes)
    world.fill()
    yield _row(f"{size}: remembered", "/s", world.remembered, target=5_000.0, higher=True)
    yield _row(f"{size}: given vectors that are there", "/s", world.embedded, higher=True)
    index = StandingIndex(world.memory)
    began = time.process_time()
    index.keep()
    yield _row(f"{size}: index made in the file, once", "s CPU", [time.process_time() - began])
    before, began = _memory_mb(), time.process_time()
    index.follow()
    yield _row(f"{size}: index loaded from the file", "s CPU", [time.process_time() - began])
    yield _row(f"{size}: memory for the index", "MB", [_memory_mb() - before])
    asked = world.questions(queries)
    gc.collect()
    gc.freeze()
    for name, reader, place in (
        ("everything", None, None),
        ("one reader of ten", f"agent{3 % AGENTS}", None),
        ("as of the middle", None, world.memory.head().count // 2),
    ):

        def ranking(each: Question, reader: str | None = reader, place: int | None = place) -> None:
            _found(world.memory, index, each, reader=reader, as_of=place)

        yield from _times(f"{size}: ranking, {name}", ranking, asked, target=target)
    yield from _recalls(world, index, asked, target=target)
    gc.unfreeze()
    # Afterwards: the threads of a large product spin for a while, and would be counted above.
    yield from _agreement(world, index, asked[:compared])


def _found(
    memory: SqliteMemory,
    index: StandingIndex,
    question: Question,
    *,
    reader: str | None = None,
    as_of: int | None = None,
) -> list[str]:
    """The ids of the hits, without a receipt."""
    with looking(memory, reader=reader, filters=NOW, as_of=as_of, at=None, index=index) as looked:
        rank = looked.of_shortlist if looked.large else looked.of_all
        found = rank(question.text, k=10, profile=PROFILE, embedder=Fixed(question.vector))
    return [hit.id for hit in found.ranked.hits]


def _recalls(
    world: World, index: StandingIndex, asked: Sequence[Question], *, target: float | None
) -> Iterator[Row]:
    asking = Asking(agent_id="bench", profile=PROFILE)
    forced: list[float] = []

    def whole(each: Question) -> None:
        recall(world.memory, each.text, asking, key=_KEY, embedder=Fixed(each.vector), index=index)

    name = f"{world.notes:,} notes: recall with its receipt"
    yield from _times(name, whole, asked, target=target)
    for number in range(len(asked)):
        began = time.perf_counter()
        with world.memory.writing() as pen:
            # As much as a receipt: one entry, and the disk is waited for.
            remembered = pen.db.execute("UPDATE head SET at = at + 1").rowcount
        forced.append(1000 * (time.perf_counter() - began))
        assert remembered == 1, number
    yield _row(f"{world.notes:,} notes: a forced write by the clock", "ms", forced)
    remember(world.memory, NewNote(agent_id="agent0", content="one more note"))
    began = time.process_time()
    index.follow()
    yield _row(
        f"{world.notes:,} notes: index follows a note", "ms", [1000 * (time.process_time() - began)]
    )


def _agreement(world: World, index: StandingIndex, asked: Sequence[Question]) -> Iterator[Row]:
    fused, dense = [], []
    for each in asked:
        found = _found(world.memory, index, each)
        seq, at = world.memory.head().count, world.memory.clock()
        with index.at(reader=None, filters=NOW, seq=seq, at=at) as standing:
            right = world.exact(each, standing, k=10)
            near = set(_ids(world.memory, standing.near(each.vector, count=300)))
        nearest = world.nearest(each, k=10)
        fused.append(len(set(right).intersection(found)) / len(right))
        dense.append(len(nearest & near) / len(nearest))
    size = f"{world.notes:,} notes"
    name = f"{size}: of the ten best by exact search, found"
    yield _row(name, "of 1", [statistics.fmean(fused)], target=0.95, higher=True)
    name = f"{size}: of the ten nearest vectors, candidates"
    yield _row(name, "of 1", [statistics.fmean(dense)], target=0.95, higher=True)


def _ids(memory: SqliteMemory, numbers: Sequence[int]) -> list[str]:
    with memory.reading() as db:
        one = "SELECT id FROM note WHERE number = ?"
        return [db.execute(one, (number,)).fetchone()[0] for number in numbers]


def _embedding(folder: Path) -> Row:
    """Notes remembered and embedded by the real model, if its weights are there."""
    name = "remembered and embedded by the model"
    if missing():
        return Row(bench="memory-scale", name=name, unit="/s", samples=[], skipped=missing() or "")
    model = MiniLm.load(cache=cache_directory())
    world = [f"On day {n} the crew of boat {n * 7} had bread, tea and rain." for n in range(200)]
    with SqliteMemory(folder / "embedded.db") as memory:
        began = time.perf_counter()
        remember_all(memory, [NewNote(agent_id="a", content=text) for text in world])
        embed_missing(memory, model, dimensions=384)
        taken = time.perf_counter() - began
    return _row(name, "/s", [len(world) / taken], target=50.0, higher=True)


def _times(
    name: str, work: Callable[[Question], None], asked: Sequence[Question], *, target: float | None
) -> Iterator[Row]:
    """Processor time of each query: its median, and its 99th percentile with the target."""
    work(asked[0])
    taken = []
    for each in asked:
        began = time.process_time()
        work(each)
        taken.append(1000 * (time.process_time() - began))
    last = sorted(taken)[min(len(taken) - 1, int(0.99 * len(taken)))]
    yield _row(f"{name}, CPU", "ms", taken)
    yield _row(f"{name}, CPU p99", "ms", [last], target=target)


def _row(
    name: str,
    unit: str,
    samples: Sequence[float],
    *,
    target: float | None = None,
    higher: bool = False,
) -> Row:
    return Row(
        bench="memory-scale",
        name=name,
        unit=unit,
        samples=samples,
        target=target,
        higher_is_better=higher,
    )


def _memory_mb() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


def _stored(row: Row) -> dict[str, Any]:
    stored: dict[str, Any] = {"who": row.who, "bench": row.bench, "name": row.name}
    if row.skipped:
        return {**stored, "skipped": row.skipped}
    return {
        **stored,
        "unit": row.unit,
        "median": row.median,
        "least": min(row.samples),
        "most": max(row.samples),
        "samples": len(row.samples),
        "target": row.target,
        "met": row.met,
    }


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _said(row: Row) -> Row:
    if row.skipped:
        print(f"  {row.name:62} skipped: {row.skipped}", flush=True)
        return row
    verdict = {True: "MET", False: "MISSED", None: ""}[row.met]
    print(f"  {row.name:62}{row.median:>12,.2f} {row.unit:6} {verdict}", flush=True)
    return row


def main(arguments: Sequence[str]) -> int:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    load = os.getloadavg()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="tally-scale-") as name:
        folder = Path(name)
        rows.append(_said(_embedding(folder)))
        for notes in [int(each) for each in arguments] or _SIZES:
            path = folder / str(notes) / "memory.db"
            with SqliteMemory(path) as memory:
                rows.extend(_said(row) for row in measure(World(memory, notes)))
            path.unlink()
    if not arguments:
        about = {
            "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
            "python": f"{platform.python_implementation()} {platform.python_version()}",
            "commit": _commit(),
            "load": {"start": load, "end": os.getloadavg()},
            "rows": [_stored(row) for row in rows],
        }
        _OUT.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        print(f"written to {_OUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
