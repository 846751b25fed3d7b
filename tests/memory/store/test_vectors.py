"""Embedding the notes of a store, and recall by what they mean."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import pytest
from tests.memory.memory_store import a_note, open_memory

from tallystick.memory.errors import ModelMismatch
from tallystick.memory.recall.codes import pack_tokens, pack_vector
from tallystick.memory.recall.recall import Asking, recall, verify_recall
from tallystick.memory.recall.scope import Embedded
from tallystick.memory.receipts.receipt import Key
from tallystick.memory.remember import remember
from tallystick.memory.store.sqlite import SqliteMemory
from tallystick.memory.store.vectors import embed_missing, model_of, notes_without_vectors
from tallystick.memory.store.verify import verify_memory

KEY = Key(id="k1", secret=b"s" * 32)
# Words that mean the same, and so lie on the same axis.
MEANINGS = ({"car", "automobile", "vehicle"}, {"bread", "loaf", "baker"}, {"boat", "ferry", "ship"})
DIMENSIONS = len(MEANINGS) + 1


class Toy:
    """Knows three meanings. Everything else is one more."""

    def __init__(self, name: str = "toy") -> None:
        self.digest = hashlib.sha256(name.encode()).hexdigest()
        self.asked = 0

    def embed(self, text: str) -> Embedded:
        self.asked += 1
        words = text.lower().replace(".", " ").replace("?", " ").split()
        rows = [[float(word in meaning) for meaning in MEANINGS] for word in words] or [[0.0] * 3]
        rows = [[*row, 0.0 if any(row) else 0.1] for row in rows]
        whole = [sum(column) for column in zip(*rows, strict=True)]
        tokens = [value for row in rows for value in _unit(row)]
        return Embedded(vector=pack_vector(_unit(whole)), tokens=pack_tokens(tokens))


def _unit(row: list[float]) -> list[float]:
    length = math.sqrt(sum(value * value for value in row)) or 1.0
    return [value / length for value in row]


def filled(memory: SqliteMemory) -> None:
    for text in ("My automobile is red.", "The loaf is fresh.", "A ship in the harbour."):
        remember(memory, a_note(text))


def test_a_note_is_found_by_what_it_means_and_the_receipt_holds(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        filled(memory)
        toy = Toy()

        assert embed_missing(memory, toy, dimensions=DIMENSIONS) == 3
        asking = Asking(agent_id="ada", reader="ada", strategy="semantic", k=1)
        made = recall(memory, "which car?", asking, key=KEY, embedder=toy)

        assert [note.content for note in made.notes.values()] == ["My automobile is red."]
        assert made.receipt.model == toy.digest
        remember(memory, a_note("Another automobile."))
        embed_missing(memory, toy, dimensions=DIMENSIONS)
        held = verify_recall(
            memory, made.receipt, keys={"k1": KEY.secret}, query="which car?", embedder=toy
        )
        assert held.ranking == "same"
        assert verify_memory(memory).valid


def test_what_has_vectors_is_not_embedded_again(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        filled(memory)
        toy = Toy()
        embed_missing(memory, toy, dimensions=DIMENSIONS)
        before = toy.asked

        assert embed_missing(memory, toy, dimensions=DIMENSIONS) == 0
        assert toy.asked == before


def test_another_model_is_never_mixed_in(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        filled(memory)
        embed_missing(memory, Toy(), dimensions=DIMENSIONS)
        other = Toy("other")

        with pytest.raises(ModelMismatch):
            embed_missing(memory, other, dimensions=DIMENSIONS)
        asking = Asking(agent_id="ada", reader="ada")
        with pytest.raises(ModelMismatch):
            recall(memory, "car", asking, key=KEY, embedder=other)
        assert embed_missing(memory, other, dimensions=DIMENSIONS, replace=True) == 3
        assert model_of(memory) == (other.digest, DIMENSIONS)
        assert notes_without_vectors(memory, limit=10) == []
