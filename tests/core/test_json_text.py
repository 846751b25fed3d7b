"""JSON that others wrote: what is taken, and what is refused by name."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.json_text import DEPTH_MAX, read_json
from tallystick.testing.strategies import json_values

values = json_values()


def refusal(text: str) -> str | None:
    try:
        read_json(text)
    except ValueError as error:
        return str(error)
    return None


@given(value=values, ascii_only=st.booleans())
def test_what_is_written_is_read(value: object, ascii_only: bool) -> None:
    assert read_json(json.dumps(value, ensure_ascii=ascii_only)) == value


@given(text=st.text(max_size=20) | st.text('[]{}",:\\u123e-.', max_size=20))
def test_any_text_is_read_or_refused_with_a_line(text: str) -> None:
    why = refusal(text)

    assert why is None or (why and "\n" not in why)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no JSON: Expecting value at character 1"),
        ("{'a': 1}", "no JSON: Expecting property name enclosed in double quotes at character 2"),
        ("1 2", "no JSON: Extra data at character 3"),
        ("NaN", "NaN is no JSON value"),
        ("[-Infinity]", "-Infinity is no JSON value"),
        ("1e999", "1e999 is too large a number"),
        ("9" * 1_001, "99999999999999999999... has 1,001 digits; at most 1,000"),
        ('{"a": 1, "b": 2, "a": 3}', '"a" stands twice in one object'),
        (r'"\ud800"', '"?" holds half of a character'),
        (r'[{"\ud800": 1}]', '"?" holds half of a character'),
        ("[" * 100_000, "it is nested deeper than 64 levels"),
        ('{"a":' * 900 + "1" + "}" * 900, "it is nested deeper than 64 levels"),
        (" " * 4_000_001, "it has 4,000,001 characters; at most 4,000,000"),
    ],
)
def test_what_is_ambiguous_or_endless_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=rf"\A{re.escape(why)}\Z"):
        read_json(text)


def test_a_value_is_as_deep_as_it_may_be_and_no_deeper() -> None:
    assert read_json("[" * DEPTH_MAX + "]" * DEPTH_MAX)
    assert read_json("[" * DEPTH_MAX + "1" + "]" * DEPTH_MAX)
    with pytest.raises(ValueError, match="deeper"):
        read_json("[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1))
    # Brackets in a string are no levels.
    assert read_json(f'["{"[" * 1_000}"]')


def test_pairs_that_make_a_character_are_one() -> None:
    assert read_json(r'"\ud83d\ude00"') == "\U0001f600"
