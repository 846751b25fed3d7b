"""Find the directories that may hold skills, and their precedence.

From high to low: the directories that a command names, those of `TALLYSTICK_SKILLS`, the project's,
those of the setting `skills_paths`, the user's, and those of installed packages. A project's are
`.agents/skills` and `.claude/skills` in the working directory and above it, as far as the root of
the checkout; the nearest directory goes first. A home is the user's and never a project's.

Rule 1: nothing is imported and nothing is run to find a directory.
Rule 2: a project's directory has to lie within the project: a link out of it is not followed.
Rule 3: one directory is one layer. Under a second name it would only shadow itself.
"""

from __future__ import annotations

import importlib.util
import os
import re
import site
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from tallystick.core.errors import UsageError
from tallystick.settings.files import config_directory
from tallystick.settings.schema import one_line

LayerName = Literal["flag", "environment", "project", "config", "user", "package", "system", "host"]
# High to low.
LAYER_ORDER: tuple[LayerName, ...] = get_args(LayerName)

SKILLS_VARIABLE = "TALLYSTICK_SKILLS"
# In order of precedence. New skills are put into the first.
PROJECT_DIRECTORIES = (".agents/skills", ".claude/skills")
ENTRY_POINTS = "tallystick.skills"

_ENTRY_POINTS_BYTES_MAX = 1024 * 1024
_PACKAGE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A directory that holds skills.

    `namespace` is put before the ids of all that is in it. With `within`, its real path has to lie
    in that directory.
    """

    name: LayerName
    path: Path
    namespace: str = ""
    within: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLayers:
    """The layers from high to low, and a sentence for each directory that was left out."""

    layers: tuple[Layer, ...]
    notes: tuple[str, ...] = ()


def find_layers(
    *,
    flags: Sequence[Path] = (),
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    settings_paths: Sequence[str | Path] = (),
) -> FoundLayers:
    """Return the layers, and what was left out.

    `cwd` is the working directory of the process by default. Raise `UsageError` if a directory of
    `flags` does not exist. Those of the environment and of the settings need not exist.
    """
    notes: list[str] = []
    here = _working_directory(cwd)
    home = _home(environ)
    named = [
        _directory_of(each, home, here)
        for each in environ.get(SKILLS_VARIABLE, "").split(os.pathsep)
    ]
    users = _user_directories(environ)
    layers = [
        *named_layers(flags).layers,
        *(Layer(name="environment", path=each) for each in named if each is not None),
        *_project_layers(here, home, users),
        *(
            Layer(name="config", path=each)
            for each in (_directory_of(str(path), home, here) for path in settings_paths)
            if each is not None
        ),
        *(Layer(name="user", path=each) for each in users if os.path.isdir(each)),
        *package_layers(notes=notes),
    ]
    return FoundLayers(layers=tuple(_without_duplicates(layers)), notes=tuple(notes))


def named_layers(paths: Sequence[Path]) -> FoundLayers:
    """Return these directories and no others, for a result that must not depend on the machine.

    Raise `UsageError` if one does not exist.
    """
    return FoundLayers(layers=tuple(_without_duplicates([*_flag_layers(paths)])))


def user_skills_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory into which this user's skills are put, whether it exists or not."""
    return _home(environ) / PROJECT_DIRECTORIES[0]


def project_root(cwd: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the root of the checkout that holds the working directory.

    The home and what is above it are not looked at from below. Without a checkout, return the
    working directory. Raise `UsageError` if that is gone.
    """
    here = _working_directory(cwd)
    if here is None:
        raise UsageError("the working directory is gone")
    walked = list(_directories_upward(here, _home(environ)))
    is_checkout = bool(walked) and os.path.lexists(walked[-1] / ".git")
    return walked[-1] if is_checkout else here


def _flag_layers(flags: Sequence[Path]) -> Iterator[Layer]:
    for path in flags:
        if not os.path.isdir(path):
            raise UsageError(f"{one_line(str(path))}: there is no such directory")
        yield Layer(name="flag", path=path)


def _project_layers(here: Path | None, home: Path, users: Sequence[Path]) -> Iterator[Layer]:
    walked = [] if here is None else list(_directories_upward(here, home))
    own = {os.path.realpath(each) for each in users}
    # Without a checkout the end of a project is unknown: each directory is one by itself.
    root = walked[-1] if walked and os.path.lexists(walked[-1] / ".git") else None
    for directory in walked:
        for name in PROJECT_DIRECTORIES:
            path = directory / name
            if os.path.isdir(path) and os.path.realpath(path) not in own:
                yield Layer(name="project", path=path, within=root or directory)


def _directories_upward(here: Path, home: Path) -> Iterator[Path]:
    """Yield the directories from here to the root of the checkout.

    A home ends them, and is left out.
    """
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


def _directory_of(text: str, home: Path, here: Path | None) -> Path | None:
    """Return a directory as a person wrote it, whether it exists or not; None for an empty text.

    `~` is the home. A relative path is from `here`, or from `/` if that is None.
    """
    if not text:
        return None
    if text == "~" or text.startswith("~/"):
        return home / text[2:]
    return (here or Path("/")) / text


def _without_duplicates(layers: Sequence[Layer]) -> Iterator[Layer]:
    """Yield each layer whose real directory did not come before."""
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
    """Return the layers of installed packages, in the order of their names. Import none of them.

    `directories` are those that distributions are installed into; by default, this interpreter's. A
    sentence for each package that is left out is added to `notes`, if that is given.
    """
    said = [] if notes is None else notes
    found: dict[str, Path] = {}
    for directory in _site_directories() if directories is None else directories:
        for package in _declared_packages(directory):
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


def _declared_packages(directory: str) -> Iterator[str]:
    """Yield the packages that the distributions in a directory declare in the entry point group.

    What cannot be read is passed over. Of a file, the first 1 MiB is read.
    """
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
    """Yield the values of the entry point group in the text of an `entry_points.txt`."""
    section = ""
    for line in text.splitlines():
        words = line.partition("#")[0].strip()
        if words.startswith("[") and words.endswith("]"):
            section = words[1:-1].strip()
        elif section == ENTRY_POINTS and "=" in words:
            yield words.partition("=")[2].strip()


def _package_directory(package: str, directory: str) -> Path | None:
    """Return the directory `skills` of a top-level package; None if it has none.

    Return None as well for a name that is not that of a top-level package.
    """
    # For a dotted name, `find_spec` would import the package before the last dot.
    if not _PACKAGE.fullmatch(package):
        return None
    candidates = [os.path.join(directory, package)]
    if not os.path.isdir(candidates[0]):
        # An editable install: its files are elsewhere, and the import system knows where.
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            spec = None
        candidates = list(spec.submodule_search_locations or ()) if spec is not None else []
    paths = [Path(each) / "skills" for each in candidates]
    return next((each for each in paths if os.path.isdir(each)), None)
