"""A query over very many notes: processor time on one core, and agreement with exact search.

    .venv/bin/python -m bench.memory.scale [NOTES ...]     100,000 and 1,000,000 unless given

Question: is a scan of everything quick enough to do without an approximate index? Guess: 48 MB of
codes are read at 10 GB/s, so 5 ms for a million, as much again for the words of a query, and 10 ms
to rank the six hundred candidates. Vectors are synthetic and clustered, texts are 20 words drawn by
rank (the n-th word is as frequent as 1/n). Token vectors and the model's own time are left out.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tallystick.memory.codes import Codes
from tallystick.memory.fusion import rank
from tallystick.memory.postings import Postings
from tallystick.memory.profile import Profile
from tallystick.memory.scope import Embedded, ListScope, NoteFields
from tallystick.memory.shortlist import shortlist

__all__ = ["main", "measure"]

_DIMENSIONS = 384
_WORDS, _NOTE_WORDS, _QUERY_WORDS = 50_000, 20, 6
_CLUSTER_NOTES = 200
_QUERIES = 200
# Exact search over a million takes half a second.
_COMPARED = 30
_FIELDS = NoteFields(text="")
_PROFILE = Profile(token=0)


class World:
    """Notes with vectors, and queries near some of them."""

    def __init__(self, notes: int, *, seed: int = 9) -> None:
        random = np.random.default_rng(seed)
        self.count = notes
        self._random = random
        self._centres = random.standard_normal((max(1, notes // _CLUSTER_NOTES), _DIMENSIONS))
        chances = 1 / np.arange(1, _WORDS + 1)
        self._edges = np.cumsum(chances / chances.sum())
        self.vectors = np.empty((notes, _DIMENSIONS), dtype=np.int16)
        self.drawn_words = np.empty((notes, _NOTE_WORDS), dtype=np.int32)
        self.codes = Codes(dimensions=_DIMENSIONS)
        self.postings = Postings()
        for start in range(0, notes, 10_000):
            self._fill(start, min(start + 10_000, notes))

    def _fill(self, start: int, end: int) -> None:
        drawn = self.drawn(end - start)
        self.vectors[start:end] = drawn
        self.codes.add(drawn.tobytes())
        self.drawn_words[start:end] = self.words(end - start, _NOTE_WORDS)
        for number in range(start, end):
            self.postings.add(f"n{number:07}", self.counts(number))

    def counts(self, number: int) -> dict[str, int]:
        return Counter(f"w{word}" for word in self.drawn_words[number].tolist())

    def drawn(self, count: int) -> NDArray[np.int16]:
        """Vectors of length one around the centres."""
        centres = self._centres[self._random.integers(0, len(self._centres), count)]
        rows = centres + self._random.standard_normal((count, _DIMENSIONS))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return np.rint(rows * 32_767).astype(np.int16)

    def words(self, notes: int, each: int) -> NDArray[np.int64]:
        return np.searchsorted(self._edges, self._random.random((notes, each)))


class Fixed:
    """An embedder that gives one vector, made before."""

    digest = "0" * 64

    def __init__(self, vector: bytes) -> None:
        self._vector = vector

    def embed(self, text: str) -> Embedded:
        return Embedded(vector=self._vector, tokens=b"")


def measure(world: World, *, queries: int = _QUERIES) -> dict[str, float]:
    """Times of each part and of all, and how many of the ten nearest the codes find."""
    drawn = world.drawn(queries)
    texts = [
        " ".join(f"w{word}" for word in row) for row in world.words(queries, _QUERY_WORDS).tolist()
    ]
    times: dict[str, list[float]] = {"lexical": [], "dense": [], "all": []}
    candidates = []
    gc.collect()
    gc.freeze()
    for row, text in zip(drawn, texts, strict=True):
        vector = row.astype("<i2").tobytes()
        asked = tuple(dict.fromkeys(text.split()))
        began = time.process_time()
        world.postings.best(asked, count=300)
        lexical = time.process_time()
        near = world.codes.near(vector, count=300)
        dense = time.process_time()
        _recall(world, text, asked, vector)
        ended = time.process_time()
        times["lexical"].append(1000 * (lexical - began))
        times["dense"].append(1000 * (dense - lexical))
        times["all"].append(1000 * (ended - dense))
        candidates.append(near)
    gc.unfreeze()
    figures = {
        f"{name} {which}": round(_at(values, share), 2)
        for name, values in times.items()
        for which, share in (("p50", 0.5), ("p99", 0.99))
    }
    # Afterwards: the threads of a large product spin for a while, and would be counted above.
    compared = list(zip(drawn, candidates, strict=True))[:_COMPARED]
    agreement = [_agreement(world.vectors, row, near) for row, near in compared]
    return {**figures, "agreement": round(statistics.fmean(agreement), 4)}


def _recall(world: World, text: str, asked: Sequence[str], vector: bytes) -> None:
    """Short list, the vectors and words of its notes, and the ranking of them."""
    found = shortlist(asked, vector, postings=world.postings, codes=world.codes)
    notes = dict.fromkeys(found.ids, _FIELDS)
    embedded = {
        id: Embedded(vector=world.vectors[int(id[1:])].tobytes(), tokens=b"") for id in found.ids
    }
    scope = ListScope(notes, embedded=embedded, counts=found.counts)
    rank(
        text,
        scope,
        k=10,
        profile=_PROFILE,
        embedder=Fixed(vector),
        statistics=found.statistics,
    )


def _agreement(
    vectors: NDArray[np.int16], row: NDArray[np.int16], near: NDArray[np.int64]
) -> float:
    query = row.astype(np.float32)
    exact: list[tuple[float, int]] = []
    for start in range(0, len(vectors), 100_000):
        products = vectors[start : start + 100_000].astype(np.float32) @ query
        best = np.argpartition(-products, min(10, len(products) - 1))[:10]
        exact.extend((float(products[at]), start + int(at)) for at in best)
    right = {number for _, number in sorted(exact, reverse=True)[:10]}
    return len(right.intersection(near.tolist())) / len(right)


def _at(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main(arguments: Sequence[str]) -> int:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for notes in [int(each) for each in arguments] or [100_000, 1_000_000]:
        began = time.process_time()
        world = World(notes)
        print(f"{notes:,} notes, made in {time.process_time() - began:.0f} s of processor time")
        for name, value in measure(world).items():
            print(f"  {name:14}{value:>10}{' ms' if name != 'agreement' else ''}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
