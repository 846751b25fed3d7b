"""`tally memory`: list, show, review, check, export and import notes."""

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
    open_memory,
    readable,
    shown_time,
    signing_key,
    source,
    utf8_text,
    with_filters,
    with_reader,
    write_file,
)
from tallystick.cli.commands.memory.sharing import (
    consolidate_command,
    decay_command,
    relate_command,
    share_command,
)
from tallystick.cli.exit_codes import LEDGER, OK
from tallystick.cli.parts import JSON, echo_json, echo_line, stdout_columns
from tallystick.cli.show import plain, quantity
from tallystick.core.errors import UsageError
from tallystick.memory.errors import ImportRefused
from tallystick.memory.exchange import export_notes, import_notes
from tallystick.memory.memory import Memory
from tallystick.memory.note import CONTENT_BYTES_MAX, NoteScope
from tallystick.memory.recall.selection import Seen
from tallystick.memory.receipts.keys import add_key, open_keys
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
from tallystick.memory.sharing import Relation
from tallystick.memory.store.records import Verdict
from tallystick.memory.suspicion import review, review_queue
from tallystick.settings.files import config_directory
from tallystick.settings.schema import one_line

# `tally memory ls` and `show`: list and show notes.


_CITATION = "note:"
# On terminals with fewer columns, ids and times are shortened. The beginning of an id is a time in
# milliseconds and 12 random bits, which is enough for every command.
_WIDE_COLUMNS = 100
_SHORT_ID_CHARS = len("0199d3a1-7c2e-7abc")
_SHORT_TIME_CHARS = len("2026-03-01T09:30")


@click.group("memory")
def command() -> None:
    r"""List, show, share, relate, review, check, export and import notes.

    \b
    Example:
        tally memory ls
        tally memory stats
    """


for each in (share_command, relate_command, consolidate_command, decay_command):
    command.add_command(each)


@command.command("ls")
@with_filters
@click.option(
    "--all", "everything", is_flag=True, help="List also notes that are not recalled, and why."
)
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, metavar="N",
    help="List at most N notes.",
)  # fmt: skip
@click.option(
    "--offset", type=click.IntRange(min=0), default=0, show_default=True, metavar="N",
    help="Skip the first N notes.",
)  # fmt: skip
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
    with open_memory(tenant, agent) as memory:
        page = list_notes(memory, filters, offset=offset, limit=limit)
    if as_json:
        notes = [_fields(each) for each in page.notes]
        echo_json({"notes": notes, "total": page.total, "offset": offset, "limit": limit})
        return OK
    for each in page.notes:
        click.echo(_line(each))
    last = offset + len(page.notes)
    if not page.notes:
        none = f"there are only {quantity(page.total, 'note')}" if page.total else "no notes"
        click.echo(none, err=True)
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
    id, created_at = note.id, shown_time(note.created_at) or ""
    columns = stdout_columns()
    if columns is not None and columns < _WIDE_COLUMNS:
        id, created_at = id[:_SHORT_ID_CHARS], created_at[:_SHORT_TIME_CHARS]
    head = f"{id}  {created_at}  {note.memory_type:<10}  {became}"
    return f"{head}{content_line(note.content, taken=len(head))}"


@command.command("show")
@click.argument("name", metavar="ID|CITATION")
@click.option(
    "--as-of",
    metavar="PLACE|TIME",
    help="Show the note as it was at a position in the log or at a time.  [default: now]",
)
@with_reader
@JSON
def show_command(
    name: str, as_of: str | None, tenant: str | None, agent: str | None, as_json: bool
) -> int:
    r"""Show a note, or the text that a citation refers to.

    ID is an id or the beginning of one. A CITATION begins with `note:`, as recall programs print
    it; it is checked with the receipt of its recall. Exit code 6 if it does not hold.

    \b
    Example:
        tally memory show 0199d3a1-7c2e
        tally memory show 0199d3a1-7c2e --as-of 2026-03-01T00:00:00Z
    """
    with open_memory(tenant, agent) as memory:
        if name.startswith(_CITATION):
            return _show_cited(memory, name, as_of=as_of, as_json=as_json)
        id = whole_id(memory, name)
        seen = memory.note(id, as_of=as_of)
        now = memory.store.clock()
        score = memory.score(id)
        more = _relations_and_shares(memory, seen, as_of)
    became = note_status(seen.note, seen.state, now=now)
    listed = Listed(note=seen.note, state=seen.state, standing=became)
    if as_json:
        fields = {**_fields(listed), **_log_fields(seen), "score": score, **more}
        echo_json({**fields, "citation": None})
        return OK
    shown = {**_fields(listed), **_log_fields(seen), "score": f"{score:.4f}"}
    shown["relations"] = tuple(_relation_text(each, seen.note.id) for each in more["relations"])
    shown["shared_with"] = tuple(
        f"{each.agent_id} ({each.permission})" for each in more["shared_with"]
    )
    shown["seen_by"] = more["seen_by"]
    for key, value in shown.items():
        if key != "content" and value not in (None, "", (), {}):
            click.echo(f"{key:<16}  {_text(value)}")
    click.echo(f"\n{readable(seen.note.content)}")
    return OK


def _relations_and_shares(memory: Memory, seen: Seen, as_of: str | None) -> dict[str, Any]:
    """Return the relations of a note, with whom it is shared, and which agents see it."""
    note = seen.note
    shares = memory.shares(note.id, as_of=as_of)
    everybody = note.scope in (NoteScope.PUBLIC, NoteScope.GLOBAL)
    seen_by = ("everybody",) if everybody else (note.agent_id, *(each.agent_id for each in shares))
    return {
        "relations": memory.relations(note.id, as_of=as_of),
        "shared_with": shares,
        "seen_by": tuple(dict.fromkeys(seen_by)),
    }


def _relation_text(relation: Relation, id: str) -> str:
    weight = "" if relation.weight == 1.0 else f" ({relation.weight:g})"
    if relation.source == id:
        return f"{relation.relation} {relation.target}{weight}"
    return f"{relation.source} {relation.relation} it{weight}"


def _show_cited(memory: Memory, citation: str, *, as_of: str | None, as_json: bool) -> int:
    if as_of is not None:
        raise UsageError("a citation is of one point in time already; leave out --as-of")
    note = memory.resolve(citation)
    if as_json:
        echo_json({**note_fields(note), "citation": citation})
    else:
        click.echo(readable(note.content))
        click.echo(f"note {note.id}: as it was recalled; the receipt holds", err=True)
    return OK


def _log_fields(seen: Seen) -> dict[str, Any]:
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


# `tally memory stats`, `verify`, `embed` and `keys`: look after the memory as a whole.


_WHY_CHARS_MAX = 300


@command.command("stats")
@IN_MEMORY
@JSON
def stats_command(tenant: str | None, as_json: bool) -> int:
    r"""Count the notes by type and state, and show the head of the log.

    \b
    Example:
        tally memory stats
    """
    with open_memory(tenant) as memory:
        stats = memory_stats(memory)
    if as_json:
        echo_json(stats)
        return OK
    echo_line(
        f"memory      {stats.memory}, {one_line(stats.path)}, {stats.file_bytes:,} bytes", indent=12
    )
    click.echo(f"notes       {stats.total:,}, {stats.sightings:,} sighted again")
    for kind, counts in stats.notes.items():
        said = ", ".join(f"{count:,} {word.replace('_', ' ')}" for word, count in counts.items())
        click.echo(f"  {kind:<10}{said}")
    click.echo(f"erased      {stats.erased:,}{'; bytes still in the file' * stats.scrub_due}")
    echo_line(
        f"embedded    {stats.embedded:,}, {stats.unembedded:,} not; {_model(stats)}", indent=12
    )
    click.echo(f"receipts    {stats.receipts:,}, exports {stats.exports:,}")
    click.echo(f"head        {stats.head.count}:{stats.head.hash}")
    return OK


def _model(stats: MemoryStats) -> str:
    if stats.model is None:
        return "no model yet"
    if stats.model.usable:
        return f"model {stats.model.digest[:12]}"
    return (
        f"model {stats.model.digest[:12]} is not the one here; to use that: tally memory embed "
        "--replace"
    )


@command.command("verify")
@click.option(
    "--head", "kept", metavar="COUNT:HASH",
    help="Check that the log still begins with this head, which was kept elsewhere.",
)  # fmt: skip
@IN_MEMORY
@JSON
def verify_command(kept: str | None, tenant: str | None, as_json: bool) -> int:
    r"""Check the log of a memory and its receipts.

    Every entry of the log is checked, the tables that are computed from it, and the chain of
    receipts. Keep the head that is printed in another place: with --head HEAD, a log that was cut
    off is found. Exit code 6 if something does not hold.

    \b
    Example:
        tally memory verify
        tally memory verify --head "$HEAD"
    """
    head = None if kept is None else head_from(kept)
    with open_memory(tenant) as memory:
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
        _echo_checked(checked)
    return OK if checked.valid else LEDGER


def _report(report: object) -> dict[str, object]:
    names = ("valid", "total_records", "verified_records", "first_broken_at", "error_message")
    fields: dict[str, object] = {name: getattr(report, name) for name in names}
    for name in ("erased", "unknown_keys"):
        if hasattr(report, name):
            fields[name] = getattr(report, name)
    return fields


def _echo_checked(checked: Checked) -> None:
    log, receipts = checked.log, checked.receipts
    if log.valid:
        erased = f", {log.erased:,} erased" if log.erased else ""
        click.echo(f"log       {quantity(log.total_records, 'entry')}{erased}: all hold")
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
@click.option("--replace", is_flag=True, help="Delete the vectors of another model first.")
@IN_MEMORY
@JSON
def embed_command(replace: bool, tenant: str | None, as_json: bool) -> int:
    r"""Compute vectors for notes that have none.

    Needs the extra `memory`. Vectors of two models are never mixed: to change the model, compute
    all vectors again with --replace.

    \b
    Example:
        tally memory embed
    """
    with open_memory(tenant) as memory:
        count = memory.embed(replace=replace)
        stats = memory_stats(memory)
    if as_json:
        echo_json({"embedded_now": count, "embedded": stats.embedded, "model": stats.model})
    else:
        click.echo(f"{count:,} embedded, {stats.embedded:,} in all; {_model(stats)}")
    return OK


@command.command("keys")
@click.option(
    "--add", is_flag=True, help="Make a new key that signs from now on; keep the others for checks."
)
@JSON
def keys_command(add: bool, as_json: bool) -> int:
    r"""List the keys that sign receipts, by id.

    The last key signs new receipts. The keys are for all your memories, and are stored in the
    configuration directory. Without its key a receipt cannot be checked, so keep a copy.

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
    with open_memory(tenant, agent) as memory:
        key = signing_key(memory.store.path) if sign else None
        file = memory.receipt_file(id, query=asked, key=key)
    line = receipt_file_bytes(file) + b"\n"
    if output is not None:
        write_file(output, iter((line,)))
    if output is None or as_json:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
    signed = f"signed by {file.key_id}" if file.signed else "unsigned"
    click.echo(f"receipt {one_line(id)}, under head {file.count}:{file.hash}, {signed}", err=True)
    return OK


# `tally memory review`: list the notes that are held back, and decide about them.


@command.command("review")
@click.argument("name", required=False, metavar="[ID]")
@click.option("--release", is_flag=True, help="Let the note be recalled from now on.")
@click.option("--reject", is_flag=True, help="Keep the note held back, and mark it as reviewed.")
@click.option(
    "--by", type=utf8_text, default="user", show_default=True, metavar="NAME",
    help="Record that this person decided.",
)  # fmt: skip
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
    r"""List notes that are held back, or decide about one.

    Notes that look like an attack are held back, and listed here with the reasons. To delete a
    rejected note: tally forget ID. With --agent, only the notes of that agent are listed; only the
    owner can decide about them.

    \b
    Example:
        tally memory review
        tally memory review 0199d3a1-7c2e --release
    """
    if name is None:
        if release or reject:
            raise UsageError(
                "--release and --reject need the ID of a note; list them: tally memory review"
            )
        return _list(tenant, agent, as_json=as_json)
    if release == reject:
        raise UsageError("decide about the note: --release or --reject")
    if agent is not None:
        raise UsageError("only the owner decides about notes; leave out --agent")
    verdict = Verdict.RELEASED if release else Verdict.CONFIRMED
    with open_memory(tenant) as memory:
        id = whole_id(memory, name)
        seq = review(memory.store, id, verdict, by=by)
    if as_json:
        echo_json({"id": id, "verdict": verdict, "by": by, "seq": seq})
    else:
        click.echo(f"{id}  {'released' if release else 'rejected; it stays held back'}")
    return OK


def _list(tenant: str | None, agent: str | None, *, as_json: bool) -> int:
    with open_memory(tenant, agent) as memory:
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


# `tally memory export` and `import`: copy notes from one memory to another, as lines of JSON.


# The longest line: the longest text, every byte of it escaped, with the other fields.
_LINE_BYTES_MAX = 8 * CONTENT_BYTES_MAX
_LABEL_CHARS_MAX = 400


@command.command("export")
@click.argument("name", metavar="FILE|-")
@click.option(
    "--label",
    type=utf8_text,
    metavar="TEXT",
    help="Record the export under this label.  [default: the path of the file]",
)
@with_reader
@JSON
def export_command(
    name: str, label: str | None, tenant: str | None, agent: str | None, as_json: bool
) -> int:
    r"""Write notes to a file, as lines of JSON.

    The export is recorded in the log of the memory: when a note is erased later, the exports that
    may still have it are named. Deleted notes are not exported.

    \b
    Example:
        tally memory export notes.jsonl
        tally memory export - --label "for the other machine" > notes.jsonl
    """
    if name == "-" and as_json:
        raise UsageError("--json prints the report on standard output; name a file for the notes")
    recorded_label = (label if label is not None else _label(name))[:_LABEL_CHARS_MAX]
    with open_memory(tenant, agent) as memory:
        if name != "-" and not os.access(Path(name).parent, os.W_OK):
            # Checked before the export is recorded in the log.
            raise UsageError(
                f"{one_line(name)}: its directory does not exist, or cannot be written"
            )
        lines = _CountedLines(
            export_notes(memory.store, reader=memory.reader, label=recorded_label)
        )
        if name == "-":
            for line in lines:
                sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        else:
            write_file(Path(name), iter(lines))
    if as_json:
        echo_json(
            {
                "path": _label(name),
                "label": recorded_label,
                "notes": lines.notes,
                "bytes": lines.bytes,
            }
        )
    else:
        count = quantity(lines.notes, "note")
        click.echo(
            f"{count}, {lines.bytes:,} bytes; recorded as {one_line(recorded_label)}", err=True
        )
    return OK


def _label(name: str) -> str:
    if name == "-":
        return "standard output"
    # A file name may be bytes that are not UTF-8, but the log can hold only text.
    return os.path.abspath(name).encode("utf-8", "replace").decode()


class _CountedLines:
    """Count the lines and bytes of an export while they are written.

    The first and the last line are not notes, so `notes` starts at -2.
    """

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
    "--trusted", is_flag=True, help="Accept the reviews in the file, as in an export of your own."
)
@IN_MEMORY
@JSON
def import_command(name: str, trusted: bool, tenant: str | None, as_json: bool) -> int:
    r"""Import the notes of an export.

    All notes are imported, or none if there is an error. A note that is here already is not
    changed, and one that was erased here is not imported again. Notes that look like an attack are
    held back (tally memory review).

    \b
    Example:
        tally memory import notes.jsonl
    """
    with source(name) as file, open_memory(tenant, create=True) as memory:
        report = import_notes(memory.store, _lines(file), trusted=trusted)
    if as_json:
        echo_json(report)
        return OK
    click.echo(
        f"{len(report.imported):,} of {quantity(report.notes, 'note')} imported, "
        f"{len(report.present):,} were here already, {len(report.erased):,} were erased here"
    )
    if report.quarantined:
        click.echo(f"{len(report.quarantined):,} held back: tally memory review", err=True)
    return OK


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Read the lines of a file. Raise `ImportRefused` for one that is longer than any note."""
    number = 0
    while line := file.readline(_LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > _LINE_BYTES_MAX:
            raise ImportRefused(line=number, why=f"it has more than {_LINE_BYTES_MAX:,} bytes")
        yield line
