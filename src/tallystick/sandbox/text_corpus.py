"""Many texts on the host, looked through in one call: where a pattern stands, and in which text.

The texts are gone through in their order until there are as many matches as were asked for. The
pattern is compiled once; each text takes time in proportion to its length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tallystick.core.errors import UsageError
from tallystick.sandbox.text import HostText
from tallystick.sandbox.text_pattern import compiled

__all__ = ["CORPUS_FUNCTIONS", "grep_each", "search_each"]

_MATCHES_MAX = 10_000


def search_each(
    texts: Sequence[HostText], pattern: str, limit: int
) -> list[tuple[int, int, int, str]]:
    """Matches as (which text, start, end, matched text); positions are characters."""
    limit, ready = _limit(limit), compiled(pattern)
    found: list[tuple[int, int, int, str]] = []
    for place, text in enumerate(texts):
        if len(found) == limit:
            break
        found += [(place, *each) for each in text.search(ready, 0, limit - len(found))]
    return found


def grep_each(texts: Sequence[HostText], pattern: str, limit: int) -> list[tuple[int, int, str]]:
    """Lines that match, as (which text, line number, line)."""
    limit, ready = _limit(limit), compiled(pattern)
    found: list[tuple[int, int, str]] = []
    for place, text in enumerate(texts):
        if len(found) == limit:
            break
        found += [(place, *each) for each in text.grep(ready, limit - len(found))]
    return found


def _limit(value: object) -> int:
    if type(value) is not int or value < 0:
        raise UsageError(f"a limit is a whole number from 0, not {value!r}")
    return min(value, _MATCHES_MAX)


CORPUS_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "text.search_each": search_each,
    "text.grep_each": grep_each,
}
