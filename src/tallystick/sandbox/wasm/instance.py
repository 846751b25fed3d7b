"""One live guest: its memory, its mutable globals, and calls into it.

An instance that a trap has ended is never used again: its stack pointer and its interpreter are in
the middle of a program. Its owner discards it and makes a new one.
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
# Python counts time in 64 bits of nanoseconds, up to April 2262. No program starts later than this
# moment of November 2260, so that it can sleep for a year.
CLOCK_LATEST_NS = 9_180_000_000_000_000_000
WASM_PAGE_BYTES = 65_536
_I64 = 1
_NO_FINALIZER = ctypes.cast(0, ctypes.CFUNCTYPE(None, ctypes.c_void_p))
_TickType = native._wasmtime_store_epoch_deadline_callback.argtypes[1]


class Ended(Exception):
    """The engine ended the guest. `reason` is its name or message for that."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Global:
    """A mutable integer global. The engine's own wrapper looks up the type at each use."""

    __slots__ = ("_call", "_field", "_value")

    def __init__(self, context: Any, raw: Any) -> None:
        self._value = native.wasmtime_val_t()
        # References are made once, because making them takes as long as the call itself.
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
    """One guest, and the functions that serve its imports. Use it in one thread at a time.

    `on_call`, `on_oversized`, `on_stdio` and `on_tick` are replaced for each program. At first,
    calls end the guest and output is discarded. `get` and `set` are for the mutable globals that
    the manifest names, and raise `KeyError` for another name.
    """

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
        # Not read in this class: the function behind `on_stdio` checks the length of a result.
        self.result_bytes_max = 0
        self.on_call: Callable[[bytes], bytes] = _refuse_call
        self.on_oversized: Callable[[int], bytes] = _refuse_oversized
        self.on_stdio: Callable[[int, bytes], None] = _discard_output
        self.on_tick: Callable[[], str | None] = _never_stop
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
        """Refuse all host calls from now on: each one ends the guest.

        So code that runs outside of a program cannot reach the host of the last one.
        """
        self.on_call = _refuse_call
        self.on_oversized = _refuse_oversized
        self.request_bytes_max = 0

    # -- running ---------------------------------------------------------------------------------

    def invoke(self, kind: int, payload: bytes, *, fuel: int) -> None:
        """Call the guest's one export with `payload` pending and this much fuel.

        Before a program, a clock that is near its end is set back. Raise `Ended` if the engine
        ended the guest, or the exception that an import raised, such as `BadPointer`. The instance
        is not used again after that.
        """
        if kind == RUN and not 0 <= self.get("clock") <= CLOCK_LATEST_NS:
            # An earlier program slept so long that the clock is near the end of what Python counts.
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
            # None outside of a call, where it is never read.
            current.instance = previous  # type: ignore[assignment]
        if error or trap:
            self._raise(error, trap)

    def _raise(self, error: Any, trap: Any) -> None:
        """Raise the reason why the guest ended: what an import raised, or else `Ended`.

        A trap that one of our imports made comes back as an error, not as a trap. So the stored
        exception comes first in both cases.
        """
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
        """Set the total fuel of the current call anew, while the guest waits for the host."""
        used = self.fuel_used()
        self._fuel_given = fuel
        native._wasmtime_context_set_fuel(self._context, max(0, fuel - used))

    def fuel_used(self) -> int:
        """Return the fuel used by the current or last call; a little too low if a tick ended it."""
        native._wasmtime_context_get_fuel(*self._read_fuel)
        return self._fuel_given - self._fuel_left.value

    # -- memory and state ------------------------------------------------------------------------

    def memory_size(self) -> int:
        return int(native._wasmtime_memory_data_size(*self._read_size))

    def read(self, address: int, length: int) -> bytes:
        """Return bytes of the guest's memory; none at all if the range is not inside it."""
        size = self.memory_size()
        if address < 0 or length < 0 or address + length > size:
            return b""
        return string_at(self.base + address, length)

    def page(self, index: int) -> bytes:
        """Return a page of `PAGE_BYTES`. The caller checks that it is inside the memory."""
        return string_at(self.base + index * PAGE_BYTES, PAGE_BYTES)

    def grow_to(self, size: int) -> None:
        """Grow the memory to `size` bytes, a multiple of 64 KiB. It never shrinks.

        Raise `WasmtimeError` if that is over the limit of the instance.
        """
        missing = size - self.memory_size()
        if missing > 0:
            self._memory.grow(self._store, missing // WASM_PAGE_BYTES)
            self.size = self.memory_size()

    def get(self, name: str) -> int:
        return self._globals[name].get()

    def set(self, name: str, value: int) -> None:
        self._globals[name].set(value)

    def state(self) -> dict[str, int]:
        """Return the value of every mutable global of the guest that its manifest names."""
        return {name: self.get(name) for name in self._globals}

    def set_memory_max(self, memory_bytes_max: int) -> None:
        """Set the limit for the guest's allocator: growth beyond it is refused and counted."""
        self.set("memory_pages_max", min(memory_bytes_max // WASM_PAGE_BYTES, 65_536))

    def digest(self) -> str:
        """Return the SHA-256 of the whole memory and state, in hex."""
        digest = hashlib.sha256(string_at(self.base, self.memory_size()))
        digest.update(repr(sorted(self.state().items())).encode())
        return digest.hexdigest()

    def close(self) -> None:
        """Free the memory of the instance, which cannot be used afterwards."""
        # Without their arguments, the two reads raise TypeError; they never read freed memory.
        self._read_fuel = self._read_size = ()
        self._globals = {}
        self._store.close()


def _refuse_call(request: bytes) -> bytes:
    raise Ended("no host serves this call")


def _refuse_oversized(length: int) -> bytes:
    raise Ended("no host serves this call")


def _discard_output(handle: int, data: bytes) -> None:
    """Discard what the guest writes."""


def _never_stop() -> str | None:
    return None
