"""Why a condition may have matched nothing: the words a program compares with, and the data's own.

For each word that a program compares with: is it in the data, and is it a whole value there? One
that looks for `2018-07` finds nothing where dates are days, nor for `Open` where it says `open`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence

__all__ = ["line_with", "mismatches", "texts_of"]

_FACTS_MAX = 4
_CHARS_LEAST = 2
_CHARS_MAX = 60
_LINE_CHARS_MAX = 200
_PROGRAM_CHARS_MAX = 20_000
_VALUE = re.compile(r"[^\s,;|\"'=(){}\[\]<>]*")


def texts_of(values: Mapping[str, object]) -> list[str]:
    """The texts that a run was given whole."""
    held = [
        each
        for value in values.values()
        for each in (value.values() if isinstance(value, Mapping) else [value])
    ]
    return [each for each in held if isinstance(each, str)]


def mismatches(source: str, texts: Sequence[str], *, known: Sequence[str] = ()) -> list[str]:
    """A line for each word of a program that the data does not have as it stands there."""
    facts: list[str] = []
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
    if len(source) > _PROGRAM_CHARS_MAX:
        return []
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    found[part.value.strip()] = None
    return [word for word in found if _CHARS_LEAST <= len(word) <= _CHARS_MAX]


def _fact(word: str, texts: Sequence[str]) -> str | None:
    inside = None
    for text in texts:
        at = text.find(word)
        if at >= 0:
            value = _value_at(text, at, len(word))
            if value == word:
                return None
            inside = inside or value
    if inside is not None:
        return f"{word!r} stands in the data as a part of {inside!r}."
    other = _in_other_case(word, texts)
    if other is not None:
        return f"{word!r} is written {other!r} in the data."
    return f"{word!r} does not stand in the data."


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
