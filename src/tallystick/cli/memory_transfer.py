"""`tally memory export` and `import`: notes as lines of JSON, from one memory into another."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import click

from tallystick.cli.exit_codes import OK
from tallystick.cli.memory_opened import (
    IN_MEMORY,
    JSON,
    echo_json,
    opened,
    source,
    utf8_text,
    with_reader,
    written,
)
from tallystick.core.errors import UsageError
from tallystick.memory.errors import ImportRefused
from tallystick.memory.exchange import export_notes, import_notes
from tallystick.memory.note import CONTENT_BYTES_MAX
from tallystick.runtime.config_keys import one_line

__all__ = ["export_command", "import_command"]

# A text of the longest kind, in escapes, with all that goes with it.
_LINE_BYTES_MAX = 8 * CONTENT_BYTES_MAX
_LABEL_CHARS_MAX = 400


@click.command("export")
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
        count = "1 note" if lines.notes == 1 else f"{lines.notes:,} notes"
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


@click.command("import")
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
        f"{len(report.imported):,} of {report.notes:,} notes imported, "
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
