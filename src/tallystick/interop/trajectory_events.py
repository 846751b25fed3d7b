"""Define trajectory events, which other tools read: one JSON object in a line each.

The tags are those of other recursive runtimes; the fields are ours. Every event names the ledger
entry that it was made from, by chain, position and hash, so that it can be compared with the
ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypedDict

import msgspec

from tallystick.core.charge import Charge, RunLimits
from tallystick.core.json_text import digest
from tallystick.core.records import (
    AttachmentRef,
    CheckDecision,
    PersonDecision,
    ProgramKind,
    StopReason,
    encodable,
)

# The texts of a run in trajectory events: whole, cut, or left out.


# The length to which a text is cut, unless all of it is asked for.
CHARS_MAX = 10_000
# Replaces a text that must not be shown.
REDACTED = "<redacted>"


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """A text of a run. `sha256` and the counts are of all of it, in UTF-8; `cut` says that more is.

    `text` is None if the bytes are stored apart and are not here; then `chars` is unknown, too.
    """

    text: str | None
    chars: int | None
    bytes: int
    sha256: str
    cut: bool = False


def _no_text(ref: AttachmentRef) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The way to show texts: whole, cut to `chars_max` characters, or redacted.

    `text_of` reads a text that is stored apart. A redacted text keeps its counts and its digest. A
    reader who guesses a short text can confirm it by the digest.
    """

    redact: bool = False
    chars_max: int | None = CHARS_MAX
    text_of: Callable[[AttachmentRef], str | None] = _no_text

    def content(self, text: str) -> Content:
        """Return a text as content: shown as the fields say, with the counts and digest of all."""
        raw = text.encode("utf-8", "surrogatepass")
        return Content(
            text=self._text(text),
            chars=len(text),
            bytes=len(raw),
            sha256=digest(raw),
            cut=self._is_cut(text),
        )

    def optional(self, text: str | None) -> Content | None:
        """Return a text as content; None for None."""
        return None if text is None else self.content(text)

    def stored_content(self, text: str, ref: AttachmentRef | None) -> Content:
        """Return a text as content; if there is a reference to it, the stored one.

        Its bytes and digest are those of the reference. If it is redacted, the text is a mark. If
        it cannot be read, the text is None. In both cases the number of characters is None.
        """
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
        return encodable(text if self.chars_max is None else text[: self.chars_max])

    def _is_cut(self, text: str) -> bool:
        return not self.redact and self.chars_max is not None and len(text) > self.chars_max


# Trajectory events, which other tools read: one JSON object in a line each.


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

# The names that other systems have for our stop reasons. If they have none, the end is an `Error`
# with a message. For `budget`, the dimension decides (below).
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
    "waiting": "Error",
}
_BUDGETS: dict[str, Termination] = {
    "tokens": "TokenBudgetExhausted",
    "reply_tokens": "TokenBudgetExhausted",
    "wall_ms": "TimeBudgetExhausted",
    "turns": "MaxIterationsReached",
    "depth": "RecursionDepthExhausted",
}


def termination_of(stop: str, detail: str, *, variable: str | None = None) -> Termination:
    """Return the name that other systems have for an end; `Error` if they have none for it.

    The detail of an end by `budget` begins with the dimension. `variable` is the variable that the
    answer was read from, if the reply named one.
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


class EntryPosition(TypedDict):
    """The position that every event names."""

    run: str
    seq: int
    hash: str
    iteration: int
    depth: int
    at: int | None


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event_type"):
    """The fields of every event.

    `run`, `seq` and `hash` are those of the entry, `at` is when it was appended, in milliseconds
    since 1970; None for one of an older version. `iteration` is the turn, 0 before the first;
    `depth` is 0 for a run that no program began. `number` counts the events of a run that is
    followed, with those inside it, from 1. It is the same in every process and for ever. An export
    has no numbers: it has the events of a child where its parent began it.
    """

    run: str
    seq: int
    hash: str
    iteration: int
    depth: int
    at: int | None = None
    number: int | msgspec.UnsetType = msgspec.UNSET


class SessionStart(_Event, frozen=True, kw_only=True, tag="session_start"):
    """The start of the outermost run. `template` names its prompts, or a foreign log."""

    session_id: str
    model: str
    template: str
    guest: str
    engine: str
    grants: tuple[str, ...]
    functions: tuple[str, ...]


class QueryStart(_Event, frozen=True, kw_only=True, tag="query_start"):
    """A run begins, or is resumed or forked. `query` is its id, `parent_query` that of its parent.

    A field that is None was not recorded again. Of a child that is not here, nothing else is known.
    `decision` is what the person `by` decided about what the run waited for.
    """

    query: str
    begun: Literal["started", "resumed", "forked", "elsewhere"]
    parent_query: str | None = None
    goal: Content | None = None
    model: str | None = None
    limits: RunLimits | None = None
    contexts: tuple[GivenText, ...] = ()
    decision: PersonDecision | msgspec.UnsetType = msgspec.UNSET
    by: str | msgspec.UnsetType = msgspec.UNSET


class LlmCall(_Event, frozen=True, kw_only=True, tag="llm_call"):
    """One attempt at a model call: of a turn, or of a program (`query`).

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
    """A model's reply. `usd` is in nano-dollars, None if unknown.

    `reported` is true if the provider reported the tokens.
    """

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
    """A command that was read from a reply. `part` is its index there."""

    intent: int
    part: int
    command: str
    content: Content


class CommandParseFailed(_Event, frozen=True, kw_only=True, tag="command_parse_failed"):
    """The reason why a reply, or the rest of it, was not read."""

    intent: int
    problem: Content


class CommandChecked(_Event, frozen=True, kw_only=True, tag="command_checked"):
    """The check of a program against the vocabulary of the run, before it runs."""

    part: int
    command_sha256: str
    decision: CheckDecision
    message: Content


class CommandStarted(_Event, frozen=True, kw_only=True, tag="command_started"):
    """A program begins to run. `part` is its index in the reply."""

    intent: int
    part: int
    kind: ProgramKind
    command_sha256: str


class HostCall(_Event, frozen=True, kw_only=True, tag="host_call"):
    """A call of a program that changes something outside is about to be made.

    `request` is what was asked, as the program sent it: name, arguments, named arguments. It is
    None for a record of an older version.
    """

    intent: int
    name: str
    attempt: int
    request_sha256: str
    request: Content | None


class HostCallWaiting(_Event, frozen=True, kw_only=True, tag="host_call_waiting"):
    """A call of a program needs a person's word. The run ends as `waiting`, or waits inside.

    `request` is as in `HostCall`. A decision is bound to its digest.
    """

    intent: int
    name: str
    request_sha256: str
    request: Content | None


class HostCallDecided(_Event, frozen=True, kw_only=True, tag="host_call_decided"):
    """The person `by` decided about a call that waited inside. Else that is in `query_start`."""

    intent: int
    request_sha256: str
    decision: PersonDecision
    by: str
    because: str


class HostAnswer(_Event, frozen=True, kw_only=True, tag="host_answer"):
    """The answer to a call of a program. `request` is that of a short read, else None."""

    intent: int
    name: str
    success: bool
    request_sha256: str
    request: Content | None
    reply: Content


class CommandExecuted(_Event, frozen=True, kw_only=True, tag="command_executed"):
    """The end of a program. `outputs` are the digests of streams that are stored apart."""

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
    # Only for a command of the shell.
    exit_code: int | msgspec.UnsetType = msgspec.UNSET


class QueryComplete(_Event, frozen=True, kw_only=True, tag="query_complete"):
    """The end of a run, in our words (`stop`) and in those of others.

    `charge` includes its children.
    """

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
    """The end of the outermost run, which was not resumed after it."""

    session_id: str
    stop: str
    charge: Charge


class BudgetWarning(_Event, frozen=True, kw_only=True, tag="budget_warning"):
    """A notice of the budget to the model, or the refusal of a call that no budget pays for."""

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
    | CommandChecked
    | CommandStarted
    | CommandExecuted
    | HostCall
    | HostCallWaiting
    | HostCallDecided
    | HostAnswer
    | QueryComplete
    | SessionEnd
    | BudgetWarning
    | ErrorSeen
)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(TrajectoryEvent).decode


def encode_event(event: TrajectoryEvent) -> bytes:
    """Return an event as one line, without its end."""
    return _encode(event)


def decode_event(line: bytes) -> TrajectoryEvent:
    """Read an event back. Raise `msgspec.MsgspecError` if it is not an event."""
    event: TrajectoryEvent = _decode(line)
    return event
