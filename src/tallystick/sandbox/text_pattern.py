"""Patterns that a model gives, compiled in RE2: linear in the text, whatever the pattern."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import re2

from tallystick.core.errors import UsageError

__all__ = ["PATTERN_SMALL", "Pattern", "compiled", "required_text"]

PATTERN_SMALL = 100
_PATTERN_LARGE = 500
_PATTERN_BYTES_MAX = 10_000
_PATTERN_MEMORY_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern that is compiled, and how large that came out."""

    compiled: Any
    size: int


def compiled(pattern: str | Pattern) -> Pattern:
    """Compile a pattern in the engine that is linear in the text. Raises what a program sees."""
    if isinstance(pattern, Pattern):
        return pattern
    raw = required_text(pattern).encode("utf-8", "surrogatepass")
    if len(raw) > _PATTERN_BYTES_MAX:
        raise UsageError(f"the pattern is {len(raw):,} bytes; at most {_PATTERN_BYTES_MAX:,}")
    options = re2.Options()
    options.max_mem = _PATTERN_MEMORY_BYTES
    options.log_errors = False
    try:
        made = re2.compile(raw, options)
    except re2.error as error:
        why = error.args[0] if error.args else "invalid"
        shown = why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
        raise UsageError(f"the pattern {pattern[:80]!r} cannot be used: {shown}") from error
    # Where its automaton grows too large, RE2 takes time in proportion to this.
    size = made.programsize
    if size > _PATTERN_LARGE:
        raise UsageError(
            f"the pattern {pattern[:80]!r} cannot be used: it compiles to {size:,} instructions; "
            f"at most {_PATTERN_LARGE:,}"
        )
    return Pattern(made, size)


def required_text(value: object) -> str:
    """A text that a program gave, or what is wrong with it."""
    if type(value) is not str:
        raise UsageError(f"text is needed, not {type(value).__name__}")
    return value
