"""From the bytes of a component to those of the guest: read, flatten, complete, merge."""

from __future__ import annotations

from collections.abc import Iterable

import wasmtime

from tallystick.guest.binary import BadWasm
from tallystick.guest.component import parse_component
from tallystick.guest.flatten import OUTSIDE_MEMORY, Plan, flatten
from tallystick.guest.merge import Merged, merge
from tallystick.guest.module import FunctionType, Kind
from tallystick.guest.numbering import Part, Target
from tallystick.guest.virtual_wasi import (
    CLOCK,
    DEADLINE,
    GROW,
    GROW_REFUSED,
    MEMORY_PAGES_MAX,
    RNG,
    RUN,
    WatModule,
    entry_module,
    virtual_wasi,
)

__all__ = [
    "HOST_INTERFACE",
    "link_guest",
]

HOST_INTERFACE = "tallystick:guest/host"


def link_guest(component: bytes) -> Merged:
    """Make one module of a guest component: imports from the host only, state exported."""
    plan = flatten(parse_component(component), host_interface=HOST_INTERFACE)
    plain, memory = (_assemble(each) for each in virtual_wasi(plan))
    entry = _assemble(entry_module(plan, _type_of(plan.run, plan.parts)))
    keep = {
        "memory": plan.memory,
        "run": RUN,
        "clock": CLOCK,
        "deadline": DEADLINE,
        "rng": RNG,
        "stack_pointer": plan.stack_pointer,
        "memory_pages_max": MEMORY_PAGES_MAX,
        "grow_refused": GROW_REFUSED,
    }
    before, after = _split(plan)
    return merge([plain, *before, memory, *after, entry], keep=keep, grow=GROW)


def _split(plan: Plan) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Find where the outside functions with memory go: before the first part that wants them."""
    for place, part in enumerate(plan.parts):
        if any(link.label == OUTSIDE_MEMORY for link in part.links):
            return plan.parts[:place], plan.parts[place:]
    return plan.parts, ()


def _assemble(module: WatModule) -> Part:
    try:
        data = wasmtime.wat2wasm(module.text)
    except wasmtime.WasmtimeError as error:
        raise BadWasm(f"{module.label}: {str(error).splitlines()[0]}") from error
    return Part.of(module.label, bytes(data))


def _type_of(target: Target, parts: Iterable[Part]) -> FunctionType:
    for part in parts:
        module = part.module
        for export in module.exports:
            if (part.label, export.name) != (target.label, target.name):
                continue
            imported = sum(each.kind is Kind.FUNCTION for each in module.imports)
            if export.kind is Kind.FUNCTION and export.index >= imported:
                return module.types[module.functions[export.index - imported]]
    raise BadWasm(f"no part defines the function {target}")
