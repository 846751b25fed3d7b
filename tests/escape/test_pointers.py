"""The pointer checks: a law about the arithmetic, and the same law through the live imports."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.escape.case import FORGED, RAW
from tests.wasm_session import TestSession, open_session

from tallystick.sandbox.output import OutputStream, ProgramOutput
from tallystick.sandbox.port import read_report
from tallystick.sandbox.wasm import execution
from tallystick.sandbox.wasm.engine import BadPointer, check
from tallystick.sandbox.wasm.sandbox import WasmSandbox

TOP = 2**32 - 1
# An example that traps costs the session its interpreter: twenty milliseconds, not one.
live = settings(max_examples=settings().max_examples // 3)
WASM_PAGE = 65_536
WINDOW = 4_096

sizes = st.integers(0, 65_536).map(lambda pages: pages * WASM_PAGE)
anything = st.integers(0, TOP)


def near(*edges: int) -> st.SearchStrategy[int]:
    """Numbers of 32 bits, most of them close to an edge."""
    close = st.builds(lambda edge, off: edge + off, st.sampled_from(edges), st.integers(-9, 9))
    return (close | anything).filter(lambda number: 0 <= number <= TOP)


@dataclass
class Grower:
    """Memory that has grown since it was last looked at."""

    size: int
    now: int
    looked: int = 0

    def memory_size(self) -> int:
        self.looked += 1
        return self.now


@given(size=sizes, data=st.data())
def test_a_span_is_accepted_exactly_if_it_lies_in_memory(size: int, data: st.DataObject) -> None:
    pointer = data.draw(near(0, size, TOP))
    length = data.draw(near(0, max(0, size - pointer), size, TOP))
    caller: Any = Grower(size=size, now=size)

    try:
        check(caller, pointer, length)
        accepted = True
    except BadPointer:
        accepted = False

    assert accepted == (pointer >= 0 and pointer + length <= size)


@given(old=sizes, new=sizes, data=st.data())
def test_a_span_in_memory_that_has_grown_is_accepted(
    old: int, new: int, data: st.DataObject
) -> None:
    old, new = min(old, new), max(old, new)
    pointer = data.draw(near(0, old, new, TOP))
    length = data.draw(near(0, max(0, old - pointer), max(0, new - pointer)))
    caller: Any = Grower(size=old, now=new)

    try:
        check(caller, pointer, length)
        accepted = True
    except BadPointer:
        accepted = False

    assert accepted == (pointer + length <= new)
    assert caller.looked <= 1


# -- live ------------------------------------------------------------------------------------------


@dataclass
class Fuzzed:
    """A session under fuzzing, and how large its memory is."""

    session: TestSession
    size: int
    seen: dict[str, int] = field(default_factory=dict)

    def run(self, program: str) -> str:
        result = self.session.run(RAW + program, wall_ms=2_000, output_bytes=128 * 1024 * 1024)
        kind = result.error.kind if result.error else ""
        message = result.error.message if result.error else ""
        assert result.stop in ("finished", "trap"), result
        if result.stop == "trap":
            assert "rules of the host interface" in message, message
        self.seen[result.stop] = self.seen.get(result.stop, 0) + 1
        assert kind in ("", "InterpreterTrap", "HostError")
        return result.stop


@pytest.fixture(scope="module")
def fuzzed(sandbox: WasmSandbox) -> Iterator[Fuzzed]:
    with open_session(sandbox) as opened:
        size = opened.run("scratch = bytearray(65_536)\n1").charge.memory_bytes
        yield Fuzzed(opened, size)


def edges(fuzzed: Fuzzed) -> st.SearchStrategy[int]:
    return near(0, fuzzed.size, 2**31, TOP, fuzzed.size - WINDOW)


# Writes go to the start of memory at worst: that may break the guest, which is its own affair, so
# destinations that would be written to lie in a window of the program's own, or outside memory.
@live
@given(data=st.data())
def test_a_raw_call_is_answered_or_ends_the_program(fuzzed: Fuzzed, data: st.DataObject) -> None:
    pointer, length = data.draw(edges(fuzzed)), data.draw(near(0, 1, WINDOW, TOP))
    outside = data.draw(near(fuzzed.size, TOP).filter(lambda n: n >= fuzzed.size))
    capacity = data.draw(near(0, 1, WINDOW, TOP))
    inside = data.draw(st.booleans())
    destination = "address(window)" if inside else str(outside)
    capacity = min(capacity, WINDOW) if inside else capacity

    stop = fuzzed.run(
        f"window = bytes({WINDOW})\nn = host.call({pointer}, {length}, {destination}, {capacity})\n"
    )

    fits = pointer + length <= fuzzed.size and (inside or outside + capacity <= fuzzed.size)
    assert stop == ("finished" if fits else "trap")


@live
@given(data=st.data())
@example(data=None)
def test_a_raw_write_is_taken_or_ends_the_program(
    fuzzed: Fuzzed, data: st.DataObject | None
) -> None:
    if data is None:
        stream, pointer, length = 1, fuzzed.size, 0
    else:
        stream = data.draw(st.sampled_from([1, 2]) | near(0, 3, 4, TOP).filter(lambda n: n != 3))
        pointer = data.draw(edges(fuzzed))
        length = data.draw(near(0, 1, WINDOW, max(0, fuzzed.size - pointer), TOP))

    stop = fuzzed.run(f"host.stdio({stream}, {pointer}, {length})")

    fits = stream in (1, 2) and pointer + length <= fuzzed.size
    assert stop == ("finished" if fits else "trap")


@live
@given(data=st.data())
def test_a_raw_take_is_served_or_ends_the_program(fuzzed: Fuzzed, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 200_000))
    pending = data.draw(st.booleans())
    inside = data.draw(st.booleans())
    outside = data.draw(near(fuzzed.size - size, fuzzed.size, TOP).filter(
        lambda n: n + size > fuzzed.size))  # fmt: skip
    destination = "address(window)" if inside else str(outside)
    ask = f"ask(b'[\"echo\",[\"' + b'x' * {size} + b'\"],{{}}]')\n" if pending else ""

    stop = fuzzed.run(f"window = bytes({size + 100})\n{ask}host.take({destination})")

    assert stop == ("finished" if pending and inside else "trap")


def test_memory_that_grew_inside_a_program_can_be_used_by_its_calls(session: TestSession) -> None:
    grown = session.value(
        RAW
        + """
request = b'["echo",["x"],{}]'
sizes = []
for _ in range(6):
    block = bytes(8_000_000)
    sizes.append(ask(request, address(block) + 7_990_000, 9_000))
sizes
"""
    )

    assert grown == "[4, 4, 4, 4, 4, 4]"


def test_the_end_of_memory_is_exact_after_growth(session: TestSession) -> None:
    size = session.run("block = bytes(20_000_000)").charge.memory_bytes

    last = session.run(RAW + f"host.stdio(2, {size - 1}, 1)")
    beyond = session.run(RAW + f"host.stdio(2, {size}, 1)")

    assert (last.stop, last.charge.output_bytes) == ("finished", 1)
    assert beyond.stop == "trap"
    assert session.value("len(block)") == "20000000"


def test_a_reply_is_written_where_it_was_asked_for_and_nowhere_else(session: TestSession) -> None:
    written = session.value(
        RAW
        + """
block = bytes(300)
n = ask(b'["echo",["abc"],{}]', address(block) + 100, 50)
now = bytes(bytearray(block))
n, now[100:106], now[:100].count(0), now[106:].count(0)
"""
    )

    assert written == "(6, b'0\"abc\"', 100, 194)"


# -- windows and results ---------------------------------------------------------------------------


class Memory:
    """A guest's memory, as far as reading output back goes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, address: int, length: int) -> bytes:
        if address < 0 or length < 0 or address + length > len(self._data):
            return b""
        return self._data[address : address + length]


@given(
    count=near(0, 1, 100, 16_384, TOP),
    address=st.integers(-8, 600) | near(0, TOP),
    size=st.sampled_from([0, 100, 16_384]),
    room=st.integers(0, 300),
)
def test_a_forged_count_recovers_at_most_a_window_and_at_most_the_limit(
    count: int, address: int, size: int, room: int
) -> None:
    data = bytearray(b"m" * 500)
    if 0 <= address <= len(data) - 4:
        data[address : address + 4] = struct.pack("<I", count)
    streams = [OutputStream(inline_max=1_000, place=None) for _ in range(2)]
    output = ProgramOutput(stdout=streams[0], stderr=streams[1], bytes_max=room)
    memory: Any = Memory(bytes(data))

    execution.recover_output(memory, [(1, address, size), (2, address, size)], output)

    assert output.bytes_total <= min(room, 2 * size)
    assert set(streams[0].text()) <= set(data.decode("latin-1"))


keys = st.text() | st.sampled_from(["ok", "value", "exit", "restored"])
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(keys, inner),
)


@given(data=st.binary(max_size=200) | documents.map(lambda d: repr(d).encode(errors="replace")))
@example(data=b'{"ok":true,"value":"\xff"}')
@example(data=b'{"ok":true,"value":"\xed\xa0\x80"}')
@example(data=b'{"ok":true,"x":' + b"[" * 100_000)
@example(data=b'{"ok":false,"exit":' + b"9" * 5_000 + b"}")
def test_any_bytes_on_the_result_stream_are_a_result_or_none(data: bytes) -> None:
    said = read_report(data)

    assert said is None or isinstance(said.ok, bool)


@given(document=documents)
def test_any_document_on_the_result_stream_is_a_result_or_none(document: object) -> None:
    try:
        data = msgspec.json.encode(document)
    except (UnicodeEncodeError, msgspec.MsgspecError):
        return

    said = read_report(data)

    assert said is None or isinstance(said.ok, bool)


@pytest.mark.parametrize("data", [b"", b"\xff", b"{", b'{"ok":true,"value":"\xff"}', b"[" * 90_000])
def test_a_live_result_that_cannot_be_read_is_a_trap(data: bytes, session: TestSession) -> None:
    session.value("kept = 41")

    result = session.run(f"{FORGED}forge({data!r})")

    assert result.stop == "trap"
    assert session.value("kept") == "41"


def test_the_law_can_fail() -> None:
    """A check in 32 bits, as C would do it, breaks the law above: the law sees what we fear."""

    def wrapping(size: int, pointer: int, length: int) -> bool:
        return ctypes.c_uint32(pointer + length).value <= size

    assert wrapping(WASM_PAGE, TOP, 2)
    with pytest.raises(BadPointer):
        check(Grower(size=WASM_PAGE, now=WASM_PAGE), TOP, 2)  # type: ignore[arg-type]
