"""Asked: a query taken apart into its terms, the people and days it names, and the rest.

A question about a person is full of that person's name, and so is everything the person did not
say. To a small model the name outweighs the subject. So names of authors are taken out of the
question, and count on their own: for the notes that these authors wrote. Other words that many of
the notes have are taken out of what the model reads: it cannot know that they say nothing here.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tallystick.memory.bm25 import asked_terms
from tallystick.memory.terms import STOP, terms, words
from tallystick.memory.when import Period, named_periods

__all__ = ["QUERY_CHARS_MAX", "Asked", "ask"]

# What is beyond is not read; a note says so.
QUERY_CHARS_MAX = 8_000

_NAME_CHARS_MIN = 2
_SPAN = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """`text` is the query without names, `terms` what is looked for, `named` the authors in it."""

    text: str
    terms: tuple[str, ...]
    named: frozenset[str]
    periods: tuple[Period, ...]
    cut: bool

    def text_without(self, common: frozenset[str]) -> str:
        """The text without some terms, if anything is left then."""
        left = _without(self.text, lambda word: not common.isdisjoint(terms(word)))
        return left if terms(left) else self.text


def ask(query: str, *, authors: Iterable[str]) -> Asked:
    """Take a query apart. Where nothing but names would be left, they stay in."""
    # Half a character is none; models and hashes need text that can be written as UTF-8.
    text = query[:QUERY_CHARS_MAX].encode("utf-8", "replace").decode("utf-8")
    said = frozenset(words(text))
    names = {author: said & _name_words(author) for author in set(authors)}
    hidden = frozenset().union(*names.values())
    without = _without(text, lambda word: not hidden.isdisjoint(words(word))) if hidden else text
    looked_for = asked_terms(without)
    if hidden and not looked_for:
        without, looked_for = text, asked_terms(text)
    return Asked(
        text=without,
        terms=looked_for,
        named=frozenset(author for author, found in names.items() if found),
        periods=named_periods(text),
        cut=len(query) > QUERY_CHARS_MAX,
    )


def _name_words(author: str) -> frozenset[str]:
    """The words by which an author may be meant. Numbers and `the` are no names."""
    return frozenset(
        word
        for word in words(author)
        if len(word) >= _NAME_CHARS_MIN and word not in STOP and not word.isdigit()
    )


def _without(text: str, unwanted: Callable[[str], bool]) -> str:
    """The text without some of its words."""
    plain = unicodedata.normalize("NFKC", text)
    kept = _SPAN.sub(lambda span: "" if unwanted(span[0]) else span[0], plain)
    return " ".join(kept.split())
