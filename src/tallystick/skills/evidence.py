"""Evidence: why each skill stands in a catalog, or does not, and what became of it.

It is made by the function that fits the catalog, never read back from a prompt. Counts called
`chars` are characters, counts called `bytes` are bytes of UTF-8; tokens are estimated, four
characters each, rounded up.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tallystick.skills.card import Card

__all__ = [
    "CardEvidence",
    "Evidence",
    "Form",
    "Lifecycle",
    "Matched",
    "OmittedReason",
    "Reachability",
    "reachability_of",
    "size_bytes",
    "tokens_of",
]

# How much of a card is shown. `full` is all there is of it, be that a name alone.
Form = Literal["full", "short", "name", "none"]
# `eligible`: a model may load it, but it had no part in this catalog.
Lifecycle = Literal["eligible", "shown", "omitted", "loaded", "used"]
OmittedReason = Literal["disable_model_invocation", "catalog_limit", "budget"]
# How a skill is come by: it is listed; a program searches for it; a user names it; not at all.
Reachability = Literal["shown", "search", "user", "none"]

_CHARS_PER_TOKEN = 4


def tokens_of(length: int) -> int:
    """Estimate the tokens in a text of this length."""
    return -(-length // _CHARS_PER_TOKEN)


def size_bytes(text: str) -> int:
    """The bytes of a text. Halves of characters, which no file can hold, count three each."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


class Matched(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How well a skill fits what was asked, and by what."""

    score: float
    reason: str


class CardEvidence(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One skill of a catalog.

    `char_estimate` is what its full form takes, `shown_chars` what it takes in the text; both
    without the newline before it. `rank` is its place in the order of fitting, counted from 1; 0
    if it took no part. `used_by` names what of it was opened, run or called.
    """

    id: str
    name: str
    source: str
    description: str
    when_to_use: str
    disable_model_invocation: bool
    selected: bool
    omitted_reason: OmittedReason | None
    char_estimate: int
    token_estimate: int
    lifecycle: Lifecycle
    matched: Matched | None
    byte_estimate: int
    form: Form
    shown_chars: int
    shown_bytes: int
    rank: int
    pinned: bool
    reachability: Reachability
    used_by: tuple[str, ...]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What a catalog shows and what it leaves out, card by card in the order they were given.

    `shown` and `omitted` together hold every id. `eligible` are those beyond the catalog's limit,
    `order` those that were fitted, the most wanted first. `reachable` says that every skill that a
    model may load is listed, or is found by the search that the text tells of; `unreachable` are
    those that neither a model nor a user can load.
    """

    schema_version: int = 2
    mode: Literal["default"] = "default"
    budget_chars: int
    effective_budget_chars: int
    used_chars: int
    used_bytes: int
    budget_tokens: int
    used_tokens: int
    shown: tuple[str, ...]
    omitted: tuple[str, ...]
    eligible: tuple[str, ...]
    order: tuple[str, ...]
    reachable: bool
    unreachable: tuple[str, ...]
    cards: tuple[CardEvidence, ...]


def reachability_of(card: Card, *, selected: bool) -> Reachability:
    """How a skill is come by, given whether it is listed."""
    if selected:
        return "shown"
    if not card.disable_model_invocation:
        return "search"
    return "user" if card.user_invocable else "none"
