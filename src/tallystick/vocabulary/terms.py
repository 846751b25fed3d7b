"""Hold the terms that programs may use: functions, tools, skills, and a user's thesaurus."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from tallystick.core.errors import Facts, UsageError
from tallystick.core.json_text import read_json, short_json

# Errors of vocabularies, sorted as in `tallystick.core.errors`.
#
# UsageError
# └── ThesaurusInvalid          a thesaurus file that cannot be read, or contradicts itself


class ThesaurusInvalid(Facts, UsageError):
    """A thesaurus that cannot be used. `line` is that of the fault, 0 for the file as a whole."""

    code = "usage.thesaurus"

    name: str
    line: int
    why: str

    def text(self) -> str:
        place = f", line {self.line:,}" if self.line else ""
        return f"thesaurus {self.name[:200]!r}{place}: {self.why}"


# A user's thesaurus: terms with synonyms and relations, one JSON object on each line.
#
#     {"term": "invoice", "synonyms": ["bill"], "related": ["customer"]}
#     {"term": "payroll", "denied": true, "instead": ["invoice"]}
#
# Rule 1: the file is hostile until it is read. Its size, the number of its names and their length
# are bounded, unknown keys are refused, and the first fault ends the reading with one line that
# says where it is.
# Rule 2: a name has one meaning. It is a term, or denied, or a synonym of one term; a second
# meaning is refused, and the error names both. Case does not tell names apart.
# Rule 3: `related` and `instead` may name what the file does not have (a host function, a skill),
# but nothing that it denies.
#
# Blank lines and lines that begin with `#` are passed over. One object for the whole file was
# rejected: its faults have no line.


FILE_BYTES_MAX = 16 << 20
NAMES_MAX = 200_000
TERM_CHARS_MAX = 200
_LINE_CHARS_MAX = 100_000
_LISTS = ("synonyms", "related", "instead")
_KEYS = frozenset({"term", "denied", *_LISTS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line. A denied term has no synonyms and no relations, only what to use `instead`."""

    term: str
    synonyms: tuple[str, ...] = ()
    related: tuple[str, ...] = ()
    denied: bool = False
    instead: tuple[str, ...] = ()
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Thesaurus:
    """The entries of a file, free of contradictions if `read_thesaurus` made it."""

    entries: tuple[Entry, ...] = ()


class _Fault(ValueError):
    """A fault of a line, before it is known which file has it."""

    def __init__(self, why: str, line: int = 0) -> None:
        super().__init__(why)
        self.line = line


def normalize(term: str) -> str:
    """Return a term as it is kept, in the form that Python gives to its names."""
    return term if term.isascii() else unicodedata.normalize("NFKC", term)


def fold(term: str) -> str:
    """Return a term as it is compared without regard to case."""
    return normalize(normalize(term).casefold())


def read_thesaurus(data: bytes, *, name: str) -> Thesaurus:
    """Read the bytes of a thesaurus file, whose name is `name`.

    Raise `ThesaurusInvalid`, with the line, at the first fault. The caller need not read more than
    `FILE_BYTES_MAX` and one byte.
    """
    try:
        entries = tuple(_entries(_decode(data)))
        _check_meanings(entries)
    except _Fault as fault:
        raise ThesaurusInvalid(name=name, line=fault.line, why=str(fault)) from None
    return Thesaurus(entries=entries)


def _decode(data: bytes) -> str:
    if len(data) > FILE_BYTES_MAX:
        raise _Fault(f"it has more than {FILE_BYTES_MAX:,} bytes")
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _Fault(f"byte {data[error.start]:#04x} is not UTF-8", line) from None


def _entries(text: str) -> Iterator[Entry]:
    names = 0
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip(" \t\r")
        if not line or line.startswith("#"):
            continue
        try:
            entry = _entry(line, number)
        except ValueError as error:
            raise _Fault(str(error), number) from None
        names += 1 + len(entry.synonyms) + len(entry.related) + len(entry.instead)
        if names > NAMES_MAX:
            raise _Fault(f"more than {NAMES_MAX:,} names", number)
        yield entry


def _entry(line: str, number: int) -> Entry:
    value = read_json(line, chars_max=_LINE_CHARS_MAX)
    if not isinstance(value, dict):
        raise ValueError(f"a line is an object with a term, not {short_json(value)}")
    if unknown := sorted(value.keys() - _KEYS):
        raise ValueError(
            f"unknown key {short_json(unknown[0])}; there are {', '.join(sorted(_KEYS))}"
        )
    if "term" not in value:
        raise ValueError("it has no term")
    denied = value.get("denied", False)
    if not isinstance(denied, bool):
        raise ValueError(f"denied is true or false, not {short_json(denied)}")
    term = _term(value["term"], "term")
    synonyms, related, instead = (_terms(value.get(key, []), key) for key in _LISTS)
    if denied and (synonyms or related):
        raise ValueError(f"{short_json(term)} is denied, so it has no synonyms and nothing related")
    if instead and not denied:
        raise ValueError(f"{short_json(term)} is not denied, so nothing is used instead of it")
    return Entry(
        term=term, synonyms=synonyms, related=related, denied=denied, instead=instead, line=number
    )


def _terms(value: object, key: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{key} is a list of terms, not {short_json(value)}")
    return tuple(dict.fromkeys(_term(each, key) for each in value))


def _term(value: object, key: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{key}: {short_json(value)} is no text")
    term = normalize(value)
    if not term or len(term) > TERM_CHARS_MAX:
        raise ValueError(
            f"{key}: {short_json(value)} has {len(term):,} characters, not 1 to {TERM_CHARS_MAX}"
        )
    if not term.isprintable() or term != " ".join(term.split()):
        raise ValueError(f"{key}: {short_json(value)} has blanks or characters that no term has")
    return term


def _check_meanings(entries: tuple[Entry, ...]) -> None:
    """Raise `_Fault` if a name has two meanings, or leads to one that is denied."""
    meanings: dict[str, tuple[str, int]] = {}
    for entry in entries:
        own = "denied" if entry.denied else "a term"
        other = f"a synonym of {short_json(entry.term)}"
        for name, meaning in ((entry.term, own), *((each, other) for each in entry.synonyms)):
            if (first := meanings.setdefault(fold(name), (meaning, entry.line))) != (
                meaning,
                entry.line,
            ):
                raise _Fault(
                    f"{short_json(name)} is {meaning} here and {first[0]} on line {first[1]:,}",
                    entry.line,
                )
    denied = {fold(entry.term): entry.line for entry in entries if entry.denied}
    for entry in entries:
        for name in (*entry.related, *entry.instead):
            if (line := denied.get(fold(name))) is not None:
                raise _Fault(
                    f"{short_json(entry.term)} leads to {short_json(name)}, which is denied on "
                    f"line {line:,}",
                    entry.line,
                )


# Closeness: the known terms that a model may have meant by an unknown one.
#
# Terms are compared by the pairs of neighbouring characters that they share. Only some dozens of
# ten thousand terms are compared: those that have the rarest runs of three characters of the
# unknown term. A slip spoils at most four of these runs, and more than that are always looked up.
# Of the terms compared, those that are few slips away come first (a slip is a character too many,
# missing, wrong, or swapped with its neighbour), then those that share at least half of their
# pairs. A term whose last part is the whole unknown term comes before both: `load` means
# `skills.load`. Ties are in the order of the terms.


# Only the beginning of a longer term is compared.
_CHARS_MAX = 64
# The least share of pairs in common, unless the terms are few slips apart.
_ALIKE_MIN = 0.5
# The least number of runs that are looked up, and the number of terms after which no more are.
_RUNS_MIN, _NAMED_MAX = 6, 1_000
_LOOKED_AT_MAX, _COMPARED_MAX = 32, 6


class Closeness:
    """An index of terms by the runs of characters in them."""

    def __init__(self, terms: Iterable[str]) -> None:
        self._terms = sorted(set(terms))
        self._folded = [fold(term)[:_CHARS_MAX] for term in self._terms]
        self._places: defaultdict[str, list[int]] = defaultdict(list)
        self._tails: defaultdict[str, list[int]] = defaultdict(list)
        # The pairs of each term as bits of a number: the pairs that two share are counted in one
        # step.
        self._bits: dict[str, int] = {}
        self._masks: list[int] = []
        for place, text in enumerate(self._folded):
            mask = 0
            for run in _runs(text, 3):
                self._places[run].append(place)
            for pair in _runs(text, 2):
                mask |= self._bits.setdefault(pair, 1 << len(self._bits))
            self._masks.append(mask)
            if "." in text:
                self._tails[text.rpartition(".")[2]].append(place)

    def near(self, term: str, *, count: int = 3) -> tuple[str, ...]:
        """Return at most `count` terms that look like this one, the closest first, or none.

        Case does not count, and only the first 64 characters are compared. A term looks alike if
        this is its last part, or it is one to three slips away. So does one that shares at least
        half of its pairs of letters.
        """
        text = fold(term[:_CHARS_MAX])[:_CHARS_MAX]
        ranked = [((-1, 0.0), place) for place in self._tails.get(text, ())]
        taken = {place for _, place in ranked}
        most = 1 if len(text) <= 4 else 2 if len(text) <= 8 else 3
        for unlike, place in self._candidates(text):
            if place in taken:
                continue
            away = count_slips(text, self._folded[place], most=most)
            if away <= most or unlike <= 1 - _ALIKE_MIN:
                ranked.append(((away, unlike), place))
        ranked.sort()
        return tuple(self._terms[place] for _, place in ranked[:count])

    def _candidates(self, text: str) -> list[tuple[float, int]]:
        """Return the places of at most six terms, each after the share of pairs that differ.

        They are the most alike of those that share the rarest runs with the text.
        """
        pairs = _runs(text, 2)
        asked_for = (self._places.get(run) for run in _runs(text, 3))
        found = [places for places in asked_for if places is not None]
        # By length and then by content: `_runs` returns a set, whose order differs between
        # processes, and the suggestions must not.
        found.sort(key=lambda places: (len(places), places))
        named: Counter[int] = Counter()
        total = 0
        for asked, places in enumerate(found, start=1):
            total += len(places)
            if asked > _RUNS_MIN and total > _NAMED_MAX:
                break
            named.update(places)
        least = min(sorted(named.values())[-_LOOKED_AT_MAX:], default=0)
        mask = sum(self._bits.get(pair, 0) for pair in pairs)
        compared = [
            (self._unlike(mask, len(pairs), place), place)
            for place, shared in named.items()
            if shared >= least
        ]
        compared.sort()
        return compared[:_COMPARED_MAX]

    def _unlike(self, mask: int, size: int, place: int) -> float:
        other = self._masks[place]
        return 1 - 2 * (mask & other).bit_count() / (size + other.bit_count())


def count_slips(one: str, other: str, *, most: int) -> int:
    """Return how many slips lead from one text to the other, `most` + 1 if more than `most`."""
    one, other = _without_common_ends(one, other)
    if abs(len(one) - len(other)) > most:
        return most + 1
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, a in enumerate(one, start=1):
        row = [i] + [most + 1] * len(other)
        # A cell further than `most` from the diagonal costs more than `most` slips.
        for j in range(max(1, i - most), min(len(other), i + most) + 1):
            b = other[j - 1]
            cost = last[j - 1] if a == b else 1 + min(last[j - 1], last[j], row[j - 1])
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                cost = min(cost, before[j - 2] + 1)
            row[j] = cost
        # A swap reaches back two rows, so the search may stop only when both rows are too far.
        if min(row) > most and i > 1 and min(last) > most:
            return most + 1
        before, last = last, row
    return min(last[len(other)], most + 1)


def _without_common_ends(one: str, other: str) -> tuple[str, str]:
    """Return two texts without their common beginning and end, which cost no slips."""
    shorter = min(len(one), len(other))
    start = 0
    while start < shorter and one[start] == other[start]:
        start += 1
    end = 0
    while end < shorter - start and one[-1 - end] == other[-1 - end]:
        end += 1
    return one[start : len(one) - end], other[start : len(other) - end]


def _runs(text: str, length: int) -> set[str]:
    """Return the runs of `length` characters in a text, padded so that its ends are in as many."""
    edge = "\0" * (length - 1)
    padded = f"{edge}{text}{edge}"
    return {padded[place : place + length] for place in range(len(padded) - length + 1)}


# The terms of a run: host functions, tools, skills, and what a user's thesaurus adds.
#
# Rule 1: names in programs are compared exactly, as Python does; terms and synonyms of a thesaurus
# and the words in arguments are compared without regard to case.
# Rule 2: a path is known if it, or what it begins with up to a dot, is: with `pandas` known,
# `pandas.read_csv` is. The longest beginning counts.
# Rule 3: a term that the thesaurus denies is denied even if it is also a function, a tool or a
# skill, and so is every path that begins with it and a dot.
# Rule 4: a term that is known stays known when others are added.
#
# Look-up is by hash, one for each part of a path; phrases are found in a text by one walk over its
# words, whatever the number of terms.


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
    """A node in the tree of phrases: the term that ends here, and the words that lead on."""

    __slots__ = ("next", "term")

    def __init__(self) -> None:
        self.term: str | None = None
        self.next: dict[str, _Node] = {}


class Vocabulary:
    """The terms that programs may use. It does not change after it was made."""

    def __init__(
        self,
        *,
        functions: Iterable[str] = (),
        tools: Iterable[str] = (),
        skills: Iterable[str] = (),
        thesaurus: Thesaurus | None = None,
    ) -> None:
        """Gather the terms by kind. The text arguments of `tools` are looked at, no others'.

        A name of several kinds is a tool, or else a function, or else a skill.
        """
        self.has_thesaurus = thesaurus is not None
        entries = () if thesaurus is None else thesaurus.entries
        self._kinds: dict[str, Kind] = {}
        named: tuple[tuple[Kind, Iterable[str]], ...] = (
            ("tool", tools), ("function", functions), ("skill", skills),
            ("thesaurus", (each.term for each in entries if not each.denied)),
        )  # fmt: skip
        for kind, names in named:
            for name in names:
                self._kinds.setdefault(normalize(name), kind)
        self._loose = dict(_loose(entries))
        self._denied = {normalize(each.term): each.instead for each in entries if each.denied}
        self._denied_words = {fold(term) for term in self._denied}
        self._denied_modules = {term.rpartition(".")[0] for term in self._denied} - {""}
        # What a denied term begins with, up to each of its dots.
        self._denied_heads = {
            ".".join(parts[:count])
            for parts in (term.split(".") for term in self._denied)
            for count in range(1, len(parts))
        }
        self._groups = self._group_names(entries)

    def __len__(self) -> int:
        return len(self._kinds)

    def find(self, path: str) -> str | None:
        """Return the term that a name of a program is, or begins with up to a dot.

        A synonym gives its term. Terms and synonyms of the thesaurus are found in any case,
        functions, tools and skills only as they are written. Return None if the name is not known.
        """
        while True:
            if path in self._kinds:
                return path
            if (term := self._loose.get(fold(path))) is not None:
                return term
            path, dot, _ = path.rpartition(".")
            if not dot:
                return None

    def find_word(self, word: str) -> str | None:
        """Return the term that a whole text names, in any case; None if there is none.

        A synonym gives its term, which may be quite another text.
        """
        return word if word in self._kinds else self._words.get(fold(word))

    def find_denied(self, path: str) -> str | None:
        """Return the denied term that a name is, or begins with up to a dot; None if there is none.

        Case counts.

        `module.*` uses everything in the module: it is returned itself if a term of that module is
        denied.
        """
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

    def denies_below(self, path: str) -> bool:
        """Return True if a denied term begins with this path and a dot."""
        return path in self._denied_heads

    @property
    def denies_words(self) -> bool:
        """True if any term is denied."""
        return bool(self._denied)

    def is_denied_word(self, word: str) -> bool:
        """Return True if a word is a denied term, without regard to case."""
        return bool(self._denied) and fold(word) in self._denied_words

    def is_tool(self, term: str) -> bool:
        """Return True if a term is that of a tool."""
        return self._kinds.get(term) == "tool"

    def is_known(self, term: str) -> bool:
        """Return True if a term may be used under exactly this name."""
        return term in self._kinds and self.find_denied(term) is None

    def group(self, term: str) -> str | None:
        """Return the name of a term's group; None if the term is related to no known one.

        A group is all terms that relations lead to, through any number of other terms. Its name is
        the first of them by name.
        """
        return self._groups.get(term)

    def phrases(self, words: Sequence[str]) -> Iterator[Phrase]:
        """Yield every term in the words of a text, also one inside of another.

        `words` are those of `words_of`. Synonyms give their terms. Terms of at most two characters,
        or of more than eight words, are never found.
        """
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
        """Return at most `count` known terms that may have been meant.

        The known ones among the replacements that a denied term names come first, then terms that
        look alike.
        """
        instead = [
            each for each in map(normalize, self._denied.get(term, ())) if self.is_known(each)
        ]
        looks = self._closeness.near(term, count=count)
        return tuple(dict.fromkeys((*instead, *looks)))[:count]

    @cached_property
    def _words(self) -> Mapping[str, str]:
        """Every term by its folded form; in a clash, the thesaurus, then the first by name."""
        return {**{fold(term): term for term in sorted(self._kinds, reverse=True)}, **self._loose}

    @cached_property
    def _tree(self) -> _Node:
        tree = _Node()
        for text, term in self._words.items():
            words = words_of(text)
            # A word of one or two letters is in a text by chance.
            if not 0 < len(words) <= _PHRASE_WORDS_MAX or len(text) <= 2:
                continue
            node = tree
            for word in words:
                node = node.next.setdefault(word, _Node())
            node.term = term if node.term is None else min(node.term, term)
        return tree

    @cached_property
    def _closeness(self) -> Closeness:
        return Closeness(term for term in self._kinds if self.find_denied(term) is None)

    def _group_names(self, entries: Sequence[Entry]) -> Mapping[str, str]:
        """Return the group of each term that is related to another.

        A group is named by the first of its terms.
        """
        edges: defaultdict[str, set[str]] = defaultdict(set)
        for entry in entries:
            for name in entry.related:
                other = self._known_term(name)
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

    def _known_term(self, name: str) -> str | None:
        return name if name in self._kinds else self._loose.get(fold(name))


def words_of(text: str) -> list[str]:
    """Return the words of a text as they are compared: runs of letters, digits, `_` and `-`."""
    return _WORD.findall(fold(text))


def _loose(entries: Sequence[Entry]) -> Iterator[tuple[str, str]]:
    """Yield terms and synonyms of a thesaurus as they are compared, each with its term."""
    for entry in entries:
        if not entry.denied:
            for name in (entry.term, *entry.synonyms):
                yield fold(name), entry.term
