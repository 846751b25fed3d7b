"""Settings of the process sandbox: sizes, counts, paths, and layers that may be missing."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tallystick.core.errors import Facts, InvalidLimit, NotSupported, Refused, UsageError
from tallystick.sandbox.port import ExecutionContext, Limits

# Errors of the process sandbox.


class IsolationMissing(Facts, Refused):
    """This host lacks a layer of isolation, and the settings do not accept that."""

    code = "refused.isolation"

    missing: Mapping[str, str]

    def text(self) -> str:
        named = "; ".join(f"{layer} ({why})" for layer, why in self.missing.items())
        text = f"the process sandbox cannot start: this host does not provide {named}. "
        if not self.missing.keys() <= WAIVABLE:
            return f"{text}Use --sandbox wasm"
        options = " ".join(f"--accept-without '{layer}'" for layer in self.missing)
        return f"{text}Use --sandbox wasm, or accept weaker isolation with {options}"


# Settings: sizes, counts, paths, and layers that may be missing.


_MIB = 1024 * 1024
_PROCESSES_LEAST = 24
_MEMORY_BYTES_LEAST = 32 * _MIB
# The default means that the caller has set no fuel limit. Any other value is refused, because the
# instructions of native code are not counted.
_FUEL = Limits().fuel
# The layers that a caller may accept to miss. The others hold the processes and files of a session
# together: without them there is no box.
WAIVABLE = frozenset({"ipc namespace", "uts namespace", "cgroup namespace", "landlock", "seccomp"})
# Layers that do not affect isolation. Without them, the working directory is copied, and only the
# keeper counts the memory of the box as a whole.
OPTIONAL = frozenset({"overlay", "cgroup"})


class BoxSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The limits and the isolation of every session of a sandbox.

    `disk_bytes` is for the working directory and its snapshots together. `memory_bytes_max` is the
    largest memory limit of one process; `memory_total_bytes` is for all processes of a session.
    `packages` are directories that programs import from, `readable` others that they may read.
    `accept_without` names layers of isolation that may be missing. Raises `InvalidLimit` for a
    number that is too small, and `UsageError` for a layer or a path that cannot be accepted.
    """

    disk_bytes: int = 256 * _MIB
    tmp_bytes: int = 64 * _MIB
    inodes_max: int = 65_536
    memory_bytes_max: int = 2_048 * _MIB
    memory_total_bytes: int = 2_048 * _MIB
    processes_max: int = 128
    open_files_max: int = 1_024
    cpu_seconds_max: int = 3_600
    packages: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    accept_without: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if isinstance(value, bool) or (isinstance(value, int) and value < 1):
                raise InvalidLimit(field=field, given=value, why="a whole number of at least 1")
        if self.processes_max < _PROCESSES_LEAST:
            raise InvalidLimit(
                field="processes_max",
                given=self.processes_max,
                why=f"at least {_PROCESSES_LEAST}, some of which are the session's own",
            )
        unknown = self.accept_without - WAIVABLE
        if unknown:
            raise UsageError(
                f"accept_without: {', '.join(sorted(unknown))} cannot be left out; only "
                f"{', '.join(sorted(WAIVABLE))} can"
            )
        for path in (*self.packages, *self.readable):
            if not path.is_absolute() or ".." in path.parts or len(path.parts) < 2:
                raise UsageError(f"{path}: an absolute path below the root is needed")


def check_context(context: ExecutionContext, *, memory_bytes_max: int) -> None:
    """Refuse a context that no box can run.

    Raise `NotSupported` if a fuel limit is set, or for a program that is run again, `InvalidLimit`
    for a memory limit outside of 32 MiB to `memory_bytes_max`, and `UsageError` for an impossible
    environment variable.
    """
    if context.limits.fuel != _FUEL:
        raise NotSupported(backend="process", operation="fuel: native code is not counted")
    if context.rerun is not None:
        why = "a program that is run again: native code does not repeat itself"
        raise NotSupported(backend="process", operation=why)
    if not _MEMORY_BYTES_LEAST <= context.limits.memory_bytes <= memory_bytes_max:
        raise InvalidLimit(
            field="memory_bytes",
            given=context.limits.memory_bytes,
            why=f"between {_MEMORY_BYTES_LEAST:,} (the interpreter) and {memory_bytes_max:,}",
        )
    for name, value in context.environment.items():
        if not name or "=" in name or "\0" in name + value:
            raise UsageError(f"env_vars: {name[:80]!r} cannot be set in an environment")


def require_layers(settings: BoxSettings, found: Mapping[str, str | None]) -> None:
    """Raise `IsolationMissing` if the host lacks a layer that the settings require.

    `found` maps each layer to None, or to the reason why it is missing. Overlay and cgroup are
    never required.
    """
    missing = {
        layer: why
        for layer, why in found.items()
        if why is not None and layer not in OPTIONAL and layer not in settings.accept_without
    }
    if missing:
        raise IsolationMissing(missing=missing)


def order_of(
    settings: BoxSettings,
    found: Mapping[str, str | None],
    *,
    root: bool,
    files: Path | None,
    network: bool,
) -> dict[str, Any]:
    """Return the message that tells the launcher how to make a box.

    Raise `UsageError` if `files` is not a directory.
    """
    if files is not None and not files.is_dir():
        raise UsageError(f"files: {files} is not a directory")
    readable = [str(path) for path in (*settings.packages, *settings.readable)]
    if not sys.base_prefix.startswith("/usr"):
        readable.append(sys.base_prefix)
    namespaces = [layer for layer in found if layer.endswith(" namespace")]
    return {
        "root": root,
        "without": [layer for layer in namespaces if found[layer] is not None],
        "box": {
            "readable": readable,
            "files": None if files is None else str(files.resolve()),
            "disk_bytes": settings.disk_bytes,
            "tmp_bytes": settings.tmp_bytes,
            "inodes_max": settings.inodes_max,
            "network": network,
            "hostname": found["uts namespace"] is None,
        },
        "overlay": found["overlay"] is None,
        "group": found["cgroup"] is None,
        "confinement": {
            "memory_bytes": settings.memory_bytes_max,
            "processes_max": settings.processes_max,
            "open_files_max": settings.open_files_max,
            "file_bytes": settings.disk_bytes,
            "cpu_seconds": settings.cpu_seconds_max,
            "readable": readable,
            "network": network,
            "landlock": found["landlock"] is None,
            "seccomp": found["seccomp"] is None,
            "change_user": root,
        },
        "packages": [str(path) for path in settings.packages],
        "memory_total_bytes": settings.memory_total_bytes,
    }
