"""Trajectory events of model calls and programs, each made from one record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from tallystick.core.commands import command_name
from tallystick.core.records import (
    AskModel,
    ModelFailed,
    ModelRefused,
    ModelReplied,
    ProgramFinished,
    QueryAsked,
    QueryFailed,
    QueryRefused,
    QueryReplied,
    RunProgram,
)
from tallystick.core.reply import (
    Code,
    Command,
    Final,
    FinalVar,
    QueryLlm,
    QueryLlmBatched,
    Reply,
    Rollback,
    Run,
    Snapshot,
)
from tallystick.core.trajectory_content import Shown
from tallystick.core.trajectory_events import (
    At,
    BudgetWarning,
    CommandExecuted,
    CommandParsed,
    CommandParseFailed,
    ErrorSeen,
    LlmCall,
    LlmResponse,
)

__all__ = ["executed", "failed", "parsed", "query_asked", "refused", "replied", "turn_asked"]

# The dimension of a refusal that is of a model, not of a budget.
_MODEL = "model"
# Parts of a prompt that tell the model how much of its budget is used, and of its last turn.
_SPENT, _LAST = "spent:", "last"


def turn_asked(at: At, record: AskModel, *, model: str) -> Iterator[BudgetWarning | LlmCall]:
    """An attempt of a turn, after what its prompt tells the model of its budget."""
    # What is listed again, or was told before, is no news.
    for part in [name.split("+")[-1] for name in record.added[-1:]]:
        share = part.removeprefix(_SPENT)
        if part == _LAST:
            yield BudgetWarning(**at, kind="last_turn")
        elif share != part and share.isdecimal():
            yield BudgetWarning(**at, kind="share", share=int(share[:3]))
    yield LlmCall(
        **at,
        call="turn",
        intent=record.intent,
        item=0,
        attempt=record.attempt,
        model=model,
        request_sha256=record.request_sha256,
        tokens_out_max=record.tokens_out_max,
        parts=record.added,
    )


def query_asked(at: At, record: QueryAsked, shown: Shown) -> LlmCall:
    """An attempt at a call of a program."""
    return LlmCall(
        **at,
        call="query",
        intent=record.intent,
        item=record.item,
        attempt=record.attempt,
        model=record.model,
        request_sha256=record.request_sha256,
        tokens_out_max=record.tokens_out_max,
        prompt=shown.kept(record.prompt, record.prompt_ref),
    )


def replied(at: At, record: ModelReplied | QueryReplied, shown: Shown) -> LlmResponse:
    """What a model said."""
    query = record if isinstance(record, QueryReplied) else None
    figures = record.settled or record.usage
    return LlmResponse(
        **at,
        call="turn" if query is None else "query",
        intent=record.intent,
        item=0 if query is None else query.item,
        text=shown.kept(record.text, None if query is None else query.text_ref),
        tokens_in=figures.tokens_in,
        tokens_out=figures.tokens_out,
        reported=record.usage.reported,
        usd=None if record.settled is None else record.settled.usd,
        wall_ms=record.wall_ms,
        incomplete=record.cut,
        finish=record.finish,
        served_by=record.served_by,
    )


def parsed(
    at: At, record: ModelReplied, reply: Reply, shown: Shown
) -> Iterator[CommandParsed | CommandParseFailed]:
    """What was read from a reply, and what was not."""
    for part, command in enumerate(reply.commands):
        yield CommandParsed(
            **at,
            intent=record.intent,
            part=part,
            command=command_name(command),
            content=shown.content(_argument(command)),
        )
    if reply.problem is not None:
        problem = shown.content(reply.problem)
        yield CommandParseFailed(**at, intent=record.intent, problem=problem)


def failed(at: At, record: ModelFailed | QueryFailed, shown: Shown) -> ErrorSeen:
    """An attempt that gave no reply."""
    query = record if isinstance(record, QueryFailed) else None
    return ErrorSeen(
        **at,
        of="turn" if query is None else "query",
        reason=record.reason,
        message=shown.content(record.message),
        intent=record.intent,
        item=0 if query is None else query.item,
        transient=record.kind == "transient",
        status=record.status,
        billed=record.billed,
    )


def refused(at: At, record: ModelRefused | QueryRefused, shown: Shown) -> BudgetWarning | ErrorSeen:
    """A call that was never made: no budget pays for it, or its model is not for programs."""
    if record.dimension == _MODEL:
        said = shown.content(record.message)
        return ErrorSeen(
            **at, of="query", reason="refused", message=said, intent=record.intent, billed=False
        )
    return BudgetWarning(
        **at,
        kind="refused",
        dimension=record.dimension,
        scope=record.scope,
        message=record.message,
    )


def executed(
    at: At, record: ProgramFinished, program: RunProgram | None, shown: Shown
) -> CommandExecuted:
    """What came of a program; `program` is how it was begun, if that is in the records."""
    failure = record.failure
    return CommandExecuted(
        **at,
        intent=record.intent,
        part=0 if program is None else program.part,
        command_sha256="" if program is None else program.sha256,
        success=failure is None and record.stop == "finished" and not record.exit_code,
        stop=record.stop,
        stdout=shown.content(record.stdout),
        stderr=shown.content(record.stderr),
        value=shown.optional(record.value),
        answer=shown.optional(record.answer),
        error_kind=None if failure is None else failure.kind,
        error=None if failure is None else shown.content(failure.message),
        host_calls=record.host_calls,
        fuel=record.fuel,
        wall_ms=record.wall_ms,
        truncated=record.truncated,
        outputs=tuple(each.id for each in record.outputs),
        exit_code=record.exit_code,
    )


def _argument(command: Command) -> str:
    """What a command is about, as it was read."""
    match command:
        case Code():
            return command.source
        case Run():
            return command.command
        case Final():
            return command.text
        case FinalVar() | Snapshot() | Rollback():
            return command.name
        case QueryLlm():
            return command.prompt
        case QueryLlmBatched():
            return "\n---\n".join(command.prompts)
        case _:
            assert_never(command)
