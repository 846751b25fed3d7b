"""Embedding: giving vectors to the notes that have none, with one model for the whole store."""

from __future__ import annotations

from tallystick.memory.scope import Embedder
from tallystick.memory.sqlite import SqliteMemory
from tallystick.memory.vectors import Vectors, choose_model, keep_vectors, model_of, unembedded

__all__ = ["embed_missing"]

# As many as are kept in one transaction: what was embedded before a crash stays embedded.
_BATCH = 200


def embed_missing(
    memory: SqliteMemory, embedder: Embedder, *, dimensions: int, replace: bool = False
) -> int:
    """Embed every note that has no vector yet, window by window. Returns how many there were.

    A store with vectors of another model raises `ModelMismatch`; with `replace` those are thrown
    away, and every note is embedded again.
    """
    if model_of(memory) != (embedder.digest, dimensions):
        choose_model(memory, embedder.digest, dimensions=dimensions, replace=replace)
    count = 0
    while found := unembedded(memory, limit=_BATCH):
        made = [(id, [_vectors(embedder, each) for each in texts]) for id, texts in found]
        count += keep_vectors(memory, made, model=embedder.digest)
    return count


def _vectors(embedder: Embedder, text: str) -> Vectors:
    made = embedder.embed(text)
    return Vectors(made.vector, made.tokens)
