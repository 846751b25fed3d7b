"""What things cost and may cost: charges, limits of a run, reservations and settlements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

__all__ = ["Charge", "FailureKind", "ModelUsage", "Reserved", "RunLimits", "Settled"]

# Whether asking again may help.
FailureKind = Literal["transient", "terminal"]


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """What something did cost. `usd` is nano-dollars, None while the price is unknown."""

    usd: int | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    model_calls: int = 0
    turns: int = 0
    host_calls: int = 0
    fuel: int = 0
    wall_ms: int = 0

    def __add__(self, other: Charge) -> Charge:
        known = [each.usd for each in (self, other) if each.usd is not None]
        return Charge(
            usd=sum(known) if known else None,
            tokens_in=self.tokens_in + other.tokens_in,
            tokens_out=self.tokens_out + other.tokens_out,
            model_calls=self.model_calls + other.model_calls,
            turns=self.turns + other.turns,
            host_calls=self.host_calls + other.host_calls,
            fuel=self.fuel + other.fuel,
            wall_ms=self.wall_ms + other.wall_ms,
        )


class RunLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a run may use in all. Exactly at a limit is allowed.

    `reply_tokens` is for one reply, `retries` for one call: attempts after the first. `usd` is in
    nano-dollars; None is no cap. `depth` is how many runs may stand inside each other below it.
    """

    turns: int = 30
    tokens: int = 100_000
    host_calls: int = 10_000
    wall_ms: int = 300_000
    reply_tokens: int = 4_096
    retries: int = 2
    usd: int | None = None
    model_calls: int | None = None
    depth: int = 10


class ModelUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What the model's side reported, verbatim in `raw`."""

    tokens_in: int
    tokens_out: int
    reported: bool
    raw: Mapping[str, object] = {}


class Reserved(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The worst that an attempt can cost, held in every scope around it before it is sent.

    `tokens_in` is an upper bound, or with the model's own tokenizer `counted`; `usd` is None where
    no price is known; `price` says which policy applied. `hold` is its number in the scope that
    processes share, 0 where there is none.
    """

    tokens_in: int
    tokens_out: int
    usd: int | None = None
    price: str = "unknown"
    counted: bool = False
    hold: int = 0


class Settled(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an attempt was charged in the end, where the figures come from, and what was odd."""

    figures: Literal["reported", "reserved", "returned"]
    tokens_in: int
    tokens_out: int
    usd: int | None = None
    flags: tuple[str, ...] = ()
