"""Finding: the best notes for a query in a scope of any size, as of a place and a moment.

A scope of at most `shortlist.LARGE` notes is ranked note by note. Of a larger one a short list is
ranked; which of the two it was stands in the receipt. A standing index only makes it quicker: who
has none reads the file, and finds the same.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from tallystick.core.errors import UsageError
from tallystick.memory import shortlist as limits
from tallystick.memory.candidates import Candidates, Count, content_tokens, tied_to
from tallystick.memory.fusion import Ranked, rank
from tallystick.memory.profile import Profile
from tallystick.memory.scan import Scan
from tallystick.memory.scope import Embedder
from tallystick.memory.selection import Filters, scope_numbers
from tallystick.memory.shortlist import RULES, Once, Shortlist, Whole, full_list, shortlist
from tallystick.memory.sqlite import SqliteMemory
from tallystick.memory.vectors import model_at
from tallystick.memory.view import View, checked_look, view

if TYPE_CHECKING:
    from tallystick.memory.masked import Masked
    from tallystick.memory.standing import StandingIndex

__all__ = ["Found", "Look", "Looked", "looking"]

_SEEDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Whose notes are looked through, and as of when."""

    reader: str | None
    filters: Filters
    seq: int
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was found. `seen` has at least the hits. `rules` are those of a short list, if any."""

    ranked: Ranked
    seen: View
    rules: str = ""


@contextmanager
def looking(
    memory: SqliteMemory,
    *,
    reader: str | None,
    filters: Filters,
    as_of: int | None,
    at: int | None,
    index: StandingIndex | None,
) -> Iterator[Looked]:
    """Look at one state of a memory. What is given is over with the block."""
    if index is not None and index.memory is not memory:
        raise UsageError("the index is of another memory")
    with memory.reading() as db:
        seq, moment = checked_look(memory, reader=reader, filters=filters, as_of=as_of, at=at)
        look = Look(reader=reader, filters=filters, seq=seq, at=moment)
        if index is None or not _many(db):
            yield Looked(memory, db, look)
            return
        with index.at(reader=reader, filters=filters, seq=seq, at=moment) as standing:
            yield Looked(memory, db, look, standing)


class Looked:
    """A scope that is looked through, with the index of it if one stands by."""

    def __init__(
        self,
        memory: SqliteMemory,
        db: sqlite3.Connection,
        look: Look,
        standing: Masked | None = None,
    ) -> None:
        self._memory = memory
        self._db = db
        self._look = look
        self._standing = standing

    @property
    def model(self) -> str | None:
        """The model whose vectors there were."""
        model = model_at(self._db, self._look.seq)
        return None if model is None else model[0]

    @property
    def large(self) -> bool:
        """Whether there are more notes than are ranked one by one."""
        if self._standing is not None:
            return self._standing.notes > limits.LARGE
        return _many(self._db) and len(self._numbers(limits.LARGE + 1)) > limits.LARGE

    def whole(self) -> View:
        """Every note of the scope."""
        few = None if self._standing is None or self.large else self._standing.numbers
        return self._view(few)

    def of_all(self, query: str, *, k: int, profile: Profile, embedder: Embedder | None) -> Found:
        """Rank every note."""
        if self._standing is not None and not self.large:
            listed = full_list(query, self._standing, self._standing.numbers)
            return self._ranked(query, listed, self._standing, k, profile, embedder)
        seen = self.whole()
        ranked = rank(query, seen, k=k, profile=profile, embedder=embedder, now=seen.at)
        return Found(ranked=ranked, seen=seen)

    def of_shortlist(
        self, query: str, *, k: int, profile: Profile, embedder: Embedder | None
    ) -> Found:
        """Rank a short list."""
        once = None if embedder is None else Once(embedder)
        look = self._look
        whole: Whole | None = self._standing
        if whole is None:
            whole = Scan(
                self._db, reader=look.reader, filters=look.filters, seq=look.seq, at=look.at
            )
        listed = shortlist(query, whole, profile=profile, embedder=once)
        if profile.related:
            listed = listed.with_more(self._tied(query, listed, whole, profile, once), whole)
        made = self._ranked(query, listed, whole, k, profile, once)
        said = f"short list: {len(listed.numbers):,} of {whole.notes:,} notes are ranked"
        if self._standing is None:
            said += ", found by reading the file: there is no standing index"
        ranked = replace(made.ranked, notes=(*made.ranked.notes, said))
        return Found(ranked=ranked, seen=made.seen, rules=RULES)

    def tokens(self, count: Count, found: Found, *, tokenizer: str) -> int:
        """How many tokens all notes of the scope have."""
        if self._standing is not None:
            return self._standing.tokens(self._db, count, tokenizer=tokenizer)
        if not found.rules:
            return sum(count(found.seen.note(id).content) for id in found.seen.ids)
        return sum(each for _, each in content_tokens(self._db, self._numbers(), count))

    # -- inside --------------------------------------------------------------------------------

    def _numbers(self, limit: int | None = None) -> list[int]:
        look = self._look
        return scope_numbers(
            self._db,
            reader=look.reader,
            filters=look.filters,
            seq=look.seq,
            at=look.at,
            limit=limit,
        )

    def _ranked(
        self,
        query: str,
        listed: Shortlist,
        whole: Whole,
        k: int,
        profile: Profile,
        embedder: Embedder | None,
    ) -> Found:
        """Rank a list, and look at the hits."""
        scope = self._candidates(listed, whole, profile, embedder)
        ranked = rank(
            query,
            scope,
            k=k,
            profile=profile,
            embedder=embedder,
            now=self._look.at,
            statistics=listed.statistics,
            asked=listed.asked,
        )
        seen = self._view([scope.number(hit.id) for hit in ranked.hits])
        return Found(ranked=ranked, seen=seen)

    def _candidates(
        self, listed: Shortlist, whole: Whole, profile: Profile, embedder: Embedder | None
    ) -> Candidates:
        scope = Candidates(
            self._db, listed, whole, seq=self._look.seq, vectors=embedder is not None
        )
        if profile.related:
            scope.tie()
        return scope

    def _tied(
        self,
        query: str,
        listed: Shortlist,
        whole: Whole,
        profile: Profile,
        embedder: Embedder | None,
    ) -> set[int]:
        """The notes that relations lead to from the best of the list."""
        scope = self._candidates(listed, whole, profile, embedder)
        best = rank(
            query,
            scope,
            k=_SEEDS,
            profile=msgspec.structs.replace(profile, related=0.0, token=0.0),
            embedder=embedder,
            now=self._look.at,
            statistics=listed.statistics,
            asked=listed.asked,
        )
        return tied_to(self._db, [scope.number(hit.id) for hit in best.hits], seq=self._look.seq)

    def _view(self, among: list[int] | None) -> View:
        look = self._look
        return view(
            self._memory,
            reader=look.reader,
            filters=look.filters,
            as_of=look.seq,
            at=look.at,
            among=among,
        )


def _many(db: sqlite3.Connection) -> bool:
    """Whether a store has so many notes at all."""
    (count,) = db.execute(
        "SELECT count(*) FROM (SELECT 1 FROM note LIMIT ?)", (limits.LARGE + 1,)
    ).fetchone()
    return bool(count > limits.LARGE)
