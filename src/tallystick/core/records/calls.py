"""Records of calls inside a run: queries, child runs, native programs; and of its resuming."""

from __future__ import annotations

from typing import Literal

import msgspec

from tallystick.core.charge import Charge, FailureKind, ModelUsage, Reserved, RunLimits, Settled
from tallystick.core.records.given import AttachmentRef, PersonDecision

# What a ledger holds of runs that programs begin: in the parent's chain, and in the child's start.
#
# A child has a chain of its own. In the parent's stand that it was begun, on disk before it is, and
# what it came to; they belong to a host call and to a place in its batch, like model calls.


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


# What a ledger holds of the model calls that programs make: each attempt, and what came of it.
#
# They belong to a host call by its intent, and to a place in its batch. Calls of one batch run side
# by side, so their records stand in the order in which things happened, not in that of the batch.


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


# What a ledger holds of programs that run natively: their files, kept, and what they reached for.
#
# Such a program cannot be run again on recorded answers: it is an effect, served where it is
# recorded. So what it left behind is kept itself, and every attempt to leave its box is written
# down.


# What is run: a program, a command of the shell, or what is done to the session's state.
ProgramKind = Literal["python", "bash", "snapshot", "rollback"]


class FilesKept(msgspec.Struct, frozen=True, kw_only=True, tag="files.kept", omit_defaults=True):
    """The working directory after a program, with the shell's directory and exported variables.

    It is written where one of them has changed, with the end of the program. `archive` says all of
    it, and has the contents that no earlier one of the run has; None if nothing could be kept, and
    `problem` says why. `left_out` are the first of the paths that do not stand in it, `left_out_of`
    how many there are.
    """

    intent: int
    turn: int
    archive: AttachmentRef | None
    left_out: tuple[str, ...] = ()
    left_out_of: int = 0
    problem: str = ""


class NetworkAttempted(
    msgspec.Struct, frozen=True, kw_only=True, tag="network.attempted", omit_defaults=True
):
    """A program tried to reach something. Written before it is let through.

    `outcome` is allowed, refused, or failed for one that was allowed before. `address` is the one
    that the name had, and that it was let through to.
    """

    program: int
    host: str
    port: int
    method: str
    outcome: str
    why: str = ""
    address: str | None = None


NativeRecord = FilesKept | NetworkAttempted


# What a ledger holds of a run's passage: gone on with, forked, pruned, its interpreter kept.
#
# None of these is asked for by the machine. They are acts upon a run: by whoever resumes it, grows
# another from it, or takes its bodies out; and the runtime's own, that it kept the interpreter.


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
