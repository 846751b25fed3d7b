"""The skills that a command finds for its runs, and which of them were loaded lately.

Most runs have none. What reads and ranks skills is imported once there is one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tallystick.core.records import HostAnswered, Record, SkillLoaded
from tallystick.settings.settings import SkillSettings
from tallystick.skills.places import find_layers
from tallystick.storage.private_file import make_private, write_whole

if TYPE_CHECKING:
    from tallystick.skills.skills import Skills

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
