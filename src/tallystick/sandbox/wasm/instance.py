"""One live guest: its memory, its mutable globals, and calls into it.

An instance that was ended by a trap is never used again: its stack pointer and its interpreter
stand in the middle of a program. Who owns it makes a new one.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from ctypes import byref, string_at
from typing import Any

import wasmtime

from tallystick.sandbox.snapshot import PAGE_BYTES
from tallystick.sandbox.wasm.engine import Guest, current, native, tick_callback

BOOT, RUN, BIND, WHEEL = range(4)
# Python counts time in 64 bits of nanoseconds, up to April 2262. A program starts at the latest at
# this moment of November 2260, so that it has a year to sleep in.
CLOCK_LATEST_NS = 9_180_000_000_000_000_000
WASM_PAGE_BYTES = 65_536
_I64 = 1
_NO_FINALIZER = ctypes.cast(0, ctypes.CFUNCTYPE(None, ctypes.c_void_p))
_TickType = native._wasmtime_store_epoch_deadline_callback.argtypes[1]


class Ended(Exception):
    """The guest was ended by the engine. `reason` is the engine's word for it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Global:
    """A mutable integer global. The engine's own wrapper looks its type up at each use."""

    __slots__ = ("_call", "_field", "_value")

    def __init__(self, context: Any, raw: Any) -> None:
        self._value = native.wasmtime_val_t()
        # References are made once: making them costs as much as the call they are for.
        self._call = (context, byref(raw), byref(self._value))
        native._wasmtime_global_get(*self._call)
        self._field = "i64" if self._value.kind == _I64 else "i32"

    def get(self) -> int:
        native._wasmtime_global_get(*self._call)
        return int(getattr(self._value.of, self._field))

    def set(self, number: int) -> None:
        setattr(self._value.of, self._field, number)
        error = native._wasmtime_global_set(*self._call)
        if error:
            raise wasmtime.WasmtimeError._from_ptr(error)


class Instance:
    """A guest and the functions that serve it. Used by one thread at a time."""

    def __init__(self, guest: Guest, *, memory_bytes_max: int) -> None:
        self._store = store = wasmtime.Store(guest.engine)
        store.set_fuel(0)
        store.set_limits(memory_size=memory_bytes_max)
        native.wasmtime_store_epoch_deadline_callback(
            store.ptr(), ctypes.cast(tick_callback, _TickType), None, _NO_FINALIZER
        )
        store.set_epoch_deadline(1)
        instance = guest.pre.instantiate(store)
        self._context = store._context()
        self._memory = wasmtime.Memory._from_raw(self._export(instance, "memory").of.memory)
        self._run = self._export(instance, "run").of.func
        self._globals = {
            name: _Global(self._context, self._export(instance, name).of.global_)
            for name in guest.image.state
        }
        self._slots = (native.wasmtime_val_raw_t * 2)()
        self._fuel_given = 0
        self._fuel_left = ctypes.c_uint64()
        self._read_fuel: tuple[Any, ...] = (self._context, byref(self._fuel_left))
        self._read_size: tuple[Any, ...] = (self._context, byref(self._memory._memory))
        self.base = ctypes.addressof(self._memory.data_ptr(store).contents)
        self.size = self.memory_size()
        self.pending: bytes | None = None
        self.raised: BaseException | None = None
        self.request_bytes_max = 0
        # Nothing reads it here: a result comes by address, and the listener measures it.
        self.result_bytes_max = 0
        self.on_call: Callable[[bytes], bytes] = _nothing_served
        self.on_oversized: Callable[[int], bytes] = _nothing_oversized
        self.on_stdio: Callable[[int, bytes], None] = _nothing_written
        self.on_tick: Callable[[], str | None] = _never_ends
        self.set_memory_max(memory_bytes_max)

    def _export(self, instance: Any, name: str) -> Any:
        found = native.wasmtime_extern_t()
        raw = name.encode()
        if not native.wasmtime_instance_export_get(
            self._context,
            byref(instance._instance),
            ctypes.create_string_buffer(raw),
            len(raw),
            byref(found),
        ):
            raise KeyError(name)
        return found

    def refuse_calls(self) -> None:
        """Let the guest ask nothing: whoever answered the last program has no part in this."""
        self.on_call = _nothing_served
        self.on_oversized = _nothing_oversized
        self.request_bytes_max = 0

    # -- running ---------------------------------------------------------------------------------

    def invoke(self, kind: int, payload: bytes, *, fuel: int) -> None:
        """Call the guest's one export. Raises `Ended`, or what an import raised."""
        if kind == RUN and not 0 <= self.get("clock") <= CLOCK_LATEST_NS:
            # An earlier program slept so long that little of what Python can count is left.
            self.set("clock", CLOCK_LATEST_NS)
        self.pending = payload
        self.raised = None
        self._fuel_given = fuel
        native._wasmtime_context_set_fuel(self._context, fuel)
        self._slots[0].i32 = kind
        self._slots[1].i32 = len(payload)
        trap: Any = ctypes.POINTER(native.wasm_trap_t)()
        previous = getattr(current, "instance", None)
        current.instance = self
        try:
            error = native.wasmtime_func_call_unchecked(
                self._context, byref(self._run), self._slots, 2, byref(trap)
            )
        finally:
            # None outside of a call, where nobody reads it.
            current.instance = previous  # type: ignore[assignment]
        if error or trap:
            self._raise(error, trap)

    def _raise(self, error: Any, trap: Any) -> None:
        """Say why the guest ended. A trap of our imports comes back as an error, not as a trap."""
        made: Exception
        if error:
            foreign = wasmtime.WasmtimeError._from_ptr(error)
            made = Ended(str(foreign).splitlines()[0])
        else:
            owned = wasmtime.Trap._from_ptr(trap)
            code = owned.trap_code
            made = Ended(code.name.lower() if code is not None else owned.message.splitlines()[0])
        raised, self.raised = self.raised, None
        if raised is not None:
            raise raised
        raise made

    def set_fuel_max(self, fuel: int) -> None:
        """Replace the fuel of the present call, while the guest waits for the host."""
        used = self.fuel_used()
        self._fuel_given = fuel
        native._wasmtime_context_set_fuel(self._context, max(0, fuel - used))

    def fuel_used(self) -> int:
        """Fuel used by the present or last call. Behind by a little after an interruption."""
        native._wasmtime_context_get_fuel(*self._read_fuel)
        return self._fuel_given - self._fuel_left.value

    # -- memory and state ------------------------------------------------------------------------

    def memory_size(self) -> int:
        return int(native._wasmtime_memory_data_size(*self._read_size))

    def read(self, address: int, length: int) -> bytes:
        """Read guest memory, as far as it lies in it."""
        size = self.memory_size()
        if address < 0 or length < 0 or address + length > size:
            return b""
        return string_at(self.base + address, length)

    def page(self, index: int) -> bytes:
        return string_at(self.base + index * PAGE_BYTES, PAGE_BYTES)

    def grow_to(self, size: int) -> None:
        missing = size - self.memory_size()
        if missing > 0:
            self._memory.grow(self._store, missing // WASM_PAGE_BYTES)
            self.size = self.memory_size()

    def get(self, name: str) -> int:
        return self._globals[name].get()

    def set(self, name: str, value: int) -> None:
        self._globals[name].set(value)

    def state(self) -> dict[str, int]:
        """Every mutable global of the guest."""
        return {name: self.get(name) for name in self._globals}

    def set_memory_max(self, memory_bytes_max: int) -> None:
        """Set the cap the guest's own allocator sees: growth beyond it is refused and counted."""
        self.set("memory_pages_max", min(memory_bytes_max // WASM_PAGE_BYTES, 65_536))

    def digest(self) -> str:
        """SHA-256 of the whole memory and state."""
        digest = hashlib.sha256(string_at(self.base, self.memory_size()))
        digest.update(repr(sorted(self.state().items())).encode())
        return digest.hexdigest()

    def close(self) -> None:
        # Without arguments the two reads fail as a TypeError, never as a read of freed memory.
        self._read_fuel = self._read_size = ()
        self._globals = {}
        self._store.close()


def _nothing_served(request: bytes) -> bytes:
    raise Ended("no host serves this call")


def _nothing_oversized(length: int) -> bytes:
    raise Ended("no host serves this call")


def _nothing_written(handle: int, data: bytes) -> None:
    """Discard."""


def _never_ends() -> str | None:
    return None
