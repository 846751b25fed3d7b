"""Merging: what comes out runs like what went in, and says what it can change."""

import pytest
from tests.guest.parts import Running, merged, part
from tools.guest.wasm.binary import BadWasm
from tools.guest.wasm.module import parse_module
from tools.guest.wasm.numbering import Target
from tools.guest.wasm.rewrite import BLANK_BODY


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
