"""The guest's three imports: every byte between guest and host crosses here.

This file is the security boundary. The guest is arbitrary machine code as far as the host is
concerned: it can call these functions with any integers, at any time, in any order. So:

Rule 1: no address from the guest is used before `_Memory.check` has bounded it, start and length
together, against the memory's size at that moment. The sum is a Python integer and cannot wrap.
Rule 2: no length from the guest makes the host allocate more than a stated limit.
Rule 3: nothing raised here unwinds through the engine. It is kept on the instance, the guest is
ended by a trap, and `Instance.invoke` raises it on the other side.

The engine's own Python wrappers are not used for the calls: they convert each argument, look the
exception up in one variable for the whole process, and cost ten times as much.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from ctypes import c_size_t, c_uint32, c_void_p, memmove, string_at
from typing import Any, Protocol

import wasmtime
from wasmtime import _bindings

__all__ = [
    "BadPointer",
    "Caller",
    "check",
    "current",
    "define_imports",
    "native",
    "tick_callback",
]

native: Any = _bindings  # the engine's C functions; their types say less than its header
_Unchecked = ctypes.CFUNCTYPE(c_size_t, c_void_p, c_void_p, c_void_p, c_size_t)
_Tick = ctypes.CFUNCTYPE(
    c_size_t, c_void_p, c_void_p, ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint8)
)
_Finalizer = ctypes.CFUNCTYPE(None, c_void_p)
_NO_FINALIZER = ctypes.cast(0, _Finalizer)

# Arguments arrive as an array of 16-byte slots, a 32-bit integer at the start of each.
_four = struct.Struct("<I12xI12xI12xI").unpack
_three = struct.Struct("<I12xI12xI").unpack
_FOUR_BYTES, _THREE_BYTES = 52, 36

_STREAMS = (1, 2, 3)
_STDIO_BYTES_MAX = 64 * 1024 * 1024


class BadPointer(Exception):
    """The guest named memory that is not its own, or a stream that is not there."""


class Caller(Protocol):
    """What the imports need of an instance."""

    base: int
    size: int
    pending: bytes | None
    raised: BaseException | None
    request_bytes_max: int

    def memory_size(self) -> int: ...
    def on_call(self, request: bytes) -> bytes: ...
    def on_oversized(self, length: int) -> bytes: ...
    def on_stdio(self, handle: int, data: bytes) -> None: ...
    def on_tick(self) -> str | None: ...


class _Current(threading.local):
    """The instance whose code runs in this thread."""

    instance: Caller


current = _Current()


def check(caller: Caller, pointer: int, length: int) -> None:
    """Refuse a span that does not lie in the guest's memory as it is now."""
    if pointer + length > caller.size:
        caller.size = caller.memory_size()  # it may have grown since we looked
        if pointer + length > caller.size:
            raise BadPointer(
                f"bytes {pointer:#x} to {pointer + length:#x} are outside the guest's memory"
            )


def _end_guest(caller: Caller, error: BaseException) -> int:
    """Keep what was raised and give the engine a trap to end the guest with."""
    caller.raised = error
    trap = wasmtime.Trap("ended by the host")._consume()
    return ctypes.cast(trap, c_void_p).value or 0


def _call(_env: Any, _caller: Any, args: int, _count: int) -> int:
    caller = current.instance
    try:
        pointer, length, destination, capacity = _four(string_at(args, _FOUR_BYTES))
        check(caller, pointer, length)
        check(caller, destination, capacity)
        if length > caller.request_bytes_max:
            reply = caller.on_oversized(length)
        else:
            reply = caller.on_call(string_at(caller.base + pointer, length))
        size = len(reply)
        if size < capacity:
            memmove(caller.base + destination, reply, size)
        else:
            caller.pending = reply
        c_uint32.from_address(args).value = size
        return 0
    except BaseException as error:
        return _end_guest(caller, error)


def _take(_env: Any, _caller: Any, args: int, _count: int) -> int:
    caller = current.instance
    try:
        destination = c_uint32.from_address(args).value
        held, caller.pending = caller.pending, None
        if held is None:
            raise BadPointer("there is nothing to take")
        check(caller, destination, len(held))
        memmove(caller.base + destination, held, len(held))
        return 0
    except BaseException as error:
        return _end_guest(caller, error)


def _stdio(_env: Any, _caller: Any, args: int, _count: int) -> int:
    caller = current.instance
    try:
        handle, pointer, length = _three(string_at(args, _THREE_BYTES))
        if handle not in _STREAMS:
            raise BadPointer(f"there is no stream {handle}")
        check(caller, pointer, length)
        if length > _STDIO_BYTES_MAX:
            raise BadPointer(f"a write of {length:,} bytes")
        caller.on_stdio(handle, string_at(caller.base + pointer, length))
        return 0
    except BaseException as error:
        return _end_guest(caller, error)


def _tick(_context: Any, _data: Any, delta: Any, kind: Any) -> int:
    """Called by the engine while guest code runs: end it, or look again at the next tick."""
    caller = current.instance
    try:
        reason = caller.on_tick()
    except BaseException as error:
        caller.raised = error
        reason = "failed"
    if reason is not None:
        return _new_error(reason)
    delta[0] = 1
    kind[0] = 0
    return 0


def _new_error(message: str) -> int:
    """Make an engine error and give up its ownership."""
    made = native.wasmtime_error_new(ctypes.create_string_buffer(message.encode()))
    return ctypes.cast(made, c_void_p).value or 0


# The engine keeps these addresses for as long as it lives: module level keeps them alive.
_IMPORTS = (
    ("call", _Unchecked(_call), 4, 1),
    ("take", _Unchecked(_take), 1, 0),
    ("stdio", _Unchecked(_stdio), 3, 0),
)
tick_callback = _Tick(_tick)


def define_imports(linker: wasmtime.Linker) -> None:
    """Give a linker the three imports and nothing else."""
    i32 = wasmtime.ValType.i32()
    module = b"host"
    for name, function, parameters, results in _IMPORTS:
        kind = wasmtime.FuncType([i32] * parameters, [i32] * results)
        raw = name.encode()
        error = native.wasmtime_linker_define_func_unchecked(
            linker.ptr(),
            ctypes.create_string_buffer(module),
            len(module),
            ctypes.create_string_buffer(raw),
            len(raw),
            kind.ptr(),
            ctypes.cast(function, native.wasmtime_func_unchecked_callback_t),
            None,
            _NO_FINALIZER,
        )
        if error:
            raise wasmtime.WasmtimeError._from_ptr(error)
