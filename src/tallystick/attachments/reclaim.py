"""What a sweep may do, what it says afterwards, and when an intent is dead."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

import msgspec

from tallystick.attachments.port import Intent

__all__ = ["EmptyRootSet", "Fence", "ReclaimPolicy", "ReclaimReport", "intent_is_dead"]

_DAY_MS = 24 * 60 * 60 * 1000


class EmptyRootSet(enum.StrEnum):
    """What it means that nothing is held: a manifest that was lost looks the same."""

    REFUSE = "refuse"
    AUTHORIZE_DELETE_ALL = "authorize_delete_all"


class Fence(enum.StrEnum):
    """Whether a put can come between the last look and the deletion."""

    FENCED = "fenced"
    BEST_EFFORT = "best_effort"


class ReclaimPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """`grace_period_ms` is how old the intent of a dead owner must be. Age alone proves nothing."""

    grace_period_ms: int = _DAY_MS
    empty_root_set: EmptyRootSet = EmptyRootSet.REFUSE


class ReclaimReport(msgspec.Struct, kw_only=True):
    """What a sweep found and did; in a dry run, what it would have done.

    `condemn_deferred_ids`: bytes that somebody wanted after all, or that another sweep is at.
    `unproven_owners`: owners of old intents that have neither a lock nor a lock file; what they
    intended stays.
    """

    dry_run: bool = False
    fence: Fence = Fence.FENCED
    scanned_blob_count: int = 0
    reclaimed_count: int = 0
    reclaimed_bytes: int = 0
    failed_ids: list[str] = msgspec.field(default_factory=list)
    condemn_deferred_ids: list[str] = msgspec.field(default_factory=list)
    deleted_while_referenced: list[str] = msgspec.field(default_factory=list)
    root_enumeration_failure: str | None = None
    swept_intent_count: int = 0
    orphan_staged_count: int = 0
    orphan_file_count: int = 0
    orphan_failures: list[str] = msgspec.field(default_factory=list)
    unproven_owners: list[str] = msgspec.field(default_factory=list)


def intent_is_dead(
    intent: Intent,
    *,
    holders: Sequence[str],
    cutoff: int,
    proven_dead: Callable[[str], bool],
) -> bool:
    """An intent dies if it is old and all who hold it, if any do, are proven dead."""
    return intent.intent_at_epoch_ms <= cutoff and all(map(proven_dead, holders))
