"""The one door to a model: wait, reserve, clamp, call, settle.

Calls of turns and of programs pass it alike. The worst case of an attempt is reserved in every
scope around it before anything is written or sent; if other calls hold the money, it waits in line
(`line.py`). Its reply may be no longer than what the tightest scope still pays for. Afterwards it
is settled with what was reported, or with what was reserved where that is unknown.
`core/budget/billing.py` has the rules, `model/prices.py` the arithmetic.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from tallystick.attachments.media import image_size
from tallystick.core.budget.amount import (
    Amount,
    BudgetExhausted,
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
from tallystick.model.port import (
    Heard,
    Model,
    ModelError,
    ModelReply,
    ModelRequest,
    readable,
)
from tallystick.model.price_table import CallTerms, Pricing
from tallystick.model.prices import TokenUsage, token_usage
from tallystick.model.tokens import TokenFigure, input_bound
from tallystick.runtime.log import log_prompt, log_reply
from tallystick.runtime.spend.scopes import Hold, MoneyWait, RunScopes, ScopeRef


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedCall:
    """A model call that no budget pays for, and the most that it would have cost.

    `tokens_out` is the longest reply that was asked for. `usd` is None without a price.
    """

    error: BudgetExhausted | BudgetUnpriced
    model: str
    tokens_in: int
    tokens_out: int
    # In nano-dollars.
    usd: int | None


def refused_call(
    error: BudgetExhausted | BudgetUnpriced,
    terms: CallTerms,
    messages: tuple[Message, ...],
    *,
    tokens_out_max: int,
) -> RefusedCall:
    """Return a refused call with the most that it would have cost.

    `tokens_out_max` is the longest reply that was asked for.
    """
    bound, worst = prompt_figure(terms, messages).tokens, terms.worst
    return RefusedCall(
        error=error,
        model=terms.model,
        tokens_in=bound,
        tokens_out=tokens_out_max,
        usd=None if worst is None else worst(bound, tokens_out_max),
    )


# A turn leads to programs, which use these. A run that has none left must not pay for a turn.
_LED_TO: tuple[Dimension, ...] = ("host_calls", "fuel", "wall_ms", "output_bytes")
# A shorter reply would be paid for and could not hold a program.
REPLY_TOKENS_LEAST = 16
# The fields that show a usage report to be in a known format.
_NAMES = ("prompt_tokens", "input_tokens")


_Made = TypeVar("_Made")


class WaitedTooLong(Exception):
    """Raised if the time of the run is over before the provider has a place for the call."""


@dataclass(slots=True)
class ReservedCall:
    """A reserved attempt: the reservation, its record, and the longest reply it pays for."""

    hold: Hold
    terms: CallTerms
    reserved: Reserved
    tokens_out_max: int
    turns: int = 0


# Called with the name of the model and the charge of each settled call.
Noted = Callable[[str, Charge], None]


class ModelDoor:
    """The way to every model of one run. It reserves, asks and settles in the scopes that pay."""

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
        """Return the door of a child run. `place` is its scope, inside the parent's nearest one."""
        return ModelDoor(self._run_scopes.inside(place, run=run), self._pricing, noted=self._noted)

    def terms(self, model: Model) -> CallTerms:
        """Return the price, dialect and tokenizer with which a model is asked.

        Whether money is capped decides only about models without a known price.
        """
        # So it is looked up for those alone: a look at the shared total reads the ledger's file.
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
        """Reserve the worst case of a call in every scope.

        The reply may be as long as the tightest scope can pay for, at most `tokens_out_max`, at
        least the smaller of that and `tokens_out_min`. `turns` is 1 for a call that begins a turn.
        Raise `BudgetExhausted` or `BudgetUnpriced` if a scope refuses, and also if nothing is left
        of host calls, fuel, time or output; then nothing is reserved.
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

    @asynccontextmanager
    async def admit(
        self,
        model: Model,
        messages: tuple[Message, ...],
        *,
        tokens_out_max: int,
        turns: int = 0,
        wait_ms: int = 0,
        ends_at: float = math.inf,
    ) -> AsyncIterator[ReservedCall]:
        """Wait `wait_ms`, then for a place at the provider and for money, and reserve the call.

        A whole reply has `tokens_out_max` tokens; `turns` is as in `reserve`. The reply limit is
        lowered only if no call in progress holds the money for a whole reply. On the way out, a
        reservation that was not settled is released. Raise `BudgetExhausted` or `BudgetUnpriced` if
        no budget pays for the call, not even with what calls in progress may give back. Raise
        `WaitedTooLong` if `ends_at`, a moment of the monotonic clock, comes before a place is free.
        """
        await asyncio.sleep(min(wait_ms / 1000, max(0.0, ends_at - time.monotonic())))
        terms = self.terms(model)

        def reserve() -> ReservedCall:
            try:
                # Ask for a whole reply first. If other calls hold the money, waiting for it is
                # better than a reply that is cut short, which is paid for and often useless.
                return self.reserve(
                    terms,
                    messages,
                    tokens_out_max=tokens_out_max,
                    tokens_out_min=tokens_out_max,
                    turns=turns,
                )
            except BudgetExhausted as error:
                if self._run_scopes.is_held(error):
                    raise
                return self.reserve(terms, messages, tokens_out_max=tokens_out_max, turns=turns)

        async with self._in_turn(reserve, model.admitted, ends_at) as reserved_call:
            try:
                yield reserved_call
            finally:
                # Settled by then, unless the call was never made.
                self.release(reserved_call)

    async def when_paid(self, reserve: Callable[[], _Made]) -> _Made:
        """Return the result of `reserve`, repeated in turn until a budget pays.

        This waits without a limit, as long as money may come back. After that, raise the
        `BudgetExhausted` or `BudgetUnpriced` of `reserve`.
        """
        async with self._in_turn(reserve, contextlib.nullcontext, math.inf) as made:
            return made

    @asynccontextmanager
    async def _in_turn(
        self,
        reserve: Callable[[], _Made],
        place: Callable[[], AbstractAsyncContextManager[None]],
        ends_at: float,
    ) -> AsyncIterator[_Made]:
        # The place comes before the money: a reservation that waits for a place would hold money
        # that no call uses.
        with MoneyWait(self._run_scopes, ends_at=ends_at) as waiting:
            while True:
                await waiting.turn()
                async with contextlib.AsyncExitStack() as inside:
                    try:
                        async with asyncio.timeout_at(_loop_time(ends_at)):
                            await inside.enter_async_context(place())
                    except TimeoutError:
                        raise WaitedTooLong("the time passed before the model was free") from None
                    try:
                        made = reserve()
                    except (BudgetExhausted, BudgetUnpriced) as error:
                        if not waiting.stays(error):
                            raise
                        # It waits without a place: the calls that hold the money may need one.
                        continue
                    waiting.leave()
                    yield made
                    return

    async def ask(
        self, model: Model, request: ModelRequest, *, heard: Heard, ends_at: float = math.inf
    ) -> ModelReply | ModelError:
        """Send a request, and return the reply or the error.

        Every error of a backend is returned, not raised: the attempt has to be settled and
        recorded either way. Only a cancel passes. At `ends_at`, a moment of the monotonic clock,
        the request is cancelled, and the error has the reason `timeout`.
        """
        begun = time.monotonic()
        try:
            async with asyncio.timeout_at(_loop_time(ends_at)):
                log_prompt(model.name, request.messages)
                reply = readable(await model.ask(request, heard=heard))
                log_reply(model.name, reply.text)
                return reply
        except ModelError as error:
            return error
        except TimeoutError:
            waited_ms = round((time.monotonic() - begun) * 1000)
            return ModelError(reason="timeout", message=f"no reply in {waited_ms:,} ms")
        except Exception as error:
            # A backend that breaks its promise may have sent what it was given. Its words are not
            # recorded: they are not ours, and could hold a key.
            said = f"the backend broke ({type(error).__name__})"
            return ModelError(reason="unknown", message=said, kind="terminal")

    def settle_reply(self, reserved_call: ReservedCall, reply: ModelReply) -> Settled:
        """Settle an attempt that was answered, with the usage that the reply reports.

        If the report is missing or contradicts itself, the reservation is charged.
        """
        usage = reply.usage
        if reserved_call.terms.in_process and not usage.reported:
            # A model in this process sends no bill: the estimate is as good as any report.
            usage = msgspec.structs.replace(usage, reported=True)
        usage, details = _read(usage)
        return self._settle(reserved_call, AttemptReplied(usage=usage, details=details))

    def settle_failure(self, reserved_call: ReservedCall, error: ModelError) -> Settled:
        """Settle a failed attempt: by its report, as reserved if it may be billed, else at 0."""
        usage, details = (None, None) if error.usage is None else _read(error.usage)
        outcome = AttemptFailed(
            reason=error.reason,
            billed=error.billed and not reserved_call.terms.in_process,
            status=error.status,
            usage=usage,
            details=details,
        )
        return self._settle(reserved_call, outcome)

    def settle_cancelled(self, reserved_call: ReservedCall, *, sent: bool = True) -> Settled:
        """Settle an attempt whose reply nobody waits for any more.

        If it was sent to a provider that bills, its cost is unknown, and its reservation is
        charged.
        """
        return self._settle(
            reserved_call, AttemptCancelled(sent=sent and not reserved_call.terms.in_process)
        )

    def count_recorded(self, model: str, charge: Charge) -> None:
        """Count a recorded charge of a resumed run. The shared total has counted it already.

        `noted` is called too if the charge has model calls.
        """
        # Turns and time count in the scopes; `noted` adds up the model calls of each model.
        self._run_scopes.recall(Amount.of_charge(charge))
        if charge.model_calls:
            self._noted(model, msgspec.structs.replace(charge, turns=0, wall_ms=0))

    def settle_recovered(
        self, terms: CallTerms, reserved: Reserved, outcome: AttemptReplied | AttemptCancelled
    ) -> Settled:
        """Settle an attempt that a dead process left open, by what was found out about it.

        Its reservation in the shared scope is closed, if it is still there. The trees of this
        process count the charge without a reservation: they never had one.
        """
        if isinstance(outcome, AttemptReplied) and outcome.usage is not None:
            usage, details = _read(outcome.usage)
            outcome = AttemptReplied(usage=usage, details=details)
        reserved_call = ReservedCall(
            self._run_scopes.hold_of(reserved.hold), terms, reserved, reserved.tokens_out
        )
        settled = self._settle(reserved_call, outcome)
        if settled.figures != "returned":
            charge = Charge(
                usd=settled.usd,
                tokens_in=settled.tokens_in,
                tokens_out=settled.tokens_out,
                model_calls=1,
            )
            self._run_scopes.spend(Amount.of_charge(charge))
        return settled

    def reserve_all(
        self, terms: CallTerms, prompts: Sequence[tuple[Message, ...]], *, tokens_out_max: int
    ) -> list[ReservedCall]:
        """Reserve every call of a batch, each with a whole reply of `tokens_out_max` tokens.

        If one is refused, raise its error and reserve none: half a batch would be paid for and
        then thrown away.
        """
        made: list[ReservedCall] = []
        with self._run_scopes.all_or_nothing():
            try:
                for messages in prompts:
                    made.append(
                        self.reserve(
                            terms,
                            messages,
                            tokens_out_max=tokens_out_max,
                            tokens_out_min=tokens_out_max,
                        )
                    )
            except BaseException:
                for reserved_call in made:
                    self._run_scopes.release(reserved_call.hold, wakes=False)
                raise
        return made

    def release(self, reserved_call: ReservedCall) -> None:
        """Give back the reservation of a call that was not sent. After a settlement, do nothing."""
        self._run_scopes.release(reserved_call.hold)

    def _settle(self, reserved_call: ReservedCall, outcome: Outcome) -> Settled:
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
        # A failed attempt is repeated under the same turn, so only a reply counts as one.
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


def _loop_time(ends_at: float) -> float | None:
    """Return a moment of the monotonic clock as one of the running loop's clock.

    None for infinity. A moment that has passed is now.
    """
    if ends_at == math.inf:
        return None
    return asyncio.get_running_loop().time() + max(0.0, ends_at - time.monotonic())


def _check_used_up(left: Remaining) -> None:
    """Raise `BudgetExhausted` if nothing is left of what the programs of a turn need."""
    for dimension in _LED_TO:
        figure = getattr(left, dimension)
        if figure is not None and figure <= 0:
            scope = left.by[dimension]
            raise BudgetExhausted(dimension=dimension, scope=scope, needed=1, left=max(0, figure))


def prompt_figure(terms: CallTerms, messages: tuple[Message, ...]) -> TokenFigure:
    """Return the most tokens that a prompt can have, and whether they were counted or bounded."""
    return input_bound(
        messages,
        dialect=terms.dialect,
        model=terms.model,
        size_of=picture_size,
        tokenizer=terms.tokenizer,
    )


def picture_size(image: Image) -> tuple[int, int] | None:
    """Return width and height, from its reference or else its bytes; None if neither says."""
    ref = image.ref
    if ref is not None and ref.width and ref.height:
        return ref.width, ref.height
    return image_size(image.data)


def _read(usage: ModelUsage) -> tuple[ModelUsage, UsageDetails | None]:
    """Return a usage report as it is charged, and the parts of its sums.

    The sums are computed again from the raw report, since some servers do not count reasoning as
    output. A known format that contradicts itself gives `IMPOSSIBLE`. An unknown format has no
    parts (None).
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
