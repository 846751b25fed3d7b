"""MaxSim: notes by how well the tokens of a query are found among theirs.

One vector for a text loses its details; the vectors of its tokens keep them. They come from the
same pass through the model. They take some ten kilobytes for a note, so they are read for the best
notes only, and may be left out altogether.
"""

from __future__ import annotations

from collections.abc import Sequence

from tallystick.memory.fixed_point import tokens_found
from tallystick.memory.scope import Embedded

__all__ = ["rerank"]


def rerank(query: Embedded, notes: Sequence[bytes]) -> list[float]:
    """For each note, given by its token vectors, a number from 0 to about 1."""
    # A vector has two bytes for each of its components.
    return tokens_found(query.tokens, notes, dimensions=len(query.vector) // 2)
