"""What a run's ledger says of skills: which were there, shown, matched, loaded and used.

What is shown follows from the cards, the goal and what was loaded and used until then: whoever has
the record can fit the catalog again and compare. The tags are those that other hosts write.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tallystick.core.attachment import AttachmentRef

__all__ = [
    "FILES_TOLD_MAX",
    "EvidenceRef",
    "PutSkill",
    "SkillLoaded",
    "SkillMatch",
    "SkillMatched",
    "SkillUsed",
    "SkillsGiven",
    "files_told",
]

FILES_TOLD_MAX = 12


class SkillMatch(msgspec.Struct, frozen=True, kw_only=True):
    """A skill that fits what was asked, how well, and by what."""

    id: str
    score: float
    reason: str


class PutSkill(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A skill that the user put into the prompt, with its instructions as they were filled in."""

    id: str
    source: str
    sha256: str
    text: str
    arguments: tuple[str, ...] = ()
    disable_model_invocation: bool = False
    allowed_tools: tuple[str, ...] | None = None
    files: tuple[str, ...] = ()


class SkillsGiven(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The skills of a run when it began.

    `cards` are what was known of each, as JSON; `rendered` is the catalog in the prompt, fitted to
    `budget_chars`. Its order comes from `pinned`, `matched` and `recent`; `roots` are the layers
    that were looked through, each with its directory. `begin` is the first block that the model is
    shown: weak models write what they see.
    """

    cards: AttachmentRef
    rendered: str
    budget_chars: int
    limit: int | None = None
    pinned: tuple[str, ...] = ()
    recent: tuple[str, ...] = ()
    strategy: str = "metadata"
    candidates: tuple[SkillMatch, ...] = ()
    matched: tuple[str, ...] = ()
    put: tuple[PutSkill, ...] = ()
    roots: tuple[tuple[str, str], ...] = ()
    begin: str = ""


class SkillMatched(msgspec.Struct, frozen=True, kw_only=True, tag="skill_matched"):
    """The goal was compared with the skills; written also where none fits.

    `candidates` are all that fit at all, `matched` those that were chosen.
    """

    strategy: str
    candidates: tuple[SkillMatch, ...]
    matched: tuple[str, ...]


class SkillLoaded(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="skill.loaded"
):
    """A program read the instructions of a skill. `sha256` is of the file they stand in.

    `told` is what of them the model is told, where the answer is so long that it is kept apart;
    `files` are others in its folder, the first of them.
    """

    id: str
    source: str
    sha256: str
    token_estimate: int
    disable_model_invocation: bool = False
    allowed_tools: tuple[str, ...] | None = None
    provenance: Literal["program", "user"] = "program"
    told: str = ""
    files: tuple[str, ...] = ()


class SkillUsed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="skill.used"):
    """A program opened a file of a skill, ran a script of it, or called a function in one.

    `sha256` is of that file. What a script used counts for the run.
    """

    id: str
    how: Literal["resource", "script", "function"]
    what: str
    sha256: str
    fuel: int = 0
    host_calls: int = 0

    @property
    def said(self) -> str:
        """As the evidence names it."""
        return f"{self.how} {self.what}"


class EvidenceRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The evidence of one turn: kept apart, and named by its digest."""

    ref: AttachmentRef
    shown: int
    omitted: int


def files_told(id: str, files: tuple[str, ...]) -> str:
    """How the files of a skill are reached; nothing if it has none.

    Instructions name them as if they were at hand, and to `open` they are not there.
    """
    if not files:
        return ""
    told = [
        f"Files of this skill: {', '.join(files)}.",
        f"Read one: print(skills.read({id!r}, {files[0]!r})).",
    ]
    script = next((each for each in files if each.endswith(".py")), None)
    if script is not None:
        told.append(f"Run one: print(skills.run({id!r}, {script!r})).")
    return " ".join(told)
