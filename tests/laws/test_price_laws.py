"""Laws of prices, over generated tables and reports."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from tallystick.model.price_table import PriceTable
from tallystick.model.prices import (
    NANO,
    Price,
    TokenUsage,
    cost,
    dearer,
    worst_case,
)

PARTS = ("cache_read", "cache_write", "cache_write_hour", "image", "reasoning")
tokens = st.integers(0, 3_000)
# Decimals as people and price lists write them, thirds of a cent among them.
usd = st.one_of(
    st.decimals(0, 700, places=4).map(lambda value: f"{value:f}"),
    st.sampled_from(["0", "1.25", "0.0833333333333333", "0.041666666666666664"]),
)
rates = st.fixed_dictionaries({}, optional={key: usd for key in ("input", "output", *PARTS)})
steps = st.lists(st.integers(1, 2_500), unique=True, max_size=3).map(sorted)


@st.composite
def written(draw: st.DrawFn) -> dict[str, Any]:
    """A table as a user writes it: what is left out, bands that are cheaper, everything."""
    table: dict[str, Any] = {"input": draw(usd), "output": draw(usd), **draw(rates)}
    table["bands"] = [{**draw(rates), "above": above} for above in draw(steps)]
    return {**table, "request": draw(usd)} if draw(st.booleans()) else table


def read(table: dict[str, Any]) -> Price:
    found = PriceTable.of_user({"m": table}).find("m")
    assert found is not None
    return found


prices = written().map(read)


@st.composite
def usages(draw: st.DrawFn) -> TokenUsage:
    input_, output = draw(tokens), draw(tokens)
    cache_read = draw(st.integers(0, input_))
    cache_write = draw(st.integers(0, input_ - cache_read))
    return TokenUsage(
        input=input_,
        output=output,
        cache_read=cache_read,
        cache_write=cache_write,
        cache_write_hour=draw(st.integers(0, cache_write)),
        image=draw(st.integers(0, input_)),
        reasoning=draw(st.integers(0, output)),
    )


def oracle(table: dict[str, Any], usage: TokenUsage) -> int:
    """The cost in dollars from the table's own text, token by token of each kind."""
    said = {key: table[key] for key in table if key not in ("bands", "request")}
    for band in table["bands"]:
        if usage.input > band["above"]:
            said.update({key: band[key] for key in band if key != "above"})
    whole = {"cache_read": "input", "cache_write": "input", "cache_write_hour": "cache_write"}
    whole |= {"image": "input", "reasoning": "output"}

    def of(kind: str) -> Fraction:
        return Fraction(said[kind]) if kind in said else of(whole[kind])

    fresh = usage.input - usage.cache_read - usage.cache_write
    cached_pictures = range(
        max(0, usage.image - fresh), min(usage.image, usage.cache_read + usage.cache_write) + 1
    )
    # Whichever number of the pictures came from the cache makes it dearest.
    fresh_input = max(
        (usage.image - cached) * of("image") + (fresh - usage.image + cached) * of("input")
        for cached in (cached_pictures.start, cached_pictures.stop - 1)
    )
    dollars = Fraction(table.get("request", 0)) + (
        fresh_input
        + usage.cache_read * of("cache_read")
        + (usage.cache_write - usage.cache_write_hour) * of("cache_write")
        + usage.cache_write_hour * of("cache_write_hour")
        + (usage.output - usage.reasoning) * of("output")
        + usage.reasoning * of("reasoning")
    ) / Fraction(10**6)
    return math.ceil(dollars * NANO)


@given(table=written(), usage=usages())
def test_a_cost_is_what_the_tables_text_says_rounded_up_to_a_nano_dollar(
    table: dict[str, Any], usage: TokenUsage
) -> None:
    assert cost(read(table), usage) == oracle(table, usage)


@given(price=prices, usage=usages(), more_in=tokens, more_out=tokens)
def test_no_usage_within_the_bounds_costs_more_than_the_worst_case(
    price: Price, usage: TokenUsage, more_in: int, more_out: int
) -> None:
    input_bound, output_cap = usage.input + more_in, usage.output + more_out

    assert cost(price, usage) <= worst_case(price, input_bound=input_bound, output_cap=output_cap)


@given(price=prices, usage=usages())
def test_the_worst_case_of_one_band_is_reached_by_some_usage(
    price: Price, usage: TokenUsage
) -> None:
    assume(not price.bands and usage.input and usage.output)
    input_, output = usage.input, usage.output
    parts = [{}, {"image": input_}, {"cache_read": input_}, {"cache_write": input_}]
    parts.append({"cache_write": input_, "cache_write_hour": input_})

    costs = [
        cost(price, TokenUsage(input=input_, output=output, reasoning=thought, **part))
        for part in parts
        for thought in (0, output)
    ]

    assert max(costs) == worst_case(price, input_bound=input_, output_cap=output)


@given(price=prices, low_in=tokens, more_in=tokens, low_out=tokens, more_out=tokens)
def test_a_worst_case_never_falls_with_more_input_or_more_output(
    price: Price, low_in: int, more_in: int, low_out: int, more_out: int
) -> None:
    less = worst_case(price, input_bound=low_in, output_cap=low_out)

    assert less <= worst_case(price, input_bound=low_in + more_in, output_cap=low_out)
    assert less <= worst_case(price, input_bound=low_in, output_cap=low_out + more_out)


@given(price=prices, usage=usages(), more=tokens)
def test_more_output_never_costs_less(price: Price, usage: TokenUsage, more: int) -> None:
    grown = dataclasses.replace(usage, output=usage.output + more)

    assert cost(price, usage) <= cost(price, grown)


@given(one=prices, other=prices, usage=usages())
def test_the_dearer_of_two_prices_is_at_least_both(
    one: Price, other: Price, usage: TokenUsage
) -> None:
    assert cost(dearer(one, other), usage) >= max(cost(one, usage), cost(other, usage))
