"""Why a condition may have matched nothing: the words a program compares with, and the data's own.

For each word that a program compares with: is it in the data, and is it a whole value there? One
that looks for `2018-07` finds nothing where dates are days, nor for `Open` where it says `open`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from tallystick.core.program import tree_of

__all__ = ["line_with", "mismatches"]

_FACTS_MAX = 4
_CHARS_LEAST = 2
_CHARS_MAX = 60
_LINE_CHARS_MAX = 200
_SEPARATORS = r"\s,;|\"'=(){}\[\]<>"
_VALUE = re.compile(rf"[^{_SEPARATORS}]*")


def mismatches(source: str, texts: Sequence[str], *, known: Sequence[str] = ()) -> list[str]:
    """A line for each word of a program that the data does not have as it stands there."""
    facts: list[str] = []
    if not texts:
        return facts
    for word in _words(source):
        if word not in known and len(facts) < _FACTS_MAX:
            fact = _fact(word, texts)
            if fact is not None:
                facts.append(fact)
    return facts


def line_with(word: str, texts: Sequence[str]) -> str | None:
    """A line of the data in which a word stands."""
    for text in texts:
        at = text.find(word)
        if at >= 0:
            start = max(text.rfind("\n", 0, at) + 1, at - _LINE_CHARS_MAX // 2)
            end = text.find("\n", at)
            end = len(text) if end < 0 else end
            return text[start : min(end, start + _LINE_CHARS_MAX)]
    return None


def _words(source: str) -> list[str]:
    """The texts a program compares something with."""
    tree = tree_of(source)
    if tree is None:
        return []
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    found[part.value.strip()] = None
    return [word for word in found if _CHARS_LEAST <= len(word) <= _CHARS_MAX]


def _fact(word: str, texts: Sequence[str]) -> str | None:
    if _whole(re.escape(word), texts) is not None:
        return None
    parts = (_around(text, text.find(word), word) for text in texts)
    inside = next((part for part in parts if part), None)
    if inside is not None:
        return f"{word!r} stands in the data as a part of {inside!r}."
    other = _whole(f"(?i:{re.escape(word)})", texts) or _in_other_case(word, texts)
    if other is not None:
        return f"{word!r} is written {other!r} in the data."
    if any(_escaped(word) in text for text in texts):
        return None
    return f"{word!r} does not stand in the data."


def _whole(pattern: str, texts: Sequence[str]) -> str | None:
    """A place where a pattern is a whole value, between separators."""
    compiled = re.compile(rf"(?<![^{_SEPARATORS}]){pattern}(?![^{_SEPARATORS}])")
    return next((found[0] for text in texts if (found := compiled.search(text))), None)


def _around(text: str, at: int, word: str) -> str | None:
    return _value_at(text, at, len(word)) if at >= 0 else None


def _escaped(word: str) -> str:
    """A word as JSON may have it."""
    units = word.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    return "".join(chr(code) if code < 128 else f"\\u{code:04x}" for code in codes)


def _value_at(text: str, at: int, length: int) -> str:
    """The word around a place, as far as no separator comes."""
    line_start = text.rfind("\n", 0, at) + 1
    before = text[max(line_start, at - _CHARS_MAX) : at]
    reach = _VALUE.match(text, at + length)
    end = min(reach.end() if reach else at + length, at + length + _CHARS_MAX)
    backwards = _VALUE.match(before[::-1])
    return text[at - (backwards.end() if backwards else 0) : end]


def _in_other_case(word: str, texts: Sequence[str]) -> str | None:
    pattern = re.compile(re.escape(word), re.IGNORECASE)
    for text in texts:
        found = pattern.search(text)
        if found is not None:
            return _value_at(text, found.start(), len(word))
    return None
