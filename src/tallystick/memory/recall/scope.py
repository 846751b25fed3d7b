"""The scope of a recall: the notes that ranking may see, and the weights of its lanes.

A store makes a scope: it has applied filters, visibility and the point in time before, and ranking
knows of no other note. All figures of a ranking are counted over the notes of its scope.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from tallystick.core.errors import UsageError
from tallystick.core.json_text import canonical, digest
from tallystick.memory.recall import words
from tallystick.memory.recall.words import Bm25, count_terms

# Profile: the weights of the lanes, as data with a digest.
#
# A receipt names the digest, so a check ranks with the same weights by the same rules. A weight
# says how much a lane counts beside the lexical one, which goes from 0 to 1. Weights are round
# numbers on purpose: figures near them do as well, and finer ones would fit one corpus only.


# The rules of `rank`. If the results of `rank` change, add a name, and the profile of before to
# `FORMER`: a receipt says by which rules it was ranked, and is checked by those.
FIRST_RULES = "shares-1"
RULES = "shares-2"
# Fields that profiles of the first rules did not have.
_SECOND_FIELDS = ("tells", "passage", "decay")


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Weights of the lanes, and versions of the rules. Raise `UsageError` for a value out of range.

    `lexical`: the share of BM25. `dense`: the cosine of query and note; words that more than
    `common` of the notes have are not shown to the model. `author`: the note's author is named in
    the query. `when`: it is from a day or month that the query names. `before` and `after`: what
    the neighbours in its session have above the `floor`-th best note. `session`: the same of the
    best three of its session, their mean. `token`: how well the tokens of the query are found in
    the note's, for the best `token_notes`. `passage`: for the same notes, how much nearer the
    nearest passage is than the whole note. `tells`: for the same notes, the share of the note's
    words that are not in questions.

    Four lanes have weight 0 by default, because they help only some uses. `recency` halves every
    `recency_half_life_hours`. `importance` is the note's own; `decay` is what is left of it by age
    and use (`Memory.score`). `related` goes out from the best ten notes along relations: half at
    each of two steps, times the weight of the relation.
    """

    lexical: float = 1.0
    dense: float = 1.0
    author: float = 0.4
    when: float = 0.3
    before: float = 0.4
    after: float = 0.2
    session: float = 0.4
    token: float = 0.5
    passage: float = 1.0
    tells: float = 0.3
    recency: float = 0.0
    importance: float = 0.0
    decay: float = 0.0
    related: float = 0.0
    common: float = 0.1
    floor: int = 100
    token_notes: int = 50
    recency_half_life_hours: float = 168.0
    saturation: float = 0.9
    length: float = 0.4
    terms: str = words.VERSION
    rules: str = RULES

    def __post_init__(self) -> None:
        for name in _WEIGHTS:
            weight = getattr(self, name)
            if not (math.isfinite(weight) and 0 <= weight <= _WEIGHT_MAX):
                raise UsageError(f"profile: {name} is from 0 to {_WEIGHT_MAX}, not {weight!r}")
        for name in ("floor", "token_notes"):
            if not 1 <= getattr(self, name) <= _NOTES_MAX:
                raise UsageError(f"profile: {name} is from 1 to {_NOTES_MAX:,}")
        if not 0 < self.recency_half_life_hours < math.inf:
            raise UsageError("profile: recency_half_life_hours is more than 0")
        # Above 1, BM25 would give notes shorter than the mean a length below 0.
        if self.length > 1:
            raise UsageError(f"profile: length is from 0 to 1, not {self.length!r}")
        if self.terms != words.VERSION or self.rules not in (FIRST_RULES, RULES):
            raise UsageError(
                f"profile: this version ranks by {words.VERSION} and {FIRST_RULES} or {RULES}, "
                f"not by {self.terms[:80]} and {self.rules[:80]}"
            )
        if self.rules == FIRST_RULES and any(getattr(self, name) for name in _SECOND_FIELDS):
            raise UsageError(
                f"profile: {FIRST_RULES} has no {', '.join(_SECOND_FIELDS)}; set them to 0"
            )

    @property
    def bm25(self) -> Bm25:
        """The parameters of the lexical lane."""
        return Bm25(saturation=self.saturation, length=self.length)

    @property
    def digest(self) -> str:
        """The digest of every field of its rules, also of those that have their default."""
        fields = msgspec.structs.asdict(self)
        if self.rules == FIRST_RULES:
            for name in _SECOND_FIELDS:
                del fields[name]
        return digest(canonical(fields))

    def weighed(self, weights: Mapping[str, float]) -> Profile:
        """Return the profile with other weights, or another half-life of `recency`.

        Raise `UsageError` for a name that is no lane, or a weight that is out of range.
        """
        for name, weight in weights.items():
            if name not in CHOOSABLE:
                listed = ", ".join(CHOOSABLE)
                raise UsageError(f"there is no lane {name[:80]!r} to weigh; there are {listed}")
            if isinstance(weight, bool) or not isinstance(weight, int | float):
                raise UsageError(f"the weight of {name} is a number, not {weight!r}")
        return msgspec.structs.replace(self, **{name: float(weights[name]) for name in weights})


_WEIGHT_MAX = 100.0
_NOTES_MAX = 10_000
LANES = (
    "lexical", "dense", "author", "when", "before", "after", "session", "token", "passage",
    "tells", "recency", "importance", "decay", "related",
)  # fmt: skip
_WEIGHTS = (*LANES, "common", "saturation", "length")
# What a single recall may weigh otherwise.
CHOOSABLE = (*LANES, "recency_half_life_hours")

DEFAULT = Profile()
# The default profiles of earlier rules, by which their receipts are checked.
FORMER = {
    FIRST_RULES: Profile(author=0.3, passage=0.0, tells=0.0, rules=FIRST_RULES),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteFields:
    """The fields of a note that ranking reads. An unknown field keeps its default.

    `author` is the name of who said it. `position` is its place in its session: neighbours have
    positions that differ by one. `related` are ids of notes that it has relations to, and `ties`
    the weights of these, 1 without any. `worth` is what is left of its importance, by age and use;
    None if that was not asked for.
    """

    text: str
    author: str = ""
    session: str = ""
    position: int | None = None
    created_at: int = 0
    importance: float = 0.5
    related: tuple[str, ...] = ()
    ties: tuple[float, ...] = ()
    worth: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """A text as the model sees it: one vector, and one for each token, in fixed point."""

    vector: bytes
    tokens: bytes


class Embedder(Protocol):
    """A model that turns text into vectors. Vectors may be compared if the `digest` is equal.

    `embed` is called for the query of a recall, and for each window of a note, one text at a time.
    Of a text that is too long for the model, it may read the beginning only.
    """

    @property
    def digest(self) -> str: ...

    def embed(self, text: str) -> Embedded: ...


class Scope(Protocol):
    """Notes by id, without an order of their own. Every id passed to a method is one of `ids`.

    `counts` are the terms of a note's text and how often each is in it (`words.count_terms`); a
    store keeps them, since they never change. `vectors` has one for each window of the text, none
    if it was not embedded. `tokens` are the token vectors of all windows, one after the other; None
    if a window has none, or if the note was not embedded. `text` is asked for the best notes only.
    """

    @property
    def ids(self) -> tuple[str, ...]: ...

    def fields(self, id: str) -> NoteFields: ...

    def counts(self, id: str) -> Mapping[str, int]: ...

    def vectors(self, id: str) -> tuple[bytes, ...]: ...

    def tokens(self, id: str) -> bytes | None: ...

    def text(self, id: str) -> str: ...


class ListScope:
    """Notes held in memory, with their vectors if an embedder made any.

    A method that takes an id of a note raises `KeyError` if there is no such note.
    """

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

    def text(self, id: str) -> str:
        return self._notes[id].text

    def changed(self, change: Callable[[NoteFields], NoteFields]) -> ListScope:
        """Return a scope of the same notes with other fields.

        Their text must stay, since vectors do.
        """
        notes = {id: change(note) for id, note in self._notes.items()}
        return ListScope(notes, embedded=self._embedded, counts=self._counts)


_: type[Scope] = ListScope
