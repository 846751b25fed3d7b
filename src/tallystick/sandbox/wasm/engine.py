"""The engine all sessions share: settings, compiled guest, and the clock tick that interrupts."""

from __future__ import annotations

import hashlib
import importlib.metadata
import threading
import time
from collections.abc import Callable
from pathlib import Path

import wasmtime

from tallystick.sandbox.wasm.abi import define_imports
from tallystick.sandbox.wasm.cache import CodeCache, cpu_digest
from tallystick.sandbox.wasm.image import GuestImage

__all__ = ["ENGINE", "Guest", "Ticker", "load_guest"]

# What changes the code or its behaviour. It is part of the cache key and of every snapshot's engine
# name: fuel and results are equal only between equal settings.
_SETTINGS = "fuel=1 epoch=1 nan=1 exceptions=1 opt=speed stack=2097152"
_STACK_BYTES = 2 * 1024 * 1024
TICK_SECONDS = 0.010
_IDLE_TICKS = 100

ENGINE = f"wasmtime-{importlib.metadata.version('wasmtime')} {_SETTINGS}"


class Ticker:
    """Raises the engine's epoch every 10 ms while any program is active.

    It goes on for a second after the last one: waking a thread for each program would cost short
    programs more than the ticks cost an idle process.
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
    """A compiled guest, ready to be instantiated."""

    def __init__(self, image: GuestImage, engine: wasmtime.Engine, module: wasmtime.Module) -> None:
        self.image = image
        self.engine = engine
        self.ticker = Ticker(engine)
        linker = wasmtime.Linker(engine)
        define_imports(linker)
        self._linker = linker
        self.pre = linker.instantiate_pre(module)

    def close(self) -> None:
        self.ticker.close()


def load_guest(image: GuestImage, *, cache: Path, say: Callable[[str], None]) -> Guest:
    """Compile the guest, or take it from the cache."""
    engine = wasmtime.Engine(_config())
    parts = f"{image.sha256} {ENGINE} {cpu_digest()}"
    key = hashlib.sha256(parts.encode()).hexdigest()[:32]

    def compile_module() -> wasmtime.Module:
        return wasmtime.Module(engine, image.read())

    module = CodeCache(cache, say=say).module(engine, key=key, compile_module=compile_module)
    return Guest(image, engine, module)


def _config() -> wasmtime.Config:
    config = wasmtime.Config()
    config.wasm_exceptions = True
    config.consume_fuel = True
    config.epoch_interruption = True
    config.cranelift_nan_canonicalization = True
    config.cranelift_opt_level = "speed"
    config.max_wasm_stack = _STACK_BYTES
    return config
