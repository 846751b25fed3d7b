"""Prices: tables that are read to the digit, bands, and what is done where no price is known."""

from __future__ import annotations

import importlib.util
import itertools
import tomllib
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, get_args

import pytest

from tallystick.core.errors import UsageError
from tallystick.model.endpoint import Endpoint
from tallystick.model.price_table import PriceTable, Pricing, find_price, published_price
from tallystick.model.prices import (
    NANO,
    YOCTO,
    Price,
    PriceDecision,
    PriceKind,
    PricePolicy,
    TokenUsage,
    UnknownPrice,
    cost,
    decide_price,
    token_usage,
    worst_case,
)

needs_genai = pytest.mark.skipif(
    importlib.util.find_spec("genai_prices") is None, reason="needs the extra prices (genai-prices)"
)
AT = datetime(2026, 10, 20, 12, tzinfo=UTC)
OPENAI, ANTHROPIC = "https://api.openai.com/v1", "https://api.anthropic.com"
# As claude-sonnet-4-5 was priced, with its band.
SONNET: dict[str, Any] = {
    "input": "3",
    "output": "15",
    "cache_read": "0.3",
    "cache_write": "3.75",
    "cache_write_hour": "6",
    "bands": [
        {
            "above": 200_000,
            "input": "6",
            "output": "22.5",
            "cache_read": "0.6",
            "cache_write": "7.5",
            "cache_write_hour": "12",
        }
    ],
}
NOTHING = PriceTable.of_user({})


def priced(table: dict[str, Any]) -> Price:
    found = PriceTable.of_user({"m": table}).find("m")
    assert found is not None
    return found


def nano(price: int) -> int:
    """Nano-dollars as a price holds them."""
    return price * (YOCTO // NANO)


def used(**raw: object) -> TokenUsage:
    found = token_usage(raw)
    assert isinstance(found, TokenUsage)
    return found


# -- arithmetic ---------------------------------------------------------------------------------


def test_a_reply_costs_each_of_its_tokens_by_kind() -> None:
    usage = used(
        input_tokens=1_000,
        cache_read_input_tokens=10_000,
        cache_creation_input_tokens=2_000,
        cache_creation={"ephemeral_1h_input_tokens": 500, "ephemeral_5m_input_tokens": 1_500},
        output_tokens=400,
    )

    # 0.003 + 0.003 + 0.005625 + 0.003 + 0.006 dollars.
    assert cost(priced(SONNET), usage) == 20_625_000


def test_the_same_work_costs_the_same_in_either_format() -> None:
    gpt = used(
        prompt_tokens=11_000,
        completion_tokens=400,
        prompt_tokens_details={"cached_tokens": 10_000},
        completion_tokens_details={"reasoning_tokens": 100},
    )
    claude = used(input_tokens=1_000, cache_read_input_tokens=10_000, output_tokens=400)

    assert cost(priced(SONNET), gpt) == cost(priced(SONNET), claude) == 12_000_000


def test_a_band_begins_above_its_threshold_and_prices_the_whole_request() -> None:
    at, above = (
        used(input_tokens=200_000, output_tokens=0),
        used(input_tokens=200_001, output_tokens=0),
    )

    assert cost(priced(SONNET), at) == 200_000 * 3_000
    assert cost(priced(SONNET), above) == 200_001 * 6_000


def test_what_is_in_the_cache_counts_towards_a_band() -> None:
    usage = used(input_tokens=1, cache_read_input_tokens=200_000, output_tokens=1)

    assert cost(priced(SONNET), usage) == 6_000 + 200_000 * 600 + 22_500


def test_a_band_that_is_out_of_reach_is_not_reserved_for() -> None:
    price = priced(SONNET)

    assert worst_case(price, input_bound=200_000, output_cap=1) == 200_000 * 6_000 + 15_000
    assert worst_case(price, input_bound=200_001, output_cap=1) == 200_001 * 12_000 + 22_500


def test_a_band_that_is_cheaper_does_not_lower_the_worst_case() -> None:
    price = priced({"input": 10, "output": 1, "bands": [{"above": 10, "input": 1}]})

    assert worst_case(price, input_bound=20, output_cap=0) == 20 * 10_000


def test_a_fraction_of_a_nano_dollar_is_rounded_up_once() -> None:
    price = priced({"input": "0.0001", "output": "0.0001"})

    assert cost(price, TokenUsage(input=1, output=0)) == 1
    assert cost(price, TokenUsage(input=5, output=5)) == 1
    assert cost(price, TokenUsage(input=6, output=5)) == 2


def test_a_request_has_a_price_of_its_own() -> None:
    price = priced({"input": 1, "output": 1, "request": "0.012"})

    assert cost(price, TokenUsage(input=1, output=0)) == 12_000_000 + 1_000
    assert worst_case(price, input_bound=0, output_cap=0) == 12_000_000


def test_reasoning_that_is_priced_apart_is_not_paid_twice() -> None:
    price = priced({"input": 0, "output": 8, "reasoning": 3})

    assert cost(price, TokenUsage(input=1, output=100, reasoning=60)) == 40 * 8_000 + 60 * 3_000
    assert worst_case(price, input_bound=1, output_cap=1) == 8_000


# -- the user's table ---------------------------------------------------------------------------


@pytest.mark.parametrize("written", ["0.1", 0.1, Decimal("0.1")])
def test_a_price_is_the_decimal_that_was_written(written: object) -> None:
    assert priced({"input": written, "output": 0}).rates.input == nano(100)


def test_a_price_of_18_decimals_keeps_them_all() -> None:
    price = priced({"input": "0.041666666666666664", "output": 0})

    assert price.rates.input == 41_666_666_666_666_664


def test_a_table_is_read_as_toml_gives_it() -> None:
    table = tomllib.loads(
        """
        [prices."openai:gpt-5*"]
        input = 1.25
        output = 10
        cache_read = 0.125
        bands = [{ above = 272000, input = 2.5, output = 15 }]
        """
    )["prices"]

    price = PriceTable.of_user(table, where="tallystick.toml: ").find("openai:gpt-5-mini")

    assert price is not None
    assert price.source == 'declared in tallystick.toml: prices."openai:gpt-5*"'
    assert price.kind == "declared"
    assert price.rates.cache_read == nano(125)
    assert price.bands[0].rates.input == nano(2_500)
    # What a band does not say is as before it.
    assert price.bands[0].rates.cache_read == nano(125)


def test_a_later_band_goes_on_from_the_one_before() -> None:
    bands = [{"above": 10, "input": 2}, {"above": 20, "output": 3}]

    price = priced({"input": 1, "output": 1, "bands": bands})

    assert price.rates_at(10).input == nano(1_000)
    assert price.rates_at(11).input == nano(2_000)
    assert price.rates_at(21).input == nano(2_000)
    assert price.rates_at(21).output == nano(3_000)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("1.25", r'prices\."m": must be a table of prices in dollars for a million tokens'),
        ({"output": 1}, r'prices\."m"\.input is missing; a model that costs nothing says 0'),
        ({"input": 1}, r'prices\."m"\.output is missing'),
        ({"input": 1, "output": 1, "cache_reed": 1}, r"'cache_reed' is not .*mean cache_read\?"),
        ({"input": 1, "output": 1, "zzz": 1}, r"'zzz' is not a price; known are input, output,"),
        ({"input": 1, "output": 1, "bands": {}}, r'"m"\.bands: must be a list of at most 16'),
        ({"input": 1, "output": 1, "bands": [1]}, r'"m"\.bands\[0\]: must be a table'),
        ({"input": 1, "output": 1, "bands": [{"above": 0}]}, r"bands\[0\]\.above: .* from 1 to"),
        ({"input": 1, "output": 1, "bands": [{"above": 1.5}]}, r"bands\[0\]\.above: must be"),
        ({"input": 1, "output": 1, "bands": [{"above": True}]}, r"bands\[0\]\.above: must be"),
        (
            {"input": 1, "output": 1, "bands": [{"above": 5}, {"above": 5}]},
            r"bands\[1\]\.above: must be a whole number from 6",
        ),
        (
            {"input": 1, "output": 1, "bands": [{"above": 5, "request": 1}]},
            r"bands\[0\]: 'request' is not a price of a band",
        ),
        (
            {"input": 1, "output": 1, "bands": [{"above": 5, "input": -1}]},
            r"bands\[0\]\.input: must be dollars",
        ),
    ],
)
def test_a_table_that_cannot_be_meant_names_its_field(table: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PriceTable.of_user({"m": table})


@pytest.mark.parametrize(
    "value",
    [-1, -0.5, "-1", 1_000_001, 10**400, "1e3", "1_000", " 1", "", "1.", ".5", "\uff11", True, None,
     [1], float("nan"), float("inf"), 1e-19, Decimal("NaN"), Decimal("-Infinity"), Decimal("1e-19"),
     "0.0000000000000000001"],
)  # fmt: skip
@pytest.mark.parametrize("key", ["input", "request"])
def test_what_is_no_price_is_refused_by_the_name_of_its_field(key: str, value: object) -> None:
    with pytest.raises(UsageError, match=rf'^prices\."m"\.{key}: must be dollars'):
        PriceTable.of_user({"m": {"input": 0, "output": 0, key: value}})


@pytest.mark.parametrize("name", ["", "a b", "a*b", "**", "a\n", "x" * 202])
def test_a_name_that_no_model_has_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is not a model's name"):
        PriceTable.of_user({name: {"input": 0, "output": 0}})


def test_a_table_without_end_is_refused() -> None:
    with pytest.raises(UsageError, match="more than 1,000 models"):
        PriceTable.of_user({f"m{number}": {} for number in range(1_001)})


@pytest.mark.parametrize(
    ("model", "output"),
    [
        ("openai:gpt-5", 1),
        ("proxy:gpt-5", 2),
        ("openai:gpt-5-mini", 4),
        ("proxy:gpt-5-mini", 3),
        ("openai:o3", 5),
        ("ollama:qwen2.5:7b", 6),
        ("ollama:other", 0),
    ],
)
def test_the_closest_name_wins_whatever_the_order(model: str, output: int) -> None:
    names = ["openai:gpt-5", "gpt-5", "gpt-*", "openai:gpt-*", "openai:*", "qwen2.5:7b", "*"]
    rows = {name: {"input": 0, "output": number} for number, name in enumerate(names, 1)}
    rows["*"] = {"input": 0, "output": 0}

    for order in itertools.islice(itertools.permutations(rows), 0, 5_040, 97):
        found = PriceTable.of_user({name: rows[name] for name in order}).find(model)

        assert found is not None
        assert found.rates.output == nano(output * 1_000)


def test_a_star_in_the_name_of_a_model_is_no_pattern() -> None:
    table = PriceTable.of_user({"gpt*": {"input": 0, "output": 0}})

    assert table.find("openai:g*") is None


# -- where no price is known --------------------------------------------------------------------


def test_what_the_user_declared_goes_before_everything() -> None:
    table = PriceTable.of_user({"scripted": {"input": 1, "output": 1}})

    found = find_price("scripted", declared=table, base_url=None, at=AT)

    assert isinstance(found, Price)
    assert found.kind == "declared"


@pytest.mark.parametrize("model", ["scripted", "scripted:a.jsonl", "recorded:7f3a", "gguf:q.gguf"])
def test_a_model_that_asks_nobody_is_free_and_says_why(model: str) -> None:
    found = find_price(model, declared=NOTHING, base_url=None, at=AT)

    assert isinstance(found, Price)
    assert worst_case(found, input_bound=10**6, output_cap=10**6) == 0
    assert decide_price(found, usd_capped=True, waived=False) == PriceDecision(
        policy="in_process",
        price=found,
        why=f"Priced as free: {model.partition(':')[0]} asks no server.",
    )


@pytest.mark.parametrize("url", ["http://127.0.0.1:11434/v1", "https://proxy.example/v1"])
@pytest.mark.parametrize("model", ["ollama:gpt-4o", "gguf:gpt-4o", "proxy:claude-sonnet-4-5"])
def test_a_server_nobody_has_a_price_list_of_is_unknown_and_not_free(model: str, url: str) -> None:
    found = find_price(model, declared=NOTHING, base_url=url, at=AT)

    assert isinstance(found, UnknownPrice)
    assert found.model == model


def test_a_double_of_no_known_kind_is_unknown() -> None:
    found = find_price("mine", declared=NOTHING, base_url=None, at=AT)

    assert found == UnknownPrice(model="mine", reason="no table has it")


UNKNOWN = UnknownPrice(model="ollama:qwen3", reason="no table has it")


@pytest.mark.parametrize(
    ("usd_capped", "waived", "policy", "why"),
    [
        (
            True,
            False,
            "refuse",
            "No price is known for ollama:qwen3 (no table has it), and a cap in dollars is set: "
            'declare input and output in [prices."ollama:qwen3"] of config.toml, in dollars for a '
            'million tokens, or, if it costs nothing, prices."ollama:qwen3" = "free", or let its '
            "calls through uncounted with --allow-unpriced.",
        ),
        (
            True,
            True,
            "waived",
            "No price is known for ollama:qwen3 (no table has it), and that was waived: no cap "
            "counts it.",
        ),
        (
            False,
            False,
            "unknown",
            "No price is known for ollama:qwen3 (no table has it), so its cost is not in any sum.",
        ),
    ],
)
def test_an_unknown_price_is_refused_waived_or_left_out_and_a_sentence_says_which(
    usd_capped: bool, waived: bool, policy: PricePolicy, why: str
) -> None:
    decision = decide_price(UNKNOWN, usd_capped=usd_capped, waived=waived)

    assert decision == PriceDecision(policy=policy, price=None, why=why)


@pytest.mark.parametrize(
    ("provider", "base_url", "line"),
    [
        ("ollama", "http://127.0.0.1:11434/v1", 'prices."ollama:*" = "free"'),
        ("ollama", "http://gpu.lan:11434/v1", 'prices."ollama:*" = "free"'),
        ("local", "http://localhost:8080/v1", 'prices."local:*" = "free"'),
        ("mine", "http://[::1]:8080/v1", 'prices."mine:*" = "free"'),
        ("mine", "https://api.example.com/v1", 'prices."mine:m" = "free"'),
    ],
)
def test_the_line_that_a_refusal_shows_declares_the_model_free(
    provider: str, base_url: str, line: str
) -> None:
    class Asked:
        name = f"{provider}:m"
        endpoint = Endpoint(provider=provider, dialect="openai", base_url=base_url, model="m")

    refused = Pricing().terms(Asked(), usd_capped=True).decision  # type: ignore[arg-type]
    declared = PriceTable.of_user(tomllib.loads(f"{line}\n[aliases]\nx = 'y'")["prices"])
    allowed = Pricing(declared=declared).terms(Asked(), usd_capped=True)  # type: ignore[arg-type]

    assert refused.policy == "refuse"
    assert line in refused.why
    assert "cap" not in refused.why.replace("a cap in dollars is set", "")
    assert allowed.decision.policy == "declared"
    assert allowed.worst is not None
    assert allowed.worst(1_000_000, 1_000_000) == 0


@pytest.mark.parametrize("given", ["Free", "no", "", 0, None, True, ["free"]])
def test_a_price_in_words_is_free_or_a_mistake(given: object) -> None:
    with pytest.raises(UsageError, match='or "free"'):
        PriceTable.of_user({"m": given})


def test_a_waiver_does_not_hide_a_price_that_is_known() -> None:
    price = priced(SONNET)

    decision = decide_price(price, usd_capped=True, waived=True)

    assert decision.price is price
    assert decision.policy == "declared"
    assert decision.why == 'Priced as declared in prices."m".'


def test_every_kind_of_price_is_a_policy() -> None:
    assert set(get_args(PriceKind)) < set(get_args(PricePolicy))


def test_without_a_price_list_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    found = published_price("openai:gpt-5", base_url=OPENAI, at=AT)

    assert isinstance(found, UnknownPrice)
    assert "tallystick[prices]" in found.reason


# -- genai-prices -------------------------------------------------------------------------------


@needs_genai
def test_a_published_price_says_whose_it_is_and_of_which_version() -> None:
    found = published_price("openai:gpt-4o", base_url=OPENAI, at=AT)

    assert isinstance(found, Price)
    assert found.kind == "published"
    assert found.source.startswith("openai/gpt-4o in genai-prices ")
    assert found.rates.input == nano(2_500)
    assert found.rates.output == nano(10_000)
    assert found.rates.cache_read == nano(1_250)
    # OpenAI has no price for these here, so they cost what any input costs.
    assert found.rates.cache_write == found.rates.image == found.rates.input


@needs_genai
@pytest.mark.parametrize(
    ("model", "url"),
    [
        ("openai:gpt-4o", OPENAI),
        ("openai:gpt-5.4", OPENAI),
        ("anthropic:claude-sonnet-4-5", ANTHROPIC),
        ("anthropic:claude-haiku-4-5", ANTHROPIC),
    ],
)
@pytest.mark.parametrize("input_", [1_000, 200_000, 200_001, 272_000, 272_001])
def test_a_published_cost_is_what_its_own_library_computes(
    model: str, url: str, input_: int
) -> None:
    genai: Any = importlib.import_module("genai_prices")
    price = published_price(model, base_url=url, at=AT)
    assert isinstance(price, Price)
    usage = TokenUsage(input=input_, cache_read=300, cache_write=200, output=77)

    theirs = genai.calc_price(
        genai.Usage(
            input_tokens=input_, cache_read_tokens=300, cache_write_tokens=200, output_tokens=77
        ),
        model.partition(":")[2],
        provider_api_url=url,
        genai_request_timestamp=AT,
    ).total_price

    assert cost(price, usage) == theirs * NANO


@needs_genai
@pytest.mark.parametrize("minutes", [-30, -61])
def test_a_price_that_rises_within_the_hour_is_taken_at_its_dearer(minutes: int) -> None:
    # DeepSeek's day rate for this model began at 00:30 UTC and was twice the night's.
    at = datetime.fromtimestamp(
        datetime(2026, 1, 5, 0, 30, tzinfo=UTC).timestamp() + 60 * minutes, tz=UTC
    )

    found = published_price("d:deepseek-chat", base_url="https://api.deepseek.com", at=at)

    assert isinstance(found, Price)
    assert found.rates.output == nano(1_100 if minutes == -30 else 550)


@needs_genai
@pytest.mark.parametrize(
    ("model", "url", "reason"),
    [
        ("openai:no-such", OPENAI, "neither a table nor genai-prices has it"),
        ("local:gpt-4o", "http://127.0.0.1:8080/v1", "neither a table nor genai-prices has it"),
        ("openai:whisper-1", OPENAI, "it prices audio_hours"),
        ("openai:text-embedding-3-small", OPENAI, "it prices input_mtok"),
        ("p:sonar-deep-research", "https://api.perplexity.ai", "it prices output_citation_mtok"),
    ],
)
def test_a_price_that_cannot_be_bounded_by_tokens_is_unknown(
    model: str, url: str, reason: str
) -> None:
    found = published_price(model, base_url=url, at=AT)

    assert isinstance(found, UnknownPrice)
    assert reason in found.reason


@needs_genai
@pytest.mark.parametrize("finer", [Decimal("1e-19"), Decimal("-1"), Decimal("NaN"), 0.5])
def test_a_published_price_that_is_no_exact_one_is_unknown(
    finer: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    genai: Any = importlib.import_module("genai_prices")
    real = genai.calc_price

    def spoiled(*asked: Any, **more: Any) -> Any:
        found = real(*asked, **more)
        found.model_price = type(found.model_price)(input_mtok=finer, output_mtok=Decimal(1))
        return found

    monkeypatch.setattr(genai, "calc_price", spoiled)

    found = published_price("openai:gpt-4o", base_url=OPENAI, at=AT)

    assert isinstance(found, UnknownPrice)
    assert "genai-prices has no usable one" in found.reason


@needs_genai
def test_a_published_price_for_each_request_is_taken_over() -> None:
    found = published_price("p:sonar", base_url="https://api.perplexity.ai", at=AT)

    assert isinstance(found, Price)
    assert found.request == nano(12_000_000)
