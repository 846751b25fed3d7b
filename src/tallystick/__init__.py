"""Tallystick: a runtime for agents that act by writing code.

The names below are promised to users; the modules behind them may move. They are imported when they
are first used, so that `import tallystick` itself costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tallystick.client import Session
    from tallystick.core.budget.amount import Budget
    from tallystick.core.charge import Charge, RunLimits
    from tallystick.core.errors import (
        Cancelled,
        CapabilityDenied,
        LedgerError,
        NotSupported,
        Refused,
        SandboxError,
        SnapshotMismatch,
        TallystickError,
        UsageError,
    )
    from tallystick.core.resume_errors import RunInDoubt
    from tallystick.core.step import CompletedStep, StepBudgetError, StepsDiverged
    from tallystick.core.views.open_calls import NOT_RECEIVED, UNKNOWN
    from tallystick.inputs.reading import read_inputs
    from tallystick.ledger.memory import MemoryLedger
    from tallystick.ledger.sqlite import SqliteLedger
    from tallystick.live.follow import follow
    from tallystick.live.stop import stop
    from tallystick.model.port import ModelError, ModelReply
    from tallystick.model.price_table import PriceTable, Pricing
    from tallystick.model.scripted import ScriptedModel, ScriptedReply
    from tallystick.runtime.calls.functions import effect_key, host_function
    from tallystick.runtime.context.inputs import given_text
    from tallystick.runtime.runs.result import Run
    from tallystick.sandbox.host import HostFunction, HostTable
    from tallystick.sandbox.port import ExecutionContext, ExecutionResult, Limits
    from tallystick.sandbox.scripted import Scripted, ScriptedSandbox
    from tallystick.sandbox.snapshot import SnapshotId
    from tallystick.sandbox.text import HostText
    from tallystick.sandbox.wasm.sandbox import WasmSandbox
    from tallystick.sessions.snapshots import open_snapshots
    from tallystick.settings.paths import cache_directory, data_directory
    from tallystick.skills.skills import Skills
    from tallystick.steps.step import completed_steps, step, step_log
    from tallystick.upkeep.memory import Memory

    __version__: str

__all__ = [
    "NOT_RECEIVED",
    "UNKNOWN",
    "Budget",
    "Cancelled",
    "CapabilityDenied",
    "Charge",
    "CompletedStep",
    "ExecutionContext",
    "ExecutionResult",
    "HostFunction",
    "HostTable",
    "HostText",
    "LedgerError",
    "Limits",
    "Memory",
    "MemoryLedger",
    "ModelError",
    "ModelReply",
    "NotSupported",
    "PriceTable",
    "Pricing",
    "Refused",
    "Run",
    "RunInDoubt",
    "RunLimits",
    "SandboxError",
    "Scripted",
    "ScriptedModel",
    "ScriptedReply",
    "ScriptedSandbox",
    "Session",
    "Skills",
    "SnapshotId",
    "SnapshotMismatch",
    "SqliteLedger",
    "StepBudgetError",
    "StepsDiverged",
    "TallystickError",
    "UsageError",
    "WasmSandbox",
    "cache_directory",
    "completed_steps",
    "data_directory",
    "effect_key",
    "follow",
    "given_text",
    "host_function",
    "open_snapshots",
    "read_inputs",
    "step",
    "step_log",
    "stop",
]

_HOMES = {
    "tallystick.client": ("Session",),
    "tallystick.core.budget.amount": ("Budget",),
    "tallystick.core.charge": (
        "Charge",
        "RunLimits",
    ),
    "tallystick.core.errors": (
        "Cancelled",
        "CapabilityDenied",
        "LedgerError",
        "NotSupported",
        "Refused",
        "SandboxError",
        "SnapshotMismatch",
        "TallystickError",
        "UsageError",
    ),
    "tallystick.core.resume_errors": ("RunInDoubt",),
    "tallystick.core.step": (
        "CompletedStep",
        "StepBudgetError",
        "StepsDiverged",
    ),
    "tallystick.core.views.open_calls": (
        "NOT_RECEIVED",
        "UNKNOWN",
    ),
    "tallystick.ledger.memory": ("MemoryLedger",),
    "tallystick.live.follow": ("follow",),
    "tallystick.live.stop": ("stop",),
    "tallystick.ledger.sqlite": ("SqliteLedger",),
    "tallystick.model.port": (
        "ModelError",
        "ModelReply",
    ),
    "tallystick.model.price_table": (
        "PriceTable",
        "Pricing",
    ),
    "tallystick.model.scripted": (
        "ScriptedModel",
        "ScriptedReply",
    ),
    "tallystick.runtime.calls.functions": (
        "effect_key",
        "host_function",
    ),
    "tallystick.inputs.reading": ("read_inputs",),
    "tallystick.runtime.context.inputs": ("given_text",),
    "tallystick.runtime.runs.result": ("Run",),
    "tallystick.sandbox.host": (
        "HostFunction",
        "HostTable",
    ),
    "tallystick.sandbox.port": (
        "ExecutionContext",
        "ExecutionResult",
        "Limits",
    ),
    "tallystick.sandbox.scripted": (
        "Scripted",
        "ScriptedSandbox",
    ),
    "tallystick.sandbox.snapshot": ("SnapshotId",),
    "tallystick.sandbox.text": ("HostText",),
    "tallystick.sandbox.wasm.sandbox": ("WasmSandbox",),
    "tallystick.sessions.snapshots": ("open_snapshots",),
    "tallystick.settings.paths": (
        "cache_directory",
        "data_directory",
    ),
    "tallystick.skills.skills": ("Skills",),
    "tallystick.steps.step": (
        "completed_steps",
        "step",
        "step_log",
    ),
    "tallystick.upkeep.memory": ("Memory",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "__version__":
        # Read from the installed package, so that the version is written in `pyproject.toml` only.
        from importlib import metadata

        return metadata.version("tallystick")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'tallystick' has no attribute {name!r}")
    found: object = getattr(importlib.import_module(_HOME_OF[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
