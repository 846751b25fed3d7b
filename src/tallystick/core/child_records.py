"""What a ledger holds of runs that programs begin: in the parent's chain, and in the child's start.

A child has a chain of its own. In the parent's stand that it was begun, on disk before it is, and
what it came to; they belong to a host call and to a place in its batch, like model calls.
"""

from __future__ import annotations

import msgspec

from tallystick.core.attachment import AttachmentRef
from tallystick.core.charge import Charge

__all__ = ["CUT_OFF", "Caller", "ChildBegun", "ChildEnded"]

# Ends from outside: whoever goes on with the parent goes on with the child, in a next attempt.
CUT_OFF = frozenset({"cancelled", "in_doubt", "sandbox_error"})


class Caller(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who began a run: a program of another one, by a host call. `depth` is 1 for its children.

    `tools` are what each skill that was loaded there allows: the child has no more.
    """

    run: str
    intent: int
    item: int
    depth: int
    tools: tuple[tuple[str, ...], ...] = ()


class ChildBegun(msgspec.Struct, frozen=True, kw_only=True, tag="child.begun"):
    """A child run is about to begin. On disk before it does."""

    intent: int
    program: int
    item: int
    run: str
    request_sha256: str
    attempt: int = 1


class ChildEnded(msgspec.Struct, frozen=True, kw_only=True, tag="child.ended"):
    """What a child run came to, and all that it cost. `count` and `hash` are where it stands."""

    intent: int
    item: int
    run: str
    stop: str
    detail: str
    answer: str
    partial: bool
    charge: Charge
    count: int
    hash: str
    answer_ref: AttachmentRef | None = None
    attempt: int = 1
