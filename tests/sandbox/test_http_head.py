"""The one reader of request heads: what it reads, and that it refuses every other spelling."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.sandbox.http_head import MalformedHead, read_request_head

LINE = b"POST /query HTTP/1.1\r\n"


def test_a_head_is_read_with_its_names_in_small_letters() -> None:
    head = read_request_head(LINE + b"Content-Length:\t 5 \r\nX-A: one\r\nx-a: two")

    assert (head.method, head.target, head.is_http_1_1) == ("POST", "/query", True)
    assert head.length() == 5
    assert head.values(b"x-a") == [b"one", b"two"]
    assert head.values(b"x-b") == []


def test_a_head_without_a_length_has_none() -> None:
    assert read_request_head(b"GET / HTTP/1.0").length() is None


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"post /query HTTP/1.1",
        b"POST  /query HTTP/1.1",
        b"POST /query HTTP/1.7",
        b"POST /query HTTP/2.0",
        b"\r\nPOST /query HTTP/1.1",
        LINE + b"no colon",
        LINE + b"Space : x",
        LINE + b" Folded: x",
        LINE + b"A: x\r\n folded",
        LINE + b"A: x\nContent-Length: 3",
        LINE + b"A: x\rContent-Length: 3",
        LINE + b"A: \x00",
        LINE + b"A: \x1b[2J",
    ],
)
def test_a_head_in_another_spelling_is_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedHead):
        read_request_head(raw)


@pytest.mark.parametrize(
    "given_lengths",
    [
        b"Content-Length: 5\r\nContent-Length: 5",
        b"Content-Length: 5\r\nContent-Length: 6",
        b"Content-Length: 5, 5",
        b"Content-Length: -1",
        b"Content-Length: +5",
        b"Content-Length: 0x5",
        b"Content-Length: ",
        b"Content-Length: 99999999999999999999",
    ],
)
def test_a_length_is_given_once_as_a_number(given_lengths: bytes) -> None:
    head = read_request_head(LINE + given_lengths)

    with pytest.raises(MalformedHead):
        head.length()


@given(st.binary(max_size=200))
def test_what_was_read_has_no_second_spelling(raw: bytes) -> None:
    with suppress(MalformedHead):
        head = read_request_head(LINE + raw)

        lines = [name + b": " + value for name, value in head.headers]
        again = read_request_head(b"\r\n".join([LINE.removesuffix(b"\r\n"), *lines]))
        assert again == head
