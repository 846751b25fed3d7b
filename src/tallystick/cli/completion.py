"""Complete a command line of `tally`: the words that may come next, with what each means.

Importing a command's module takes longer than a person waits for a key. So the commands and options
come from a table, `completion.json`, which `make reference` writes from the code. Values such as
the ids of runs come from a function of the caller, by their kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from typing import NamedTuple

import msgspec

# Kinds of values. `file` is left to the shell, and a list of choices is a kind of its own.
Kind = str | list[str] | None


class Option(msgspec.Struct, frozen=True, omit_defaults=True):
    """An option: what it does, and the kind of its value. A flag has no value."""

    help: str
    is_flag: bool = False
    kind: Kind = None


class Node(msgspec.Struct, frozen=True, omit_defaults=True):
    """A command: its options by name, the kinds of its arguments, and the commands below it.

    The last argument may be given several times if it `repeats`.
    """

    help: str = ""
    options: Mapping[str, Option] = {}
    arguments: Sequence[Kind] = ()
    repeats: bool = False
    commands: Mapping[str, Node] = {}


class Candidate(NamedTuple):
    """A word that may stand there, and what it means."""

    word: str
    about: str = ""


# Returns the values of a kind, given the arguments before it.
FindValues = Callable[[str, Sequence[str]], Sequence[Candidate]]

TABLE = "completion.json"


def read_table() -> Node:
    """Return the commands and options of this version."""
    text = resources.files("tallystick.cli").joinpath(TABLE).read_bytes()
    return msgspec.json.decode(text, type=Node)


def complete(words: Sequence[str], table: Node, find_values: FindValues) -> list[Candidate]:
    """Return what may stand in the place of the last word, which may be empty.

    `words` are those after `tally`, up to the cursor. An empty list means that nothing is known,
    or that a file is to be named.
    """
    *before, current = words or [""]
    node, given, pending, only_arguments = _follow(before, table)
    if pending is not None:
        return _fitting(_values(pending.kind, given, find_values), current)
    if current.startswith("-") and not only_arguments:
        name, equals, value = current.partition("=")
        if not equals:
            return _fitting(_options(node), current)
        option = node.options.get(name)
        if option is None or option.is_flag:
            return []
        found = _fitting(_values(option.kind, given, find_values), value)
        return [each._replace(word=f"{name}={each.word}") for each in found]
    if node.commands:
        below = [Candidate(name, each.help) for name, each in node.commands.items()]
        return [] if given else _fitting(below, current)
    return _fitting(_values(_kind_at(node, len(given)), given, find_values), current)


def _follow(before: Sequence[str], table: Node) -> tuple[Node, list[str], Option | None, bool]:
    """Read the words before the cursor.

    Return the command they lead to, its arguments so far, the option whose value comes next if
    there is one, and True if `--` ended the options.
    """
    node, given, pending, only_arguments = table, list[str](), None, False
    for word in before:
        if pending is not None:
            pending = None
        elif only_arguments:
            given.append(word)
        elif word == "--":
            only_arguments = True
        elif word.startswith("-") and len(word) > 1:
            option = node.options.get(word)
            pending = option if option is not None and not option.is_flag else None
        elif word in node.commands:
            node, given = node.commands[word], []
        else:
            given.append(word)
    return node, given, pending, only_arguments


def _kind_at(node: Node, place: int) -> Kind:
    if place < len(node.arguments):
        return node.arguments[place]
    return node.arguments[-1] if node.repeats and node.arguments else None


def _options(node: Node) -> Iterator[Candidate]:
    for name, each in node.options.items():
        yield Candidate(name, each.help)


def _values(kind: Kind, given: Sequence[str], find_values: FindValues) -> Sequence[Candidate]:
    if kind is None:
        return []
    if isinstance(kind, str):
        return find_values(kind, given)
    return [Candidate(each) for each in kind]


def _fitting(candidates: Sequence[Candidate] | Iterator[Candidate], start: str) -> list[Candidate]:
    return [each for each in candidates if each.word.startswith(start)]
