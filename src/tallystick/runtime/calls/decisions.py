"""Decide about calls in doubt before a run is resumed.

A provider or a tool that can tell the outcome is asked. An idempotent effect is repeated, and so is
a call to a model in this process, which sends no bill. For the rest the policy decides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import msgspec

from tallystick.core.budget.billing import AttemptCancelled, AttemptReplied
from tallystick.core.charge import Reserved, Settled
from tallystick.core.errors import UsageError
from tallystick.core.history import Key, key_of
from tallystick.core.records import AskModel, CallHost, InDoubt, Record, RunProgram
from tallystick.core.resume_errors import RunInDoubt
from tallystick.core.views.open_calls import (
    Lookup,
    OpenCall,
    call_key,
    left_calls,
    open_calls,
    open_intents,
)
from tallystick.model.port import ModelReply
from tallystick.model.price_table import CallTerms
from tallystick.runtime.calls.functions import RunFunction
from tallystick.runtime.journal.effects import Decision, Decisions, Found
from tallystick.runtime.spend.door import ModelDoor

# Asks a provider for the outcome of a call, by the name of the model and the key of the call.
FindReply = Callable[[str, str], Awaitable[ModelReply | Lookup]]


async def decide(
    run: str,
    records: Sequence[Record],
    *,
    model: str,
    policy: InDoubt,
    functions: Mapping[str, RunFunction],
    free: Callable[[str], bool],
    find_reply: FindReply,
) -> Decisions:
    """Return a decision for every call that is open.

    `model` is the model of the run, and `policy` decides where the outcome is unknown. `functions`
    are the tools by name. `free` says of a model by name whether it sends no bill. A native program
    is always left to the policy. Raise `RunInDoubt` with all undecided calls if the policy is
    "halt", and `UsageError` if `find_reply` returns something else. Errors of lookups are raised.
    """
    found = Decisions()
    undecided: list[OpenCall] = []
    # These have an end on record: a cancel left them after they were sent. A resume repeats them,
    # so they need a decision as well, about the attempt that follows.
    left = {key_of(call) for call in left_calls(records)}
    for call in (*open_calls(records), *left_calls(records)):
        if isinstance(call, RunProgram):
            # Nothing outside can tell how far a native program came.
            undecided.append(call)
            continue
        if isinstance(call, CallHost):
            outcome = await _find_effect(call, functions.get(call.name), run)
            if outcome is Lookup.UNKNOWN:
                undecided.append(call)
            else:
                _decide(found, call, Decision.AGAIN if outcome is Lookup.NOT_RECEIVED else outcome)
            continue
        asked = model if isinstance(call, AskModel) else call.model
        # A model in this process died with it, so its reply is nowhere, and cost nothing.
        reply = (
            Lookup.NOT_RECEIVED if free(asked) else await find_reply(asked, name_outside(run, call))
        )
        if not isinstance(reply, ModelReply | Lookup):
            raise UsageError(
                f"lookup of {asked}: a ModelReply, NOT_RECEIVED or UNKNOWN, not "
                f"{type(reply).__name__}"
            )
        if reply is Lookup.UNKNOWN:
            undecided.append(call)
        else:
            _decide(found, call, Decision.AGAIN if isinstance(reply, Lookup) else reply, left)
    if undecided and policy == "halt":
        # Only now, so that one error names every call, and a person decides once.
        names = {call.intent for call in undecided}
        items = {(call.intent, getattr(call, "item", -1)) for call in undecided}
        raise RunInDoubt(
            run=run,
            open=tuple(
                msgspec.structs.replace(
                    each, items=tuple(item for item in each.items if (each.intent, item) in items)
                )
                for each in open_intents(records)
                if each.intent in names
            ),
        )
    decision = Decision.RETRY if policy == "retry" else Decision.ABANDON
    for call in undecided:
        _decide(found, call, decision, left)
    return found


def _decide(decisions: Decisions, call: OpenCall, found: Found, left: Collection[Key] = ()) -> None:
    key = key_of(call)
    if key in left:
        decisions.left[key._replace(attempt=1)] = found
    else:
        decisions.open[key] = found


def name_outside(run: str, call: OpenCall) -> str:
    """Return the key that a call was sent with."""
    if isinstance(call, AskModel):
        # Each attempt has an intent of its own.
        return call_key(run, call.intent)
    if isinstance(call, CallHost | RunProgram):
        # All attempts share it, so that the receiver can recognize a repeated call.
        return call_key(run, call.intent)
    return call_key(run, call.intent, item=call.item, attempt=call.attempt)


async def _find_effect(call: CallHost, function: RunFunction | None, run: str) -> object:
    """Return the outcome of an effect: what its `lookup` returned, or a `Lookup`.

    `NOT_RECEIVED` for an idempotent one, which is repeated. `UNKNOWN` for a function that is not
    here, or that has no `lookup`.
    """
    if function is None:
        return Lookup.UNKNOWN
    if function.idempotent:
        return Lookup.NOT_RECEIVED
    if function.lookup is None:
        return Lookup.UNKNOWN
    said = function.lookup(name_outside(run, call))
    return await said if isinstance(said, Awaitable) else said


def settle_unsent(model_door: ModelDoor, terms: CallTerms) -> Settled:
    """Return the settlement, at no cost, of an attempt that is recorded but was not sent."""
    return settle_doubt(model_door, terms, None, Decision.AGAIN)[0]


ABANDONED = "its outcome is unknown and it was not made again"
_NEVER_ARRIVED = "it never arrived"
_MADE_AGAIN = "its outcome is unknown; it is made again"


def settle_doubt(
    model_door: ModelDoor, terms: CallTerms, reserved: Reserved | None, found: Found | None
) -> tuple[Settled, str]:
    """Settle a call in doubt by its decision. Return that, and a message for its record.

    The message is "" if the call has a reply. `AGAIN` costs nothing; otherwise, without a reply,
    the reservation is charged. Without `reserved`, the charge has no tokens.
    """
    reserved = reserved or Reserved(tokens_in=0, tokens_out=0)
    if isinstance(found, ModelReply):
        return model_door.settle_recovered(terms, reserved, AttemptReplied(usage=found.usage)), ""
    sent = found is not Decision.AGAIN
    settled = model_door.settle_recovered(terms, reserved, AttemptCancelled(sent=sent))
    said: dict[object, str] = {
        Decision.AGAIN: _NEVER_ARRIVED,
        Decision.RETRY: _MADE_AGAIN,
        Decision.ABANDON: ABANDONED,
    }
    return settled, said[found]
