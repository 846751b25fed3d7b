"""Evidence of each turn: which skills the prompt showed, kept by its digest.

It follows from the cards and from what was loaded and used until then. So a replay makes it again,
and a digest that differs is a divergence like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tallystick.attachments.media import HEAD_BYTES, described
from tallystick.attachments.port import Declared
from tallystick.core.attachment import AttachmentRef
from tallystick.core.canonical import canonical, digest
from tallystick.core.direct import is_direct
from tallystick.core.machine import RunState
from tallystick.core.records import EvidenceRef, SkillsGiven
from tallystick.core.state import SkillState
from tallystick.runtime.shelf import Shelf
from tallystick.runtime.skills import cards_again, catalog_of
from tallystick.skills.card import Card
from tallystick.skills.evidence import Evidence

__all__ = [
    "MEDIA_TYPE",
    "EvidenceOf",
    "evidence_of",
    "kept_evidence",
    "no_evidence",
    "read_evidence",
]

MEDIA_TYPE = "application/json"
_LABEL = "skill evidence"

# The evidence of the turn that a state is about to ask in; None for a run without skills.
EvidenceOf = Callable[[RunState], EvidenceRef | None]


def no_evidence(state: RunState) -> None:
    """Of a run without skills."""
    return None


def kept_evidence(
    given: SkillsGiven | None, shelf: Shelf, *, cards: Sequence[Card] = (), live: bool = True
) -> EvidenceOf:
    """Evidence of a run's turns. `live`, its bytes are committed with the next record.

    Without `cards` they are read when they are needed.
    """
    if given is None:
        return no_evidence
    held = list(cards)
    made: dict[tuple[object, ...], EvidenceRef] = {}

    def keep(raw: bytes) -> AttachmentRef:
        if live:
            return shelf.keep(raw, media_type=MEDIA_TYPE, label=_LABEL)
        declared = Declared(media_type=MEDIA_TYPE, label=_LABEL)
        return described(
            id=digest(raw), byte_len=len(raw), head=raw[:HEAD_BYTES], declared=declared
        )

    def of(state: RunState) -> EvidenceRef | None:
        if is_direct(state):
            # Its prompt has no catalog.
            return None
        if not held:
            held.extend(cards_again(given, shelf))
        key = (state.skills.loaded, state.skills.used)
        if key not in made:
            evidence = evidence_of(given, held, state.skills)
            raw = canonical(evidence)
            made[key] = EvidenceRef(
                ref=keep(raw), shown=len(evidence.shown), omitted=len(evidence.omitted)
            )
        return made[key]

    return of


def evidence_of(given: SkillsGiven, cards: Sequence[Card], skills: SkillState) -> Evidence:
    """The evidence after what was loaded and used."""
    return catalog_of(given, cards, loaded=skills.loaded, used=skills.used).evidence


def read_evidence(ref: EvidenceRef, shelf: Shelf) -> Evidence:
    """The evidence that a turn recorded."""
    return msgspec.json.decode(shelf.read(ref.ref), type=Evidence)
