"""Profile: how recall weighs its lanes, as data with a digest.

A receipt names the digest, so whoever checks it ranks with the same weights by the same rules. The
weights say how much a lane counts beside the lexical one, which goes from 0 to 1. They are round
numbers on purpose: figures near them do as well, and finer ones would fit one corpus.
"""

from __future__ import annotations

import math

import msgspec

from tallystick.core.canonical import canonical, digest
from tallystick.core.errors import UsageError
from tallystick.memory import terms
from tallystick.memory.bm25 import Bm25

__all__ = ["DEFAULT", "Profile"]

# The rules of `fusion`. Whoever changes what they give changes this.
_RULES = "shares-1"


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Weights and versions.

    `lexical`: the share of BM25. `dense`: the cosine of query and note; words that more than
    `common` of the notes have are not shown to the model. `author`: the note's author is named in
    the query. `when`: it is from a day or month that the query names. `before` and `after`: what
    the neighbours in its session have above the `floor`-th best note. `session`: the same of the
    best three of its session, their mean. `token`: how well the tokens of the query are found in
    the note's, for the best `token_notes`.

    Opt-in, since they help only who asks for them: `recency` halves every
    `recency_half_life_hours`; `importance` is the note's own; `related` goes out from the best ten
    notes along relations, half at each of two steps.
    """

    lexical: float = 1.0
    dense: float = 1.0
    author: float = 0.3
    when: float = 0.3
    before: float = 0.4
    after: float = 0.2
    session: float = 0.4
    token: float = 0.5
    recency: float = 0.0
    importance: float = 0.0
    related: float = 0.0
    common: float = 0.1
    floor: int = 100
    token_notes: int = 50
    recency_half_life_hours: float = 168.0
    saturation: float = 0.9
    length: float = 0.4
    terms: str = terms.VERSION
    rules: str = _RULES

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
        if self.length > 1:
            raise UsageError(f"profile: length is from 0 to 1, not {self.length!r}")
        if (self.terms, self.rules) != (terms.VERSION, _RULES):
            raise UsageError(
                f"profile: this version ranks by {terms.VERSION} and {_RULES}, "
                f"not by {self.terms[:80]} and {self.rules[:80]}"
            )

    @property
    def bm25(self) -> Bm25:
        return Bm25(saturation=self.saturation, length=self.length)

    @property
    def digest(self) -> str:
        """Every field counts, also those that have their usual value."""
        return digest(canonical(msgspec.structs.asdict(self)))


_WEIGHT_MAX = 100.0
_NOTES_MAX = 10_000
_WEIGHTS = (
    "lexical", "dense", "author", "when", "before", "after", "session", "token", "recency",
    "importance", "related", "common", "saturation", "length",
)  # fmt: skip

DEFAULT = Profile()
