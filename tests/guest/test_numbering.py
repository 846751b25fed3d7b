"""Numbering: who may import what from whom, and which modules can be read at all."""

import pytest
from tests.guest.parts import Running, merged, part
from tests.guest.wat import assemble
from tools.guest.wasm.binary import BadWasm
from tools.guest.wasm.merge import merge
from tools.guest.wasm.module import Kind, parse_module
from tools.guest.wasm.numbering import Part, Target


def test_only_imports_from_the_host_are_left_and_each_of_them_once() -> None:
    one = part(
        "one",
        '(import "host" "b" (func)) (import "host" "a" (func (param i32))) (func (export "f"))',
    )
    two = part("two", '(import "host" "a" (func (param i32))) (import "one" "f" (func))')

    imports = parse_module(merged(one, two).data).imports

    assert [(each.module, each.name) for each in imports] == [("host", "b"), ("host", "a")]


def test_equal_types_are_kept_once() -> None:
    one = part("one", '(type (func (param i32))) (type (func (param i32))) (func (export "f"))')
    two = part("two", '(type (func (param i32))) (func (export "g") (result i64) (i64.const 1))')

    assert len(parse_module(merged(one, two).data).types) == 3


def test_segments_that_would_be_copied_before_an_earlier_start_are_refused() -> None:
    one = part("one", '(memory (export "m") 1) (func $start) (start $start)')

    with pytest.raises(BadWasm, match="two: segments to copy after an earlier part has started"):
        merged(one, part("two", '(import "one" "m" (memory 1)) (data (i32.const 0) "a")'))


def test_constants_of_other_parts_are_computed_and_written_out() -> None:
    one = part("one", '(global (export "base") i32 (i32.const 1000)) (memory (export "m") 1)')
    two = part(
        "two",
        """(import "one" "base" (global $base i32)) (import "one" "m" (memory 1))
        (global $far i32 (i32.sub (i32.mul (global.get $base) (i32.const 3)) (i32.const 4)))
        (global $wraps i32 (i32.add (i32.const 0x7fffffff) (i32.const 1)))
        (global $long i64 (i64.mul (i64.const -5) (i64.const 7)))
        (data (global.get $far) "x")
        (func (export "far") (result i32) (i32.load8_u (i32.const 2996)))
        (func (export "wraps") (result i32) (global.get $wraps))
        (func (export "long") (result i64) (global.get $long))""",
    )

    running = Running(merged(one, two).data)

    assert running.call("far") == ord("x")
    assert running.call("wraps") == -(2**31)
    assert running.call("long") == -35


def test_constants_of_every_type_cross_from_part_to_part() -> None:
    one = part(
        "one",
        """(global (export "f") f32 (f32.const 1.5)) (global (export "d") f64 (f64.const -2.25))
        (global (export "v") v128 (v128.const i32x4 1 2 3 4))
        (global (export "n") funcref (ref.null func)) (func $seven (result i32) (i32.const 7))
        (global (export "r") funcref (ref.func $seven))""",
    )
    two = part(
        "two",
        """(import "one" "f" (global $f f32)) (import "one" "d" (global $d f64))
        (import "one" "v" (global $v v128)) (import "one" "n" (global $n funcref))
        (import "one" "r" (global $r funcref))
        (global $f2 f32 (global.get $f)) (global $d2 f64 (global.get $d))
        (global $v2 v128 (global.get $v)) (table 2 funcref)
        (elem (i32.const 0) funcref (global.get $n) (global.get $r))
        (func (export "f") (result f32) (global.get $f2))
        (func (export "d") (result f64) (global.get $d2))
        (func (export "v") (result i32) (i32x4.extract_lane 2 (global.get $v2)))
        (func (export "n") (result i32) (ref.is_null (table.get (i32.const 0))))
        (func (export "r") (result i32) (call_indirect (result i32) (i32.const 1)))""",
    )

    running = Running(merged(one, two).data)

    assert [running.call(name) for name in "fdvnr"] == [1.5, -2.25, 3, 1, 7]


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        (b"\x23\x00\x0b", "can change"),
        (b"\x0b", "leaves 0 values"),
        (b"\x41\x00\x41\x00\x0b", "leaves 2 values"),
        (b"\x41\x00\x6a\x0b", "without two numbers"),
        (b"\x41\x00\x42\x00\x6a\x0b", "without two numbers"),
        (b"\x23\x01\x0b", "global 1 of 1"),
        (b"\xd2\x00\x0b", "function 0 of 0"),
        (b"\x45\x0b", "unsupported instruction 0x45"),
        (b"\xfd\x0d\x0b", "unsupported instruction 0xfd"),
        (b"\x41\x00", "found the end"),
    ],
)
def test_an_expression_that_is_not_constant_is_refused(expression: bytes, problem: str) -> None:
    first = b"\x7f\x01\x41\x00\x0b"
    content = b"\x02" + first + b"\x7f\x00" + expression
    data = assemble("(module)")[:8] + bytes([6, len(content)]) + content

    with pytest.raises(BadWasm, match=problem):
        merge([Part.of("one", data)], keep={})


@pytest.mark.parametrize(
    ("exported", "imported"),
    [
        ('(func (export "x"))', "(func (param i32))"),
        ('(func (export "x"))', "(global i32)"),
        ('(global (export "x") i32 (i32.const 0))', "(global i64)"),
        ('(global (export "x") i32 (i32.const 0))', "(global (mut i32))"),
        ('(memory (export "x") 1)', "(memory 2)"),
        ('(memory (export "x") 1)', "(memory 1 2)"),
        ('(table (export "x") 1 funcref)', "(table 1 externref)"),
        ('(table (export "x") 1 funcref)', "(table 2 funcref)"),
        ('(tag (export "x"))', "(tag (param i32))"),
    ],
)
def test_an_import_of_another_type_is_refused(exported: str, imported: str) -> None:
    two = part("two", f'(import "one" "x" {imported})')

    with pytest.raises(BadWasm, match=r"two: one\.x is not of the type it is imported with"):
        merged(part("one", exported), two)


def test_an_import_nobody_gives_is_refused() -> None:
    two = part("two", '(import "one" "y" (func))')

    with pytest.raises(BadWasm, match=r"two: no earlier part exports one\.y"):
        merged(part("one", '(func (export "x"))'), two)


def test_a_part_can_not_import_from_a_later_one() -> None:
    one = part("one", '(import "two" "x" (func))')

    with pytest.raises(BadWasm, match=r"one: no earlier part exports two\.x"):
        merged(one, part("two", '(func (export "x"))'))


@pytest.mark.parametrize("wanted", ["(global i32)", "(memory 1)", "(table 1 funcref)", "(tag)"])
def test_the_host_gives_functions_only(wanted: str) -> None:
    with pytest.raises(BadWasm, match=r"one: host\.x is not a function"):
        merged(part("one", f'(import "host" "x" {wanted})'))


def test_one_host_function_with_two_types_is_refused() -> None:
    one = part("one", '(import "host" "x" (func))')

    with pytest.raises(BadWasm, match=r"two: host\.x has another type"):
        merged(one, part("two", '(import "host" "x" (func (param i32)))'))


def test_two_parts_of_one_name_are_refused() -> None:
    one = part("one", '(func (export "x"))')

    with pytest.raises(BadWasm, match=r"one\.x is exported twice"):
        merged(one, one)


def test_keeping_what_nobody_exports_is_refused() -> None:
    with pytest.raises(BadWasm, match=r"no part exports one\.y"):
        merged(part("one", '(func (export "x"))'), keep={"y": Target("one", "y")})


def test_two_memories_are_refused() -> None:
    one, two = part("one", '(memory 1) (func (export "f"))'), part("two", "(memory 1)")

    with pytest.raises(BadWasm, match="two: more than one memory"):
        merged(one, two)


def test_a_part_may_not_use_the_memory_of_another_without_importing_it() -> None:
    one = part("one", "(memory 1)")
    # As the engine would refuse to assemble it, the body is written by hand: memory.size, drop.
    two = part("two", '(func (export "f") (nop) (nop) (nop))')
    start, _ = two.module.bodies[0]
    data = bytearray(two.module.data)
    data[start + 1 : start + 4] = b"\x3f\x00\x1a"

    with pytest.raises(BadWasm, match="a memory instruction in a module without memory"):
        merged(one, Part.of("two", bytes(data)))


def test_tables_of_outside_references_keep_their_type() -> None:
    one = part(
        "one",
        """(table (export "t") 2 externref) (elem externref)
        (elem (table 0) (i32.const 0) externref (ref.null extern))
        (func (export "f") (result i32) (ref.is_null (table.get (i32.const 0))))""",
    )

    assert Running(merged(one).data).call("f") == 1


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x0e\x00", "unknown section 14"),
        (b"\x03\x01\x00\x01\x01\x00", "section 1 twice or out of order"),
        (b"\x01\x01\x00\x01\x01\x00", "section 1 twice or out of order"),
        (b"\x01\x02\x01\x5f", "unsupported type 0x5f"),
        (b"\x01\x02\x00\x00", "1 bytes after the end of section 1"),
        (b"\x02\x06\x01\x00\x00\x05\x00\x00", "unsupported kind 0x05"),
        (b"\x03\x02\x01\x00", "type 0 of 0"),
        (b"\x04\x03\x01\x64\x00", "unsupported reference type 0x64"),
        (b"\x05\x03\x01\x03\x01", "unsupported limits 0x03"),
        (b"\x06\x03\x01\x7f\x02", "unsupported mutability 0x02"),
        (b"\x07\x04\x01\x00\x00\x00", "FUNCTION 0 of 0"),
        (b"\x08\x01\x00", "function 0 of 0"),
        (b"\x09\x02\x01\x08", "unsupported element segment 8"),
        (b"\x09\x02\x01\x00", "a segment for TABLE 0 of 0"),
        (b"\x09\x04\x01\x01\x01\x00", "unsupported kind of element"),
        (b"\x0a\x03\x01\x01\x0b", "0 functions, 1 bodies"),
        (b"\x0b\x02\x01\x03", "unsupported data segment 3"),
        (b"\x0b\x02\x01\x00", "a segment for MEMORY 0 of 0"),
        (b"\x0c\x01\x02", "2 data segments, 0 found"),
        (b"\x0d\x03\x01\x01\x00", "unsupported kind of tag"),
    ],
)
def test_a_module_that_can_not_be_read_is_refused_with_the_reason(
    data: bytes, problem: str
) -> None:
    with pytest.raises(BadWasm, match=problem):
        Part.of("one", assemble("(module)")[:8] + data)


def test_an_export_of_the_merged_module_points_where_it_was_kept_from() -> None:
    one = part("one", '(func (export "a")) (memory (export "m") 1) (table (export "t") 1 funcref)')
    keep = {"x": Target("one", "a"), "y": Target("one", "m"), "z": Target("one", "t")}

    exports = parse_module(merged(one, keep=keep).data).exports

    assert [(each.name, each.kind) for each in exports] == [
        ("x", Kind.FUNCTION),
        ("y", Kind.MEMORY),
        ("z", Kind.TABLE),
    ]


def test_a_segment_that_only_declares_stays_one() -> None:
    one = part("one", '(func $f) (elem declare func $f) (elem func $f) (func (export "g") (nop))')

    elements = parse_module(merged(one).data).elements

    assert [each.declarative for each in elements] == [True, False]


def test_a_start_function_that_wants_something_is_refused() -> None:
    with pytest.raises(BadWasm, match="one: the start function takes or gives something"):
        merged(part("one", "(func $f (param i32)) (start $f)"))
