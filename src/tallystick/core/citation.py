"""Where an answer's words stand in the data: places that can be checked against the bytes.

Words are a run of the answer's that stands in the data just so. They count only if they could not
stand there by chance: they have a capital or a digit, they are not from the question, and a number
has at least five digits. The lines that hold the most of them are cited, of those the ones that
have the most words of the question, if they are few; what stands on many lines points nowhere.

An answer that was computed (a count, a sum) stands nowhere, and is not cited. What an answer itself
says of where it is from is in `claims`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from tallystick.core.document import Documents, TooMuch

__all__ = ["Citation", "checked", "citation_of", "citations_of", "line_part"]

_CLAIMS_MAX = 12
_WORDS_MAX = 60
# Of one run of words: in one document, and in all.
_PLACES_MAX = 2_000
_PLACES_TOTAL_MAX = 20_000
_CITED_MAX = 3
_QUOTE_CHARS_MAX = 300
# No character is longer.
_CHARACTER_BYTES = 4
_LINE_BYTES_MAX = 10_000
_DIGITS_LEAST = 5
_CHARS_LEAST = 3
_LONG_WORD = re.compile(r"\w{4,}")
_WORD = re.compile(r"\S+")
_EDGES = " \t\n.,;:!?'\"()[]{}`*"


class Citation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Words of a named document: their line, counted from one, their bytes, and what stands there.

    `line_end` is the line that they end on, if that is another.
    """

    name: str
    line: int
    start: int
    end: int
    quote: str
    line_end: int | None = None

    @property
    def lines(self) -> str:
        """The lines as they are written: `12`, or `12-14`."""
        return str(self.line) if self.line_end is None else f"{self.line}-{self.line_end}"


def checked(citation: Citation, documents: Documents) -> bool:
    """Whether the quoted words stand at the cited bytes, and those on the cited lines."""
    if citation.name not in documents.names or not 0 <= citation.start <= citation.end:
        return False
    if citation.end > documents.size(citation.name):
        return False
    try:
        return citation_of(documents, citation.name, citation.start, citation.end) == citation
    except TooMuch:
        return False


def citation_of(documents: Documents, name: str, start: int, end: int) -> Citation:
    """The citation of some bytes."""
    line = documents.line_of(name, start)
    more = documents.breaks(name, start, end)
    return Citation(
        name=name,
        line=line,
        start=start,
        end=end,
        quote=documents.read(name, start, end).decode("utf-8", "replace"),
        line_end=line + more if more else None,
    )


def citations_of(answer: str, *, question: str, documents: Documents) -> tuple[Citation, ...]:
    """The lines that hold the most of an answer's words, at most three.

    None where looking for them would take too long.
    """
    try:
        return _citations(answer, question, documents)
    except TooMuch:
        return ()


def _citations(answer: str, question: str, documents: Documents) -> tuple[Citation, ...]:
    held: dict[tuple[str, int], _Line] = {}
    for words, standing in _runs(answer, question, documents):
        count = 0
        for name, first in standing.items():
            for place in _places(documents, name, words, first):
                start = documents.line_low(name, place)
                held.setdefault((name, start), _Line(first=place)).words.add(words)
                count += 1
                if count == _PLACES_TOTAL_MAX:
                    break
            if count == _PLACES_TOTAL_MAX:
                break
    most = max((len(line.words) for line in held.values()), default=0)
    best = [where for where, line in held.items() if len(line.words) == most]
    # Of lines that hold as much of the answer, those that speak of what was asked.
    asked = {*_LONG_WORD.findall(question.lower())}
    spoken = {
        (name, start): len(asked & {*_LONG_WORD.findall(_line(documents, name, start).lower())})
        for name, start in best
    }
    closest = max(spoken.values(), default=0)
    found = sorted(where for where, count in spoken.items() if count == closest)
    if len(found) > _CITED_MAX:
        return ()
    spans = [(name, *line_part(documents, name, low, held[name, low].first)) for name, low in found]
    return tuple(citation_of(documents, *span) for span in spans)


@dataclass(slots=True)
class _Line:
    """The words on a line, and where the first that were found stand."""

    first: int
    words: set[bytes] = field(default_factory=set)


def _line(documents: Documents, name: str, start: int) -> str:
    raw, _, _ = documents.read(name, start, start + _LINE_BYTES_MAX).partition(b"\n")
    return raw.decode("utf-8", "replace")


def _runs(
    answer: str, question: str, documents: Documents
) -> Iterator[tuple[bytes, dict[str, int]]]:
    """The longest runs of words that stand somewhere, from left to right; where each does first."""
    words = [match.span() for match in _WORD.finditer(answer)][:_WORDS_MAX]
    asked = question.lower()
    taken: set[str] = set()
    at = 0
    while at < len(words) and len(taken) < _CLAIMS_MAX:
        longest, after = "", at + 1
        standing = dict.fromkeys(documents.names, 0)
        for last in range(at, len(words)):
            run = answer[words[at][0] : words[last][1]].strip(_EDGES)
            # A longer run begins like a shorter one, so it stands where that does, or nowhere.
            found = _standing(documents, run, standing) if run else {}
            if not found:
                break
            longest, after, standing = run, last + 1, found
        if _telling(longest) and longest.lower() not in asked and longest not in taken:
            taken.add(longest)
            yield _raw(longest), standing
        at = after


def _standing(documents: Documents, run: str, within: dict[str, int]) -> dict[str, int]:
    raw = _raw(run)
    found = {name: documents.find(name, raw, start) for name, start in within.items()}
    return {name: place for name, place in found.items() if place >= 0}


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _telling(words: str) -> bool:
    digits = sum(each.isdigit() for each in words)
    letters = any(each.isalpha() for each in words)
    if not letters:
        return digits >= _DIGITS_LEAST
    return len(words) >= _CHARS_LEAST and (digits > 0 or any(each.isupper() for each in words))


def _places(documents: Documents, name: str, words: bytes, first: int) -> Iterator[int]:
    place = first
    for _ in range(_PLACES_MAX):
        yield place
        place = documents.find(name, words, place + len(words))
        if place < 0:
            return


def line_part(documents: Documents, name: str, low: int, place: int) -> tuple[int, int]:
    """The bytes of a line, or of a long one those around the words that were found."""
    reach = _QUOTE_CHARS_MAX * _CHARACTER_BYTES
    end = _cut(documents, name, low, reach)
    if documents.read(name, end, end + 1) in (b"", b"\n"):
        return low, end
    # A third of the quote stands before the words.
    back = reach // 3
    before = documents.read(name, max(low, place - back), place)
    if place - back > low:
        # The part may begin in the middle of a character.
        before = before.lstrip(bytes(range(0x80, 0xC0)))
    shown = _characters(before)[-(_QUOTE_CHARS_MAX // 3) :]
    start = place - len(shown.encode("utf-8", "surrogateescape"))
    return start, _cut(documents, name, start, reach)


def _cut(documents: Documents, name: str, start: int, reach: int) -> int:
    """Where the line ends, or as many of its characters as are quoted."""
    raw, _, _ = documents.read(name, start, start + reach).partition(b"\n")
    shown = _characters(raw)[:_QUOTE_CHARS_MAX]
    return start + len(shown.encode("utf-8", "surrogateescape"))


def _characters(raw: bytes) -> str:
    """Bytes as characters that become the same bytes again, whatever they are."""
    return raw.decode("utf-8", "surrogateescape")
