"""Server-sent events: the same events however the bytes are cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tallystick.model.dialect import SseDecoder, SseEvent
from tallystick.model.port import ModelError

MIB = 1024 * 1024
NEWLINES = [b"\n", b"\r", b"\r\n"]
LINES = [
    b"",
    b"data: a",
    b"data:b",
    b"data",
    b": note",
    b"event: x",
    b"id: 1",
    b"\xef\xbb\xbf",
    b":",
]


def decoded(*pieces: bytes) -> list[SseEvent]:
    decoder = SseDecoder()
    return [event for piece in pieces for event in decoder.feed(piece)]


@st.composite
def cut_streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    lines = draw(st.lists(st.tuples(st.sampled_from(LINES), st.sampled_from(NEWLINES))))
    stream = b"".join(line + newline for line, newline in lines) + draw(st.binary(max_size=9))
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    bounds = [0, *cuts, len(stream)]
    return stream, [stream[a:b] for a, b in itertools.pairwise(bounds)]


@given(cut_streams())
@example((b"data: a\r\n\r\n", [b"data: a\r", b"\n\r", b"\n"]))
@example((b"data: a\r\rdata: b\n\n", [b"data: a\r", b"\r", b"", b"data: b\n\n"]))
def test_any_way_to_cut_a_stream_gives_the_same_events(cut: tuple[bytes, list[bytes]]) -> None:
    stream, pieces = cut

    assert decoded(*pieces) == decoded(stream)
    assert decoded(*(stream[at : at + 1] for at in range(len(stream)))) == decoded(stream)


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [(b"", b"a")]),
        (b"event: ping\ndata: {}\n\n", [(b"ping", b"{}")]),
        (b"data: a\ndata: b\n\n", [(b"", b"a\nb")]),
        (b"data:a\n\ndata:  b\n\n", [(b"", b"a"), (b"", b" b")]),
        (b"data\n\n", [(b"", b"")]),
        (b": a comment\n\n: another\ndata: a\n\n", [(b"", b"a")]),
        (b"event: lonely\n\ndata: a\n\n", [(b"", b"a")]),
        (b"id: 7\nretry: 10\nother: x\ndata: a\n\n", [(b"", b"a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [(b"", b"a")]),
        (b"data: a\r\n\r\ndata: b\r\rdata: c\n\n", [(b"", b"a"), (b"", b"b"), (b"", b"c")]),
        (b"data: cut off", []),
        (b"data: a\n", []),
        (b"\n\n\n", []),
        (b"", []),
    ],
)
def test_events_are_read_as_the_standard_has_it(
    stream: bytes, events: list[tuple[bytes, bytes]]
) -> None:
    assert decoded(stream) == events


@pytest.mark.parametrize("line", [b"data: ", b"event: ", b": ", b""])
def test_a_line_without_an_end_is_refused(line: bytes) -> None:
    with pytest.raises(ModelError, match="an event of more than"):
        decoded(line, *([b"x" * MIB] * 3))


def test_an_event_without_an_end_is_refused_even_if_it_holds_nothing() -> None:
    with pytest.raises(ModelError, match="an event of more than"):
        decoded(*([b"data\n" * 10_000] * 20))


def test_a_long_line_in_single_bytes_takes_no_longer_than_its_bytes() -> None:
    decoder = SseDecoder()
    for _ in range(100_000):
        decoder.feed(b"x")

    assert decoder.feed(b"\n\ndata: a\n\n") == [(b"", b"a")]
