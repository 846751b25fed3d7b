"""Keys, and how they are kept out of everything that is shown or written.

A server may echo the key it was sent: whole, in part, or in another spelling. So texts from a
server are scrubbed before they leave this package, not where somebody remembers to.
"""

from __future__ import annotations

import base64
import string
from functools import lru_cache
from typing import NoReturn
from urllib.parse import quote, quote_plus

from tallystick.core.errors import UsageError

__all__ = ["REDACTED", "Secret", "scrubbed", "without_key"]

REDACTED = "[key]"
# So many characters in a row of a key are a part of it; fewer are a coincidence.
_PART_CHARS = 8
# Shorter keys are placeholders such as `x`: nothing is secret in them.
_WHOLE_CHARS_MIN = 4
# Replies are text that somebody paid for: only what can be nothing but the key is taken out.
# Local servers are given words as keys (`lm-studio`), and replies are about such words.
_REPLY_KEY_CHARS_MIN = 16
_ASCII_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


class Secret:
    """A key. Only `reveal` shows it; it is in no repr, and cannot be pickled."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        if not value:
            raise UsageError("the key is empty; set it, or leave it out for a server without keys")
        if not all("!" <= each <= "~" for each in value):
            raise UsageError(
                "the key holds spaces, line breaks or characters outside ASCII, which cannot be "
                "sent; set it to the key alone"
            )
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(...)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a key is not stored")


def scrubbed(text: str, secret: Secret | None) -> str:
    """A text without the key, and without any part of it of 8 characters or more.

    Spellings are known too: percent-encoded, base64 at any offset, hex, either case.
    """
    if secret is None:
        return text
    key = secret.reveal()
    if len(key) < _PART_CHARS:
        return text.replace(key, REDACTED) if len(key) >= _WHOLE_CHARS_MIN else text
    return _without_parts(text, _parts(secret))


def without_key(text: str, secret: Secret | None) -> str:
    """A reply without the whole key. A part of it may be a word, and stays."""
    if secret is None or len(secret.reveal()) < _REPLY_KEY_CHARS_MIN:
        return text
    for spelling in _spellings(secret):
        if spelling in text:
            text = text.replace(spelling, REDACTED)
    return text


def _without_parts(text: str, parts: frozenset[str]) -> str:
    lower = text.translate(_ASCII_LOWER)
    kept: list[str] = []
    done = 0
    at, last = 0, len(text) - _PART_CHARS
    while at <= last:
        if lower[at : at + _PART_CHARS] not in parts:
            at += 1
            continue
        end = at + _PART_CHARS
        while end < len(text) and lower[end + 1 - _PART_CHARS : end + 1] in parts:
            end += 1
        kept += (text[done:at], REDACTED)
        done = at = end
    return "".join((*kept, text[done:]))


@lru_cache(maxsize=64)
def _parts(secret: Secret) -> frozenset[str]:
    lowered = [each.translate(_ASCII_LOWER) for each in _spellings(secret)]
    return frozenset(
        each[at : at + _PART_CHARS] for each in lowered for at in range(len(each) - _PART_CHARS + 1)
    )


@lru_cache(maxsize=64)
def _spellings(secret: Secret) -> tuple[str, ...]:
    """The key as a server may write it, the longest spelling first."""
    key = secret.reveal()
    found = {key, quote(key, safe=""), quote_plus(key), key.replace("/", "\\/"), key.encode().hex()}
    for offset in range(3):
        # Inside a longer text, the characters at both ends also depend on what stands there.
        coded = base64.b64encode(b"\0" * offset + key.encode()).decode()
        inner = coded[(0, 2, 3)[offset] : len(coded) - 4]
        found |= {inner, inner.replace("+", "-").replace("/", "_")}
    return tuple(sorted((each for each in found if len(each) >= _PART_CHARS), key=len)[::-1])
