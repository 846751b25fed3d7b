"""The verdict on a program, and the message that tells a model of it.

Both are plain data: a verdict can be encoded, kept and read back, and follows from the program and
the vocabulary alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

__all__ = ["Strictness", "ValidationResult", "quoted", "quoted_list"]

Strictness = Literal["permissive", "normal", "strict"]

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationResult:
    """Which terms a program uses, and whether it may.

    `matched_terms` are known, in the order in which the program has them; `suggestions` give known
    terms for some of the unknown ones. `message` says what else there is to say, in a line.
    `retry_count` is how often a program was refused before this one; `escalation_required` says
    that this was as often as it may.
    """

    is_valid: bool
    matched_terms: tuple[str, ...] = ()
    unknown_terms: tuple[str, ...] = ()
    suggestions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    strictness: Strictness = "normal"
    message: str = ""
    retry_count: int = 0
    escalation_required: bool = False

    @classmethod
    def valid(cls, matched: Iterable[str]) -> ValidationResult:
        return cls(is_valid=True, matched_terms=tuple(matched))

    @classmethod
    def invalid(cls, matched: Iterable[str], unknown: Iterable[str]) -> ValidationResult:
        return cls(is_valid=False, matched_terms=tuple(matched), unknown_terms=tuple(unknown))

    def with_suggestions(self, alternatives: Iterable[str]) -> ValidationResult:
        """The same with one list of alternatives for every unknown term."""
        flat = tuple(alternatives)
        return replace(self, suggestions=dict.fromkeys(self.unknown_terms, flat))

    def feedback(self) -> str:
        """What a model is told: one line for each thing, the last without a newline."""
        lines = ["Command validation warning:"]
        if self.unknown_terms:
            lines.append(f"  Unknown terms: {quoted_list(self.unknown_terms)}")
        if self.matched_terms:
            lines.append(f"  Known terms you could use: {quoted_list(self.matched_terms)}")
        for term, alternatives in sorted(self.suggestions.items()):
            if alternatives:
                shown = "".join(_visible(each) for each in term)
                lines.append(f"  Instead of '{shown}', consider: {quoted_list(alternatives)}")
        if self.message:
            lines.append(f"  {self.message}")
        lines.append("Please rephrase to use only known domain terminology.")
        return "\n".join(lines)


def quoted_list(terms: Iterable[str]) -> str:
    """A list as `["a", "b"]`."""
    return f"[{', '.join(quoted(term) for term in terms)}]"


def quoted(term: str) -> str:
    """A term in double quotes, on one line whatever it holds."""
    return '"' + "".join(_ESCAPES.get(each) or _visible(each) for each in term) + '"'


def _visible(each: str) -> str:
    # A line break in a term would let it begin a line of its own.
    return each if each.isprintable() else _ESCAPES.get(each) or f"\\u{{{ord(each):x}}}"
