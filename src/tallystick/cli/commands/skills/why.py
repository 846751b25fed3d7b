"""`tally skills why`: say in a sentence why a skill was listed, loaded or used, or was not."""

from __future__ import annotations

from pathlib import Path

import click

from tallystick.agent.agent import Agent
from tallystick.cli.commands.skills.skills import DIRECTORIES, find_skills
from tallystick.cli.parts import JSON, echo_json, echo_line
from tallystick.cli.show import plain
from tallystick.settings.paths import ledger_path
from tallystick.skills.skills import Skills
from tallystick.skills.why import Why, why_here, why_in_run
from tallystick.stores import open_stores

_SENTENCE_CHARS_MAX = 2_000


@click.command("why")
@click.argument("name")
@click.argument("run", required=False)
@DIRECTORIES
@JSON
def why_command(name: str, run: str | None, directories: tuple[Path, ...], as_json: bool) -> int:
    r"""Say why a skill was listed, loaded or used, or was not.

    With RUN, an id, the beginning of one, or `last`, the answer comes from the record of that run.
    Without RUN, it is for a run that would start now.

    \b
    Example:
        tally skills why pdf-tools last
    """
    found = _in_run(name, run) if run is not None else _now(name, directories)
    if as_json:
        echo_json(found)
    else:
        echo_line(plain(found.sentence, chars_max=_SENTENCE_CHARS_MAX), indent=0)
    return 0


def _in_run(name: str, run: str) -> Why:
    with Agent(ledger=open_stores(ledger_path()).ledger, config=None) as session:
        return why_in_run(session, run, name)


def _now(name: str, directories: tuple[Path, ...]) -> Why:
    found = find_skills(directories)
    registry = found.admitted.registry
    unused = [each for each in found.admitted.refused if name in (each.skill.id, each.skill.name)]
    if unused and name not in {each.id for each in registry.skills}:
        refused = unused[0]
        return Why(
            skill=refused.skill.id,
            sentence=f"{refused.skill.id} ({refused.skill.layer}) is not used: {refused.why}.",
        )
    failed = [each for each in found.registry.failed if each.path.name == name]
    if failed and not any(name in (each.id, each.name) for each in registry.skills):
        first = failed[0]
        return Why(
            skill=name, sentence=f"{name} ({first.layer}) is not used: it failed: {first.why}."
        )
    return why_here(Skills(registry=registry, budget_chars=found.settings.budget), name)
