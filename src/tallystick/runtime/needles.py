"""Needles: what a text looks like wherever it may stand, so that it can be found and taken out.

A text is found whole, as it is and as JSON, Python, base64 or an interpreter's memory spell it. Of
a long one its long lines are found too, and of a long line its parts, up to 200 of them: so, but in
very long texts, any 200 characters in a row that somebody copied. Other words are not found.

Rule 1: a short text is not looked for. It would be found in what has nothing to do with it.
Rule 2: the same for short or monotonous lines: a ruler or a heading stands in many texts.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

__all__ = ["TEXT_CHARS_MIN", "Needles"]

# A text that is shorter is not looked for.
TEXT_CHARS_MIN = 12
_LINE_CHARS_MIN = 40
_LINE_DISTINCT_MIN = 12
_PART_CHARS = 100
# Of one text, the longest lines: a book is not looked for page by page.
_PARTS_MAX = 200


class Needles:
    """Several texts, looked for together."""

    def __init__(self, texts: Iterable[str]) -> None:
        wanted = [each for text in texts for each in dict.fromkeys((text.strip(), text)) if each]
        parts = dict.fromkeys(part for text in wanted for part in _parts(text.strip()))
        spelled = dict.fromkeys(form for part in parts for form in _spelled(part))
        self._forms = tuple(spelled)
        self._bytes = tuple(
            dict.fromkeys(
                [
                    *(form.encode("utf-8", "surrogatepass") for form in spelled),
                    *(form for part in parts for form in _encoded(part)),
                ]
            )
        )
        self._longest = max(map(len, self._bytes), default=0)
        self._digests = tuple(
            hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() for text in wanted
        )

    def __bool__(self) -> bool:
        return bool(self._forms)

    def in_text(self, text: str) -> bool:
        return any(form in text for form in self._forms)

    def in_bytes(self, data: bytes) -> bool:
        return any(form in data for form in self._bytes)

    def in_pieces(self, pieces: Iterable[bytes | memoryview]) -> bool:
        """Whether one of them stands in bytes that come piece by piece."""
        tail = b""
        for piece in pieces:
            # What began in the piece before may end in this one.
            data = tail + bytes(piece)
            if self.in_bytes(data):
                return True
            tail = data[-(self._longest - 1) :] if self._longest > 1 else b""
        return False

    def in_value(self, value: object) -> bool:
        """Whether one of them stands anywhere in a record."""
        return any(self._in_leaf(leaf) for leaf in _leaves(value))

    def bound_by(self, value: object) -> bool:
        """Whether a record has one of them, or the plain digest of a whole text.

        Who has such a digest and guesses the text can check the guess.
        """
        return any(
            self._in_leaf(leaf)
            or (isinstance(leaf, str) and any(digest in leaf for digest in self._digests))
            for leaf in _leaves(value)
        )

    def _in_leaf(self, leaf: str | bytes) -> bool:
        return self.in_text(leaf) if isinstance(leaf, str) else self.in_bytes(leaf)


def _parts(text: str) -> Iterator[str]:
    """The text itself, and of a long one what is long enough in it to be told from others."""
    if len(text) < TEXT_CHARS_MIN:
        return
    yield text
    lines = sorted(
        {line.strip() for line in text.splitlines()} - {text}, key=lambda line: -len(line)
    )
    found = 0
    for line in [*lines, text]:
        for part in _of_line(line):
            if part != text and found < _PARTS_MAX:
                found += 1
                yield part


def _of_line(line: str) -> Iterator[str]:
    if "\n" in line:
        return
    pieces = [line]
    if len(line) >= 2 * _PART_CHARS:
        # Whoever copies twice as many characters in a row copies one of these whole.
        pieces = [line[at : at + _PART_CHARS] for at in range(0, len(line), _PART_CHARS)]
    for piece in pieces:
        if len(piece) >= _LINE_CHARS_MIN and len(set(piece)) >= _LINE_DISTINCT_MIN:
            yield piece


def _spelled(text: str) -> Iterator[str]:
    """A text as it stands in other texts: plain, in JSON, in JSON inside of JSON, in Python."""
    yield text
    for ascii_only in (False, True):
        once = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        yield once
        yield json.dumps(once, ensure_ascii=ascii_only)[1:-1]
    yield repr(text)[1:-1]


def _encoded(text: str) -> Iterator[bytes]:
    """A text as it stands in bytes that are not UTF-8: an interpreter's memory, or base64."""
    yield text.encode("utf-16-le", "surrogatepass")
    yield text.encode("utf-16-be", "surrogatepass")
    yield text.encode("utf-32-le", "surrogatepass")
    with contextlib.suppress(UnicodeEncodeError):
        yield text.encode("latin-1")
    raw = text.encode("utf-8", "surrogatepass")
    for before in range(3):
        # Where it begins decides how it is spelled; its ends share digits with what is beside it.
        coded = base64.b64encode(bytes(before) + raw).rstrip(b"=")
        yield coded[(0, 2, 3)[before] : -1]


def _leaves(value: object) -> Iterator[str | bytes]:
    """Every text and every run of bytes in a value."""
    match value:
        case str() | bytes():
            yield value
        case msgspec.Struct():
            for name in value.__struct_fields__:
                yield from _leaves(getattr(value, name))
        case Mapping():
            for key, each in value.items():
                yield from _leaves(key)
                yield from _leaves(each)
        case Sequence() | frozenset() | set():
            for each in value:
                yield from _leaves(each)
        case _:
            pass
