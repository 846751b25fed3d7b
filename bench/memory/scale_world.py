"""Synthetic notes with vectors, the store they are put into, and exact search over them."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tallystick.memory.note import NewNote
from tallystick.memory.recall.codes import cosines
from tallystick.memory.recall.index import Masked
from tallystick.memory.recall.scope import Embedded, Profile
from tallystick.memory.recall.words import bm25_scores
from tallystick.memory.remember import remember_all
from tallystick.memory.store.sqlite import SqliteMemory
from tallystick.memory.store.vectors import Vectors, choose_model, keep_vectors

__all__ = ["AGENTS", "PROFILE", "Fixed", "Question", "World"]

AGENTS = 10
PROFILE = Profile(token=0)
_MODEL = "0" * 64
_DIMENSIONS = 384
_WORDS, _NOTE_WORDS, _QUERY_WORDS = 50_000, 20, 6
_CLUSTER_NOTES = 200
_BATCH = 5_000
# So many by a sum of rounded products, of which the best are then computed exactly.
_NEARLY = 200


class Fixed:
    """An embedder that gives one vector, made before."""

    digest = _MODEL

    def __init__(self, vector: bytes) -> None:
        self._vector = vector

    def embed(self, text: str) -> Embedded:
        return Embedded(vector=self._vector, tokens=b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A query of six words, and its vector."""

    text: str
    vector: bytes

    @property
    def terms(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.text.split()))


class World:
    """Notes in a store, and what is needed to search them exactly."""

    def __init__(self, memory: SqliteMemory, notes: int, *, seed: int = 9) -> None:
        self.memory = memory
        self.notes = notes
        self._random = np.random.default_rng(seed)
        clusters = max(1, notes // _CLUSTER_NOTES)
        self._centres = self._random.standard_normal((clusters, _DIMENSIONS))
        chances = 1 / np.arange(1, _WORDS + 1)
        self._edges = np.cumsum(chances / chances.sum())
        self._vectors = np.empty((notes, _DIMENSIONS), dtype=np.int16)
        self._words = np.empty((notes, _NOTE_WORDS), dtype=np.int32)
        self._ids: list[str] = []
        # Notes a second, by the clock, batch by batch; then the same for vectors.
        self.remembered: list[float] = []
        self.embedded: list[float] = []

    def fill(self) -> None:
        """Remember the notes and give them vectors, batch by batch."""
        choose_model(self.memory, _MODEL, dimensions=_DIMENSIONS)
        for start in range(0, self.notes, _BATCH):
            self._fill(start, min(start + _BATCH, self.notes))

    def _fill(self, start: int, end: int) -> None:
        count = end - start
        drawn, words = self._drawn(count), self._drawn_words(count, _NOTE_WORDS)
        self._vectors[start:end], self._words[start:end] = drawn, words
        new = [
            NewNote(
                agent_id=f"agent{number % AGENTS}",
                content=" ".join(f"w{word}" for word in row),
            )
            for number, row in enumerate(words.tolist(), start)
        ]
        began = time.perf_counter()
        made = [each.id for each in remember_all(self.memory, new)]
        self.remembered.append(count / (time.perf_counter() - began))
        self._ids.extend(made)
        rows = [(id, [Vectors(row.tobytes())]) for id, row in zip(made, drawn, strict=True)]
        began = time.perf_counter()
        keep_vectors(self.memory, rows, model=_MODEL)
        self.embedded.append(count / (time.perf_counter() - began))

    def questions(self, count: int) -> list[Question]:
        words = self._drawn_words(count, _QUERY_WORDS).tolist()
        return [
            Question(text=" ".join(f"w{word}" for word in row), vector=vector.tobytes())
            for row, vector in zip(words, self._drawn(count), strict=True)
        ]

    def exact(self, question: Question, standing: Masked, *, k: int) -> tuple[str, ...]:
        """The best notes by the lanes of words and vectors, every note having been compared."""
        _, statistics = standing.best(question.terms, count=1, bm25=PROFILE.bm25)
        lengths = np.full(self.notes, _NOTE_WORDS)
        lexical = np.zeros(self.notes)
        known = [term for term in question.terms if statistics.frequency[term]]
        best = sum(statistics.rarity(term) for term in known) * (PROFILE.saturation + 1) or 1.0
        for term in known:
            often = (self._words == int(term[1:])).sum(axis=1)
            longer = lengths / statistics.length
            held = PROFILE.saturation * (1 - PROFILE.length + PROFILE.length * longer)
            more = often * (PROFILE.saturation + 1) / (often + held)
            lexical += statistics.rarity(term) * more / best
        query = np.frombuffer(question.vector, dtype="<i2").astype(np.float32) / 32_767
        dense = np.empty(self.notes)
        for start in range(0, self.notes, 50_000):
            rows = self._vectors[start : start + 50_000].astype(np.float32)
            dense[start : start + 50_000] = rows @ query / 32_767
        nearly = np.argsort(-(lexical + np.maximum(dense, 0)))[:_NEARLY].tolist()
        counts = [Counter(f"w{word}" for word in self._words[at].tolist()) for at in nearly]
        by_words = bm25_scores(question.terms, counts, statistics, PROFILE.bm25)
        by_vectors = cosines(question.vector, [self._vectors[at].tobytes() for at in nearly])
        scored = [
            (-round(round(word, 9) + round(max(near, 0.0), 9), 9), self._ids[at])
            for at, word, near in zip(nearly, by_words, by_vectors, strict=True)
        ]
        return tuple(id for _, id in sorted(scored)[:k])

    def nearest(self, question: Question, *, k: int) -> set[str]:
        """The notes of the nearest vectors."""
        query = np.frombuffer(question.vector, dtype="<i2").astype(np.float32)
        products = np.empty(self.notes, dtype=np.float32)
        for start in range(0, self.notes, 50_000):
            products[start : start + 50_000] = (
                self._vectors[start : start + 50_000].astype(np.float32) @ query
            )
        best = np.argpartition(-products, min(k, self.notes - 1))[:k]
        return {self._ids[at] for at in best.tolist()}

    def _drawn(self, count: int) -> NDArray[np.int16]:
        """Vectors of length one around the centres."""
        centres = self._centres[self._random.integers(0, len(self._centres), count)]
        rows = centres + self._random.standard_normal((count, _DIMENSIONS))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return np.rint(rows * 32_767).astype("<i2")

    def _drawn_words(self, notes: int, each: int) -> NDArray[np.int64]:
        return np.searchsorted(self._edges, self._random.random((notes, each)))
