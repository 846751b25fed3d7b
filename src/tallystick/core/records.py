"""What a run's ledger holds: intents that were begun and events that happened.

Tags are forever; a class may be renamed. A record is a fact closed over its fields: it is made by
whoever saw it happen and never reads the world itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

__all__ = [
    "AskModel",
    "CallHost",
    "Charge",
    "ContextRef",
    "Event",
    "FailureKind",
    "HostAnswered",
    "Intent",
    "ModelFailed",
    "ModelReplied",
    "ModelUsage",
    "ProgramFailure",
    "ProgramFinished",
    "Record",
    "RunEnded",
    "RunLimits",
    "RunProgram",
    "RunStarted",
    "StopReason",
    "TextRef",
    "ViewRef",
    "decode_record",
    "encode_record",
    "intent_of",
    "tag_of",
]

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
]
Policy = Literal["pure", "read", "effect", "paid"]
# Whether asking again may help.
FailureKind = Literal["transient", "terminal"]


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """What something did cost. `usd` is nano-dollars, None while the price is unknown."""

    usd: int | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    model_calls: int = 0
    turns: int = 0
    host_calls: int = 0
    fuel: int = 0
    wall_ms: int = 0

    def __add__(self, other: Charge) -> Charge:
        known = [each.usd for each in (self, other) if each.usd is not None]
        return Charge(
            usd=sum(known) if known else None,
            tokens_in=self.tokens_in + other.tokens_in,
            tokens_out=self.tokens_out + other.tokens_out,
            model_calls=self.model_calls + other.model_calls,
            turns=self.turns + other.turns,
            host_calls=self.host_calls + other.host_calls,
            fuel=self.fuel + other.fuel,
            wall_ms=self.wall_ms + other.wall_ms,
        )


class RunLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a run may use in all. Exactly at a limit is allowed.

    `reply_tokens` is for one reply, `retries` for one turn: attempts after the first.
    """

    turns: int = 30
    tokens: int = 100_000
    host_calls: int = 10_000
    wall_ms: int = 300_000
    reply_tokens: int = 4_096
    retries: int = 2


class ContextRef(msgspec.Struct, frozen=True, kw_only=True):
    """A text the program is given, named by its digest.

    `sample` is what the model is shown; `whole` says that all of the text is in there.
    """

    name: str
    sha256: str
    bytes: int
    chars: int
    sample: str
    whole: bool = False


class TextRef(msgspec.Struct, frozen=True, kw_only=True):
    """A text that stays on the host, as the program's namespace names it."""

    name: str
    key: str | None
    id: int
    bytes: int


class ViewRef(msgspec.Struct, frozen=True, kw_only=True):
    """A text taken apart, as a name that is made when a program uses it.

    `of` is the variable that holds the text, `key` the entry if that is a dictionary. A table has
    its columns in order, each with the kind of its cells; `amount` is a number with separators or a
    currency sign, such as "$1,204.50".
    """

    name: str
    kind: Literal["lines", "table", "json_lines", "json", "numbers"]
    of: str
    key: str | None = None
    delimiter: str = ","
    columns: tuple[tuple[str, Literal["int", "float", "amount", "str"]], ...] = ()


class RunStarted(msgspec.Struct, frozen=True, kw_only=True, tag="run.started"):
    """A goal under limits. Everything a replay needs beside the answers of the world.

    `functions`, `values` and `texts` are the names the program finds; `values` hold the texts that
    were short enough to be given whole.
    """

    goal: str
    model: str
    limits: RunLimits
    grants: tuple[str, ...]
    contexts: tuple[ContextRef, ...]
    functions: tuple[tuple[str, str], ...]
    values: Mapping[str, object]
    texts: tuple[TextRef, ...]
    seed: int
    clock_ns: int
    session_id: str
    template: str
    guest: str
    engine: str
    started_at: int
    temperature: float | None = None
    views: tuple[ViewRef, ...] = ()
    files: tuple[tuple[str, str, str | None], ...] = ()


class AskModel(msgspec.Struct, frozen=True, kw_only=True, tag="model.ask"):
    """One attempt at a model call. Paid: on disk before it is sent.

    The prompt is the first `kept` messages of the one of intent `base` (all, if it says None) with
    `added` parts behind them, each named by what made it, so a run grows by what is new.
    `request_sha256` is of the whole request as it is sent. `wait_ms` is how long this attempt was
    put off after the one before it.
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


class ModelUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What the model's side reported, verbatim in `raw`."""

    tokens_in: int
    tokens_out: int
    reported: bool
    raw: Mapping[str, object] = {}


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


class ModelFailed(msgspec.Struct, frozen=True, kw_only=True, tag="model.failed"):
    """A model call that gave no reply.

    `billed` is False only where the attempt is known to have cost nothing; `usage` is what was
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


class RunProgram(msgspec.Struct, frozen=True, kw_only=True, tag="program.run"):
    """A program about to run. Its source is in the reply; `sha256` says which it is."""

    intent: int
    turn: int
    part: int
    sha256: str


class CallHost(msgspec.Struct, frozen=True, kw_only=True, tag="host.call"):
    """A program asking the host. For an effect: on disk before it is begun."""

    intent: int
    program: int
    index: int
    name: str
    request_sha256: str
    policy: Policy


class HostAnswered(msgspec.Struct, frozen=True, kw_only=True, tag="host.answered"):
    """What the host told the program. `reply` is the encoded answer; `fuel` places it."""

    intent: int
    program: int
    index: int
    name: str
    request_sha256: str
    fuel: int
    reply: bytes
    ok: bool


class ProgramFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a program did not end well."""

    kind: str
    message: str
    traceback: str


class ProgramFinished(msgspec.Struct, frozen=True, kw_only=True, tag="program.finished"):
    """What came of a program. Its fuel places it: another path through it would use other fuel.

    `assigned` is the name and value of its last line, where that is an assignment.
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


class RunEnded(msgspec.Struct, frozen=True, kw_only=True, tag="run.ended"):
    """The end of a run: why, what it has, what it cost."""

    stop: StopReason
    detail: str
    answer: str | None
    partial: bool
    charge: Charge


Intent = AskModel | RunProgram | CallHost
Event = RunStarted | ModelReplied | ModelFailed | HostAnswered | ProgramFinished | RunEnded
Record = (
    RunStarted
    | AskModel
    | ModelReplied
    | ModelFailed
    | RunProgram
    | CallHost
    | HostAnswered
    | ProgramFinished
    | RunEnded
)

_encode = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder(Record).decode


def encode_record(record: Record) -> bytes:
    """The canonical bytes of a record."""
    return _encode(record)


def decode_record(body: bytes) -> Record:
    """Read a record back. Raises `msgspec.MsgspecError` for what is none."""
    record: Record = _decode(body)
    return record


def tag_of(record: Record) -> str:
    return str(record.__struct_config__.tag)


def intent_of(record: Record) -> int | None:
    """The intent a record belongs to, if any."""
    return None if isinstance(record, RunStarted | RunEnded) else record.intent
