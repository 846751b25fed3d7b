"""Explain why a skill was or was not seen, loaded or used in a run, and find what changed since."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

import msgspec

from tallystick.core.errors import LedgerError
from tallystick.core.json_text import digest
from tallystick.core.records import (
    AskModel,
    AttachmentRef,
    HostAnswered,
    Record,
    RunProgram,
    RunStarted,
    SkillLoaded,
    SkillsGiven,
    SkillUsed,
)
from tallystick.ledger.port import Ledger
from tallystick.runtime.context.attachments import RunAttachments
from tallystick.runtime.runs.history import resolve_run, whole_records
from tallystick.skills.catalog import CardEvidence, Evidence
from tallystick.skills.errors import (
    SkillAmbiguous,
    SkillNotFound,
    SkillPathRefused,
    SkillUnreadable,
    SkillUntrusted,
)
from tallystick.skills.format.manifest import Card
from tallystick.skills.skills import Skills, catalog_of, read_evidence, recorded_cards

# Drift: skills that differ from what a run saw of them.


class SkillDrift(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a skill that changed since a run.

    `now` is None if the skill or the file is not found, or cannot be read, here.
    """

    id: str
    file: str
    what: Literal["changed", "gone"]
    recorded: str
    now: str | None

    def __str__(self) -> str:
        said = "has changed since" if self.what == "changed" else "is not found here"
        return f"skill {self.id!r}: {self.file} {said}"


_FILE_BYTES_MAX = 16_000_000
_GONE = (SkillAmbiguous, SkillNotFound, SkillPathRefused, SkillUnreadable, SkillUntrusted)


def has_skills(ledger: Ledger, run: str) -> bool:
    """Return True if a run was given skills; False as well if its records cannot be read.

    Raise `ResumeRefused` if a body of the run was removed.
    """
    try:
        first = next(iter(whole_records(ledger, run)), None)
    except LedgerError:
        # The replay itself says what is wrong with it.
        return False
    return isinstance(first, RunStarted) and first.skills is not None


def drift_of(
    given: SkillsGiven, cards: Sequence[Card], records: Iterable[Record], now: Skills | None
) -> tuple[SkillDrift, ...]:
    """Return the files of skills that differ from what a run saw, loaded and used.

    They are in order of ids and paths. The last digest that the run recorded of a file counts. If
    `now` is None, all of them are gone.
    """
    seen: dict[tuple[str, str], str] = {(each.id, ""): each.sha256 for each in cards}
    seen |= {(each.id, ""): each.sha256 for each in given.put}
    for record in records:
        touched = record.skill if isinstance(record, HostAnswered) else None
        match touched:
            case SkillLoaded():
                seen[touched.id, ""] = touched.sha256
            case SkillUsed():
                path = (
                    touched.what if touched.how != "function" else touched.what.rpartition(":")[0]
                )
                seen[touched.id, path] = touched.sha256
    found = (_drift(id, file, sha256, now) for (id, file), sha256 in sorted(seen.items()))
    return tuple(each for each in found if each is not None)


def _drift(id: str, file: str, recorded: str, skills: Skills | None) -> SkillDrift | None:
    """Return how a file of a skill differs from its recorded digest; None if it does not.

    A file that cannot be read now counts as gone.
    """
    now = None
    shown = file or "SKILL.md"
    if skills is not None:
        try:
            skill = skills.registry.find(id)
            if skill.id == id:
                now = digest(skill.folder.read(file or skill.file, bytes_max=_FILE_BYTES_MAX))
        except _GONE:
            now = None
    if now == recorded:
        return None
    what: Literal["changed", "gone"] = "gone" if now is None else "changed"
    return SkillDrift(id=id, file=shown, what=what, recorded=recorded, now=now)


# Evidence of a recorded run, and why a skill was or was not seen, loaded or used in it: in a
# sentence, from the record.


class RecordedRuns(Protocol):
    """The part of a client that finds what its runs recorded."""

    @property
    def ledger(self) -> Ledger: ...

    def attachments_of(self, records: Sequence[Record]) -> RunAttachments:
        """Return the attachments of a recorded run, for reading."""
        ...


def evidence_of_run(client: RecordedRuns, run: str) -> tuple[Evidence, ...]:
    """Return what each model call of a run was shown of its skills, the first call first.

    A call whose prompt had no catalog is left out, so the result is empty for a run without skills.
    `run` is an id, the beginning of one, or "last". Raise `RunNotFound` or `UsageError` if that is
    no run. Raise an `AttachmentError` or `msgspec.MsgspecError` if the evidence cannot be read, and
    what `whole_records` raises.
    """
    records = whole_records(client.ledger, resolve_run(client.ledger, run))
    shown = [each.evidence for each in records if isinstance(each, AskModel) and each.evidence]
    if not shown:
        return ()
    run_attachments = client.attachments_of(records)
    return tuple(read_evidence(each, run_attachments) for each in shown)


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """The explanation for one skill.

    `loaded` are turns, 0 for the user; `used` are turns with what was used. `followed` are turns in
    which a child run followed it.
    """

    skill: str
    sentence: str
    run: str | None = None
    card: CardEvidence | None = None
    loaded: tuple[int, ...] = ()
    used: tuple[tuple[int, str], ...] = ()
    followed: tuple[int, ...] = ()


def why_in_run(client: RecordedRuns, run: str, name: str) -> Why:
    """Explain from a run's record what became of a skill; say so if the run was given no skills.

    `run` is an id, the beginning of one, or "last". Raise `RunNotFound` or `UsageError` if that is
    no run. Raise `SkillNotFound` if the run had no such skill, `SkillAmbiguous` if several have the
    name. Raise an `AttachmentError` or `msgspec.MsgspecError` if the recorded cards or evidence
    cannot be read, and what `whole_records` raises.
    """
    run = resolve_run(client.ledger, run)
    records = whole_records(client.ledger, run)
    started = records[0] if records else None
    given = started.skills if isinstance(started, RunStarted) else None
    if given is None:
        return Why(skill=name, run=run, sentence=f"Run {run} was given no skills.")
    run_attachments = client.attachments_of(records)
    card = _card_of(recorded_cards(given, run_attachments), name)
    evidence = _first_evidence(records, run_attachments)
    loaded, followed, used = _turns_of_use(records, given, card.id)
    if evidence is None:
        listing = "was not listed: no prompt of the run had a catalog"
        entry = None
    else:
        entry = next(each for each in evidence.cards if each.id == card.id)
        listing = f"{_listing_text(entry, evidence)}; {_match_text(entry)}"
    sentence = f"{card.id} ({card.source}) {listing}; {_use_text(loaded, followed, used)}."
    return Why(
        skill=card.id,
        run=run,
        sentence=sentence,
        card=entry,
        loaded=loaded,
        used=used,
        followed=followed,
    )


def why_here(skills: Skills, name: str) -> Why:
    """Explain what would become of a skill now, in a run without a task.

    Raise `SkillNotFound` or `SkillAmbiguous` if the name is not that of one skill.
    """
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
    sentence = f"{card.id} ({card.source}) {_listing_text(entry, evidence, now=True)}."
    return Why(skill=card.id, sentence=sentence, card=entry)


def _card_of(cards: Sequence[Card], name: str) -> Card:
    exact = [each for each in cards if each.id == name]
    found = exact or [each for each in cards if each.name == name]
    if not found:
        raise SkillNotFound(name=name, what="skill in this run of the name")
    if len(found) > 1:
        raise SkillAmbiguous(name=name, ids=tuple(each.id for each in found))
    return found[0]


def _first_evidence(records: Sequence[Record], run_attachments: RunAttachments) -> Evidence | None:
    """Return the evidence of the first prompt with a catalog; None if no prompt had one.

    What is listed stays the same for the whole run. Raise what `read_evidence` raises.
    """
    for record in records:
        if isinstance(record, AskModel) and record.evidence is not None:
            return read_evidence(record.evidence, run_attachments)
    return None


def _turns_of_use(
    records: Sequence[Record], given: SkillsGiven, id: str
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, str], ...]]:
    """Return the turns in which a skill was loaded, followed by a child run, and used.

    The last are given with what was used of it. Each is there once; turn 0 is the user's, before
    the first.
    """
    turns: dict[int, int] = {}
    loaded = [0] if any(each.id == id for each in given.put) else []
    followed: list[int] = []
    used: list[tuple[int, str]] = []
    for record in records:
        if isinstance(record, RunProgram):
            turns[record.intent] = record.turn
        if not isinstance(record, HostAnswered) or record.skill is None or record.skill.id != id:
            continue
        turn = turns.get(record.program, 0)
        match record.skill:
            case SkillLoaded(by_child=True):
                followed.append(turn)
            case SkillLoaded():
                loaded.append(turn)
            case SkillUsed() as touched:
                used.append((turn, touched.said))
    once = tuple(dict.fromkeys(loaded)), tuple(dict.fromkeys(followed))
    return *once, tuple(dict.fromkeys(used))


def _listing_text(card: CardEvidence, evidence: Evidence, *, now: bool = False) -> str:
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


def _match_text(card: CardEvidence) -> str:
    if card.matched is None:
        return "it was not among those that fit the task best"
    return f"it fits the task with a score of {card.matched.score:.2f} ({card.matched.reason})"


def _use_text(
    loaded: Sequence[int], followed: Sequence[int], used: Sequence[tuple[int, str]]
) -> str:
    said = []
    if 0 in loaded:
        said.append("the user put it into the prompt")
    turns = [str(each) for each in loaded if each]
    if turns:
        said.append(f"a program loaded it in turn {', '.join(turns)}")
    if followed:
        said.append(f"a child run followed it in turn {', '.join(map(str, followed))}")
    if used:
        what = ", ".join(f"{each} in turn {turn}" for turn, each in used)
        said.append(f"programs used {what}")
    return " and ".join(said) if said else "no program loaded or used it"
