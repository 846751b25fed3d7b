"""`tally memory`: what is remembered, listed, shown, moved, reviewed and checked."""

from __future__ import annotations

import importlib
from typing import Any

import click

from tallystick.cli.exit_codes import OK
from tallystick.cli.memory_opened import (
    JSON,
    content_line,
    echo_json,
    filters_from,
    note_fields,
    opened,
    readable,
    shown_time,
    with_filters,
    with_reader,
)
from tallystick.cli.render import plain
from tallystick.core.errors import UsageError
from tallystick.memory.selection import Seen
from tallystick.runtime.memory import Memory
from tallystick.runtime.memory_report import Listed, list_notes, standing, whole_id

__all__ = ["command"]

_ELSEWHERE = {
    "embed": "tallystick.cli.memory_state",
    "export": "tallystick.cli.memory_transfer",
    "import": "tallystick.cli.memory_transfer",
    "keys": "tallystick.cli.memory_state",
    "review": "tallystick.cli.memory_review",
    "stats": "tallystick.cli.memory_state",
    "verify": "tallystick.cli.memory_state",
}
_CITATION = "note:"


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


@click.group("memory", cls=_Group)
def command() -> None:
    r"""List, show, move, review and check what is remembered.

    \b
    Example:
        tally memory ls
        tally memory stats
    """


@command.command("ls")
@with_filters
@click.option("--all", "everything", is_flag=True, help="Also what is not recalled, and why not.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, metavar="N",
    help="At most so many.",
)  # fmt: skip
@click.option(
    "--offset", type=click.IntRange(min=0), default=0, metavar="N", help="Pass over so many first."
)
@with_reader
@JSON
def ls_command(
    everything: bool,
    limit: int,
    offset: int,
    tenant: str | None,
    agent: str | None,
    as_json: bool,
    **given: object,
) -> int:
    r"""List notes, the newest first.

    \b
    Example:
        tally memory ls --tag trip --limit 20
    """
    filters = filters_from(given, everything=everything)
    with opened(tenant, agent) as memory:
        page = list_notes(memory, filters, offset=offset, limit=limit)
    if as_json:
        notes = [_fields(each) for each in page.notes]
        echo_json({"notes": notes, "total": page.total, "offset": offset, "limit": limit})
        return OK
    for each in page.notes:
        click.echo(_line(each))
    last = offset + len(page.notes)
    if not page.notes:
        click.echo(f"none of {page.total:,} notes" if page.total else "no notes", err=True)
    elif last < page.total:
        click.echo(f"{last:,} of {page.total:,}; more: --offset {last}", err=True)
    return OK


def _fields(each: Listed) -> dict[str, Any]:
    return {
        **note_fields(each.note),
        "importance": each.state.importance,
        "valid_to": shown_time(each.state.valid_to),
        "expires_at": shown_time(each.state.expires_at),
        "deleted_at": shown_time(each.state.deleted_at),
        "state": each.state.state,
        "held_back": each.state.quarantine,
        "standing": each.standing,
    }


def _line(each: Listed) -> str:
    note = each.note
    became = "" if each.standing == "current" else f"({each.standing.replace('_', ' ')}) "
    head = f"{note.id}  {shown_time(note.created_at)}  {note.memory_type:<10}  {became}"
    return f"{head}{content_line(note.content, taken=len(head))}"


@command.command("show")
@click.argument("name", metavar="ID|CITATION")
@click.option("--as-of", metavar="PLACE|TIME", help="As it stood then: a place in the log, a time.")
@with_reader
@JSON
def show_command(
    name: str, as_of: str | None, tenant: str | None, agent: str | None, as_json: bool
) -> int:
    r"""Show a note, or what a citation is of: the bytes that were recalled, checked.

    ID may be the beginning of one. A citation is checked by the receipt of its recall: exit code 6
    if that does not hold.

    \b
    Example:
        tally memory show 0199d3a1-7c2e
        tally memory show "note:0199d3a1-…@0199d3b0-…#5891b5b522d5df08"
    """
    with opened(tenant, agent) as memory:
        if name.startswith(_CITATION):
            return _show_cited(memory, name, as_of=as_of, as_json=as_json)
        id = whole_id(memory, name)
        seen = memory.note(id, as_of=as_of)
        now = memory.store.clock()
        score = memory.score(id)
    became = standing(seen.note, seen.state, now=now)
    listed = Listed(note=seen.note, state=seen.state, standing=became)
    if as_json:
        echo_json({**_fields(listed), **_beside(seen), "score": score, "citation": None})
        return OK
    for key, value in {**_fields(listed), **_beside(seen), "score": f"{score:.4f}"}.items():
        if key != "content" and value not in (None, "", (), {}):
            click.echo(f"{key:<16}  {_text(value)}")
    click.echo(f"\n{readable(seen.note.content)}")
    return OK


def _show_cited(memory: Memory, citation: str, *, as_of: str | None, as_json: bool) -> int:
    if as_of is not None:
        raise UsageError("a citation says itself as of when; leave out --as-of")
    note = memory.resolve(citation)
    if as_json:
        echo_json({**note_fields(note), "citation": citation})
    else:
        click.echo(readable(note.content))
        click.echo(f"note {note.id}: as it was recalled; the receipt holds", err=True)
    return OK


def _beside(seen: Seen) -> dict[str, Any]:
    return {
        "content_hash": seen.content_hash,
        "content_seq": seen.content_seq,
        "updated_seq": seen.updated_seq,
        "sightings": seen.sightings,
        "access_count": seen.access_count,
        "last_accessed_at": shown_time(seen.last_accessed_at),
    }


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_text, value))
    return plain(str(value), chars_max=200)
