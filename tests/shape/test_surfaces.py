"""Every command and every public name has one row in the table of surfaces; no cell is empty."""

from __future__ import annotations

import inspect
from collections import Counter
from typing import Any

import click
import pytest
from tools import surfaces
from tools.check_docs import DOCS
from tools.surfaces import SURFACES, Reason, Surface

COMMANDS = surfaces.commands()


def rows() -> list[object]:
    return [pytest.param(each, id=each.what) for each in SURFACES]


def test_each_command_has_exactly_one_row() -> None:
    named = Counter(
        command for each in SURFACES for command in each.all_commands if "--" not in command
    )

    # A line of `SURFACES` in tools/surfaces.py for what is missing here.
    assert sorted(COMMANDS.keys() - named.keys()) == []
    assert sorted(named.keys() - COMMANDS.keys()) == []
    assert [command for command, count in named.items() if count > 1] == []


def test_each_public_name_has_exactly_one_row() -> None:
    named = Counter(name for each in SURFACES for name in each.all_names if "(" not in name)

    # A word in a line of `SURFACES` in tools/surfaces.py for what is missing here.
    assert sorted({*surfaces.names()} - named.keys()) == []
    assert [name for name, count in named.items() if count > 1] == []


def test_no_capability_has_two_rows() -> None:
    assert [
        what for what, count in Counter(each.what for each in SURFACES).items() if count > 1
    ] == []


@pytest.mark.parametrize("row", rows())
def test_a_cell_is_never_empty_and_a_reason_is_a_sentence(row: Surface) -> None:
    for cell in (row.commands, row.python):
        assert cell.strip()
        assert not isinstance(cell, Reason) or (cell[0] in "`" or cell[0].isupper())
        assert isinstance(cell, Reason) == cell.endswith(".")
    # A capability that neither surface has is none.
    assert row.all_commands or row.all_names


def split(command: str) -> tuple[str, list[str]]:
    """Return the words of a command, and all spellings of its option; none without an option."""
    words, _, option = command.partition(" --")
    options = [each for each in COMMANDS[words].params if isinstance(each, click.Option)]
    spellings = [each.opts for each in options if f"--{option}" in each.opts]
    assert bool(spellings) == bool(option), f"tally {words} has no --{option}"
    return words, spellings[0] if spellings else []


def arguments_of(thing: Any) -> set[str]:
    """Return the names of a callable's arguments, with those of the options that it takes."""
    signature = inspect.signature(thing, eval_str=False)
    found = set(signature.parameters)
    for each in signature.parameters.values():
        if each.kind is each.VAR_KEYWORD and "Unpack[" in str(each.annotation):
            options = str(each.annotation).partition("Unpack[")[2].rstrip("]'")
            found |= set(getattr(inspect.getmodule(thing), options).__annotations__)
    return found


@pytest.mark.parametrize("row", rows())
def test_what_a_row_names_is_there(row: Surface) -> None:
    for command in row.all_commands:
        assert split(command)
    for name in row.all_names:
        bare, _, argument = name.partition("(")
        thing = surfaces.found(bare)
        if argument:
            assert argument.removesuffix("=)") in arguments_of(thing)


@pytest.mark.parametrize("row", rows())
def test_the_page_of_a_row_is_there_and_shows_what_it_is_about(row: Surface) -> None:
    text = (DOCS / row.page).read_text(encoding="utf-8")

    for command in row.all_commands:
        words, spellings = split(command)
        assert f"tally {words}" in text
        assert not spellings or any(each in text for each in spellings)
    if not row.all_commands:
        last = [each.partition("(")[0].split(".")[-1] for each in row.all_names]
        assert [each for each in last if each in text] != []
