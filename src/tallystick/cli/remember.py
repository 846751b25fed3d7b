"""`tally remember`: a note for later."""

from __future__ import annotations

import click

from tallystick.cli.exit_codes import OK
from tallystick.cli.memory_opened import JSON, TYPES, age, echo_json, opened, source, with_reader
from tallystick.core.errors import UsageError
from tallystick.memory.errors import NoteInvalid
from tallystick.memory.note import CONTENT_BYTES_MAX, NoteScope, SourceType
from tallystick.memory.remember import Remembered
from tallystick.runtime.memory_report import whole_id

__all__ = ["command"]

# Who wrote it down, where nobody is named: whoever calls the command.
_USER = "user"


@click.command("remember")
@click.argument("words", nargs=-1, metavar="TEXT...|-")
@click.option("--key", metavar="NAME", help="What it is about; it ends the note with this key.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="May be repeated.")
@click.option(
    "--type", "memory_type", type=click.Choice(TYPES), default=TYPES[0], show_default=True,
    help="working expires after an hour; procedural is important and does not decay.",
)  # fmt: skip
@click.option(
    "--importance", type=float, default=0.5, show_default=True, metavar="I", help="From 0 to 1."
)
@click.option("--author", metavar="NAME", help="Who said it.")
@click.option("--thread", metavar="NAME", help="The conversation that it is of.")
@click.option(
    "--scope", type=click.Choice([each.value for each in NoteScope]), default="private",
    show_default=True, help="Who may see it beside its agent.",
)  # fmt: skip
@click.option("--ttl", metavar="TIME", help="Until when it holds, from now: 15m, 12h, 30d, 2w.")
@click.option("--related", multiple=True, metavar="ID", help="A note it goes with; repeatable.")
@click.option(
    "--source", "source_type", type=click.Choice([each.value for each in SourceType]),
    default="human", show_default=True, help="Where it comes from; strangers are looked at harder.",
)  # fmt: skip
@with_reader
@JSON
def command(
    words: tuple[str, ...],
    key: str | None,
    tags: tuple[str, ...],
    memory_type: str,
    importance: float,
    author: str | None,
    thread: str | None,
    scope: str,
    ttl: str | None,
    related: tuple[str, ...],
    source_type: str,
    tenant: str | None,
    agent: str | None,
    as_json: bool,
) -> int:
    r"""Keep a note, on disk when this returns. Prints its id.

    What is known already is sighted again, and keeps its id. What looks like an attack is held
    back until somebody looks: tally memory review.

    \b
    Example:
        tally remember "Ann moved to Bern in May" --key ann.home
        git log -1 --format=%B | tally remember - --tag commit
    """
    content = _content(words)
    ttl_ms = None if ttl is None else age(ttl, field="ttl")
    with opened(tenant, agent, create=True) as memory:
        made = memory.remember(
            content,
            key=key,
            tags=list(tags),
            memory_type=memory_type,
            importance=importance,
            author=author,
            thread_id=thread,
            scope=scope,
            ttl_ms=ttl_ms,
            related_to=[whole_id(memory, each) for each in related],
            source_type=source_type,
            created_by=agent or _USER,
        )
    if as_json:
        echo_json(
            {
                "id": made.id, "seq": made.seq, "content_hash": made.content_hash,
                "known": made.sighted, "superseded": made.superseded,
                "held_back": made.quarantine,
            }
        )  # fmt: skip
    else:
        click.echo(made.id)
        _tell(made)
    return OK


def _content(words: tuple[str, ...]) -> str:
    if words == ("-",):
        with source("-") as file:
            raw = file.read(CONTENT_BYTES_MAX + 2)
        if len(raw.removesuffix(b"\n")) > CONTENT_BYTES_MAX:
            why = f"more than {CONTENT_BYTES_MAX:,} bytes: keep it as an attachment"
            raise NoteInvalid(field="content", why=why)
        try:
            return raw.decode("utf-8").removesuffix("\n")
        except UnicodeDecodeError as error:
            raise UsageError(f"standard input: byte {error.start + 1:,} is not UTF-8") from None
    if not words:
        raise UsageError("say what to remember, or - for standard input")
    return " ".join(words)


def _tell(made: Remembered) -> None:
    if made.sighted:
        click.echo("known already; sighted again", err=True)
    for id in made.superseded:
        click.echo(f"superseded {id}", err=True)
    if made.quarantine:
        click.echo(
            f"held back ({', '.join(made.quarantine)}): not recalled until reviewed; "
            f"tally memory review {made.id} --release",
            err=True,
        )
