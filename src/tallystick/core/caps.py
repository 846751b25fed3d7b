"""When a run has to stop: its limits against what it has used."""

from __future__ import annotations

from tallystick.core.records import Charge, RunLimits, StopReason

__all__ = ["over", "tokens_out_max", "turn_is_last"]

# Beyond this part of the time, the next turn is treated as the last.
_LATE = 0.8


def over(limits: RunLimits, used: Charge) -> tuple[StopReason, str] | None:
    """The limit that does not allow another turn, and how to say so."""
    if used.turns >= limits.turns:
        return "max_turns", f"all {limits.turns:,} turns used"
    if used.wall_ms >= limits.wall_ms:
        return "deadline", f"{limits.wall_ms:,} ms passed"
    if limits.reply_tokens < 1:
        return "budget", "reply_tokens: none allowed"
    if used.host_calls > limits.host_calls:
        return "budget", f"host_calls: {limits.host_calls:,} allowed"
    if used.tokens_in + used.tokens_out >= limits.tokens:
        return "budget", f"tokens: {limits.tokens:,} allowed, all used"
    return None


def turn_is_last(limits: RunLimits, used: Charge) -> bool:
    """True if a limit would refuse the turn after the next, as far as can be told."""
    spent = used.tokens_in + used.tokens_out
    per_turn = spent // max(1, used.turns)
    return (
        used.turns + 1 >= limits.turns
        or used.wall_ms > limits.wall_ms * _LATE
        or spent + 2 * per_turn >= limits.tokens
    )


def tokens_out_max(limits: RunLimits, used: Charge) -> int:
    """How long the next reply may be: never longer than what is left."""
    return min(limits.reply_tokens, limits.tokens - used.tokens_in - used.tokens_out)
