"""Starts the interpreter, imports a program, and keeps what is then in memory.

That is what componentize-py does, except for the world in which it happens. Here the clock, the
random numbers and the files are computed, so what is frozen depends on the component and on the
files alone: not on the machine, the directory, the time or the user.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Mapping

import wasmtime

from tools.guest.files import FILE_FUNCTIONS, FileFunctions
from tools.guest.link import function_type, with_wasi
from tools.guest.rewind import (
    START_HOOK,
    core_module_number,
    module_bytes,
    mutable_globals,
    only_part,
)
from tools.guest.wasm.binary import F32, F64, I32, I64, BadWasm
from tools.guest.wasm.component import Component, parse_component
from tools.guest.wasm.flatten import Outside, Plan, flatten
from tools.guest.wasm.merge import Merged, merge
from tools.guest.wasm.module import Export, FunctionType, Kind
from tools.guest.wasm.numbering import HOST, Part, Target
from tools.guest.wasm.state import replace_core_modules, with_state

__all__ = ["ProgramFailed", "World", "freeze"]

# The function that starts the interpreter, the one that frees its result, and its allocator.
_INIT, _POST_INIT, _REALLOC = "exports#init", "cabi_post_exports#init", "cabi_realloc"
_START = "start"
_ENVIRONMENT = "wasi:cli/environment#get-environment"
_STACK_BYTES = 1 << 20

# How that function is told what the component exports: one function of the class `WitWorld`.
_PROTOCOL, _FREESTANDING, _NO_RESULT, _ONE_RESULT = "WitWorld", 0, 0, 1
_LISTS_OF_TYPES = 8  # Resources, records and so on. Functions of integers need none.


class ProgramFailed(Exception):
    """The program could not be imported. The message is what the interpreter wrote about it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """All that the interpreter is given: files by absolute path, directories, variables."""

    files: Mapping[str, bytes]
    # Directories, by the names under which the interpreter is given them.
    roots: Mapping[str, str]
    environment: Mapping[str, str]


def freeze(data: bytes, world: World, *, app: str, host_interface: str) -> bytes:
    """Import `app` into the interpreter of a component that has not been started."""
    component = parse_component(data)
    if set(component.exports) != {"exports", "run"}:
        raise BadWasm(f"the component exports {', '.join(sorted(component.exports))}")
    plan = flatten(component, host_interface=host_interface)
    parts = with_wasi(plan, _changed_parts(plan))
    runtime = only_part(plan, _INIT).label
    keep = {
        "memory": plan.memory,
        "start": Target(_starting_part(plan).label, _START),
        "init": Target(runtime, _INIT),
        "post_init": Target(runtime, _POST_INIT),
        "realloc": Target(runtime, _REALLOC),
        **{str(each.realloc): each.realloc for each in plan.outside if each.realloc is not None},
    }
    merged = merge(parts, keep=keep)
    run = _Run(merged, plan, world)
    run.call("start")
    run.import_app(app, _return_style(plan))
    return _with_state_of(run, component, plan, parts)


def _changed_parts(plan: Plan) -> list[Part]:
    """Take from the host what the virtual WASI does not have, and export the start function."""
    hosted = {each.target for each in plan.outside if _key(each) in _HOSTED}
    starting = _starting_part(plan)
    parts = []
    for part in plan.parts:
        links = tuple(Target(HOST, str(link)) if link in hosted else link for link in part.links)
        module = part.module
        if part is starting:
            export = Export(_START, Kind.FUNCTION, module.spaces[Kind.FUNCTION] - 1)
            module = dataclasses.replace(module, exports=[*module.exports, export])
        parts.append(Part(part.label, module, links))
    return parts


def _key(outside: Outside) -> str:
    return f"{outside.interface}#{outside.function}"


_HOSTED = FILE_FUNCTIONS | {_ENVIRONMENT}


def _starting_part(plan: Plan) -> Part:
    """Find the part that starts the others. Its start function is all it has."""
    found = [
        part
        for part in plan.parts
        if any(link.name == START_HOOK for link in part.links) and len(part.module.functions) == 1
    ]
    if len(found) != 1:
        raise BadWasm(f"{len(found)} core modules start the others")
    return found[0]


def _with_state_of(run: _Run, component: Component, plan: Plan, parts: list[Part]) -> bytes:
    """Write the component with the state that the run has left. Merged numbers are in order."""
    changed: dict[int, bytes] = {}
    first = 0
    labels = {part.label for part in plan.parts}
    values = run.globals()
    for part in parts:
        here = {
            number: values[first + number]
            for number in mutable_globals(part.module)
            if first + number in values
        }
        first += len(part.module.globals)
        holds_memory = part.label == plan.memory.label
        if part.label in labels and (here or holds_memory):
            number = core_module_number(component, part)
            changed[number] = with_state(
                module_bytes(component, number),
                memory=run.memory() if holds_memory else None,
                values=here,
            )
    return replace_core_modules(component, changed)


def _return_style(plan: Plan) -> int:
    """Return what the interpreter is told about the result of `run`."""
    return _ONE_RESULT if function_type(plan.run, plan.parts).results else _NO_RESULT


class _Run:
    """One instance of the merged module, and what it is given while it runs."""

    def __init__(self, merged: Merged, plan: Plan, world: World) -> None:
        config = wasmtime.Config()
        config.wasm_exceptions = True
        # The bits of a result that is not a number may otherwise differ between processors.
        config.cranelift_nan_canonicalization = True
        config.cranelift_opt_level = "none"
        config.max_wasm_stack = _STACK_BYTES
        engine = wasmtime.Engine(config)
        self._store = wasmtime.Store(engine)
        self._merged = merged
        self._world = world
        self._realloc = "realloc"
        self.written = b""
        linker = wasmtime.Linker(engine)
        self._define(linker, plan)
        module = wasmtime.Module(engine, merged.data)
        self._exports = linker.instantiate(self._store, module).exports(self._store)

    def _define(self, linker: wasmtime.Linker, plan: Plan) -> None:
        files = FileFunctions(self._world.files, roots=self._world.roots, memory=self)
        functions = files.functions() | {_ENVIRONMENT: self._get_environment}
        for each in plan.outside:
            if _key(each) in functions:
                linker.define_func(
                    HOST,
                    str(each.target),
                    _wasmtime_type(each.type),
                    self._hosted(functions[_key(each)], each.realloc),
                )
        i32 = wasmtime.ValType.i32()
        linker.define_func(HOST, "stdio", wasmtime.FuncType([i32] * 3, []), self._stdio)
        linker.define_func(HOST, "call", wasmtime.FuncType([i32] * 4, [i32]), _no_host)
        linker.define_func(HOST, "take", wasmtime.FuncType([i32], []), _no_host)

    def _hosted(self, function: Callable[..., None], realloc: Target | None) -> Callable[..., None]:
        def call(*arguments: int) -> None:
            # Lists are made with the allocator that the function was given.
            self._realloc = str(realloc)
            function(*(each & 0xFFFF_FFFF_FFFF_FFFF for each in arguments))

        return call

    def _stdio(self, _: int, start: int, length: int) -> None:
        self.written += self.read(start, length)

    def _get_environment(self, result: int) -> None:
        rows = b""
        for pair in self._world.environment.items():
            for text in pair:
                rows += struct.pack("<II", self._put(text.encode()), len(text.encode()))
        place = self._put(rows, align=4)
        self.write(result, struct.pack("<II", place, len(self._world.environment)))

    # The guest's memory.

    def _memory(self) -> wasmtime.Memory:
        memory = self._exports["memory"]
        assert isinstance(memory, wasmtime.Memory)
        return memory

    def read(self, start: int, length: int) -> bytes:
        return bytes(self._memory().read(self._store, start & _U32, (start & _U32) + length))

    def write(self, start: int, content: bytes) -> None:
        self._memory().write(self._store, content, start & _U32)

    def allocate(self, length: int, align: int) -> int:
        place = self.call(self._realloc, 0, 0, align, length)
        return place & _U32

    def _put(self, content: bytes, *, align: int = 1) -> int:
        place = self.allocate(len(content), align)
        self.write(place, content)
        return place

    # What is done with it.

    def call(self, name: str, *arguments: int) -> int:
        function = self._exports[name]
        assert isinstance(function, wasmtime.Func)
        result = function(self._store, *arguments)
        return result if isinstance(result, int) else 0

    def import_app(self, app: str, return_style: int) -> None:
        self._realloc = "realloc"
        protocol, name = self._string(_PROTOCOL), self._string("run")
        # A variant of at most three strings, then the style.
        kind = struct.pack("<I", _FREESTANDING) + protocol + name + bytes(8)
        exported = self._put(kind + struct.pack("<I", return_style), align=4)
        lists = struct.pack("<II", exported, 1) + struct.pack("<II", 4, 0) * _LISTS_OF_TYPES
        arguments = self._put(self._string(app) + lists + struct.pack("<I", 0), align=4)
        result = self.call("init", arguments)
        failed, start, length = struct.unpack("<III", self.read(result, 12))
        if failed & 0xFF:
            message = self.read(start, length).decode(errors="replace")
            raise ProgramFailed(f"{self.written.decode(errors='replace')}\n{message}".strip())
        self.call("post_init", result)

    def _string(self, text: str) -> bytes:
        return struct.pack("<II", self._put(text.encode()), len(text.encode()))

    def memory(self) -> bytes:
        return self.read(0, self._memory().data_len(self._store))

    def globals(self) -> dict[int, int]:
        """Return what the globals that can change hold, by their merged number."""
        values = {}
        for name in self._merged.state:
            found = self._exports[name]
            assert isinstance(found, wasmtime.Global)
            value = found.value(self._store)
            if not isinstance(value, int):
                raise BadWasm(f"{name} is not an integer")
            values[int(name.removeprefix("state."))] = value
        return values


_U32 = 0xFFFF_FFFF
_VALUE_TYPES = {
    I32: wasmtime.ValType.i32,
    I64: wasmtime.ValType.i64,
    F32: wasmtime.ValType.f32,
    F64: wasmtime.ValType.f64,
}


def _wasmtime_type(signature: FunctionType) -> wasmtime.FuncType:
    return wasmtime.FuncType(
        [_VALUE_TYPES[each]() for each in signature.parameters],
        [_VALUE_TYPES[each]() for each in signature.results],
    )


def _no_host(*_: int) -> int:
    raise ProgramFailed("the program called the host while it was imported")
