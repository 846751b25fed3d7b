"""What a log of the rlms package says, as records of ours. What it does not say is marked so."""

from __future__ import annotations

import re

import msgspec

from tallystick.core.canonical import digest
from tallystick.core.charge import Charge, ModelUsage, Reserved, RunLimits, Settled
from tallystick.core.records import (
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
from tallystick.core.step_records import FIGURE_MAX
from tallystick.runtime.rlms_format import (
    Block,
    Call,
    Iteration,
    Metadata,
    RunMetadata,
    UsageSummary,
    text_in,
)

__all__ = [
    "FROM_LOG",
    "TEMPLATE",
    "UNKNOWN_GOAL",
    "charge_in",
    "limits_of",
    "model_of",
    "ms",
    "program_records",
    "prompt_digest",
    "query_records",
    "run_ended",
    "turn_records",
]

# The template of a run that came from such a log: it has no prompts of ours.
TEMPLATE = "rlms-log"
FROM_LOG = "from a log of rlms"
UNKNOWN_GOAL = "(the log does not say)"
_MARK = "rlms:"
_MISSING = Settled(figures="reserved", tokens_in=0, tokens_out=0, flags=("usage_missing",))
# Nothing was reserved; what things cost is the log's word.
_RESERVED = Reserved(tokens_in=0, tokens_out=0, price="as the log says")
_NANO = 10**9
_LAST_CHARS_MAX = 10_000
# A block that raised has the kind and the text of it behind all that it wrote to stderr, in a line
# of its own. Where it wrote nothing, that is the whole stream; else it must look like an error.
_RAISED_ALONE = re.compile(r"\A\n(?P<kind>[A-Za-z_]\w{0,199}): (?P<message>.*)\Z", re.DOTALL)
_RAISED_LAST = re.compile(
    r"\n(?P<kind>\w{0,199}(?:Error|Exception|Exit|Interrupt|Iteration)): (?P<message>[^\n]*)\Z"
)


def limits_of(metadata: Metadata | RunMetadata) -> RunLimits:
    """The limits that are in the log. The others are not, and stand at the largest figure."""
    return RunLimits(
        turns=metadata.max_iterations,
        tokens=FIGURE_MAX,
        host_calls=FIGURE_MAX,
        wall_ms=FIGURE_MAX,
        reply_tokens=FIGURE_MAX,
        retries=0,
        depth=metadata.max_depth,
    )


def model_of(metadata: Metadata | RunMetadata) -> str:
    """The model in the form of our names: who serves it, and what it is called there."""
    return f"{metadata.backend}:{metadata.root_model}" if metadata.backend else metadata.root_model


def ms(seconds: float | None) -> int:
    """Milliseconds; none where the log has no time."""
    return 0 if seconds is None else round(seconds * 1000)


def turn_records(iteration: Iteration, *, intent: int) -> tuple[AskModel, ModelReplied]:
    """A turn's model call. Its time is what the blocks leave of the iteration's."""
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
        wall_ms=ms(waited),
        settled=_MISSING,
    )
    return asked, replied


def program_records(
    block: Block, *, intent: int, turn: int, part: int
) -> tuple[RunProgram, ProgramFinished]:
    """A code block. What it used cannot be known: its fuel is 0."""
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
        wall_ms=ms(result.execution_time),
    )
    return begun, ended


def query_records(
    call: Call, *, intent: int, program: int, model: str
) -> tuple[QueryAsked, QueryReplied | QueryFailed]:
    """A plain model call of a block. The log does not say which were of one batch."""
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
    wall_ms = ms(call.execution_time)
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
    """What a call, or a whole run inside it, used; None where the log does not say."""
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


def run_ended(last: Iteration, metadata: Metadata | RunMetadata, charge: Charge) -> RunEnded:
    """How a run ended whose last iteration has the answer.

    After all its turns a run of rlms asks once more, and takes whatever is said for the answer.
    """
    late = last.iteration > metadata.max_iterations
    used = f"all {metadata.max_iterations:,} turns used, then asked for an answer; {FROM_LOG}"
    return RunEnded(
        stop="max_turns" if late else "answered",
        detail=used if late else FROM_LOG,
        answer=last.final_answer,
        partial=late,
        charge=charge,
    )


def prompt_digest(prompt: msgspec.Raw) -> str:
    """Of the prompt as the log has it. It is no digest of a request, and does not look like one."""
    return f"{_MARK}{digest(bytes(prompt))}"
