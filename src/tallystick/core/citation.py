"""Where an answer's words stand in the data: places that can be checked against the bytes.

A claim is a run of the answer's words that stands in the data just so. It counts only if it could
not stand there by chance: it has a capital or a digit, it is not from the question, and a number
has at least five digits. The lines that hold the most claims are cited, of those the ones that have
the most words of the question, if they are few; a claim that stands on many lines points nowhere.

An answer that was computed (a count, a sum) stands nowhere, and is not cited.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

__all__ = ["Citation", "checked", "citations_of"]

_CLAIMS_MAX = 12
_WORDS_MAX = 60
_PLACES_MAX = 2_000
_CITED_MAX = 3
_QUOTE_CHARS_MAX = 300
_LINE_CHARS_MAX = 10_000
_DIGITS_LEAST = 5
_CHARS_LEAST = 3
_LONG_WORD = re.compile(r"\w{4,}")
_WORD = re.compile(r"\S+")
_EDGES = " \t\n.,;:!?'\"()[]{}`*"


class Citation(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a named text: its number from one, its bytes, and what stands there."""

    name: str
    line: int
    start: int
    end: int
    quote: str


def citations_of(answer: str, *, question: str, texts: Mapping[str, str]) -> tuple[Citation, ...]:
    """The lines that hold the most of an answer's claims, at most three."""
    held: dict[tuple[str, int], _Line] = {}
    for claim in _claims(answer, question, texts):
        for name, text in texts.items():
            for place in _places(text, claim):
                start = text.rfind("\n", 0, place) + 1
                held.setdefault((name, start), _Line(first=place)).claims.add(claim)
    most = max((len(line.claims) for line in held.values()), default=0)
    best = [where for where, line in held.items() if len(line.claims) == most]
    # Of lines that hold as much of the answer, those that speak of what was asked.
    asked = {*_LONG_WORD.findall(question.lower())}
    spoken = {
        (name, start): len(asked & {*_LONG_WORD.findall(_line(texts[name], start).lower())})
        for name, start in best
    }
    closest = max(spoken.values(), default=0)
    found = sorted(where for where, count in spoken.items() if count == closest)
    if len(found) > _CITED_MAX:
        return ()
    return tuple(_cite(*where, texts[where[0]], held[where].first) for where in found)


@dataclass(slots=True)
class _Line:
    """The claims on a line, and where the first that was found stands."""

    first: int
    claims: set[str] = field(default_factory=set)


def _line(text: str, start: int) -> str:
    end = text.find("\n", start)
    return text[start : min(len(text) if end < 0 else end, start + _LINE_CHARS_MAX)]


def checked(citation: Citation, text: bytes) -> bool:
    """Whether the quoted words stand at the cited bytes."""
    found = text[citation.start : citation.end]
    return found == citation.quote.encode("utf-8", "surrogatepass")


def _claims(answer: str, question: str, texts: Mapping[str, str]) -> list[str]:
    """The longest runs of words that stand in some text, from left to right."""
    words = [match.span() for match in _WORD.finditer(answer)][:_WORDS_MAX]
    asked = question.lower()
    claims: list[str] = []
    at = 0
    while at < len(words) and len(claims) < _CLAIMS_MAX:
        longest, after = "", at + 1
        for last in range(at, len(words)):
            run = answer[words[at][0] : words[last][1]].strip(_EDGES)
            if not run or not any(run in text for text in texts.values()):
                break
            longest, after = run, last + 1
        if _telling(longest) and longest.lower() not in asked and longest not in claims:
            claims.append(longest)
        at = after
    return claims


def _telling(claim: str) -> bool:
    digits = sum(each.isdigit() for each in claim)
    letters = any(each.isalpha() for each in claim)
    if not letters:
        return digits >= _DIGITS_LEAST
    return len(claim) >= _CHARS_LEAST and (digits > 0 or any(each.isupper() for each in claim))


def _places(text: str, claim: str) -> list[int]:
    places: list[int] = []
    at = text.find(claim)
    while at >= 0 and len(places) < _PLACES_MAX:
        places.append(at)
        at = text.find(claim, at + len(claim))
    return places


def _cite(name: str, start: int, text: str, claim: int) -> Citation:
    """The line, or of a long one the part around its claim."""
    end = text.find("\n", start)
    end = len(text) if end < 0 else end
    if end - start > _QUOTE_CHARS_MAX:
        start = max(start, claim - _QUOTE_CHARS_MAX // 3)
    quote = text[start : min(end, start + _QUOTE_CHARS_MAX)]
    first = len(text[:start].encode("utf-8", "surrogatepass"))
    return Citation(
        name=name,
        line=text.count("\n", 0, start) + 1,
        start=first,
        end=first + len(quote.encode("utf-8", "surrogatepass")),
        quote=quote,
    )
