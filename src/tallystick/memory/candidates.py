"""Candidates: the notes of a short list, as ranking reads them.

What a note says is not read: its terms were counted already. Vectors are read for all of them, and
vectors of tokens for those that ranking asks about.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from tallystick.memory.projection_schema import OPEN
from tallystick.memory.records import NoteRedacted, NoteRemembered, decode_memory_record
from tallystick.memory.scope import NoteFields, Scope
from tallystick.memory.selection import in_batches
from tallystick.memory.shortlist import Shortlist, Whole
from tallystick.memory.vectors import tokens_at, vectors_of

__all__ = ["Candidates", "Count", "content_tokens", "tied_to"]

# Counts tokens, and is called by the name that the receipt says.
Count = Callable[[str], int]
_TIED_STEPS = 2
_TIED_MAX = 1_000


class Candidates:
    """The notes of a short list as of a place. Vectors are read from one state of the file."""

    def __init__(
        self, db: sqlite3.Connection, listed: Shortlist, whole: Whole, *, seq: int, vectors: bool
    ) -> None:
        self._db = db
        self._seq = seq
        self._counts = listed.counts
        found = whole.fields(listed.numbers)
        self._fields = dict(found)
        ids = [id for id, _ in found]
        self._numbers = dict(zip(ids, listed.numbers, strict=True))
        self._vectors = vectors_of(db, seq, listed.numbers) if vectors else {}

    def tie(self) -> None:
        """Read which notes they are tied to, which only some profiles ask for."""
        related = _related(self._db, self._numbers.values(), self._seq)
        for id, number in self._numbers.items():
            if number in related:
                self._fields[id] = replace(self._fields[id], related=related[number])

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._fields)

    def number(self, id: str) -> int:
        return self._numbers[id]

    def fields(self, id: str) -> NoteFields:
        return self._fields[id]

    def counts(self, id: str) -> Mapping[str, int]:
        return self._counts[self._numbers[id]]

    def vectors(self, id: str) -> tuple[bytes, ...]:
        return self._vectors.get(self._numbers[id], ())

    def tokens(self, id: str) -> bytes | None:
        return tokens_at(self._db, self._seq, self._numbers[id])


def tied_to(db: sqlite3.Connection, numbers: Sequence[int], *, seq: int) -> set[int]:
    """The notes that relations lead to from some others, in either direction, by two steps."""
    reached, edge = set(numbers), list(numbers)
    for _ in range(_TIED_STEPS):
        found = {
            number
            for select in (
                "SELECT note.number FROM relation JOIN note ON note.id = relation.target "
                f"WHERE relation.seq_from <= {seq} AND relation.number",
                "SELECT relation.number FROM note JOIN relation ON relation.target = note.id "
                f"WHERE relation.seq_from <= {seq} AND note.number",
            )
            for (number,) in in_batches(db, select, edge)
        }
        # The earliest ones, where there are too many to rank.
        edge = sorted(found - reached)[:_TIED_MAX]
        reached.update(edge)
    return reached - set(numbers)


def content_tokens(
    db: sqlite3.Connection, numbers: Collection[int], count: Count
) -> Iterator[tuple[int, int]]:
    """The numbers of some notes, and how many tokens each has."""
    select = (
        "SELECT number, body FROM state JOIN log ON log.seq = body_seq "
        f"WHERE seq_to = {OPEN} AND number"
    )
    for number, body in in_batches(db, select, numbers):
        record = decode_memory_record(body)
        assert isinstance(record, NoteRemembered | NoteRedacted)
        yield number, count(record.note.content)


def _related(
    db: sqlite3.Connection, numbers: Collection[int], seq: int
) -> dict[int, tuple[str, ...]]:
    tied: dict[int, dict[str, None]] = {}
    select = f"SELECT number, target FROM relation WHERE seq_from <= {seq} AND number"
    for number, target in in_batches(db, select, numbers):
        tied.setdefault(number, {})[target] = None
    return {number: tuple(sorted(targets)) for number, targets in tied.items()}


_: type[Scope] = Candidates
