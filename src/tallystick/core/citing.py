"""An answer against the documents it is from: what of it is cited, and what it claims in vain.

Rule 1: a quotation is checked if its words stand in a document byte for byte, as whole words. Where
either has a line end between two words, any whitespace there is as good as any other; nothing but
whitespace is. A mark at its end (`.,;:!?`) may be the answer's own.
Rule 2: one with a place has to begin on the lines that are named; one without is cited where it
stands first. A place alone is checked if there are such lines and something stands on them.
Rule 3: what is cited is read from the document: its bytes, its lines, its words. What does not
check is named with the reason.
Rule 4: words of the rest of the answer are cited where they stand, by the rules of `citation`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from tallystick.core.citation import Citation, citation_of, citations_of, line_part
from tallystick.core.claims import Claim, Names, Place, claims_in, without_claims
from tallystick.core.document import SPAN_BYTES_MAX, Documents, TooMuch
from tallystick.core.json_text import read_json

__all__ = ["Cited", "Unchecked", "cited_in"]

_CLAIMS_MAX = 32
_SHOWN_CHARS_MAX = 300
_LINES_BYTES_MAX = 2_000
_JSON_CHARS_MAX = 1_000_000
_LEAVES_MAX = 1_000
_WHITE = b" \t\r\n\x0b\x0c"
_GAP = re.compile(rf"([{_WHITE.decode()}]+)")
# The line end itself is asked for: so there is one way only to match, and no way back.
_BROKEN = rb"[ \t\r\x0b\x0c]*+\n[ \t\r\n\x0b\x0c]*+"
_ANY_WHITE = rb"[ \t\r\n\x0b\x0c]++"
_ENDING = ".,;:!?"
# By so much the whitespace of a document may be longer than that of a quotation.
_SPACES_BYTES_MAX = 2_048
# To compare a word takes as long as to look through so many bytes.
_WALK_BYTES = 512
# How rare a word is, is seen in the beginning of a document.
_SAMPLE_BYTES = 262_144
_CUT_BEFORE = re.compile(rb"[0-9A-Za-z]{2}\Z|[0-9][.,][0-9]\Z")
_CUT_BEHIND = re.compile(rb"[0-9A-Za-z]{2}|[0-9][.,][0-9]")
_NOWHERE = "stands nowhere in the data"


class Unchecked(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer says of where it is from and could not be checked, and why."""

    claim: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cited:
    """What stands in the documents, and what does not."""

    citations: tuple[Citation, ...] = ()
    unchecked: tuple[Unchecked, ...] = ()


def cited_in(
    answer: str, *, question: str, documents: Documents, claimed: bool = True, typed: bool = False
) -> Cited:
    """Check an answer. `claimed` is False for one that is only what a program printed last.

    A `typed` answer is JSON, whatever its kind.
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
    for claim in claims[:_CLAIMS_MAX]:
        outcome = _checked(claim, names, documents)
        if isinstance(outcome, Citation):
            citations.append(outcome)
        elif outcome is not None:
            unchecked.append(Unchecked(claim=_shown(claim.said), why=outcome))
    if len(claims) > _CLAIMS_MAX:
        more = f"{len(claims) - _CLAIMS_MAX:,} more claims"
        unchecked.append(Unchecked(claim=more, why=f"only {_CLAIMS_MAX} are looked at"))
    citations += citations_of("\n".join(rest), question=question, documents=documents)
    return Cited(citations=_once(citations), unchecked=tuple(dict.fromkeys(unchecked)))


def _once(citations: Sequence[Citation]) -> tuple[Citation, ...]:
    """Without those that another one has in it."""
    kept: list[Citation] = []
    for each in citations:
        held = (other for other in kept if other.name == each.name)
        if not any(other.start <= each.start and each.end <= other.end for other in held):
            kept.append(each)
    return tuple(kept)


def _shown(said: str) -> str:
    return said if len(said) <= _SHOWN_CHARS_MAX else f"{said[: _SHOWN_CHARS_MAX - 3]}..."


# -- what is read of an answer -----------------------------------------------------------------


def _texts(answer: str, *, typed: bool) -> list[str]:
    """An answer as it is, or what stands in one that is JSON."""
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


def _checked(claim: Claim, names: Names, documents: Documents) -> Citation | str | None:
    """The citation of a claim, or why there is none; None if it turns out to be no claim."""
    try:
        if claim.place is None:
            assert claim.words is not None
            found = _found(documents, claim.words)
            return _NOWHERE if found is None else citation_of(documents, *found)
        return _checked_place(claim, claim.place, names, documents)
    except TooMuch:
        return "was not looked for: there is too much data"


def _checked_place(
    claim: Claim, place: Place, names: Names, documents: Documents
) -> Citation | str | None:
    name = names.whose(place.name)
    if name is None:
        return _unknown(claim, place, names, documents)
    span = None
    if 1 <= place.first <= place.last:
        span = documents.line_span(name, place.first, place.last)
    if span is None:
        count = documents.lines(name)
        return f"{name} has {count:,} line{'' if count == 1 else 's'}"
    low, high = span
    if claim.words is None:
        return _lines(documents, name, low, high)
    reach = min(documents.size(name), high + SPAN_BYTES_MAX)
    found = _words(documents, name, claim.words, low, reach)
    if found is not None and found[0] < max(high, low + 1):
        return citation_of(documents, name, *found)
    return _elsewhere(documents, name, claim.words)


def _unknown(claim: Claim, place: Place, names: Names, documents: Documents) -> str | None:
    if names.is_known(place.name):
        return f"{place.name} is the name of several documents"
    said = claim.said.strip("[]()`").encode("utf-8", "surrogatepass")
    if claim.words is None and any(documents.find(name, said) >= 0 for name in documents.names):
        return None  # It is what the data says, not where it says it.
    return f"{place.name} is no document of this run"


def _lines(documents: Documents, name: str, low: int, high: int) -> Citation | str:
    """Lines that were named without words: what stands on them, or on the first of many."""
    if high - low > _LINES_BYTES_MAX:
        cut = documents.read(name, low, low + _LINES_BYTES_MAX).rfind(b"\n")
        high = low + cut if cut >= 0 else line_part(documents, name, low, low)[1]
    raw = documents.read(name, low, high)
    start = low + len(raw) - len(raw.lstrip(_WHITE))
    end = low + len(raw.rstrip(_WHITE))
    return citation_of(documents, name, start, end) if start < end else "nothing stands there"


def _elsewhere(documents: Documents, name: str, words: str) -> str:
    found = _words(documents, name, words, 0, documents.size(name))
    if found is not None:
        return f"does not stand there, but on line {documents.line_of(name, found[0])}"
    other = _found(documents, words)
    return f"does not stand there, but in {other[0]}" if other is not None else _NOWHERE


# -- words -------------------------------------------------------------------------------------


def _found(documents: Documents, words: str) -> tuple[str, int, int] | None:
    """The first document that has some words, and where."""
    for name in documents.names:
        found = _words(documents, name, words, 0, documents.size(name))
        if found is not None:
            return name, *found
    return None


def _words(
    documents: Documents, name: str, words: str, low: int, high: int
) -> tuple[int, int] | None:
    """Where words stand in a part of a document."""
    words = words.strip()
    for said in dict.fromkeys([words, words.rstrip(_ENDING)]):
        raw = said.encode("utf-8", "surrogatepass")
        if raw:
            found = _exact(documents, name, raw, low, high)
            found = found or _wrapped(documents, name, said, low, high)
            if found is not None:
                return found
    return None


def _exact(
    documents: Documents, name: str, raw: bytes, low: int, high: int
) -> tuple[int, int] | None:
    at = documents.find(name, raw, low, high)
    while at >= 0:
        if _is_whole(documents, name, at, at + len(raw)):
            return at, at + len(raw)
        at = documents.find(name, raw, at + 1, high)
    return None


def _wrapped(
    documents: Documents, name: str, words: str, low: int, high: int
) -> tuple[int, int] | None:
    """The words with line ends elsewhere: the rarest is looked for, then those around it."""
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
    """Words and gaps from here on. It is literal but for the gaps: there is no way back in it."""
    made = (re.escape(part) if part.strip(_WHITE) else _gap_pattern(part) for part in parts)
    return re.compile(b"".join(made))


def _gap_pattern(gap: bytes) -> bytes:
    """What may stand between two words. The words hold no whitespace."""
    if b"\n" in gap:
        return _ANY_WHITE
    return rb"(?:" + re.escape(gap) + rb"(?![ \t\r\n\x0b\x0c])|" + _BROKEN + rb")"


def _is_whole(documents: Documents, name: str, start: int, end: int) -> bool:
    """Whether no word or number is cut at either end: a 12 stands neither in 120 nor in 12.5."""
    low, high = max(0, start - 2), min(documents.size(name), end + 2)
    around = documents.read(name, low, start + 1), documents.read(name, end - 1, high)
    return not (_CUT_BEFORE.search(around[0]) or _CUT_BEHIND.match(around[1]))
