"""Tables of prices, the user's own and published ones, and the terms on which a model is called.

A user's table is not trusted until it is parsed. A published price applies only to the address that
it was published for: a proxy, or a server of one's own, may charge another price for a model of the
same name.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

import msgspec

from tallystick.core.budget.billing import UsageDetails
from tallystick.core.budget.tree import WorstUsd
from tallystick.core.charge import ModelUsage
from tallystick.core.errors import UsageError
from tallystick.model.endpoint import Dialect, Endpoint
from tallystick.model.port import Model
from tallystick.model.prices import (
    FREE,
    YOCTO,
    Band,
    Price,
    PriceDecision,
    Rates,
    TokenUsage,
    UnknownPrice,
    cost,
    dearer,
    decide_price,
    token_usage,
    worst_case,
)
from tallystick.model.tokens import Tokenizer

_MTOK_KEYS = Rates.__struct_fields__
_KEYS = (*_MTOK_KEYS, "request", "bands")
# The dearest known model costs 600 dollars per million tokens; a dollar per token is a mistake.
_USD_MAX = 1_000_000
_MTOK = 1_000_000
_PLACES_MAX = 18
_MODELS_MAX, _BANDS_MAX = 1_000, 16
_PATTERN = re.compile(r"[^\s*\x00-\x1f\x7f]{1,200}\*?|\*")
_DECIMAL = re.compile(r"[0-9]{1,7}(\.[0-9]{1,18})?")


class PriceTable(msgspec.Struct, frozen=True, kw_only=True):
    """Prices by model names: whole names, or the beginning of a name followed by a star.

    A whole name wins over a beginning, a longer beginning over a shorter one. A name with its
    provider (openai:gpt-5-mini) wins over the same without (gpt-5-mini).
    """

    prices: Mapping[str, Price]

    @classmethod
    def of_user(cls, table: Mapping[str, object], *, where: str = "") -> PriceTable:
        """Read a table of dollars per million tokens: `prices."openai:gpt-5*".input = "1.25"`.

        A model that costs nothing may be `"free"`. `request` is dollars per call. `bands` is a list
        of at most 16 tables. Each has `above`, a number of tokens of input, and the prices that
        change beyond it. A number with a decimal point is read as the shortest decimal that equals
        it, which is the written one up to 15 digits; more digits need quotes. Raise `UsageError`,
        which names the field after `where`; also for more than 1,000 models.
        """
        if len(table) > _MODELS_MAX:
            raise UsageError(f"{where}prices: more than {_MODELS_MAX:,} models")
        prices = {}
        for name, given in table.items():
            if not _PATTERN.fullmatch(name):
                raise UsageError(
                    f"{where}prices: {name[:80]!r} is not a model's name, or the beginning of one "
                    f"followed by a star"
                )
            prices[name] = _declared_price(given, where=f'{where}prices."{name}"')
        return cls(prices=prices)

    def find(self, model: str) -> Price | None:
        """Return the price of a model by its full name, PROVIDER:MODEL; None if no name matches."""
        names = (model, model.partition(":")[2] or model)
        for name in names:
            if name in self.prices:
                return self.prices[name]
        begun = [
            (len(pattern), name == model, pattern)
            for name in names
            for pattern in self.prices
            if pattern.endswith("*") and name.startswith(pattern[:-1])
        ]
        return self.prices[max(begun)[2]] if begun else None


def _declared_price(given: object, *, where: str) -> Price:
    if given == FREE:
        return Price(source=f"declared in {where}", rates=_NOTHING, kind="declared")
    table = _table(given, where)
    for key in table:
        if key not in _KEYS:
            close = difflib.get_close_matches(str(key)[:80], _KEYS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(_KEYS)}"
            raise UsageError(f"{where}: {str(key)[:80]!r} is not a price; {hint}")
    base = _mtok(table, where)
    for key in ("input", "output"):
        if key not in base:
            raise UsageError(f"{where}.{key} is missing; a model that costs nothing says 0")
    request = _usd(table["request"], f"{where}.request") if "request" in table else Fraction(0)
    return Price(
        source=f"declared in {where}",
        rates=Rates.of(**base),
        bands=_bands(table.get("bands", []), base, f"{where}.bands"),
        request=_yocto(request),
        kind="declared",
    )


def _bands(given: object, base: Mapping[str, int], where: str) -> tuple[Band, ...]:
    if not isinstance(given, list) or len(given) > _BANDS_MAX:
        raise UsageError(f"{where}: must be a list of at most {_BANDS_MAX} tables")
    bands: list[Band] = []
    for number, each in enumerate(given):
        at = f"{where}[{number}]"
        table = _table(each, at)
        above, low = table.get("above"), bands[-1].above + 1 if bands else 1
        if isinstance(above, bool) or not isinstance(above, int) or not low <= above <= 10**9:
            raise UsageError(f"{at}.above: must be a whole number from {low:,} to 1,000,000,000")
        for key in table:
            if key not in (*_MTOK_KEYS, "above"):
                raise UsageError(f"{at}: {str(key)[:80]!r} is not a price of a band")
        # A price that a band leaves out is the same as before the band.
        base = {**base, **_mtok(table, at)}
        bands.append(Band(above=above, rates=Rates.of(**base)))
    return tuple(bands)


def _mtok(table: Mapping[str, object], where: str) -> dict[str, int]:
    given = {key: _usd(table[key], f"{where}.{key}") for key in _MTOK_KEYS if key in table}
    return {key: _yocto(usd / _MTOK) for key, usd in given.items()}


def _yocto(usd: Fraction) -> int:
    """Return dollars as whole yocto-dollars. Raise `ValueError` for a finer price."""
    found = usd * YOCTO
    if found.denominator != 1:
        raise ValueError(f"a price of more than {_PLACES_MAX} decimals")
    return found.numerator


def _table(given: object, where: str) -> Mapping[str, object]:
    if not isinstance(given, Mapping):
        raise UsageError(
            f'{where}: must be a table of prices in dollars for a million tokens, or "{FREE}"'
        )
    return given


def _usd(given: object, where: str) -> Fraction:
    """Return a price as it was written; of a float, the shortest decimal that equals it.

    Raise `UsageError` if it is out of range or has too many decimals.
    """
    wrong = f"{where}: must be dollars, from 0 to {_USD_MAX:,} with at most {_PLACES_MAX} decimals"
    if isinstance(given, bool) or not isinstance(given, int | float | str | Decimal):
        raise UsageError(wrong)
    if isinstance(given, str) and not _DECIMAL.fullmatch(given):
        raise UsageError(wrong)
    if isinstance(given, int) and not 0 <= given <= _USD_MAX:
        raise UsageError(wrong)
    try:
        value = Decimal(repr(given) if isinstance(given, float) else given)
    except InvalidOperation:
        raise UsageError(wrong) from None
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or exponent < -_PLACES_MAX or not 0 <= value <= _USD_MAX:
        raise UsageError(wrong)
    return Fraction(value)


# These models call no server, so no bill is possible. A server on this machine is not among them,
# because it may be a proxy to one that charges.
_IN_PROCESS = ("gguf", "recorded", "scripted")
_NOTHING = Rates.of(input=0, output=0)


def find_price(
    model: str, *, declared: PriceTable, base_url: str | None, at: datetime
) -> Price | UnknownPrice:
    """Return the price of PROVIDER:MODEL at that time, or that it is unknown and why.

    A declared price has priority. `base_url` is where the model is asked, None if it has no
    address: then a model of this process is free, and any other is unknown.
    """
    found = declared.find(model)
    if found is not None:
        return found
    kind = model.partition(":")[0]
    if base_url is None and kind in _IN_PROCESS:
        return Price(source=f"free: {kind} asks no server", kind="in_process", rates=_NOTHING)
    if base_url is None:
        return UnknownPrice(model=model, reason="no table has it")
    return published_price(model, base_url=base_url, at=at)


# -- genai-prices -------------------------------------------------------------------------------

_RATES = {
    "input_mtok": "input",
    "output_mtok": "output",
    "cache_read_mtok": "cache_read",
    "cache_write_mtok": "cache_write",
    "cache_write_1h_mtok": "cache_write_hour",
    "input_image_mtok": "image",
    "output_reasoning_mtok": "reasoning",
}
_REQUEST = "requests_kcount"
# Units that are never requested here, so their prices do not matter: the server's tools, audio,
# video, and pictures as output. Cached pictures cost no more than others.
_NEVER = re.compile(r"(web|storage)_searches_|.*(audio|video)_|output_image_|cache_image_read_")
# Prices change at midnight and with the time of day. An attempt may begin before a change and end
# after it, so both prices are looked up and the dearer one counts.
_ATTEMPT = timedelta(hours=1)


def published_price(model: str, *, base_url: str, at: datetime) -> Price | UnknownPrice:
    """Return the price of a model at that address from genai-prices, with its built-in data.

    It is the dearer one of the prices at the time and an hour later. Return `UnknownPrice` if the
    extra is not installed, does not have the model, or has a price that cannot be bounded.
    """
    if importlib.util.find_spec("genai_prices") is None:
        return UnknownPrice(
            model=model, reason="no table has it; pip install 'tallystick[prices]' brings one"
        )
    # Whole minutes, so that the cache below works: prices change on a whole minute, and a turn
    # looks one up several times.
    minute = at.replace(second=0, microsecond=0)
    genai: Any = importlib.import_module("genai_prices")
    return _look_up(genai.calc_price, model, base_url=base_url, at=minute)


@functools.lru_cache(maxsize=256)
def _look_up(
    calculate: Callable[..., Any], model: str, *, base_url: str, at: datetime
) -> Price | UnknownPrice:
    name = model.partition(":")[2] or model
    genai: Any = importlib.import_module("genai_prices")
    try:
        found = [
            calculate(genai.Usage(), name, provider_api_url=base_url, genai_request_timestamp=when)
            for when in (at, at + _ATTEMPT)
        ]
        source = f"{found[0].provider.id}/{found[0].model.id} in genai-prices {genai.__version__}"
        now, later = (_convert_price(each.model_price.__dict__, source) for each in found)
    except LookupError:
        return UnknownPrice(model=model, reason="neither a table nor genai-prices has it")
    except (ArithmeticError, TypeError, ValueError) as error:
        return UnknownPrice(model=model, reason=f"genai-prices has no usable one: {error}")
    return dearer(now, later)


def _convert_price(units: Mapping[str, Any], source: str) -> Price:
    """Return a published price.

    Raise `ValueError` if it has units that cannot be bounded, none for input or output, or a price
    that is no decimal of at least zero or too fine (`_yocto`).
    """
    known = {key: value for key, value in units.items() if value is not None}
    strange = [key for key in known if key not in (*_RATES, _REQUEST) and not _NEVER.match(key)]
    if strange or not {"input_mtok", "output_mtok"} <= known.keys():
        raise ValueError(f"it prices {', '.join(strange or known) or 'nothing'}")
    steps = sorted({tier.start for value in known.values() for tier in getattr(value, "tiers", ())})
    rates = {step: _rates_at(known, step) for step in (-1, *steps)}
    return Price(
        source=source,
        kind="published",
        rates=rates[-1],
        bands=tuple(Band(above=step, rates=rates[step]) for step in steps),
        request=_yocto(_unit_price(known[_REQUEST], -1) / 1_000) if _REQUEST in known else 0,
    )


def _rates_at(units: Mapping[str, Any], step: int) -> Rates:
    named = {name: units[key] for key, name in _RATES.items() if key in units}
    return Rates.of(
        **{name: _yocto(_unit_price(unit, step) / _MTOK) for name, unit in named.items()}
    )


def _unit_price(value: Any, step: int) -> Fraction:  # noqa: ANN401  (a decimal, or one with tiers)
    """Return the price of a unit in a request with just more input than `step`.

    Raise `ValueError` if it is not a finite decimal of at least zero.
    """
    price = getattr(value, "base", value)
    for tier in getattr(value, "tiers", ()):
        if tier.start <= step:
            price = tier.price
    if not isinstance(price, Decimal) or not price.is_finite() or price < 0:
        raise ValueError(f"{price!r} is not a price")
    return Fraction(price)


_NO_TABLE = PriceTable(prices={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricing:
    """The sources of prices, and whether calls without a price are allowed.

    `tokenizer` is that of the model named `tokenizer_of` only. Its prompts are counted, not
    bounded.
    """

    declared: PriceTable = _NO_TABLE
    waived: bool = False
    tokenizer: Tokenizer | None = None
    tokenizer_of: str = ""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def terms(self, model: Model, *, usd_capped: bool) -> CallTerms:
        """Return the terms on which a model is called. The price is looked up for the present time.

        `usd_capped` is True if a limit in dollars applies. Nothing is raised for an unknown price.
        """
        endpoint = getattr(model, "endpoint", None)
        base_url = endpoint.base_url if isinstance(endpoint, Endpoint) else None
        found = find_price(model.name, declared=self.declared, base_url=base_url, at=self.now())
        if isinstance(found, UnknownPrice) and isinstance(endpoint, Endpoint):
            found = msgspec.structs.replace(
                found, local=endpoint.is_loopback or endpoint.provider == "ollama"
            )
        decision = decide_price(found, usd_capped=usd_capped, waived=self.waived)
        return CallTerms(
            model=model.name,
            dialect=endpoint.dialect if isinstance(endpoint, Endpoint) else "openai",
            decision=decision,
            in_process=getattr(found, "kind", "") == "in_process",
            tokenizer=self.tokenizer if model.name == self.tokenizer_of else None,
        )


class CallTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms on which a model's calls are counted and priced."""

    model: str
    dialect: Dialect
    decision: PriceDecision
    in_process: bool
    tokenizer: Tokenizer | None = None

    @property
    def worst(self) -> WorstUsd | None:
        """A function that returns the worst-case cost of tokens in and out; None if unpriced."""
        price = self.decision.price
        if price is None:
            return None
        return lambda tokens_in, tokens_out: worst_case(
            price, input_bound=tokens_in, output_cap=tokens_out
        )

    def priced(self, usage: ModelUsage, details: UsageDetails | None) -> int | None:
        """Return the cost of a usage report in nano-dollars; None if no price is known.

        A report that is not usable, such as one of an unknown format, counts as the plain input and
        output of `usage`. `details` is not needed here.
        """
        price = self.decision.price
        if price is None:
            return None
        found = token_usage(usage.raw)
        if not isinstance(found, TokenUsage):
            # The report has no known format, so it has no parts with prices of their own.
            found = TokenUsage(input=usage.tokens_in, output=usage.tokens_out)
        return cost(price, found)
