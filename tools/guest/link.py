"""From the bytes of a component to those of the guest: read, flatten, complete, merge."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import wasmtime

from tools.guest.wasm.binary import BadWasm
from tools.guest.wasm.component import parse_component
from tools.guest.wasm.flatten import OUTSIDE_MEMORY, Plan, flatten
from tools.guest.wasm.merge import Merged, merge
from tools.guest.wasm.module import FunctionType, Kind
from tools.guest.wasm.numbering import Part, Target
from tools.guest.wasm.virtual_wasi import (
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
    "function_type",
    "link_guest",
    "with_wasi",
]

HOST_INTERFACE = "tallystick:guest/host"


def link_guest(component: bytes) -> Merged:
    """Make one module of a guest component: imports from the host only, state exported."""
    plan = flatten(parse_component(component), host_interface=HOST_INTERFACE)
    entry = _assemble(entry_module(plan, function_type(plan.run, plan.parts)))
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
    return merge([*with_wasi(plan, plan.parts), entry], keep=keep, grow=GROW)


def with_wasi(plan: Plan, parts: Sequence[Part]) -> list[Part]:
    """Put the outside functions among `parts`, which are those of the plan or made of them.

    Those with memory go before the first part that wants them.
    """
    plain, memory = (_assemble(each) for each in virtual_wasi(plan))
    for place, part in enumerate(parts):
        if any(link.label == OUTSIDE_MEMORY for link in part.links):
            return [plain, *parts[:place], memory, *parts[place:]]
    return [plain, *parts, memory]


def _assemble(module: WatModule) -> Part:
    try:
        data = wasmtime.wat2wasm(module.text)
    except wasmtime.WasmtimeError as error:
        raise BadWasm(f"{module.label}: {str(error).splitlines()[0]}") from error
    return Part.of(module.label, bytes(data))


def function_type(target: Target, parts: Iterable[Part]) -> FunctionType:
    """Return the type of a function that one of the parts defines."""
    for part in parts:
        module = part.module
        for export in module.exports:
            if (part.label, export.name) != (target.label, target.name):
                continue
            imported = sum(each.kind is Kind.FUNCTION for each in module.imports)
            if export.kind is Kind.FUNCTION and export.index >= imported:
                return module.types[module.functions[export.index - imported]]
    raise BadWasm(f"no part defines the function {target}")
