"""`tally memory stats`, `verify`, `embed` and `keys`: the memory as a whole."""

from __future__ import annotations

import os
import re

import click

from tallystick.cli.exit_codes import LEDGER, OK
from tallystick.cli.memory_opened import IN_MEMORY, JSON, echo_json, opened
from tallystick.cli.render import plain
from tallystick.core.errors import UsageError
from tallystick.memory.log import Head
from tallystick.runtime.config_file import config_directory
from tallystick.runtime.config_keys import one_line
from tallystick.runtime.memory_keys import add_key, open_keys
from tallystick.runtime.memory_report import Checked, MemoryStats, check_memory, memory_stats

__all__ = ["embed_command", "keys_command", "stats_command", "verify_command"]

_HEAD = re.compile(r"(0|[1-9][0-9]{0,17}):([0-9a-f]{64})")
_WHY_CHARS_MAX = 300


@click.command("stats")
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


@click.command("verify")
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
    head = None if kept is None else _head(kept)
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


def _head(text: str) -> Head:
    found = _HEAD.fullmatch(text)
    if found is None:
        raise UsageError("--head is COUNT:HASH, as tally memory verify prints it")
    return Head(count=int(found[1]), hash=found[2])


def _report(report: object) -> dict[str, object]:
    names = ("valid", "total_records", "verified_records", "first_broken_at", "error_message")
    fields: dict[str, object] = {name: getattr(report, name) for name in names}
    if hasattr(report, "erased"):
        fields["erased"] = report.erased
    return fields


def _tell(checked: Checked) -> None:
    log, receipts = checked.log, checked.receipts
    if log.valid:
        erased = f", {log.erased:,} erased" if log.erased else ""
        click.echo(f"log       {log.total_records:,} entries{erased}: all hold")
    else:
        place = "" if log.first_broken_at is None else f"entry {log.first_broken_at:,}: "
        click.echo(f"log       {place}{plain(log.error_message or '', chars_max=_WHY_CHARS_MAX)}")
    if receipts.valid:
        click.echo(f"receipts  {receipts.total_records:,}: all hold")
    else:
        why = plain(receipts.error_message or "", chars_max=_WHY_CHARS_MAX)
        click.echo(f"receipts  {why}")
    click.echo(f"head      {checked.head.count}:{checked.head.hash}")


@click.command("embed")
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


@click.command("keys")
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
