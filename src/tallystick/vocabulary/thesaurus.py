"""A user's thesaurus: terms with synonyms and relations, one JSON object on each line.

    {"term": "invoice", "synonyms": ["bill"], "related": ["customer"]}
    {"term": "payroll", "denied": true, "instead": ["invoice"]}

Rule 1: the file is hostile until it is read. Its size, the number of its names and their length are
bounded, unknown keys are refused, and the first fault ends the reading with one line that says
where it is.
Rule 2: a name has one meaning. It is a term, or denied, or a synonym of one term; a second meaning
is refused, and the error names both. Case does not tell names apart.
Rule 3: `related` and `instead` may name what the file does not have (a host function, a skill), but
nothing that it denies.

Blank lines and lines that begin with `#` are passed over. One object for the whole file was
rejected: its faults have no line.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from tallystick.core.json_text import read_json, shown
from tallystick.vocabulary.errors import ThesaurusInvalid

__all__ = [
    "FILE_BYTES_MAX",
    "NAMES_MAX",
    "TERM_CHARS_MAX",
    "Entry",
    "Thesaurus",
    "folded",
    "normal",
    "read_thesaurus",
]

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
    """What a file says, free of contradictions if `read_thesaurus` made it."""

    entries: tuple[Entry, ...] = ()


class _Fault(ValueError):
    """Why a line cannot be used, before it is known which file it is of."""

    def __init__(self, why: str, line: int = 0) -> None:
        super().__init__(why)
        self.line = line


def normal(term: str) -> str:
    """A term as it is kept, in the form that Python gives to its names."""
    return term if term.isascii() else unicodedata.normalize("NFKC", term)


def folded(term: str) -> str:
    """A term as it is compared where case does not count."""
    return normal(normal(term).casefold())


def read_thesaurus(data: bytes, *, name: str) -> Thesaurus:
    """Read a file's bytes. Raises `ThesaurusInvalid`, whose line says where; `name` is the file's.

    Whoever reads the file need not read more than `FILE_BYTES_MAX` and one byte.
    """
    try:
        entries = tuple(_entries(_decoded(data)))
        _check_meanings(entries)
    except _Fault as fault:
        raise ThesaurusInvalid(name=name, line=fault.line, why=str(fault)) from None
    return Thesaurus(entries=entries)


def _decoded(data: bytes) -> str:
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
        raise ValueError(f"a line is an object with a term, not {shown(value)}")
    if unknown := sorted(value.keys() - _KEYS):
        raise ValueError(f"unknown key {shown(unknown[0])}; there are {', '.join(sorted(_KEYS))}")
    if "term" not in value:
        raise ValueError("it has no term")
    denied = value.get("denied", False)
    if not isinstance(denied, bool):
        raise ValueError(f"denied is true or false, not {shown(denied)}")
    term = _term(value["term"], "term")
    synonyms, related, instead = (_terms(value.get(key, []), key) for key in _LISTS)
    if denied and (synonyms or related):
        raise ValueError(f"{shown(term)} is denied, so it has no synonyms and nothing related")
    if instead and not denied:
        raise ValueError(f"{shown(term)} is not denied, so nothing is used instead of it")
    return Entry(
        term=term, synonyms=synonyms, related=related, denied=denied, instead=instead, line=number
    )


def _terms(value: object, key: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{key} is a list of terms, not {shown(value)}")
    return tuple(dict.fromkeys(_term(each, key) for each in value))


def _term(value: object, key: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{key}: {shown(value)} is no text")
    term = normal(value)
    if not term or len(term) > TERM_CHARS_MAX:
        raise ValueError(
            f"{key}: {shown(value)} has {len(term):,} characters, not 1 to {TERM_CHARS_MAX}"
        )
    if not term.isprintable() or term != " ".join(term.split()):
        raise ValueError(f"{key}: {shown(value)} has blanks or characters that no term has")
    return term


def _check_meanings(entries: tuple[Entry, ...]) -> None:
    meanings: dict[str, tuple[str, int]] = {}
    for entry in entries:
        own = "denied" if entry.denied else "a term"
        other = f"a synonym of {shown(entry.term)}"
        for name, meaning in ((entry.term, own), *((each, other) for each in entry.synonyms)):
            if (first := meanings.setdefault(folded(name), (meaning, entry.line))) != (
                meaning,
                entry.line,
            ):
                raise _Fault(
                    f"{shown(name)} is {meaning} here and {first[0]} on line {first[1]:,}",
                    entry.line,
                )
    denied = {folded(entry.term): entry.line for entry in entries if entry.denied}
    for entry in entries:
        for name in (*entry.related, *entry.instead):
            if (line := denied.get(folded(name))) is not None:
                raise _Fault(
                    f"{shown(entry.term)} leads to {shown(name)}, which is denied on line {line:,}",
                    entry.line,
                )
