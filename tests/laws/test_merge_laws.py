"""The merger against the engine: linked live or merged, a set of modules does the same."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

import wasmtime
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.guest.wat import GUEST_COMPONENT, assemble
from tests.laws.module_sets import ModuleSet, module_sets

from tallystick.guest import binary
from tallystick.guest.binary import BadWasm, Reader
from tallystick.guest.build import GuestBuildError, check_guest
from tallystick.guest.component import parse_component
from tallystick.guest.link import link_guest
from tallystick.guest.merge import Merged, merge
from tallystick.guest.numbering import Part, Target

FUEL = 20_000
GROW_LABEL = "grow"
GROW = f"""
(module
  (import "m0" "memory" (memory 0))
  (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0))))
"""
ARGUMENTS = {"i32": 5, "i64": -3, "f32": 1.5, "f64": -0.25}


def _engine() -> wasmtime.Engine:
    config = wasmtime.Config()
    config.wasm_exceptions = True
    config.consume_fuel = True
    config.cranelift_nan_canonicalization = True
    config.cranelift_opt_level = "none"
    return wasmtime.Engine(config)


ENGINE = _engine()


def _bits(value: object) -> object:
    """Compare floats by their bits: a NaN equals itself, and zero is not minus zero."""
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, list):
        return [_bits(each) for each in value]
    return value


class Running:
    """A set of modules in a store of its own, however it came to be linked."""

    def __init__(
        self, modules: ModuleSet, link: Callable[[wasmtime.Store], Mapping[str, object]]
    ) -> None:
        self.modules = modules
        self.store = wasmtime.Store(ENGINE)
        self.store.set_fuel(FUEL)
        self.exports = link(self.store)

    def observe(self) -> list[object]:
        """Call every function in turn, twice; after each call write down all there is to see."""
        return [
            (function.name, self._call(f"{function.label}.{function.name}", function.parameters), self._state())
            for function in [*self.modules.functions, *self.modules.functions]
        ]

    def _call(self, name: str, parameters: tuple[str, ...]) -> object:
        function = self.exports[name]
        assert isinstance(function, wasmtime.Func)
        self.store.set_fuel(FUEL)
        try:
            result = function(self.store, *(ARGUMENTS[each] for each in parameters))
        except wasmtime.Trap as trap:
            return trap.trap_code
        return _bits(result)

    def _state(self) -> list[object]:
        memory = self.exports["m0.memory"]
        assert isinstance(memory, wasmtime.Memory)
        seen: list[object] = [
            self.store.get_fuel(),
            memory.size(self.store),
            bytes(memory.read(self.store, 0, 32_768)),
        ]
        for each in self.modules.globals:
            found = self.exports[f"{each.label}.{each.name}"]
            assert isinstance(found, wasmtime.Global)
            if each.type != "v128":  # The binding has no value for it.
                seen.append(_bits(found.value(self.store)))
        return seen


def _live(modules: ModuleSet) -> Running:
    def link(store: wasmtime.Store) -> Mapping[str, object]:
        linker = wasmtime.Linker(ENGINE)
        found: dict[str, object] = {}
        for label, text in modules.texts.items():
            instance = linker.instantiate(store, wasmtime.Module(ENGINE, assemble(text)))
            linker.define_instance(store, label, instance)
            exports = instance.exports(store)
            found.update({f"{label}.{name}": exports[name] for name in exports})
        return found

    return Running(modules, link)


def _merge(modules: ModuleSet, *, grow: bool) -> Merged:
    parts = [Part.of(label, assemble(text)) for label, text in modules.texts.items()]
    keep = {"m0.memory": Target("m0", "memory")}
    for each in [*modules.functions, *modules.globals]:
        keep[f"{each.label}.{each.name}"] = Target(each.label, each.name)
    if not grow:
        return merge(parts, keep=keep)
    parts.append(Part.of(GROW_LABEL, assemble(GROW)))
    return merge(parts, keep=keep, grow=Target(GROW_LABEL, "grow"))


def _merged(modules: ModuleSet, data: bytes) -> Running:
    def link(store: wasmtime.Store) -> Mapping[str, object]:
        exports = wasmtime.Linker(ENGINE).instantiate(store, wasmtime.Module(ENGINE, data)).exports(store)
        return {name: exports[name] for name in exports}

    return Running(modules, link)


@settings(max_examples=60)
@given(modules=module_sets())
def test_merged_modules_do_what_linked_ones_do_to_the_last_unit_of_fuel(modules: ModuleSet) -> None:
    merged = _merge(modules, grow=False)

    assert _merged(modules, merged.data).observe() == _live(modules).observe()
