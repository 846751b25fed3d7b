"""Host-backed text: a `str` to the program, bytes that stay on the host."""

import random
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wasm_session import TestSession

from tallystick.core.errors import UsageError
from tallystick.sandbox import text as text_module
from tallystick.sandbox.host import HostTable
from tallystick.sandbox.scheduling import watched_by
from tallystick.sandbox.text import HostText

SNOW = "\N{SNOWMAN}ä\U0001f600 and plain text\n"
texts = st.text(st.sampled_from("ab \näé\N{SNOWMAN}\U0001f600"), max_size=400)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seams everywhere: blocks and windows of a few bytes."""
    monkeypatch.setattr(text_module, "_BLOCK_BYTES", 16)
    monkeypatch.setattr(text_module, "_WINDOW_BYTES", 32)
    monkeypatch.setattr(text_module, "_PIECE_BYTES", 8)
    monkeypatch.setattr(text_module, "MATCH_BYTES_MAX", 64)


@given(text=texts, start=st.integers(0, 450), stop=st.integers(0, 450))
def test_a_slice_is_the_slice_of_the_str(text: str, start: int, stop: int) -> None:
    assert HostText.of(text).slice(start, stop) == text[start:stop]
    assert HostText.of(text).length() == len(text)


@given(
    text=texts,
    needle=st.text(st.sampled_from("abä\N{SNOWMAN}"), max_size=3),
    start=st.integers(0, 420),
)
def test_find_is_the_find_of_the_str(text: str, needle: str, start: int) -> None:
    start = min(start, len(text))

    assert HostText.of(text).find(needle, start) == text.find(needle, start)


@given(
    text=texts, pattern=st.sampled_from(["a+", "[äé]", "b|\N{SNOWMAN}", r"\bab?", "a.b", "x*", "$"])
)
def test_search_finds_what_re_finds(text: str, pattern: str) -> None:
    import re

    flags = "(?m)" if pattern == "$" else ""
    wanted = [(*match.span(), match.group()) for match in re.finditer(pattern, text)]
    if pattern == r"\bab?":  # RE2's word boundary is an ASCII one
        wanted = [(*match.span(), match.group()) for match in re.finditer(pattern, text, re.ASCII)]

    found = HostText.of(text).search(flags + pattern if flags else pattern, 0, 10_000)

    if pattern in ("x*", "$"):
        # Empty matches: RE2 gives one per byte, `re` one per character.
        assert {each[0] for each in found} <= set(range(len(text) + 1))
    else:
        assert found == wanted


@given(data=st.binary(max_size=200), start=st.integers(0, 220), stop=st.integers(0, 220))
def test_bytes_that_are_not_text_are_read_the_same_way_each_time(
    data: bytes, start: int, stop: int
) -> None:
    text = HostText(data)

    whole = text.slice(0, text.length())

    assert text.slice(start, stop) == whole[start:stop]


# Whole characters, cut ones, overlong ones, surrogates, stray bytes: any of them at any border.
PIECES = [
    b"a", b"b", "ä".encode(), "\N{SNOWMAN}".encode(), "\U0001f600".encode(), "\ufffd".encode(),
    b"\xc3", b"\xe2", b"\xe2\x98", b"\xf0", b"\xf0\x9f", b"\xf0\x9f\x98", b"\x80", b"\xbf" * 5,
    b"\xe0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80", b"\xc0\x80", b"\xf5", b"\xff", b"\0",
]  # fmt: skip
broken = st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join) | st.binary(max_size=120)


def decoded_slowly(data: bytes) -> tuple[str, list[int]]:
    """All of it decoded at once, and where each character of it begins, by strict decoding."""
    text, starts, at = "", [], 0
    while at < len(data):
        starts.append(at)
        for size in range(1, 5):
            try:
                text += data[at : at + size].decode()
                break
            except UnicodeDecodeError as error:
                # What is only cut short may become whole with one byte more.
                if error.reason != "unexpected end of data" or at + size >= len(data):
                    size = error.end
                    text += "\ufffd"
                    break
        at += size
    return text, [*starts, len(data)]


@pytest.mark.parametrize("counted_bytes_min", [0, 1 << 30], ids=["counted", "decoded"])
@given(data=broken, block=st.sampled_from([4, 5, 7, 16]), start=st.integers(0, 130))
def test_any_bytes_are_read_as_if_all_were_decoded_at_once(
    counted_bytes_min: int, data: bytes, block: int, start: int
) -> None:
    wanted, starts = decoded_slowly(data)
    assert wanted == data.decode("utf-8", "replace")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_module, "_BLOCK_BYTES", block)
        patch.setattr(text_module, "_COUNTED_BYTES_MIN", counted_bytes_min)
        held = HostText(data)

        assert held.length() == len(wanted)
        assert held.slice(start, start + 9) == wanted[start : start + 9]
        assert [held._to_byte(each) for each in range(len(starts))] == starts
        assert [held._to_char(each) for each in starts] == list(range(len(starts)))
        assert [held.slice(low, high) for low, high, _ in held.search("a", 0, 1_000)] == (
            ["a"] * wanted.count("a")
        )
        assert held.find("b", min(start, len(wanted))) == wanted.find("b", start)


@given(text=texts, start=st.integers(0, 900), stop=st.integers(0, 900))
def test_reading_by_bytes_leaves_out_cut_characters(text: str, start: int, stop: int) -> None:
    data = text.encode()

    assert HostText(data).read_bytes(start, stop) == data[start:stop].decode("utf-8", "ignore")


@given(text=texts, position=st.integers(0, 400))
def test_positions_go_from_characters_to_bytes_and_back(text: str, position: int) -> None:
    position = min(position, len(text))
    held = HostText.of(text)

    assert held._to_byte(position) == len(text[:position].encode())
    assert held._to_char(held._to_byte(position)) == position


@pytest.mark.parametrize("pattern", ["(", "a{2000}", "[z-a]", r"(?P<n>a)\1", "(?=a)", "x" * 20_000])
def test_a_pattern_that_cannot_be_used_says_why(pattern: str) -> None:
    with pytest.raises(UsageError, match="pattern"):
        HostText.of("a").search(pattern, 0, 10)


@pytest.mark.parametrize("bad", [-1, 1.5, "1", None, True])
def test_a_position_is_a_whole_number(bad: Any) -> None:
    with pytest.raises(UsageError, match="whole number"):
        HostText.of("abc").slice(bad, 2)


def test_a_match_longer_than_the_limit_is_an_error_and_not_a_wrong_answer() -> None:
    with pytest.raises(UsageError, match="longer than"):
        HostText.of("a" * 1_000).search("a+", 0, 10)


def test_an_evil_pattern_is_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    began = time.monotonic()

    found = HostText.of("a" * 1_000_000 + "b").search("(a+)+$", 0, 10)

    assert found == []
    assert time.monotonic() - began < 5


def test_a_search_stops_between_windows_when_it_is_told_to() -> None:
    class Enough(Exception):
        pass

    looked = []

    def look() -> None:
        looked.append(1)
        if len(looked) == 3:
            raise Enough

    with watched_by(look), pytest.raises(Enough):
        HostText.of("a" * 10_000).search_bytes("b", 0, 10)


def test_a_long_text_is_indexed_exactly_also_around_what_is_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    chance = random.Random(5)
    data = bytearray("".join(chance.choices("a\nä\N{SNOWMAN}\U0001f600", k=4_000_000)).encode())
    for at in (0, 65_535, 65_536, 65_537, 3_000_000, len(data) - 1):
        data[at] = 0xFF
    wanted = data.decode("utf-8", "replace")

    text = HostText(bytes(data))

    assert len(data) > text_module._COUNTED_BYTES_MIN
    assert text.length() == len(wanted)
    for _ in range(200):
        start = chance.randrange(len(wanted))
        assert text.slice(start, start + 500) == wanted[start : start + 500]


def test_counting_stops_between_blocks_when_it_is_told_to_and_goes_on_later() -> None:
    class Enough(Exception):
        pass

    looked = []

    def look() -> None:
        looked.append(1)
        if len(looked) == 3:
            raise Enough

    text = HostText("ä".encode() * 50_000)
    with watched_by(look), pytest.raises(Enough):
        text.length()

    assert text.length() == 50_000
    assert text.slice(49_998, 60_000) == "ää"


def test_an_empty_file_is_an_empty_text(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()

    text = HostText.open(tmp_path / "empty")

    assert (text.length(), text.slice(0, 10), text.search("a", 0, 1)) == (0, "", [])


@pytest.mark.parametrize(
    "expression",
    [
        "len(t)", "t[:]", "t[3]", "t[-2]", "t[2:9]", "t[-5:]", "t[::2]", "t[::-1]", "t[9:2:-3]",
        "t[5:5]", "t[:10**9]", "'plain' in t", "'nowhere' in t", "t.find('text')",
        "t.find('text', 30)",
    ],
)  # fmt: skip
def test_a_program_uses_it_like_a_str(session: TestSession, expression: str) -> None:
    text = SNOW * 3
    host = HostTable(texts={"t": HostText.of(text)})

    assert session.value(expression, host=host) == repr(eval(expression, {"t": text}))


@pytest.mark.parametrize("program", ["t[10**9]", "t[-10**9]"])
def test_an_index_outside_is_an_index_error(session: TestSession, program: str) -> None:
    error = session.run(program, host=HostTable(texts={"t": HostText.of("abc")})).error

    assert error is not None
    assert error.kind == "IndexError"


def test_search_and_its_errors_reach_the_program(session: TestSession) -> None:
    host = HostTable(texts={"t": HostText.of(SNOW)})

    assert session.value("t.search('[a-z]+', limit=2)", host=host) == (
        "[(4, 7, 'and'), (8, 13, 'plain')]"
    )
    error = session.run("t.search('(')", host=host).error
    assert error is not None
    assert error.kind == "HostError"
    assert "cannot be used" in error.message


@pytest.mark.parametrize(
    "request_text",
    ['["text.slice",[7,0,1],{}]', '["text.slice",[-1,0,1],{}]', '["text.slice",[],{}]',
     '["text.nosuch",[0],{}]', '["text.slice",["0",0,1],{}]'],
)  # fmt: skip
def test_a_text_that_was_not_given_cannot_be_reached(
    session: TestSession, request_text: str
) -> None:
    host = HostTable(texts={"t": HostText.of("abc")})
    program = (
        "call = type(t).__getitem__.__globals__['_call']\n"
        f"call(*__import__('json').loads({request_text!r}))"
    )

    error = session.run(program, host=host).error

    assert error is not None
    assert error.kind == "SandboxViolation"


def test_a_long_search_ends_when_the_program_is_cancelled(
    session: TestSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "_WINDOW_BYTES", 1024)
    host = HostTable(texts={"t": HostText(b"a" * 40_000_000)})
    timer = threading.Timer(0.1, session.session.cancel)
    timer.start()

    result = session.run("while True: t.search_bytes('b')", host=host)

    assert result.stop == "cancelled"
    assert result.execution_time_ms < 2_000


def test_a_file_of_the_host_is_read_without_a_copy_in_the_guest(
    session: TestSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    path = tmp_path / "long.txt"
    with open(path, "wb") as file:
        for _ in range(64):
            file.write(b"0123456789abcdef" * 65_536)
        file.write(b"NEEDLE-7")
    text = HostText.open(path)
    host = HostTable(texts={"t": text})
    session.run("1", host=host)
    before = session.run("1", host=host).charge.memory_bytes

    result = session.run(
        "len(t), t[50_000_000:50_100_000][:4], t.search('NEEDLE-[0-9]')", host=host
    )

    end = 64 << 20
    assert result.value == f"({end + 8}, '0123', [({end}, {end + 8}, 'NEEDLE-7')])"
    assert result.charge.memory_bytes - before < 2 << 20
    text.close()


# -- searches neither copy a text nor hold up other threads ---------------------------------------


@given(
    text=st.text(st.sampled_from("ab"), max_size=200),
    needle=st.text(st.sampled_from("ab"), min_size=1, max_size=5),
)
def test_a_needle_that_overlaps_itself_is_counted_as_in_a_str(text: str, needle: str) -> None:
    assert HostText.of(text).count(needle) == text.count(needle)
    assert HostText.of(text).find(needle, 0) == text.find(needle)


SEARCHES: dict[str, Callable[[HostText], object]] = {
    "count": lambda text: text.count("a"),
    "count of two": lambda text: text.count("aa"),
    "find": lambda text: text.find("b", 0),
    "length": lambda text: text.length(),
    "grep": lambda text: text.grep("a$", 10),
    "search": lambda text: text.search("b", 0, 10),
}


@pytest.mark.parametrize("search", SEARCHES)
def test_a_search_copies_no_more_than_a_piece_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, search: str
) -> None:
    monkeypatch.undo()
    path = tmp_path / "text"
    path.write_bytes(b"aaaaaaa\n" * (2 << 20))
    text = HostText.open(path)
    SEARCHES[search](HostText.of("a"))

    tracemalloc.start()
    try:
        SEARCHES[search](text)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        text.close()

    assert most < 2 << 20


def test_a_line_that_begins_far_before_its_match_has_no_text_of_other_lines() -> None:
    line = "é" * 50_000 + "match"
    text = HostText.of(f"first\nsecond\n{line}\nlast")

    ((number, shown),) = text.grep("match", 10)

    assert number == 3
    assert set(shown) == {"é"}
