"""Find the calls that were begun and have no outcome, and name them for lookups outside.

While a run is live they are in progress. If its process died, they are in doubt. So are calls that
were left after they had been sent, by Ctrl-C or because a call beside them failed. Those are
charged already; the only question is whether to repeat them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Literal

import msgspec
from msgspec import UnsetType

from tallystick.core.records import (
    LEFT,
    AskModel,
    AttachmentRef,
    CallHost,
    HostAnswered,
    ModelFailed,
    ModelReplied,
    ProgramFinished,
    QueryAsked,
    QueryFailed,
    QueryRefused,
    QueryReplied,
    Record,
    RunProgram,
    RunResumed,
)


class Lookup(Enum):
    """An answer about an earlier call that is not its reply.

    `NOT_RECEIVED`: the call never arrived, so repeating it is safe. `UNKNOWN`: the provider cannot
    say, so the call stays in doubt.
    """

    NOT_RECEIVED = "not_received"
    UNKNOWN = "unknown"


NOT_RECEIVED = Lookup.NOT_RECEIVED
UNKNOWN = Lookup.UNKNOWN


def call_key(run: str, intent: int, *, item: int | None = None, attempt: int = 1) -> str:
    """Return the name under which a call of a run is known outside. No other call has it.

    `item` is the place in a batch, None outside of one. The first attempt is not numbered.
    """
    place = f"{run}-{intent}" if item is None else f"{run}-{intent}.{item}"
    return place if attempt == 1 else f"{place}-{attempt}"


# Calls without an outcome on the ledger: they may have been paid for, or may have happened. A
# program is one only if it cannot be run again (`effect`).
OpenCall = AskModel | QueryAsked | CallHost | RunProgram
_Key = tuple[int, int]


class OpenIntent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An intent without an outcome. `items` are the open places of a batch.

    `run` is the run it belongs to, if that is a run inside the one that was asked about. `tokens`
    and `usd` are the worst case that was reserved; `usd` is nano-dollars, None if unknown.
    `request` is what an effect asked; `request_ref` has it if it is long.
    """

    intent: int
    kind: Literal["model", "query", "effect"]
    what: str
    turn: int = 0
    items: tuple[int, ...] = ()
    tokens: int = 0
    usd: int | None = None
    run: str = ""
    request: str = ""
    request_ref: AttachmentRef | None = None


def of_child(intents: Iterable[OpenIntent], run: str) -> list[OpenIntent]:
    """Return the open intents of a run inside another, each with the id of its run.

    An intent that names a run already, one still further inside, keeps it.
    """
    return [msgspec.structs.replace(each, run=each.run or run) for each in intents]


def open_calls(records: Iterable[Record]) -> list[OpenCall]:
    """Return the calls without an outcome, in the order in which they were begun.

    After a resume that did not halt on calls in doubt, calls of finished programs are left out.
    Child runs are not calls here: each has open calls of its own.
    """
    begun: dict[_Key, OpenCall] = {}
    finished: frozenset[int] = frozenset()
    for record in records:
        match record:
            case AskModel() | CallHost() | RunProgram(effect=True):
                begun[record.intent, -1] = record
            case QueryAsked():
                begun[record.intent, record.item] = record
            case ModelReplied() | ModelFailed() | HostAnswered() | ProgramFinished():
                begun.pop((record.intent, -1), None)
            case QueryReplied() | QueryFailed() | QueryRefused():
                begun.pop((record.intent, record.item), None)
            case RunResumed() if record.in_doubt != "halt":
                # The caller decided about these calls, and no program waits for them any more.
                begun = {key: each for key, each in begun.items() if not _is_past(each, finished)}
            case _:
                pass
        if isinstance(record, ProgramFinished):
            finished = finished | {record.intent}
    return list(begun.values())


def left_calls(records: Iterable[Record]) -> list[AskModel | QueryAsked]:
    """Return the calls that were left after they were sent, and that a resume would repeat.

    A call is left out once it was asked again, or its program has its answer or has ended. So are
    all calls before a resume with `retry`, which accepts to pay again. An outcome whose call was
    never begun, as a hostile file may have one, leaves nothing.
    """
    asked: dict[_Key, AskModel | QueryAsked] = {}
    left: dict[_Key, AskModel | QueryAsked] = {}
    for record in records:
        match record:
            case AskModel():
                # The next model call of a turn repeats the one that was left, with another intent.
                left = {key: each for key, each in left.items() if isinstance(each, QueryAsked)}
                asked[record.intent, -1] = record
            case QueryAsked():
                left.pop((record.intent, record.item), None)
                asked[record.intent, record.item] = record
            case ModelFailed(billed=True) if record.reason == LEFT:
                left |= _begun(asked, (record.intent, -1))
            case QueryFailed(billed=True) if record.reason == LEFT:
                left |= _begun(asked, (record.intent, record.item))
            case QueryRefused():
                left.pop((record.intent, record.item), None)
            case HostAnswered() | ProgramFinished():
                left = {key: each for key, each in left.items() if not _is_answered(each, record)}
            case RunResumed(in_doubt="retry"):
                left = {}
            case _:
                pass
    return list(left.values())


def _begun(
    asked: dict[_Key, AskModel | QueryAsked], key: _Key
) -> dict[_Key, AskModel | QueryAsked]:
    return {key: asked[key]} if key in asked else {}


def _is_answered(call: AskModel | QueryAsked, record: HostAnswered | ProgramFinished) -> bool:
    if isinstance(call, AskModel):
        return False
    return record.intent == (call.intent if isinstance(record, HostAnswered) else call.program)


def open_intents(records: Iterable[Record]) -> tuple[OpenIntent, ...]:
    """Return the open intents, with those of left calls. The calls of a batch are one.

    Its `tokens` and `usd` are sums over its open calls; calls of unknown price are in no sum.
    """
    found: dict[int, OpenIntent] = {}
    turn = 0
    turns: dict[int, int] = {}
    kept = list(records)
    for record in kept:
        turn = getattr(record, "turn", turn)
        if isinstance(record, OpenCall):
            turns[record.intent] = turn
    for call in (*open_calls(kept), *left_calls(kept)):
        before = found.get(call.intent)
        found[call.intent] = _open_intent(call, before, turn=turns[call.intent])
    return tuple(found.values())


def _open_intent(call: OpenCall, before: OpenIntent | None, *, turn: int) -> OpenIntent:
    """Return the open intent of a call. `before` is that of the same batch so far, if any."""
    if isinstance(call, RunProgram):
        what = f"program ({call.kind})"
        return OpenIntent(intent=call.intent, kind="effect", what=what, turn=turn)
    if isinstance(call, CallHost):
        return OpenIntent(
            intent=call.intent,
            kind="effect",
            what=call.name,
            turn=turn,
            request=call.request if isinstance(call.request, str) else "",
            request_ref=None if isinstance(call.request_ref, UnsetType) else call.request_ref,
        )
    reserved = call.reserved
    tokens = 0 if reserved is None else reserved.tokens_in + reserved.tokens_out
    usd = None if reserved is None else reserved.usd
    if isinstance(call, AskModel):
        return OpenIntent(
            intent=call.intent, kind="model", what="the model", turn=turn, tokens=tokens, usd=usd
        )
    if before is None:
        return OpenIntent(
            intent=call.intent,
            kind="query",
            what="llm_query",
            turn=turn,
            items=(call.item,),
            tokens=tokens,
            usd=usd,
        )
    known = [each for each in (before.usd, usd) if each is not None]
    return msgspec.structs.replace(
        before,
        items=(*before.items, call.item),
        tokens=before.tokens + tokens,
        usd=sum(known) if known else None,
    )


def _is_past(call: OpenCall, finished: frozenset[int]) -> bool:
    return not isinstance(call, AskModel | RunProgram) and call.program in finished
