"""Whatever the bytes: reading and merging them ends in a result or in `BadWasm`."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from functools import cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.guest.wat import GUEST_COMPONENT, assemble
from tests.laws.module_sets import ModuleSet, module_sets
from tools.guest.build import check_guest
from tools.guest.componentize import GuestBuildError
from tools.guest.link import link_guest
from tools.guest.wasm import binary
from tools.guest.wasm.binary import COMPONENT_HEADER, MODULE_HEADER, BadWasm, Reader, sections
from tools.guest.wasm.component import parse_component
from tools.guest.wasm.merge import merge
from tools.guest.wasm.module import parse_module
from tools.guest.wasm.numbering import Part, Target

pytestmark = pytest.mark.slow

# A profile that asks for more examples gets more here too.
SCALE = max(1, settings().max_examples // 100)
LARGEST = b"\xff\xff\xff\xff\x0f"
BYTES_MAX = 1 << 20


@cache
def component() -> bytes:
    return assemble(GUEST_COMPONENT)


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Change, add or take away a few bytes; sometimes leave the end out."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(changed) - 1))
        match draw(st.sampled_from(["set", "insert", "delete", "cut", "largest"])):
            case "set":
                changed[place] = draw(st.integers(0, 255))
            case "insert":
                changed.insert(place, draw(st.integers(0, 255)))
            case "delete":
                del changed[place]
            case "largest":
                changed[place : place + 1] = LARGEST
            case _:
                del changed[max(place, 8) :]
    return bytes(changed)


def build(data: bytes) -> None:
    """Do what the builder does with a component. Anything but a refusal is a failure."""
    with suppress(BadWasm, GuestBuildError):
        check_guest(link_guest(data))


def test_undamaged_the_component_is_a_guest() -> None:
    check_guest(link_guest(component()))


@settings(max_examples=400 * SCALE)
@given(data=st.data())
def test_a_damaged_component_is_built_or_refused(data: st.DataObject) -> None:
    build(data.draw(damaged(component())))


@settings(max_examples=60 * SCALE)
@given(length=st.integers(0, 4_000))
def test_a_component_that_is_cut_inside_a_section_is_refused(length: int) -> None:
    walk = sections(Reader(component()), header=COMPONENT_HEADER)
    assume(length < len(component()) and length not in {each.start for each in walk})

    with pytest.raises(BadWasm):
        link_guest(component()[:length])


@settings(max_examples=100 * SCALE)
@given(modules=module_sets(), data=st.data())
def test_damaged_modules_are_merged_or_refused(modules: ModuleSet, data: st.DataObject) -> None:
    parts = {label: assemble(text) for label, text in modules.texts.items()}
    label = data.draw(st.sampled_from(sorted(parts)))
    parts[label] = data.draw(damaged(parts[label]))
    keep = {
        f"{each.label}.{each.name}": Target(each.label, each.name) for each in modules.functions
    }

    with suppress(BadWasm, GuestBuildError):
        # Valid or not: the builder looks at what was merged before anybody else does.
        check_guest(merge([Part.of(name, each) for name, each in parts.items()], keep=keep))


@given(rest=st.binary(max_size=200), header=st.sampled_from([MODULE_HEADER, COMPONENT_HEADER]))
def test_any_bytes_after_a_header_are_read_or_refused(rest: bytes, header: bytes) -> None:
    read = parse_module if header == MODULE_HEADER else parse_component

    with suppress(BadWasm):
        read(header + rest)


@settings(max_examples=150 * SCALE)
@given(place=st.integers(8, 1_600))
def test_no_number_however_large_makes_the_reader_take_much_memory(place: int) -> None:
    data = component()[:place] + LARGEST + component()[place + 1 :]

    tracemalloc.start()
    try:
        build(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < BYTES_MAX


@given(value=st.integers(0, 2**32 - 1))
def test_an_unsigned_number_is_read_as_it_was_written(value: int) -> None:
    written = binary.unsigned(value)
    reader = Reader(written + b"\xff")

    assert reader.unsigned() == value
    assert reader.left == 1
    assert len(written) == max(1, -(-value.bit_length() // 7))


@given(value=st.integers(-(2**63), 2**63 - 1))
def test_a_signed_number_is_read_as_it_was_written(value: int) -> None:
    written = binary.signed(value)
    reader = Reader(written + b"\xff")

    assert reader.signed(64) == value
    assert reader.left == 1


@given(value=st.integers(-(2**32), 2**32 - 1))
def test_a_number_that_does_not_fit_is_refused_and_one_that_fits_is_not(value: int) -> None:
    reader = Reader(binary.signed(value))

    if -(2**31) <= value < 2**31:
        assert reader.signed(32) == value
    else:
        with pytest.raises(BadWasm):
            reader.signed(32)


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_a_name_is_read_as_it_was_written(text: str) -> None:
    assert Reader(binary.name(text)).name() == text


@given(data=st.binary(max_size=12), bits=st.sampled_from([32, 33, 64]))
def test_reading_a_number_never_goes_past_its_longest_form(data: bytes, bits: int) -> None:
    for read in (Reader.unsigned, Reader.signed):
        reader = Reader(data)
        with suppress(BadWasm):
            read(reader, bits)
        assert reader.position <= -(-bits // 7)
