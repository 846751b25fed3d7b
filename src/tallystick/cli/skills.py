"""`tally skills`: which skills there are, what each says, and whether it is well made."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from tallystick.cli.exit_codes import FAILED, OK
from tallystick.cli.skills_found import (
    DIRECTORIES,
    JSON,
    FoundSkills,
    echo_json,
    echo_problems,
    find_skills,
    folder_named,
    folder_to_check,
    shown,
    skill_in,
    text_shown,
)
from tallystick.core.errors import UsageError
from tallystick.runtime.config_keys import one_line
from tallystick.runtime.skill_files import install_skill, new_skill
from tallystick.runtime.skill_layers import (
    PROJECT_DIRECTORIES,
    project_root,
    user_skills_directory,
)
from tallystick.runtime.skills import Skills, filled_in
from tallystick.skills.bundle import bundle_of
from tallystick.skills.errors import SkillNotFound
from tallystick.skills.layers import LAYER_ORDER, Skill
from tallystick.skills.lint import lint

__all__ = ["command"]


# Imported when they are called: what `why` needs takes longer to load than all the others.
_ELSEWHERE = {
    "catalog": "tallystick.cli.skills_catalog",
    "match": "tallystick.cli.skills_catalog",
    "sign": "tallystick.cli.skills_trust",
    "trust": "tallystick.cli.skills_trust",
    "untrust": "tallystick.cli.skills_trust",
    "verify": "tallystick.cli.skills_trust",
    "why": "tallystick.cli.skills_why",
}


class _Group(click.Group):
    """Has the commands of this module, and finds those of the others by name."""

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

    \b
    Example:
        tally skills list
        tally skills show deploy
    """


@command.command("list")
@DIRECTORIES
@JSON
def list_command(directories: tuple[Path, ...], as_json: bool) -> int:
    r"""List every skill that is found, and of each whether it counts, or why not.

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
    click.echo(f"layers, from high to low: {', '.join(LAYER_ORDER)}")
    for each in found.layers.layers:
        there = "" if os.path.isdir(each.path) else "  (not there)"
        click.echo(f"  {each.name:<11}  {one_line(str(each.path))}{there}")
    if not rows:
        click.echo("no skills; to make one: tally skills new NAME")
    width = max((len(row["id"]) for row in rows), default=0)
    for row in rows:
        why = f": {row['why']}" if row["why"] else ""
        click.echo(f"{one_line(row['id']):<{width}}  {row['layer']:<11}  {row['state']}{why}")
    for note in (*notes, *(f"warning: {each}" for each in found.warnings)):
        click.echo(one_line(note), err=True)
    return OK


def _rows(found: FoundSkills) -> Iterator[dict[str, Any]]:
    usable = found.admitted.registry
    for skill in usable.skills:
        disabled = skill.manifest.disable_model_invocation
        why = "not for models to load; a user can, by its name" if disabled else ""
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
@click.option("--body", "with_body", is_flag=True, help="Print its instructions as well.")
@click.option(
    "--args", "arguments", multiple=True, metavar="TEXT",
    help="Print its instructions with this argument in its place; may be repeated.",
)  # fmt: skip
@JSON
def show_command(
    name: str,
    directories: tuple[Path, ...],
    with_body: bool,
    arguments: tuple[str, ...],
    as_json: bool,
) -> int:
    r"""Show what a skill says of itself, its files, and what is wrong with it.

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
            click.echo(f"{key:<16}  {text}")
    click.echo(f"{'digest':<16}  {bundle.sha256}")
    for file in bundle.files:
        click.echo(f"  {one_line(file.path)}  {file.bytes:,} bytes")
    echo_problems(skill.problems)
    if why_not is not None:
        click.echo(f"not used: {why_not}", err=True)
    if body is not None:
        click.echo(f"\n{text_shown(body)}")
    return OK


def _found_or_failed(found: FoundSkills, name: str) -> Skill | None:
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
    return filled_in(Skills.of(skill.folder.path), skill.id, body, arguments, session="")


def _field(value: object) -> str:
    match value:
        case bool():
            return "true" if value else ""
        case tuple():
            return ", ".join(_field(each) for each in value)
        case None:
            return ""
        case _:
            return shown(str(value))


@command.command("lint")
@click.argument("names", nargs=-1, required=True, metavar="PATH|NAME...")
@DIRECTORIES
@JSON
def lint_command(names: tuple[str, ...], directories: tuple[Path, ...], as_json: bool) -> int:
    r"""Check skills against the public specification, strictly. Exit code 1 on errors.

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
            click.echo(f"{one_line(name)}: {_counted(problems)}")
            echo_problems(problems)
    failed = any(each.level == "error" for problems in reports.values() for each in problems)
    return FAILED if failed else OK


def _counted(problems: tuple[Any, ...]) -> str:
    errors = sum(each.level == "error" for each in problems)
    return f"{errors} errors, {len(problems) - errors} warnings" if problems else "ok"


@command.command("new")
@click.argument("name")
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path), metavar="DIR",
    help="Make it in this directory; else in the project's .agents/skills.",
)  # fmt: skip
@JSON
def new_command(name: str, directory: Path | None, as_json: bool) -> int:
    r"""Make a skill to go on from.

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
        click.echo("write it, then: tally skills lint, tally skills trust", err=True)
    return OK


@command.command("install")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--user", "where", flag_value="user", default="user", help="Into ~/.agents/skills.")
@click.option("--project", "where", flag_value="project", help="Into the project's .agents/skills.")
@click.option("--force", is_flag=True, help="Replace a skill of that name.")
@JSON
def install_command(path: Path, where: str, force: bool, as_json: bool) -> int:
    r"""Copy a skill's folder to where it is found. Nothing of it is run.

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
    click.echo(f"{len(done.bundle.files)} files, digest {done.bundle.sha256}")
    if where == "project":
        click.echo(f"to use it here: tally skills trust {one_line(skill.name)}", err=True)
    return OK


def _project_directory() -> Path:
    root = project_root()
    path = root / PROJECT_DIRECTORIES[0]
    # A project may have made it a link; what is written then lands somewhere else.
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
        raise UsageError(f"{one_line(str(path))} is a link out of the project")
    return path
