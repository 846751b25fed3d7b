"""Every instruction in the tables, held against the engine's own idea of it."""

import pytest
import wasmtime
from tests.guest.wat import assemble
from tools.guest.wasm import binary
from tools.guest.wasm.binary import BadWasm
from tools.guest.wasm.merge import merge
from tools.guest.wasm.module import parse_module
from tools.guest.wasm.numbering import Part, Target
from tools.guest.wasm.opcodes import BULK_OPCODES, OPCODES, VECTOR_OPCODES, Immediate

# A module with one of everything an instruction can name. The body of `probe` is replaced.
WORLD = """
(module
  (type $nothing (func))
  (import "host" "f" (func $f))
  (table 1 funcref)
  (memory 1)
  (tag (type $nothing))
  (global (mut i32) (i32.const 0))
  (elem funcref (ref.func $f))
  (func $probe (export "probe") (local i32) (unreachable))
  (data "abc"))
"""
BODY = bytes([1, 1, 0x7F, 0x00, 0x0B])

# What to write after an opcode so that the world above makes it valid.
SAMPLES = {
    Immediate.NONE: b"",
    Immediate.NUMBER_32: b"\x00",
    Immediate.NUMBER_64: b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00",
    Immediate.BYTES_4: b"\x0b\x0b\x0b\x0b",
    Immediate.BYTES_8: b"\x0b" * 8,
    Immediate.BYTES_16: b"\x0b" * 16,
    Immediate.LANE: b"\x01",
    Immediate.BLOCK: b"\x40\x0b",
    Immediate.TRY_TABLE: b"\x40\x02\x00\x00\x00\x02\x00\x0b",
    Immediate.BRANCH_TABLE: b"\x02\x00\x00\x00",
    Immediate.VALUE_TYPES: b"\x01\x7f",
    Immediate.REFERENCE_TYPE: b"\x70",
    Immediate.MEMORY_ADDRESS: b"\x00\xff\x01",
    Immediate.MEMORY_ADDRESS_LANE: b"\x00\xff\x01\x00",
    Immediate.MEMORY: b"\x00",
    Immediate.MEMORY_PAIR: b"\x00\x00",
    Immediate.MEMORY_GROW: b"\x00",
    Immediate.FUNCTION: b"\x00",
    Immediate.TYPE_TABLE: b"\x00\x00",
    Immediate.GLOBAL: b"\x00",
    Immediate.GLOBAL_WRITE: b"\x00",
    Immediate.TABLE: b"\x00",
    Immediate.TABLE_WRITE: b"\x00",
    Immediate.TABLE_COPY: b"\x00\x00",
    Immediate.TABLE_INIT: b"\x00\x00",
    Immediate.TAG: b"\x00",
    Immediate.DATA_MEMORY: b"\x00\x00",
    Immediate.DATA_DROP: b"\x00",
    Immediate.ELEMENT_DROP: b"\x00",
}
# Instructions that only stand inside a block.
INSIDE_A_BLOCK = {0x05: b"\x04\x40\x05\x0b", 0x0B: b"\x02\x40\x0b"}


def known() -> list[bytes]:
    """Every instruction of the tables with something fitting after it."""
    prefixes = (Immediate.PREFIX_BULK, Immediate.PREFIX_VECTOR)
    plain = [
        INSIDE_A_BLOCK.get(code, bytes([code]) + SAMPLES[immediate])
        for code, immediate in OPCODES.items()
        if immediate not in prefixes
    ]
    bulk = [b"\xfc" + binary.unsigned(c) + SAMPLES[i] for c, i in BULK_OPCODES.items()]
    vector = [b"\xfd" + binary.unsigned(c) + SAMPLES[i] for c, i in VECTOR_OPCODES.items()]
    return plain + bulk + vector


def unknown() -> list[bytes]:
    plain = [bytes([code]) for code in range(0x100) if code not in OPCODES]
    bulk = [b"\xfc" + binary.unsigned(code) for code in range(0x40) if code not in BULK_OPCODES]
    vector = [
        b"\xfd" + binary.unsigned(code) for code in range(0x140) if code not in VECTOR_OPCODES
    ]
    return plain + bulk + vector


def probe(instruction: bytes) -> bytes:
    """A module whose one function is `instruction`, between two traps that let any stack pass."""
    world = assemble(WORLD)
    old = binary.unsigned(len(BODY)) + BODY
    body = bytes([1, 1, 0x7F, 0x00]) + instruction + b"\x00\x0b"
    section = binary.section(10, binary.vector([old]))
    assert world.count(section) == 1
    new = binary.section(10, binary.vector([binary.unsigned(len(body)) + body]))
    # Instructions that name a data segment want to know before the code how many there are.
    return world.replace(section, binary.section(12, b"\x01") + new)


def bodies(data: bytes) -> list[bytes]:
    return [data[start:end] for start, end in parse_module(data).bodies]


def engine() -> wasmtime.Engine:
    config = wasmtime.Config()
    config.wasm_exceptions = True
    return wasmtime.Engine(config)


def merged(data: bytes) -> bytes:
    return merge([Part.of("a", data)], keep={"probe": Target("a", "probe")}).data


def test_a_known_instruction_is_what_the_engine_takes_it_for() -> None:
    this_engine = engine()

    for instruction in known():
        data = probe(instruction)
        wasmtime.Module.validate(this_engine, data)

        # With one part nothing is renumbered, so an instruction read right is copied as it was.
        assert bodies(merged(data)) == bodies(data), instruction.hex()


def test_an_unknown_instruction_is_refused_where_it_stands() -> None:
    for instruction in unknown():
        data = probe(instruction)
        (start, _end), *_ = parse_module(data).bodies

        with pytest.raises(BadWasm, match="unsupported instruction") as caught:
            merged(data)

        assert caught.value.offset == start + 4, instruction.hex()


def test_an_instruction_that_is_cut_short_is_refused() -> None:
    for instruction in known():
        for length in range(1, len(instruction)):
            part = Part.of("a", probe(instruction[:length]))
            start, end = part.module.bodies[0]
            # Without the bytes that follow, which could stand for the missing ones.
            part.module.bodies[0] = start, end - 2

            with pytest.raises(BadWasm):
                merge([part], keep={"probe": Target("a", "probe")})


@pytest.mark.parametrize(
    "instruction",
    [
        pytest.param(b"\x06\x40\x0b", id="the old try"),
        pytest.param(b"\x14\x00", id="call_ref"),
        pytest.param(b"\xfb\x00\x00", id="garbage collection"),
        pytest.param(b"\xfd\x80\x02", id="relaxed vectors"),
        pytest.param(b"\xfe\x03\x00", id="threads"),
        pytest.param(b"\xfc\x80\x80\x80\x80\x10", id="a number no prefix has"),
    ],
)
def test_what_is_left_out_on_purpose_stays_out(instruction: bytes) -> None:
    with pytest.raises(BadWasm, match="unsupported instruction"):
        merged(probe(instruction))
