"""Make the catalog and its evidence as other hosts of skills do, byte for byte.

Lengths are bytes of UTF-8, though the fields call them chars. Cards are sorted by id, and the first
that does not fit hides all after it. A disabled skill in the catalog takes its room, though it
counts as omitted. With ten or more cards and little room, the line that says how many were left out
is itself left out. `tallystick.skills.catalog` is the better one; this one is for comparing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import msgspec

from tallystick.skills.catalog import (
    Lifecycle,
    ListedCard,
    MatchEvidence,
    OmittedReason,
    size_bytes,
    tokens_of,
)
from tallystick.skills.format.manifest import Card
from tallystick.skills.match import Match

REFERENCE_HEADER = (
    "## Available skills\n\n"
    'These skills are available. Call `load_skill({ name: "<skill-id>" })` to load the full body '
    "of a skill when it becomes relevant.\n\n"
)
_NONE = "(none)"
_NO_MATCHES: Mapping[str, Match] = MappingProxyType({})


class ReferenceEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """The skills that were shown and omitted, with every card in the order it was given."""

    schema_version: Literal[1] = 1
    budget_chars: int
    used_chars: int
    budget_tokens: int
    used_tokens: int
    shown: tuple[str, ...]
    omitted: tuple[str, ...]
    cards: tuple[ListedCard, ...]


class ReferenceCatalog(msgspec.Struct, frozen=True, kw_only=True):
    """The text for a prompt, and its evidence."""

    rendered: str
    evidence: ReferenceEvidence


def reference_suffix(omitted: int) -> str:
    """Return the line that says how many cards were left out."""
    return f"\n\n... {omitted} more skill(s) omitted to stay within budget."


def reference_catalog(
    cards: Sequence[Card],
    *,
    budget: int = 2_000,
    catalog: Collection[str] | None = None,
    limit: int | None = None,
    loaded: Collection[str] = (),
    used: Collection[str] = (),
    matched: Mapping[str, Match] = _NO_MATCHES,
) -> ReferenceCatalog:
    """Fit cards into a budget of bytes; return the text and its evidence.

    `catalog` are the ids that take part; without it, all that are not disabled do. Of those that
    have a name, in the order of their ids, the first `limit` are fitted. A budget too small for the
    header and the line about one omitted card counts as room for both. If no card takes part, the
    text says `(none)`. `loaded`, `used` and `matched` are for the evidence alone.
    """
    budget = max(budget, 0)
    asked = None if catalog is None else frozenset(catalog)
    was_loaded, was_used = frozenset(loaded), frozenset(used)
    blocks = [_block(card) for card in cards]
    entries = sorted(
        (n for n, card in enumerate(cards) if card.name and _takes_part(card, asked)),
        key=lambda n: cards[n].id,
    )
    entries = entries if limit is None else entries[: max(limit, 0)]
    rendered, count = _fit([blocks[n] for n in entries], budget)
    in_catalog, fitted = set(entries), set(entries[:count])
    evidence = tuple(
        _card(
            card,
            reason=_reason(card, in_catalog=n in in_catalog, fitted=n in fitted),
            size=size_bytes(blocks[n]),
            runtime="used" if card.id in was_used else "loaded" if card.id in was_loaded else None,
            match=matched.get(card.id),
        )
        for n, card in enumerate(cards)
    )
    used_chars = size_bytes(rendered)
    return ReferenceCatalog(
        rendered=rendered if entries else f"{rendered}{_NONE}",
        evidence=ReferenceEvidence(
            budget_chars=budget,
            used_chars=used_chars,
            budget_tokens=tokens_of(budget),
            used_tokens=tokens_of(used_chars),
            shown=tuple(each.id for each in evidence if each.selected),
            omitted=tuple(each.id for each in evidence if not each.selected),
            cards=evidence,
        ),
    )


def _takes_part(card: Card, catalog: frozenset[str] | None) -> bool:
    return not card.disable_model_invocation if catalog is None else card.id in catalog


def _fit(blocks: Sequence[str], budget: int) -> tuple[str, int]:
    """Return the text, and how many of the first blocks are in it.

    Blocks are dropped from the end until the line about the omitted ones fits too. If it does not
    fit without any block, it is left out.
    """
    budget = max(budget, size_bytes(REFERENCE_HEADER) + size_bytes(reference_suffix(1)))
    # The length of the text after each block: the first follows the header, others a newline.
    ends = [size_bytes(REFERENCE_HEADER)]
    for block in blocks:
        end = ends[-1] + size_bytes(block) + (len(ends) > 1)
        if end > budget:
            break
        ends.append(end)
    count = len(ends) - 1
    suffix = ""
    while count < len(blocks):
        suffix = reference_suffix(len(blocks) - count)
        if ends[count] + size_bytes(suffix) <= budget:
            break
        suffix = ""
        if count == 0:
            break
        count -= 1
    return REFERENCE_HEADER + "\n".join(blocks[:count]) + suffix, count


def _block(card: Card) -> str:
    if not card.name:
        return ""
    text = card.short or card.description
    first = f"- `{card.name}`: {text}" if text else f"- `{card.name}`"
    return f"{first}\n  when: {card.when_to_use}" if card.when_to_use else first


def _reason(card: Card, *, in_catalog: bool, fitted: bool) -> OmittedReason | None:
    if card.disable_model_invocation:
        return "disable_model_invocation"
    if not in_catalog:
        return "catalog_limit"
    return None if fitted else "budget"


def _card(
    card: Card,
    *,
    reason: OmittedReason | None,
    size: int,
    runtime: Lifecycle | None,
    match: Match | None,
) -> ListedCard:
    return ListedCard(
        id=card.id,
        name=card.name,
        source=card.source,
        description=card.description,
        when_to_use=card.when_to_use,
        disable_model_invocation=card.disable_model_invocation,
        selected=reason is None,
        omitted_reason=reason,
        char_estimate=size,
        token_estimate=tokens_of(size),
        lifecycle=runtime or ("shown" if reason is None else "omitted"),
        matched=MatchEvidence(score=match.score, reason=match.reason) if match else None,
    )
