"""The reference fit a second time, from its rules: every prefix is written out and measured."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tallystick.skills.format.manifest import Card

__all__ = ["HEADER", "expected"]

HEADER = (
    b"## Available skills\n\nThese skills are available. Call `load_skill({ name: "
    b'"<skill-id>" })` to load the full body of a skill when it becomes relevant.\n\n'
)


def expected(
    cards: Sequence[Card],
    *,
    budget: int,
    catalog: Collection[str] | None = None,
    limit: int | None = None,
    loaded: Collection[str] = (),
    used: Collection[str] = (),
) -> dict[str, Any]:
    """What the reference says of cards, as plain values: `{rendered, evidence}`."""
    part = [card for card in cards if card.name]
    if catalog is None:
        part = [card for card in part if not card.disable_model_invocation]
    else:
        part = [card for card in part if card.id in catalog]
    part.sort(key=lambda card: card.id)
    if limit is not None:
        del part[limit:]
    text, count = _best([_block(card) for card in part], max(budget, 151 + 52))
    seen = [card.id for card in part[:count]]
    rows = [_row(card, part, seen, loaded, used) for card in cards]
    return {
        "rendered": (text if part else text + b"(none)").decode(),
        "evidence": {
            "schema_version": 1,
            "budget_chars": budget,
            "used_chars": len(text),
            "budget_tokens": (budget + 3) // 4,
            "used_tokens": (len(text) + 3) // 4,
            "shown": [row["id"] for row in rows if row["selected"]],
            "omitted": [row["id"] for row in rows if not row["selected"]],
            "cards": rows,
        },
    }


def _best(blocks: list[bytes], budget: int) -> tuple[bytes, int]:
    """Of all prefixes, with and without the suffix, the longest that may be shown."""
    bare = [HEADER + b"\n".join(blocks[:n]) for n in range(len(blocks) + 1)]
    if len(bare[-1]) <= budget:
        return bare[-1], len(blocks)
    ended = [
        text + b"\n\n... %d more skill(s) omitted to stay within budget." % (len(blocks) - n)
        for n, text in enumerate(bare[:-1])
    ]
    fitting = [n for n, text in enumerate(ended) if len(text) <= budget]
    return (ended[fitting[-1]], fitting[-1]) if fitting else (HEADER, 0)


def _block(card: Card) -> bytes:
    lines = [f"- `{card.name}`"]
    for text in filter(None, [card.short, card.description][: 1 if card.short else 2]):
        lines[0] += f": {text}"
    if card.when_to_use != "":
        lines.append("  when: " + card.when_to_use)
    return "\n".join(lines).encode()


def _row(
    card: Card,
    part: list[Card],
    seen: list[str],
    loaded: Collection[str],
    used: Collection[str],
) -> dict[str, Any]:
    reason: str | None = "budget"
    if card.id in seen:
        reason = None
    if card.id not in [each.id for each in part]:
        reason = "catalog_limit"
    if card.disable_model_invocation:
        reason = "disable_model_invocation"
    lifecycle = "omitted" if reason else "shown"
    if card.id in loaded:
        lifecycle = "loaded"
    if card.id in used:
        lifecycle = "used"
    size = len(_block(card)) if card.name else 0
    return {
        "id": card.id,
        "name": card.name,
        "source": card.source,
        "description": card.description,
        "when_to_use": card.when_to_use,
        "disable_model_invocation": card.disable_model_invocation,
        "selected": reason is None,
        "omitted_reason": reason,
        "char_estimate": size,
        "token_estimate": (size + 3) // 4,
        "lifecycle": lifecycle,
        "matched": None,
    }
