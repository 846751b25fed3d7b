"""Compute exactly what calls used and cost: whole nano-dollars, rounded up once.

Rule 1: no floating point. A price is the decimal that its table says, with up to 18 decimals in
dollars per million tokens. So the price of one token is a whole number of yocto-dollars, and sums
of them are whole numbers. Fractions would give the same, and take several times as long.
Rule 2: an unknown price is `UnknownPrice`, which cannot be added up, and never zero.
Rule 3: an ambiguous table is read as its highest possible price. A band is the price of the whole
request once its input passes the threshold, as OpenAI, Anthropic and Google bill and as
genai-prices has it. If only the part above the threshold costs more, that is less.
Rule 4: `cost(price, usage) <= worst_case(price, input_bound=i, output_cap=o)` for any usage of at
most i tokens of input and o of output, however many were cached, written or used for reasoning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

# Usage as a server reports it, in one shape for both formats, or why the report is not usable.
#
# The formats differ in what includes what. OpenAI's prompt_tokens include the cached ones and those
# written to the cache, and its completion_tokens the reasoning. Anthropic's input_tokens include
# neither of the first two; its output_tokens include the thinking. Here `input` is everything that
# was read and `output` everything that was generated; the other counts are parts of them.
#
# A report that contradicts itself counts as none: the call is settled at its reservation.


# The longest context is less than a hundredth of this; a higher count is a mistake.
TOKENS_MAX = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """The tokens of one reply. `input` includes the next four, `output` includes `reasoning`.

    `cache_write` includes `cache_write_hour`, the tokens to be cached for an hour. A picture may
    have been read from the cache: `image` overlaps with the others. Raise `ValueError` if a part is
    larger than its whole.
    """

    input: int
    output: int
    cache_read: int = 0
    cache_write: int = 0
    cache_write_hour: int = 0
    image: int = 0
    reasoning: int = 0

    def __post_init__(self) -> None:
        reason = self._contradiction()
        if reason:
            raise ValueError(reason)

    def _contradiction(self) -> str:
        """Return which part is larger than its whole; "" if none is."""
        parts = (
            ("cache_read + cache_write", self.cache_read + self.cache_write, "input", self.input),
            ("cache_write_hour", self.cache_write_hour, "cache_write", self.cache_write),
            ("image", self.image, "input", self.input),
            ("reasoning", self.reasoning, "output", self.output),
        )
        for part, tokens, whole, most in parts:
            if tokens > most:
                return f"{part} of {tokens:,} in {whole} of {most:,}"
        return ""


class Unreported(msgspec.Struct, frozen=True, kw_only=True):
    """A report that is missing or not usable. `reason` is for the receipt."""

    reason: str


class _Unusable(Exception):
    """A count that is not valid."""


def token_usage(raw: Mapping[str, object]) -> TokenUsage | Unreported:
    """Read a report as it came; its field names decide which format it has.

    Return `Unreported` if there is none, if a count is missing or not valid, if it contradicts
    itself, or if it counts no input.
    """
    try:
        if "prompt_tokens" in raw:
            usage = _openai(raw)
        elif "input_tokens" in raw:
            usage = _anthropic(raw)
        else:
            return Unreported(reason="no usage was reported" if not raw else "no count of input")
    except _Unusable as error:
        return Unreported(reason=str(error))
    except ValueError as error:
        return Unreported(reason=f"the report contradicts itself: {error}")
    if not usage.input:
        return Unreported(reason="a prompt of no tokens was reported")
    return usage


def _openai(raw: Mapping[str, object]) -> TokenUsage:
    read = _part(raw, "prompt_tokens_details")
    made = _part(raw, "completion_tokens_details")
    prompt, completion = (
        _required_count(raw, "prompt_tokens"),
        _required_count(raw, "completion_tokens"),
    )
    reasoning = _count(made, "reasoning_tokens")
    total = raw.get("total_tokens")
    # xAI counts reasoning outside of the completion, and only its total shows that.
    apart = reasoning > completion or (reasoning > 0 and total == prompt + completion + reasoning)
    output = completion + reasoning if apart else completion
    if isinstance(total, int) and total > prompt + output:
        # Gemini counts its reasoning in the total alone. A total above its parts means that more
        # was generated, or that the parts are too low. Either way the rest is charged as output,
        # the dearer kind.
        output = _count(raw, "total_tokens") - prompt
    return TokenUsage(
        input=prompt,
        output=output,
        cache_read=_first_nonzero(
            # OpenAI and most others; DeepSeek; Moonshot.
            _count(read, "cached_tokens"),
            _count(raw, "prompt_cache_hit_tokens"),
            _count(raw, "cached_tokens"),
        ),
        cache_write=_count(read, "cache_write_tokens"),
        image=_count(read, "image_tokens"),
        reasoning=reasoning,
    )


def _anthropic(raw: Mapping[str, object]) -> TokenUsage:
    fresh = _required_count(raw, "input_tokens")
    cache_read = _count(raw, "cache_read_input_tokens")
    cache_write = _count(raw, "cache_creation_input_tokens")
    return TokenUsage(
        input=fresh + cache_read + cache_write,
        output=_required_count(raw, "output_tokens"),
        cache_read=cache_read,
        cache_write=cache_write,
        cache_write_hour=_count(_part(raw, "cache_creation"), "ephemeral_1h_input_tokens"),
        reasoning=_count(_part(raw, "output_tokens_details"), "thinking_tokens"),
    )


def _first_nonzero(*counts: int) -> int:
    return next((count for count in counts if count), 0)


def _part(raw: Mapping[str, object], name: str) -> Mapping[str, object]:
    part = raw.get(name)
    if part is None:
        return {}
    if not isinstance(part, Mapping):
        raise _Unusable(f"{name} is not a table")
    return part


def _required_count(raw: Mapping[str, object], name: str) -> int:
    if raw.get(name) is None:
        raise _Unusable(f"{name} is missing")
    return _count(raw, name)


def _count(raw: Mapping[str, object], name: str) -> int:
    """Return a count, or 0 if it is missing: a part without a count is priced like its whole.

    Raise `_Unusable` if it is not a whole number from 0 to `TOKENS_MAX`.
    """
    value = raw.get(name)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int):
        raise _Unusable(f"{name} is not a whole number")
    if value < 0:
        raise _Unusable(f"{name} is negative")
    if value > TOKENS_MAX:
        raise _Unusable(f"{name} is more than {TOKENS_MAX:,}")
    return value


# Nano-dollars and yocto-dollars in a dollar.
NANO = 10**9
YOCTO = 10**24
_YOCTO_IN_NANO = YOCTO // NANO

# published: from a price list; declared: by the user; in_process: the model asks no server.
PriceKind = Literal["published", "declared", "in_process"]


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Yocto-dollars per token of each kind. A kind without a price costs what its whole does.

    Each token is of one kind: `input` is for those neither read from a cache nor written to one.
    """

    input: int
    output: int
    cache_read: int
    cache_write: int
    cache_write_hour: int
    image: int
    reasoning: int

    @classmethod
    def of(
        cls,
        *,
        input: int,
        output: int,
        cache_read: int | None = None,
        cache_write: int | None = None,
        cache_write_hour: int | None = None,
        image: int | None = None,
        reasoning: int | None = None,
    ) -> Rates:
        """Return rates in which missing prices are those of the kind that includes them."""
        written = input if cache_write is None else cache_write
        return cls(
            input=input,
            output=output,
            cache_read=input if cache_read is None else cache_read,
            cache_write=written,
            cache_write_hour=written if cache_write_hour is None else cache_write_hour,
            image=input if image is None else image,
            reasoning=output if reasoning is None else reasoning,
        )

    @property
    def dearest_input(self) -> int:
        """The highest rate that a token of input can have."""
        read = (self.input, self.cache_read, self.image)
        return max(*read, self.cache_write, self.cache_write_hour)

    @property
    def dearest_output(self) -> int:
        """The highest rate that a token of output can have."""
        return max(self.output, self.reasoning)


class Band(msgspec.Struct, frozen=True, kw_only=True):
    """The rates of a request with more input than `above` tokens."""

    above: int
    rates: Rates


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """The price of a model, and its source. `request` is yocto-dollars per call."""

    source: str
    kind: PriceKind
    rates: Rates
    bands: tuple[Band, ...] = ()
    request: int = 0

    def rates_at(self, tokens_in: int) -> Rates:
        """Return the rates of a request with so many tokens of input: those of its band."""
        found = self.rates
        for band in self.bands:
            if tokens_in > band.above:
                found = band.rates
        return found

    def rates_up_to(self, tokens_in: int) -> tuple[Rates, ...]:
        """Return every rate that a request with at most this many tokens of input can have."""
        return (self.rates, *(band.rates for band in self.bands if band.above < tokens_in))


class UnknownPrice(msgspec.Struct, frozen=True, kw_only=True):
    """The price of this model is unknown. `reason` is one clause.

    `local` is True if the server is on this machine, where most servers are free.
    """

    model: str
    reason: str
    local: bool = False


# -- arithmetic ---------------------------------------------------------------------------------


def cost(price: Price, usage: TokenUsage) -> int:
    """Return what a reply cost, in nano-dollars, rounded up once.

    Where a report is ambiguous, it is read as the dearer of its meanings.
    """
    rates = price.rates_at(usage.input)
    kept = usage.cache_read + usage.cache_write
    fresh = usage.input - kept
    # A report does not say which pictures came from the cache. The dearer reading is taken.
    dear = rates.image > rates.input
    pictures = min(usage.image, fresh) if dear else max(0, usage.image - kept)
    return _nano(
        price.request
        + (fresh - pictures) * rates.input
        + pictures * rates.image
        + usage.cache_read * rates.cache_read
        + (usage.cache_write - usage.cache_write_hour) * rates.cache_write
        + usage.cache_write_hour * rates.cache_write_hour
        + (usage.output - usage.reasoning) * rates.output
        + usage.reasoning * rates.reasoning
    )


def worst_case(price: Price, *, input_bound: int, output_cap: int) -> int:
    """Return the most that a call can cost, in nano-dollars.

    Every token counts as the dearest kind in the dearest band that the input can reach.
    """
    reached = price.rates_up_to(input_bound)
    each_in = max(rates.dearest_input for rates in reached)
    each_out = max(rates.dearest_output for rates in reached)
    return _nano(price.request + input_bound * each_in + output_cap * each_out)


def _nano(yocto: int) -> int:
    return -(-yocto // _YOCTO_IN_NANO)


def dearer(one: Price, other: Price) -> Price:
    """Return a price that is at least as high as both, for every size of input.

    Its source and kind are those of `one`.
    """
    steps = sorted({band.above for price in (one, other) for band in price.bands})
    return msgspec.structs.replace(
        one,
        rates=_dearest(one.rates, other.rates),
        bands=tuple(
            Band(above=above, rates=_dearest(one.rates_at(above + 1), other.rates_at(above + 1)))
            for above in steps
        ),
        request=max(one.request, other.request),
    )


def _dearest(one: Rates, other: Rates) -> Rates:
    names = Rates.__struct_fields__
    return Rates(**{name: max(getattr(one, name), getattr(other, name)) for name in names})


# -- calls without a known price -----------------------------------------------------------------

# A value in a table of prices, instead of figures.
FREE = "free"
_UNKNOWN = "No price is known for"

# The kind of the price if there is one. Otherwise waived: the user allowed the call without one;
# unknown: no limit in dollars needs one; refuse: a limit in dollars does.
PricePolicy = Literal["published", "declared", "in_process", "waived", "unknown", "refuse"]


class PriceDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The decision how a model's calls are priced. `why` is one sentence, for the receipt."""

    policy: PricePolicy
    price: Price | None
    why: str


def decide_price(found: Price | UnknownPrice, *, usd_capped: bool, waived: bool) -> PriceDecision:
    """Return the policy that applies. A waiver has no effect if there is a price.

    Without a price and a waiver, the policy is `refuse` if `usd_capped`, else `unknown`.
    """
    if isinstance(found, Price):
        return PriceDecision(policy=found.kind, price=found, why=f"Priced as {found.source}.")
    unknown = f"{_UNKNOWN} {found.model} ({found.reason})"
    if waived:
        return PriceDecision(
            policy="waived", price=None, why=f"{unknown}, and that was waived: no cap counts it."
        )
    if not usd_capped:
        return PriceDecision(
            policy="unknown", price=None, why=f"{unknown}, so its cost is not in any sum."
        )
    return PriceDecision(
        policy="refuse",
        price=None,
        why=f"{unknown}, and a cap in dollars is set: {_how_to_declare(found)}, or let its calls "
        f"through uncounted with --allow-unpriced.",
    )


def _how_to_declare(found: UnknownPrice) -> str:
    """Return which line of the configuration gives the model a price."""
    provider, colon, _ = found.model.partition(":")
    if found.local and colon:
        line = f'prices."{provider}:*" = "{FREE}"'
        return f"if the server costs nothing, put this line first in config.toml: {line}"
    return (
        f'declare input and output in [prices."{found.model}"] of config.toml, in dollars for a '
        f'million tokens, or, if it costs nothing, prices."{found.model}" = "{FREE}"'
    )


def is_unpriced(detail: str) -> bool:
    """Return True if a run ended with this detail because the price of its model is unknown."""
    return detail.removeprefix("usd: ").startswith(_UNKNOWN)
