"""Compile regular expressions of others with RE2, whose time is linear in the text."""

from __future__ import annotations

from typing import Any

import msgspec

from tallystick.core.errors import UsageError

_PATTERN_LARGE = 500
_PATTERN_BYTES_MAX = 10_000
_PATTERN_MEMORY_BYTES = 16 * 1024 * 1024


class Pattern(msgspec.Struct, frozen=True):
    """A compiled pattern, with its size in instructions of RE2."""

    compiled: Any
    size: int


def compile_pattern(pattern: str | Pattern) -> Pattern:
    """Compile a pattern with RE2; return a `Pattern` unchanged.

    Raise `UsageError`, which the program sees, if the pattern is not text, is longer than 10,000
    bytes, is invalid, or compiles to more than 500 instructions.
    """
    if isinstance(pattern, Pattern):
        return pattern
    raw = required_text(pattern).encode("utf-8", "surrogatepass")
    if len(raw) > _PATTERN_BYTES_MAX:
        raise UsageError(f"the pattern is {len(raw):,} bytes; at most {_PATTERN_BYTES_MAX:,}")
    import re2

    options = re2.Options()
    options.max_mem = _PATTERN_MEMORY_BYTES
    options.log_errors = False
    try:
        made = re2.compile(raw, options)
    except re2.error as error:
        why = error.args[0] if error.args else "invalid"
        shown = why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
        raise UsageError(f"the pattern {pattern[:80]!r} cannot be used: {shown}") from error
    # If the automaton grows too large for its memory, the time of RE2 is proportional to this size.
    size = made.programsize
    if size > _PATTERN_LARGE:
        raise UsageError(
            f"the pattern {pattern[:80]!r} cannot be used: it compiles to {size:,} instructions; "
            f"at most {_PATTERN_LARGE:,}"
        )
    return Pattern(made, size)


def required_text(value: object) -> str:
    """Return a value that a program gave as text. Raise `UsageError` if it is not a `str`."""
    if type(value) is not str:
        raise UsageError(f"text is needed, not {type(value).__name__}")
    return value
