"""Define the records of queries, child runs and native programs, and of resume, fork and prune."""

from __future__ import annotations

from typing import Literal

import msgspec

from tallystick.core.charge import Charge, FailureKind, ModelUsage, Reserved, RunLimits, Settled
from tallystick.core.records.given import AttachmentRef, PersonDecision, SkillModel

# Records of child runs: in the parent's chain, and in the child's start.
#
# A child has a chain of its own. The parent's chain has its beginning, on disk before the child
# starts, and its result. Both belong to a host call and to a place in its batch, like model calls.


# Ends from outside: a resume of the parent resumes the child too, in a next attempt.
CUT_OFF = frozenset({"cancelled", "in_doubt", "sandbox_error", "waiting"})


class Caller(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The host call by which a program of another run began this one.

    `depth` is 1 for the children of the first run. `tools` are what each skill that was loaded
    there allows: the child has no more. `skill_model` is the model that one of those skills names
    for the child's own model calls.
    """

    run: str
    intent: int
    item: int
    depth: int
    tools: tuple[tuple[str, ...], ...] = ()
    skill_model: SkillModel | None = None


class ChildBegun(msgspec.Struct, frozen=True, kw_only=True, tag="child.begun"):
    """A child run is about to begin. On disk before it does."""

    intent: int
    program: int
    item: int
    run: str
    request_sha256: str
    attempt: int = 1


class ChildEnded(msgspec.Struct, frozen=True, kw_only=True, tag="child.ended"):
    """The result of a child run, and all that it cost. `count` and `hash` are its head."""

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


# Records of the model calls that programs make: each attempt, and its outcome.
#
# They belong to a host call by its intent, and to a place in its batch. Calls of one batch run side
# by side, so their records are in the order in which things happened, not in that of the batch.


class QueryAsked(msgspec.Struct, frozen=True, kw_only=True, tag="query.ask"):
    """One attempt at a call that a program makes. Paid: on disk before it is sent.

    It belongs to the host call `intent`; `item` is its place in the batch. `prompt` is the text of
    the call, unless it is long: then `prompt_ref` has it.
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
    """A program's call that was never made, because a budget does not pay for it."""

    intent: int
    item: int
    attempt: int
    message: str
    dimension: str
    scope: str


QueryRecord = QueryAsked | QueryReplied | QueryFailed | QueryRefused | ChildBegun | ChildEnded


# Records of programs that run natively: the files they leave, and their network attempts.
#
# Such a program cannot be run again on recorded answers: it is an effect, and a resume serves its
# recorded result. So the files that it left are kept, and every attempt to leave its box is
# recorded.


# A program, a command of the shell, or an operation on the session's state.
ProgramKind = Literal["python", "bash", "snapshot", "rollback"]


class FilesKept(msgspec.Struct, frozen=True, kw_only=True, tag="files.kept", omit_defaults=True):
    """The working directory after a program, with the shell's directory and exported variables.

    It is written with the end of the program, if one of them has changed. `archive` lists all of
    it, and has the contents that no earlier one of the run has. It is None if nothing could be
    kept, and `problem` is the reason. `left_out` are the first paths that are not in it,
    `left_out_of` how many there are.
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
    """An attempt of a program to reach a host. Written before it is let through.

    `outcome` is allowed, refused, or failed for one that was allowed before. `address` is the
    address that the name resolved to, and that the program was let through to.
    """

    program: int
    host: str
    port: int
    method: str
    outcome: str
    why: str = ""
    address: str | None = None


NativeRecord = FilesKept | NetworkAttempted


# Records of calls that need a person's word.
#
# The run ends after the first of them, and what was decided is in its resume. Only a native
# program, which cannot be run again, waits for the decision itself, and has the second.


class CallWaiting(msgspec.Struct, frozen=True, kw_only=True, tag="call.waiting"):
    """A call of a program needs a person's word, and was not made. On disk before anyone is asked.

    A decision is bound to the digest of the request. `request` is as in the record of an effect.
    """

    intent: int
    program: int
    index: int
    turn: int
    name: str
    request_sha256: str
    request: str | msgspec.UnsetType = msgspec.UNSET
    request_ref: AttachmentRef | msgspec.UnsetType = msgspec.UNSET


class CallDecided(
    msgspec.Struct, frozen=True, kw_only=True, tag="call.decided", omit_defaults=True
):
    """The person `by` decided about a call of a native program, which waited for it.

    `at` is in milliseconds since 1970. With `all`, later calls of the run need no further word.
    """

    intent: int
    program: int
    request_sha256: str
    decision: PersonDecision
    by: str
    at: int
    because: str = ""
    all: bool = False


# Records of acts upon a run: it was resumed, forked or pruned, or its interpreter was kept.
#
# The machine asks for none of these. The first three come from the caller that resumes, forks or
# prunes the run; the last one from the runtime.


# The fate of calls that were begun and have no outcome: the resume stops, they are repeated and
# the cost of the first is accepted, or they are given up.
InDoubt = Literal["halt", "retry", "abandon"]


class RunResumed(msgspec.Struct, frozen=True, kw_only=True, tag="run.resumed"):
    """A run is resumed, after its process died or after it had ended.

    `limits` are those from here on, None if they stay. `in_doubt` is the decision about calls whose
    outcome is unknown; `stolen` is True if the run was taken from a process that was still alive.
    `decision` is a person's decision about the program or the call that waited for one, `by` the
    name of that person and `because` the reason that was given. `decided_sha256` is of the source
    or the request that it is about. With `decided_all`, later calls of the run need no further
    word. `files_missing` are files of native programs that could not be kept for the run.
    """

    at: int
    fence: int
    limits: RunLimits | None = None
    in_doubt: InDoubt = "halt"
    stolen: bool = False
    decision: PersonDecision | None = None
    by: str = ""
    files_missing: tuple[str, ...] = ()
    because: str | msgspec.UnsetType = msgspec.UNSET
    decided_sha256: str | msgspec.UnsetType = msgspec.UNSET
    decided_all: bool | msgspec.UnsetType = msgspec.UNSET


class RunForked(msgspec.Struct, frozen=True, kw_only=True, tag="run.forked"):
    """The first record of a forked run. It shares the first `count` entries of its parent.

    `hash` is that of the last of those, with which the chain begins. A field that is not None has a
    new value from here on. `session_id` holds the attachments of the fork.
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
    """The bodies of a run were removed, except receipts and what proves its chain.

    `before` is the position of this record: what was removed is before it. `why` is a word for
    later readers. `caller` is the run that had begun this one, if one had.
    """

    at: int
    before: int
    removed: int
    bytes: int
    why: str
    caller: str | None = None


class SnapshotTaken(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot.taken"):
    """The interpreter after a program, so that a resume need not run the programs before it."""

    intent: int
    turn: int
    fuel: int
    image: AttachmentRef
