"""The line of a program that failed, with its values, and that nothing runs to tell of them."""

from __future__ import annotations

import pytest
from tests.wasm_session import TestSession

SETUP = """
import json
record = {"paid": "12.50 EUR", "order": None, "n": 3}
records = [record] * 3
total = 3.5

def price(one, extra):
    return one["order"]["total"] + extra

class Loud:
    def __repr__(self):
        print("called")
        return "loud"
    def __getattr__(self, name):
        print("called")
        return 1
loud = Loud()
"""


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (
            'total += record["paid"]',
            "total += record[\"paid\"]\ntotal is 3.5 (float)\nrecord['paid'] is '12.50 EUR' (str)",
        ),
        (
            "for one in records:\n    price(one, 4)",
            'return one["order"]["total"] + extra\none[\'order\'] is None (NoneType)',
        ),
        (
            "sum(each['order']['total'] for each in records)",
            "sum(each['order']['total'] for each in records)\neach['order'] is None (NoneType)",
        ),
        (
            "for one in records:\n    if one['n'] > one['paid']:\n        pass",
            "if one['n'] > one['paid']:\none['n'] is 3 (int)\none['paid'] is '12.50 EUR' (str)",
        ),
        (
            "record['nope']",
            "record['nope']\nrecord is {'paid': '12.50 EUR', 'order': None, 'n': 3} (dict of 3)",
        ),
        ("total + loud", "total + loud\ntotal is 3.5 (float)\nloud is <Loud object> (Loud)"),
    ],
    ids=["statement", "function", "generator", "condition", "key", "own class"],
)
def test_the_line_is_told_with_its_values_and_their_types(
    session: TestSession, source: str, line: str
) -> None:
    session.run(SETUP)

    result = session.run(source)

    assert result.error is not None
    assert result.error.line == line
    # No code of the program is run for it.
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("source", "values"),
    [
        (
            "sum(each['paid'] for each in mixed)",
            ["each['paid'] is 1.5 (float) or '2 EUR' (str) or None (NoneType)"],
        ),
        (
            "[each['a']['b'] + 1 for each in nested]",
            ["each['a']['b'] is 1 (int) or missing"],
        ),
        ("max(each['paid'] for each in mixed if each['paid'])", ["each['paid'] is 1.5 (float) or"]),
    ],
    ids=["sum", "missing key", "condition"],
)
def test_what_a_comprehension_takes_from_items_is_told_with_each_type(
    session: TestSession, source: str, values: list[str]
) -> None:
    session.run("mixed = [{'paid': 1.5}, {'paid': 2.5}, {'paid': '2 EUR'}, {'paid': None}] * 9")
    session.run("nested = [{'a': {'b': 1}}, {'a': {}}]")

    result = session.run(source)

    assert result.error is not None
    assert [each for each in values if each not in result.error.line] == []


@pytest.mark.parametrize(
    "source",
    ["1 / 0", "print(undefined)", "import nothing", "def f(:", "raise ValueError('x')", "exit(3)"],
)
def test_a_line_without_values_is_not_told(session: TestSession, source: str) -> None:
    result = session.run(source)

    assert result.error is not None
    assert result.error.line == ""


def test_a_program_that_is_right_has_none(session: TestSession) -> None:
    assert session.run("x = 1").error is None


def test_what_is_told_stays_short_whatever_the_values_are(session: TestSession) -> None:
    session.run(
        "names = {f'v{n}': ['x' * 10_000] * 1_000 for n in range(9)}\nglobals().update(names)"
    )

    result = session.run("v0 + v1 + v2 + v3 + v4 + v5 + v6 + 'y' * 0 + " + "v7 + " * 60 + "v8")

    assert result.error is not None
    assert 0 < len(result.error.line) <= 800


def test_a_line_that_is_nested_deeply_fails_as_it_did(session: TestSession) -> None:
    short = session.run("word = 'a'\nx = " + "-" * 380 + "word")
    long = session.run("x = " + "-" * 480 + "word")

    assert short.error is not None
    assert long.error is not None
    assert (short.error.kind, long.error.kind) == ("TypeError", "TypeError")
    assert "word is 'a' (str)" in short.error.line
    assert long.error.line == ""
    assert session.value("word") == "'a'"
