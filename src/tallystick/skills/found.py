"""Find the skills that runs may use, and remember which were loaded lately.

Most runs have none. The modules that read and rank skills are imported once there is one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tallystick.core.records import HostAnswered, Record, SkillLoaded
from tallystick.settings.settings import Settings, SkillSettings, load_settings
from tallystick.skills.places import find_layers
from tallystick.storage.private_file import make_private, write_whole

if TYPE_CHECKING:
    from tallystick.skills.skills import Skills

_RECENT_MAX = 50
_RECENT_BYTES_MAX = 64 * 1024


def find_usable_skills(
    settings: SkillSettings,
    *,
    flags: Sequence[Path] = (),
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    pinned: Sequence[str] = (),
    put: Sequence[str] = (),
    say: Callable[[str], None] = lambda line: None,
) -> Skills | None:
    """Return what runs may use of the skills that are found; None if no skill may be used.

    `say` is called with a line for each package that is left out, and one for all skills that are
    not used. Raise `UsageError` if a directory of `flags` does not exist, and the errors of
    `admitted_skills`: `SkillUntrusted` if `put`, the skills for the prompt, names one that may not
    be used, `SkillAmbiguous` or `SkillArguments` for a name that is not that of one skill, and
    `StoreError` if the notes of trust cannot be read.
    """
    found = find_layers(flags=flags, environ=environ, cwd=cwd, settings_paths=settings.paths)
    for note in found.notes:
        say(note)
    if not found.layers:
        return None
    from tallystick.skills.installed import admitted_skills

    return admitted_skills(found, settings, environ=environ, pinned=pinned, put=put, say=say)


def find_skills(
    *directories: str | Path,
    settings: Settings | None = None,
    pinned: Sequence[str] = (),
    say: Callable[[str], None] = lambda line: None,
) -> Skills | None:
    """Return the skills that `tally run` would find here, for `Agent(skills=…)`.

    The first layer are these directories, as with `--skills`, then those of the variable
    `TALLYSTICK_SKILLS` and the project's. Below are those of the setting `skills_paths`, the
    user's, and those of installed packages. Of two skills with one id, that of the higher layer is
    returned. Skills that need the user's trust and do not have it are left out; `say` is called
    with a line about them. `pinned` are ids that a catalog lists first.

    `settings` say which directories to add, the room for the catalog, and whether signatures are
    required; without them, the configuration is read. Return None if no skill may be used. Raise
    `UsageError` if one of the directories does not exist, what `load_settings` raises, and
    `StoreError` if the notes of trust cannot be read.
    """
    chosen = load_settings() if settings is None else settings
    flags = [Path(each) for each in directories]
    return find_usable_skills(chosen.skills, flags=flags, pinned=pinned, say=say)


class Recent:
    """The skills that this user's runs loaded lately, in a small file of a directory.

    It only orders a catalog: a file that cannot be read counts as empty, and a failed write is
    ignored.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "skills-recent.json"

    def ids(self) -> tuple[str, ...]:
        """Return at most 50 ids, the last one loaded first; none if the file cannot be read."""
        with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
            with self._path.open("rb") as file:
                raw = file.read(_RECENT_BYTES_MAX)
            return msgspec.json.decode(raw, type=tuple[str, ...])[:_RECENT_MAX]
        return ()

    def note(self, ids: Sequence[str]) -> None:
        """Put these ids in front, the last one first, and write the first 50 of all.

        Without ids, nothing is written.
        """
        if not ids:
            return
        kept = tuple(dict.fromkeys([*reversed(ids), *self.ids()]))[:_RECENT_MAX]
        with contextlib.suppress(OSError):
            make_private(self._path.parent)
            write_whole(self._path, msgspec.json.encode(kept), forced=False)


def loaded_skill_id(record: Record) -> str | None:
    """Return the id of the skill that a record says was loaded; None for any other record."""
    if isinstance(record, HostAnswered) and isinstance(record.skill, SkillLoaded):
        return record.skill.id
    return None
