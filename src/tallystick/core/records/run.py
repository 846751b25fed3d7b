"""Define the records of a run: intents that were begun, events that happened, and their codec.

Tags are forever; a class may be renamed. A record is a fact closed over its fields: the code that
saw it happen makes it, and a record never reads the world itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from tallystick.core.charge import Charge, FailureKind, ModelUsage, Reserved, RunLimits, Settled
from tallystick.core.clock import FIXED_CLOCK_NS, UTC, RunClock
from tallystick.core.records.calls import (
    CallDecided,
    Caller,
    CallWaiting,
    ChildBegun,
    ChildEnded,
    NativeRecord,
    ProgramKind,
    QueryAsked,
    QueryFailed,
    QueryRefused,
    QueryReplied,
    RunForked,
    RunPruned,
    RunResumed,
    SnapshotTaken,
)
from tallystick.core.records.given import (
    AttachmentRef,
    CheckProgram,
    ContextRef,
    EvidenceRef,
    InputRef,
    MemoryGiven,
    NotesTouched,
    ProgramChecked,
    SessionGiven,
    SkillLoaded,
    SkillMatched,
    SkillsGiven,
    SkillUsed,
    TextRef,
    ViewRef,
    VocabularyGiven,
)
from tallystick.core.records.receipts import ReceiptIssued, StepEntered, StepLeft

# Reasons of a model call without a reply: it was left by a cancel, or its process died.
LEFT = "cancelled"
DOUBTED = "in_doubt"
StopReason = Literal[
    "answered",
    "max_turns",
    "budget",
    "deadline",
    "cancelled",
    "refused",
    "model_error",
    "sandbox_error",
    "in_doubt",
    "no_progress",
    "waiting",
]
Policy = Literal["pure", "read", "effect", "paid"]


# Helps for weak models. `nearest`: passages of long texts next to the task. `items`: a program that
# asks a model about each item, if the task wants them judged. `line`: the values on a line that
# fails again. `position`: the question about an answer that is a position or a length. A run can be
# made without some of them only to measure what each one brings.
AIDS = ("nearest", "items", "line", "position")


class RunStarted(msgspec.Struct, frozen=True, kw_only=True, tag="run.started"):
    """A goal under limits, with everything a replay needs beside the answers of the world.

    Inputs: `functions`, `inputs` (texts short enough to be given whole) and `texts` are the names
    the program finds, `values` those of runs from before there were attachments. `images` go to the
    model with the task. `encodings` are of files that were not UTF-8.

    Origin: `parent` is the chain of the steps around the run, `step` the path of the one that began
    it. `caller` is the run whose program did. `settings` names the source of each setting that is
    no default, if a configuration was read.

    Rules: `strategy` is how the run is answered, `strategy_why` the reason, if the strategy was not
    asked for by name. `sub_model` is asked by programs that name no model, and by child runs. A
    prompt of more than `compact_at` tokens is shortened, if it is not 0.
    `schema` is of the answer. `instructions` are for all turns, also of a direct answer; child runs
    have none. `backend` is the sandbox that its programs run in. `clock_ns` is the
    start of its clock; without one, that is 2026-01-01.

    Capabilities: `skills` are those that its programs may load, as they were then. `memory` is the
    one that they recall from, `session` the one that the run belongs to. `given` has what
    capabilities without a field of their own record of the run, each under its name.

    `aids` are the helps for weak models that the run has, if it has not all of its template.
    """

    goal: str
    model: str
    limits: RunLimits
    grants: tuple[str, ...]
    contexts: tuple[ContextRef, ...]
    functions: tuple[tuple[str, str], ...]
    texts: tuple[TextRef, ...]
    seed: int
    session_id: str
    template: str
    guest: str
    engine: str
    started_at: int
    clock_ns: int = FIXED_CLOCK_NS
    temperature: float | None = None
    views: tuple[ViewRef, ...] = ()
    files: tuple[tuple[str, str, str | None], ...] = ()
    values: Mapping[str, object] = {}
    inputs: tuple[InputRef, ...] = ()
    images: tuple[AttachmentRef, ...] = ()
    parent: str | None = None
    step: str | None = None
    caller: Caller | None = None
    strategy: str = "code"
    strategy_why: str = ""
    compact_at: int = 0
    encodings: tuple[tuple[str, str], ...] = ()
    schema: str | None = None
    skills: SkillsGiven | None = None
    memory: MemoryGiven | None = None
    session: SessionGiven | None = None
    vocabulary: VocabularyGiven | None = None
    backend: str = "wasm"
    settings: Mapping[str, str] | msgspec.UnsetType = msgspec.UNSET
    # Only where it is not UTC; records from before there was a zone have none.
    timezone: str | msgspec.UnsetType = msgspec.UNSET
    utc_offset_s: int | msgspec.UnsetType = msgspec.UNSET
    given: Mapping[str, msgspec.Raw] | msgspec.UnsetType = msgspec.UNSET
    # Only where it is not the run's own.
    sub_model: str | msgspec.UnsetType = msgspec.UNSET
    instructions: str | msgspec.UnsetType = msgspec.UNSET
    aids: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    # The runs above it that started it in another way than by `rlm_query`. Only where there are
    # any.
    depth: int | msgspec.UnsetType = msgspec.UNSET

    @property
    def clock(self) -> RunClock:
        """The clock that the run starts with, and its time zone."""
        if self.timezone is msgspec.UNSET:
            return RunClock(clock_ns=self.clock_ns)
        offset = 0 if self.utc_offset_s is msgspec.UNSET else self.utc_offset_s
        return RunClock(clock_ns=self.clock_ns, timezone=self.timezone, utc_offset_s=offset)


def depth_of(started: RunStarted) -> int:
    """Return the number of runs above a run: those of its caller, or those that it was told of."""
    if started.caller is not None:
        return started.caller.depth
    return 0 if started.depth is msgspec.UNSET else started.depth


def zone_given(clock: RunClock) -> tuple[str, int] | tuple[msgspec.UnsetType, msgspec.UnsetType]:
    """Return the time zone of a start and its offset in seconds, as they are recorded.

    For UTC both are `UNSET`, so that they are left out.
    """
    if clock.timezone == UTC:
        return msgspec.UNSET, msgspec.UNSET
    return clock.timezone, clock.utc_offset_s


class AskModel(msgspec.Struct, frozen=True, kw_only=True, tag="model.ask"):
    """One attempt at a model call. Paid: on disk before it is sent.

    The prompt begins with the first `kept` messages of that of intent `base` (all, if `kept` is
    None). The `added` parts follow, each named by its origin, so a run grows by what is new.
    `request_sha256` is of the whole request as it is sent. `wait_ms` is the delay before this
    attempt, after the one before it. `evidence` lists the skills that the prompt shows.
    """

    intent: int
    turn: int
    base: int | None
    added: tuple[str, ...]
    request_sha256: str
    kept: int | None = None
    attempt: int = 1
    wait_ms: int = 0
    tokens_out_max: int = 4_096
    temperature: float | None = None
    reserved: Reserved | None = None
    evidence: EvidenceRef | None = None


class ModelReplied(msgspec.Struct, frozen=True, kw_only=True, tag="model.replied"):
    """The model's answer, whole."""

    intent: int
    turn: int
    text: str
    usage: ModelUsage
    cut: bool = False
    wall_ms: int = 0
    served_by: str = ""
    finish: str = ""
    settled: Settled | None = None


class ModelFailed(msgspec.Struct, frozen=True, kw_only=True, tag="model.failed"):
    """A model call that gave no reply.

    `billed` is False only if the attempt is known to have cost nothing; `usage` is what was
    reported in spite of the failure.
    """

    intent: int
    turn: int
    reason: str
    message: str
    wall_ms: int = 0
    kind: FailureKind = "terminal"
    status: int | None = None
    retry_after_ms: int | None = None
    billed: bool = True
    usage: ModelUsage | None = None
    settled: Settled | None = None


class ModelRefused(msgspec.Struct, frozen=True, kw_only=True, tag="model.refused"):
    """A call that was never made, because the budget of `scope` does not pay for it."""

    intent: int
    turn: int
    message: str
    dimension: str
    scope: str


class RunProgram(msgspec.Struct, frozen=True, kw_only=True, tag="program.run", omit_defaults=True):
    """A program is about to run. Its source is in the reply; `sha256` identifies it.

    One that replay cannot run again is an `effect`: on disk before it is begun.
    """

    intent: int
    turn: int
    part: int
    sha256: str
    kind: ProgramKind = "python"
    effect: bool = False


class CallHost(msgspec.Struct, frozen=True, kw_only=True, tag="host.call"):
    """A call of a program to the host. For an effect: on disk before it is begun.

    An `attempt` above 1 repeats a call that may have happened. `request` is what was asked, as the
    program sent it, with "[key]" in the place of keys; one of more than 4 KiB is kept apart, as
    `request_ref`. The digest is of the request itself. Older records have neither.
    """

    intent: int
    program: int
    index: int
    name: str
    request_sha256: str
    policy: Policy
    attempt: int = 1
    request: str | msgspec.UnsetType = msgspec.UNSET
    request_ref: AttachmentRef | msgspec.UnsetType = msgspec.UNSET


class HostAnswered(msgspec.Struct, frozen=True, kw_only=True, tag="host.answered"):
    """The host's answer to a program. `fuel` is the place in the program where it was given.

    `reply` is the encoded answer. A long one is kept apart, as `reply_ref`; one that can be
    computed again from the run's attachments is recorded by its digest, `reply_sha256`. `skill` is
    the skill that the call loaded or used, if any, `memory` the notes that it read or wrote.
    `notes` has what other capabilities record, each under its name. `request` is what a read asked,
    up to 1 KiB; that of an effect is in the record of its beginning.
    """

    intent: int
    program: int
    index: int
    name: str
    request_sha256: str
    fuel: int
    reply: bytes
    ok: bool
    reply_ref: AttachmentRef | None = None
    reply_sha256: str | None = None
    skill: SkillLoaded | SkillUsed | None = None
    memory: NotesTouched | None = None
    notes: Mapping[str, msgspec.Raw] | msgspec.UnsetType = msgspec.UNSET
    request: str | msgspec.UnsetType = msgspec.UNSET


class ProgramFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The error that ended a program.

    `line` is the line of the program that failed, and under it a line for each value in it, with
    its type. It is only there if something is known of them.
    """

    kind: str
    message: str
    traceback: str
    line: str | msgspec.UnsetType = msgspec.UNSET


class ProgramFinished(msgspec.Struct, frozen=True, kw_only=True, tag="program.finished"):
    """The result of a program. A replay that took another path would use other `fuel`.

    `assigned` is the name and value of its last line, if that is an assignment. `outputs` are the
    streams that were too long to be shown, whole: stdout before stderr. `exit_code` is of a command
    of the shell. `answer_ref` is the attachment with a long answer.
    """

    intent: int
    turn: int
    stop: str
    stdout: str
    stderr: str
    value: str | None
    failure: ProgramFailure | None
    answer: str | None
    names_restored: tuple[str, ...]
    fuel: int
    host_calls: int
    truncated: bool
    wall_ms: int = 0
    names_kept: tuple[str, ...] = ()
    assigned: tuple[str, str] | None = None
    outputs: tuple[AttachmentRef, ...] = ()
    # Unset and not None, which would be written in the record of every other program.
    exit_code: int | msgspec.UnsetType = msgspec.UNSET
    answer_ref: AttachmentRef | msgspec.UnsetType = msgspec.UNSET


class RunEnded(msgspec.Struct, frozen=True, kw_only=True, tag="run.ended"):
    """The end of a run: the reason, the answer, the cost."""

    stop: StopReason
    detail: str
    answer: str | None
    partial: bool
    charge: Charge


Intent = AskModel | RunProgram | CallHost | CheckProgram
Event = (
    ModelReplied
    | ModelFailed
    | ModelRefused
    | QueryReplied
    | QueryFailed
    | QueryRefused
    | ChildEnded
    | HostAnswered
    | ProgramChecked
    | ProgramFinished
    | RunEnded
    | RunResumed
    | RunForked
)
Record = (
    RunStarted
    | AskModel
    | ModelReplied
    | ModelFailed
    | ModelRefused
    | QueryAsked
    | QueryReplied
    | QueryFailed
    | QueryRefused
    | ChildBegun
    | ChildEnded
    | RunProgram
    | CallHost
    | CallWaiting
    | CallDecided
    | HostAnswered
    | ProgramChecked
    | ProgramFinished
    | SkillMatched
    | SnapshotTaken
    | NativeRecord
    | ReceiptIssued
    | RunEnded
    | RunResumed
    | RunForked
    | RunPruned
    | StepEntered
    | StepLeft
)

_encode = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder(Record).decode


def encode_record(record: Record) -> bytes:
    """Return the canonical bytes of a record."""
    return _encode(record)


def decode_record(body: bytes) -> Record:
    """Return the record that bytes hold.

    Raise `msgspec.MsgspecError`, `UnicodeDecodeError` or `RecursionError` if they hold none.
    """
    record: Record = _decode(body)
    return record


def tag_of(record: Record) -> str:
    """Return the wire tag of a record."""
    return str(record.__struct_config__.tag)


def intent_of(record: Record) -> int | None:
    """Return the intent that a record belongs to, None if it belongs to none."""
    return getattr(record, "intent", None)


# The records after which a run continues under new terms: it was resumed, or forked from another.
Continuation = RunResumed | RunForked
