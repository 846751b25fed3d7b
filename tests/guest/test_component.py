"""Components: what is read, what is followed, and what is refused by name."""

import re

import pytest
from tests.guest.wat import GUEST_COMPONENT, RunningGuest, assemble
from tools.guest.link import HOST_INTERFACE, link_guest
from tools.guest.wasm import binary
from tools.guest.wasm.binary import COMPONENT_HEADER, I32, I64, BadWasm
from tools.guest.wasm.component import Sort, parse_component
from tools.guest.wasm.flatten import OUTSIDE_MEMORY, OUTSIDE_PLAIN, Plan, flatten
from tools.guest.wasm.merge import merge
from tools.guest.wasm.module import FunctionType
from tools.guest.wasm.numbering import HOST, Target

ONE_MODULE = """
(component
  (core module $m
    (memory (export "memory") 1)
    (global (export "__stack_pointer") (mut i32) (i32.const 0))
    (func (export "one") (result i32) (i32.const 1))
    (func (export "two") (result i32) (i32.const 2)))
  (core instance $i (instantiate $m))
  {rest})
"""


def plan_of(text: str, *, entry: str = "run") -> Plan:
    return flatten(parse_component(assemble(text)), host_interface=HOST_INTERFACE, entry=entry)


def raw(*sections: tuple[int, bytes]) -> bytes:
    return COMPONENT_HEADER + b"".join(binary.section(*each) for each in sections)


def test_modules_are_listed_in_the_order_they_are_instantiated() -> None:
    plan = plan_of(GUEST_COMPONENT)

    exports = [[each.name for each in part.module.exports][:1] for part in plan.parts]

    assert exports == [["$imports"], ["memory"], ["realloc"], []]


def test_an_import_is_followed_through_bundles_to_the_module_that_exports_it() -> None:
    plan = plan_of(GUEST_COMPONENT)
    _, env, main, fixup = plan.parts

    assert main.links[0] == Target(env.label, "memory")
    assert fixup.links[0] == Target(plan.parts[0].label, "$imports")


def test_functions_of_our_own_interface_become_imports_from_the_host() -> None:
    links = plan_of(GUEST_COMPONENT).parts[2].links

    assert links[3:6] == (Target(HOST, "call"), Target(HOST, "take"), Target(HOST, "stdio"))


def test_outside_functions_are_named_typed_and_sorted_by_whether_they_have_memory() -> None:
    plan = plan_of(GUEST_COMPONENT)

    found = {(each.target.label, each.interface, each.function): each.type for each in plan.outside}

    assert found == {
        (OUTSIDE_MEMORY, "wasi:random/random", "get-random-bytes"): FunctionType((I64, I32), ()),
        (OUTSIDE_PLAIN, "wasi:clocks/monotonic-clock", "now"): FunctionType((), (I64,)),
        (OUTSIDE_PLAIN, "wasi:io/poll", "[resource-drop]pollable"): FunctionType((I32,), ()),
    }


def test_an_outside_function_knows_its_allocator() -> None:
    plan = plan_of(GUEST_COMPONENT)
    bytes_, *_ = [each for each in plan.outside if each.function == "get-random-bytes"]

    assert bytes_.realloc == Target(plan.parts[2].label, "realloc")
    assert plan.memory == Target(plan.parts[1].label, "memory")


def test_run_is_found_by_its_name_and_not_by_its_place() -> None:
    plan = plan_of(GUEST_COMPONENT)

    assert plan.run == Target(plan.parts[2].label, "run")
    assert plan.post_return == Target(plan.parts[2].label, "after")


def test_the_name_of_an_export_decides_even_when_two_are_swapped() -> None:
    text = ONE_MODULE.format(
        rest="""
        (func $two (result u32) (canon lift (core func $i "two")))
        (func $one (result u32) (canon lift (core func $i "one")))
        (export "run" (func $two))
        (export "last" (func $one))"""
    )

    assert plan_of(text).run.name == "two"
    assert plan_of(text, entry="last").run.name == "one"


def test_an_export_of_an_export_is_the_same_function() -> None:
    text = ONE_MODULE.format(
        rest="""
        (func $one (result u32) (canon lift (core func $i "one")))
        (export $again "first" (func $one))
        (export $once_more "second" (func $again))
        (export "run" (func $once_more))"""
    )

    assert plan_of(text).run.name == "one"


def test_a_component_without_run_is_refused() -> None:
    text = ONE_MODULE.format(
        rest='(func (export "go") (result u32) (canon lift (core func $i "one")))'
    )

    with pytest.raises(BadWasm, match="exports no function 'run'"):
        plan_of(text)


def test_an_export_named_run_that_is_no_function_is_refused() -> None:
    text = ONE_MODULE.format(rest='(type $t u32) (export "run" (type $t))')

    with pytest.raises(BadWasm, match="exports no function 'run'"):
        plan_of(text)


def test_a_run_that_is_only_passed_on_is_refused() -> None:
    text = '(component (import "f" (func $f)) (export "run" (func $f)))'

    with pytest.raises(BadWasm, match="not made of a core function"):
        plan_of(text)


def test_a_function_imported_without_an_interface_is_refused() -> None:
    text = """
    (component
      (import "f" (func $f))
      (core func $g (canon lower (func $f)))
      (core module $m (import "" "f" (func)) (func (export "run") (call 0)))
      (core instance $i (instantiate $m (with "" (instance (export "f" (func $g))))))
      (func (export "run") (canon lift (core func $i "run"))))
    """

    with pytest.raises(BadWasm, match="does not come from an imported interface"):
        plan_of(text)


def test_one_function_lowered_twice_keeps_its_two_allocators_apart() -> None:
    text = GUEST_COMPONENT.replace(
        "(core instance (instantiate $fixup",
        """(core func $other (canon lower (func $random "get-random-bytes")
             (memory (core memory $env "memory")) (realloc (core func $main "realloc2"))))
           (core module $user (import "" "r" (func (param i64 i32))))
           (core instance (instantiate $user (with "" (instance (export "r" (func $other))))))
           (core instance (instantiate $fixup""",
    ).replace('(func (export "realloc")', '(func (export "realloc") (export "realloc2")')

    reallocs = [each.realloc.name for each in plan_of(text).outside if each.realloc]

    assert sorted(reallocs) == ["realloc", "realloc2"]


def test_a_stack_of_bundles_as_deep_as_you_like_is_followed() -> None:
    layers = "".join(
        f'(core instance $b{n} (export "f" (func $b{n - 1} "f")))' for n in range(1, 3_000)
    )
    text = ONE_MODULE.format(
        rest=f"""
        (core instance $b0 (export "f" (func $i "two")))
        {layers}
        (func (export "run") (result u32) (canon lift (core func $b2999 "f")))"""
    )

    assert plan_of(text).run.name == "two"


def test_two_stack_pointers_are_refused() -> None:
    text = ONE_MODULE.format(
        rest="""
        (core module $n (global (export "__stack_pointer") (mut i32) (i32.const 0)))
        (core instance (instantiate $n))
        (func (export "run") (result u32) (canon lift (core func $i "one")))"""
    )

    with pytest.raises(BadWasm, match="2 core modules export a global '__stack_pointer'"):
        plan_of(text)


def test_a_bundle_that_gives_something_of_another_kind_is_refused() -> None:
    text = ONE_MODULE.format(
        rest="""
        (core module $n (import "" "f" (func)))
        (core instance (instantiate $n (with "" (instance (export "f" (memory $i "memory"))))))
        (func (export "run") (result u32) (canon lift (core func $i "one")))"""
    )

    with pytest.raises(BadWasm, match="export 'f' of core instance 1 is a core_memory"):
        plan_of(text)


def test_an_import_no_bundle_gives_is_refused() -> None:
    text = ONE_MODULE.format(
        rest="""
        (core module $n (import "" "g" (func)))
        (core instance (instantiate $n (with "" (instance (export "f" (func $i "one"))))))
        (func (export "run") (result u32) (canon lift (core func $i "one")))"""
    )

    with pytest.raises(BadWasm, match="core instance 1 has no export 'g'"):
        plan_of(text)


def test_a_module_that_is_not_given_all_it_imports_from_is_refused() -> None:
    text = ONE_MODULE.format(
        rest="""
        (core module $n (import "env" "g" (func)))
        (core instance (instantiate $n))
        (func (export "run") (result u32) (canon lift (core func $i "one")))"""
    )

    with pytest.raises(BadWasm, match="nothing is given for imports from 'env'"):
        plan_of(text)


def test_an_outside_function_imported_with_two_types_is_refused() -> None:
    text = GUEST_COMPONENT.replace(
        "(core instance (instantiate $fixup",
        """(core module $user (import "" "now" (func (result i32))))
           (core instance (instantiate $user (with "" (instance (export "now" (func $now))))))
           (core instance (instantiate $fixup""",
    )

    with pytest.raises(BadWasm, match="monotonic-clock#now@3 is imported with two types"):
        plan_of(text)


def test_outside_functions_with_two_memories_are_refused() -> None:
    text = GUEST_COMPONENT.replace(
        "(core instance (instantiate $fixup",
        """(core module $more (memory (export "memory") 1))
           (core instance $more (instantiate $more))
           (core func $other (canon lower (func $random "get-random-bytes")
             (memory (core memory $more "memory")) (realloc (core func $main "realloc"))))
           (core module $user (import "" "r" (func (param i64 i32))))
           (core instance (instantiate $user (with "" (instance (export "r" (func $other))))))
           (core instance (instantiate $fixup""",
    )

    with pytest.raises(BadWasm, match="more than one memory"):
        plan_of(text)


def test_an_option_given_twice_is_refused() -> None:
    text = ONE_MODULE.format(
        rest="""
        (import "i" (instance $x (export "f" (func))))
        (core func (canon lower (func $x "f")
          (memory (core memory $i "memory")) (memory (core memory $i "memory"))))"""
    )

    with pytest.raises(BadWasm, match="unsupported canonical option 0x03"):
        plan_of(text)


def test_a_module_that_is_instantiated_twice_is_refused() -> None:
    text = ONE_MODULE.format(
        rest="""
        (core instance (instantiate $m))
        (func (export "run") (result u32) (canon lift (core func $i "one")))"""
    )

    with pytest.raises(BadWasm, match="core module 0 is instantiated twice"):
        plan_of(text)


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ((9, b"\0\0\0"), "unsupported component section 9"),
        ((12, b"\0"), "unsupported component section 12"),
        ((200, b""), "unsupported component section 200"),
        ((2, b"\x01\x02"), "unsupported core instance 0x02"),
        ((2, b"\x01\x00\x00\x00"), "core_module 0 of 0"),
        ((2, b"\x01\x01\x01\x01a\x07\x00"), "unsupported core sort 0x07"),
        ((5, b"\x01\x02\x00"), "unsupported instance 0x02"),
        ((5, b"\x01\x00\x00\x00"), "component 0 of 0"),
        ((6, b"\x01\x03\x02\x00\x00"), "unsupported alias 0x02 of a type"),
        ((6, b"\x01\x07\x00\x00\x00"), "unsupported sort 0x07"),
        ((6, b"\x01\x01\x00\x00\x01f"), "instance 0 of 0"),
        ((6, b"\x01\x00\x00\x01\x00\x01f"), "core_instance 0 of 0"),
        ((8, b"\x01\x02\x00\x00"), "unsupported canonical function 0x02"),
        ((8, b"\x01\x1f\x00\x00"), "unsupported canonical function 0x1f"),
        ((8, b"\x01\x01\x05\x00"), "unsupported canonical function"),
        ((8, b"\x01\x03\x00"), "type 0 of 0"),
        ((10, b"\x01\x02\x01a\x01\x00"), "unsupported form of name 0x02"),
        ((10, b"\x01\x00\x01a\x02\x00"), "unsupported import or export of a value"),
        ((10, b"\x01\x00\x01a\x03\x05"), "unsupported type bound 0x05"),
        ((11, b"\x01\x00\x01a\x01\x00\x00"), "function 0 of 0"),
        ((3, b"\xff\xff\xff\xff\x0f"), "4294967295 types in 0 bytes"),
        ((7, b"\xff\xff\xff\xff\x0f"), "4294967295 types in 0 bytes"),
        ((6, b"\x00\x00"), "1 bytes after the end of aliases"),
    ],
)
def test_what_is_not_understood_is_refused_by_name_and_place(
    section: tuple[int, bytes], problem: str
) -> None:
    with pytest.raises(BadWasm, match=re.escape(problem)) as caught:
        parse_component(raw(section))

    assert caught.value.offset is not None
    assert 8 <= caught.value.offset <= len(raw(section))


def test_canonical_options_we_do_not_know_are_refused() -> None:
    imported = (10, b"\x01\x00\x01f\x01\x00")
    lowered_with_utf_16 = (8, b"\x01\x01\x00\x00\x01\x01")

    with pytest.raises(BadWasm, match="unsupported canonical option 0x01"):
        parse_component(raw(imported, lowered_with_utf_16))


def test_an_option_can_not_name_a_memory_that_does_not_exist_yet() -> None:
    imported = (10, b"\x01\x00\x01f\x01\x00")
    lowered = (8, b"\x01\x01\x00\x00\x01\x03\x00")

    with pytest.raises(BadWasm, match="core_memory 0 of 0"):
        parse_component(raw(imported, lowered))


def test_a_module_is_not_a_component() -> None:
    with pytest.raises(BadWasm, match="expected the header"):
        parse_component(assemble("(module)"))


def test_types_are_counted_and_nested_components_stepped_over() -> None:
    text = """
    (component
      (type $a u32) (type $b (list $a))
      (component $inner (type $c string) (import "x" (func)))
      (core type (module))
      (export "t" (type $b)))
    """

    component = parse_component(assemble(text))

    assert len(component.spaces[Sort.TYPE]) == 3
    assert len(component.spaces[Sort.COMPONENT]) == 1
    assert len(component.spaces[Sort.CORE_TYPE]) == 1


def test_a_guest_made_of_a_component_does_what_the_component_says() -> None:
    guest = RunningGuest(link_guest(assemble(GUEST_COMPONENT)).data)

    guest.set("clock", 5_000)
    assert guest.run(0, 0) == 6
    assert guest.run(0, 0) == 7
    assert guest.run(3, 0) == 5
    assert guest.said == [(1, b"hello")]
    assert guest.run(4, 2) == 258


def test_what_must_be_called_after_run_is_called_inside_the_guest() -> None:
    merged = link_guest(assemble(GUEST_COMPONENT))
    guest = RunningGuest(merged.data)
    *_, calls = [name for name in merged.state if name.startswith("state.")]

    guest.run(3, 0)
    guest.run(3, 0)

    assert guest.value(calls) == 2


def test_the_state_of_a_guest_is_everything_a_reachable_function_writes() -> None:
    merged = link_guest(assemble(GUEST_COMPONENT))

    assert merged.state == (
        *("clock", "deadline", "stack_pointer", "state.4", "state.5"),
        *("rng", "memory_pages_max", "grow_refused"),
    )
    assert merged.unseen_writes == ()


def test_memory_grows_to_the_limit_and_no_further() -> None:
    guest = RunningGuest(link_guest(assemble(GUEST_COMPONENT)).data)
    guest.set("memory_pages_max", 3)

    assert guest.run(2, 2) == 1
    assert guest.value("grow_refused") == 0
    assert guest.run(2, 1) == -1
    assert guest.value("grow_refused") == 1
    assert guest.memory.size(guest.store) == 3


def test_equal_seeds_give_equal_bytes_and_others_do_not() -> None:
    merged = link_guest(assemble(GUEST_COMPONENT))

    def four_bytes(seed: int) -> list[int]:
        guest = RunningGuest(merged.data)
        guest.set("rng", seed)
        return [guest.run(1, 0) for _ in range(4)]

    assert four_bytes(1) == four_bytes(1)
    assert four_bytes(1) != four_bytes(2)


def test_a_part_without_what_the_next_one_needs_is_refused() -> None:
    plan = plan_of(GUEST_COMPONENT)

    with pytest.raises(BadWasm, match="no earlier part exports"):
        merge(plan.parts[1:3], keep={})
