"""A seeded generator of skill folders, good and bad, as strangers write them.

Every case says what was done to it (`traits`), so that a test can tell which faults it has.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

WORDS = (
    "invoice", "report", "table", "parse", "merge", "chart", "review", "deploy", "résumé", "数据",
    "отчёт", "sheet", "query", "font", "audio", "draft", "mail", "audit", "photo", "plan",
)  # fmt: skip


@dataclass(slots=True)
class Draft:
    """A skill on its way to a file: fields in order, each with its YAML as it will stand there."""

    directory: str
    fields: list[tuple[str, str]]
    body: str
    opening: str = "---\n"
    closing: str = "---\n"
    prefix: bytes = b""
    line_end: str = "\n"
    suffix: bytes = b""
    file: str = "SKILL.md"
    traits: set[str] = field(default_factory=set)

    def set(self, key: str, yaml: str) -> None:
        self.remove(key)
        self.fields.append((key, yaml))

    def remove(self, key: str) -> None:
        self.fields = [each for each in self.fields if each[0] != key]

    def raw(self) -> bytes:
        lines = "".join(f"{key}:{value}\n" for key, value in self.fields)
        text = f"{self.opening}{lines}{self.closing}{self.body}"
        return self.prefix + text.replace("\n", self.line_end).encode("utf-8") + self.suffix


@dataclass(frozen=True, slots=True)
class Case:
    """A finished folder."""

    directory: str
    raw: bytes
    traits: frozenset[str]
    file: str = "SKILL.md"

    def written(self, parent: Path) -> Path:
        folder = parent / self.directory
        folder.mkdir(parents=True)
        (folder / self.file).write_bytes(self.raw)
        return folder


Change = Callable[[Draft, random.Random], None]


def corpus(seed: int, count: int) -> Iterator[Case]:
    """Yield `count` folders, the same for the same seed; about a third of them without a fault."""
    chance = random.Random(seed)
    for number in range(count):
        draft = good(chance, number)
        for name, change in chance.sample(sorted(CHANGES.items()), k=chance.choice((0, 1, 1, 2))):
            change(draft, chance)
            draft.traits.add(name)
        yield Case(draft.directory, draft.raw(), frozenset(draft.traits), draft.file)


def changed(name: str, seed: int = 0) -> Case:
    """A good skill with one change."""
    chance = random.Random(seed)
    draft = good(chance, seed)
    CHANGES[name](draft, chance)
    return Case(draft.directory, draft.raw(), frozenset({name}), draft.file)


def good(chance: random.Random, number: int) -> Draft:
    name = "-".join([*chance.sample(WORDS, k=chance.randint(1, 3)), str(number)])
    sentence = " ".join(chance.choices(WORDS, k=chance.randint(3, 30)))
    style = chance.choice((" {}", " '{}'", ' "{}"', " |\n  {}", " >-\n  {}\n  and more"))
    draft = Draft(
        directory=name,
        fields=[("name", f" {name}"), ("description", style.format(f"Does {sentence}."))],
        body="# How\n\n" + "Do it so.\n" * chance.randint(0, 20),
    )
    for key, value in (
        ("license", " Apache-2.0"),
        ("compatibility", " Needs git and a network"),
        ("metadata", '\n  author: somebody\n  version: "1.0"'),
        ("allowed-tools", " Read Bash(git:*) namespace:files"),
    ):
        if chance.random() < 0.3:
            draft.fields.append((key, value))
    chance.shuffle(draft.fields)
    return draft


def _set(key: str, *values: str) -> Change:
    return lambda draft, chance: draft.set(key, chance.choice(values))


def _named(*names: str) -> Change:
    """A name that the folder has as well, so that only the name itself can be wrong."""

    def change(draft: Draft, chance: random.Random) -> None:
        draft.directory = chance.choice(names)
        draft.set("name", f' "{draft.directory}"')

    return change


def _put(attribute: str, *values: object) -> Change:
    return lambda draft, chance: setattr(draft, attribute, chance.choice(values))


def _repeated(draft: Draft, chance: random.Random) -> None:
    if draft.fields:
        draft.fields.append(chance.choice(draft.fields))


def _without(key: str) -> Change:
    return lambda draft, chance: draft.remove(key)


CHANGES: dict[str, Change] = {
    # Of the name.
    "name missing": _without("name"),
    "name empty": _set("name", "", ' ""', " '  '"),
    "name null": _set("name", " null", " ~"),
    "name list": _set("name", "\n  - a\n  - b"),
    "name mapping": _set("name", "\n  a: b"),
    "name of another folder": _set("name", " another-name"),
    "name in capitals": _named("Invoice", "INVOICE", "über-Mensch"),
    "name with edge hyphen": _named("-invoice", "invoice-", "-"),
    "name with double hyphen": _named("in--voice"),
    "name with strange characters": _named(
        "in_voice", "in voice", "in.voice", "inv\N{EM DASH}oice", "invo+ice", "a@b", "x`y"
    ),
    "name too long": _named("x" * 65, "y" * 128),
    "name at the limit": _named("x" * 64, "\N{LATIN SMALL LETTER E WITH ACUTE}" * 64),
    "name of digits": _named("123", "2024-01-01", "1e5"),
    "name of letters of the world": _named("анализ", "データ", "café", "ﬁle"),
    "name bare number": _set("name", " 123"),
    # Of the description.
    "description missing": _without("description"),
    "description empty": _set("description", "", ' ""', ' "   "', " |\n\n"),
    "description null": _set("description", " null", " ~"),
    "description list": _set("description", "\n  - Does it."),
    "description too long": _set("description", f" {'long ' * 205}x", f" |\n  {'y' * 1024}"),
    "description at the limit": _set("description", f" {'x' * 1024}", f" {'é' * 1024}"),
    "description with a colon": _set("description", " Use when: always", " Note: this: that"),
    "description with a hash": _set("description", " Does it # a comment"),
    "description with dashes": _set("description", " Does --- something", " '---'"),
    "description starting strangely": _set("description", " @file", " `code`", " %x", " *bold* x"),
    "description in broken quotes": _set("description", " 'It's so'", ' "a" and b'),
    "description over lines": _set("description", " Does it\n  and more of it\n  at length."),
    "description like a date": _set("description", " 2024-01-01", " 12", " yes", " 0x1F"),
    "description with escapes": _set("description", ' "a\\tb \\u00e9 \\x41"'),
    # Of other fields.
    "compatibility too long": _set("compatibility", f" {'c' * 501}"),
    "compatibility at the limit": _set("compatibility", f" {'c' * 500}"),
    "compatibility list": _set("compatibility", "\n  - git"),
    "compatibility empty": _set("compatibility", "", ' ""'),
    "metadata text": _set("metadata", " none"),
    "metadata nested": _set("metadata", "\n  a:\n    b: c\n  d:\n    - e"),
    "license mapping": _set("license", "\n  name: MIT"),
    "tools list": _set("allowed-tools", "\n  - Read\n  - Write"),
    "tools with colons": _set("allowed-tools", " files:read", " namespace:", " a:b:c"),
    "unknown key": _set("version", " 1.0", "\n  - x"),
    "known key": _set("when_to_use", " Whenever."),
    "known flag": _set("disable-model-invocation", " true", " yes", " maybe"),
    "underscore key": _set("allowed_tools", " Read"),
    "key with capitals": _set("Name", " x"),
    "key of a number": _set("12", " x"),
    "key of nothing": _set('""', " x"),
    "merge key": _set("<<", " x"),
    # Of YAML.
    "flow list": _set("allowed-tools", " [Read, Write]", " []"),
    "flow mapping": _set("metadata", " {a: b}", " {}"),
    "anchor": _set("license", " &a MIT"),
    "alias": _set("license", " *a"),
    "tag": _set("license", " !!str MIT", " !mine x"),
    "python tag": _set("license", " !!python/object/apply:os.getcwd []"),
    "duplicate key": _repeated,
    "nested duplicate": _set("metadata", "\n  a: b\n  a: c"),
    "bad indent": _set("metadata", "\n  a: b\n c: d"),
    "tab indent": _set("metadata", "\n\ta: b"),
    "unclosed quote": _set("license", ' "MIT', " 'MIT"),
    "unclosed bracket": _set("license", " [MIT", " {a: b"),
    "control character": _set("license", " MI\aT", " M\x7fIT"),
    "comment lines": _set("license", " MIT\n# a comment"),
    "block with keep": _set("license", " |+\n  MIT\n\n"),
    "only text": _put("fields", [("", "just some words".replace(":", ""))]),
    "empty frontmatter": _put("fields", []),
    # Of the file.
    "no frontmatter": _put("opening", "", "# Title\n"),
    "unclosed frontmatter": _put("closing", ""),
    "blank line first": _put("opening", "\n---\n", "  \n---\n"),
    "spaces behind dashes": _put("opening", "---  \n", "---\t\n"),
    "comment behind dashes": _put("opening", "--- # skill\n"),
    "four dashes": _put("opening", "----\n"),
    "long closing": _put("closing", "-----\n"),
    "indented closing": _put("closing", "  ---\n"),
    "byte-order mark": _put("prefix", b"\xef\xbb\xbf"),
    "UTF-16": _put("prefix", b"\xff\xfe"),
    "not UTF-8": _put("suffix", b"caf\xe9 \xff"),
    "NUL": _put("suffix", b"a\0b"),
    "CRLF": _put("line_end", "\r\n"),
    "CR": _put("line_end", "\r"),
    "empty body": _put("body", ""),
    "dashes in the body": _put("body", "Above\n\n---\n\nBelow --- there\n"),
    "lower case file": _put("file", "skill.md"),
}
