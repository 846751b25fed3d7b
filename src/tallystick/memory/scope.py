"""Scope: the notes that one recall may see, as ranking sees them.

A scope is made by a store: filters, visibility and the point in time have been applied before, and
ranking knows of no other note. Whatever it counts, it counts over these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tallystick.memory.bm25 import count_terms

__all__ = ["Embedded", "Embedder", "ListScope", "NoteFields", "Scope"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteFields:
    """What ranking reads of a note. A field that is not known is left as it is here.

    `author` is who said it, by name. `position` is its place in its session: neighbours have
    positions that differ by one. `related` are ids of notes that it is tied to.
    """

    text: str
    author: str = ""
    session: str = ""
    position: int | None = None
    created_at: int = 0
    importance: float = 0.5
    related: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """A text as the model sees it: one vector, and one for each token, in fixed point."""

    vector: bytes
    tokens: bytes


class Embedder(Protocol):
    """Turns text into vectors. `digest` names the model: equal digests, comparable vectors."""

    @property
    def digest(self) -> str: ...

    def embed(self, text: str) -> Embedded: ...


class Scope(Protocol):
    """Notes by id, without an order of their own. Every id that is asked for is one of `ids`.

    `counts` are the terms of a note's text and how often each is in it (`bm25.count_terms`); a
    store keeps them, since they never change. `vectors` has one for each window of the text, none
    if it was not embedded. `tokens` are the token vectors of all windows, one after the other.
    """

    @property
    def ids(self) -> tuple[str, ...]: ...

    def fields(self, id: str) -> NoteFields: ...

    def counts(self, id: str) -> Mapping[str, int]: ...

    def vectors(self, id: str) -> tuple[bytes, ...]: ...

    def tokens(self, id: str) -> bytes | None: ...


class ListScope:
    """Notes held in memory, with what an embedder made of each, if there was one."""

    def __init__(
        self,
        notes: Mapping[str, NoteFields],
        *,
        embedded: Mapping[str, Embedded] | None = None,
        counts: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        self._notes = dict(notes)
        self._embedded = embedded or {}
        self._counts = dict(counts or {})

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._notes)

    def fields(self, id: str) -> NoteFields:
        return self._notes[id]

    def counts(self, id: str) -> Mapping[str, int]:
        if id not in self._counts:
            self._counts[id] = count_terms(self._notes[id].text)
        return self._counts[id]

    def vectors(self, id: str) -> tuple[bytes, ...]:
        found = self._embedded.get(id)
        return () if found is None else (found.vector,)

    def tokens(self, id: str) -> bytes | None:
        found = self._embedded.get(id)
        return None if found is None else found.tokens

    def only(self, ids: Iterable[str]) -> ListScope:
        """The same notes, as far as they are among these."""
        kept = {id: self._notes[id] for id in ids if id in self._notes}
        return ListScope(kept, embedded=self._embedded, counts=self._counts)

    def changed(self, change: Callable[[NoteFields], NoteFields]) -> ListScope:
        """The same notes with other fields. Their texts, and so their vectors, stay."""
        notes = {id: change(note) for id, note in self._notes.items()}
        return ListScope(notes, embedded=self._embedded, counts=self._counts)


_: type[Scope] = ListScope
