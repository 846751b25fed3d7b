"""The one door to a model: reserve, clamp, call, settle.

The worst case of an attempt is held in every scope around it before anything is written or sent,
and its reply may be no longer than what the tightest scope still pays for. Afterwards it is settled
with what was reported, or with what was reserved where nobody can say. `core/budget/billing.py` has
the rules, `model/prices.py` the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from tallystick.attachments.media import image_size
from tallystick.core.budget.amount import (
    Amount,
    BudgetExhausted,
    BudgetOverrun,
    BudgetUnpriced,
    Dimension,
    Remaining,
)
from tallystick.core.budget.billing import (
    IMPOSSIBLE,
    AttemptCancelled,
    AttemptFailed,
    AttemptReplied,
    Outcome,
    UsageDetails,
    settlement,
)
from tallystick.core.budget.tree import affordable_output
from tallystick.core.charge import Charge, ModelUsage, Reserved, Settled
from tallystick.core.machine.prompt import Image, Message
from tallystick.model.port import Model, ModelError, ModelReply
from tallystick.model.price_table import CallTerms, Pricing
from tallystick.model.prices import TokenUsage, token_usage
from tallystick.model.tokens import TokenFigure, input_bound
from tallystick.runtime.spend.scopes import Hold, RunScopes, ScopeRef

# A model call that was never made, and the worst it could have cost.


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedCall:
    """What no budget pays for. `tokens_out` is the cap that was wanted; `usd` None is unpriced."""

    error: BudgetExhausted | BudgetUnpriced
    model: str
    tokens_in: int
    tokens_out: int
    usd: int | None


def refused_call(
    error: BudgetExhausted | BudgetUnpriced,
    terms: CallTerms,
    messages: tuple[Message, ...],
    *,
    tokens_out_max: int,
) -> RefusedCall:
    """Return what a call that was refused would have cost at most."""
    bound, worst = prompt_figure(terms, messages).tokens, terms.worst
    return RefusedCall(
        error=error,
        model=terms.model,
        tokens_in=bound,
        tokens_out=tokens_out_max,
        usd=None if worst is None else worst(bound, tokens_out_max),
    )


# The one door to a model: reserve, clamp, call, settle.


_LED_TO: tuple[Dimension, ...] = ("host_calls", "fuel", "wall_ms", "output_bytes")
# How long a call waits before it asks again for what others hold.
PAUSE_MS = 20
# A reply cut shorter than this is paid for and of no use.
REPLY_TOKENS_LEAST = 16
# By these a report is known to be in a format that can be read.
_NAMES = ("prompt_tokens", "input_tokens")


@dataclass(slots=True)
class ReservedCall:
    """An attempt that is paid for: what is held, what the record says of it, and its cap."""

    hold: Hold
    terms: CallTerms
    reserved: Reserved
    tokens_out_max: int
    turns: int = 0


# Hears of each call that was settled, by the name of its model.
Noted = Callable[[str, Charge], None]


class ModelDoor:
    """Reserves and settles attempts from one purse."""

    def __init__(
        self, run_scopes: RunScopes, pricing: Pricing, *, noted: Noted = lambda model, charge: None
    ) -> None:
        self._run_scopes = run_scopes
        self._pricing = pricing
        self._noted = noted

    @property
    def run_scopes(self) -> RunScopes:
        return self._run_scopes

    def inside(self, place: ScopeRef, *, run: str) -> ModelDoor:
        """One for a run inside, that pays from a scope inside the first of this one's as well."""
        return ModelDoor(self._run_scopes.inside(place, run=run), self._pricing, noted=self._noted)

    def terms(self, model: Model) -> CallTerms:
        """On which terms a model is asked. Caps matter only where no price is known."""
        found = self._pricing.terms(model, usd_capped=False)
        if found.decision.price is not None:
            return found
        usd_capped = self._run_scopes.remaining().usd is not None
        return self._pricing.terms(model, usd_capped=usd_capped)

    def reserve(
        self,
        terms: CallTerms,
        messages: tuple[Message, ...],
        *,
        tokens_out_max: int,
        tokens_out_min: int = REPLY_TOKENS_LEAST,
        turns: int = 0,
    ) -> ReservedCall:
        """Hold the worst case. Raises `BudgetExhausted` or `BudgetUnpriced`; then nothing is held.

        The cap of the reply is what the tightest scope pays for, at most what is wanted and at
        least `tokens_out_min`. `turns` is 1 for a call that begins one.
        """
        figure = prompt_figure(terms, messages)
        bound = figure.tokens
        waived = terms.decision.policy == "waived"
        worst = terms.worst
        left = self._run_scopes.remaining()
        _check_used_up(left)
        cap = affordable_output(
            left,
            tokens_in=bound,
            tokens_out_wanted=tokens_out_max,
            tokens_out_min=tokens_out_min,
            price=worst,
            usd_waived=waived,
        )
        usd = None if worst is None else worst(bound, cap)
        hold = self._run_scopes.reserve(
            Amount(tokens=bound + cap, usd=usd, model_calls=1, turns=turns),
            usd_waived=waived or usd is None,
        )
        reserved = Reserved(
            tokens_in=bound,
            tokens_out=cap,
            usd=usd,
            price=terms.decision.policy,
            counted=figure.label == "counted",
            hold=hold.shared or 0,
        )
        return ReservedCall(hold, terms, reserved, cap, turns)

    def is_held(self, error: BudgetExhausted | BudgetUnpriced) -> bool:
        """Say whether calls under way hold what a call was refused for, and may give it back.

        A turn's call and a program's call ask this alike: with True they wait, and are not refused.
        Another thread may give it back just before this looks; so who is told False asks for the
        money once more, and is refused only if that fails too.
        """
        if isinstance(error, BudgetOverrun) or not isinstance(error, BudgetExhausted):
            # After an overrun no money that comes back pays for another call.
            return False
        return self._run_scopes.is_held(error.scope.id, error.dimension)

    def replied(self, reserved_call: ReservedCall, reply: ModelReply) -> Settled:
        usage = reply.usage
        if reserved_call.terms.in_process and not usage.reported:
            # Nobody sends a bill: the estimate is as good as any report.
            usage = msgspec.structs.replace(usage, reported=True)
        usage, details = _read(usage)
        return self._settled(reserved_call, AttemptReplied(usage=usage, details=details))

    def failed(self, reserved_call: ReservedCall, error: ModelError) -> Settled:
        usage, details = (None, None) if error.usage is None else _read(error.usage)
        outcome = AttemptFailed(
            reason=error.reason,
            billed=error.billed and not reserved_call.terms.in_process,
            status=error.status,
            usage=usage,
            details=details,
        )
        return self._settled(reserved_call, outcome)

    def cancelled(self, reserved_call: ReservedCall, *, sent: bool = True) -> Settled:
        """We left. If it was sent, nobody can say what it cost, unless nobody sends a bill."""
        return self._settled(
            reserved_call, AttemptCancelled(sent=sent and not reserved_call.terms.in_process)
        )

    def recalled(self, model: str, charge: Charge) -> None:
        """Count what was spent before a run was gone on with. What is shared has it already."""
        self._run_scopes.recall(Amount.of_charge(charge))
        if charge.model_calls:
            self._noted(model, msgspec.structs.replace(charge, turns=0, wall_ms=0))

    def recovered(
        self, terms: CallTerms, reserved: Reserved, outcome: AttemptReplied | AttemptCancelled
    ) -> Settled:
        """Settle an attempt that was left by a process that died, as it has turned out."""
        if isinstance(outcome, AttemptReplied) and outcome.usage is not None:
            usage, details = _read(outcome.usage)
            outcome = AttemptReplied(usage=usage, details=details)
        reserved_call = ReservedCall(
            self._run_scopes.lost(reserved.hold), terms, reserved, reserved.tokens_out
        )
        settled = self._settled(reserved_call, outcome)
        if settled.figures != "returned":
            charge = Charge(
                usd=settled.usd,
                tokens_in=settled.tokens_in,
                tokens_out=settled.tokens_out,
                model_calls=1,
            )
            self._run_scopes.spend(Amount.of_charge(charge))
        return settled

    def release(self, reserved_call: ReservedCall) -> None:
        """It was never sent."""
        self._run_scopes.release(reserved_call.hold)

    def _settled(self, reserved_call: ReservedCall, outcome: Outcome) -> Settled:
        reserved = reserved_call.reserved
        worst = Charge(
            usd=reserved.usd,
            tokens_in=reserved.tokens_in,
            tokens_out=reserved.tokens_out,
            model_calls=1,
        )
        found = settlement(worst, outcome, priced=reserved_call.terms.priced)
        charge = found.charge
        if found.figures == "returned":
            self._run_scopes.release(reserved_call.hold)
            return Settled(figures="returned", tokens_in=0, tokens_out=0, usd=charge.usd)
        assert found.figures != "held"
        turns = reserved_call.turns if isinstance(outcome, AttemptReplied) else 0
        used = msgspec.structs.replace(charge, turns=turns)
        self._run_scopes.settle(reserved_call.hold, Amount.of_charge(used))
        self._noted(reserved_call.terms.model, charge)
        return Settled(
            figures=found.figures,
            tokens_in=charge.tokens_in,
            tokens_out=charge.tokens_out,
            usd=charge.usd,
            flags=found.flags,
        )


def _check_used_up(left: Remaining) -> None:
    """Refuse where nothing is left of what a call leads to: programs, their time, their calls."""
    for dimension in _LED_TO:
        figure = getattr(left, dimension)
        if figure is not None and figure <= 0:
            scope = left.by[dimension]
            raise BudgetExhausted(dimension=dimension, scope=scope, needed=1, left=max(0, figure))


def prompt_figure(terms: CallTerms, messages: tuple[Message, ...]) -> TokenFigure:
    """The most tokens that a prompt can be, and whether they were counted."""
    return input_bound(
        messages,
        dialect=terms.dialect,
        model=terms.model,
        size_of=picture_size,
        tokenizer=terms.tokenizer,
    )


def picture_size(image: Image) -> tuple[int, int] | None:
    """Width and height, as its reference says or its bytes."""
    ref = image.ref
    if ref is not None and ref.width and ref.height:
        return ref.width, ref.height
    return image_size(image.data)


def _read(usage: ModelUsage) -> tuple[ModelUsage, UsageDetails | None]:
    """A report as it is charged: its sums, and what they are made of.

    The sums are read once more, since some servers count reasoning beside the output. A report in a
    known format that contradicts itself is none; one in a format of its own has only its sums.
    """
    found = token_usage(usage.raw)
    if not isinstance(found, TokenUsage):
        return usage, IMPOSSIBLE if any(name in usage.raw for name in _NAMES) else None
    details = UsageDetails(
        cache_read=found.cache_read, cache_written=found.cache_write, reasoning=found.reasoning
    )
    return (
        msgspec.structs.replace(usage, tokens_in=found.input, tokens_out=found.output),
        details,
    )
