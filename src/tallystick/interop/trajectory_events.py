"""Trajectory events: what other tools read of a run, one JSON object in a line each.

The tags are those of other recursive runtimes; the fields are ours. Every event names the ledger
entry that it was made from, by chain, place and hash, so that it can be held against the ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypedDict

import msgspec

from tallystick.core.charge import Charge, RunLimits
from tallystick.core.json_text import digest
from tallystick.core.records import AttachmentRef, StopReason, written

# The texts of a run as trajectory events give them: whole, cut, or left out.


# What is kept of a content, unless all of it is asked for.
CHARS_MAX = 10_000
# What stands in the place of a text that is not to be shown.
REDACTED = "<redacted>"


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """A text of a run. `sha256` and the counts are of all of it, in UTF-8; `cut` says that more is.

    `text` is None where the bytes are kept apart and are not here; then nobody counted characters.
    """

    text: str | None
    chars: int | None
    bytes: int
    sha256: str
    cut: bool = False


def _nowhere(ref: AttachmentRef) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How content is given. Without `chars_max` it is whole; `text_of` reads what is kept apart.

    What is redacted keeps its counts and its digest. Of a short text, whoever guesses it can say
    so by the digest.
    """

    redact: bool = False
    chars_max: int | None = CHARS_MAX
    text_of: Callable[[AttachmentRef], str | None] = _nowhere

    def content(self, text: str) -> Content:
        """A text that is there."""
        raw = text.encode("utf-8", "surrogatepass")
        return Content(
            text=self._text(text),
            chars=len(text),
            bytes=len(raw),
            sha256=digest(raw),
            cut=self._is_cut(text),
        )

    def optional(self, text: str | None) -> Content | None:
        """A text, if there is one."""
        return None if text is None else self.content(text)

    def kept(self, text: str, ref: AttachmentRef | None) -> Content:
        """A text, kept apart if there is a reference to it."""
        if ref is None:
            return self.content(text)
        found = None if self.redact else self.text_of(ref)
        if found is None:
            text_or_mark = REDACTED if self.redact else None
            return Content(text=text_or_mark, chars=None, bytes=ref.byte_len, sha256=ref.id)
        return Content(
            text=self._text(found),
            chars=len(found),
            bytes=ref.byte_len,
            sha256=ref.id,
            cut=self._is_cut(found),
        )

    def _text(self, text: str) -> str:
        if self.redact:
            return REDACTED
        # Half of a surrogate pair has no bytes in JSON.
        return written(text if self.chars_max is None else text[: self.chars_max])

    def _is_cut(self, text: str) -> bool:
        return not self.redact and self.chars_max is not None and len(text) > self.chars_max


# Trajectory events: what other tools read of a run, one JSON object in a line each.


Termination = Literal[
    "FinalReached",
    "FinalVarReached",
    "TokenBudgetExhausted",
    "TimeBudgetExhausted",
    "MaxIterationsReached",
    "RecursionDepthExhausted",
    "Error",
    "Cancelled",
]

# How our stop reasons read elsewhere. What has no name there is an `Error` with a message. Of
# `budget` the dimension decides, below.
TERMINATIONS: dict[StopReason, Termination] = {
    "answered": "FinalReached",
    "max_turns": "MaxIterationsReached",
    "budget": "Error",
    "deadline": "TimeBudgetExhausted",
    "cancelled": "Cancelled",
    "refused": "Error",
    "model_error": "Error",
    "sandbox_error": "Error",
    "in_doubt": "Error",
    "no_progress": "Error",
}
_BUDGETS: dict[str, Termination] = {
    "tokens": "TokenBudgetExhausted",
    "reply_tokens": "TokenBudgetExhausted",
    "wall_ms": "TimeBudgetExhausted",
    "turns": "MaxIterationsReached",
    "depth": "RecursionDepthExhausted",
}


def termination_of(stop: str, detail: str, *, variable: str | None = None) -> Termination:
    """The name that others have for an end. What they have none for, or we do not know, is `Error`.

    The detail of an end by `budget` begins with the dimension. `variable` is what the answer was
    read from, where the reply named one.
    """
    if stop == "budget":
        return _BUDGETS.get(detail.partition(":")[0], "Error")
    if stop == "answered" and variable is not None:
        return "FinalVarReached"
    return next((name for each, name in TERMINATIONS.items() if each == stop), "Error")


class GivenText(msgspec.Struct, frozen=True, kw_only=True):
    """A text that a run was given, by its digest."""

    name: str
    sha256: str
    bytes: int


class At(TypedDict):
    """What every event says of its place."""

    run: str
    seq: int
    hash: str
    iteration: int
    depth: int


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event_type"):
    """`run`, `seq` and `hash` are the entry. `at` is milliseconds since 1970, where a record says.

    `iteration` is the turn, 0 before the first; `depth` is 0 for a run that no program began.
    """

    run: str
    seq: int
    hash: str
    iteration: int
    depth: int
    at: int | None = None


class SessionStart(_Event, frozen=True, kw_only=True, tag="session_start"):
    """What the outermost run is made with. `template` names its prompts, or a foreign log."""

    session_id: str
    model: str
    template: str
    guest: str
    engine: str
    grants: tuple[str, ...]
    functions: tuple[str, ...]


class QueryStart(_Event, frozen=True, kw_only=True, tag="query_start"):
    """A run begins, or is gone on with. `query` is its id, `parent_query` that of its parent.

    What None stands for was not said again. Of a child that is not here, nothing else is known.
    """

    query: str
    begun: Literal["started", "resumed", "forked", "elsewhere"]
    parent_query: str | None = None
    goal: Content | None = None
    model: str | None = None
    limits: RunLimits | None = None
    contexts: tuple[GivenText, ...] = ()


class LlmCall(_Event, frozen=True, kw_only=True, tag="llm_call"):
    """One attempt at a model call: of a turn, or of a program (`query`), with its place.

    A turn's prompt is not in the records as a text: `parts` names what was added to the last one.
    """

    call: Literal["turn", "query"]
    intent: int
    item: int
    attempt: int
    model: str
    request_sha256: str
    tokens_out_max: int
    prompt: Content | None = None
    parts: tuple[str, ...] = ()


class LlmResponse(_Event, frozen=True, kw_only=True, tag="llm_response"):
    """What a model said. `usd` is nano-dollars, None if unknown; `reported` is of the tokens."""

    call: Literal["turn", "query"]
    intent: int
    item: int
    text: Content
    tokens_in: int
    tokens_out: int
    reported: bool
    usd: int | None
    wall_ms: int
    incomplete: bool
    finish: str
    served_by: str


class CommandParsed(_Event, frozen=True, kw_only=True, tag="command_parsed"):
    """A command that was read from a reply, `part` its place there."""

    intent: int
    part: int
    command: str
    content: Content


class CommandParseFailed(_Event, frozen=True, kw_only=True, tag="command_parse_failed"):
    """Why a reply, or what is left of it, was not read."""

    intent: int
    problem: Content


class CommandExecuted(_Event, frozen=True, kw_only=True, tag="command_executed"):
    """What came of a program. `outputs` are the digests of streams that are kept apart."""

    intent: int
    part: int
    command_sha256: str
    success: bool
    stop: str
    stdout: Content
    stderr: Content
    value: Content | None
    answer: Content | None
    error_kind: str | None
    error: Content | None
    host_calls: int
    fuel: int
    wall_ms: int
    truncated: bool
    outputs: tuple[str, ...]
    # Of a command of the shell.
    exit_code: int | msgspec.UnsetType = msgspec.UNSET


class QueryComplete(_Event, frozen=True, kw_only=True, tag="query_complete"):
    """How a run ended: in our words (`stop`), and in those of others. `charge` has its children."""

    query: str
    stop: str
    detail: Content
    termination_reason: Termination
    success: bool
    partial: bool
    result: Content | None
    charge: Charge
    parent_query: str | None = None
    variable: str | None = None


class SessionEnd(_Event, frozen=True, kw_only=True, tag="session_end"):
    """The outermost run has ended, and nobody went on with it."""

    session_id: str
    stop: str
    charge: Charge


class BudgetWarning(_Event, frozen=True, kw_only=True, tag="budget_warning"):
    """The model was told of its budget, or a call was refused that no budget pays for."""

    kind: Literal["share", "last_turn", "refused"]
    share: int | None = None
    dimension: str | None = None
    scope: str | None = None
    message: str | None = None


class ErrorSeen(_Event, frozen=True, kw_only=True, tag="error"):
    """A model call that failed, or a run that ended by an error."""

    of: Literal["turn", "query", "run"]
    reason: str
    message: Content
    intent: int | None = None
    item: int = 0
    transient: bool = False
    status: int | None = None
    billed: bool | None = None


TrajectoryEvent = (
    SessionStart
    | QueryStart
    | LlmCall
    | LlmResponse
    | CommandParsed
    | CommandParseFailed
    | CommandExecuted
    | QueryComplete
    | SessionEnd
    | BudgetWarning
    | ErrorSeen
)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(TrajectoryEvent).decode


def encode_event(event: TrajectoryEvent) -> bytes:
    """An event as one line, without its end."""
    return _encode(event)


def decode_event(line: bytes) -> TrajectoryEvent:
    """Read an event back. Raises `msgspec.MsgspecError` for what is none."""
    event: TrajectoryEvent = _decode(line)
    return event
