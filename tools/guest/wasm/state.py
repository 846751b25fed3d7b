"""The state of a component, which is its memory and its mutable globals: read it, and set it.

The code stays as it is. A component with another state is the same program at another moment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NoReturn

from tools.guest.wasm import binary
from tools.guest.wasm.binary import (
    COMPONENT_HEADER,
    I32,
    I64,
    MODULE_HEADER,
    BadWasm,
    Limits,
    Reader,
)
from tools.guest.wasm.component import Component
from tools.guest.wasm.constant import fold, integer, read_expression
from tools.guest.wasm.module import SECTION_ORDER, Kind, Module, parse_module

__all__ = [
    "PAGE_BYTES",
    "memory_image",
    "replace_core_modules",
    "with_state",
]

PAGE_BYTES = 65_536

_CORE_MODULE = 1  # The section of a component that holds one.
_MEMORIES, _GLOBALS, _DATA, _DATA_COUNT = 5, 6, 11, 12

# Zeros inside a segment cost less than the head of another segment; a long run of them does not.
_RUN = re.compile(rb"[^\0]+(?:\0{1,64}[^\0]+)*")


def memory_image(module: Module) -> bytes:
    """Return the memory of a module that has just been instantiated."""
    if len(module.memories) != 1:
        raise BadWasm(f"{len(module.memories)} memories where one is wanted")
    memory = bytearray(module.memories[0].minimum * PAGE_BYTES)
    for segment in module.segments:
        if segment.placement is None:
            continue
        start = fold(segment.placement.offset, global_value=_no, function_index=_no).number
        if start is None or not 0 <= start <= len(memory) - len(segment.content):
            raise BadWasm("a data segment lies outside of memory")
        memory[start : start + len(segment.content)] = segment.content
    return bytes(memory)


def _no(index: int) -> NoReturn:
    raise BadWasm(f"the place of a data segment depends on number {index} of something else")


def with_state(
    data: bytes, *, memory: bytes | None = None, values: Mapping[int, int] | None = None
) -> bytes:
    """Give the module `data` another memory, and other values to globals that it defines.

    `memory` is whole pages; None leaves it as it is. `values` has integers by the number of the
    definition: the first global that the module does not import is 0.
    """
    module = parse_module(data)
    found = {
        each.id: data[each.content.position : each.content.end]
        for each in binary.sections(Reader(data), header=MODULE_HEADER)
        if each.id in SECTION_ORDER
    }
    if values:
        found[_GLOBALS] = _globals(module, found.get(_GLOBALS, b"\0"), values)
    if memory is not None:
        if len(module.memories) != 1 or len(memory) % PAGE_BYTES:
            raise BadWasm("the module has no memory of its own, or is given a part of a page")
        size = Limits(minimum=len(memory) // PAGE_BYTES, maximum=module.memories[0].maximum)
        segments = _segments(memory)
        found[_MEMORIES] = binary.vector([binary.limits(size)])
        found[_DATA_COUNT] = binary.unsigned(len(segments))
        found[_DATA] = binary.vector(segments)
    present = [number for number in SECTION_ORDER if number in found]
    return MODULE_HEADER + b"".join(binary.section(i, found[i]) for i in present)


def _globals(module: Module, content: bytes, values: Mapping[int, int]) -> bytes:
    reader = Reader(content)
    items = []
    for number in range(reader.count("globals")):
        start = reader.position
        value, mutable = reader.value_type(), reader.byte("a mutability")
        spaces = module.spaces
        read_expression(reader, functions=spaces[Kind.FUNCTION], globals_=spaces[Kind.GLOBAL])
        item = content[start : reader.position]
        if number in values:
            if not mutable or value not in (I32, I64):
                raise BadWasm(f"global {number} is not an integer that can change")
            item = bytes([value, mutable]) + integer(value, values[number]).expression
        items.append(item)
    return binary.vector(items)


def _segments(memory: bytes) -> list[bytes]:
    return [
        b"\0" + integer(I32, run.start()).expression + binary.unsigned(len(run[0])) + run[0]
        for run in _RUN.finditer(memory)
    ]


def replace_core_modules(component: Component, modules: Mapping[int, bytes]) -> bytes:
    """Write the component with other core modules in the place of some. The keys are numbers."""
    data, out, number = component.data, [COMPONENT_HEADER], 0
    for section in binary.sections(Reader(data), header=COMPONENT_HEADER):
        content = data[section.content.position : section.content.end]
        if section.id == _CORE_MODULE:
            content = modules.get(number, content)
            number += 1
        out.append(binary.section(section.id, content))
    return b"".join(out)
