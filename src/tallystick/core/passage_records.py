"""What a ledger holds of a run's passage: gone on with, forked, pruned, its interpreter kept.

None of these is asked for by the machine. They are acts upon a run: by whoever resumes it, grows
another from it, or takes its bodies out; and the runtime's own, that it kept the interpreter.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tallystick.core.attachment import AttachmentRef
from tallystick.core.charge import RunLimits
from tallystick.core.vocabulary_records import PersonDecision

__all__ = ["InDoubt", "RunForked", "RunPruned", "RunResumed", "SnapshotTaken"]

# What becomes of calls that were begun and have no outcome: nothing yet, they are made again and
# the cost of the first is accepted, or they are given up.
InDoubt = Literal["halt", "retry", "abandon"]


class RunResumed(msgspec.Struct, frozen=True, kw_only=True, tag="run.resumed"):
    """A run is gone on with, after its process died or after it had ended.

    `limits` are those from here on, None if they stay. `in_doubt` is what was said of calls whose
    outcome nobody knows; `stolen` says that it was taken from a process that still lived.
    `decision` is what a person says of the program that waited for one, `by` who it was.
    `files_missing` are files of native programs that could not be kept for it.
    """

    at: int
    fence: int
    limits: RunLimits | None = None
    in_doubt: InDoubt = "halt"
    stolen: bool = False
    decision: PersonDecision | None = None
    by: str = ""
    files_missing: tuple[str, ...] = ()


class RunForked(msgspec.Struct, frozen=True, kw_only=True, tag="run.forked"):
    """The first record of a run that grew from another, whose first `count` entries it shares.

    `hash` is that of the last of those, and what the chain begins with. What is not None is another
    from here on. `session_id` holds the attachments of the fork.
    """

    parent: str
    count: int
    hash: str
    turn: int
    at: int
    session_id: str
    model: str | None = None
    limits: RunLimits | None = None
    temperature: float | None = None
    files_missing: tuple[str, ...] = ()


class RunPruned(msgspec.Struct, frozen=True, kw_only=True, tag="run.pruned"):
    """The bodies of a run were taken out, but for receipts and what proves its chain.

    `before` is the place of this record: what was removed stands before it. `why` is a word for
    whoever asks later, `caller` the run that had begun it, if one had.
    """

    at: int
    before: int
    removed: int
    bytes: int
    why: str
    caller: str | None = None


class SnapshotTaken(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot.taken"):
    """The interpreter as it stood after a program, so that a resume need not run those before."""

    intent: int
    turn: int
    fuel: int
    image: AttachmentRef
