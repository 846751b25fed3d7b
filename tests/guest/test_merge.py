"""Merging: what comes out runs like what went in, and says what it can change."""

import pytest
import wasmtime
from tests.guest.wat import assemble

from tallystick.guest.binary import BadWasm
from tallystick.guest.merge import Merged, merge
from tallystick.guest.module import Kind, parse_module
from tallystick.guest.numbering import Part, Target
from tallystick.guest.rewrite import BLANK_BODY


def part(label: str, text: str) -> Part:
    return Part.of(label, assemble(f"(module {text})"))


def merged(*parts: Part, keep: dict[str, Target] | None = None, grow: str = "") -> Merged:
    """Merge, keeping every export of the last part unless told otherwise."""
    last = parts[-1]
    if keep is None:
        keep = {each.name: Target(last.label, each.name) for each in last.module.exports}
    label, _, name = grow.partition(".")
    return merge(parts, keep=keep, grow=Target(label, name) if grow else None)


class Running:
    """A merged module, instantiated."""

    def __init__(self, data: bytes) -> None:
        config = wasmtime.Config()
        config.wasm_exceptions = True
        engine = wasmtime.Engine(config)
        self.store = wasmtime.Store(engine)
        module = wasmtime.Module(engine, data)
        self.exports = wasmtime.Instance(self.store, module, []).exports(self.store)

    def call(self, name: str, *arguments: int) -> object:
        function = self.exports[name]
        assert isinstance(function, wasmtime.Func)
        return function(self.store, *arguments)

    def value(self, name: str) -> object:
        found = self.exports[name]
        assert isinstance(found, wasmtime.Global)
        return found.value(self.store)


def test_a_call_into_another_part_becomes_a_call_in_the_same_module() -> None:
    one = part(
        "one", '(func (export "f") (param i32) (result i32) (i32.mul (local.get 0) (i32.const 3)))'
    )
    two = part(
        "two",
        """(import "one" "f" (func $f (param i32) (result i32)))
        (func (export "g") (param i32) (result i32)
          (i32.add (call $f (local.get 0)) (i32.const 1)))""",
    )

    result = merged(one, two)

    assert parse_module(result.data).imports == []
    assert Running(result.data).call("g", 5) == 16


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


def test_a_function_nobody_reaches_is_blanked_and_keeps_its_number() -> None:
    one = part(
        "one",
        """(func (export "f") (call $used)) (func $unused (call $also_unused))
        (func $also_unused) (func $used)""",
    )

    result = merged(one)

    module = parse_module(result.data)
    bodies = [result.data[start:end] for start, end in module.bodies]
    assert [body == BLANK_BODY for body in bodies] == [False, True, True, False]
    assert (result.functions, result.functions_blank) == (4, 2)


def test_a_blanked_function_is_not_even_read() -> None:
    refused = "(func $unused (drop (i32.atomic.load (i32.const 0))))"

    assert merged(part("one", f'(memory 1) {refused} (func (export "f"))')).functions_blank == 1
    with pytest.raises(BadWasm, match="unsupported instruction 0xfe"):
        merged(part("one", f'(memory 1) {refused} (func (export "f") (call $unused))'))


@pytest.mark.parametrize(
    "holder",
    [
        "(table 1 funcref) (elem (i32.const 0) func $held)",
        "(table 1 funcref) (elem (table 0) (i32.const 0) funcref (ref.func $held))",
        "(elem func $held)",
        "(elem funcref (ref.func $held))",
        "(global funcref (ref.func $held))",
    ],
)
def test_a_function_that_a_table_or_a_global_holds_is_reachable(holder: str) -> None:
    one = part("one", f'(func $held (nop) (nop)) {holder} (func (export "f"))')

    assert merged(one).functions_blank == 0


def test_a_reference_made_while_running_reaches_its_function() -> None:
    one = part(
        "one",
        """(table 1 funcref) (elem declare func $held) (func $held (nop))
        (func (export "f") (drop (ref.func $held)))""",
    )

    assert merged(one).functions_blank == 0


def test_every_global_a_reachable_function_writes_is_state() -> None:
    one = part(
        "one",
        """(global $constant i32 (i32.const 1)) (global $read (mut i32) (i32.const 2))
        (global $written (mut i64) (i64.const 3)) (global $dead (mut i32) (i32.const 4))
        (global $named (export "named") (mut i32) (i32.const 5))
        (func $unused (global.set $dead (i32.const 0)))
        (func (export "f") (result i32)
          (global.set $written (i64.const 9)) (global.set $named (i32.const 8))
          (i32.add (global.get $read) (global.get $constant)))""",
    )

    result = merged(one)
    running = Running(result.data)

    assert result.state == ("state.2", "named")
    assert running.call("f") == 3
    assert (running.value("state.2"), running.value("named")) == (9, 8)


def test_a_kept_global_that_can_change_is_state_even_if_only_the_host_writes_it() -> None:
    one = part(
        "one",
        '(global (export "a") (mut i32) (i32.const 1)) (global (export "b") i32 (i32.const 2))',
    )

    assert merged(one).state == ("a",)


def test_a_global_written_in_another_part_is_one_global() -> None:
    one = part(
        "one", '(global (mut i32) (i32.const 0)) (global (export "g") (mut i32) (i32.const 0))'
    )
    two = part(
        "two",
        """(import "one" "g" (global $g (mut i32)))
        (func (export "f") (global.set $g (i32.const 1)))""",
    )

    assert merged(one, two).state == ("state.1",)


GROW = """
(import "one" "memory" (memory 0))
(global (export "asked") (mut i32) (i32.const 0))
(func (export "grow") (param i32) (result i32)
  (global.set 0 (i32.add (global.get 0) (i32.const 1)))
  (if (result i32) (i32.gt_u (local.get 0) (i32.const 2))
    (then (i32.const -1)) (else (memory.grow (local.get 0)))))
(func (export "size") (result i32) (memory.size))
"""


def test_every_other_growth_of_memory_asks_the_one_function_that_may() -> None:
    one = part(
        "one",
        '(memory (export "memory") 1) (func (export "f") (param i32) (result i32)'
        " (memory.grow (memory.grow (local.get 0))))",
    )
    two = part("two", GROW)
    keep = {"f": Target("one", "f"), "asked": Target("two", "asked"), "size": Target("two", "size")}

    running = Running(merged(one, two, keep=keep, grow="two.grow").data)

    assert running.call("f", 1) == 2
    assert running.call("size") == 3
    assert running.call("f", 3) == -1
    assert (running.call("size"), running.value("asked")) == (3, 4)


def test_without_such_a_function_memory_grows_as_written() -> None:
    one = part(
        "one", '(memory 1) (func (export "f") (param i32) (result i32) (memory.grow (local.get 0)))'
    )

    assert Running(merged(one).data).call("f", 7) == 1


@pytest.mark.parametrize("export", ["(param i64) (result i32) (i32.const 0)", "(param i32)"])
def test_a_growth_function_of_another_type_is_refused(export: str) -> None:
    one = part("one", f'(func (export "grow") {export})')

    with pytest.raises(BadWasm, match=r"one\.grow is not a function from i32 to i32"):
        merged(one, grow="one.grow")


@pytest.mark.parametrize(
    ("instruction", "what"),
    [
        ("(table.set (i32.const 0) (ref.null func))", "a table entry"),
        ("(drop (table.grow (ref.null func) (i32.const 1)))", "a table entry"),
        ("(table.fill (i32.const 0) (ref.null func) (i32.const 1))", "a table entry"),
        ("(table.copy (i32.const 0) (i32.const 0) (i32.const 1))", "a table entry"),
        ("(table.init 0 (i32.const 0) (i32.const 0) (i32.const 0))", "a table entry"),
        ("(elem.drop 0)", "a dropped element segment"),
        ("(data.drop 0)", "a dropped data segment"),
    ],
)
def test_a_change_no_snapshot_can_carry_is_reported(instruction: str, what: str) -> None:
    world = '(table 1 funcref) (memory 1) (elem funcref) (data "a")'
    text = f"{world} (func $change {instruction}) (func $do (call $change)) (func $not)"

    reachable = merged(part("one", f'{text} (export "f" (func $do))'))
    blanked = merged(part("one", f'{text} (export "f" (func $not))'))
    at_start = merged(part("one", f'{text} (export "f" (func $not)) (start $do)'))

    assert reachable.unseen_writes == (f"function 0 changes {what}",)
    assert blanked.unseen_writes == ()
    assert at_start.unseen_writes == ()


def test_start_functions_run_once_each_in_the_order_of_their_parts() -> None:
    one = part(
        "one",
        """(global $log (export "log") (mut i32) (i32.const 0))
        (func $start (global.set $log (i32.add (global.get $log) (i32.const 1)))) (start $start)""",
    )
    two = part(
        "two",
        """(import "one" "log" (global $log (mut i32))) (export "log" (global $log))
        (func $start (global.set $log (i32.mul (global.get $log) (i32.const 10))))
        (start $start)""",
    )

    assert Running(merged(one, two).data).value("log") == 10


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


def test_block_types_keep_their_sign_when_their_number_needs_a_second_byte() -> None:
    # Type 64 in one byte would read as a negative number: some other type.
    many = " ".join(f"(type (func (param {'i32 ' * n}) (result i64)))" for n in range(70))
    two = part(
        "two",
        """(func (export "f") (result i32 i32)
          (i32.const 3) (i32.const 4)
          (block (param i32 i32) (result i32 i32) (i32.const 5) (drop)))""",
    )

    result = merged(part("one", many), two)

    assert len(parse_module(result.data).types) > 64
    assert Running(result.data).call("f") == [3, 4]


def test_exceptions_cross_from_part_to_part() -> None:
    one = part(
        "one", '(tag) (tag (export "t") (param i32)) (func (export "f") (throw 1 (i32.const 6)))'
    )
    two = part(
        "two",
        """(import "one" "t" (tag $t (param i32))) (import "one" "f" (func $f))
        (func (export "g") (result i32)
          (block $caught (result i32)
            (try_table (catch $t $caught) (call $f))
            (i32.const 0)))""",
    )

    assert Running(merged(one, two).data).call("g") == 6


def test_segments_are_named_by_their_new_numbers() -> None:
    one = part(
        "one",
        """(memory (export "m") 1) (data "first") (table (export "t") 4 funcref)
        (func $a (result i32) (i32.const 1)) (elem func $a)""",
    )
    two = part(
        "two",
        """(import "one" "m" (memory 1)) (import "one" "t" (table 4 funcref))
        (table $own 2 funcref) (func $b (result i32) (i32.const 2)) (elem func $b) (data "second")
        (func (export "f") (result i32)
          (memory.init 0 (i32.const 0) (i32.const 0) (i32.const 6))
          (table.init $own 0 (i32.const 1) (i32.const 0) (i32.const 1))
          (i32.add (call_indirect $own (result i32) (i32.const 1))
            (i32.load8_u (i32.const 0))))""",
    )

    assert Running(merged(one, two).data).call("f") == 2 + ord("s")


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
