"""When a run has to stop: its limits against what it has used, and what the model is told of it."""

from __future__ import annotations

from tallystick.core.charge import Charge, RunLimits
from tallystick.core.money import shown_usd
from tallystick.core.records import (
    ChildEnded,
    HostAnswered,
    ModelFailed,
    ModelReplied,
    QueryFailed,
    QueryRefused,
    QueryReplied,
    SkillUsed,
    StopReason,
)

__all__ = ["charge_of", "charge_of_child", "over", "share_notice", "tokens_out_max", "turn_is_last"]

# Beyond this part of the time, the next turn is treated as the last.
_LATE = 0.8
# At these parts of a budget the model is told, once each.
_SHARES = (95, 80, 50)


def charge_of(
    event: ModelReplied
    | ModelFailed
    | QueryReplied
    | QueryFailed
    | QueryRefused
    | ChildEnded
    | HostAnswered,
) -> Charge:
    """What a call cost. An attempt at a model: as it was settled, or else as it was reported."""
    if isinstance(event, HostAnswered):
        if isinstance(event.skill, SkillUsed):
            # A script runs by itself; what it used is the run's.
            return Charge(host_calls=1 + event.skill.host_calls, fuel=event.skill.fuel)
        return Charge(host_calls=1)
    if isinstance(event, QueryRefused):
        return Charge()
    if isinstance(event, ChildEnded):
        return charge_of_child(event.charge)
    figures = event.settled or event.usage
    return Charge(
        usd=None if event.settled is None else event.settled.usd,
        tokens_in=0 if figures is None else figures.tokens_in,
        tokens_out=0 if figures is None else figures.tokens_out,
        model_calls=1,
    )


def charge_of_child(charge: Charge) -> Charge:
    """What a child costs its parent. Its turns, programs and time are its own."""
    return Charge(
        usd=charge.usd,
        tokens_in=charge.tokens_in,
        tokens_out=charge.tokens_out,
        model_calls=charge.model_calls,
    )


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
    if limits.usd is not None and (used.usd or 0) >= limits.usd:
        return "budget", f"usd: {shown_usd(limits.usd)} allowed, all used"
    return None


def turn_is_last(limits: RunLimits, used: Charge, *, prompt_bound: int = 0) -> bool:
    """True if a limit would refuse the turn after the next, as far as can be told.

    `prompt_bound` is what the prompt may come to: so much is reserved for it.
    """
    spent = used.tokens_in + used.tokens_out
    turns = max(1, used.turns)
    per_turn = spent // turns
    return (
        used.turns + 1 >= limits.turns
        or used.wall_ms > limits.wall_ms * _LATE
        or spent + per_turn + max(per_turn, prompt_bound) >= limits.tokens
        or (limits.usd is not None and (used.usd or 0) * (turns + 2) >= limits.usd * turns)
    )


def tokens_out_max(limits: RunLimits, used: Charge) -> int:
    """How long the next reply may be: never longer than what is left."""
    return min(limits.reply_tokens, limits.tokens - used.tokens_in - used.tokens_out)


def share_notice(limits: RunLimits, used: Charge, *, told: int) -> tuple[int, str] | None:
    """The share of its budget that a run has passed since it was told last, and how to say so.

    Tokens and money count: what programs can spend many times over in one turn.
    """
    spent = used.tokens_in + used.tokens_out
    shares = [(_share(spent, limits.tokens), f"{spent:,} of {limits.tokens:,} tokens")]
    if limits.usd is not None:
        usd = used.usd or 0
        shares.append((_share(usd, limits.usd), f"{shown_usd(usd)} of {shown_usd(limits.usd)}"))
    most, said = max(shares)
    passed = next((each for each in _SHARES if most >= each), 0)
    if passed <= told:
        return None
    return passed, f"You have used {passed} % of your budget ({said})."


def _share(used: int, limit: int) -> int:
    return 100 * used // limit if limit else 100
