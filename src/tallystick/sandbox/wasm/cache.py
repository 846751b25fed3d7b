"""Compiled guest code on disk, so that only the first use of a version compiles.

A file here is native code: whoever can write it can run anything as the user. So it is loaded only
from a directory that is ours and that nobody else may write, and only if it has the digest that was
noted when it was written. Whatever is wrong with it, the answer is to compile again; a cache that
cannot be written costs time, never correctness.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import wasmtime

__all__ = ["CodeCache", "cpu_digest"]

_DIGEST_BYTES = 32


class CodeCache:
    """One directory of compiled modules. `say` is told what a user should know, by the line."""

    def __init__(self, directory: Path, *, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._say = say

    def module(
        self, engine: wasmtime.Engine, *, key: str, compile_module: Callable[[], wasmtime.Module]
    ) -> wasmtime.Module:
        """Load the module from the cache, or compile it and keep it there if that is possible."""
        trouble = self._prepare()
        if trouble is not None:
            self._say(f"compiling the sandbox without a cache: {trouble}")
            return compile_module()
        with self._lock(key):
            found = self._load(engine, key)
            if found is not None:
                return found
            self._say(f"compiling the sandbox for this machine, once (into {self._directory})")
            module = compile_module()
            self._store(key, module)
            return module

    def path(self, key: str) -> Path:
        return self._directory / f"guest-{key}.cwasm"

    def _prepare(self) -> str | None:
        """Make the directory ours alone, or say why it cannot be used."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            status = os.lstat(self._directory)
        except OSError as error:
            return f"{self._directory}: {error.strerror or error}"
        if not stat.S_ISDIR(status.st_mode):
            return f"{self._directory} is not a directory"
        if status.st_uid != os.geteuid():
            return f"{self._directory} belongs to another user"
        if status.st_mode & 0o077:
            # Ours, but open to others: what lies there may be theirs. Close it and start afresh.
            try:
                os.chmod(self._directory, 0o700)
                for old in self._directory.glob("guest-*.cwasm"):
                    old.unlink()
            except OSError as error:
                return f"{self._directory}: {error.strerror or error}"
        return None

    @contextlib.contextmanager
    def _lock(self, key: str) -> Iterator[None]:
        """One process compiles, the others wait for it. Without locks, each compiles."""
        try:
            import fcntl

            path = self._directory / f"guest-{key}.lock"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except (ImportError, OSError):
            yield
            return
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _load(self, engine: wasmtime.Engine, key: str) -> wasmtime.Module | None:
        path = self.path(key)
        try:
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
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
        code = bytes(module.serialize())
        try:
            self._write(self.path(key), code)
            self._write(self.path(key).with_suffix(".sha256"), hashlib.sha256(code).digest())
        except OSError as error:
            self._say(
                f"the compiled sandbox could not be kept in {self._directory}: "
                f"{error.strerror or error}; the next start compiles again"
            )

    def _write(self, path: Path, data: bytes) -> None:
        descriptor, temporary = tempfile.mkstemp(dir=self._directory, prefix=path.name + ".")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def cpu_digest() -> str:
    """Name this machine's processor as far as compiled code depends on it."""
    described = platform.machine() + platform.system()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            flags = next((line for line in file if line.startswith(("flags", "Features"))), "")
        described += " ".join(sorted(flags.split(":")[-1].split()))
    except OSError:
        described += platform.processor()
    return hashlib.sha256(described.encode()).hexdigest()[:16]
