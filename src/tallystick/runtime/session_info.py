"""What a session is, as the book tells it: its state, its limits, and what it keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from tallystick.core.attachment import AttachmentRef
from tallystick.sandbox.snapshot import SNAPSHOTS_MAX, SnapshotId

__all__ = [
    "CONTEXT_BYTES_MAX",
    "CONTEXT_KEY_CHARS_MAX",
    "CONTEXT_VARIABLES_MAX",
    "DEPTH_MAX",
    "DURATION_MS",
    "EXTENSIONS_MAX",
    "EXTENSION_MS",
    "SNAPSHOTS_MAX",
    "BudgetStatus",
    "KeptSnapshot",
    "Left",
    "SessionInfo",
    "SessionRun",
    "SessionState",
    "SessionStats",
]

DURATION_MS = 1_800_000
EXTENSION_MS = 1_800_000
EXTENSIONS_MAX = 3
DEPTH_MAX = 10
CONTEXT_VARIABLES_MAX = 100
CONTEXT_KEY_CHARS_MAX = 256
# Of all of them together, names and values: each run of the session writes them down.
CONTEXT_BYTES_MAX = 65_536
# Beyond this share of a budget, it is nearly exhausted.
_NEAR = 0.8

SessionState = Literal["initializing", "ready", "executing", "paused", "terminated", "expired"]


class BudgetStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the runs of a session have spent together, and what they may. None: each its own limits.

    `tokens_used` and `time_used_ms` are those of runs that ended, or as far as they came.
    """

    tokens_used: int = 0
    token_budget: int | None = None
    time_used_ms: int = 0
    time_budget_ms: int | None = None
    recursion_depth: int = 0
    max_recursion_depth: int = DEPTH_MAX

    @property
    def near_exhaustion(self) -> bool:
        """Whether any of them is used to more than 80 per cent."""
        pairs = (
            (self.tokens_used, self.token_budget),
            (self.time_used_ms, self.time_budget_ms),
            (self.recursion_depth, self.max_recursion_depth),
        )
        return any(most is not None and used > _NEAR * most for used, most in pairs)


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """The interpreter as a run left it: an image of one backend, which only that can read.

    `image` is None for a fresh interpreter. `names` are its variables, in short, to be shown.
    """

    image: AttachmentRef | None = None
    run: str | None = None
    names: str = ""


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A session. Times are milliseconds since 1970.

    `vm_instance_id` is what lives for it now, for backends that have such a thing.
    `generation` counts how often its interpreter was replaced, by a run or a restore.
    """

    id: str
    state: SessionState
    created_at: int
    expires_at: int
    extension_count: int = 0
    recursion_depth: int = 0
    budget_status: BudgetStatus = BudgetStatus()
    vm_instance_id: str | None = None
    context_variables: Mapping[str, str] = {}
    current_snapshot_id: str | None = None
    snapshot_count: int = 0
    backend: str = "wasm"
    generation: int = 0
    left: Left = Left()


class KeptSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a session: its identity, and the interpreter as it was."""

    snapshot: SnapshotId
    backend: str
    left: Left


class SessionRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a session, in its place. `ended` says that what it spent is all that it will."""

    run: str
    begun_at: int
    ended: bool = False
    tokens: int = 0
    wall_ms: int = 0


class SessionStats(msgspec.Struct, frozen=True, kw_only=True):
    """How many sessions there ever were, how many can be used, and how many have an instance."""

    total_created: int
    active: int
    with_vm: int
