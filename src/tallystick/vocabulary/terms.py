"""The terms of a run: host functions, tools, skills, and what a user's thesaurus adds.

Rule 1: names in programs are compared exactly, as Python does; terms and synonyms of a thesaurus
and the words in arguments are compared without regard to case.
Rule 2: a path is known if it, or what it begins with up to a dot, is: with `pandas` known,
`pandas.read_csv` is. The longest beginning counts.
Rule 3: what the thesaurus denies is denied whoever else knows it, and with it all that begins with
it and a dot.
Rule 4: a term that is known stays known when others are added.

Look-up is by hash, one for each part of a path; phrases are found in a text by one walk over its
words, whatever the number of terms.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from tallystick.vocabulary.closeness import Closeness
from tallystick.vocabulary.thesaurus import Entry, Thesaurus, folded, normal

__all__ = ["Kind", "Phrase", "Vocabulary", "words_of"]

Kind = Literal["function", "tool", "skill", "thesaurus"]

# Runs of letters, digits, `_` and `-`.
_WORD = re.compile(r"[\w-]+")
_PHRASE_WORDS_MAX = 8


@dataclass(frozen=True, slots=True)
class Phrase:
    """A term that was found in a text, and the words it was found by."""

    term: str
    words: tuple[str, ...]


class _Node:
    """A place in the tree of phrases: what ends here, and which words lead on."""

    __slots__ = ("next", "term")

    def __init__(self) -> None:
        self.term: str | None = None
        self.next: dict[str, _Node] = {}


class Vocabulary:
    """What programs may use. It does not change after it was made."""

    def __init__(
        self,
        *,
        functions: Iterable[str] = (),
        tools: Iterable[str] = (),
        skills: Iterable[str] = (),
        thesaurus: Thesaurus | None = None,
    ) -> None:
        """Gather the terms by kind. The text arguments of `tools` are looked at, no others'."""
        self.has_thesaurus = thesaurus is not None
        entries = () if thesaurus is None else thesaurus.entries
        self._kinds: dict[str, Kind] = {}
        named: tuple[tuple[Kind, Iterable[str]], ...] = (
            ("tool", tools), ("function", functions), ("skill", skills),
            ("thesaurus", (each.term for each in entries if not each.denied)),
        )  # fmt: skip
        for kind, names in named:
            for name in names:
                self._kinds.setdefault(normal(name), kind)
        self._loose = dict(_loose(entries))
        self._denied = {normal(each.term): each.instead for each in entries if each.denied}
        self._denied_words = {folded(term) for term in self._denied}
        self._denied_modules = {term.rpartition(".")[0] for term in self._denied} - {""}
        self._groups = self._grouped(entries)

    def __len__(self) -> int:
        return len(self._kinds)

    def find(self, path: str) -> str | None:
        """The term that a name of a program is, or begins with; None if it is not known."""
        while True:
            if path in self._kinds:
                return path
            if (term := self._loose.get(folded(path))) is not None:
                return term
            path, dot, _ = path.rpartition(".")
            if not dot:
                return None

    def find_word(self, word: str) -> str | None:
        """The term that a whole text is, without regard to case."""
        return word if word in self._kinds else self._words.get(folded(word))

    def denied(self, path: str) -> str | None:
        """The denied term that a name is, or begins with; `module.*` is all that it has."""
        if not self._denied:
            return None
        path, star = path.removesuffix(".*"), path.endswith(".*")
        if star and path in self._denied_modules:
            return f"{path}.*"
        while path not in self._denied:
            path, dot, _ = path.rpartition(".")
            if not dot:
                return None
        return path

    def is_denied_word(self, word: str) -> bool:
        return bool(self._denied) and folded(word) in self._denied_words

    def is_tool(self, term: str) -> bool:
        return self._kinds.get(term) == "tool"

    def is_known(self, term: str) -> bool:
        """Whether a term may be used under this very name."""
        return term in self._kinds and self.denied(term) is None

    def group(self, term: str) -> str | None:
        """The name of all that is related to a term, however far; None if nothing is."""
        return self._groups.get(term)

    def phrases(self, words: Sequence[str]) -> Iterator[Phrase]:
        """Every term that stands in the words of a text, also inside of another."""
        for start in range(len(words)):
            node = self._tree
            for end in range(start, len(words)):
                following = node.next.get(words[end])
                if following is None:
                    break
                node = following
                if node.term is not None:
                    yield Phrase(node.term, tuple(words[start : end + 1]))

    def near(self, term: str, *, count: int = 3) -> tuple[str, ...]:
        """Known terms that may have been meant: what a denied term names first, then by looks."""
        instead = [each for each in map(normal, self._denied.get(term, ())) if self.is_known(each)]
        looks = self._closeness.near(term, count=count)
        return tuple(dict.fromkeys((*instead, *looks)))[:count]

    @cached_property
    def _words(self) -> Mapping[str, str]:
        """Every term by its folded form; in a clash, the thesaurus, then the first by name."""
        return {**{folded(term): term for term in sorted(self._kinds, reverse=True)}, **self._loose}

    @cached_property
    def _tree(self) -> _Node:
        tree = _Node()
        for text, term in self._words.items():
            words = words_of(text)
            # A word of one or two letters stands in a text by chance.
            if not 0 < len(words) <= _PHRASE_WORDS_MAX or len(text) <= 2:
                continue
            node = tree
            for word in words:
                node = node.next.setdefault(word, _Node())
            node.term = term if node.term is None else min(node.term, term)
        return tree

    @cached_property
    def _closeness(self) -> Closeness:
        return Closeness(term for term in self._kinds if self.denied(term) is None)

    def _grouped(self, entries: Sequence[Entry]) -> Mapping[str, str]:
        """For each term that is related to another, the first by name of all it leads to."""
        edges: defaultdict[str, set[str]] = defaultdict(set)
        for entry in entries:
            for name in entry.related:
                other = self._exactly(name)
                if other is not None and other != entry.term:
                    edges[entry.term].add(other)
                    edges[other].add(entry.term)
        groups: dict[str, str] = {}
        for first in sorted(edges):
            waiting = [first]
            while waiting:
                term = waiting.pop()
                if term not in groups:
                    groups[term] = first
                    waiting.extend(edges[term])
        return groups

    def _exactly(self, name: str) -> str | None:
        return name if name in self._kinds else self._loose.get(folded(name))


def words_of(text: str) -> list[str]:
    """The words of a text as they are compared: runs of letters, digits, `_` and `-`."""
    return _WORD.findall(folded(text))


def _loose(entries: Sequence[Entry]) -> Iterator[tuple[str, str]]:
    """Terms and synonyms of a thesaurus as they are compared, each with its term."""
    for entry in entries:
        if not entry.denied:
            for name in (entry.term, *entry.synonyms):
                yield folded(name), entry.term
