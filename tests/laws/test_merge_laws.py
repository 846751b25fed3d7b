"""The merger against the engine: linked live or merged, a set of modules does the same."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import pytest
import wasmtime
from hypothesis import given, settings
from tests.guest.wat import assemble
from tests.laws.module_sets import ModuleSet, module_sets
from tools.guest.wasm.merge import Merged, merge
from tools.guest.wasm.numbering import Part, Target

# They take long: CI runs them.
pytestmark = pytest.mark.slow

# Each example compiles several modules, so there are fewer of them than elsewhere by default; a
# profile that asks for more gets more here too.
SCALE = max(1, settings().max_examples // 100)
FUEL = 20_000
ARGUMENTS = {"i32": 5, "i64": -3, "f32": 1.5, "f64": -0.25}
MEMORY = "m0.memory"
GROW = """
(module
  (import "m0" "memory" (memory 0))
  (global $calls (export "calls") (mut i32) (i32.const 0))
  (func (export "grow") (param i32) (result i32)
    (global.set $calls (i32.add (global.get $calls) (i32.const 1)))
    (memory.grow (local.get 0))))
"""


def bits(value: object) -> object:
    """Compare floats by their bits: a NaN equals itself, and zero is not minus zero."""
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, list):
        return [bits(each) for each in value]
    return value


class Running:
    """A set of modules in a store of its own, however it came to be linked."""

    def __init__(self, modules: ModuleSet, *, merged: Merged | None = None) -> None:
        config = wasmtime.Config()
        config.wasm_exceptions = True
        config.consume_fuel = True
        config.cranelift_nan_canonicalization = True
        config.cranelift_opt_level = "none"
        self.engine = wasmtime.Engine(config)
        self.store = wasmtime.Store(self.engine)
        self.store.set_fuel(FUEL)
        self.modules = modules
        self.exports = self._link_live() if merged is None else self._link(merged)

    def _link_live(self) -> Mapping[str, object]:
        linker = wasmtime.Linker(self.engine)
        found: dict[str, object] = {}
        for label, text in self.modules.texts.items():
            module = wasmtime.Module(self.engine, assemble(text))
            instance = linker.instantiate(self.store, module)
            linker.define_instance(self.store, label, instance)
            exports = instance.exports(self.store)
            found.update({f"{label}.{name}": exports[name] for name in exports})
        return found

    def _link(self, merged: Merged) -> Mapping[str, object]:
        module = wasmtime.Module(self.engine, merged.data)
        exports = wasmtime.Linker(self.engine).instantiate(self.store, module).exports(self.store)
        return {name: exports[name] for name in exports}

    @property
    def memory(self) -> wasmtime.Memory:
        found = self.exports[MEMORY]
        assert isinstance(found, wasmtime.Memory)
        return found

    def variable(self, name: str) -> wasmtime.Global:
        found = self.exports[name]
        assert isinstance(found, wasmtime.Global)
        return found

    def observe(self, *, fuel: bool = True) -> list[object]:
        """Call every function in turn, and write down all there is to see after each call."""
        seen: list[object] = []
        for function in self.modules.functions:
            name = f"{function.label}.{function.name}"
            seen += [name, self._call(name, function.parameters)]
            seen += [self.store.get_fuel() if fuel else None, self.memory.size(self.store)]
            seen += [self.memory.read(self.store, 0, 32_768), self._globals()]
        return seen

    def _call(self, name: str, parameters: tuple[str, ...]) -> object:
        function = self.exports[name]
        assert isinstance(function, wasmtime.Func)
        self.store.set_fuel(FUEL)
        try:
            result = function(self.store, *(ARGUMENTS[each] for each in parameters))
        except wasmtime.Trap as trap:
            return trap.trap_code
        return bits(result)

    def _globals(self) -> list[object]:
        # The engine's binding has no Python value for a vector.
        names = [
            f"{each.label}.{each.name}" for each in self.modules.globals if each.type != "v128"
        ]
        return [bits(self.variable(name).value(self.store)) for name in names]


def merge_set(modules: ModuleSet, *, grow: bool = False, keep_globals: bool = True) -> Merged:
    parts = [Part.of(label, assemble(text)) for label, text in modules.texts.items()]
    keep = {MEMORY: Target("m0", "memory")}
    exported = [(each.label, each.name) for each in modules.functions]
    exported += [(each.label, each.name) for each in modules.globals if keep_globals]
    keep |= {f"{label}.{name}": Target(label, name) for label, name in exported}
    if not grow:
        return merge(parts, keep=keep)
    parts.append(Part.of("growth", assemble(GROW)))
    return merge(parts, keep=keep, grow=Target("growth", "grow"))


def restore(fresh: Running, used: Running, state: tuple[str, ...]) -> None:
    """Carry memory and the named state from one instance to another."""
    fresh.store.set_fuel(FUEL)
    used_memory, size = used.memory, used.memory.size(used.store)
    fresh.memory.grow(fresh.store, size - fresh.memory.size(fresh.store))
    fresh.memory.write(fresh.store, used_memory.read(used.store, 0, size * 65_536))
    for name in state:
        fresh.variable(name).set_value(fresh.store, used.variable(name).value(used.store))


@settings(max_examples=60 * SCALE)
@given(modules=module_sets())
def test_merged_modules_do_what_linked_ones_do_to_the_last_unit_of_fuel(
    modules: ModuleSet,
) -> None:
    merged = Running(modules, merged=merge_set(modules))

    assert merged.observe() == Running(modules).observe()


@settings(max_examples=40 * SCALE)
@given(modules=module_sets())
def test_memory_that_grows_through_a_function_grows_as_it_did(modules: ModuleSet) -> None:
    merged = Running(modules, merged=merge_set(modules, grow=True))

    assert merged.observe(fuel=False) == Running(modules).observe(fuel=False)


@settings(max_examples=60 * SCALE)
@given(modules=module_sets(seen_only=True))
def test_memory_and_state_are_all_there_is_to_carry(modules: ModuleSet) -> None:
    merged = merge_set(modules)
    assert merged.unseen_writes == ()
    used, fresh = Running(modules, merged=merged), Running(modules, merged=merged)

    used.observe()
    restore(fresh, used, merged.state)

    assert fresh.observe() == used.observe()


@settings(max_examples=60 * SCALE)
@given(modules=module_sets())
def test_state_is_named_even_when_nobody_asked_for_it(modules: ModuleSet) -> None:
    asked = merge_set(modules)
    unasked = merge_set(modules, keep_globals=False)

    mutable = {f"{each.label}.{each.name}" for each in modules.globals if each.mutable}
    # Asked for, all that can change is state. Unasked, only what is written, by its number.
    assert set(asked.state) == mutable
    assert len(unasked.state) <= len(mutable)
    assert all(name.startswith("state.") for name in unasked.state)


@settings(max_examples=40 * SCALE)
@given(modules=module_sets())
def test_merging_what_was_merged_changes_nothing_more(modules: ModuleSet) -> None:
    once = merge_set(modules)
    part = Part.of("one", once.data)
    keep = {export.name: Target("one", export.name) for export in part.module.exports}

    again = merge([part], keep=keep)

    assert again.data == once.data
    assert again.state == once.state
