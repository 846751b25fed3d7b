"""What becomes of calls whose outcome nobody knows, decided before a run is resumed.

Whoever can be asked is asked. An effect that may be made twice without harm is simply made again,
and so is a call to a model in this process, which sends no bill. For the rest the policy decides.
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

# Asks a provider what came of a call, by the model's name and the call's key.
FindReply = Callable[[str, str], Awaitable[ModelReply | Lookup]]


async def decided(
    run: str,
    records: Sequence[Record],
    *,
    model: str,
    policy: InDoubt,
    functions: Mapping[str, RunFunction],
    free: Callable[[str], bool],
    find_reply: FindReply,
) -> Decisions:
    """Decide about every call that is open. Raises `RunInDoubt` where nobody can.

    `model` is the run's own. `free` says of one by its name that nobody sends a bill for it.
    """
    found = Decisions()
    undecided: list[OpenCall] = []
    left = {key_of(call) for call in left_calls(records)}
    for call in (*open_calls(records), *left_calls(records)):
        if isinstance(call, RunProgram):
            undecided.append(call)
            continue
        if isinstance(call, CallHost):
            outcome = await _effect(call, functions.get(call.name), run)
            if outcome is Lookup.UNKNOWN:
                undecided.append(call)
            else:
                _decide(found, call, Decision.AGAIN if outcome is Lookup.NOT_RECEIVED else outcome)
            continue
        asked = model if isinstance(call, AskModel) else call.model
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
    """Return the name under which a call went out."""
    if isinstance(call, AskModel):
        # Each attempt has an intent of its own.
        return call_key(run, call.intent)
    if isinstance(call, CallHost | RunProgram):
        # However often it is made: whoever got it can tell that it is the same.
        return call_key(run, call.intent)
    return call_key(run, call.intent, item=call.item, attempt=call.attempt)


async def _effect(call: CallHost, function: RunFunction | None, run: str) -> object:
    """What came of an effect, as far as whoever made it can say."""
    if function is None:
        return Lookup.UNKNOWN
    if function.idempotent:
        return Lookup.NOT_RECEIVED
    if function.lookup is None:
        return Lookup.UNKNOWN
    said = function.lookup(name_outside(run, call))
    return await said if isinstance(said, Awaitable) else said


# How a model call whose outcome nobody knew is settled, as was decided about it.


def settled_unsent(model_door: ModelDoor, terms: CallTerms) -> Settled:
    """Return the settlement of an attempt that stands for one that was left: nothing was sent."""
    return settled_doubt(model_door, terms, None, Decision.AGAIN)[0]


ABANDONED = "its outcome is unknown and it was not made again"
_NEVER_ARRIVED = "it never arrived"
_MADE_AGAIN = "its outcome is unknown; it is made again"


def settled_doubt(
    model_door: ModelDoor, terms: CallTerms, reserved: Reserved | None, found: Found | None
) -> tuple[Settled, str]:
    """How a call that was in doubt is settled, and what is said of it where it has no reply."""
    reserved = reserved or Reserved(tokens_in=0, tokens_out=0)
    if isinstance(found, ModelReply):
        return model_door.recovered(terms, reserved, AttemptReplied(usage=found.usage)), ""
    sent = found is not Decision.AGAIN
    settled = model_door.recovered(terms, reserved, AttemptCancelled(sent=sent))
    said: dict[object, str] = {
        Decision.AGAIN: _NEVER_ARRIVED,
        Decision.RETRY: _MADE_AGAIN,
        Decision.ABANDON: ABANDONED,
    }
    return settled, said[found]
