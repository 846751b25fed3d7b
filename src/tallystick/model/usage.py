"""What a server says it used, in one shape for both formats, or why that cannot be believed.

The formats differ in what includes what. OpenAI's prompt_tokens hold the cached ones and those
written to the cache, and its completion_tokens the reasoning. Anthropic's input_tokens hold neither
of the first two; its output_tokens hold the thinking. Here `input` is everything that was read and
`output` everything that was made, and the other counts are parts of them.

A report that contradicts itself is no report: who pays then settles at what was reserved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["TOKENS_MAX", "TokenUsage", "Unreported", "token_usage"]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreported:
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
    return TokenUsage(
        input=prompt,
        output=completion + reasoning if apart else completion,
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
