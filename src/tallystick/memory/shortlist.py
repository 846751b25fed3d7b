"""The short list: candidates out of a scope that is too large to rank note by note.

Each index gives its best notes under the mask; together they are ranked as a scope of their own,
with the statistics of the whole. What is the same as for the whole: every lane's value for a note
of the list, and the floor above which notes lend to their neighbours. What is not: a note that is
neither among the lexical nor the dense candidates is not found, even if its neighbours are good.

Needs the extra `memory`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tallystick.core.errors import UsageError
from tallystick.memory.bm25 import Bm25, Statistics
from tallystick.memory.codes import Codes
from tallystick.memory.postings import Postings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["CANDIDATES", "Shortlist", "shortlist"]

# Of each lane. A code is coarse: among fewer than 300 some of the nearest ten are missed.
CANDIDATES = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortlist:
    """The ids to rank, how often each has the terms, and the statistics to rank them with."""

    ids: tuple[str, ...]
    counts: Mapping[str, Mapping[str, int]]
    statistics: Statistics


def shortlist(
    asked: Sequence[str],
    vector: bytes | None,
    *,
    postings: Postings,
    codes: Codes | None,
    mask: NDArray[np.bool_] | None = None,
    candidates: int = CANDIDATES,
    bm25: Bm25 | None = None,
) -> Shortlist:
    """The best of both indexes, whose numbers mean the same notes."""
    found, statistics = postings.best(asked, count=candidates, mask=mask, bm25=bm25)
    chosen = set(found)
    if vector is not None and codes is not None:
        if len(codes) != len(postings):
            raise UsageError(f"{len(codes):,} codes for {len(postings):,} notes")
        chosen.update(codes.near(vector, count=candidates, mask=mask).tolist())
    numbers = sorted(chosen)
    ids = tuple(postings.ids[number] for number in numbers)
    counts = dict(zip(ids, postings.counts(numbers, asked), strict=True))
    return Shortlist(ids=ids, counts=counts, statistics=statistics)
