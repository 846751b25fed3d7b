"""Decide what an attempt at a model call is charged, from its outcome.

    outcome                                          charged            flag
    replied, with usage that can be true             as reported
    ... and a count is above its bound               the larger of both over_reserved
    replied, usage missing, negative, all zero       as reserved        usage_missing, ...
    failed, known not to be billed                   nothing
    ... and yet with usage                           as reported        billed_after_all
    failed by the provider's filter, with usage      as reported
    failed otherwise after it was sent               as reserved        unknown_outcome
    cancelled before it was sent                     nothing
    cancelled after                                  as reserved        cancelled
    in doubt                                         stays reserved

A count above its bound spoils the whole report: a server that exchanges the counts of input and
output reports too much of one and too little of the other. So each figure is the larger of what was
reserved and what was reported. The tree then refuses the next call: no limit holds with a provider
that bills more than the most that was asked of it.

Known not to be billed is what never left this machine, and what was refused before any work:
statuses 400, 401, 403, 404 and 429. Everything else may be billed, and is charged at the worst
case: a limit holds only if unknown costs count in full.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, assert_never

import msgspec

from tallystick.core.charge import Charge, ModelUsage
from tallystick.core.records import ModelFailed

# A server that answers with one of these has refused before any work.
UNBILLED = frozenset({400, 401, 403, 404, 429})

BillingFlag = Literal[
    "usage_missing",
    "usage_negative",
    "usage_zero",
    "usage_impossible",
    "over_reserved",
    "billed_after_all",
    "unknown_outcome",
    "cancelled",
]


class UsageDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a total. Cached input is part of the input, reasoning part of the output."""

    cache_read: int = 0
    cache_written: int = 0
    reasoning: int = 0


# Stands for a report that contradicts itself: no count can be negative, so it is never believed.
IMPOSSIBLE = UsageDetails(cache_read=-1)


class AttemptReplied(msgspec.Struct, frozen=True, kw_only=True, tag="attempt.replied"):
    """A reply that came whole. Usage that was not reported is an estimate or None."""

    usage: ModelUsage | None
    details: UsageDetails | None = None


class AttemptFailed(msgspec.Struct, frozen=True, kw_only=True, tag="attempt.failed"):
    """An attempt without a reply. `billed` is False only if that is known."""

    reason: str
    billed: bool
    status: int | None = None
    usage: ModelUsage | None = None
    details: UsageDetails | None = None

    @classmethod
    def of(cls, event: ModelFailed, *, details: UsageDetails | None = None) -> AttemptFailed:
        """Return the outcome of a record of a failed call, which has no `details` itself."""
        return cls(
            reason=event.reason,
            billed=event.billed,
            status=event.status,
            usage=event.usage,
            details=details,
        )


class AttemptCancelled(msgspec.Struct, frozen=True, kw_only=True, tag="attempt.cancelled"):
    """An attempt that we stopped. `sent` is True if anything may have left this machine."""

    sent: bool


class AttemptInDoubt(msgspec.Struct, frozen=True, kw_only=True, tag="attempt.in_doubt"):
    """An attempt whose process died during it. It stays reserved until it is resolved."""


Outcome = AttemptReplied | AttemptFailed | AttemptCancelled | AttemptInDoubt
# Nano-dollars for usage as it was reported, None where the price is not known.
Priced = Callable[[ModelUsage, UsageDetails | None], int | None]


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """The fate of a reservation, and the charge for its attempt.

    `figures` says where the charge comes from; `held` and `returned` charge nothing.
    """

    figures: Literal["reported", "reserved", "returned", "held"]
    charge: Charge
    flags: tuple[BillingFlag, ...] = ()


_NOTHING = Charge(usd=0)


def settlement(worst: Charge, outcome: Outcome, *, priced: Priced) -> Settlement:
    """Return what an attempt is charged, for which `worst` was reserved.

    `worst` is the bound of its input, its output cap, and their price. `priced` is called at most
    once, for usage that can be true. It returns the price in nano-dollars, or None if that is
    unknown: then the price in `worst` is charged. Nothing is changed.
    """
    match outcome:
        case AttemptReplied(usage=usage, details=details):
            flag = _objection(usage, details)
            if usage is None or flag is not None:
                return _charge_reserved(worst, flag or "usage_missing")
            return _charge_reported(worst, usage, details, priced)
        case AttemptFailed():
            return _settle_failure(worst, outcome, priced)
        case AttemptCancelled(sent=sent):
            return _charge_reserved(worst, "cancelled") if sent else _refund(worst)
        case AttemptInDoubt():
            return Settlement(figures="held", charge=_NOTHING)
        case _:
            assert_never(outcome)


def _settle_failure(worst: Charge, outcome: AttemptFailed, priced: Priced) -> Settlement:
    """Return what a failed attempt is charged: nothing, as reported, or at least as reserved.

    Nothing, if it is known not to be billed and reports no usage that can be true. As reported, if
    it is known not to be billed and reports usage all the same, or a filter stopped it.
    """
    usage, details = outcome.usage, outcome.details
    said = usage is not None and _objection(usage, details) is None
    # Both must say so: a status that is not in `UNBILLED` may have been billed whatever the flag.
    free = not outcome.billed and (outcome.status is None or outcome.status in UNBILLED)
    if usage is None or not said:
        return _refund(worst) if free else _charge_reserved(worst, "unknown_outcome")
    reported = _charge_reported(worst, usage, details, priced)
    if free:
        return _with_flag(reported, "billed_after_all")
    if outcome.reason == "content_policy":
        # The provider finished the call and withheld its text; the report is of the whole of it.
        return reported
    # What broke off may have been counted up to some point only. It was at least that much.
    return Settlement(
        figures="reserved",
        charge=_largest(worst, reported.charge),
        flags=("unknown_outcome", *reported.flags),
    )


def _objection(usage: ModelUsage | None, details: UsageDetails | None) -> BillingFlag | None:
    """Return the flag of a report that is missing or cannot be true, None if it can.

    An estimate counts as missing.
    """
    if usage is None or not usage.reported:
        return "usage_missing"
    if usage.tokens_in < 0 or usage.tokens_out < 0:
        return "usage_negative"
    if not usage.tokens_in and not usage.tokens_out:
        return "usage_zero"
    return None if details is None or _possible(usage, details) else "usage_impossible"


def _possible(usage: ModelUsage, details: UsageDetails) -> bool:
    return (
        min(details.cache_read, details.cache_written, details.reasoning) >= 0
        and details.cache_read + details.cache_written <= usage.tokens_in
        and details.reasoning <= usage.tokens_out
    )


def _refund(worst: Charge) -> Settlement:
    """Charge nothing. Without a known price, the charge is unknown and not zero.

    A zero here, added to calls whose price is unknown, would show their cost as $0.00.
    """
    charge = _NOTHING if worst.usd is not None else Charge(usd=None)
    return Settlement(figures="returned", charge=charge)


def _charge_reserved(worst: Charge, flag: BillingFlag) -> Settlement:
    return Settlement(figures="reserved", charge=worst, flags=(flag,))


def _charge_reported(
    worst: Charge, usage: ModelUsage, details: UsageDetails | None, priced: Priced
) -> Settlement:
    """Charge the reported usage.

    If its price is unknown, charge the reserved dollars; `figures` is "reported" all the same. If
    a figure is above its bound, charge the larger of both in each, with the flag `over_reserved`.
    Then `figures` is "reserved" if a reserved one is the larger anywhere.
    """
    usd = priced(usage, details)
    if usd is None:
        # The price was known before and is not now: the worst case is still a bound.
        usd = worst.usd
    charge = msgspec.structs.replace(
        worst, usd=usd, tokens_in=usage.tokens_in, tokens_out=usage.tokens_out
    )
    over = (
        charge.tokens_in > worst.tokens_in
        or charge.tokens_out > worst.tokens_out
        or (usd is not None and worst.usd is not None and usd > worst.usd)
    )
    if not over:
        return Settlement(figures="reported", charge=charge)
    largest = _largest(worst, charge)
    figures: Literal["reported", "reserved"] = "reported" if largest == charge else "reserved"
    return Settlement(figures=figures, charge=largest, flags=("over_reserved",))


def _largest(worst: Charge, reported: Charge) -> Charge:
    known = [each.usd for each in (worst, reported) if each.usd is not None]
    return msgspec.structs.replace(
        worst,
        usd=max(known, default=None),
        tokens_in=max(worst.tokens_in, reported.tokens_in),
        tokens_out=max(worst.tokens_out, reported.tokens_out),
    )


def _with_flag(settled: Settlement, flag: BillingFlag) -> Settlement:
    return msgspec.structs.replace(settled, flags=(*settled.flags, flag))
