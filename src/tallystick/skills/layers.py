"""Scan layers for skills, and decide which of two with the same id counts.

Rule 1: a higher layer wins over a lower one, and within a layer the first by path. A skill that
lost is kept as shadowed, one that cannot be used as failed; nothing that was found is dropped
silently.
Rule 2: below a layer's directory no link is followed. The directory itself may be a link, since it
is the user who names it; one that a project names has to lie `within` the project.
Rule 3: a scan is bounded in depth, directories and breadth, and says where it stopped.
"""

from __future__ import annotations

import difflib
import hashlib
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec

from tallystick.skills.errors import SkillAmbiguous, SkillNotFound
from tallystick.skills.format.folder import Folder, SkillFile, search_directory
from tallystick.skills.format.frontmatter import FILE_BYTES_MAX, Problem, one_line_text, split
from tallystick.skills.format.manifest import Card, Manifest, manifest_of
from tallystick.skills.places import LAYER_ORDER, Layer, LayerName

# Directories that a user named: if one does not exist, that is a failure.
_NAMED: frozenset[LayerName] = frozenset({"flag", "environment", "config"})
_NEAR_MAX = 3


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
        """The card for a catalog. Each text is one line, without hidden characters."""
        manifest = self.manifest
        return Card(
            id=self.id,
            name=self.name,
            source=self.layer,
            description=one_line_text(manifest.description),
            when_to_use=one_line_text(manifest.when_to_use),
            short=one_line_text(manifest.short),
            disable_model_invocation=manifest.disable_model_invocation,
            user_invocable=manifest.user_invocable,
            paths=manifest.paths,
            allowed_tools=manifest.allowed_tools,
            sha256=self.sha256,
            argument_hint=one_line_text(manifest.argument_hint) or msgspec.UNSET,
        )

    def body(self) -> str:
        """Return the instructions, read now; "" if the file is binary by now.

        Raise `SkillNotFound`, `SkillPathRefused` or `SkillUnreadable` as `Folder.read` does.
        """
        return split(self.folder.read(self.file, bytes_max=FILE_BYTES_MAX)).body


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadowed:
    """A skill that is hidden by another one of its id."""

    skill: Skill
    by: Skill


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A folder that was found and cannot be used; `why` is one line."""

    path: Path
    layer: LayerName
    why: str
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Registry:
    """The result of a scan.

    `skills` are in order of their ids; `truncated` says where a bound cut the scan.
    """

    skills: tuple[Skill, ...] = ()
    shadowed: tuple[Shadowed, ...] = ()
    failed: tuple[Failed, ...] = ()
    truncated: tuple[str, ...] = ()

    def find(self, name: str) -> Skill:
        """Return the skill of an id, or of a name that only one id ends with.

        The end of an id is a bare name, or one with the last parts of its namespace. Raise
        `SkillNotFound`, with up to three similar names, if there is none; `SkillAmbiguous` if
        several ids end so.
        """
        asked = unicodedata.normalize("NFKC", name.strip())
        exact = self._by_id.get(asked)
        if exact is not None:
            return exact
        several = self._by_end.get(asked, ())
        if len(several) > 1:
            raise SkillAmbiguous(name=name, ids=tuple(each.id for each in several))
        if several:
            return several[0]
        known = [*self._by_id, *self._by_end] if len(asked) <= 200 else []
        near = difflib.get_close_matches(asked, known, n=_NEAR_MAX)
        raise SkillNotFound(name=name, near=tuple(dict.fromkeys(near)))

    def cards(self) -> tuple[Card, ...]:
        """Return a card of every skill, in order of their ids."""
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
    """Scan layers from high to low, those of one name in the order given; return what was found.

    A directory that two layers share is scanned once, for the higher one. Nothing is raised for
    what is in a directory: it is in `failed` or `truncated`. Raise `NotSupportedHere` on a system
    without POSIX directories.
    """
    scanned = _ScanState()
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
    """Return the skill in the bytes of a SKILL.md.

    `namespace` is put before its name in the id. If the bytes cannot be used, return all their
    problems; at least one of them is an error.
    """
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
class _ScanState:
    """The skills, failures and directories that the scan has found so far."""

    skills: dict[str, Skill] = field(default_factory=dict)
    shadowed: list[Shadowed] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    truncated: list[str] = field(default_factory=list)
    roots: set[tuple[int, int]] = field(default_factory=set)


def _scan_layer(layer: Layer, scanned: _ScanState) -> None:
    walk = search_directory(
        layer.path, within=layer.within, seen=scanned.roots, missed=layer.name in _NAMED
    )
    scanned.failed += [
        Failed(path=path, layer=layer.name, why=one_line_text(why)) for path, why in walk.failed
    ]
    scanned.truncated += [f"{layer.name}: {note}" for note in walk.truncated]
    for found in walk.found:
        _add_skill(found, layer, walk.root, scanned)


def _add_skill(found: SkillFile, layer: Layer, root: Path, scanned: _ScanState) -> None:
    """Add a skill that was found; as shadowed if its id is taken, as failed if it has a fault."""
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
