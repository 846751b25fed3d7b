"""The error tree: one file, codes that stay."""

import inspect
from typing import Any

from tallystick.core import errors

CLASSES: list[Any] = [
    each
    for _, each in inspect.getmembers(errors, inspect.isclass)
    if each.__module__ == errors.__name__
]


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
