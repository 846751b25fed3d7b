"""`tally memory review`: the notes that are held back, and what somebody decides about them."""

from __future__ import annotations

import click

from tallystick.cli.exit_codes import OK
from tallystick.cli.memory_opened import (
    JSON,
    content_line,
    echo_json,
    note_fields,
    opened,
    utf8_text,
    with_reader,
)
from tallystick.core.errors import UsageError
from tallystick.memory.records import Verdict
from tallystick.memory.suspicion import review, review_queue
from tallystick.runtime.memory_report import whole_id

__all__ = ["review_command"]


@click.command("review")
@click.argument("name", required=False, metavar="[ID]")
@click.option("--release", is_flag=True, help="Let it be recalled from now on.")
@click.option("--reject", is_flag=True, help="It stays held back, and somebody has looked.")
@click.option(
    "--by", type=utf8_text, default="user", show_default=True, metavar="NAME", help="Who decided."
)
@with_reader
@JSON
def review_command(
    name: str | None,
    release: bool,
    reject: bool,
    by: str,
    tenant: str | None,
    agent: str | None,
    as_json: bool,
) -> int:
    r"""List what is held back, with the reasons; or decide about one note.

    To be rid of a rejected note: tally forget ID. With --agent, only that agent's notes are
    listed; whether one is released is the owner's to say.

    \b
    Example:
        tally memory review
        tally memory review 0199d3a1-7c2e --release
    """
    if name is None:
        if release or reject:
            raise UsageError("--release and --reject need the ID of a note")
        return _list(tenant, agent, as_json=as_json)
    if release == reject:
        raise UsageError("say what becomes of it: --release or --reject")
    if agent is not None:
        raise UsageError("an agent does not decide about its own notes; leave out --agent")
    verdict = Verdict.RELEASED if release else Verdict.CONFIRMED
    with opened(tenant) as memory:
        id = whole_id(memory, name)
        seq = review(memory.store, id, verdict, by=by)
    if as_json:
        echo_json({"id": id, "verdict": verdict, "by": by, "seq": seq})
    else:
        click.echo(f"{id}  {'released' if release else 'rejected; it stays held back'}")
    return OK


def _list(tenant: str | None, agent: str | None, *, as_json: bool) -> int:
    with opened(tenant, agent) as memory:
        held = [
            each
            for each in review_queue(memory.store)
            if agent is None or each.note.agent_id == agent
        ]
    if as_json:
        rows = [
            {**note_fields(each.note), "reasons": each.reasons, "seq": each.seq} for each in held
        ]
        echo_json({"held_back": rows})
        return OK
    for each in held:
        head = f"{each.note.id}  {', '.join(each.reasons)}  "
        click.echo(f"{head}{content_line(each.note.content, taken=len(head))}")
    if not held:
        click.echo("nothing is held back", err=True)
    return OK
