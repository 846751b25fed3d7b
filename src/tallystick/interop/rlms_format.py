"""Read logs of the rlms package (0.1.3) as untrusted data, and turn them into records of ours.

    line 1   {"type": "metadata", ...}: the model, and how many iterations and how deep
    others   {"type": "iteration", "iteration": n, ...}: the prompt, the reply, its code blocks

Several completions of one object are in one file, one after the other: each begins with iteration 1
again. A call that was a run of its own has the same inside it, under `metadata`.

Rule 1: fields that are not named here are skipped without being built: `locals` repeats the whole
context in every block. Fields that are named must have their type, and figures their bounds.
Rule 2: Python writes NaN and Infinity, which are not JSON. A variable may hold them; a figure may
not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, BinaryIO

import msgspec

from tallystick.core.charge import Charge, ModelUsage, Reserved, RunLimits, Settled
from tallystick.core.errors import UsageError
from tallystick.core.ids import moment_ms
from tallystick.core.json_text import digest
from tallystick.core.records import (
    FIGURE_MAX,
    AskModel,
    ModelReplied,
    ProgramFailure,
    ProgramFinished,
    QueryAsked,
    QueryFailed,
    QueryReplied,
    RunEnded,
    RunProgram,
)
from tallystick.runtime.runs.history import FROM_RLMS_LOG

FILE_BYTES_MAX = 256 << 20
LINE_BYTES_MAX = 64 << 20
CONSTANTS_MAX = 1_000_000
HEAD_BYTES = 64
_GOAL_BYTES_MAX = 8 << 20
_SHOWN_CHARS_MAX = 160

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_Dollars = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_Name = Annotated[str, msgspec.Meta(max_length=1_000)]


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The calls, tokens and cost of one model."""

    total_calls: _Count | None = None
    total_input_tokens: _Count | None = None
    total_output_tokens: _Count | None = None
    total_cost: _Dollars | None = None


class UsageSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of a call, by model."""

    model_usage_summaries: dict[_Name, Usage] = {}


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A model call of a block; with `metadata`, a run of its own."""

    root_model: _Name
    prompt: msgspec.Raw
    response: str | None = None
    usage_summary: UsageSummary | None = None
    execution_time: _Seconds | None = None
    metadata: Trajectory | None = None
    error: str | None = None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a block."""

    stdout: str
    stderr: str
    execution_time: _Seconds | None = None
    rlm_calls: list[Call] = []
    final_answer: str | None = None


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """A program of a reply."""

    code: str
    result: Result


class Iteration(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="iteration"):
    """One turn. `timestamp` is the time of its end."""

    iteration: _Count
    timestamp: str
    prompt: msgspec.Raw
    response: str
    code_blocks: list[Block]
    final_answer: str | None = None
    iteration_time: _Seconds | None = None


class RunMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a run, as far as we import it. The rest may hold keys of servers."""

    root_model: _Name
    max_iterations: _Count
    max_depth: _Count
    backend: _Name = ""


class Metadata(RunMetadata, frozen=True, kw_only=True, tag_field="type", tag="metadata"):
    """The configuration of a run, as the first line of a file has it."""

    timestamp: str


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """A run inside a call."""

    run_metadata: RunMetadata
    iterations: list[Iteration]


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: str


_Line = Metadata | Iteration
_decode = msgspec.json.Decoder(_Line).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_messages = msgspec.json.Decoder(list[_Message]).decode
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
# The text before the next constant, strings as a whole. Possessive, and only matched from the end
# of the last one: a search would begin again at each of a million quotes that nothing closes.
_BEFORE_CONSTANT = re.compile(
    rb'(?:[^"NI-]++|"(?:[^"\\]++|\\.)*+"|-(?!Infinity)|N(?!aN)|I(?!nfinity))*+', re.DOTALL
)
_CONSTANT = re.compile(rb"-?Infinity|NaN")
_FIRST = re.compile(rb"\s*\{")
# The form in which the second message of a prompt names the question.
_GOAL = re.compile(r"Answer the following: (.*)\n\nYour context is a ", re.DOTALL)


def is_rlms_log(head: bytes) -> bool:
    """Return True if a file that begins like this may be a log: with `{`, after any blanks.

    Only reading it can tell.
    """
    return _FIRST.match(head) is not None


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a log. One that is too long comes in parts, none of which can be read."""
    while line := file.readline(LINE_BYTES_MAX + 1):
        yield line


def read_line(line: bytes) -> Metadata | Iteration | str:
    """Return what a line says, or a text with the reason why it cannot be read.

    NaN and Infinity are read where any value may stand, and refused where a figure must. A line of
    more than 64 MiB, or with more than 1,000,000 of them, is not read.
    """
    if len(line) > LINE_BYTES_MAX:
        return f"it has more than {LINE_BYTES_MAX:,} bytes"
    read: _Line
    try:
        read = _decode(line)
    except _UNREADABLE as error:
        if b"NaN" not in line and b"Infinity" not in line:
            return _reason(error)
    else:
        return read
    if line.count(b"NaN") + line.count(b"Infinity") > CONSTANTS_MAX:
        return f"more than {CONSTANTS_MAX:,} of its values are no numbers"
    try:
        read = _decode(_without_constants(line))
    except _UNREADABLE as error:
        return _reason(error)
    return read


def _without_constants(line: bytes) -> bytes:
    """Return the line with a text in the place of each NaN or Infinity.

    Where a figure is expected, that text is refused.
    """
    pieces: list[bytes] = []
    at = 0
    while at < len(line):
        before = _BEFORE_CONSTANT.match(line, at)
        assert before is not None
        found = _CONSTANT.match(line, before.end())
        if found is None:
            break
        pieces += [before[0], b'"not a number"']
        at = found.end()
    return b"".join([*pieces, line[at:]])


def _reason(error: Exception) -> str:
    """Return the reason of an error in at most 160 printable characters."""
    said = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
    shown = said[:_SHOWN_CHARS_MAX]
    return "".join(each if each.isprintable() else "?" for each in shown)


def text_in(prompt: msgspec.Raw) -> str:
    """Return a prompt as a text: itself, or its JSON if it is not text."""
    raw = bytes(prompt)
    try:
        return _decode_text(raw)
    except _UNREADABLE:
        return raw.decode("utf-8", "replace")


def goal_in(prompt: msgspec.Raw) -> str | None:
    """Return the question that the second message of a run's first prompt names.

    Return None if it names none, if the prompt is no list of messages, or if it has more than
    8 MiB.
    """
    raw = bytes(prompt)
    if len(raw) > _GOAL_BYTES_MAX:
        return None
    try:
        messages = _decode_messages(raw)
    except _UNREADABLE:
        return None
    found = _GOAL.match(messages[1].content) if len(messages) > 1 else None
    return None if found is None else found[1]


def moment_of(timestamp: str) -> int | None:
    """Return a time in milliseconds since 1970; None if it is not a time, or is before 1970.

    Without a zone it is UTC.
    """
    try:
        time_ms = moment_ms(timestamp)
    except UsageError:
        return None
    return time_ms if time_ms >= 0 else None


# A log of the rlms package as records of ours. Facts that it does not have are marked as missing.


UNKNOWN_GOAL = "(the log does not say)"
_MARK = "rlms:"
_MISSING = Settled(figures="reserved", tokens_in=0, tokens_out=0, flags=("usage_missing",))
# Nothing was reserved; costs are those that the log states.
_RESERVED = Reserved(tokens_in=0, tokens_out=0, price="as the log says")
_NANO = 10**9
# Only so much of the end of stderr is searched for the line of an exception.
_LAST_CHARS_MAX = 10_000
# If a block raised, its stderr ends with a line of its own, with the kind and the text of the
# exception. If that is all of the stream, any kind counts; otherwise it must look like an error's
# name, since the program may have printed such a line itself.
_RAISED_ALONE = re.compile(r"\A\n(?P<kind>[A-Za-z_]\w{0,199}): (?P<message>.*)\Z", re.DOTALL)
_RAISED_LAST = re.compile(
    r"\n(?P<kind>\w{0,199}(?:Error|Exception|Exit|Interrupt|Iteration)): (?P<message>[^\n]*)\Z"
)


def limits_of(metadata: RunMetadata) -> RunLimits:
    """Return the limits of a run: turns and depth from the log, no retries.

    The log has no others: dollars and model calls have no limit, the rest the largest figure.
    """
    return RunLimits(
        turns=metadata.max_iterations,
        tokens=FIGURE_MAX,
        host_calls=FIGURE_MAX,
        wall_ms=FIGURE_MAX,
        reply_tokens=FIGURE_MAX,
        retries=0,
        depth=metadata.max_depth,
    )


def model_of(metadata: RunMetadata) -> str:
    """Return the model in the form of our names: `backend:model`, or the model alone."""
    return f"{metadata.backend}:{metadata.root_model}" if metadata.backend else metadata.root_model


def milliseconds(seconds: float | None) -> int:
    """Return seconds as whole milliseconds, rounded; 0 if the log has no time."""
    return 0 if seconds is None else round(seconds * 1000)


def turn_records(iteration: Iteration, *, intent: int) -> tuple[AskModel, ModelReplied]:
    """Return the records of a turn's model call; its usage is recorded as missing.

    Its time is the iteration's without that of its blocks, at least 0.
    """
    blocks = sum(each.result.execution_time or 0.0 for each in iteration.code_blocks)
    waited = max(0.0, (iteration.iteration_time or 0.0) - blocks)
    asked = AskModel(
        intent=intent,
        turn=iteration.iteration,
        base=None,
        added=(f"{_MARK}prompt",),
        request_sha256=prompt_digest(iteration.prompt),
        tokens_out_max=0,
        reserved=_RESERVED,
    )
    replied = ModelReplied(
        intent=intent,
        turn=iteration.iteration,
        text=iteration.response,
        usage=ModelUsage(tokens_in=0, tokens_out=0, reported=False),
        wall_ms=milliseconds(waited),
        settled=_MISSING,
    )
    return asked, replied


def program_records(
    block: Block, *, intent: int, turn: int, part: int
) -> tuple[RunProgram, ProgramFinished]:
    """Return the records of a code block. What it used is unknown, so its fuel is 0.

    If stderr ends with the line of an exception, the program is recorded as failed with that.
    """
    result = block.result
    raised = _RAISED_ALONE.match(result.stderr)
    if raised is None:
        raised = _RAISED_LAST.search(result.stderr[-_LAST_CHARS_MAX:])
    failure = None
    if raised is not None:
        # The log has no traceback; the whole stream stays where it was.
        failure = ProgramFailure(kind=raised["kind"], message=raised["message"], traceback="")
    begun = RunProgram(
        intent=intent,
        turn=turn,
        part=part,
        sha256=digest(block.code.encode()),
    )
    ended = ProgramFinished(
        intent=intent,
        turn=turn,
        stop="finished",
        stdout=result.stdout,
        stderr=result.stderr,
        value=None,
        failure=failure,
        answer=result.final_answer,
        names_restored=(),
        fuel=0,
        host_calls=len(result.rlm_calls),
        truncated=False,
        wall_ms=milliseconds(result.execution_time),
    )
    return begun, ended


def query_records(
    call: Call, *, intent: int, program: int, model: str
) -> tuple[QueryAsked, QueryReplied | QueryFailed]:
    """Return the records of a plain model call of a block.

    Each is recorded as a call of its own: the log does not say which were of one batch.
    """
    asked = QueryAsked(
        intent=intent,
        program=program,
        item=0,
        attempt=1,
        model=model,
        request_sha256=prompt_digest(call.prompt),
        tokens_out_max=0,
        reserved=_RESERVED,
        prompt=text_in(call.prompt),
    )
    charge = charge_in(call.usage_summary)
    settled = _MISSING
    usage = ModelUsage(tokens_in=0, tokens_out=0, reported=False)
    if charge is not None:
        settled = Settled(
            figures="reported",
            tokens_in=charge.tokens_in,
            tokens_out=charge.tokens_out,
            usd=charge.usd,
        )
        usage = ModelUsage(tokens_in=charge.tokens_in, tokens_out=charge.tokens_out, reported=True)
    wall_ms = milliseconds(call.execution_time)
    if call.error is not None:
        return asked, QueryFailed(
            intent=intent,
            item=0,
            attempt=1,
            reason="unknown",
            message=call.error,
            settled=settled,
            usage=usage,
            wall_ms=wall_ms,
        )
    return asked, QueryReplied(
        intent=intent,
        item=0,
        attempt=1,
        text=call.response or "",
        usage=usage,
        settled=settled,
        wall_ms=wall_ms,
    )


def charge_in(summary: UsageSummary | None) -> Charge | None:
    """Return what a call, or a whole run inside it, used: the sum over all models.

    Return None if no model has tokens in the log, or only 0. `usd`, in billionths, is None if none
    has a cost.
    """
    lines = [] if summary is None else list(summary.model_usage_summaries.values())
    if not any(each.total_input_tokens or each.total_output_tokens for each in lines):
        return None
    costs = [each.total_cost for each in lines if each.total_cost is not None]
    return Charge(
        usd=round(sum(costs) * _NANO) if costs else None,
        tokens_in=sum(each.total_input_tokens or 0 for each in lines),
        tokens_out=sum(each.total_output_tokens or 0 for each in lines),
        model_calls=sum(each.total_calls or 0 for each in lines),
    )


def run_end(last: Iteration, metadata: RunMetadata, charge: Charge) -> RunEnded:
    """Return the end of a run whose last iteration has the answer.

    After all its turns a run of rlms asks once more, and takes any reply for the answer. Such an
    answer is recorded as partial, of a run that stopped by `max_turns`.
    """
    late = last.iteration > metadata.max_iterations
    used = f"all {metadata.max_iterations:,} turns used, then asked for an answer; {FROM_RLMS_LOG}"
    return RunEnded(
        stop="max_turns" if late else "answered",
        detail=used if late else FROM_RLMS_LOG,
        answer=last.final_answer,
        partial=late,
        charge=charge,
    )


def prompt_digest(prompt: msgspec.Raw) -> str:
    """Return the digest of the prompt as the log has it.

    It is marked, because it is not the digest of a request.
    """
    return f"{_MARK}{digest(bytes(prompt))}"
