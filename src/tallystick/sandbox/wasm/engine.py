"""The WebAssembly engine that all sessions share: guest imports, compiled code, and clock tick."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from ctypes import c_size_t, c_uint32, c_void_p, memmove, string_at
from pathlib import Path
from typing import Any, Protocol

import wasmtime
from wasmtime import _bindings

from tallystick.core.errors import NotSupportedHere
from tallystick.sandbox.port import COMPILED, COMPILING
from tallystick.sandbox.wasm.image import ENGINE, GuestImage
from tallystick.storage import system
from tallystick.storage.lock import FileLock
from tallystick.storage.private_file import make_private, write_whole

# The guest's three imports: every byte between guest and host crosses here.
#
# This file is the security boundary. For the host, the guest is arbitrary machine code: it can call
# these functions with any integers, at any time, in any order. So:
#
# Rule 1: no address from the guest is used before `check` has compared it, start plus length,
# with the size of the memory at that moment. The sum is a Python integer and cannot wrap.
# Rule 2: no length from the guest makes the host allocate more than a stated limit.
# Rule 3: no exception here unwinds through the engine. It is stored on the instance, a trap ends
# the guest, and `Instance.invoke` raises the exception again.
#
# The engine's own Python wrappers are not used for the calls. They convert each argument, keep the
# exception in one variable for the whole process, and cost ten times as much.


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
    """The guest broke the rules of an import: memory, stream, length or order of calls."""


class Caller(Protocol):
    """The part of an instance that the imports use.

    `base` is the address of the guest's memory and `size` its last known size, in bytes. `pending`
    holds bytes until the guest calls `take`. `raised` holds an exception until the guest has ended.

    `on_call` returns the reply to a request, `on_oversized` that to one of over
    `request_bytes_max`, by its length. `on_stdio` gets each write with its stream. `on_tick` is
    called about every 10 ms while guest code runs, and returns why to end the guest, or None. What
    one of them raises ends the guest too.
    """

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
    """The instance whose guest code runs in this thread."""

    instance: Caller


current = _Current()


def check(caller: Caller, pointer: int, length: int) -> None:
    """Raise `BadPointer` if a range of bytes is not inside the guest's memory as it is now.

    Update the known size of the memory if the range is beyond it.
    """
    if pointer + length > caller.size:
        caller.size = caller.memory_size()  # the memory may have grown since the last check
        if pointer + length > caller.size:
            raise BadPointer(
                f"bytes {pointer:#x} to {pointer + length:#x} are outside the guest's memory"
            )


def _end_guest(caller: Caller, error: BaseException) -> int:
    """Store the exception in `raised`, and return a trap with which the engine ends the guest."""
    caller.raised = error
    trap = wasmtime.Trap("ended by the host")._consume()
    return ctypes.cast(trap, c_void_p).value or 0


def _call(_env: Any, _caller: Any, args: int, _count: int) -> int:
    """Serve the import `call`: a host call. The result is the length of the reply.

    A reply of at least `capacity` bytes is kept in `pending`, for the guest to `take`. Return 0, or
    a trap: any error ends the guest, and is stored in `raised`.
    """
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
    """Serve the import `take`: copy the pending bytes to the guest, once.

    Return 0, or a trap with the error in `raised`: `BadPointer` if nothing is pending.
    """
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
    """Serve the import `stdio`: printed bytes, and the interpreter's report on stream 3.

    Return 0, or a trap with the error in `raised`: `BadPointer` for another stream than 1 to 3, or
    for over 64 MiB at once.
    """
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
    """End the guest, or look again at the next tick. The engine calls this while guest code runs.

    Return an engine error to end the guest, 0 to continue.
    """
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
    """Make an engine error and return its address. The engine owns it from then on."""
    made = native.wasmtime_error_new(ctypes.create_string_buffer(message.encode()))
    return ctypes.cast(made, c_void_p).value or 0


# The engine keeps these addresses as long as it lives, so the objects must stay alive as well.
_IMPORTS = (
    ("call", _Unchecked(_call), 4, 1),
    ("take", _Unchecked(_take), 1, 0),
    ("stdio", _Unchecked(_stdio), 3, 0),
)
tick_callback = _Tick(_tick)


def define_imports(linker: wasmtime.Linker) -> None:
    """Define the three imports in a linker, and nothing else. Raise `WasmtimeError` on failure."""
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


# Compiled guest code on disk, so that only the first use of a version compiles.
#
# A file here is native code: anyone who can write it can run any code as the user. So a file is
# loaded only from a directory that belongs to the user and that no other user may write. It must
# also have the digest that was stored beside it. In any other case the guest is compiled again. A
# cache that cannot be written costs time, never correctness.


_DIGEST_BYTES = 32


class CodeCache:
    """A directory of compiled modules. `say` is called with each line for the user."""

    def __init__(self, directory: Path, *, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._say = say

    def module(
        self, engine: wasmtime.Engine, *, key: str, compile_module: Callable[[], wasmtime.Module]
    ) -> wasmtime.Module:
        """Load a module from the cache; or compile it and store it there, if that is possible.

        While one process compiles, others wait for it. A cache that cannot be used is reported by
        `say`, and never raised. Raise what `compile_module` raises.
        """
        trouble = self._prepare()
        if trouble is not None:
            return self._compile(compile_module, f"without a cache: {trouble}")
        with self._lock(key):
            found = self._load(engine, key)
            if found is not None:
                return found
            module = self._compile(
                compile_module, f"for this machine, once (into {self._directory})"
            )
            self._store(key, module)
            return module

    def _compile(self, compile_module: Callable[[], wasmtime.Module], how: str) -> wasmtime.Module:
        """Compile the guest. Report the start, and at the end how many seconds it took."""
        began = time.monotonic()
        self._say(f"{COMPILING} {how}")
        try:
            return compile_module()
        finally:
            self._say(f"{COMPILED} {time.monotonic() - began:.1f} s")

    def path(self, key: str) -> Path:
        """Return the file of a module, whether it exists or not."""
        return self._directory / f"guest-{key}.cwasm"

    def _prepare(self) -> str | None:
        """Create the directory, for this user alone. Return why it cannot be used, None if it can.

        If other users could access it, it is closed to them and the modules in it are deleted.
        """
        try:
            make_private(self._directory)
            # Not through a link, whose target may be another user's.
            status = os.lstat(self._directory)
        except OSError as error:
            return f"{self._directory}: {error.strerror or error}"
        if not stat.S_ISDIR(status.st_mode):
            return f"{self._directory} is not a directory"
        if system.user_id() is None:
            return f"{self._directory}: this system does not say whose it is"
        if status.st_uid != system.user_id():
            return f"{self._directory} belongs to another user"
        if status.st_mode & 0o077:
            # The directory is ours, but other users could access it, so its files may be theirs.
            # Close it and delete them.
            try:
                os.chmod(self._directory, 0o700)
                for old in self._directory.glob("guest-*.cwasm"):
                    old.unlink()
            except OSError as error:
                return f"{self._directory}: {error.strerror or error}"
        return None

    @contextlib.contextmanager
    def _lock(self, key: str) -> Iterator[None]:
        """Hold the lock of a module for the block. Where there are no locks, go on without one.

        Then several processes may compile at once, which costs time only.
        """
        lock = FileLock(self._directory / f"guest-{key}.lock")
        with contextlib.suppress(OSError, NotSupportedHere):
            lock.take(wait_seconds=None)
        try:
            yield
        finally:
            lock.release()

    def _load(self, engine: wasmtime.Engine, key: str) -> wasmtime.Module | None:
        """Return a stored module; None if it is missing, damaged, or not a file of this user.

        None too if the engine refuses it.
        """
        path = self.path(key)
        try:
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != system.user_id():
                return None
            noted = path.with_suffix(".sha256").read_bytes()
            with open(path, "rb") as file:
                found = hashlib.file_digest(file, "sha256").digest()
            if len(noted) != _DIGEST_BYTES or noted != found:
                return None
            return wasmtime.Module.deserialize_file(engine, str(path))
        except (OSError, wasmtime.WasmtimeError):
            return None

    def _store(self, key: str, module: wasmtime.Module) -> None:
        """Write a module and its digest. If that fails, tell the user, and do not raise."""
        code = bytes(module.serialize())
        try:
            write_whole(self.path(key), code)
            write_whole(self.path(key).with_suffix(".sha256"), hashlib.sha256(code).digest())
        except OSError as error:
            self._say(
                f"the compiled sandbox could not be kept in {self._directory}: "
                f"{error.strerror or error}; the next start compiles again"
            )


def cpu_digest() -> str:
    """Return a digest of this machine's processor, as far as compiled code depends on it.

    That is the architecture, the operating system and the processor's feature flags.
    """
    described = platform.machine() + platform.system()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            flags = next((line for line in file if line.startswith(("flags", "Features"))), "")
        described += " ".join(sorted(flags.split(":")[-1].split()))
    except OSError:
        described += platform.processor()
    return hashlib.sha256(described.encode()).hexdigest()[:16]


# The engine that all sessions share: settings, compiled guest, and the tick that interrupts it.


_STACK_BYTES = 2 * 1024 * 1024
TICK_SECONDS = 0.010
_IDLE_TICKS = 100


class Ticker:
    """A thread that raises the engine's epoch every 10 ms while any program is active.

    It continues for a second after the last program. To wake the thread for each program would cost
    short programs more than these ticks cost an idle process.
    """

    def __init__(self, engine: wasmtime.Engine) -> None:
        self._engine = engine
        self._active = 0
        self._asleep = False
        self._closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        with self._changed:
            self._active += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tally-tick", daemon=True)
                self._thread.start()
            elif self._asleep:
                self._changed.notify()

    def __exit__(self, *exc: object) -> None:
        with self._changed:
            self._active -= 1

    def close(self) -> None:
        """End the thread, and wait for its end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        idle = 0
        while not self._closed:
            time.sleep(TICK_SECONDS)
            self._engine.increment_epoch()
            idle = 0 if self._active else idle + 1
            if idle > _IDLE_TICKS:
                with self._changed:
                    self._asleep = True
                    while not self._active and not self._closed:
                        self._changed.wait()
                    self._asleep = False


class Guest:
    """A compiled guest, ready to be instantiated, with the ticker of its engine."""

    def __init__(self, image: GuestImage, engine: wasmtime.Engine, module: wasmtime.Module) -> None:
        self.image = image
        self.engine = engine
        self.ticker = Ticker(engine)
        linker = wasmtime.Linker(engine)
        define_imports(linker)
        self._linker = linker
        self.pre = linker.instantiate_pre(module)

    def close(self) -> None:
        """End the ticker. Instances of the guest stay."""
        self.ticker.close()


def load_guest(image: GuestImage, *, cache: Path, say: Callable[[str], None]) -> Guest:
    """Return the guest, compiled now or loaded from the cache directory.

    A module that is compiled here is stored in the cache, if that is possible. Raise `GuestMissing`
    if it has to be compiled and its file has another digest, `OSError` if the file cannot be read,
    and `WasmtimeError` if it cannot be compiled.
    """
    engine = wasmtime.Engine(_config())
    parts = f"{image.sha256} {ENGINE} {cpu_digest()}"
    key = hashlib.sha256(parts.encode()).hexdigest()[:32]

    def compile_module() -> wasmtime.Module:
        return wasmtime.Module(engine, image.read())

    module = CodeCache(cache, say=say).module(engine, key=key, compile_module=compile_module)
    return Guest(image, engine, module)


def _config() -> wasmtime.Config:
    # `image.ENGINE` names these settings; change them together. The bits of a NaN are made equal
    # everywhere, so that programs are deterministic.
    config = wasmtime.Config()
    config.wasm_exceptions = True
    config.consume_fuel = True
    config.epoch_interruption = True
    config.cranelift_nan_canonicalization = True
    config.cranelift_opt_level = "speed"
    config.max_wasm_stack = _STACK_BYTES
    return config
