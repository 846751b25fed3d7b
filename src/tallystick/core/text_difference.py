"""Two texts line by line: what only one of them has, as a unified diff.

Rule 1: the diff of (b, a) is that of (a, b) with the sides changed. `difflib` favours one side
where lines repeat, so it is always given the two in the same order.
Rule 2: texts are hostile. `difflib` may take time that grows with the cube of the lines; what is
too long for it is shown as taken out and put in, whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher

__all__ = ["unified"]

_CONTEXT_LINES = 3
# Of what is left between the common beginning and the common end. The worst found takes 0.15 s.
_LINES_MAX = 600

_Row = tuple[str, str]


def unified(a: str | None, b: str | None) -> tuple[str, ...]:
    """The lines of a unified diff, without names of files. None is no text: it has no lines."""
    if a == b:
        return ()
    return tuple(_printed(_rows(_lines(a), _lines(b))))


def _lines(text: str | None) -> list[str]:
    # Not `splitlines`: what ends a line elsewhere is a character of the line here, and is seen.
    return [] if text is None else text.split("\n")


def _rows(a: list[str], b: list[str]) -> list[_Row]:
    """Each line with its mark: of both, of the first, of the second."""
    least = min(len(a), len(b))
    head = next((at for at in range(least) if a[at] != b[at]), least)
    least -= head
    tail = next((at for at in range(least) if a[-1 - at] != b[-1 - at]), least)
    inner = _changed(a[head : len(a) - tail], b[head : len(b) - tail])
    return [
        *((" ", line) for line in a[:head]),
        *inner,
        *((" ", line) for line in a[len(a) - tail :]),
    ]


def _changed(a: list[str], b: list[str]) -> Iterator[_Row]:
    for i1, i2, j1, j2, same in _blocks(a, b):
        if same:
            yield from ((" ", line) for line in a[i1:i2])
        else:
            yield from (("-", line) for line in a[i1:i2])
            yield from (("+", line) for line in b[j1:j2])


def _blocks(a: list[str], b: list[str]) -> Iterator[tuple[int, int, int, int, bool]]:
    if max(len(a), len(b)) > _LINES_MAX:
        yield 0, len(a), 0, len(b), False
        return
    if a <= b:
        for tag, i1, i2, j1, j2 in SequenceMatcher(None, a, b).get_opcodes():
            yield i1, i2, j1, j2, tag == "equal"
    else:
        for tag, i1, i2, j1, j2 in SequenceMatcher(None, b, a).get_opcodes():
            yield j1, j2, i1, i2, tag == "equal"


def _hunks(rows: list[_Row]) -> Iterator[tuple[int, int]]:
    """Where rows are to be shown: what changed, and a few lines around it."""
    start = end = 0
    for at, (mark, _) in enumerate(rows):
        if mark == " ":
            continue
        if end and at - _CONTEXT_LINES > end:
            yield start, end
            end = 0
        if not end:
            start = max(0, at - _CONTEXT_LINES)
        end = min(len(rows), at + 1 + _CONTEXT_LINES)
    if end:
        yield start, end


def _printed(rows: list[_Row]) -> Iterator[str]:
    """The hunks, each under the lines that it takes of both sides."""
    done = of_a = of_b = 0
    for start, end in _hunks(rows):
        marks = [mark for mark, _ in rows[done:start]]
        of_a, of_b = of_a + _without(marks, "+"), of_b + _without(marks, "-")
        marks = [mark for mark, _ in rows[start:end]]
        in_a, in_b = _without(marks, "+"), _without(marks, "-")
        yield f"@@ -{of_a + (in_a > 0)},{in_a} +{of_b + (in_b > 0)},{in_b} @@"
        yield from (f"{mark}{line}" for mark, line in rows[start:end])
        done, of_a, of_b = end, of_a + in_a, of_b + in_b


def _without(marks: list[str], other: str) -> int:
    return len(marks) - marks.count(other)
