"""Check an answer against its documents: cite the places of its words, and list its false claims.

Rule 1: a quotation is checked if its words are in a document byte for byte, as whole words. If
either has a line end between two words, any whitespace there is as good as any other; nothing but
whitespace is. A mark at its end (`.,;:!?`) may be the answer's own.
Rule 2: one with a place has to begin on the lines that are named; one without is cited at its first
occurrence. A place alone is checked if there are such lines and they are not blank.
Rule 3: a citation is read from the document: its bytes, its lines, its words. A claim that cannot
be confirmed is listed with the reason.
Rule 4: words of the rest of the answer are cited where they occur, by the rules below.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from tallystick.core.citation.claims import (
    SPAN_BYTES_MAX,
    Claim,
    ClaimedLines,
    Documents,
    Names,
    TooMuch,
    claims_in,
    without_claims,
)
from tallystick.core.json_text import read_json

# The places of an answer's words in the data, which can be checked against the bytes.
#
# Words are a run of the answer's words that is in the data exactly so. They count only if they
# could not be there by chance: they have a capital or a digit, they are not from the question, and
# a number has at least five digits. The lines that have the most of them are cited, of those the
# ones that have the most words of the question, if they are few; words on many lines point to none.
#
# An answer that was computed (a count, a sum) is not in the data, and is not cited. The sources
# that an answer itself names are in `claims`.


_QUOTED_MAX = 12
_WORDS_MAX = 60
# The most places of one run of words: in one document, and in all.
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
    """Words of a named document: their line, counted from one, their bytes, and their text.

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


def citation_of(documents: Documents, name: str, start: int, end: int) -> Citation:
    """Return the citation of some bytes of a document. Bytes that are not UTF-8 are replaced.

    Raise `TooMuch` if counting lines would take too long, and `KeyError` for an unknown document.
    """
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
    """Return citations of the lines that have the most of an answer's words, at most three.

    There are none if more lines qualify, or if the search would take too long. Only the first 60
    words of the answer are looked for, and 12 runs of them. A run that `question` has does not
    count; of equal lines, those with more of its words go first.
    """
    try:
        return _citations(answer, question, documents)
    except TooMuch:
        return ()


def _citations(answer: str, question: str, documents: Documents) -> tuple[Citation, ...]:
    """Cite the lines with the most of the answer's words, as `citations_of` describes."""
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
    # Of lines with as much of the answer, take those with the most words of the question.
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
    """The words on a line, and the place of the first that were found."""

    first: int
    words: set[bytes] = field(default_factory=set)


def _line(documents: Documents, name: str, start: int) -> str:
    raw, _, _ = documents.read(name, start, start + _LINE_BYTES_MAX).partition(b"\n")
    return raw.decode("utf-8", "replace")


def _runs(
    answer: str, question: str, documents: Documents
) -> Iterator[tuple[bytes, dict[str, int]]]:
    """Yield the longest runs of words that occur in the data, with their first places by document.

    At most 12, from the first 60 words. Left out are runs of the question, repeated ones, and those
    that could be there by chance (`_is_telling`).
    """
    words = [match.span() for match in _WORD.finditer(answer)][:_WORDS_MAX]
    asked = question.lower()
    taken: set[str] = set()
    at = 0
    while at < len(words) and len(taken) < _QUOTED_MAX:
        longest, after = "", at + 1
        standing = dict.fromkeys(documents.names, 0)
        for last in range(at, len(words)):
            run = answer[words[at][0] : words[last][1]].strip(_EDGES)
            # A longer run begins with a shorter one, so it can only be at the places of that one.
            found = _first_places(documents, run, standing) if run else {}
            if not found:
                break
            longest, after, standing = run, last + 1, found
        if _is_telling(longest) and longest.lower() not in asked and longest not in taken:
            taken.add(longest)
            yield _bytes_of(longest), standing
        at = after


def _first_places(documents: Documents, run: str, within: dict[str, int]) -> dict[str, int]:
    raw = _bytes_of(run)
    found = {name: documents.find(name, raw, start) for name, start in within.items()}
    return {name: place for name, place in found.items() if place >= 0}


def _bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _is_telling(words: str) -> bool:
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
    """Return the bytes of a line, or of a long one those around the words that were found.

    `low` is its beginning, `place` that of the words. Long is more than 300 characters.
    """
    reach = _QUOTE_CHARS_MAX * _CHARACTER_BYTES
    end = _end_of_quote(documents, name, low, reach)
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
    return start, _end_of_quote(documents, name, start, reach)


def _end_of_quote(documents: Documents, name: str, start: int, reach: int) -> int:
    """Return the end of a line, or the end of as many of its characters as are quoted."""
    raw, _, _ = documents.read(name, start, start + reach).partition(b"\n")
    shown = _characters(raw)[:_QUOTE_CHARS_MAX]
    return start + len(shown.encode("utf-8", "surrogateescape"))


def _characters(raw: bytes) -> str:
    """Decode bytes so that encoding gives the same bytes again, even if they are not UTF-8."""
    return raw.decode("utf-8", "surrogateescape")


# An answer against its documents: the citations, and the claims that cannot be confirmed.


_CLAIMS_CHECKED_MAX = 32
_SHOWN_CHARS_MAX = 300
_LINES_BYTES_MAX = 2_000
_JSON_CHARS_MAX = 1_000_000
_LEAVES_MAX = 1_000
_WHITE = b" \t\r\n\x0b\x0c"
_GAP = re.compile(rf"([{_WHITE.decode()}]+)")
# Only one way to match: the blanks before the line end, the line end, the whitespace after it.
_BROKEN = rb"[ \t\r\x0b\x0c]*+\n[ \t\r\n\x0b\x0c]*+"
_ANY_WHITE = rb"[ \t\r\n\x0b\x0c]++"
_ENDING = ".,;:!?"
# The whitespace of a document may be longer than that of a quotation by at most this much.
_SPACES_BYTES_MAX = 2_048
# Comparing a word takes as long as searching this many bytes.
_WALK_BYTES = 512
# The rarest word is chosen by its count in the beginning of a document.
_SAMPLE_BYTES = 262_144
_CUT_BEFORE = re.compile(rb"[0-9A-Za-z]{2}\Z|[0-9][.,][0-9]\Z")
_CUT_BEHIND = re.compile(rb"[0-9A-Za-z]{2}|[0-9][.,][0-9]")
_NOWHERE = "stands nowhere in the data"


class Unchecked(msgspec.Struct, frozen=True, kw_only=True):
    """A claim of an answer about its source that could not be confirmed, and the reason."""

    claim: str
    why: str


class Cited(msgspec.Struct, frozen=True, kw_only=True):
    """The citations of an answer, and its claims that could not be confirmed."""

    citations: tuple[Citation, ...] = ()
    unchecked: tuple[Unchecked, ...] = ()


def check_answer(
    answer: str, *, question: str, documents: Documents, claimed: bool = True, typed: bool = False
) -> Cited:
    """Check an answer and return its citations. No document, no result.

    `claimed` is False for one that is only the last output of a program: then it makes no claims. A
    `typed` answer is JSON, whatever its type; others are if they begin as an object or a list. Of
    JSON, the first 1,000 strings and numbers are read. At most 32 claims are checked, and one entry
    in `unchecked` says how many more there are. `TooMuch` is not raised: such claims are unchecked.
    """
    if not documents.names:
        return Cited()
    names = Names(documents.names)
    rest: list[str] = []
    claims: list[Claim] = []
    for text in _texts(answer, typed=typed):
        found = claims_in(text, question=question, names=names) if claimed else []
        claims += found
        rest.append(without_claims(text, found))
    citations: list[Citation] = []
    unchecked: list[Unchecked] = []
    for claim in claims[:_CLAIMS_CHECKED_MAX]:
        outcome = _check_claim(claim, names, documents)
        if isinstance(outcome, Citation):
            citations.append(outcome)
        elif outcome is not None:
            unchecked.append(Unchecked(claim=_excerpt(claim.said), why=outcome))
    if len(claims) > _CLAIMS_CHECKED_MAX:
        more = f"{len(claims) - _CLAIMS_CHECKED_MAX:,} more claims"
        unchecked.append(Unchecked(claim=more, why=f"only {_CLAIMS_CHECKED_MAX} are looked at"))
    citations += citations_of("\n".join(rest), question=question, documents=documents)
    return Cited(citations=_drop_contained(citations), unchecked=tuple(dict.fromkeys(unchecked)))


def _drop_contained(citations: Sequence[Citation]) -> tuple[Citation, ...]:
    """Return the citations without those that another one contains."""
    kept: list[Citation] = []
    for each in citations:
        held = (other for other in kept if other.name == each.name)
        if not any(other.start <= each.start and each.end <= other.end for other in held):
            kept.append(each)
    return tuple(kept)


def _excerpt(said: str) -> str:
    return said if len(said) <= _SHOWN_CHARS_MAX else f"{said[: _SHOWN_CHARS_MAX - 3]}..."


# -- texts of an answer ------------------------------------------------------------------------


def _texts(answer: str, *, typed: bool) -> list[str]:
    """Return an answer as it is, or the first 1,000 strings and numbers in one that is JSON.

    It is read as JSON if it is `typed`, or begins as an object or a list, and has at most 1,000,000
    characters. Names of fields are left out.
    """
    if len(answer) <= _JSON_CHARS_MAX and (typed or answer.lstrip()[:1] in ("{", "[")):
        try:
            return list(_leaves(read_json(answer)))[:_LEAVES_MAX]
        except ValueError:
            pass
    return [answer]


def _leaves(value: object) -> Iterator[str]:
    match value:
        case dict():
            for each in value.values():
                yield from _leaves(each)
        case list():
            for each in value:
                yield from _leaves(each)
        case str():
            yield value
        case bool() | None:
            pass
        case _:
            yield str(value)


# -- claims ------------------------------------------------------------------------------------


def _check_claim(claim: Claim, names: Names, documents: Documents) -> Citation | str | None:
    """Return the citation of a claim, or why there is none; None if it turns out to be no claim."""
    try:
        if claim.place is None:
            assert claim.words is not None
            found = _find_in_any(documents, claim.words)
            return _NOWHERE if found is None else citation_of(documents, *found)
        return _check_place(claim, claim.place, names, documents)
    except TooMuch:
        return "was not looked for: there is too much data"


def _check_place(
    claim: Claim, place: ClaimedLines, names: Names, documents: Documents
) -> Citation | str | None:
    """Check a claim that names lines. Return its citation, or why there is none.

    None if it turns out to be no claim: its place is a part of the data. Raise `TooMuch` if the
    search would take too long.
    """
    name = names.whose(place.name)
    if name is None:
        return _check_unknown_name(claim, place, names, documents)
    span = None
    if 1 <= place.first <= place.last:
        span = documents.line_span(name, place.first, place.last)
    if span is None:
        count = documents.lines(name)
        return f"{name} has {count:,} line{'' if count == 1 else 's'}"
    low, high = span
    if claim.words is None:
        return _cite_lines(documents, name, low, high)
    reach = min(documents.size(name), high + SPAN_BYTES_MAX)
    found = _find_words(documents, name, claim.words, low, reach)
    if found is not None and found[0] < max(high, low + 1):
        return citation_of(documents, name, *found)
    return _why_not_there(documents, name, claim.words)


def _check_unknown_name(
    claim: Claim, place: ClaimedLines, names: Names, documents: Documents
) -> str | None:
    if names.is_known(place.name):
        return f"{place.name} is the name of several documents"
    said = claim.said.strip("[]()`").encode("utf-8", "surrogatepass")
    if claim.words is None and any(documents.find(name, said) >= 0 for name in documents.names):
        return None  # The words are a part of the data, and not a place in it.
    return f"{place.name} is no document of this run"


def _cite_lines(documents: Documents, name: str, low: int, high: int) -> Citation | str:
    """Cite lines that were named without words, or the first of many."""
    if high - low > _LINES_BYTES_MAX:
        cut = documents.read(name, low, low + _LINES_BYTES_MAX).rfind(b"\n")
        high = low + cut if cut >= 0 else line_part(documents, name, low, low)[1]
    raw = documents.read(name, low, high)
    start = low + len(raw) - len(raw.lstrip(_WHITE))
    end = low + len(raw.rstrip(_WHITE))
    return citation_of(documents, name, start, end) if start < end else "nothing stands there"


def _why_not_there(documents: Documents, name: str, words: str) -> str:
    found = _find_words(documents, name, words, 0, documents.size(name))
    if found is not None:
        return f"does not stand there, but on line {documents.line_of(name, found[0])}"
    other = _find_in_any(documents, words)
    return f"does not stand there, but in {other[0]}" if other is not None else _NOWHERE


# -- words -------------------------------------------------------------------------------------


def _find_in_any(documents: Documents, words: str) -> tuple[str, int, int] | None:
    """Return the first document that has some words, and their place in it; None if none has."""
    for name in documents.names:
        found = _find_words(documents, name, words, 0, documents.size(name))
        if found is not None:
            return name, *found
    return None


def _find_words(
    documents: Documents, name: str, words: str, low: int, high: int
) -> tuple[int, int] | None:
    """Return the first place of words in a part of a document, None if they are not there.

    Marks at their end are left out if they are not found with them. Words that are found with the
    same line ends go before those with others. Empty words are not found.
    """
    words = words.strip()
    for said in dict.fromkeys([words, words.rstrip(_ENDING)]):
        raw = said.encode("utf-8", "surrogatepass")
        if raw:
            found = _find_exact(documents, name, raw, low, high)
            found = found or _find_wrapped(documents, name, said, low, high)
            if found is not None:
                return found
    return None


def _find_exact(
    documents: Documents, name: str, raw: bytes, low: int, high: int
) -> tuple[int, int] | None:
    at = documents.find(name, raw, low, high)
    while at >= 0:
        if _is_whole(documents, name, at, at + len(raw)):
            return at, at + len(raw)
        at = documents.find(name, raw, at + 1, high)
    return None


def _find_wrapped(
    documents: Documents, name: str, words: str, low: int, high: int
) -> tuple[int, int] | None:
    """Return the first place of words with other line ends; None if there is none, or one word.

    The rarest word is searched for, and then those around it are matched.
    """
    parts = [part.encode("utf-8", "surrogatepass") for part in _GAP.split(words)]
    if len(parts) == 1:
        return None
    sample = documents.read(name, low, min(high, low + _SAMPLE_BYTES))
    documents.spend(len(sample) * len(parts) // 2)
    rarest = min(range(0, len(parts), 2), key=lambda at: (sample.count(parts[at]), -len(parts[at])))
    head, tail = parts[:rarest], parts[rarest:]
    backward = _pattern([part[::-1] for part in reversed(head)])
    forward = _pattern(tail)
    reach = [sum(map(len, each)) + _SPACES_BYTES_MAX for each in (head, tail)]
    at = documents.find(name, tail[0], low, high)
    while at >= 0:
        documents.spend(len(parts) * _WALK_BYTES)
        before = backward.match(documents.read(name, max(low, at - reach[0]), at)[::-1])
        behind = forward.match(documents.read(name, at, min(high, at + reach[1])))
        if before is not None and behind is not None:
            span = at - before.end(), at + behind.end()
            if _is_whole(documents, name, *span):
                return span
        at = documents.find(name, tail[0], at + 1, high)
    return None


def _pattern(parts: Sequence[bytes]) -> re.Pattern[bytes]:
    """Return a pattern for words and gaps. It is literal but for the gaps: it cannot backtrack."""
    made = (re.escape(part) if part.strip(_WHITE) else _gap_pattern(part) for part in parts)
    return re.compile(b"".join(made))


def _gap_pattern(gap: bytes) -> bytes:
    """Return a pattern for the gap between two words. The words have no whitespace."""
    if b"\n" in gap:
        return _ANY_WHITE
    return rb"(?:" + re.escape(gap) + rb"(?![ \t\r\n\x0b\x0c])|" + _BROKEN + rb")"


def _is_whole(documents: Documents, name: str, start: int, end: int) -> bool:
    """Return True if no word or number is cut at either end: 12 is not in 120 or in 12.5."""
    low, high = max(0, start - 2), min(documents.size(name), end + 2)
    around = documents.read(name, low, start + 1), documents.read(name, end - 1, high)
    return not (_CUT_BEFORE.search(around[0]) or _CUT_BEHIND.match(around[1]))
