"""A module's memory and globals, exchanged for others: what is read back is what was given."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.guest.parts import Running
from tests.guest.wat import GUEST_COMPONENT, assemble
from tools.guest.rewind import module_bytes
from tools.guest.wasm.binary import BadWasm
from tools.guest.wasm.component import parse_component
from tools.guest.wasm.module import parse_module
from tools.guest.wasm.state import PAGE_BYTES, memory_image, replace_core_modules, with_state

MODULE = assemble(
    """(module
    (global $fixed (export "fixed") i32 (i32.const 7))
    (global $small (export "small") (mut i32) (i32.const 1))
    (global $large (export "large") (mut i64) (i64.const 2))
    (global $float (export "float") (mut f64) (f64.const 3))
    (memory (export "memory") 1)
    (data (i32.const 10) "hello")
    (func (export "byte") (param i32) (result i32) (i32.load8_u (local.get 0))))"""
)

# Runs of bytes at places, close together or far apart: what separates segments is runs of zeros.
places = st.integers(0, 3 * PAGE_BYTES - 40)
runs = st.dictionaries(places | st.integers(100, 400), st.binary(max_size=40), max_size=6)


def memory_of(content: dict[int, bytes]) -> bytes:
    memory = bytearray(3 * PAGE_BYTES)
    for start, run in content.items():
        memory[start : start + len(run)] = run
    return bytes(memory)


@given(runs)
def test_the_memory_that_was_set_is_the_memory_at_the_start(content: dict[int, bytes]) -> None:
    memory = memory_of(content)

    changed = with_state(MODULE, memory=memory)

    assert memory_image(parse_module(changed)) == memory
    running = Running(changed)
    for start, run in content.items():
        for place in (start, start + len(run)):
            assert running.call("byte", place) == memory[place]


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1))
def test_globals_have_the_values_that_were_set(small: int, large: int) -> None:
    running = Running(with_state(MODULE, values={1: small, 2: large}))

    values = [running.value(name) for name in ("fixed", "small", "large", "float")]
    assert values == [7, small, large, 3.0]
    assert running.call("byte", 10) == ord("h")


@pytest.mark.parametrize("number", [0, 3])
def test_only_an_integer_that_can_change_is_set(number: int) -> None:
    with pytest.raises(BadWasm, match=f"global {number} is not an integer that can change"):
        with_state(MODULE, values={number: 1})


def test_part_of_a_page_is_no_memory() -> None:
    with pytest.raises(BadWasm, match="part of a page"):
        with_state(MODULE, memory=bytes(PAGE_BYTES + 1))


def test_a_module_without_memory_is_given_none() -> None:
    with pytest.raises(BadWasm, match="no memory of its own"):
        with_state(assemble("(module)"), memory=bytes(PAGE_BYTES))


def test_a_segment_outside_of_memory_is_refused() -> None:
    module = assemble('(module (memory 1) (data (i32.const 65534) "abc"))')

    with pytest.raises(BadWasm, match="outside of memory"):
        memory_image(parse_module(module))


def test_a_component_with_one_module_replaced_keeps_the_others() -> None:
    component = parse_component(assemble(GUEST_COMPONENT))
    other = assemble("(module (memory 2))")

    changed = parse_component(replace_core_modules(component, {2: other}))

    assert module_bytes(changed, 2) == other
    for number in (0, 1, 3):
        assert module_bytes(changed, number) == module_bytes(component, number)
    assert replace_core_modules(component, {}) == component.data
