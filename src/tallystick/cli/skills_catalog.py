"""`tally skills catalog` and `match`: what a model would be shown of the skills, and why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from tallystick.cli.exit_codes import OK
from tallystick.cli.skills_found import (
    DIRECTORIES,
    JSON,
    FoundSkills,
    echo_json,
    find_skills,
    shown,
    text_shown,
)
from tallystick.core.errors import UsageError
from tallystick.runtime.config_keys import one_line
from tallystick.skills.card import Card
from tallystick.skills.catalog import Catalog, fit_catalog
from tallystick.skills.frontmatter import FILE_BYTES_MAX, split
from tallystick.skills.layers import Skill
from tallystick.skills.match import Match, match_skills
from tallystick.skills.reference import ReferenceCatalog, reference_catalog

__all__ = ["catalog_command", "match_command"]


@click.command("catalog")
@DIRECTORIES
@click.option(
    "--budget", type=click.IntRange(min=0), metavar="N",
    help="Room for the text, in characters; with --reference in bytes. Else `skills_budget`.",
)  # fmt: skip
@click.option("--reference", is_flag=True, help="As other hosts of skills do it, byte for byte.")
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="List N skills at most.")
@click.option("--match", "prompt", metavar="TEXT", help="List those first that fit this prompt.")
@click.option("--pin", multiple=True, metavar="ID", help="List this one first; may be repeated.")
@click.option("--loaded", multiple=True, metavar="ID", help="It was loaded; may be repeated.")
@click.option("--used", multiple=True, metavar="ID", help="It was used; may be repeated.")
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
    r"""Print the text that tells a model of the skills, and of each why it is there or not.

    \b
    Example:
        tally skills catalog --dir ./skills --budget 500 --json
    """
    if reference and pin:
        raise UsageError("--pin is not for --reference, which lists skills by their ids")
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
        click.echo(text_shown(catalog.rendered))
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
    _tell_refused(found)
    return OK


def _tell_refused(found: FoundSkills) -> None:
    """Of what may not be used, nothing else is said here: its card is a stranger's."""
    count = len(found.admitted.refused)
    if count:
        click.echo(f"not used: {count}; tally skills list says why", err=True)


def _as_written(skill: Skill) -> Card:
    """The card with its texts as they stand in its head: lines are kept, and none is made up."""
    fields = split(skill.folder.read(skill.file, bytes_max=FILE_BYTES_MAX)).fields or {}
    texts = {key: fields.get(key) for key in ("short", "description", "when_to_use")}
    own = {key: text for key, text in texts.items() if isinstance(text, str)}
    return msgspec.structs.replace(skill.card, **{"short": "", "description": "", **own})


def _matches(prompt: str, cards: Sequence[Card]) -> dict[str, Match]:
    """All that fit, not only the best: here they give an order."""
    return {each.id: each for each in match_skills(prompt, cards).candidates}


@click.command("match")
@click.argument("prompt", metavar="TEXT")
@DIRECTORIES
@click.option(
    "--path", "paths", multiple=True, metavar="PATH", help="A file it is about; may be repeated."
)
@click.option(
    "--top", type=click.IntRange(min=0), default=1, show_default=True, metavar="N",
    help="How many are taken.",
)  # fmt: skip
@JSON
def match_command(
    prompt: str, directories: tuple[Path, ...], paths: tuple[str, ...], top: int, as_json: bool
) -> int:
    r"""Say which skills fit a prompt, how well, and by what.

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
        click.echo(f"{mark} {each.score:6.3f}  {one_line(each.id)}  {shown(each.reason)}")
    if not matching.candidates:
        click.echo("no skill fits", err=True)
    _tell_refused(found)
    return OK
