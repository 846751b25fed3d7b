"""The skills that a command finds here: what is trusted of the layers, what was used lately."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from tallystick.core.records import HostAnswered, Record, SkillLoaded
from tallystick.runtime.config_file import config_directory
from tallystick.runtime.paths import data_directory
from tallystick.runtime.skill_layers import find_layers
from tallystick.runtime.skill_settings import SkillSettings
from tallystick.runtime.skill_trust import Admitted, SkillTrust
from tallystick.runtime.skills import Skills, root_text, words_of
from tallystick.skills.errors import SkillNotFound, SkillUntrusted
from tallystick.skills.layers import Registry, scan

__all__ = ["Recent", "loaded_by", "skills_here"]

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
    admitted = SkillTrust(config_directory(environ), settings=settings).admitted(scan(found.layers))
    if admitted.refused:
        names = ", ".join(each.skill.id for each in admitted.refused[:3])
        more = len(admitted.refused) - 3
        named = f"{names} and {more} more" if more > 0 else names
        count = len(admitted.refused)
        are = "skill that was found is" if count == 1 else "skills that were found are"
        say(f"{count} {are} not used ({named}); tally skills list says why")
        _check_put(put, admitted)
    if not admitted.registry.skills:
        return None
    return Skills(
        registry=admitted.registry,
        roots=tuple((each.name, root_text(each.path)) for each in found.layers),
        budget_chars=settings.budget,
        pinned=tuple(pinned),
        recent=Recent(data_directory(environ)).ids(),
        bundles=admitted.bundles,
    )


def _check_put(put: Sequence[str], admitted: Admitted) -> None:
    """Say of a skill that is asked for why it may not be used, rather than that there is none."""
    whys: dict[str, str] = {}
    for each in admitted.refused:
        whys.setdefault(each.skill.id, each.why)
    refused = Registry(skills=tuple(each.skill for each in admitted.refused))
    for asked in put:
        name, _ = words_of(asked)
        try:
            admitted.registry.find(name)
        except SkillNotFound:
            with contextlib.suppress(SkillNotFound):
                id = refused.find(name).id
                raise SkillUntrusted(id=id, why=whys[id]) from None


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
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=self._path.parent, prefix=".recent-")
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(kept))
            os.replace(name, self._path)


def loaded_by(record: Record) -> str | None:
    """The skill that a record says was loaded."""
    if isinstance(record, HostAnswered) and isinstance(record.skill, SkillLoaded):
        return record.skill.id
    return None
