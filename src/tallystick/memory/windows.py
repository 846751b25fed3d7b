"""Windows: a long note as overlapping pieces that a small model can read whole.

A window has at most 200 pieces of words and shares 40 with the next. Pieces are counted on the
high side of what the models' own tokenizers count: a model that reads 256 reads all of a window.
Short notes have one window, the whole text. What is said here is as old as the notes: a change
makes other windows of the same note, and needs another VERSION.
"""

from __future__ import annotations

import re

__all__ = ["OVERLAP_PIECES", "WINDOW_PIECES", "WINDOW_VERSION", "windows"]

WINDOW_VERSION = 1
WINDOW_PIECES = 200
OVERLAP_PIECES = 40

# Runs of plain letters and digits, five at a time; any other character that is no space, alone.
_PIECE = re.compile(r"[A-Za-z0-9]{1,5}|[^A-Za-z0-9\s]")


def windows(text: str) -> tuple[tuple[int, int], ...]:
    """Where the windows of a text begin and end, in characters."""
    # No piece is shorter than a character: most notes need no counting.
    if len(text) <= WINDOW_PIECES:
        return ((0, len(text)),)
    starts = [found.start() for found in _PIECE.finditer(text)]
    if len(starts) <= WINDOW_PIECES:
        return ((0, len(text)),)
    step = WINDOW_PIECES - OVERLAP_PIECES
    made: list[tuple[int, int]] = []
    for first in range(0, len(starts) - OVERLAP_PIECES, step):
        last = first + WINDOW_PIECES
        begin = 0 if first == 0 else _word_start(text, starts[first], made[-1][1])
        made.append((begin, len(text) if last >= len(starts) else starts[last]))
    return tuple(made)


def _word_start(text: str, at: int, end: int) -> int:
    """Move a begin to the next word, if there is one within the part that is shared anyway."""
    if text[at - 1].isspace():
        return at
    space = re.compile(r"\s+").search(text, at, end)
    return at if space is None else space.end()
