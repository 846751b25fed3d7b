"""`tally memory`: what is remembered, listed, shown, moved, reviewed and checked."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import click

from tallystick.cli.commands.memory.options import (
    IN_MEMORY,
    content_line,
    filters_from,
    head_from,
    note_fields,
    opened,
    readable,
    shown_time,
    signing_key,
    source,
    utf8_text,
    with_filters,
    with_reader,
    written,
)
from tallystick.cli.exit_codes import LEDGER, OK
from tallystick.cli.parts import JSON, echo_json
from tallystick.cli.show import counted, plain
from tallystick.core.errors import UsageError
from tallystick.memory.errors import ImportRefused
from tallystick.memory.exchange import export_notes, import_notes
from tallystick.memory.memory import Memory, add_key, open_keys
from tallystick.memory.note import CONTENT_BYTES_MAX
from tallystick.memory.recall.selection import Seen
from tallystick.memory.receipts.receipt_file import receipt_file_bytes
from tallystick.memory.report import (
    Checked,
    Listed,
    MemoryStats,
    check_memory,
    list_notes,
    memory_stats,
    note_status,
    whole_id,
)
from tallystick.memory.store.records import Verdict
from tallystick.memory.suspicion import review, review_queue
from tallystick.settings.files import config_directory
from tallystick.settings.schema import one_line

# `tally memory`: what is remembered, listed, shown, moved, reviewed and checked.


_CITATION = "note:"


@click.group("memory")
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
        click.echo(f"none of {counted(page.total, 'note')}" if page.total else "no notes", err=True)
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
    became = note_status(seen.note, seen.state, now=now)
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


# `tally memory stats`, `verify`, `embed` and `keys`: the memory as a whole.


_WHY_CHARS_MAX = 300


@command.command("stats")
@IN_MEMORY
@JSON
def stats_command(tenant: str | None, as_json: bool) -> int:
    r"""Say how many notes there are and how they stand, what is embedded, and where the log is.

    \b
    Example:
        tally memory stats
    """
    with opened(tenant) as memory:
        stats = memory_stats(memory)
    if as_json:
        echo_json(stats)
        return OK
    click.echo(f"memory      {stats.memory}, {one_line(stats.path)}, {stats.file_bytes:,} bytes")
    click.echo(f"notes       {stats.total:,}, {stats.sightings:,} sighted again")
    for kind, counts in stats.notes.items():
        said = ", ".join(f"{count:,} {word.replace('_', ' ')}" for word, count in counts.items())
        click.echo(f"  {kind:<10}{said}")
    click.echo(f"erased      {stats.erased:,}{'; bytes still in the file' * stats.scrub_due}")
    click.echo(f"embedded    {stats.embedded:,}, {stats.unembedded:,} not; {_model(stats)}")
    click.echo(f"receipts    {stats.receipts:,}, exports {stats.exports:,}")
    click.echo(f"head        {stats.head.count}:{stats.head.hash}")
    return OK


def _model(stats: MemoryStats) -> str:
    if stats.model is None:
        return "no model yet"
    if stats.model.usable:
        return f"model {stats.model.digest[:12]}"
    return f"model {stats.model.digest[:12]}, another than here: tally memory embed --replace"


@command.command("verify")
@click.option(
    "--head", "kept", metavar="COUNT:HASH",
    help="A head that was kept elsewhere; it must still be a part of the log.",
)  # fmt: skip
@IN_MEMORY
@JSON
def verify_command(kept: str | None, tenant: str | None, as_json: bool) -> int:
    r"""Check every entry of the log, all that follows from it, and the chain of receipts.

    Prints the head, to be kept elsewhere: with it a log that was cut off is found. Exit code 6 if
    something does not hold.

    \b
    Example:
        tally memory verify
        tally memory verify --head 12:5891b5b522d5…
    """
    head = None if kept is None else head_from(kept)
    with opened(tenant) as memory:
        checked = check_memory(memory, head=head)
    if as_json:
        echo_json(
            {
                "valid": checked.valid, "log": _report(checked.log),
                "receipts": _report(checked.receipts),
                "head": f"{checked.head.count}:{checked.head.hash}",
            }
        )  # fmt: skip
    else:
        _tell(checked)
    return OK if checked.valid else LEDGER


def _report(report: object) -> dict[str, object]:
    names = ("valid", "total_records", "verified_records", "first_broken_at", "error_message")
    fields: dict[str, object] = {name: getattr(report, name) for name in names}
    for name in ("erased", "unknown_keys"):
        if hasattr(report, name):
            fields[name] = getattr(report, name)
    return fields


def _tell(checked: Checked) -> None:
    log, receipts = checked.log, checked.receipts
    if log.valid:
        erased = f", {log.erased:,} erased" if log.erased else ""
        click.echo(f"log       {counted(log.total_records, 'entry')}{erased}: all hold")
    else:
        place = "" if log.first_broken_at is None else f"entry {log.first_broken_at:,}: "
        click.echo(f"log       {place}{plain(log.error_message or '', chars_max=_WHY_CHARS_MAX)}")
    if receipts.valid:
        unknown = receipts.unknown_keys
        beside = f"; {unknown:,} of them signed with a key that is not here" if unknown else ""
        click.echo(f"receipts  {receipts.total_records:,}: all hold{beside}")
    else:
        why = plain(receipts.error_message or "", chars_max=_WHY_CHARS_MAX)
        click.echo(f"receipts  {why}")
    click.echo(f"head      {checked.head.count}:{checked.head.hash}")


@command.command("embed")
@click.option("--replace", is_flag=True, help="Throw the vectors of another model away first.")
@IN_MEMORY
@JSON
def embed_command(replace: bool, tenant: str | None, as_json: bool) -> int:
    r"""Give vectors to notes that have none; needs the extra `memory`.

    Vectors of two models are never mixed: a memory made with another one is embedded again as a
    whole, with --replace.

    \b
    Example:
        tally memory embed
    """
    with opened(tenant) as memory:
        count = memory.embed(replace=replace)
        stats = memory_stats(memory)
    if as_json:
        echo_json({"embedded_now": count, "embedded": stats.embedded, "model": stats.model})
    else:
        click.echo(f"{count:,} embedded, {stats.embedded:,} in all; {_model(stats)}")
    return OK


@command.command("keys")
@click.option(
    "--add", is_flag=True, help="Have a new key sign from now on; the others still check."
)
@JSON
def keys_command(add: bool, as_json: bool) -> int:
    r"""List the keys that sign receipts, by id. The last one signs.

    They are yours, for all memories, and lie apart from them in the configuration directory.
    Without its key a receipt cannot be checked: keep a copy.

    \b
    Example:
        tally memory keys
        tally memory keys --add
    """
    directory = config_directory(os.environ)
    keys = add_key(directory) if add else open_keys(directory)
    if as_json:
        path = str(directory / "memory.keys")
        echo_json({"current": keys.current.id, "keys": list(keys.by_id), "path": path})
        return OK
    for id in keys.by_id:
        click.echo(f"{id}{'  signs' if id == keys.current.id else ''}")
    return OK


# `tally memory receipt`: a receipt that somebody else can check.


@command.command("receipt")
@click.argument("id", metavar="RECALL|FORGETTING")
@click.option("--sign", is_flag=True, help="Sign it with your key, made on first use.")
@click.option(
    "--query", "asked", type=utf8_text, metavar="TEXT",
    help="Put what was asked into it, for whoever gets it.",
)  # fmt: skip
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write it there.",
)  # fmt: skip
@with_reader
@click.option("--json", "as_json", is_flag=True, help="Print it even if it is written to a file.")
def receipt_command(
    id: str,
    sign: bool,
    asked: str | None,
    output: Path | None,
    tenant: str | None,
    agent: str | None,
    as_json: bool,
) -> int:
    r"""Give a receipt away: somebody else checks it with a copy of the memory, and no secret.

    The file names the head of the log that ends with the receipt. With --sign it is checked by your
    public key, without by a head that you give: tally recall --verify says how.

    
    Example:
        tally memory receipt 0199d3b0-… --sign -o it.receipt
        tally recall --verify it.receipt --against copy.db --key signing.pub
    """
    with opened(tenant, agent) as memory:
        key = signing_key(memory.store.path) if sign else None
        file = memory.receipt_file(id, query=asked, key=key)
    line = receipt_file_bytes(file) + b"\n"
    if output is not None:
        written(output, iter((line,)))
    if output is None or as_json:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
    signed = f"signed by {file.key_id}" if file.signed else "unsigned"
    click.echo(f"receipt {one_line(id)}, under head {file.count}:{file.hash}, {signed}", err=True)
    return OK


# `tally memory review`: the notes that are held back, and what somebody decides about them.


@command.command("review")
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


# `tally memory export` and `import`: notes as lines of JSON, from one memory into another.


# A text of the longest kind, in escapes, with all that goes with it.
_LINE_BYTES_MAX = 8 * CONTENT_BYTES_MAX
_LABEL_CHARS_MAX = 400


@command.command("export")
@click.argument("name", metavar="FILE|-")
@click.option("--label", type=utf8_text, metavar="TEXT", help="Where it goes; else the file.")
@with_reader
@JSON
def export_command(
    name: str, label: str | None, tenant: str | None, agent: str | None, as_json: bool
) -> int:
    r"""Write notes as lines of JSON. That it was done is on the record, under its label.

    An erasure later names the exports that may still have a note. Deleted notes are not exported.

    \b
    Example:
        tally memory export notes.jsonl
        tally memory export - --label "for the other machine" > notes.jsonl
    """
    if name == "-" and as_json:
        raise UsageError("with --json, name a file: standard output is for the report")
    told = (label if label is not None else _label(name))[:_LABEL_CHARS_MAX]
    with opened(tenant, agent) as memory:
        if name != "-" and not os.access(Path(name).parent, os.W_OK):
            # Before anything is on the record.
            raise UsageError(f"{one_line(name)}: its directory is not there, or not to be written")
        lines = _Counted(export_notes(memory.store, reader=memory.reader, label=told))
        if name == "-":
            for line in lines:
                sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        else:
            written(Path(name), iter(lines))
    if as_json:
        echo_json({"path": _label(name), "label": told, "notes": lines.notes, "bytes": lines.bytes})
    else:
        count = counted(lines.notes, "note")
        click.echo(f"{count}, {lines.bytes:,} bytes; on the record as {one_line(told)}", err=True)
    return OK


def _label(name: str) -> str:
    if name == "-":
        return "standard output"
    # A name may be bytes that are no text; the record is text.
    return os.path.abspath(name).encode("utf-8", "replace").decode()


class _Counted:
    """Lines as they pass, counted. The first and the last are no notes."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = lines
        self.notes = -2
        self.bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        for line in self._lines:
            self.notes += 1
            self.bytes += len(line)
            yield line


@command.command("import")
@click.argument("name", metavar="FILE|-")
@click.option(
    "--trusted", is_flag=True, help="An export of your own: believe the reviews that were made."
)
@IN_MEMORY
@JSON
def import_command(name: str, trusted: bool, tenant: str | None, as_json: bool) -> int:
    r"""Take in the notes of an export, all of them or with an error none.

    What is here already stays as it is, what was erased here is not brought back, and what looks
    like an attack is held back: tally memory review.

    \b
    Example:
        tally memory import notes.jsonl
    """
    with source(name) as file, opened(tenant, create=True) as memory:
        report = import_notes(memory.store, _lines(file), trusted=trusted)
    if as_json:
        echo_json(report)
        return OK
    click.echo(
        f"{len(report.imported):,} of {counted(report.notes, 'note')} imported, "
        f"{len(report.present):,} were here, {len(report.erased):,} were erased here"
    )
    if report.quarantined:
        click.echo(f"{len(report.quarantined):,} held back: tally memory review", err=True)
    return OK


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, none of them longer than one can be."""
    number = 0
    while line := file.readline(_LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > _LINE_BYTES_MAX:
            raise ImportRefused(line=number, why=f"it is longer than {_LINE_BYTES_MAX:,} bytes")
        yield line
