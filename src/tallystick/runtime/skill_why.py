"""Why a skill was seen, loaded or used in a run, or was not: in a sentence, from the record."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tallystick.core.attachment import AttachmentRef
from tallystick.core.records import (
    AskModel,
    HostAnswered,
    Record,
    RunProgram,
    RunStarted,
    SkillLoaded,
    SkillsGiven,
    SkillUsed,
)
from tallystick.runtime.shelf import Shelf
from tallystick.runtime.skill_evidence import read_evidence
from tallystick.runtime.skills import Skills, cards_again, catalog_of
from tallystick.skills.card import Card
from tallystick.skills.errors import SkillAmbiguous, SkillNotFound
from tallystick.skills.evidence import CardEvidence, Evidence

__all__ = ["Why", "why_here", "why_in_run"]


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a skill. `loaded` are turns, 0 for the user; `used` turns and what of it."""

    skill: str
    sentence: str
    run: str | None = None
    card: CardEvidence | None = None
    loaded: tuple[int, ...] = ()
    used: tuple[tuple[int, str], ...] = ()


def why_in_run(run: str, records: Sequence[Record], shelf: Shelf, name: str) -> Why:
    """What a run's record says of a skill. Raises `SkillNotFound` if the run had none of it."""
    started = records[0] if records else None
    given = started.skills if isinstance(started, RunStarted) else None
    if given is None:
        return Why(skill=name, run=run, sentence=f"Run {run} was given no skills.")
    card = _card_of(cards_again(given, shelf), name)
    evidence = _first_evidence(records, shelf)
    loaded, used = _touches(records, given, card.id)
    if evidence is None:
        told = "was not listed: no prompt of the run had a catalog"
        entry = None
    else:
        entry = next(each for each in evidence.cards if each.id == card.id)
        told = f"{_listed(entry, evidence)}; {_matched(entry)}"
    sentence = f"{card.id} ({card.source}) {told}; {_lived(loaded, used)}."
    return Why(skill=card.id, run=run, sentence=sentence, card=entry, loaded=loaded, used=used)


def why_here(skills: Skills, name: str) -> Why:
    """What would become of a skill in a run without a task, now."""
    card = skills.registry.find(name).card
    given = SkillsGiven(
        cards=AttachmentRef(id="", media_type="application/json", byte_len=0),
        rendered="",
        budget_chars=skills.budget_chars,
        limit=skills.limit,
        pinned=skills.pinned,
        recent=skills.recent,
    )
    evidence = catalog_of(given, skills.registry.cards()).evidence
    entry = next(each for each in evidence.cards if each.id == card.id)
    sentence = f"{card.id} ({card.source}) {_listed(entry, evidence, now=True)}."
    return Why(skill=card.id, sentence=sentence, card=entry)


def _card_of(cards: Sequence[Card], name: str) -> Card:
    exact = [each for each in cards if each.id == name]
    found = exact or [each for each in cards if each.name == name]
    if not found:
        raise SkillNotFound(name=name, what="skill in this run of the name")
    if len(found) > 1:
        raise SkillAmbiguous(name=name, ids=[each.id for each in found])
    return found[0]


def _first_evidence(records: Sequence[Record], shelf: Shelf) -> Evidence | None:
    """Of the first prompt that had a catalog: what is listed stays so for the whole run."""
    for record in records:
        if isinstance(record, AskModel) and record.evidence is not None:
            return read_evidence(record.evidence, shelf)
    return None


def _touches(
    records: Sequence[Record], given: SkillsGiven, id: str
) -> tuple[tuple[int, ...], tuple[tuple[int, str], ...]]:
    turns: dict[int, int] = {}
    loaded = [0] if any(each.id == id for each in given.put) else []
    used: list[tuple[int, str]] = []
    for record in records:
        if isinstance(record, RunProgram):
            turns[record.intent] = record.turn
        if not isinstance(record, HostAnswered) or record.skill is None or record.skill.id != id:
            continue
        turn = turns.get(record.program, 0)
        match record.skill:
            case SkillLoaded():
                loaded.append(turn)
            case SkillUsed() as touched:
                used.append((turn, touched.said))
    return tuple(dict.fromkeys(loaded)), tuple(dict.fromkeys(used))


def _listed(card: CardEvidence, evidence: Evidence, *, now: bool = False) -> str:
    was, could = ("is", "can") if now else ("was", "could")
    budget = f"{evidence.effective_budget_chars:,} characters"
    match card.omitted_reason:
        case "disable_model_invocation":
            return (
                f"{was} not listed: it says that models are not to load it; a user {could}, with "
                f"--skill {card.id}"
            )
        case "catalog_limit":
            return (
                f"{was} not listed: the catalog has room for {len(evidence.order):,} skills; "
                f"programs {could} find it with skills.search"
            )
        case "budget":
            return (
                f"{was} not listed: the catalog of {budget} was full before its place, "
                f"{card.rank:,} of {len(evidence.order):,}; programs {could} find it with "
                f"skills.search"
            )
        case None:
            how = {"full": "in full", "short": "in short", "name": "by its name alone"}
            less = ""
            if card.form in ("short", "name"):
                less = f", since its {card.char_estimate:,} characters did not fit into {budget}"
            return (
                f"{was} listed {how.get(card.form, card.form)}{less}, at place {card.rank:,} of "
                f"{len(evidence.order):,}"
            )


def _matched(card: CardEvidence) -> str:
    if card.matched is None:
        return "it was not among those that fit the task best"
    return f"it fits the task with a score of {card.matched.score:.2f} ({card.matched.reason})"


def _lived(loaded: Sequence[int], used: Sequence[tuple[int, str]]) -> str:
    said = []
    if 0 in loaded:
        said.append("the user put it into the prompt")
    turns = [str(each) for each in loaded if each]
    if turns:
        said.append(f"a program loaded it in turn {', '.join(turns)}")
    if used:
        what = ", ".join(f"{each} in turn {turn}" for turn, each in used)
        said.append(f"programs used {what}")
    return " and ".join(said) if said else "no program loaded or used it"
