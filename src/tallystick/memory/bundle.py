"""What a recall program gathered: hits, scores, receipts, the answer, and what it took.

The declarative form and the Python form end in the same bundle. It is data that can be written
down, so that an auditor can run the program again and compare (`first_difference`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from tallystick.core.canonical import canonical

__all__ = [
    "NOTHING_RECALLED",
    "Bundle",
    "RecallHit",
    "TokenCount",
    "Tokenizer",
    "assembled_answer",
    "bundle_of",
    "emitted",
    "estimated_tokens",
    "first_difference",
]

NOTHING_RECALLED = "(no relevant memories)"
_BYTES_PER_TOKEN = 4
_TOKENS_PER_OPERATION = 4


class Tokenizer(Protocol):
    """A tokenizer that says its name: a count without one means nothing."""

    @property
    def name(self) -> str: ...

    def count(self, text: str) -> int: ...


class TokenCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many tokens a text has, by a named tokenizer."""

    tokens: int
    tokenizer: str


class RecallHit(msgspec.Struct, frozen=True, kw_only=True):
    """One note as a recall gave it."""

    id: str
    content: str
    score: float


class Bundle(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a program recalled, in order and with repeats, and what came of it.

    `guest_token_cost` is the reference's estimate, from bytes, and is kept to compare with others
    that give it; `answer_tokens` is a count. `receipts` are what `cite` gave, `scores` the last
    that `score` gave for each note. `records_seen` counts the hits that the host gave, and
    `records_emitted` those of them whose whole text stands in the answer.
    """

    recalled: tuple[RecallHit, ...]
    final_answer: str
    guest_token_cost: int
    guest_token_cost_by: Literal["estimated_reference"] = "estimated_reference"
    answer_tokens: TokenCount | None = None
    receipts: tuple[str, ...] = ()
    scores: dict[str, float] = msgspec.field(default_factory=dict)
    fuel_used: int = 0
    records_seen: int = 0
    records_emitted: int = 0

    def reranked(self) -> tuple[RecallHit, ...]:
        """Each recalled note once, the best first, by its asked score where there is one.

        Equal scores keep the order in which the notes first came.
        """
        first = {hit.id: hit for hit in reversed(self.recalled)}
        in_order = [first[id] for id in dict.fromkeys(hit.id for hit in self.recalled)]
        return tuple(sorted(in_order, key=lambda hit: -self.scores.get(hit.id, hit.score)))


def bundle_of(
    recalled: Sequence[RecallHit],
    *,
    operations: int,
    fuel_used: int,
    answer: str | None = None,
    receipts: Sequence[str] = (),
    scores: dict[str, float] | None = None,
    tokenizer: Tokenizer | None = None,
) -> Bundle:
    """Make the bundle of a program that ran `operations` host calls.

    A program that gave no answer gets the assembled one.
    """
    final = assembled_answer(recalled) if answer is None else answer
    counted = None
    if tokenizer is not None:
        counted = TokenCount(tokens=tokenizer.count(final), tokenizer=tokenizer.name)
    return Bundle(
        recalled=tuple(recalled),
        final_answer=final,
        guest_token_cost=estimated_tokens(final) + _TOKENS_PER_OPERATION * operations,
        answer_tokens=counted,
        receipts=tuple(receipts),
        scores=dict(scores or {}),
        fuel_used=fuel_used,
        records_seen=len(recalled),
        records_emitted=emitted(recalled, final),
    )


def assembled_answer(recalled: Sequence[RecallHit]) -> str:
    """One line for each hit of each recall, in order; or that there is none."""
    return "\n".join(f"- {hit.content}" for hit in recalled) or NOTHING_RECALLED


def emitted(recalled: Sequence[RecallHit], text: str) -> int:
    """How many of the hits stand in a text with their whole content."""
    return sum(hit.content in text for hit in recalled)


def estimated_tokens(text: str) -> int:
    """The reference's estimate of a text: a token for each four bytes, and for what is left."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN)


def first_difference(recorded: Bundle, now: Bundle) -> str | None:
    """Say where a program that was run again came to something else; None if nowhere.

    Compared as bytes, so that a score of another spelling is another score.
    """
    for place, (was, is_) in enumerate(zip(recorded.recalled, now.recalled, strict=False), 1):
        if canonical(was) != canonical(is_):
            return f"hit {place} was {was.id} ({was.score!r}) and is {is_.id} ({is_.score!r})"
    if len(recorded.recalled) != len(now.recalled):
        return f"{len(recorded.recalled):,} hits were recalled and {len(now.recalled):,} are"
    for field in Bundle.__struct_fields__:
        if canonical(getattr(recorded, field)) != canonical(getattr(now, field)):
            return f"{field} differs"
    return None
