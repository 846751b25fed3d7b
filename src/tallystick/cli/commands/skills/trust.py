"""`tally skills sign`, `verify`, `trust` and `untrust`: sign skills, and decide whom to trust."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import click

from tallystick.cli.commands.skills.skills import (
    DIRECTORIES,
    FoundSkills,
    echo_problems,
    find_skills,
    folder_named,
    folder_to_check,
    short_text,
    skill_in,
    skill_trust,
)
from tallystick.cli.exit_codes import FAILED, OK
from tallystick.cli.parts import JSON, echo_json
from tallystick.cli.show import quantity
from tallystick.core.errors import UsageError
from tallystick.settings.files import config_directory
from tallystick.settings.paths import ledger_path
from tallystick.settings.schema import one_line
from tallystick.settings.signing import open_signing_key, read_public_key, signing_available
from tallystick.skills.errors import SkillNotFound
from tallystick.skills.format.bundle import Bundle, bundle_of
from tallystick.skills.format.folder import Folder
from tallystick.skills.format.lint import lint
from tallystick.skills.layers import Registry, Skill
from tallystick.skills.trust import check_signature, signers_of, write_signature
from tallystick.storage.clock import now_ms

_PUBLIC_KEY = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("sign")
@click.argument("path", type=click.Path(path_type=Path))
@JSON
def sign_command(path: Path, as_json: bool) -> int:
    r"""Sign every file of a skill with your key.

    The key is made on first use. PATH is the folder of the skill. Needs the extra `sign`.

    \b
    Example:
        tally skills sign ./deploy
    """
    skill = skill_in(folder_named(str(path)) or path)
    directory = config_directory(os.environ)
    if Path(os.path.realpath(directory)).is_relative_to(skill.folder.path):
        raise UsageError(
            f"{one_line(str(directory))}: your key is inside the skill, and would be given away "
            "with it; move the skill"
        )
    key = open_signing_key(directory, ledger=ledger_path())
    if key.made:
        click.echo(
            f"made key {key.id}; give {one_line(str(key.public_path))} to the users of your "
            f"skills, who trust it with: tally skills trust --signer FILE",
            err=True,
        )
    document = write_signature(skill, key, at_ms=now_ms())
    if as_json:
        echo_json(document)
        return OK
    # A signature covers the files as they are, so problems in them are shown and do not prevent it.
    echo_problems(lint(skill.folder.path), err=True)
    click.echo(f"signed {one_line(str(skill.folder.path))} as {key.id}")
    click.echo(f"{quantity(len(document.files), 'file')}, digest {document.manifest_sha256}")
    return OK


@click.command("verify")
@click.argument("name", metavar="PATH|NAME")
@DIRECTORIES
@click.option(
    "--key", "key_file", type=_PUBLIC_KEY, metavar="PUB",
    help="Require a signature of this public key.  [default: any key that you trust]",
)  # fmt: skip
@JSON
def verify_command(
    name: str, directories: tuple[Path, ...], key_file: Path | None, as_json: bool
) -> int:
    r"""Check the signature of a skill.

    Every file in its folder is compared with the signature. Exit code 1 if it does not hold.

    \b
    Example:
        tally skills verify ./deploy --key theirs.pub
    """
    if not signing_available():
        raise UsageError("signatures need an extra: pip install 'tallystick[sign]'")
    signers = skill_trust().signers() if key_file is None else signers_of(key_file)
    folder = Folder(Path(os.path.realpath(folder_to_check(name, directories))))
    report = check_signature(folder, signers.keys)
    found = report.difference
    if as_json:
        echo_json(
            {
                "ok": report.ok, "state": report.state, "why": report.why,
                "path": str(folder.path), "signer": report.signer, "signed_at": report.signed_at,
                "changed": found.changed, "added": found.added, "removed": found.removed,
            }
        )  # fmt: skip
    else:
        click.echo(f"{one_line(name)}: {'ok' if report.ok else 'not valid'}: {report.why}")
        for word, paths in (
            ("changed", found.changed), ("added", found.added), ("removed", found.removed),
        ):  # fmt: skip
            for each in paths:
                click.echo(f"  {word}  {one_line(each)}")
        for note in signers.notes:
            click.echo(note, err=True)
    return OK if report.ok else FAILED


@click.command("trust")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option(
    "--all", "everything", is_flag=True, help="Trust all skills that are not trusted yet."
)
@click.option(
    "--signer", type=_PUBLIC_KEY, metavar="FILE",
    help="Trust all skills that are signed with this public key, now and later.",
)  # fmt: skip
@click.option("--yes", is_flag=True, help="Trust without asking.")
@JSON
def trust_command(
    names: tuple[str, ...], everything: bool, signer: Path | None, yes: bool, as_json: bool
) -> int:
    r"""Let runs use skills of this project.

    The files of each skill are listed first. The trust in a skill ends when one of its files
    changes.

    \b
    Example:
        tally skills trust deploy
        tally skills trust --signer theirs.pub
    """
    if signer is not None:
        if names or everything:
            raise UsageError("--signer trusts a key; leave out the names of skills and --all")
        return _trust_signer(signer, yes=yes, as_json=as_json)
    found = find_skills()
    skills = _skills_to_trust(found, names, everything=everything)
    if everything and not skills:
        click.echo("nothing to trust", err=True)
    # Read once, before the question: what is trusted are the bytes that were listed.
    bundles = {skill.id: bundle_of(skill.folder) for skill in skills}
    if not as_json:
        for skill in skills:
            _echo_skill(skill, bundles[skill.id])
    if skills and not yes:
        click.confirm(
            f"trust {quantity(len(skills), 'skill')} as they are now?", abort=True, err=True
        )
    if skills:
        skill_trust().note({skill.folder.path: bundles[skill.id] for skill in skills})
    if as_json:
        echo_json(
            [
                {
                    "id": skill.id, "path": str(skill.folder.path),
                    "sha256": bundles[skill.id].sha256, "files": bundles[skill.id].files,
                }
                for skill in skills
            ]
        )  # fmt: skip
    for skill in skills:
        click.echo(f"trusted {one_line(skill.id)}", err=True)
    return OK


def _skills_to_trust(found: FoundSkills, names: Iterable[str], *, everything: bool) -> list[Skill]:
    refused = found.refused_skills()
    if found.settings.require_signature and refused.skills:
        raise UsageError(
            "skills_require_signature is set, so only signed skills are used; trust the key that "
            "signs them: tally skills trust --signer FILE.pub"
        )
    if everything:
        names = [each.id for each in refused.skills if not each.manifest.require_signature]
        return [refused.find(each) for each in names]
    chosen = [_find_refused(found, refused, name) for name in names]
    if not chosen:
        waiting = ", ".join(one_line(each.id) for each in refused.skills)
        state = f"not trusted are {waiting}" if waiting else "all that were found are trusted"
        raise UsageError(f"name the skills to trust, or use --all; {state}")
    return [each for each in chosen if each is not None]


def _find_refused(found: FoundSkills, refused: Registry, name: str) -> Skill | None:
    """Find a skill that is not trusted yet; of one that is used already, say so and return None.

    Raise `UsageError` for a skill that requires a signature, `SkillNotFound` for an unknown name,
    and `SkillAmbiguous` for one that several skills have.
    """
    try:
        skill = refused.find(name)
    except SkillNotFound:
        used = found.find(name)
        click.echo(f"{one_line(used.id)} is used already", err=True)
        return None
    if skill.manifest.require_signature:
        raise UsageError(
            f"{one_line(skill.id)} requires a signature itself, so it is not used without one; "
            f"trust the key that signed it: tally skills trust --signer FILE.pub"
        )
    return skill


def _echo_skill(skill: Skill, bundle: Bundle) -> None:
    click.echo(f"{one_line(skill.id)}  {one_line(str(skill.folder.path))}")
    click.echo(f"  {short_text(skill.manifest.description)}")
    for file in bundle.files:
        click.echo(f"  {one_line(file.path)}  {file.bytes:,} bytes")
    click.echo(f"  digest {bundle.sha256}")


def _trust_signer(path: Path, *, yes: bool, as_json: bool) -> int:
    key = read_public_key(path)
    if not yes:
        click.confirm(f"trust all skills signed by {key.id}?", abort=True, err=True)
    skill_trust().add_signer(path)
    if as_json:
        echo_json({"signer": key.id})
    click.echo(f"trusted signer {key.id}", err=True)
    return OK


@click.command("untrust")
@click.argument("names", nargs=-1, metavar="[NAME|PATH...]")
@click.option("--signer", metavar="FILE|FINGERPRINT", help="Trust this key no longer.")
@JSON
def untrust_command(names: tuple[str, ...], signer: str | None, as_json: bool) -> int:
    r"""End the trust in skills, or in a key.

    \b
    Example:
        tally skills untrust deploy
    """
    if bool(names) is (signer is not None):
        raise UsageError("name skills, or a key with --signer, not both")
    trust = skill_trust()
    if signer is not None:
        id = read_public_key(Path(signer)).id if os.path.isfile(signer) else signer.lower()
        done = {id: trust.remove_signer(id)}
    else:
        found = find_skills()
        folders = {name: _folders(found, name) for name in names}
        done = {
            name: any([trust.forget(each) for each in paths]) for name, paths in folders.items()
        }
    if as_json:
        echo_json([{"name": name, "was_trusted": was} for name, was in done.items()])
    for name, was in done.items():
        click.echo(
            f"{'no longer trusted' if was else 'was not trusted'}: {one_line(name)}", err=True
        )
    return OK


def _folders(found: FoundSkills, name: str) -> list[Path]:
    """Return the folders for which trust in a skill may be stored.

    Raise `SkillNotFound` if `name` is neither a folder nor a skill that was found, and
    `SkillAmbiguous` if several skills have it.
    There can be several: a project and a directory above it may both have a skill of this name.
    """
    path = folder_named(name)
    if path is not None:
        return [path]
    skill = found.find(name)
    every = [*found.registry.skills, *(each.skill for each in found.registry.shadowed)]
    return [each.folder.path for each in every if each.id == skill.id]
