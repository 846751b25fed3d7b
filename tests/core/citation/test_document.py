"""Documents as laws: looked through in windows, they say what the whole would say."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.core.citation import claims
from tallystick.core.citation.claims import Documents, TooMuch
from tallystick.sandbox.text import HostText

EXAMPLES = settings().max_examples // 2
NAME = "a.txt"
# Small, so that everything lies at a seam.
SMALL: dict[str, Any] = {"_WINDOW_BYTES": 16, "SPAN_BYTES_MAX": 8, "_LINE_BYTES_MAX": 12}

contents = st.binary(max_size=90) | st.text("ab \n\u20ac", max_size=60).map(str.encode)
needles = st.binary(min_size=1, max_size=6) | st.text("ab \n", min_size=1, max_size=6).map(
    str.encode
)


def held(whole: bytes, **more: int) -> Documents:
    return Documents({NAME: HostText(whole)}, **more)


@settings(max_examples=EXAMPLES)
@given(whole=contents, needle=needles, start=st.integers(0, 90), stop=st.integers(0, 100))
def test_a_text_is_found_where_it_stands_first(
    whole: bytes, needle: bytes, start: int, stop: int
) -> None:
    with patch.multiple(claims, **SMALL):
        assert held(whole).find(NAME, needle, start, stop) == whole.find(needle, start, stop)
        assert held(whole).find(NAME, needle) == whole.find(needle)


@settings(max_examples=EXAMPLES)
@given(whole=st.binary(min_size=24, max_size=90), data=st.data())
def test_what_stands_over_a_seam_is_found(whole: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(whole) - 8))
    needle = whole[start : start + 8]

    with patch.multiple(claims, **SMALL):
        assert held(whole).find(NAME, needle) == whole.find(needle)


@settings(max_examples=EXAMPLES)
@given(whole=contents, first=st.integers(1, 12), more=st.integers(0, 4))
def test_lines_are_those_that_the_whole_is_split_into(whole: bytes, first: int, more: int) -> None:
    lines = whole.split(b"\n")
    lines = lines if lines[-1] else lines[:-1]
    last = first + more
    expected = b"\n".join(lines[first - 1 : last]) if last <= len(lines) else None

    with patch.multiple(claims, **SMALL):
        documents = held(whole)
        span = documents.line_span(NAME, first, last)
        assert documents.lines(NAME) == len(lines)
        assert (None if span is None else whole[slice(*span)]) == expected
        if span is not None:
            assert documents.line_of(NAME, span[0]) == first


@settings(max_examples=EXAMPLES)
@given(whole=contents, data=st.data())
def test_a_line_begins_behind_the_last_line_end_or_near_enough(
    whole: bytes, data: st.DataObject
) -> None:
    offset = data.draw(st.integers(0, len(whole)))
    begin = whole.rfind(b"\n", 0, offset) + 1

    with patch.multiple(claims, **SMALL):
        low = held(whole).line_low(NAME, offset)

    assert begin <= low <= offset
    assert low == begin or offset - low <= 12 < offset - begin


def test_looking_ends_when_it_was_enough() -> None:
    documents = held(b"x" * 100_000, looked_bytes_max=250_000)

    assert [documents.find(NAME, b"y") for _ in range(2)] == [-1, -1]
    with pytest.raises(TooMuch):
        documents.find(NAME, b"y")


def test_ten_thousand_small_documents_are_not_looked_through_for_ever() -> None:
    documents = Documents(
        {str(number): HostText(b"x") for number in range(10_000)}, looked_bytes_max=1_000_000
    )

    with pytest.raises(TooMuch):
        sum(documents.find(name, b"y") for name in documents.names)


def test_what_is_longer_than_a_window_overlaps_is_not_found() -> None:
    whole = b"x" * 70_000

    assert held(whole).find(NAME, whole) == -1
    assert held(whole).find(NAME, b"x" * 65_536) == 0
