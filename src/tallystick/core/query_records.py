"""What a ledger holds of the model calls that programs make: each attempt, and what came of it.

They belong to a host call by its intent, and to a place in its batch. Calls of one batch run side
by side, so their records stand in the order in which things happened, not in that of the batch.
"""

from __future__ import annotations

import msgspec

from tallystick.core.attachment import AttachmentRef
from tallystick.core.charge import FailureKind, ModelUsage, Reserved, Settled
from tallystick.core.child_records import ChildBegun, ChildEnded

__all__ = ["QueryAsked", "QueryFailed", "QueryRecord", "QueryRefused", "QueryReplied"]


class QueryAsked(msgspec.Struct, frozen=True, kw_only=True, tag="query.ask"):
    """One attempt at a call that a program makes. Paid: on disk before it is sent.

    It belongs to the host call `intent`; `item` is its place in the batch. `prompt` is what was
    asked, unless it is long: then `prompt_ref` has it.
    """

    intent: int
    program: int
    item: int
    attempt: int
    model: str
    request_sha256: str
    tokens_out_max: int
    reserved: Reserved
    prompt: str = ""
    prompt_ref: AttachmentRef | None = None
    wait_ms: int = 0
    temperature: float | None = None


class QueryReplied(msgspec.Struct, frozen=True, kw_only=True, tag="query.replied"):
    """The answer to a program's call."""

    intent: int
    item: int
    attempt: int
    text: str
    usage: ModelUsage
    settled: Settled
    text_ref: AttachmentRef | None = None
    cut: bool = False
    wall_ms: int = 0
    served_by: str = ""
    finish: str = ""


class QueryFailed(msgspec.Struct, frozen=True, kw_only=True, tag="query.failed"):
    """An attempt at a program's call that gave no answer."""

    intent: int
    item: int
    attempt: int
    reason: str
    message: str
    settled: Settled
    kind: FailureKind = "terminal"
    status: int | None = None
    retry_after_ms: int | None = None
    billed: bool = True
    usage: ModelUsage | None = None
    wall_ms: int = 0


class QueryRefused(msgspec.Struct, frozen=True, kw_only=True, tag="query.refused"):
    """A program's call that was never made, since a budget does not pay for it."""

    intent: int
    item: int
    attempt: int
    message: str
    dimension: str
    scope: str


QueryRecord = QueryAsked | QueryReplied | QueryFailed | QueryRefused | ChildBegun | ChildEnded
