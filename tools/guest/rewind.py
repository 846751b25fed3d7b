"""Takes a component that was snapshot after its start back to the moment before it.

componentize-py starts the interpreter, imports a program and keeps what is then in memory. What
the world gave it meanwhile is in there too: random bytes, times, the numbers of files. It has no
setting that would fix them, and the memory before the start is not in what it writes.

So a small library is linked in. Libraries are told to correct their addresses before the start
function of any runs; this one copies the whole memory to pages of its own at that moment. The copy
is still there in the snapshot, and depends on nothing but the tool.

Globals need no copy. Those that hold addresses are set by the start function, which is still there
too. The stack pointer is back where it was. What else can change belongs to the tool's adapter for
older calls and is zero before its first use.
"""

from __future__ import annotations

import struct

import wasmtime

from tools.guest.wasm.binary import BadWasm
from tools.guest.wasm.component import Component, CoreModule, Instantiation, Sort, parse_component
from tools.guest.wasm.flatten import Plan, flatten
from tools.guest.wasm.module import Kind, Module
from tools.guest.wasm.numbering import Part
from tools.guest.wasm.state import PAGE_BYTES, memory_image, replace_core_modules, with_state

__all__ = [
    "SAVER_FILE",
    "START_HOOK",
    "core_module_number",
    "exports",
    "module_bytes",
    "mutable_globals",
    "only_part",
    "rewind",
    "saver",
]

# componentize-py links every file of a program whose name ends like this.
SAVER_FILE = "saver.abi3.so"

START_HOOK = "__wasm_apply_data_relocs"
_SAVE = "tallystick_save_memory"
_MARK = int.from_bytes(b"unopened", "little")  # Before the number of pages that were copied.
_HEAD = struct.Struct("<QI")

_SAVER_TEXT = f"""(module
  (@dylink.0 (mem-info (memory 0 0)))
  (import "env" "memory" (memory 0))
  (func (export "{START_HOOK}") (export "{_SAVE}") (local $pages i32) (local $end i32)
    (local.set $pages (memory.size))
    (local.set $end (i32.mul (local.get $pages) (i32.const {PAGE_BYTES})))
    (if (i32.eq (i32.const -1)
          (memory.grow (i32.add (local.get $pages) (i32.const 1))))
      (then (unreachable)))
    (memory.copy
      (i32.add (local.get $end) (i32.const {PAGE_BYTES})) (i32.const 0) (local.get $end))
    (i64.store (local.get $end) (i64.const {_MARK}))
    (i32.store offset=8 (local.get $end) (local.get $pages))))
"""

# What takes its place afterwards: nothing is to be saved a second time.
_IDLE_TEXT = f"""(module
  (import "env" "memory" (memory 0))
  (func (export "{START_HOOK}") (export "{_SAVE}")))
"""


def saver() -> bytes:
    """Return the library that copies the memory."""
    return bytes(wasmtime.wat2wasm(_SAVER_TEXT))


def rewind(data: bytes, *, host_interface: str) -> bytes:
    """Return the component as it was before its start function ran."""
    component = parse_component(data)
    plan = flatten(component, host_interface=host_interface)
    changed: dict[int, bytes] = {}
    for part in plan.parts:
        number = core_module_number(component, part)
        if part.label == plan.memory.label:
            memory = _saved(memory_image(part.module))
            changed[number] = with_state(module_bytes(component, number), memory=memory)
        elif exports(part, _SAVE):
            changed[number] = bytes(wasmtime.wat2wasm(_IDLE_TEXT))
        elif mutable := mutable_globals(part.module):
            zeros = dict.fromkeys(mutable, 0)
            changed[number] = with_state(module_bytes(component, number), values=zeros)
    return replace_core_modules(component, changed)


def _saved(memory: bytes) -> bytes:
    for start in range(0, len(memory), PAGE_BYTES):
        mark, pages = _HEAD.unpack_from(memory, start)
        if mark == _MARK and start == pages * PAGE_BYTES:
            return memory[start + PAGE_BYTES :][: pages * PAGE_BYTES]
    raise BadWasm("the memory before the start was not saved")


def mutable_globals(module: Module) -> list[int]:
    """Return the numbers of the globals that a module defines and can change."""
    return [number for number, each in enumerate(module.globals) if each.type.mutable]


def exports(part: Part, name: str) -> bool:
    """Return whether a part exports a function of that name."""
    return any(each.name == name and each.kind is Kind.FUNCTION for each in part.module.exports)


def only_part(plan: Plan, name: str) -> Part:
    """Return the one part that exports a function of that name."""
    found = [part for part in plan.parts if exports(part, name)]
    if len(found) != 1:
        raise BadWasm(f"{len(found)} core modules export {name!r}")
    return found[0]


def core_module_number(component: Component, part: Part) -> int:
    """Return which core module of the component a part is."""
    instance = int(part.label.rpartition(".")[2])
    entry = component.entry(Sort.CORE_INSTANCE, instance)
    if not isinstance(entry, Instantiation):
        raise BadWasm(f"{part.label} is no core module")
    return entry.module


def module_bytes(component: Component, number: int) -> bytes:
    """Return the bytes of a core module."""
    entry = component.entry(Sort.CORE_MODULE, number)
    if not isinstance(entry, CoreModule):
        raise BadWasm(f"core module {number} is not in the component")
    return component.data[entry.start : entry.end]
