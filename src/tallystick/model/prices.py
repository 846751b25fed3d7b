"""What calls used and cost, exactly: whole nano-dollars, rounded up once.

Rule 1: no floating point. A price is the decimal that its table says, with up to 18 decimals in
dollars for a million tokens. So the price of one token is a whole number of yocto-dollars, and
sums of them are whole numbers; fractions would do as well, and take several times as long.
Rule 2: an unknown price is `UnknownPrice`, which cannot be added up, and never zero.
Rule 3: what a table leaves open is priced at the dearest it can mean. A band is the price of the
whole request once its input passes the threshold, as OpenAI, Anthropic and Google bill and as
genai-prices has it. Where only the part above the threshold costs more, that is less.
Rule 4: `cost(price, usage) <= worst_case(price, input_bound=i, output_cap=o)` for any usage of at
most i tokens of input and o of output, whatever was cached, written or thought.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

# What a server says it used, in one shape for both formats, or why that cannot be believed.
#
# The formats differ in what includes what. OpenAI's prompt_tokens hold the cached ones and those
# written to the cache, and its completion_tokens the reasoning. Anthropic's input_tokens hold
# neither of the first two; its output_tokens hold the thinking. Here `input` is everything that was
# read and `output` everything that was made, and the other counts are parts of them.
#
# A report that contradicts itself is no report: who pays then settles at what was reserved.


# No context is a hundredth of this; a count beyond it is a mistake.
TOKENS_MAX = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """Tokens of one reply. `input` holds the next four, `output` holds `reasoning`.

    `cache_write` holds `cache_write_hour`, what was written to be kept for an hour. A picture may
    have been read from the cache: `image` overlaps with the others.
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
        """What cannot be, or nothing."""
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
    """There is no usable report. `reason` is for the receipt."""

    reason: str


class _Unusable(Exception):
    """A count that is none."""


def token_usage(raw: Mapping[str, object]) -> TokenUsage | Unreported:
    """Read a report as it came. Which format it has is told from its names."""
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
    prompt, completion = _required(raw, "prompt_tokens"), _required(raw, "completion_tokens")
    reasoning = _count(made, "reasoning_tokens")
    total = raw.get("total_tokens")
    # xAI counts reasoning beside the completion, and only its total shows that.
    apart = reasoning > completion or (reasoning > 0 and total == prompt + completion + reasoning)
    output = completion + reasoning if apart else completion
    if isinstance(total, int) and total > prompt + output:
        # Gemini counts its thoughts in the total alone. What a total holds beyond its parts was
        # made, or the parts are too low. Either way it is charged as output, the dearer kind.
        output = _count(raw, "total_tokens") - prompt
    return TokenUsage(
        input=prompt,
        output=output,
        cache_read=_first(
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
    fresh = _required(raw, "input_tokens")
    cache_read = _count(raw, "cache_read_input_tokens")
    cache_write = _count(raw, "cache_creation_input_tokens")
    return TokenUsage(
        input=fresh + cache_read + cache_write,
        output=_required(raw, "output_tokens"),
        cache_read=cache_read,
        cache_write=cache_write,
        cache_write_hour=_count(_part(raw, "cache_creation"), "ephemeral_1h_input_tokens"),
        reasoning=_count(_part(raw, "output_tokens_details"), "thinking_tokens"),
    )


def _first(*counts: int) -> int:
    return next((count for count in counts if count), 0)


def _part(raw: Mapping[str, object], name: str) -> Mapping[str, object]:
    part = raw.get(name)
    if part is None:
        return {}
    if not isinstance(part, Mapping):
        raise _Unusable(f"{name} is not a table")
    return part


def _required(raw: Mapping[str, object], name: str) -> int:
    if raw.get(name) is None:
        raise _Unusable(f"{name} is missing")
    return _count(raw, name)


def _count(raw: Mapping[str, object], name: str) -> int:
    """A count, or 0 where there is none. A part that is left out is priced as the whole is."""
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


# What calls cost, exactly: whole nano-dollars, rounded up once from sums that are whole too.


# Nano-dollars and yocto-dollars in a dollar.
NANO = 10**9
YOCTO = 10**24
_YOCTO_IN_NANO = YOCTO // NANO

# published: in a price list; declared: the user wrote it down; in_process: the model asks nobody.
PriceKind = Literal["published", "declared", "in_process"]


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Yocto-dollars for one token of each kind. What is not priced apart costs what its whole does.

    A token is of one kind: `input` is for what was neither read from a cache nor written to one.
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
        read = (self.input, self.cache_read, self.image)
        return max(*read, self.cache_write, self.cache_write_hour)

    @property
    def dearest_output(self) -> int:
        return max(self.output, self.reasoning)


class Band(msgspec.Struct, frozen=True, kw_only=True):
    """The rates of a request with more input than `above` tokens."""

    above: int
    rates: Rates


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What a model costs, and where that is written. `request` is yocto-dollars for each call."""

    source: str
    kind: PriceKind
    rates: Rates
    bands: tuple[Band, ...] = ()
    request: int = 0

    def rates_at(self, tokens_in: int) -> Rates:
        found = self.rates
        for band in self.bands:
            if tokens_in > band.above:
                found = band.rates
        return found

    def rates_up_to(self, tokens_in: int) -> tuple[Rates, ...]:
        """Every rate that a request of at most so much input can have."""
        return (self.rates, *(band.rates for band in self.bands if band.above < tokens_in))


class UnknownPrice(msgspec.Struct, frozen=True, kw_only=True):
    """Nobody has said what this model costs. `reason` is one clause.

    `local` says that the server is on this machine, where most servers are free.
    """

    model: str
    reason: str
    local: bool = False


# -- arithmetic ---------------------------------------------------------------------------------


def cost(price: Price, usage: TokenUsage) -> int:
    """What a reply cost, in nano-dollars, rounded up once."""
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
    """The most that a call can cost: in the dearest band, each token of the dearest kind."""
    reached = price.rates_up_to(input_bound)
    each_in = max(rates.dearest_input for rates in reached)
    each_out = max(rates.dearest_output for rates in reached)
    return _nano(price.request + input_bound * each_in + output_cap * each_out)


def _nano(yocto: int) -> int:
    return -(-yocto // _YOCTO_IN_NANO)


def dearer(one: Price, other: Price) -> Price:
    """A price that is at least both, at every size of input."""
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


# -- what is done where no price is known --------------------------------------------------------

# In a table of prices, in the place of figures.
FREE = "free"
_UNKNOWN = "No price is known for"

# The kind of the price if there is one. Else waived: the user lets it run without; unknown: there
# is no cap in dollars that needs one; refuse: there is.
PricePolicy = Literal["published", "declared", "in_process", "waived", "unknown", "refuse"]


class PriceDecision(msgspec.Struct, frozen=True, kw_only=True):
    """How a model's calls are priced. `why` is one sentence, for the receipt."""

    policy: PricePolicy
    price: Price | None
    why: str


def decided(found: Price | UnknownPrice, *, usd_capped: bool, waived: bool) -> PriceDecision:
    """Say which policy applies. A waiver has no effect where there is a price."""
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
    """Say which line of the configuration gives the model a price."""
    provider, colon, _ = found.model.partition(":")
    if found.local and colon:
        line = f'prices."{provider}:*" = "{FREE}"'
        return f"if the server costs nothing, put this line first in config.toml: {line}"
    return (
        f'declare input and output in [prices."{found.model}"] of config.toml, in dollars for a '
        f'million tokens, or, if it costs nothing, prices."{found.model}" = "{FREE}"'
    )


def is_unpriced(detail: str) -> bool:
    """Whether a run ended with this detail because the price of its model is not known."""
    return detail.removeprefix("usd: ").startswith(_UNKNOWN)
