"""Layers: the places where skills are found, and which of two of one name counts.

From high to low: the directories that a command names, those of `TALLYSTICK_SKILLS`, the project's,
those of the setting `skills_paths`, the user's, and those of installed packages. A project's are
`.agents/skills` and `.claude/skills` in the working directory and above it, as far as the root of
the checkout; the nearest directory goes first. A home is the user's and never a project's.

Rule 1: nothing is imported and nothing is run to find a directory.
Rule 2: a project's directory has to lie within the project: a link out of it is not followed.
Rule 3: one directory is one layer. Under a second name it would only shadow itself.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import os
import re
import site
import sysconfig
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

from tallystick.core.errors import UsageError
from tallystick.settings.files import config_directory
from tallystick.settings.schema import one_line
from tallystick.skills.errors import SkillAmbiguous, SkillNotFound
from tallystick.skills.format.folder import Folder, Found, walked
from tallystick.skills.format.frontmatter import FILE_BYTES_MAX, Problem, flattened, split
from tallystick.skills.format.manifest import Card, Manifest, manifest_of

# Layers: the places where skills are found, and which of two of one name counts.
#
# Rule 1: a higher layer wins over a lower one, and within a layer the first by path. What lost is
# kept as shadowed, and what cannot be used as failed; nothing that was found goes without a word.
# Rule 2: below a layer's directory no link is followed. The directory itself may be a link, since
# it is the user who names it; one that a project names has to lie `within` the project.
# Rule 3: a scan is bounded in depth, directories and breadth, and says where it stopped.


LayerName = Literal["flag", "environment", "project", "config", "user", "package", "system", "host"]
# High to low.
LAYER_ORDER: tuple[LayerName, ...] = get_args(LayerName)
# Directories that somebody named, and that are missed if they are not there.
_NAMED: frozenset[LayerName] = frozenset({"flag", "environment", "config"})
_NEAR_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A directory that holds skills. `namespace` is put before the ids of all that is in it."""

    name: LayerName
    path: Path
    namespace: str = ""
    within: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """A skill that can be used, with its instructions left on the disk.

    `id` is the name, with its namespace before it. `file` is the name of its SKILL.md, `sha256` the
    digest of that file when it was found.
    """

    id: str
    name: str
    namespace: str
    layer: LayerName
    folder: Folder
    manifest: Manifest
    sha256: str
    problems: tuple[Problem, ...] = ()
    file: str = "SKILL.md"

    @property
    def card(self) -> Card:
        """What a catalog needs. Each text is one line, without characters that are not seen."""
        manifest = self.manifest
        return Card(
            id=self.id,
            name=self.name,
            source=self.layer,
            description=flattened(manifest.description),
            when_to_use=flattened(manifest.when_to_use),
            short=flattened(manifest.short),
            disable_model_invocation=manifest.disable_model_invocation,
            user_invocable=manifest.user_invocable,
            paths=manifest.paths,
            allowed_tools=manifest.allowed_tools,
            sha256=self.sha256,
        )

    def body(self) -> str:
        """The instructions, read now. Raises as `Folder.read` does."""
        return split(self.folder.read(self.file, bytes_max=FILE_BYTES_MAX)).body


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadowed:
    """A skill that another one of its id hides."""

    skill: Skill
    by: Skill


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """What was found and cannot be used, and why, in one line."""

    path: Path
    layer: LayerName
    why: str
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Registry:
    """All that a scan found.

    `skills` are in order of their ids; `truncated` says where a bound cut the scan.
    """

    skills: tuple[Skill, ...] = ()
    shadowed: tuple[Shadowed, ...] = ()
    failed: tuple[Failed, ...] = ()
    truncated: tuple[str, ...] = ()

    def find(self, name: str) -> Skill:
        """The skill of an id; or of a bare name, or the end of an id, that only one has."""
        asked = unicodedata.normalize("NFKC", name.strip())
        exact = self._by_id.get(asked)
        if exact is not None:
            return exact
        several = self._by_end.get(asked, ())
        if len(several) > 1:
            raise SkillAmbiguous(name=name, ids=[each.id for each in several])
        if several:
            return several[0]
        known = [*self._by_id, *self._by_end] if len(asked) <= 200 else []
        near = difflib.get_close_matches(asked, known, n=_NEAR_MAX)
        raise SkillNotFound(name=name, near=tuple(dict.fromkeys(near)))

    def cards(self) -> tuple[Card, ...]:
        """A card of every skill, in order of their ids."""
        return tuple(each.card for each in self.skills)

    @cached_property
    def _by_id(self) -> dict[str, Skill]:
        return {each.id: each for each in self.skills}

    @cached_property
    def _by_end(self) -> dict[str, list[Skill]]:
        ends: defaultdict[str, list[Skill]] = defaultdict(list)
        for skill in self.skills:
            parts = skill.id.split("/")
            for start in range(1, len(parts)):
                ends["/".join(parts[start:])].append(skill)
        return dict(ends)


def scan(layers: Sequence[Layer]) -> Registry:
    """Look through layers, high to low; those of one name in the order given.

    A directory that two layers share is looked through once, for the higher one.
    """
    scanned = _Scanned()
    for layer in sorted(layers, key=lambda each: LAYER_ORDER.index(each.name)):
        _scan_layer(layer, scanned)
    return Registry(
        skills=tuple(scanned.skills[id] for id in sorted(scanned.skills)),
        shadowed=tuple(scanned.shadowed),
        failed=tuple(scanned.failed),
        truncated=tuple(scanned.truncated),
    )


def skill_of(
    raw: bytes, *, folder: Folder, layer: LayerName, namespace: str = "", file: str = "SKILL.md"
) -> Skill | tuple[Problem, ...]:
    """The skill that a SKILL.md makes, or the problems for which it makes none."""
    manifest, problems = manifest_of(split(raw), directory=folder.path.name)
    if manifest is None:
        return problems
    id = f"{namespace}/{manifest.name}" if namespace else manifest.name
    return Skill(
        id=id,
        name=manifest.name,
        namespace=namespace,
        layer=layer,
        folder=Folder(folder.path, folder.root, id),
        manifest=manifest,
        sha256=hashlib.sha256(raw).hexdigest(),
        problems=problems,
        file=file,
    )


@dataclass(slots=True)
class _Scanned:
    """What the layers so far gave."""

    skills: dict[str, Skill] = field(default_factory=dict)
    shadowed: list[Shadowed] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    truncated: list[str] = field(default_factory=list)
    roots: set[tuple[int, int]] = field(default_factory=set)


def _scan_layer(layer: Layer, scanned: _Scanned) -> None:
    walk = walked(layer.path, within=layer.within, seen=scanned.roots, missed=layer.name in _NAMED)
    scanned.failed += [
        Failed(path=path, layer=layer.name, why=flattened(why)) for path, why in walk.failed
    ]
    scanned.truncated += [f"{layer.name}: {note}" for note in walk.truncated]
    for found in walk.found:
        _take(found, layer, walk.root, scanned)


def _take(found: Found, layer: Layer, root: Path, scanned: _Scanned) -> None:
    namespace = "/".join(each for each in (layer.namespace.strip("/"), found.namespace) if each)
    made = skill_of(
        found.raw,
        folder=Folder(found.path, root),
        layer=layer.name,
        namespace=namespace,
        file=found.file,
    )
    if not isinstance(made, Skill):
        why = next(each.message for each in made if each.level == "error")
        scanned.failed.append(Failed(path=found.path, layer=layer.name, why=why, problems=made))
        return
    first = scanned.skills.setdefault(made.id, made)
    if first is not made:
        scanned.shadowed.append(Shadowed(skill=made, by=first))


# Where skills are looked for: which directories there are, and which of them goes first.


SKILLS_VARIABLE = "TALLYSTICK_SKILLS"
# In the order in which they count. The first is where skills are put.
PROJECT_DIRECTORIES = (".agents/skills", ".claude/skills")
ENTRY_POINTS = "tallystick.skills"

_ENTRY_POINTS_BYTES_MAX = 1024 * 1024
_PACKAGE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLayers:
    """The layers from high to low, and a sentence for each directory that was left out."""

    layers: tuple[Layer, ...]
    notes: tuple[str, ...] = ()


def skill_layers(
    *,
    flags: Sequence[Path] = (),
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    settings_paths: Sequence[str | Path] = (),
) -> tuple[Layer, ...]:
    """The layers from high to low."""
    return find_layers(flags=flags, environ=environ, cwd=cwd, settings_paths=settings_paths).layers


def find_layers(
    *,
    flags: Sequence[Path] = (),
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    settings_paths: Sequence[str | Path] = (),
) -> FoundLayers:
    """The layers, and what was left out. A directory named by a flag has to be there."""
    notes: list[str] = []
    here = _working_directory(cwd)
    home = _home(environ)
    named = [
        _named(each, home, here) for each in environ.get(SKILLS_VARIABLE, "").split(os.pathsep)
    ]
    users = _user_directories(environ)
    layers = [
        *named_layers(flags).layers,
        *(Layer(name="environment", path=each) for each in named if each is not None),
        *_project_layers(here, home, users),
        *(
            Layer(name="config", path=each)
            for each in (_named(str(path), home, here) for path in settings_paths)
            if each is not None
        ),
        *(Layer(name="user", path=each) for each in users if os.path.isdir(each)),
        *package_layers(notes=notes),
    ]
    return FoundLayers(layers=tuple(_each_once(layers)), notes=tuple(notes))


def named_layers(paths: Sequence[Path]) -> FoundLayers:
    """These directories and no others, for what is not to depend on the machine."""
    return FoundLayers(layers=tuple(_each_once([*_flag_layers(paths)])))


def user_skills_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Where this user's skills are put."""
    return _home(environ) / PROJECT_DIRECTORIES[0]


def project_root(cwd: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """The root of the checkout that the working directory is in; without one, that directory."""
    here = _working_directory(cwd)
    if here is None:
        raise UsageError("the working directory is gone")
    walked = list(_upward(here, _home(environ)))
    is_checkout = bool(walked) and os.path.lexists(walked[-1] / ".git")
    return walked[-1] if is_checkout else here


def _flag_layers(flags: Sequence[Path]) -> Iterator[Layer]:
    for path in flags:
        if not os.path.isdir(path):
            raise UsageError(f"{one_line(str(path))}: there is no such directory")
        yield Layer(name="flag", path=path)


def _project_layers(here: Path | None, home: Path, users: Sequence[Path]) -> Iterator[Layer]:
    walked = [] if here is None else list(_upward(here, home))
    own = {os.path.realpath(each) for each in users}
    # Without a checkout nobody knows where a project ends: each directory is one by itself.
    root = walked[-1] if walked and os.path.lexists(walked[-1] / ".git") else None
    for directory in walked:
        for name in PROJECT_DIRECTORIES:
            path = directory / name
            if os.path.isdir(path) and os.path.realpath(path) not in own:
                yield Layer(name="project", path=path, within=root or directory)


def _upward(here: Path, home: Path) -> Iterator[Path]:
    """From here to the root of the checkout. A home ends it, and is not a part of it."""
    stop = os.path.realpath(home)
    for directory in (here, *here.parents):
        if str(directory) == stop:
            return
        yield directory
        if os.path.lexists(directory / ".git"):
            return


def _user_directories(environ: Mapping[str, str]) -> list[Path]:
    home = _home(environ)
    return [config_directory(environ) / "skills", *(home / each for each in PROJECT_DIRECTORIES)]


def _named(text: str, home: Path, here: Path | None) -> Path | None:
    """A directory as a person wrote it, whether it is there or not."""
    if not text:
        return None
    if text == "~" or text.startswith("~/"):
        return home / text[2:]
    return (here or Path("/")) / text


def _each_once(layers: Sequence[Layer]) -> Iterator[Layer]:
    seen: set[str] = set()
    for each in layers:
        real = os.path.realpath(each.path)
        if real not in seen:
            seen.add(real)
            yield each


def _working_directory(cwd: Path | None) -> Path | None:
    try:
        return Path(os.path.realpath(cwd or Path.cwd()))
    except FileNotFoundError:
        return None


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or Path.home())


# -- packages -----------------------------------------------------------------------------------
#
# An installed distribution that ships skills declares the entry point group `tallystick.skills`;
# the value is a top-level package, whose directory `skills` is a layer. The standard reader of
# entry points takes longer to import than all our layers take to scan, so the one file of each
# distribution is read here. Only the directories that pip installs into are looked in: the
# working directory may be on the path of modules, and what lies there is a project's.


def package_layers(
    *, directories: Sequence[str] | None = None, notes: list[str] | None = None
) -> tuple[Layer, ...]:
    """The layers of installed packages, in the order of their names. Imports none of them."""
    said = [] if notes is None else notes
    found: dict[str, Path] = {}
    for directory in _site_directories() if directories is None else directories:
        for package in _declared(directory):
            path = _package_directory(package, directory)
            if path is None:
                said.append(
                    f"package {one_line(package)} is left out: it has no directory `skills`, or is "
                    f"no top-level package"
                )
            else:
                found.setdefault(package, path)
    return tuple(Layer(name="package", path=found[name]) for name in sorted(found))


def _site_directories() -> list[str]:
    paths = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    if site.ENABLE_USER_SITE:
        paths.append(site.getusersitepackages())
    return list(dict.fromkeys(paths))


def _declared(directory: str) -> Iterator[str]:
    """The values of the entry points of the group, of all distributions in a directory."""
    try:
        names = sorted(each for each in os.listdir(directory) if each.endswith(".dist-info"))
    except OSError:
        return
    for name in names:
        try:
            with open(os.path.join(directory, name, "entry_points.txt"), "rb") as file:
                data = file.read(_ENTRY_POINTS_BYTES_MAX)
        except OSError:
            continue
        if f"[{ENTRY_POINTS}]".encode() in data:
            yield from _values(data.decode("utf-8", "replace"))


def _values(text: str) -> Iterator[str]:
    section = ""
    for line in text.splitlines():
        words = line.partition("#")[0].strip()
        if words.startswith("[") and words.endswith("]"):
            section = words[1:-1].strip()
        elif section == ENTRY_POINTS and "=" in words:
            yield words.partition("=")[2].strip()


def _package_directory(package: str, directory: str) -> Path | None:
    # Of a dotted name, the search would import what stands before the last dot.
    if not _PACKAGE.fullmatch(package):
        return None
    candidates = [os.path.join(directory, package)]
    if not os.path.isdir(candidates[0]):
        # Installed for editing: its files are elsewhere, and the import system knows where.
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            spec = None
        candidates = list(spec.submodule_search_locations or ()) if spec is not None else []
    paths = [Path(each) / "skills" for each in candidates]
    return next((each for each in paths if os.path.isdir(each)), None)
