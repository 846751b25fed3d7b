"""What the commands of `tally skills` share: their options, and the skills that are found here."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from tallystick.core.errors import UsageError
from tallystick.runtime.config_file import config_directory
from tallystick.runtime.config_keys import one_line
from tallystick.runtime.settings import load_settings
from tallystick.runtime.skill_files import SKILL_FILES, skill_at
from tallystick.runtime.skill_layers import FoundLayers, find_layers, named_layers
from tallystick.runtime.skill_settings import SkillSettings
from tallystick.runtime.skill_trust import Admitted, SkillTrust
from tallystick.skills.errors import SkillNotFound, SkillPathRefused, SkillUnreadable
from tallystick.skills.layers import Registry, Skill, scan
from tallystick.skills.line import one_line as flat
from tallystick.skills.problem import Problem

__all__ = [
    "DIRECTORIES",
    "JSON",
    "FoundSkills",
    "echo_json",
    "echo_problems",
    "find_skills",
    "folder_named",
    "folder_to_check",
    "shown",
    "skill_in",
    "skill_trust",
    "text_shown",
]

_SHOWN_CHARS_MAX = 200

DIRECTORIES = click.option(
    "--dir", "directories", multiple=True, type=click.Path(path_type=Path), metavar="DIR",
    help="Look for skills here and nowhere else; may be repeated.",
)  # fmt: skip
JSON = click.option("--json", "as_json", is_flag=True, help="Print as JSON.")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSkills:
    """Where was looked, all that was found there, and what of it may be used."""

    layers: FoundLayers
    registry: Registry
    admitted: Admitted
    settings: SkillSettings
    warnings: tuple[str, ...]

    def find(self, name: str) -> Skill:
        """The skill that counts under a name; if none does, the one that would."""
        try:
            return self.admitted.registry.find(name)
        except SkillNotFound:
            return self.registry.find(name)

    def refused(self) -> Registry:
        """Those that may not be used, the highest of each id."""
        first: dict[str, Skill] = {}
        for each in self.admitted.refused:
            first.setdefault(each.skill.id, each.skill)
        return Registry(skills=tuple(first[id] for id in sorted(first)))

    def folder_of(self, name: str) -> Path:
        """The folder of a skill, also of one that failed."""
        try:
            return self.find(name).folder.path
        except SkillNotFound:
            failed = (each.path for each in self.registry.failed if each.path.name == name)
            path = next(failed, None)
            if path is None:
                raise
            return path

    def why_not(self, skill: Skill) -> str | None:
        """Why a skill may not be used, if so."""
        found = (each.why for each in self.admitted.refused if each.skill is skill)
        return next(found, None)


def find_skills(directories: Sequence[Path] = ()) -> FoundSkills:
    """Look in these directories; without any, in all layers. The policy holds in either case."""
    settings = load_settings()
    layers = (
        named_layers(directories)
        if directories
        else find_layers(settings_paths=settings.skills.paths)
    )
    registry = scan(layers.layers)
    return FoundSkills(
        layers=layers,
        registry=registry,
        admitted=skill_trust(settings.skills).admitted(registry),
        settings=settings.skills,
        warnings=settings.warnings,
    )


def skill_trust(settings: SkillSettings | None = None) -> SkillTrust:
    """Trust as this user keeps it."""
    return SkillTrust(config_directory(os.environ), settings=settings)


def folder_named(text: str) -> Path | None:
    """The folder of a skill if that is what a text names: by a path, or by its SKILL.md.

    A word that is both a folder here and a skill's id is the folder if there is a SKILL.md in it.
    """
    path = Path(text).expanduser()
    if path.name in SKILL_FILES and not os.path.isdir(path):
        return path.parent
    if text in {".", ".."} or text.startswith(("/", "./", "../", "~")):
        return path
    has_skill = any(os.path.lexists(path / each) for each in SKILL_FILES)
    return path if os.path.isdir(path) and ("/" in text or has_skill) else None


def folder_to_check(text: str, directories: Sequence[Path] = ()) -> Path:
    """The folder that a path or a name means, whatever is in it."""
    path = folder_named(text)
    if path is None:
        try:
            return find_skills(directories).folder_of(text)
        except SkillNotFound:
            if not os.path.isdir(text):
                raise
            path = Path(text)
    if not os.path.isdir(path):
        raise UsageError(f"{one_line(str(path))}: there is no such directory")
    return path


def skill_in(path: Path) -> Skill:
    """The skill in a folder that a command names."""
    if not os.path.isdir(path):
        raise UsageError(f"{one_line(str(path))}: there is no such directory")
    try:
        return skill_at(path)
    except (SkillPathRefused, SkillUnreadable) as error:
        raise UsageError(one_line(str(error))) from error


def echo_json(value: Any) -> None:  # noqa: ANN401 (whatever is to be printed)
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        # A path whose bytes are no text: in escapes, from which it can be had back.
        text = json.dumps(msgspec.to_builtins(value), separators=(",", ":"))
    click.echo(text)


def echo_problems(problems: Iterable[Problem], *, err: bool = False) -> None:
    for each in problems:
        click.echo(f"{each.level}: {each.code}: {one_line(each.message)}", err=err)


def shown(text: str) -> str:
    """A text of a stranger, short and safe, on one line."""
    line = flat(text)
    cut = line if len(line) <= _SHOWN_CHARS_MAX else f"{line[:_SHOWN_CHARS_MAX]}…"
    return one_line(cut)


def text_shown(text: str) -> str:
    """A text of many lines with nothing in it that a terminal obeys."""
    if all(each.isprintable() or each in "\n\t" for each in text):
        return text
    return "".join(
        each if each.isprintable() or each in "\n\t" else repr(each)[1:-1] for each in text
    )
