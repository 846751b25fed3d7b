"""Drift: skills that are not any more what a run saw of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from tallystick.core.canonical import digest
from tallystick.core.errors import LedgerError
from tallystick.core.records import (
    HostAnswered,
    Record,
    RunStarted,
    SkillLoaded,
    SkillsGiven,
    SkillUsed,
)
from tallystick.ledger.port import Ledger
from tallystick.runtime.history import whole_records
from tallystick.runtime.skills import Skills
from tallystick.skills.card import Card
from tallystick.skills.errors import (
    SkillAmbiguous,
    SkillNotFound,
    SkillPathRefused,
    SkillUnreadable,
    SkillUntrusted,
)

__all__ = ["SkillDrift", "drift_of", "has_skills"]

_FILE_BYTES_MAX = 16_000_000
_GONE = (SkillAmbiguous, SkillNotFound, SkillPathRefused, SkillUnreadable, SkillUntrusted)


class SkillDrift(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a skill that changed since a run. `now` is None where it is gone."""

    id: str
    file: str
    what: Literal["changed", "gone"]
    recorded: str
    now: str | None

    def __str__(self) -> str:
        said = "has changed since" if self.what == "changed" else "is not found here"
        return f"skill {self.id!r}: {self.file} {said}"


def has_skills(ledger: Ledger, run: str) -> bool:
    """Whether a run was given skills."""
    try:
        first = next(iter(whole_records(ledger, run)), None)
    except LedgerError:
        # The replay itself says what is wrong with it.
        return False
    return isinstance(first, RunStarted) and first.skills is not None


def drift_of(
    given: SkillsGiven, cards: Sequence[Card], records: Iterable[Record], now: Skills | None
) -> tuple[SkillDrift, ...]:
    """What of the skills that a run saw, loaded and used is another now."""
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
