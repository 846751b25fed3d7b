"""Manage skills on this machine: read, create and copy them, and admit those that are trusted.

Rule 1: a copy has the ordinary files of a folder and nothing else; whatever is in them, nothing is
run. An entry that would be left out, such as a link, is a reason not to copy.
Rule 2: a folder appears under its name when it is whole, or not at all.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tallystick.core.errors import StoreError, UsageError, system_errors
from tallystick.settings.files import config_directory
from tallystick.settings.paths import data_directory
from tallystick.settings.schema import one_line
from tallystick.settings.settings import SkillSettings
from tallystick.skills.errors import SkillNotFound, SkillUnreadable, SkillUntrusted
from tallystick.skills.format.bundle import BUNDLE_BYTES_MAX, Bundle, bundle_of
from tallystick.skills.format.folder import Folder
from tallystick.skills.format.frontmatter import FILE_BYTES_MAX, has_hidden
from tallystick.skills.found import Recent
from tallystick.skills.layers import Registry, Skill, scan, skill_of
from tallystick.skills.places import FoundLayers
from tallystick.skills.skills import Skills, root_text, words_of
from tallystick.skills.trust import Admitted, SkillTrust

SKILL_FILES = ("SKILL.md", "skill.md")

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*", re.ASCII)
_NAME_CHARS_MAX = 64
_LEFT_OUT = frozenset({".git", ".hg", ".svn", ".bzr", ".jj", "cvs", "__pycache__"})
_ENTRIES_MAX = 20_000

_PATTERN = """\
---
name: {name}
description: Says in one or two sentences what this skill does, and when to use it.
---

# {title}

1. Say here what to do first.
2. Say how to tell that it is done.

Files beside this one are read when they are needed, with their paths from this folder.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A skill that was copied: where it is, its files, and whether it replaced another."""

    path: Path
    bundle: Bundle
    replaced: bool


def skill_at(path: Path) -> Skill:
    """Return the skill in a folder that a user names.

    Raise `SkillNotFound` if there is none, `SkillUnreadable` if it cannot be used, and
    `SkillPathRefused` if its file is a link or the like.
    """
    folder = Folder(Path(os.path.realpath(path)))
    for file in SKILL_FILES:
        try:
            raw = folder.read(file, bytes_max=FILE_BYTES_MAX)
        except SkillNotFound:
            continue
        made = skill_of(raw, folder=folder, layer="flag", file=file)
        if isinstance(made, Skill):
            return made
        why = next(each.message for each in made if each.level == "error")
        raise SkillUnreadable(id=folder.path.name, why=why)
    raise SkillNotFound(name=str(path), what="SKILL.md in")


def new_skill(directory: Path, name: str) -> Path:
    """Make a folder with a SKILL.md to start from, and return its path.

    Raise `UsageError` if the name is not valid or the folder exists already, `StoreError` if it
    cannot be written.
    """
    if not _NAME.fullmatch(name) or len(name) > _NAME_CHARS_MAX:
        raise UsageError(
            f"{one_line(name)!r} is not a name for a skill: small letters and digits, with single "
            f"hyphens between them, {_NAME_CHARS_MAX} at most"
        )
    path = directory / name
    title = name.replace("-", " ").capitalize()
    with _temporary_folder(directory, name) as made:
        (made / "SKILL.md").write_text(_PATTERN.format(name=name, title=title), encoding="utf-8")
        _move_into_place(made, path, force=False)
    return path


def install_skill(source: Folder, *, into: Path, name: str, force: bool = False) -> Installed:
    """Copy a skill's folder into a directory. An existing skill is replaced only with `force`.

    Raise `UsageError` if the name cannot be a folder's, if the folder exists already, is no skill,
    or is the source itself. Raise it too if `into` is no directory, and if the source has an entry
    that would not be copied, or more than 20,000. Raise `StoreError` if the copy cannot be written.
    Raise `SkillNotFound`, `SkillPathRefused` or `SkillUnreadable` if the source cannot be read
    whole. An error leaves the old folder in place.
    """
    if not name or name in {".", ".."} or "/" in name or "\0" in name:
        raise UsageError(f"{one_line(name)!r} cannot be the name of a folder")
    path = into / name
    if os.path.lexists(path) and not force:
        raise UsageError(f"{one_line(str(path))} is there already; --force replaces it")
    if os.path.realpath(path) == os.path.realpath(source.path):
        raise UsageError(f"{one_line(str(path))} is the skill's folder already")
    odd = _odd_entry(source.path)
    if odd is not None:
        raise UsageError(
            f"{one_line(str(odd))} is a link, or no ordinary file, or its name hides characters; "
            f"a skill is copied without such"
        )
    with _temporary_folder(into, name) as made:
        for each in source.files():
            data = source.read(each.path, bytes_max=BUNDLE_BYTES_MAX)
            target = made / each.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            # Other clients that share the directory run scripts by their names.
            if os.stat(source.path / each.path, follow_symlinks=False).st_mode & stat.S_IXUSR:
                target.chmod(0o755)
        # Of the copy: the source may have changed meanwhile.
        bundle = bundle_of(Folder(made))
        replaced = _move_into_place(made, path, force=force)
    return Installed(path=path, bundle=bundle, replaced=replaced)


@contextmanager
def _temporary_folder(directory: Path, name: str) -> Iterator[Path]:
    """Make a folder beside `directory`, where no search for skills finds it; yield its path.

    `directory` is made if it is missing. The folder is removed at the end, unless it was moved.
    Raise `UsageError` if `directory` is not one, `StoreError` for an `OSError`, also of the body.
    """
    if os.path.lexists(directory) and not os.path.isdir(directory):
        raise UsageError(f"{one_line(str(directory))}: not a directory")
    with system_errors(one_line(str(directory)), StoreError):
        directory.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(dir=directory.resolve().parent, prefix=".tally-skill-"))
        try:
            made = beside / name
            made.mkdir()
            yield made
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def _move_into_place(made: Path, path: Path, *, force: bool) -> bool:
    """Move a folder to its path. Return True if it replaced another.

    The other one is then beside `made`, for its owner to remove. Raise `UsageError` if there is one
    and `force` is false, or if that one is not a skill; `OSError` if the system fails.
    """
    if not os.path.lexists(path):
        os.rename(made, path)
        return False
    if not force:
        raise UsageError(f"{one_line(str(path))} is there already")
    if not (path / "SKILL.md").is_file() and not (path / "skill.md").is_file():
        raise UsageError(f"{one_line(str(path))} exists and is not a skill; remove it yourself")
    old = made.with_name(f"{made.name}.old")
    os.rename(path, old)
    try:
        os.rename(made, path)
    except OSError:
        os.rename(old, path)
        raise
    return True


def _odd_entry(folder: Path) -> Path | None:
    """Return the first entry that would not be copied; None if all would.

    Version control and compiled Python do not count. Raise `UsageError` for more than 20,000
    entries.
    """
    seen = 0
    for directory, names, files in os.walk(folder):
        names[:] = [each for each in names if each.casefold() not in _LEFT_OUT]
        for each in (*names, *files):
            seen += 1
            path = Path(directory, each)
            mode = os.lstat(path).st_mode
            if has_hidden(each) or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                return path
            if seen > _ENTRIES_MAX:
                raise UsageError(f"{one_line(str(folder))}: more than {_ENTRIES_MAX:,} entries")
    return None


# The trusted skills of the layers that a command found, as one registry.


def admitted_skills(
    found: FoundLayers,
    settings: SkillSettings,
    *,
    environ: Mapping[str, str],
    pinned: Sequence[str],
    put: Sequence[str],
    say: Callable[[str], None],
) -> Skills | None:
    """Return the skills of these layers that may be used; None if there are none.

    `say` is called once, with one line, if some may not be used. Then `put`, the skills for the
    prompt, is checked: raise `SkillUntrusted` if it names one of those, `SkillAmbiguous` for the
    name of several, `SkillArguments` for a text that names none. Raise `StoreError` if the notes of
    trust cannot be read, or if others may write them.
    """
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
    """Raise `SkillUntrusted` for a skill in `put` that was found and may not be used.

    Otherwise a later look-up would raise that there is no such skill. Raise `SkillAmbiguous` for
    the name of several skills, and `SkillArguments` for a text that names none.
    """
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
