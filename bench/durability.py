"""Durability: what a paid turn forces to the disk, what many runs share, what resuming costs.

Question: does a paid turn wait for the disk at most 1.2 times, opening and closing not counted,
where LangGraph and DBOS do so more often; does it write no more bytes than they do; do eight runs
on one file share their waits; and does a run that was cut off reach its next model call sooner
than it reached that place the first time?

Sketch before measuring. A turn forces its intent, and the results before it ride along: once, and
a few more for the log's checkpoints. LangGraph commits a checkpoint and its writes, twice; DBOS
keeps SQLite's rollback journal, four times: both were counted before. A commit writes whole pages,
one of every table and index it touches: two of five pages are 40 KB a turn. An append is a wait and
0.2 ms beside it: 0.5 to 0.8 of a bare one. Of eight that wait together seven ride along, so 0.2
waits each; turns gain less, since each computes for 2 ms. Resuming runs the programs again, with
neither replies nor waits: half the time.

Of bytes the guess was low: a page that is full is split, and its neighbours are written with it.
"""

from __future__ import annotations

from collections.abc import Iterable

from bench.durability_count import counts
from bench.durability_resume import resume
from bench.durability_share import group_commit
from bench.measure import Bench, Row, World

__all__ = ["BENCHES"]


def durability(world: World) -> Iterable[Row]:
    yield from counts(world)
    yield from group_commit(world)
    yield from resume(world)


BENCHES: dict[str, Bench] = {"durability": durability}
