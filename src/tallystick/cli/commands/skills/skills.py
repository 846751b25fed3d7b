"""`tally skills`: list, show, check, make and install skills; show what a model sees of them."""

from __future__ import annotations

import importlib
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from tallystick.cli.exit_codes import FAILED, OK
from tallystick.cli.parts import JSON, echo_json, echo_line
from tallystick.cli.show import quantity
from tallystick.core.errors import UsageError
from tallystick.settings.files import config_directory
from tallystick.settings.schema import one_line
from tallystick.settings.settings import SkillSettings, load_settings
from tallystick.skills.catalog import Catalog, fit_catalog
from tallystick.skills.errors import SkillNotFound, SkillPathRefused, SkillUnreadable
from tallystick.skills.format.bundle import bundle_of
from tallystick.skills.format.frontmatter import FILE_BYTES_MAX, Problem, split
from tallystick.skills.format.frontmatter import one_line_text as flat
from tallystick.skills.format.lint import lint
from tallystick.skills.format.manifest import UNUSED_KEYS, Card
from tallystick.skills.installed import SKILL_FILES, install_skill, new_skill, skill_at
from tallystick.skills.layers import Registry, Skill, scan
from tallystick.skills.match import Match, match_skills
from tallystick.skills.places import (
    LAYER_ORDER,
    PROJECT_DIRECTORIES,
    FoundLayers,
    find_layers,
    named_layers,
    project_root,
    user_skills_directory,
)
from tallystick.skills.reference import ReferenceCatalog, reference_catalog
from tallystick.skills.skills import Skills, fill_in
from tallystick.skills.trust import Admitted, SkillTrust

# Shared by the commands of `tally skills`: options, and the search for skills.


_SHOWN_CHARS_MAX = 200

DIRECTORIES = click.option(
    "--dir", "directories", multiple=True, type=click.Path(path_type=Path), metavar="DIR",
    help="Look for skills only in this directory. May be repeated.",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSkills:
    """The skills that were found in the layers, and those of them that may be used."""

    layers: FoundLayers
    registry: Registry
    admitted: Admitted
    settings: SkillSettings
    warnings: tuple[str, ...]

    def find(self, name: str) -> Skill:
        """Return the skill that runs would use under a name, or else one that they may not use.

        Raise `SkillNotFound` if there is neither, and `SkillAmbiguous` if several ids end so.
        """
        try:
            return self.admitted.registry.find(name)
        except SkillNotFound:
            return self.registry.find(name)

    def refused_skills(self) -> Registry:
        """Return the skills that may not be used; of each id, that of the highest layer."""
        first: dict[str, Skill] = {}
        for each in self.admitted.refused:
            first.setdefault(each.skill.id, each.skill)
        return Registry(skills=tuple(first[id] for id in sorted(first)))

    def folder_of(self, name: str) -> Path:
        """Return the folder of a skill, even if it could not be read.

        Raise `SkillNotFound` if there is none, and `SkillAmbiguous` as `find` does.
        """
        try:
            return self.find(name).folder.path
        except SkillNotFound:
            failed = (each.path for each in self.registry.failed if each.path.name == name)
            path = next(failed, None)
            if path is None:
                raise
            return path

    def why_not(self, skill: Skill) -> str | None:
        """Return the reason why a skill may not be used; None if it may."""
        found = (each.why for each in self.admitted.refused if each.skill is skill)
        return next(found, None)


def find_skills(directories: Sequence[Path] = ()) -> FoundSkills:
    """Find the skills in these directories; without any, in all layers.

    The user's policy of trust is applied in either case. Raise `UsageError` if one of these
    directories does not exist, and `StoreError` if the notes of trust cannot be read.
    """
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
    """Open this user's trust in skills, which is stored in the configuration directory."""
    return SkillTrust(config_directory(os.environ), settings=settings)


def folder_named(text: str) -> Path | None:
    """Return the folder that a text names by its path or by the path of its SKILL.md.

    Return None if the text is the name of a skill. A word that could be either is a folder if a
    SKILL.md is in it.
    """
    path = Path(text).expanduser()
    if path.name in SKILL_FILES and not os.path.isdir(path):
        return path.parent
    if text in {".", ".."} or text.startswith(("/", "./", "../", "~")):
        return path
    has_skill = any(os.path.lexists(path / each) for each in SKILL_FILES)
    return path if os.path.isdir(path) and ("/" in text or has_skill) else None


def folder_to_check(text: str, directories: Sequence[Path] = ()) -> Path:
    """Return the folder that a path or a name means, even if it has no valid skill.

    Raise `UsageError` if it is no directory, `SkillNotFound` for an unknown name, and
    `SkillAmbiguous` for one that several skills have.
    """
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
    """Read the skill in a folder. Raise `UsageError` if there is none that can be read."""
    if not os.path.isdir(path):
        raise UsageError(f"{one_line(str(path))}: there is no such directory")
    try:
        return skill_at(path)
    except (SkillPathRefused, SkillUnreadable) as error:
        raise UsageError(one_line(str(error))) from error


def echo_problems(problems: Iterable[Problem], *, err: bool = False) -> None:
    for each in problems:
        echo_line(f"{each.level}: {each.code}: {one_line(each.message)}", err=err)


def short_text(text: str) -> str:
    """Return a text on one line, at most 200 characters, safe for a terminal."""
    line = flat(text)
    cut = line if len(line) <= _SHOWN_CHARS_MAX else f"{line[:_SHOWN_CHARS_MAX]}…"
    return one_line(cut)


def safe_text(text: str) -> str:
    """Return a text of many lines with escapes for what a terminal would act on."""
    if all(each.isprintable() or each in "\n\t" for each in text):
        return text
    return "".join(
        each if each.isprintable() or each in "\n\t" else repr(each)[1:-1] for each in text
    )


# `tally skills`: list, show, check, make and install skills.


# Imported only when they are called, since they load the code of signatures and of recorded runs.
_ELSEWHERE = {
    "sign": "tallystick.cli.commands.skills.trust",
    "trust": "tallystick.cli.commands.skills.trust",
    "untrust": "tallystick.cli.commands.skills.trust",
    "verify": "tallystick.cli.commands.skills.trust",
    "why": "tallystick.cli.commands.skills.why",
}


class _Group(click.Group):
    """A group with the commands of this module, which finds those of other modules by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*self.commands, *_ELSEWHERE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module(_ELSEWHERE[cmd_name])
        found = getattr(module, f"{cmd_name}_command")
        assert isinstance(found, click.Command)
        found.help = (found.help or "").replace("\\b\n", "\b\n")
        return found


@click.group("skills", cls=_Group)
def command() -> None:
    r"""Find, read, check, trust and install skills.

    A skill is a folder with instructions (SKILL.md) that a run may load.

    \b
    Example:
        tally skills list
        tally skills show deploy
    """


@command.command("list")
@DIRECTORIES
@JSON
def list_command(directories: tuple[Path, ...], as_json: bool) -> int:
    r"""List all skills, and why some are not used.

    Skills are looked for in layers. Of skills with the same id, that of the highest layer is used.

    \b
    Example:
        tally skills list
        tally skills list --dir ./skills
    """
    found = find_skills(directories)
    rows = sorted(_rows(found), key=lambda row: (row["id"], row["path"]))
    notes = [*found.layers.notes, *found.registry.truncated]
    if as_json:
        layers = [{"layer": each.name, "path": str(each.path)} for each in found.layers.layers]
        echo_json({"order": LAYER_ORDER, "layers": layers, "skills": rows, "notes": notes})
        return OK
    echo_line(f"layers, from high to low: {', '.join(LAYER_ORDER)}", indent=2)
    for each in found.layers.layers:
        there = "" if os.path.isdir(each.path) else "  (does not exist)"
        click.echo(f"  {each.name:<11}  {one_line(str(each.path))}{there}")
    if not rows:
        click.echo("there are no skills; to make one: tally skills new NAME")
    width = max((len(row["id"]) for row in rows), default=0)
    for row in rows:
        why = f": {row['why']}" if row["why"] else ""
        echo_line(f"{one_line(row['id']):<{width}}  {row['layer']:<11}  {row['state']}{why}")
    for note in (*notes, *(f"warning: {each}" for each in found.warnings)):
        click.echo(one_line(note), err=True)
    return OK


def _rows(found: FoundSkills) -> Iterator[dict[str, Any]]:
    usable = found.admitted.registry
    for skill in usable.skills:
        disabled = skill.manifest.disable_model_invocation
        why = "models may not load it; a user may: tally run --skill NAME" if disabled else ""
        yield _row(skill, "disabled" if disabled else "ok", why)
    for each in usable.shadowed:
        by = f"by {each.by.layer} {one_line(str(each.by.folder.path))}"
        yield _row(each.skill, "shadowed", by)
    for refused in found.admitted.refused:
        yield _row(refused.skill, "untrusted", refused.why)
    for failed in usable.failed:
        yield {
            "id": failed.path.name, "layer": failed.layer, "state": "failed",
            "why": one_line(failed.why), "path": str(failed.path), "description": "", "sha256": "",
            "problems": failed.problems,
        }  # fmt: skip


def _row(skill: Skill, state: str, why: str) -> dict[str, Any]:
    return {
        "id": skill.id, "layer": skill.layer, "state": state, "why": why,
        "path": str(skill.folder.path), "description": skill.card.description,
        "sha256": skill.sha256, "problems": skill.problems,
    }  # fmt: skip


@command.command("show")
@click.argument("name", metavar="NAME|PATH")
@DIRECTORIES
@click.option("--body", "with_body", is_flag=True, help="Print the instructions of the skill too.")
@click.option(
    "--args", "arguments", multiple=True, metavar="TEXT",
    help="Print the instructions with this argument filled in. May be repeated.",
)  # fmt: skip
@JSON
def show_command(
    name: str,
    directories: tuple[Path, ...],
    with_body: bool,
    arguments: tuple[str, ...],
    as_json: bool,
) -> int:
    r"""Show the head of a skill, its files and its problems.

    Exit code 1 if the skill cannot be read.

    \b
    Example:
        tally skills show deploy --args staging
    """
    found = find_skills(directories)
    path = folder_named(name)
    skill = skill_in(path) if path is not None else _found_or_failed(found, name)
    if skill is None:
        return FAILED
    body = _body(skill, arguments) if with_body or arguments else None
    bundle = bundle_of(skill.folder)
    why_not = found.why_not(skill)
    if as_json:
        echo_json(
            {
                "id": skill.id, "layer": skill.layer, "path": str(skill.folder.path),
                "usable": why_not is None, "why": why_not or "", "manifest": skill.manifest,
                "sha256": skill.sha256, "bundle_sha256": bundle.sha256, "files": bundle.files,
                "problems": skill.problems, "body": body,
            }
        )  # fmt: skip
        return OK
    click.echo(f"{one_line(skill.id)}  {skill.layer}  {one_line(str(skill.folder.path))}")
    for key, value in msgspec.structs.asdict(skill.manifest).items():
        text = _field(value)
        if text:
            unused = "  (not used here)" if key in UNUSED_KEYS else ""
            echo_line(f"{key:<16}  {text}{unused}", indent=18)
    if skill.manifest.user_invocable:
        echo_line(f"{'command':<16}  {_command_of(skill)}", indent=18)
    echo_line(f"{'digest':<16}  {bundle.sha256}", indent=18)
    for file in bundle.files:
        click.echo(f"  {one_line(file.path)}  {file.bytes:,} bytes")
    echo_problems(skill.problems)
    if why_not is not None:
        click.echo(f"not used: {why_not}", err=True)
    if body is not None:
        click.echo(f"\n{safe_text(body)}")
    return OK


def _command_of(skill: Skill) -> str:
    """Return the command that puts a skill into a prompt.

    The hint about its arguments is not part of it: a stranger wrote that, and commands are copied.
    """
    asked = shlex.quote(skill.id) if " " in skill.id else skill.id
    arguments = " ARGUMENTS" if skill.manifest.argument_hint else ""
    return f'tally run QUESTION --skill "{one_line(asked)}{arguments}"'


def _found_or_failed(found: FoundSkills, name: str) -> Skill | None:
    """Return a skill; print why and return None if it could not be read.

    Raise `SkillNotFound` if there is none of this name, and `SkillAmbiguous` if there are several.
    """
    try:
        return found.find(name)
    except SkillNotFound:
        failed = [each for each in found.registry.failed if each.path.name == name]
        if not failed:
            raise
        for each in failed:
            click.echo(f"failed: {one_line(str(each.path))}: {one_line(each.why)}", err=True)
        return None


def _body(skill: Skill, arguments: tuple[str, ...]) -> str:
    body = skill.body()
    if not arguments:
        return body
    return fill_in(Skills.of(skill.folder.path), skill.id, body, arguments, session="")


def _field(value: object) -> str:
    match value:
        case bool():
            return "true" if value else ""
        case tuple():
            return ", ".join(_field(each) for each in value)
        case None:
            return ""
        case _:
            return short_text(str(value))


@command.command("lint")
@click.argument("names", nargs=-1, required=True, metavar="PATH|NAME...")
@DIRECTORIES
@JSON
def lint_command(names: tuple[str, ...], directories: tuple[Path, ...], as_json: bool) -> int:
    r"""Check skills against the public specification.

    Exit code 1 if there are errors, 0 if there are only warnings.

    \b
    Example:
        tally skills lint .agents/skills/deploy
    """
    folders = {name: folder_to_check(name, directories) for name in names}
    reports = {name: lint(path) for name, path in folders.items()}
    if as_json:
        echo_json(
            [
                {"name": name, "path": str(folders[name]), "problems": problems}
                for name, problems in reports.items()
            ]
        )
    else:
        for name, problems in reports.items():
            click.echo(f"{one_line(name)}: {_problem_counts(problems)}")
            echo_problems(problems)
    failed = any(each.level == "error" for problems in reports.values() for each in problems)
    return FAILED if failed else OK


def _problem_counts(problems: tuple[Any, ...]) -> str:
    errors = sum(each.level == "error" for each in problems)
    if not problems:
        return "ok"
    return f"{quantity(errors, 'error')}, {quantity(len(problems) - errors, 'warning')}"


@command.command("new")
@click.argument("name")
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path), metavar="DIR",
    help="Make the skill in this directory.  [default: .agents/skills of the project]",
)  # fmt: skip
@JSON
def new_command(name: str, directory: Path | None, as_json: bool) -> int:
    r"""Make the folder of a new skill, with a SKILL.md to edit.

    \b
    Example:
        tally skills new deploy
    """
    into = directory if directory is not None else project_root() / PROJECT_DIRECTORIES[0]
    path = new_skill(into, name)
    if as_json:
        echo_json({"name": name, "path": str(path), "files": ["SKILL.md"]})
    else:
        click.echo(one_line(str(path / "SKILL.md")))
        click.echo("edit it, then: tally skills lint, tally skills trust", err=True)
    return OK


@command.command("install")
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--user",
    "where",
    flag_value="user",
    default="user",
    help="Install it in ~/.agents/skills, for all projects. This is the default.",
)
@click.option("--project", "where", flag_value="project",
    help="Install it in the project's .agents/skills.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace an installed skill of this name.")
@JSON
def install_command(path: Path, where: str, force: bool, as_json: bool) -> int:
    r"""Install a skill: copy its folder to where runs find it.

    No script of the skill is run.

    \b
    Example:
        tally skills install ~/Downloads/deploy --user
    """
    source = folder_named(str(path)) or path
    skill, problems = skill_in(source), lint(source)
    into = _project_directory() if where == "project" else user_skills_directory()
    done = install_skill(skill.folder, into=into, name=skill.name, force=force)
    if as_json:
        echo_json(
            {
                "name": skill.name, "path": str(done.path), "sha256": done.bundle.sha256,
                "files": done.bundle.files, "replaced": done.replaced, "problems": problems,
            }
        )  # fmt: skip
        return OK
    echo_problems(problems, err=True)
    word = "replaced" if done.replaced else "installed"
    click.echo(f"{word} {one_line(str(done.path))}")
    click.echo(f"{quantity(len(done.bundle.files), 'file')}, digest {done.bundle.sha256}")
    if where == "project":
        click.echo(f"to use it here: tally skills trust {one_line(skill.name)}", err=True)
    return OK


def _project_directory() -> Path:
    """Return the project's .agents/skills. Raise `UsageError` if that is a link out of it."""
    root = project_root()
    path = root / PROJECT_DIRECTORIES[0]
    # A cloned project may have a link in this place, which would write outside of the project.
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
        raise UsageError(
            f"{one_line(str(path))} is a link out of the project; remove it, or use --user"
        )
    return path


# `tally skills catalog` and `match`: show what a model would see of the skills, and why.


@command.command("catalog")
@DIRECTORIES
@click.option(
    "--budget", type=click.IntRange(min=0), metavar="N",
    help="Let the text have at most N characters; with --reference, N bytes.  [default: the "
    "setting skills_budget]",
)  # fmt: skip
@click.option(
    "--reference",
    is_flag=True,
    help="Print the text that other hosts of skills print, byte for byte.",
)
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="List at most N skills.")
@click.option("--match", "prompt", metavar="TEXT", help="List skills that fit this prompt first.")
@click.option("--pin", multiple=True, metavar="ID", help="List this skill first. May be repeated.")
@click.option(
    "--loaded", multiple=True, metavar="ID",
    help="Count this skill as loaded. May be repeated.",
)  # fmt: skip
@click.option(
    "--used", multiple=True, metavar="ID",
    help="Count this skill as used. May be repeated.",
)  # fmt: skip
@JSON
def catalog_command(
    directories: tuple[Path, ...],
    budget: int | None,
    reference: bool,
    limit: int | None,
    prompt: str | None,
    pin: tuple[str, ...],
    loaded: tuple[str, ...],
    used: tuple[str, ...],
    as_json: bool,
) -> int:
    r"""Print the list of skills that a model would see.

    Skills that are left out are named on stderr, with the reason.

    \b
    Example:
        tally skills catalog --dir ./skills --budget 500 --json
    """
    if reference and pin:
        raise UsageError("--reference lists skills in the order of their ids; leave out --pin")
    found = find_skills(directories)
    registry = found.admitted.registry
    cards = registry.cards()
    pin, loaded, used = (
        tuple(registry.find(name).id for name in names) for names in (pin, loaded, used)
    )
    matched = {} if prompt is None else _matches(prompt, cards)
    room = found.settings.budget if budget is None else budget
    catalog: Catalog | ReferenceCatalog
    if reference:
        catalog = reference_catalog(
            tuple(_as_written(each) for each in registry.skills),
            budget=room,
            limit=limit,
            loaded=loaded,
            used=used,
            matched=matched,
        )
    else:
        catalog = fit_catalog(
            cards, budget_chars=room, catalog_limit=limit, pinned=pin, matched=matched,
            loaded=loaded, used={id: () for id in used},
        )  # fmt: skip
    if as_json:
        echo_json({"rendered": catalog.rendered, "evidence": catalog.evidence})
        return OK
    if catalog.rendered:
        click.echo(safe_text(catalog.rendered))
    evidence = catalog.evidence
    unit = "bytes" if reference else "characters"
    click.echo(
        f"{evidence.used_chars:,} of {evidence.budget_chars:,} {unit}; "
        f"shown {len(evidence.shown)}, omitted {len(evidence.omitted)}",
        err=True,
    )
    for card in evidence.cards:
        if card.omitted_reason is not None:
            click.echo(f"  omitted {one_line(card.id)}: {card.omitted_reason}", err=True)
    _echo_refused(found)
    return OK


def _echo_refused(found: FoundSkills) -> None:
    """Print how many skills may not be used. Their texts are not shown: nobody trusts them yet."""
    count = len(found.admitted.refused)
    if count:
        click.echo(f"not used: {quantity(count, 'skill')}; to see why: tally skills list", err=True)


def _as_written(skill: Skill) -> Card:
    """Return the card of a skill with the texts of its head as written, line ends included.

    A text that is missing in the head is empty here, not derived from the body. Raise what
    `Folder.read` raises.
    """
    fields = split(skill.folder.read(skill.file, bytes_max=FILE_BYTES_MAX)).fields or {}
    texts = {key: fields.get(key) for key in ("short", "description", "when_to_use")}
    own = {key: text for key, text in texts.items() if isinstance(text, str)}
    return msgspec.structs.replace(skill.card, **{"short": "", "description": "", **own})


def _matches(prompt: str, cards: Sequence[Card]) -> dict[str, Match]:
    """Return all skills that fit a prompt, by id. The catalog is ordered by them."""
    return {each.id: each for each in match_skills(prompt, cards).candidates}


@command.command("match")
@click.argument("prompt", metavar="TEXT")
@DIRECTORIES
@click.option(
    "--path",
    "paths",
    multiple=True,
    metavar="PATH",
    help="Match also this file, which the prompt is about. May be repeated.",
)
@click.option(
    "--top", type=click.IntRange(min=0), default=1, show_default=True, metavar="N",
    help="Mark the N best skills with a star.",
)  # fmt: skip
@JSON
def match_command(
    prompt: str, directories: tuple[Path, ...], paths: tuple[str, ...], top: int, as_json: bool
) -> int:
    r"""Show which skills fit a prompt, with score and reason.

    \b
    Example:
        tally skills match "roll the service back" --path deploy/app.yaml
    """
    found = find_skills(directories)
    cards = found.admitted.registry.cards()
    matching = match_skills(prompt, cards, paths=paths, top_n=top)
    if as_json:
        echo_json(matching)
        return OK
    taken = {each.id for each in matching.matched}
    for each in matching.candidates:
        mark = "*" if each.id in taken else " "
        echo_line(f"{mark} {each.score:6.3f}  {one_line(each.id)}  {short_text(each.reason)}")
    if not matching.candidates:
        click.echo("no skill fits", err=True)
    _echo_refused(found)
    return OK
