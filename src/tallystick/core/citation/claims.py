"""Find the sources that an answer names, and search documents as bytes within a bound of work.

Rule 1: a quotation is in double quotes, typographic ones or backticks, and has at least four words.
Fewer are how a word is set off, unless a place is beside them. Words of the question, a document's
name, blocks of code and text that looks like code in backticks are no quotations.
Rule 2: a place is `[name:12]`, `[name:12-14]`, `(name, line 12)`, `name L12-L14` or `line 12 of
name`, where the name is a document's, whole or its last part. Another name counts only in brackets,
and if it looks like a file's: `[12:30]`, `[example.com:443]`, `File "x.py", line 3` are no places.
Rule 3: a place belongs to the quotation right before it, else to the one right after it.
Rule 4: an answer that is JSON is read string by string: its quotes are JSON's own.
Rule 5: anything else is no claim, and is not reported.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

# Documents as bytes: searched in windows, never held as one text, with the work counted.
#
# A document may be longer than memory, and an answer is not worth an hour of searching. So every
# search costs the bytes it went through, of one sum for all documents; when that is spent,
# `TooMuch` is raised. The result follows from the bytes alone: a limit of time would differ from
# machine to machine.


_WINDOW_BYTES = 8 * 1024 * 1024
# The longest text that can be searched for: windows overlap by this much.
SPAN_BYTES_MAX = 65_536
# About four seconds of searching.
_LOOKED_BYTES_MAX = 2 * 1024 * 1024 * 1024
# A look costs at least this: there may be ten thousand documents.
_LOOK_BYTES_LEAST = 4_096
# The beginning of a line is searched for this far back.
_LINE_BYTES_MAX = 10_000
# The bytes of a character after its first.
_CONTINUED = bytes(range(0x80, 0xC0))


class Document(Protocol):
    """Bytes that can be read in parts."""

    def __len__(self) -> int: ...

    def read_raw(self, start: int, stop: int) -> bytes:
        """Return the bytes between two offsets, as far as there are any."""
        ...


class TooMuch(Exception):
    """Raised when a search would cost more work than an answer is worth."""


class Documents:
    """Documents by name, and the work that may still be spent on searching them.

    A method that searches or counts raises `TooMuch` when that is spent. One that is given an
    unknown name raises `KeyError`.
    """

    def __init__(
        self, held: Mapping[str, Document], *, looked_bytes_max: int = _LOOKED_BYTES_MAX
    ) -> None:
        self._held = held
        self._left = looked_bytes_max
        # The window that was read last: most searches continue where the last one was.
        self._window: tuple[str, int, bytes] = ("", -1, b"")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all documents."""
        return tuple(self._held)

    def size(self, name: str) -> int:
        """Return the length of a document in bytes."""
        return len(self._held[name])

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes between two offsets, as far as there are any. That spends nothing."""
        start, stop = max(0, start), max(0, start, min(stop, self.size(name)))
        held, low, window = self._window
        if held == name and 0 <= low <= start and stop <= low + len(window):
            return window[start - low : stop - low]
        return self._held[name].read_raw(start, stop)

    def spend(self, count: int) -> None:
        """Count work that was done with bytes that were read. Raise `TooMuch` if none is left."""
        self._left -= count
        if self._left < 0:
            raise TooMuch

    # -- looking -------------------------------------------------------------------------------

    def find(self, name: str, needle: bytes, start: int = 0, stop: int | None = None) -> int:
        """Return the first place of a text between two offsets, or -1.

        A text of more than `SPAN_BYTES_MAX` bytes is never found.
        """
        if len(needle) > SPAN_BYTES_MAX:
            return -1
        for low, window, begin, end in self._windows(name, start, stop, len(needle)):
            at = window.find(needle, begin, end)
            self.spend((at if at >= 0 else end) - begin)
            if at >= 0:
                return low + at
        return -1

    def breaks(self, name: str, start: int, stop: int) -> int:
        """Return the number of line ends between two offsets."""
        total = 0
        for _, window, begin, end in self._windows(name, start, stop, 1):
            total += window.count(b"\n", begin, end)
            self.spend((end - begin) // 4)
        return total

    # -- lines ---------------------------------------------------------------------------------

    def line_of(self, name: str, offset: int) -> int:
        """Return the number of the line that a byte is in, from one."""
        return self.breaks(name, 0, offset) + 1

    def lines(self, name: str) -> int:
        """Return the number of lines. A last line without a line end counts if it is not empty."""
        size = self.size(name)
        whole = self.breaks(name, 0, size)
        return whole + (size > 0 and self.read(name, size - 1, size) != b"\n")

    def line_span(self, name: str, first: int, last: int) -> tuple[int, int] | None:
        """Return where some lines begin and end in bytes, without the last one's end.

        None if the document does not have all of them.
        """
        low = self._line_start(name, first)
        if low is None or low >= self.size(name):
            return None
        after = self._line_start(name, last + 1, known=(first, low))
        if after is None:
            # The last line may have no end.
            lines = self.lines(name)
            return (low, self.size(name)) if lines == last else None
        return low, after - 1

    def line_low(self, name: str, offset: int) -> int:
        """Return the beginning of the line of a byte.

        Of a line of more than 10,000 bytes, it may be that of the part of it with this byte.
        """
        least = max(0, offset - _LINE_BYTES_MAX)
        at = self.read(name, least, offset).rfind(b"\n")
        if at >= 0:
            return least + at + 1
        if least == 0:
            return 0
        part = offset - offset % _LINE_BYTES_MAX
        # Not in the middle of a character.
        head = self.read(name, part, min(offset, part + 3))
        return part + len(head) - len(head.lstrip(_CONTINUED))

    def _line_start(self, name: str, line: int, known: tuple[int, int] = (1, 0)) -> int | None:
        """Return the beginning of a line, or None if there are fewer line ends.

        `known` is the number and beginning of an earlier line.
        """
        number, start = known
        for low, window, begin, end in self._windows(name, start, None, 1):
            inside = window.count(b"\n", begin, end)
            self.spend((end - begin) // 4)
            if number + inside < line:
                number += inside
                continue
            return low + _line_start_in(window, line - number, begin, end)
        return start if number == line else None

    # -- windows -------------------------------------------------------------------------------

    def _windows(
        self, name: str, start: int, stop: int | None, length: int
    ) -> Iterator[tuple[int, bytes, int, int]]:
        """Yield the beginning of each window of a document, its bytes, and the part to search.

        A match that begins in a window and has the length may end after it.
        """
        size = self.size(name)
        stop = size if stop is None else min(stop, size)
        if start >= stop:
            return
        for low in range(start - start % _WINDOW_BYTES, stop, _WINDOW_BYTES):
            window = self._read_window(name, low)
            end = min(stop - low, _WINDOW_BYTES + length - 1)
            yield low, window, max(0, start - low), end

    def _read_window(self, name: str, low: int) -> bytes:
        self.spend(_LOOK_BYTES_LEAST)
        held, at, window = self._window
        if held != name or at != low:
            window = self._held[name].read_raw(low, low + _WINDOW_BYTES + SPAN_BYTES_MAX)
            self._window = (name, low, window)
        return window


def _line_start_in(window: bytes, count: int, begin: int, end: int) -> int:
    """Return the beginning of the line after `count` line ends. The window has that many."""
    while end - begin > _LINE_BYTES_MAX:
        middle = (begin + end) // 2
        inside = window.count(b"\n", begin, middle)
        if inside >= count:
            end = middle
        else:
            begin, count = middle, count - inside
    for _ in range(count):
        begin = window.index(b"\n", begin, end) + 1
    return begin


# The sources that an answer names: quotations, and places in named documents.


_ANSWER_CHARS_MAX = 50_000
# The most quotations, and the most places, of one text that are read.
_FOUND_MAX = 200
_QUOTE_CHARS_MAX = 2_000
_NAME_CHARS_MAX = 300
_NAME_WORDS_MAX = 6
_WORDS_LEAST = 4
# In a script without spaces, this many characters count as four words.
_DENSE_LEAST = 8
_DENSE = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]")
_CLOSING = {'"': '"', "\u201c": "\u201d", "\u201e": "\u201c\u201d", "\u00ab": "\u00bb", "`": "`"}
_OPENING = re.compile(f"[{''.join(_CLOSING)}]")
_FENCED = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_CODE = re.compile(r"[(){}=<>;$|\\]")
_ELIDED = re.compile(r"\s*(?:\[\s?(?:\.\.\.|\u2026)\s?\]|\.\.\.|\u2026)\s*")
_DASH = r"\s?[-\u2013\u2014]\s?"
_NUMBERED = re.compile(rf"\b(?:[Ll]ines?\s{{1,2}}|L)(\d{{1,9}})(?:{_DASH}L?(\d{{1,9}}))?\b")
_COLON = re.compile(rf"[:#](\d{{1,9}})(?:{_DASH}(\d{{1,9}}))?(?=\s?[\]),;`])")
_BEHIND = re.compile(r"\s{1,2}(?:of|in|from)\s{1,2}(\S{1,300})")
_BEFORE = re.compile(r"(?:\s(?:at|on))?[\s,:#(]{0,3}\Z")
_MARKS = " \t`'\"*\u201c\u201d.,;:()[]<>"
# The endings of file names, in addition to those of the given documents.
_ENDINGS = frozenset(
    {
        *("c", "cfg", "conf", "cpp", "csv", "go", "h", "htm", "html", "ini", "java", "js", "json"),
        *("jsonl", "log", "md", "pdf", "py", "rs", "rst", "sh", "sql", "tex", "toml", "ts", "tsv"),
        *("txt", "xml", "yaml", "yml"),
    }
)
_FILE = re.compile(r"[\w./\\-]{0,299}\w\.([A-Za-z][A-Za-z0-9]{0,7})")
# The text that may be between a quotation and its place.
_TO_PLACE = re.compile(
    r"[\s.,;:\u2014\u2013([\])-]{0,4}(?:(?:see|at|in|from|cf\.?)\s)?[`\"]?", re.I
)
_TO_QUOTE = re.compile(r"[`\"\])]{0,2}\s?(?:says|reads|has|is)?[\s:,\u2014\u2013-]{0,3}", re.I)
_NEXT_PLACE = re.compile(r"[\s,;()[\]]{0,4}")


class Names:
    """The names of documents: whole, or their last part if no other document has the same."""

    def __init__(self, names: Iterable[str]) -> None:
        self.all = frozenset(names)
        self._last = {_last_part(name): name for name in self.all}
        self._several = {
            part for part, count in Counter(map(_last_part, self.all)).items() if count > 1
        }
        self._endings = _ENDINGS | {
            name.rpartition(".")[2].lower() for name in self.all if "." in name
        }

    def whose(self, said: str) -> str | None:
        """Return the document that a name belongs to; None if it belongs to none, or to several."""
        if said in self.all:
            return said
        return None if said in self._several else self._last.get(said)

    def is_known(self, said: str) -> bool:
        """Return True if this is the name of a document, or of several."""
        return said in self.all or said in self._last

    def is_name(self, said: str) -> bool:
        """Return True if this is meant as the name of a document, given or not."""
        if self.is_known(said):
            return True
        found = _FILE.fullmatch(said)
        return found is not None and found[1].lower() in self._endings


class ClaimedLines(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of a document, as the answer names it."""

    name: str
    first: int
    last: int
    span: tuple[int, int]


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Words that the answer says are in the data, or a place alone, or both.

    `said` is the text of the claim in the answer, `span` its place there.
    """

    said: str
    span: tuple[int, int]
    words: str | None = None
    place: ClaimedLines | None = None


class _Quote(msgspec.Struct, frozen=True):
    start: int
    end: int
    mark: str
    words: str
    places: tuple[ClaimedLines, ...] = ()


def claims_in(answer: str, *, question: str, names: Names) -> list[Claim]:
    """Return the claims of an answer, from left to right.

    `names` are the documents of the run. Only the first 50,000 characters are read, and of each
    kind at most 200 quotations and places. Blocks of code are not read.
    """
    text = _FENCED.sub(_blank, answer[:_ANSWER_CHARS_MAX])
    quotes, places = _separate(_quotes(text), _places(text, names))
    quotes, alone = _attach_places(text, quotes, places)
    found = [_claim(answer, words=None, span=each.span, place=each) for each in alone]
    asked = _plain(question)
    for quote in quotes:
        found += _claims_of_quote(answer, quote, asked, names)
    return sorted(found, key=lambda claim: claim.span)


def without_claims(answer: str, claims: Sequence[Claim]) -> str:
    """Replace the claims of an answer by line ends, so that its other words keep their places."""
    for claim in claims:
        low, high = claim.span
        answer = answer[:low] + "\n" * (high - low) + answer[high:]
    return answer


def _claim(
    answer: str, *, words: str | None, span: tuple[int, int], place: ClaimedLines | None = None
) -> Claim:
    span = _with_brackets(answer, *span)
    return Claim(said=answer[slice(*span)], span=span, words=words, place=place)


def _with_brackets(text: str, low: int, high: int) -> tuple[int, int]:
    """Return the span of a claim with the bracket that closes it, and the one that opens it."""
    closing = text[high : high + 1]
    opening = {"]": "[", ")": "(", "`": "`"}.get(closing)
    if opening is None:
        return low, high
    inside = text[low:high]
    if inside.count(opening) > (inside.count(closing) if opening != closing else 0):
        return low, high + 1
    return (low - 1, high + 1) if text[low - 1 : low] == opening else (low, high)


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


# -- quotations --------------------------------------------------------------------------------


def _quotes(text: str) -> list[_Quote]:
    found: list[_Quote] = []
    after = looked = 0
    for match in _OPENING.finditer(text):
        start, mark = match.start(), match[0]
        if start < after or not _opens(text, start):
            continue
        looked += 1
        if looked > _FOUND_MAX:
            break
        end = _end_of_quote(text, start, mark)
        if end is not None:
            found.append(_Quote(start, end, mark, text[start + 1 : end - 1]))
            after = end
    return found


def _opens(text: str, start: int) -> bool:
    before, behind = text[start - 1 : start], text[start + 1 : start + 2]
    return not before.isalnum() and bool(behind.strip())


def _end_of_quote(text: str, start: int, mark: str) -> int | None:
    """Return the end of a quotation, None if nothing closes it. A mark inside a word does not."""
    closing = _CLOSING[mark]
    for at in range(start + 2, min(len(text), start + 1 + _QUOTE_CHARS_MAX)):
        if text[at] in closing and text[at - 1].strip() and not text[at + 1 : at + 2].isalnum():
            return None if mark in '"`' and "\n\n" in text[start:at] else at + 1
    return None


def _claims_of_quote(answer: str, quote: _Quote, asked: str, names: Names) -> list[Claim]:
    """Return the claims of a quotation: one for each place, and for each part between omissions.

    Without a place, parts of fewer than four words are none. Nor are words of the question, the
    name of a document, or code in backticks.
    """
    span = (quote.start, quote.end)
    parts = [part for part in _ELIDED.split(quote.words) if part.strip(_MARKS)]
    if quote.places:
        low = min(quote.start, *(place.span[0] for place in quote.places))
        high = max(quote.end, *(place.span[1] for place in quote.places))
        return [
            _claim(answer, words=part, span=(low, high), place=place)
            for place in quote.places
            for part in parts
        ]
    long = [part for part in parts if _is_long(part)]
    plain = _plain(quote.words)
    if not long or plain in asked or names.is_name(quote.words.strip()):
        return []
    if quote.mark == "`" and _CODE.search(quote.words):
        return []
    return [_claim(answer, words=part, span=span) for part in long]


def _is_long(words: str) -> bool:
    count = sum(1 for word in words.split() if any(each.isalnum() for each in word))
    return count >= _WORDS_LEAST or len(_DENSE.findall(words)) >= _DENSE_LEAST


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).strip(_MARKS + "?!")


# -- places ------------------------------------------------------------------------------------


def _places(text: str, names: Names) -> list[ClaimedLines]:
    found: list[ClaimedLines] = []
    for match in itertools.islice(_NUMBERED.finditer(text), _FOUND_MAX):
        named = _name_before(text, match.start(), names) or _name_after(text, match.end(), names)
        if named is not None:
            found.append(_place(match, named))
    for match in itertools.islice(_COLON.finditer(text), _FOUND_MAX):
        named = _name_inside(text, match.start(), names)
        if named is not None:
            found.append(_place(match, named))
    return sorted(found, key=lambda place: place.span)


def _place(match: re.Match[str], named: tuple[str, int, int]) -> ClaimedLines:
    name, low, high = named
    first = int(match[1])
    return ClaimedLines(
        name=name,
        first=first,
        last=int(match[2] or first),
        span=(min(low, match.start()), max(high, match.end())),
    )


def _name_before(text: str, end: int, names: Names) -> tuple[str, int, int] | None:
    """Return the name that ends right before a place, where it begins, and `end`; None without one.

    A known name may have spaces in it.
    """
    least = max(0, end - _NAME_CHARS_MAX, text.rfind("\n", 0, end) + 1)
    gap = _BEFORE.search(text, least, end)
    stop = end if gap is None else gap.start()
    start = stop
    for _ in range(_NAME_WORDS_MAX):
        start = max(least, text.rfind(" ", least, start - 1) + 1) if start > least else least
        said, low = _bare_name(text, start, stop)
        if names.is_known(said) or (names.is_name(said) and text[low - 1 : low] in ("[", "(")):
            return said, low, end
        if start == least:
            break
    return None


def _name_after(text: str, start: int, names: Names) -> tuple[str, int, int] | None:
    match = _BEHIND.match(text, start)
    if match is None:
        return None
    said, low = _bare_name(text, *match.span(1))
    return (said, start, low + len(said)) if names.is_known(said) else None


def _name_inside(text: str, end: int, names: Names) -> tuple[str, int, int] | None:
    """Return the name after a bracket or another place, up to here, with its beginning and end.

    None if there is no name.
    """
    least = max(0, end - _NAME_CHARS_MAX, text.rfind("\n", 0, end) + 1)
    opened = max(text.rfind(mark, least, end) for mark in "[(`")
    if opened < 0 or any(each in text[opened + 1 : end] for each in "])"):
        return None
    opened = max(opened, text.rfind(",", least, end), text.rfind(";", least, end))
    for start in (opened + 1, text.rfind(" ", opened, end) + 1):
        said, low = _bare_name(text, max(start, opened + 1), end)
        if names.is_name(said):
            return said, low, end
    return None


def _bare_name(text: str, start: int, stop: int) -> tuple[str, int]:
    """Return a name without the marks around it, and its beginning."""
    said = text[start:stop].rstrip(_MARKS)
    bare = said.lstrip(_MARKS)
    return bare, start + len(said) - len(bare)


def _last_part(name: str) -> str:
    return re.split(r"[/\\]", name)[-1] or name


# -- quotations and their places ---------------------------------------------------------------


def _separate(
    quotes: list[_Quote], places: list[ClaimedLines]
) -> tuple[list[_Quote], list[ClaimedLines]]:
    """Drop quotations that are a place, and places that are inside a quotation."""
    kept: list[_Quote] = []
    inside: set[ClaimedLines] = set()
    for quote in quotes:
        within = [p for p in places if p.span[0] < quote.end and quote.start < p.span[1]]
        if not within:
            kept.append(quote)
        elif _is_long(quote.words):
            kept.append(quote)
            inside.update(p for p in within if quote.start < p.span[0] and p.span[1] < quote.end)
    return kept, [place for place in places if place not in inside]


def _attach_places(
    text: str, quotes: list[_Quote], places: list[ClaimedLines]
) -> tuple[list[_Quote], list[ClaimedLines]]:
    """Return the quotations with their places, and the places that belong to none.

    A place belongs to the quotation right before it, else to the one right after it, if that has
    no place yet.
    """
    alone: list[ClaimedLines] = []
    made = list(quotes)
    for place in places:
        before = [n for n, quote in enumerate(made) if _reach(quote) <= place.span[0]]
        number = before[-1] if before else None
        if number is not None and _follows(text, made[number], place):
            made[number] = msgspec.structs.replace(
                made[number], places=(*made[number].places, place)
            )
        else:
            alone.append(place)
    for place in list(alone):
        behind = next((n for n, q in enumerate(made) if q.start >= place.span[1]), None)
        if behind is None or made[behind].places:
            continue
        if _TO_QUOTE.fullmatch(text, place.span[1], made[behind].start):
            made[behind] = msgspec.structs.replace(made[behind], places=(place,))
            alone.remove(place)
    return made, alone


def _reach(quote: _Quote) -> int:
    return max([quote.end, *(place.span[1] for place in quote.places)])


def _follows(text: str, quote: _Quote, place: ClaimedLines) -> bool:
    between = _NEXT_PLACE if quote.places else _TO_PLACE
    return between.fullmatch(text, _reach(quote), place.span[0]) is not None
