"""Needles: a text is found however it is spelled, and nothing else is."""

from __future__ import annotations

import base64
import hashlib
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.upkeep.text_traces import TEXT_CHARS_MIN, TextForms

texts = st.text(
    st.characters(exclude_categories=["Cs"]), min_size=TEXT_CHARS_MIN, max_size=60
).filter(lambda text: len(text.strip()) >= TEXT_CHARS_MIN)
around = st.binary(max_size=5)


class Told(msgspec.Struct):
    """A value with a text somewhere in it."""

    inside: object


@given(text=texts, before=st.text(max_size=5), after=st.text(max_size=5))
def test_a_text_is_found_in_texts_json_and_python(text: str, before: str, after: str) -> None:
    needles = TextForms([text])
    whole = f"{before}{text}{after}"
    once = json.dumps({"said": whole})

    assert needles.in_text(whole)
    assert needles.in_text(once)
    assert needles.in_text(json.dumps({"said": once}))
    assert needles.in_text(json.dumps([whole], ensure_ascii=False))
    assert needles.in_value(Told(inside=[{"a": (1, None, whole)}]))
    assert needles.in_value(Told(inside={whole: 1}))


@given(text=texts, before=around, after=around)
def test_a_text_is_found_in_bytes_memory_and_base64(text: str, before: bytes, after: bytes) -> None:
    needles = TextForms([text])
    raw = text.strip().encode()

    assert needles.in_bytes(before + raw + after)
    assert needles.in_bytes(before + text.strip().encode("utf-16-le") + after)
    assert needles.in_bytes(before + text.strip().encode("utf-32-le") + after)
    assert needles.in_bytes(base64.b64encode(before + raw + after))
    assert needles.in_value(Told(inside=before + raw + after))


@given(text=texts, size=st.integers(1, 9))
def test_a_text_is_found_across_pieces(text: str, size: int) -> None:
    data = b"xx" + text.encode() + b"yy"
    pieces = [data[at : at + size] for at in range(0, len(data), size)]

    assert TextForms([text]).in_pieces(pieces)
    assert not TextForms([text]).in_pieces([b"xx", b"yy"])


@given(text=st.text(st.sampled_from("abcdefghijklmnopqrstuvwxyz ,."), min_size=900, max_size=999))
def test_of_a_long_line_any_two_hundred_characters_are_found(text: str) -> None:
    line = text.strip().ljust(900, "q")
    for start in (0, 17, 350, len(line) - 200):
        part = line[start : start + 200]
        # A part of one letter over and over stands in many texts.
        if min(len(set(part[at : at + 100])) for at in range(101)) >= 12:
            assert TextForms([line]).in_text(f"<{part}>")


@pytest.mark.parametrize("text", ["", "  ", "tea at four", " " * 40 + "tea" + "\n" * 9])
def test_what_is_short_is_not_looked_for(text: str) -> None:
    needles = TextForms([text])

    assert not needles
    assert not needles.in_text(f"we have {text} here")
    assert not needles.in_pieces([text.encode()])


def test_a_ruler_or_a_heading_of_a_note_is_not_looked_for() -> None:
    needles = TextForms(["a heading\n" + "-" * 60 + "\nsomething said"])

    assert not needles.in_text("a heading\n" + "=" * 60)
    assert not needles.in_text("-" * 80)


def test_the_plain_digest_of_a_text_is_found_where_it_is_asked_for() -> None:
    needles = TextForms(["tea at four "])

    assert needles.has_text_or_digest(Told(inside="sha256:" + _sha256("tea at four")))
    assert needles.has_text_or_digest(Told(inside=_sha256("tea at four ")))
    assert not needles.has_text_or_digest(Told(inside=_sha256("tea at five")))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
