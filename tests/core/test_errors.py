"""The error tree: what is drawn is what there is, codes that stay, and words made of facts."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import string
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tallystick
from tallystick.core import errors
from tallystick.core.errors import Facts, LedgerFull, RunNotFound, TallystickError

CLASSES: list[Any] = [
    each
    for _, each in inspect.getmembers(errors, inspect.isclass)
    if each.__module__ == errors.__name__ and each is not Facts
]
ROOT = Path(tallystick.__file__).parent
# What runs inside a sandbox raises errors of its own.
INSIDE = ("tallystick.guest.prelude", "tallystick.sandbox.process.inside")
DRAWN = re.compile(r"([#│├└─ ]*)([A-Z]\w+)\b(?!:)")


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [each.code for each in CLASSES]

    assert len(set(codes)) == len(codes)


def test_every_error_stands_in_the_drawing_of_the_tree() -> None:
    assert errors.__doc__ is not None
    assert [each.__name__ for each in CLASSES if each.__name__ not in errors.__doc__] == []


def test_cancelling_cannot_be_eaten_by_except_exception() -> None:
    assert not issubclass(errors.Cancelled, Exception)


def test_a_bad_limit_names_its_field_and_what_was_given() -> None:
    error = errors.InvalidLimit(field="fuel", given=-1, why="a limit is not negative")

    assert str(error) == "fuel: a limit is not negative, not -1"
    assert (error.field, error.given) == ("fuel", -1)


# -- the tree of the whole package ---------------------------------------------------------------


def below(error: type[TallystickError]) -> Iterator[type[TallystickError]]:
    for each in error.__subclasses__():
        yield each
        yield from below(each)


def of_package() -> list[type[TallystickError]]:
    for module in pkgutil.walk_packages(tallystick.__path__, "tallystick."):
        if not module.name.startswith(INSIDE) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found = {each for each in below(TallystickError) if each.__module__.startswith("tallystick.")}
    return sorted(found, key=lambda each: each.__name__)


def drawn(text: str) -> dict[str, str]:
    """Each class that a text draws below another, with that other."""
    found: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        match = DRAWN.match(line)
        above = [each for each in above if match is not None and each[0] < len(match[1])]
        if match is not None:
            if "──" in match[1] and above:
                found[match[2]] = above[-1][1]
            above.append((len(match[1]), match[2]))
    return found


PACKAGE = of_package()


def test_errors_of_one_module_are_drawn_below_their_families() -> None:
    of_module = Counter(each.__module__ for each in PACKAGE)
    families = (TallystickError, *TallystickError.__subclasses__())
    missing = []
    for error in PACKAGE:
        path = ROOT.joinpath(*error.__module__.split(".")[1:]).with_suffix(".py")
        bases = [each.__name__ for each in error.__bases__ if each is not Facts]
        if of_module[error.__module__] > 1 and error not in families:
            tree = drawn(path.read_text(encoding="utf-8"))
            missing += [error.__name__] * (tree.get(error.__name__) not in bases)

    assert missing == []


def test_two_errors_share_a_code_only_where_they_say_the_same() -> None:
    shared = Counter(each.code for each in PACKAGE if "code" in vars(each))

    assert {code for code, count in shared.items() if count > 1} == {"in_doubt", "replay.diverged"}


@pytest.mark.parametrize(
    "error", [each for each in PACKAGE if issubclass(each, Facts)], ids=lambda each: each.__name__
)
def test_the_words_of_an_error_name_its_facts_and_nothing_else(error: type[Any]) -> None:
    facts = {name for each in error.__mro__ for name in vars(each).get("__annotations__", {})}
    named = {name for _, name, _, _ in string.Formatter().parse(error.says) if name is not None}
    given = set(inspect.signature(error.__init__).parameters)

    assert named <= facts | given
    # A family that is never raised itself has no words.
    assert error.says or error.text is not Facts.text or error.__subclasses__()


# -- facts ---------------------------------------------------------------------------------------


def test_an_error_keeps_its_facts_and_is_told_by_them() -> None:
    error = LedgerFull(where="/a")

    assert error.where == "/a"
    assert error.args == (str(error),)
    assert str(error) == "/a cannot grow: the disk is full; free some space, then go on"
    assert repr(error) == f"LedgerFull({str(error)!r})"


def test_a_fact_may_have_a_default() -> None:
    assert RunNotFound(run="r").advice == ""
    assert str(RunNotFound(run="r", advice="look")) == "no run 'r' in the ledger; look"


def test_an_error_with_a_fact_that_it_does_not_have_is_not_made() -> None:
    made: Any = LedgerFull

    with pytest.raises(TypeError, match=r"\['where'\] missing, \['wher'\] unknown"):
        made(wher="/a")
    with pytest.raises(TypeError):
        made("/a")
