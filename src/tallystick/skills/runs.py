"""The skills of a run, for runs with and without any: the one module that the runtime asks.

Most runs have none. So what reads, ranks and serves skills is imported by the functions below once
there is one; this module itself loads nothing of it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from tallystick.core.errors import UsageError
from tallystick.core.records import HostAnswered, Record, RunStarted, SkillLoaded, SkillsGiven
from tallystick.runtime.calls.functions import FunctionPolicy, RunFunction
from tallystick.runtime.context.attachments import RunAttachments
from tallystick.runtime.context.inputs import Input
from tallystick.runtime.journal.world import EvidenceOf, no_evidence
from tallystick.settings.settings import SkillSettings
from tallystick.skills.places import find_layers
from tallystick.storage.private_file import make_private, write_whole

if TYPE_CHECKING:
    # Under their own names again: the runtime takes these types from here too.
    from tallystick.skills.calls import SkillCalls as SkillCalls
    from tallystick.skills.format.manifest import Card
    from tallystick.skills.scripts import Scripts
    from tallystick.skills.skills import Skills as Skills

# The functions of programs that run a script of a skill.
SCRIPTED = ("skills.run", "skills.call")

_RECENT_MAX = 50
_RECENT_BYTES_MAX = 64 * 1024


def skills_here(
    settings: SkillSettings,
    *,
    flags: Sequence[Path] = (),
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    pinned: Sequence[str] = (),
    put: Sequence[str] = (),
    say: Callable[[str], None] = lambda line: None,
) -> Skills | None:
    """What runs may use of what is found; None if there is nothing. What may not be is said.

    Raises `SkillUntrusted` where a user puts a skill into the prompt that may not be used.
    """
    found = find_layers(flags=flags, environ=environ, cwd=cwd, settings_paths=settings.paths)
    for note in found.notes:
        say(note)
    if not found.layers:
        return None
    from tallystick.skills.installed import admitted_skills

    return admitted_skills(found, settings, environ=environ, pinned=pinned, put=put, say=say)


class Recent:
    """Which skills were loaded lately by this user's runs, in a small file beside the ledger.

    It only orders a catalog: one that cannot be read or written is as good as none.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "skills-recent.json"

    def ids(self) -> tuple[str, ...]:
        """The ids, the last one loaded first."""
        with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
            with self._path.open("rb") as file:
                raw = file.read(_RECENT_BYTES_MAX)
            return msgspec.json.decode(raw, type=tuple[str, ...])[:_RECENT_MAX]
        return ()

    def note(self, ids: Sequence[str]) -> None:
        """Put these in front, the last one first."""
        if not ids:
            return
        kept = tuple(dict.fromkeys([*reversed(ids), *self.ids()]))[:_RECENT_MAX]
        with contextlib.suppress(OSError):
            make_private(self._path.parent)
            write_whole(self._path, msgspec.json.encode(kept), forced=False)


def loaded_by(record: Record) -> str | None:
    """The skill that a record says was loaded."""
    if isinstance(record, HostAnswered) and isinstance(record.skill, SkillLoaded):
        return record.skill.id
    return None


def skills_asked(
    skills: Skills | None,
    put: Sequence[str],
    *,
    goal: str,
    inputs: Sequence[Input],
    run_attachments: RunAttachments,
    session: str,
) -> SkillsGiven | None:
    """What a run is given of skills; None if there are none. Raises if some are asked for then."""
    if skills is None:
        if put:
            raise UsageError(f"there are no skills here to load {put[0][:80]!r} from")
        return None
    from tallystick.skills.skills import given_skills

    files = [each.name for each in inputs]
    return given_skills(
        skills, goal=goal, put=put, files=files, run_attachments=run_attachments, session=session
    )


def skill_calls_for(
    given: SkillsGiven | None, skills: Skills | None, *, session_id: str, scripts: Scripts
) -> SkillCalls | None:
    """The desk of a run whose prompt names skills; None for another."""
    if given is None or not (given.rendered or given.put):
        return None
    from tallystick.skills.calls import NO_SKILLS, SkillCalls

    put = [each.id for each in given.put]
    return SkillCalls(skills or NO_SKILLS, session_id=session_id, scripts=scripts, put=put)


def policies_of(
    functions: Sequence[RunFunction], desk: SkillCalls | None
) -> dict[str, FunctionPolicy]:
    """What is written of each call, and when."""
    own: dict[str, FunctionPolicy] = {each.name: each.policy for each in functions}
    return own if desk is None else own | desk.policies()


def kept_evidence(
    given: SkillsGiven | None,
    run_attachments: RunAttachments,
    *,
    cards: Sequence[Card] = (),
    live: bool = True,
) -> EvidenceOf:
    """Return how the evidence of a run's turns is kept; of a run without skills there is none."""
    if given is None:
        return no_evidence
    from tallystick.skills.skills import evidence_keeper

    return evidence_keeper(given, run_attachments, cards=cards, live=live)


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


def drift_since(
    started: RunStarted,
    records: Sequence[Record],
    skills: Skills | None,
    run_attachments: RunAttachments,
) -> tuple[SkillDrift, ...]:
    """Return what of the skills that a run saw, loaded and used is another now."""
    if started.skills is None or skills is None:
        return ()
    from tallystick.skills.skills import cards_again
    from tallystick.skills.why import drift_of

    return drift_of(started.skills, cards_again(started.skills, run_attachments), records, skills)
