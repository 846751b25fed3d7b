"""Sandboxes: where programs run, with what they are given and what is left of them.

These names are the contract of this module; what else is in the package is internal.

- `WasmSandbox` runs Python in WebAssembly, and opens a `WasmInterpreter` that keeps its variables
- `ProcessSandbox` runs native Python and bash in a process with layers of isolation
- `ScriptedSandbox` returns the results of a script, each a `Scripted`, for tests
- `Sandbox` and `SandboxInterpreter` are the ports that all of them implement
- `ExecutionContext` is what surrounds one program, with its `Limits`; `Rerun` repeats one
- `ExecutionResult` is what is left: output, a `ProgramError`, a `ProgramCharge`, each `CallRecord`
- `HostTable` holds what a program finds: each a `HostFunction`, or a `HostText` that stays outside
- `RecordedHost` answers the calls of a program from a record
- `SnapshotId` names a saved state of an interpreter, and `SnapshotStore` is where they are kept
- the errors are `GuestBroken`, `GuestMissing`, `InvalidLimit`, `InvalidName`, `ReplayDiverged` and
  `SnapshotMismatch`, `SnapshotNotFound`, `SnapshotExists`, `MaxSnapshotsReached`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.lazy_names import lazy_names

if TYPE_CHECKING:
    from tallystick.core.errors import (
        GuestBroken,
        GuestMissing,
        InvalidLimit,
        InvalidName,
        MaxSnapshotsReached,
        ReplayDiverged,
        SnapshotExists,
        SnapshotMismatch,
        SnapshotNotFound,
    )
    from tallystick.sandbox.host import HostFunction, HostTable, RecordedHost
    from tallystick.sandbox.port import (
        CallRecord,
        ExecutionContext,
        ExecutionResult,
        Limits,
        ProgramCharge,
        ProgramError,
        Rerun,
        Sandbox,
        SandboxInterpreter,
    )
    from tallystick.sandbox.process.sandbox import ProcessSandbox
    from tallystick.sandbox.scripted import Scripted, ScriptedSandbox
    from tallystick.sandbox.snapshot import SnapshotId, SnapshotStore
    from tallystick.sandbox.text import HostText
    from tallystick.sandbox.wasm.sandbox import WasmInterpreter, WasmSandbox

__all__ = [
    "CallRecord",
    "ExecutionContext",
    "ExecutionResult",
    "GuestBroken",
    "GuestMissing",
    "HostFunction",
    "HostTable",
    "HostText",
    "InvalidLimit",
    "InvalidName",
    "Limits",
    "MaxSnapshotsReached",
    "ProcessSandbox",
    "ProgramCharge",
    "ProgramError",
    "RecordedHost",
    "ReplayDiverged",
    "Rerun",
    "Sandbox",
    "SandboxInterpreter",
    "Scripted",
    "ScriptedSandbox",
    "SnapshotExists",
    "SnapshotId",
    "SnapshotMismatch",
    "SnapshotNotFound",
    "SnapshotStore",
    "WasmInterpreter",
    "WasmSandbox",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "tallystick.core.errors": (
                "GuestBroken GuestMissing InvalidLimit InvalidName MaxSnapshotsReached "
                "ReplayDiverged SnapshotExists SnapshotMismatch SnapshotNotFound"
            ),
            "tallystick.sandbox.host": "HostFunction HostTable RecordedHost",
            "tallystick.sandbox.port": (
                "CallRecord ExecutionContext ExecutionResult Limits ProgramCharge "
                "ProgramError Rerun Sandbox SandboxInterpreter"
            ),
            "tallystick.sandbox.process.sandbox": "ProcessSandbox",
            "tallystick.sandbox.scripted": "Scripted ScriptedSandbox",
            "tallystick.sandbox.snapshot": "SnapshotId SnapshotStore",
            "tallystick.sandbox.text": "HostText",
            "tallystick.sandbox.wasm.sandbox": "WasmInterpreter WasmSandbox",
        },
    )
