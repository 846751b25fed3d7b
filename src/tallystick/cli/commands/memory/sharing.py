"""`tally memory share`, `relate`, `consolidate`, `decay`: notes for others, and over time."""

from __future__ import annotations

import click

from tallystick.cli.commands.memory.options import (
    TYPES,
    content_of,
    open_memory,
    utf8_text,
    with_reader,
)
from tallystick.cli.exit_codes import OK
from tallystick.cli.parts import JSON, echo_json
from tallystick.cli.show import plain, quantity
from tallystick.core.errors import UsageError
from tallystick.memory.note import Permission
from tallystick.memory.report import whole_id
from tallystick.memory.sharing import Share

_AS_OF = click.option(
    "--as-of",
    metavar="PLACE|TIME",
    help="List what held at a position in the log or at a time.  [default: now]",
)


@click.command("share")
@click.argument("name", required=False, metavar="[ID]")
@click.option(
    "--with", "with_agent", type=utf8_text, metavar="AGENT", help="Share with this agent."
)
@click.option(
    "--permission", type=click.Choice([each.value for each in Permission]), default="read",
    show_default=True, help="Give this permission; each includes those before it.",
)  # fmt: skip
@click.option(
    "--all", "everything", is_flag=True,
    help="Share all notes of the acting agent, and those that it remembers later.",
)  # fmt: skip
@click.option(
    "--tag", type=utf8_text, metavar="TAG",
    help="Share all notes with this tag, and later ones.",
)  # fmt: skip
@click.option("--take-back", is_flag=True, help="Take back what was given.")
@_AS_OF
@with_reader
@JSON
def share_command(
    name: str | None,
    with_agent: str | None,
    permission: str,
    everything: bool,
    tag: str | None,
    take_back: bool,
    as_of: str | None,
    tenant: str | None,
    agent: str | None,
    as_json: bool,
) -> int:
    r"""Share notes with another agent, or list who may see them.

    Without --with, list the permissions on a note, or all of them. The agent finds the notes at
    once, and no more as soon as they are taken back; recalls as of an earlier time obey what held
    then. Without --agent, --all and --tag are about notes of the agent `agent`.

    \b
    Example:
        tally memory share 0199d3a1-7c2e --with ben
        tally memory share --tag trip --with ben --permission write
        tally memory share --tag trip --with ben --take-back
        tally memory share
    """
    if with_agent is None:
        if everything or tag is not None or take_back:
            raise UsageError("name the agent: --with AGENT")
        return _list_shares(name, as_of, tenant, agent, as_json=as_json)
    if as_of is not None:
        raise UsageError("--as-of lists; leave out --with, or --as-of")
    if sum((name is not None, everything, tag is not None)) != 1:
        raise UsageError("say what to share: an ID, --all or --tag TAG, one of them")
    with open_memory(tenant, agent) as memory:
        id = None if name is None else whole_id(memory, name)
        if take_back:
            count = memory.unshare(id, with_agent, tag=tag)
        else:
            count = memory.share(id, with_agent, permission, tag=tag)
    given = None if take_back else permission
    if as_json:
        said = {"id": id, "tag": tag, "agent_id": with_agent, "permission": given, "notes": count}
        echo_json(said)
        return OK
    verb = "taken back from" if take_back else f"shared ({permission}) with"
    click.echo(f"{quantity(count, 'note')} {verb} {plain(with_agent)}")
    return OK


def _list_shares(
    name: str | None, as_of: str | None, tenant: str | None, agent: str | None, *, as_json: bool
) -> int:
    with open_memory(tenant, agent) as memory:
        id = None if name is None else whole_id(memory, name)
        shares = memory.shares(id, as_of=as_of)
    if as_json:
        echo_json({"shares": shares})
        return OK
    for each in shares:
        click.echo(share_line(each))
    if not shares:
        click.echo("nothing is shared", err=True)
    return OK


def share_line(each: Share) -> str:
    """Return a line about a permission: what is shared, with whom, and how it was given."""
    if each.id is not None:
        what = each.id
    else:
        what = "all notes" if each.tag is None else f"notes with the tag {plain(each.tag)}"
        what = f"{what} of {plain(each.owner)}, also later ones"
    by = "" if each.by is None else f", by {plain(each.by)}"
    rule = "" if each.rule is None else f", by the rule at {each.rule:,}"
    return f"{what}  {plain(each.agent_id)}  {each.permission}{by}{rule}"


@click.command("relate")
@click.argument("name", metavar="ID")
@click.argument("target", metavar="TO")
@click.option(
    "--as", "relation", type=utf8_text, default="related_to", show_default=True, metavar="WORD",
    help="Name the relation by this word, such as supports.",
)  # fmt: skip
@click.option(
    "--weight", type=float, default=1.0, show_default=True, metavar="W",
    help="Let recall follow it with this weight, 0 to 1.",
)  # fmt: skip
@click.option("--take-back", is_flag=True, help="Remove the relation.")
@with_reader
@JSON
def relate_command(
    name: str,
    target: str,
    relation: str,
    weight: float,
    take_back: bool,
    tenant: str | None,
    agent: str | None,
    as_json: bool,
) -> int:
    r"""Relate a note to another one.

    `tally memory show` shows the relations of a note. `tally recall --strategy graph` follows them
    from the best notes, in both directions.

    \b
    Example:
        tally memory relate 0199d3a1-7c2e 0199d3a4-01b0 --as supports
        tally recall "why Bern?" --strategy graph --explain
    """
    if take_back and weight != 1.0:
        raise UsageError("--take-back removes the relation; leave out --weight")
    with open_memory(tenant, agent) as memory:
        source, to = whole_id(memory, name), whole_id(memory, target)
        memory.relate(source, to, relation, weight=0.0 if take_back else weight)
    if as_json:
        given = 0.0 if take_back else weight
        echo_json({"source": source, "relation": relation, "target": to, "weight": given})
    else:
        verb = "no longer " if take_back or not weight else ""
        click.echo(f"{source}  {verb}{relation}  {to}")
    return OK


@click.command("consolidate")
@click.argument("names", nargs=-1, required=True, metavar="ID ID...")
@click.option(
    "--text", required=True, type=utf8_text, metavar="TEXT|-",
    help="Store this text in place of the notes; - for standard input.",
)  # fmt: skip
@click.option(
    "--type", "memory_type", type=click.Choice(TYPES), default="semantic", show_default=True,
    help="Store it as a note of this type.",
)  # fmt: skip
@with_reader
@JSON
def consolidate_command(
    names: tuple[str, ...],
    text: str,
    memory_type: str,
    tenant: str | None,
    agent: str | None,
    as_json: bool,
) -> int:
    r"""Store one text in place of several notes.

    The notes stay, related to the new one, and are recalled only as of an earlier time. The new
    note has their tags and the largest of their importances.

    \b
    Example:
        tally memory consolidate 0199d3a1 0199d3a4 --text "Ann is in Bern"
    """
    content = content_of((text,))
    with open_memory(tenant, agent) as memory:
        ids = [whole_id(memory, each) for each in names]
        made = memory.consolidate(ids, content, memory_type=memory_type, created_by=agent or "user")
    if as_json:
        echo_json({"id": made.id, "superseded": made.superseded, "held_back": made.quarantine})
        return OK
    click.echo(made.id)
    for each in made.superseded:
        click.echo(f"consolidated {each}", err=True)
    if made.quarantine:
        reasons = ", ".join(made.quarantine)
        click.echo(f"held back ({reasons}), so the notes stay as they are: tally memory review",
                   err=True)  # fmt: skip
    return OK


@click.command("decay")
@click.option(
    "--archive-below", type=float, default=0.2, show_default=True, metavar="S",
    help="Archive notes with a score below this, 0 to 1.",
)  # fmt: skip
@click.option(
    "--forget-below", type=float, default=0.05, show_default=True, metavar="S",
    help="Mark notes with a score below this as forgotten.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show what would change; change nothing.")
@with_reader
@JSON
def decay_command(
    archive_below: float,
    forget_below: float,
    dry_run: bool,
    tenant: str | None,
    agent: str | None,
    as_json: bool,
) -> int:
    r"""Put away notes that hardly matter any more.

    The score of a note (`tally memory show`) falls with its age and rises with each recall.
    Procedural notes stay. What is put away is kept, and recalled only as of an earlier time. To let
    the score change a ranking instead: tally recall --weigh decay=0.5.

    \b
    Example:
        tally memory decay --dry-run
    """
    with open_memory(tenant, agent) as memory:
        faded = memory.decay(
            archive_below=archive_below, forget_below=forget_below, dry_run=dry_run
        )
    if as_json:
        echo_json({"archived": faded.archived, "forgotten": faded.forgotten, "dry_run": dry_run})
        return OK
    would = "would be " if dry_run else ""
    for ids, word in ((faded.archived, "archived"), (faded.forgotten, "forgotten")):
        for id in ids:
            click.echo(f"{id}  {would}{word}")
    if not (faded.archived or faded.forgotten):
        click.echo("every note still matters", err=True)
    return OK
