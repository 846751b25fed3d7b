"""Reports of usage: both formats in one shape, and what is no report."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.model.prices import TokenUsage, Unreported, token_usage

GPT: dict[str, object] = {"prompt_tokens": 5, "completion_tokens": 1}
CLAUDE: dict[str, object] = {"input_tokens": 5, "output_tokens": 1}


def test_openais_prompt_holds_the_cached_tokens_and_its_completion_the_reasoning() -> None:
    raw: dict[str, object] = {
        "prompt_tokens": 1_000,
        "completion_tokens": 300,
        "total_tokens": 1_300,
        "prompt_tokens_details": {
            "cached_tokens": 600,
            "cache_write_tokens": 100,
            "image_tokens": 50,
            "audio_tokens": 0,
        },
        "completion_tokens_details": {"reasoning_tokens": 200},
    }

    assert token_usage(raw) == TokenUsage(
        input=1_000, cache_read=600, cache_write=100, image=50, output=300, reasoning=200
    )


def test_anthropics_input_holds_neither_what_was_cached_nor_what_was_written() -> None:
    raw: dict[str, object] = {
        "input_tokens": 100,
        "cache_read_input_tokens": 600,
        "cache_creation_input_tokens": 300,
        "cache_creation": {"ephemeral_5m_input_tokens": 200, "ephemeral_1h_input_tokens": 100},
        "output_tokens": 80,
        "output_tokens_details": {"thinking_tokens": 30},
        "service_tier": "standard",
    }

    assert token_usage(raw) == TokenUsage(
        input=1_000,
        cache_read=600,
        cache_write=300,
        cache_write_hour=100,
        output=80,
        reasoning=30,
    )


@pytest.mark.parametrize(
    ("total", "reasoning", "output"),
    [
        (1_300, 200, 300),
        # xAI: beside the completion, and in the total.
        (1_500, 200, 500),
        (None, 400, 700),
        (None, 200, 300),
        (1_300, 0, 300),
    ],
)
def test_reasoning_that_is_counted_apart_is_output_too(
    total: int | None, reasoning: int, output: int
) -> None:
    found = token_usage(
        {
            "prompt_tokens": 1_000,
            "completion_tokens": 300,
            "total_tokens": total,
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }
    )

    assert found == TokenUsage(input=1_000, output=output, reasoning=reasoning)


def test_what_a_total_holds_beyond_its_parts_is_output() -> None:
    halved: dict[str, object] = {**GPT, "total_tokens": 12}

    assert token_usage(halved) == TokenUsage(input=5, output=7)


@pytest.mark.parametrize("total", [6, 5, 0, None, "12", 12.5, True])
def test_a_total_that_is_no_more_than_its_parts_or_no_count_changes_nothing(total: object) -> None:
    assert token_usage({**GPT, "total_tokens": total}) == TokenUsage(input=5, output=1)


def test_a_total_beyond_all_counting_is_no_report() -> None:
    found = token_usage({**GPT, "total_tokens": 10**30})

    assert found == Unreported(reason="total_tokens is more than 1,000,000,000")


@pytest.mark.parametrize("where", ["prompt_cache_hit_tokens", "cached_tokens"])
def test_cached_tokens_are_found_where_other_servers_put_them(where: str) -> None:
    found = token_usage({"prompt_tokens": 10, "completion_tokens": 1, where: 7})

    assert found == TokenUsage(input=10, output=1, cache_read=7)


def test_details_that_are_null_or_left_out_are_nothing() -> None:
    raw: dict[str, object] = {
        "prompt_tokens": 9,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
        "completion_tokens_details": {"reasoning_tokens": None},
    }

    assert token_usage(raw) == TokenUsage(input=9, output=0)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ({}, "no usage was reported"),
        ({"total_tokens": 9}, "no count of input"),
        ({"prompt_tokens": None, "completion_tokens": 1}, "prompt_tokens is missing"),
        ({"prompt_tokens": 5}, "completion_tokens is missing"),
        ({"input_tokens": 5}, "output_tokens is missing"),
        ({"prompt_tokens": "5", "completion_tokens": 1}, "prompt_tokens is not a whole number"),
        ({"prompt_tokens": 5.0, "completion_tokens": 1}, "prompt_tokens is not a whole number"),
        ({"prompt_tokens": True, "completion_tokens": 1}, "prompt_tokens is not a whole number"),
        ({"prompt_tokens": 5, "completion_tokens": -1}, "completion_tokens is negative"),
        (
            {"prompt_tokens": 10**9 + 1, "completion_tokens": 1},
            "prompt_tokens is more than 1,000,000,000",
        ),
        ({"prompt_tokens": 0, "completion_tokens": 0}, "a prompt of no tokens was reported"),
        (
            {**GPT, "prompt_tokens_details": [1]},
            "prompt_tokens_details is not a table",
        ),
        (
            {**GPT, "cached_tokens": 6},
            "the report contradicts itself: cache_read + cache_write of 6 in input of 5",
        ),
        (
            {**CLAUDE, "output_tokens_details": {"thinking_tokens": 2}},
            "the report contradicts itself: reasoning of 2 in output of 1",
        ),
        (
            {**CLAUDE, "cache_creation": {"ephemeral_1h_input_tokens": 2}},
            "the report contradicts itself: cache_write_hour of 2 in cache_write of 0",
        ),
        (
            {**GPT, "prompt_tokens_details": {"image_tokens": 6}},
            "the report contradicts itself: image of 6 in input of 5",
        ),
    ],
)
def test_what_is_no_report_says_why(raw: dict[str, object], reason: str) -> None:
    assert token_usage(raw) == Unreported(reason=reason)


names = st.sampled_from(
    [
        "prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "total_tokens",
        "cached_tokens", "cache_read_input_tokens", "cache_creation_input_tokens",
        "prompt_tokens_details", "completion_tokens_details", "cache_creation",
    ]
)  # fmt: skip
values = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 50), st.integers(), st.floats(), st.text(max_size=3),
    st.dictionaries(
        st.sampled_from(["cached_tokens", "reasoning_tokens", "ephemeral_1h_input_tokens"]),
        st.one_of(st.none(), st.integers(-5, 50), st.text(max_size=3)),
    ),
)  # fmt: skip


@given(raw=st.dictionaries(names, values))
def test_any_report_is_either_one_that_adds_up_or_none(raw: dict[str, object]) -> None:
    found = token_usage(raw)

    if isinstance(found, TokenUsage):
        assert found.input > 0
        assert min(found.output, found.cache_read, found.cache_write, found.reasoning) >= 0
        assert found.cache_read + found.cache_write <= found.input
        assert found.reasoning <= found.output
    else:
        assert found.reason
