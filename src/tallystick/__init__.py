"""Tallystick: a runtime for agents that act by writing code.

These names are promised to users; the modules behind them may move. They are imported when they
are first used, so that `import tallystick` itself costs nothing. More names are in the public
modules: `tallystick.attachments`, `.inputs`, `.interop`, `.ledger`, `.memory`, `.model`,
`.sandbox`, `.sessions`, `.settings`, `.skills`, `.steps`, `.upkeep` and `.vocabulary`.

- `run` runs one goal, and `arun` is for callers that await; a `Run` is the result
- `stream` runs one goal and gives its events as they are recorded
- `Agent` holds a model, tools and limits for any number of runs; `NoAnswer` says why a run has none
- `tool` marks a function that programs may call; `effect_key` is the same for each attempt of one
- `Budget` limits all runs of an agent together, `RunLimits` one run; a `Charge` is what was used
- `Memory` holds notes across runs, `Skills` instructions that programs may load
- `step` makes a function of your own a step with a budget
- `follow` gives the events of a run of any process as they happen, and `stop` ends one
- `TallystickError` is the family of all errors: `UsageError`, `Refused` with `CapabilityDenied` and
  `NotSupported`, `LedgerError`, `ModelError`, `SandboxError` and `RunInDoubt`
- `Cancelled` says that you cancelled; it is no `Exception`
"""

from __future__ import annotations

from tallystick.lazy_names import lazy_names

# True for type checkers, which know this name. Importing it takes half of the time of a start.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from tallystick.agent.agent import Agent
    from tallystick.agent.quick import arun, run, stream
    from tallystick.core.budget.amount import Budget
    from tallystick.core.charge import Charge, RunLimits
    from tallystick.core.errors import (
        Cancelled,
        CapabilityDenied,
        LedgerError,
        NotSupported,
        Refused,
        SandboxError,
        TallystickError,
        UsageError,
    )
    from tallystick.core.resume_errors import RunInDoubt
    from tallystick.live.follow import follow
    from tallystick.live.stop import stop
    from tallystick.model.port import ModelError
    from tallystick.runtime.calls.functions import effect_key
    from tallystick.runtime.runs.result import NoAnswer, Run
    from tallystick.skills.skills import Skills
    from tallystick.steps.decorator import step
    from tallystick.tools.tool import tool
    from tallystick.upkeep.memory import Memory

    __version__: str

__all__ = [
    "Agent",
    "Budget",
    "Cancelled",
    "CapabilityDenied",
    "Charge",
    "LedgerError",
    "Memory",
    "ModelError",
    "NoAnswer",
    "NotSupported",
    "Refused",
    "Run",
    "RunInDoubt",
    "RunLimits",
    "SandboxError",
    "Skills",
    "TallystickError",
    "UsageError",
    "arun",
    "effect_key",
    "follow",
    "run",
    "step",
    "stop",
    "stream",
    "tool",
]

if TYPE_CHECKING:
    # Names of release 0.1 that have moved, or have another name: type checkers still know them
    # here for one release.
    from tallystick.client import Session as Session
    from tallystick.inputs import given_text as given_text
    from tallystick.inputs import read_inputs as read_inputs
    from tallystick.ledger import MemoryLedger as MemoryLedger
    from tallystick.ledger import SqliteLedger as SqliteLedger
    from tallystick.model import NOT_RECEIVED as NOT_RECEIVED
    from tallystick.model import UNKNOWN as UNKNOWN
    from tallystick.model import ModelReply as ModelReply
    from tallystick.model import PriceTable as PriceTable
    from tallystick.model import Pricing as Pricing
    from tallystick.model import ScriptedModel as ScriptedModel
    from tallystick.model import ScriptedReply as ScriptedReply
    from tallystick.runtime.calls.functions import host_function as host_function
    from tallystick.sandbox import ExecutionContext as ExecutionContext
    from tallystick.sandbox import ExecutionResult as ExecutionResult
    from tallystick.sandbox import HostFunction as HostFunction
    from tallystick.sandbox import HostTable as HostTable
    from tallystick.sandbox import HostText as HostText
    from tallystick.sandbox import Limits as Limits
    from tallystick.sandbox import Scripted as Scripted
    from tallystick.sandbox import ScriptedSandbox as ScriptedSandbox
    from tallystick.sandbox import SnapshotId as SnapshotId
    from tallystick.sandbox import SnapshotMismatch as SnapshotMismatch
    from tallystick.sandbox import WasmSandbox as WasmSandbox
    from tallystick.sessions import open_snapshots as open_snapshots
    from tallystick.settings import cache_directory as cache_directory
    from tallystick.settings import data_directory as data_directory
    from tallystick.steps import CompletedStep as CompletedStep
    from tallystick.steps import StepBudgetError as StepBudgetError
    from tallystick.steps import StepsDiverged as StepsDiverged
    from tallystick.steps import completed_steps as completed_steps
    from tallystick.steps import step_log as step_log
else:
    # The public module that has each name which `tallystick` itself had in release 0.1.
    _MOVED = {
        "tallystick.inputs": "given_text read_inputs",
        "tallystick.ledger": "MemoryLedger SqliteLedger",
        "tallystick.model": (
            "NOT_RECEIVED UNKNOWN ModelReply PriceTable Pricing ScriptedModel ScriptedReply"
        ),
        "tallystick.sandbox": (
            "ExecutionContext ExecutionResult HostFunction HostTable HostText Limits Scripted "
            "ScriptedSandbox SnapshotId SnapshotMismatch WasmSandbox"
        ),
        "tallystick.sessions": "open_snapshots",
        "tallystick.settings": "cache_directory data_directory",
        "tallystick.steps": (
            "CompletedStep StepBudgetError StepsDiverged completed_steps step_log"
        ),
    }
    _find, __dir__ = lazy_names(
        __name__,
        {
            "tallystick.agent.agent": "Agent",
            "tallystick.agent.quick": "arun run stream",
            "tallystick.core.budget.amount": "Budget",
            "tallystick.core.charge": "Charge RunLimits",
            "tallystick.core.errors": (
                "Cancelled CapabilityDenied LedgerError NotSupported Refused SandboxError "
                "TallystickError UsageError"
            ),
            "tallystick.core.resume_errors": "RunInDoubt",
            "tallystick.live.follow": "follow",
            "tallystick.live.stop": "stop",
            "tallystick.model.port": "ModelError",
            "tallystick.runtime.calls.functions": "effect_key",
            "tallystick.runtime.runs.result": "NoAnswer Run",
            "tallystick.skills.skills": "Skills",
            "tallystick.steps.decorator": "step",
            "tallystick.tools.tool": "tool",
            "tallystick.upkeep.memory": "Memory",
        },
        moved=_MOVED,
        replaced={
            "Session": ("tallystick.client", "tallystick.Agent"),
            "host_function": ("tallystick.runtime.calls.functions", "tallystick.tool"),
        },
    )

    def __getattr__(name: str) -> object:
        if name == "__version__":
            # Read from the installed package: the version is written in `pyproject.toml` only.
            from importlib import metadata

            return metadata.version("tallystick")
        return _find(name)
