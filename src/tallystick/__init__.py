"""Tallystick: a runtime for agents that act by writing code.

The names below are promised to users; the modules behind them may move. They are imported when they
are first used, so that `import tallystick` itself costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tallystick.core.budget_amount import Budget
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
    from tallystick.core.lookup import NOT_RECEIVED, UNKNOWN
    from tallystick.core.passage_errors import RunInDoubt
    from tallystick.core.records import Charge, RunLimits
    from tallystick.core.step import CompletedStep
    from tallystick.core.step_errors import StepBudgetError, StepsDiverged
    from tallystick.ledger.memory import MemoryLedger
    from tallystick.ledger.sqlite import SqliteLedger
    from tallystick.model.port import ModelError, ModelReply
    from tallystick.model.price_table import PriceTable
    from tallystick.model.scripted import ScriptedModel, ScriptedReply
    from tallystick.runtime.functions import effect_key, host_function
    from tallystick.runtime.inputs import given_text, read_inputs
    from tallystick.runtime.memory import Memory
    from tallystick.runtime.paths import cache_directory, data_directory
    from tallystick.runtime.run import Run
    from tallystick.runtime.session import Session
    from tallystick.runtime.skills import Skills
    from tallystick.runtime.snapshots import open_snapshots
    from tallystick.runtime.step import completed_steps, step, step_log
    from tallystick.runtime.teller import Pricing
    from tallystick.sandbox.host import HostFunction, HostTable
    from tallystick.sandbox.port import ExecutionContext, ExecutionResult, Limits
    from tallystick.sandbox.scripted import Scripted, ScriptedSandbox
    from tallystick.sandbox.snapshot import SnapshotId
    from tallystick.sandbox.text import HostText
    from tallystick.sandbox.wasm.sandbox import WasmSandbox

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
    "given_text",
    "host_function",
    "open_snapshots",
    "read_inputs",
    "step",
    "step_log",
]

_HOMES = {
    "tallystick.core.budget_amount": ("Budget",),
    "tallystick.core.lookup": ("NOT_RECEIVED", "UNKNOWN"),
    "tallystick.core.passage_errors": ("RunInDoubt",),
    "tallystick.model.port": ("ModelError", "ModelReply"),
    "tallystick.model.price_table": ("PriceTable",),
    "tallystick.runtime.teller": ("Pricing",),
    "tallystick.core.records": (
        "Charge",
        "RunLimits",
    ),
    "tallystick.ledger.memory": ("MemoryLedger",),
    "tallystick.ledger.sqlite": ("SqliteLedger",),
    "tallystick.model.scripted": (
        "ScriptedModel",
        "ScriptedReply",
    ),
    "tallystick.runtime.functions": ("effect_key", "host_function"),
    "tallystick.runtime.memory": ("Memory",),
    "tallystick.runtime.run": ("Run",),
    "tallystick.runtime.session": ("Session",),
    "tallystick.runtime.skills": ("Skills",),
    "tallystick.runtime.snapshots": ("open_snapshots",),
    "tallystick.core.step": ("CompletedStep",),
    "tallystick.core.step_errors": ("StepBudgetError", "StepsDiverged"),
    "tallystick.runtime.step": ("completed_steps", "step", "step_log"),
    "tallystick.runtime.inputs": (
        "given_text",
        "read_inputs",
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
    "tallystick.runtime.paths": ("cache_directory", "data_directory"),
    "tallystick.sandbox.host": ("HostFunction", "HostTable"),
    "tallystick.sandbox.port": ("ExecutionContext", "ExecutionResult", "Limits"),
    "tallystick.sandbox.scripted": ("Scripted", "ScriptedSandbox"),
    "tallystick.sandbox.snapshot": ("SnapshotId",),
    "tallystick.sandbox.text": ("HostText",),
    "tallystick.sandbox.wasm.sandbox": ("WasmSandbox",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'tallystick' has no attribute {name!r}")
    found: object = getattr(importlib.import_module(_HOME_OF[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
