"""`tally attach`: store, read, list and verify attachments, and delete those nothing keeps."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click
import msgspec

from tallystick.attachments.collect import (
    CollectableAttachments,
    EmptyRootSet,
    ReclaimPolicy,
    ReclaimReport,
    reclaim,
    reclaim_forgotten,
)
from tallystick.attachments.port import AttachmentTooLong, Reference
from tallystick.attachments.session import SessionAttachments
from tallystick.cli.exit_codes import LEDGER, OK
from tallystick.cli.parts import JSON, echo_json, echo_line
from tallystick.cli.show import quantity
from tallystick.core.errors import UsageError, system_errors
from tallystick.core.records import AttachmentRef, RunForked, RunStarted, StepEntered
from tallystick.runtime.runs.history import records_of, resolve_run
from tallystick.settings.paths import ledger_path
from tallystick.storage.private_file import whole_file
from tallystick.stores import open_stores
from tallystick.upkeep.audit import needed_attachments, verify_references

_SESSION = click.option(
    "--session",
    "session_id",
    default="cli",
    show_default=True,
    metavar="NAME",
    help="Act for this holder, which keeps the attachments.",
)
_RUN = click.option(
    "--run", metavar="RUN", help="Use the attachments that this run keeps, not those of --session."
)
_FREED_SHOWN = 20


class Released(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for an attachment that a session released.

    `holders` counts the references of others, which keep its bytes. `freed` is True if they are
    gone.
    """

    id: str
    freed: bool
    freed_bytes: int
    holders: int


@click.group("attach")
def command() -> None:
    r"""Store, read, list, verify, remove and clean up attachments.

    An attachment is bytes that are stored once under their SHA-256 digest. It stays as long as a
    holder keeps it: a run, a session, or a name of your own (--session).

    \b
    Example:
        tally attach put report.pdf
        tally attach ls
    """


@contextmanager
def _open_attachments() -> Iterator[CollectableAttachments]:
    with open_stores(ledger_path()) as stores:
        yield stores.attachments


@command.command("put")
@click.argument("files", nargs=-1, required=True, metavar="FILE|-...")
@_SESSION
@click.option(
    "--type",
    "media_type",
    metavar="TYPE",
    help="Store this media type.  [default: guessed from bytes]",
)
@click.option("--label", metavar="TEXT", help="Store this label.  [default: the file's name]")
@click.option(
    "--max-bytes",
    type=click.IntRange(min=0),
    metavar="N",
    help="Refuse a source of more than N bytes.  [default: none for files; 4 GiB for others]",
)
@JSON
def put_command(
    files: tuple[str, ...],
    session_id: str,
    media_type: str | None,
    label: str | None,
    max_bytes: int | None,
    as_json: bool,
) -> int:
    r"""Store files, and print their ids.

    FILE is a path, or - for standard input. --session names the holder that keeps them.

    If one of them cannot be kept, none is held.

    \b
    Example:
        tally attach put report.pdf --label "the report"
    """
    with _open_attachments() as attachments:
        held = SessionAttachments(attachments, session_id=session_id)
        refs = []
        for name in files:
            with _source(name) as source:
                refs.append(_put(held, source, media_type, label or _label_of(name), max_bytes))
        held.commit([ref.id for ref in refs])
    if as_json:
        echo_json(refs)
    else:
        for ref in refs:
            echo_line(f"{ref.id}  {ref.media_type}  {ref.byte_len:,} bytes  {_plain(ref.label)}")
    return OK


@command.command("get")
@click.argument("id")
@_SESSION
@_RUN
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write the bytes to this file.  [default: standard output]",
)  # fmt: skip
def get_command(id: str, session_id: str, run: str | None, output: Path | None) -> int:
    r"""Read an attachment, and check its bytes.

    ID is an id, or the beginning of one, among those that --session or --run keeps. The bytes are
    compared with their digest; a file is written whole or not at all.

    \b
    Example:
        tally attach get 5891b5b522d5 -o report.pdf
    """
    with _open_attachments() as attachments:
        held = SessionAttachments(attachments, session_id=_holder_of(run) or session_id)
        with held.chunks(_whole_id(held, id)) as chunks:
            if output is None:
                for chunk in chunks:
                    sys.stdout.buffer.write(chunk)
                sys.stdout.buffer.flush()
            else:
                _write(output, chunks)
    return OK


@command.command("ls")
@_SESSION
@_RUN
@JSON
def ls_command(session_id: str, run: str | None, as_json: bool) -> int:
    r"""List the attachments of a holder, the oldest first.

    \b
    Example:
        tally attach ls --run last
    """
    with _open_attachments() as attachments:
        session_id = _holder_of(run) or session_id
        found = SessionAttachments(attachments, session_id=session_id).references()
    if as_json:
        echo_json(found)
    else:
        for each in found:
            echo_line(_line(each))
    return OK


@command.command("rm")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@_SESSION
@JSON
def rm_command(ids: tuple[str, ...], session_id: str, as_json: bool) -> int:
    r"""Release what a session holds. Bytes that nobody else holds are deleted at once.

    Bytes that only this session holds and a run's records name are refused: tally rm removes a run
    with what it holds.

    \b
    Example:
        tally attach rm 5891b5b522d5…
    """
    with open_stores(ledger_path()) as stores:
        held = SessionAttachments(stores.attachments, session_id=session_id)
        # All of them are looked at before any is released.
        found = list(dict.fromkeys(held.reference(_whole_id(held, each)).ref.id for each in ids))
        alone = [id for id in found if not _others(stores.attachments, id, session_id)]
        # To know what records need, all of them are read: only if bytes would go.
        needed = needed_attachments(stores.ledger) if alone else frozenset()
        refused = [id for id in alone if id in needed]
        if refused:
            raise UsageError(
                f"{refused[0][:16]}… is named by the records of a run or a session, and nobody "
                "else holds it; tally rm RUN removes a run with what it holds"
            )
        sizes = {id: stores.attachments.byte_len(id) for id in alone}
        for id in found:
            held.delete(id)
        report = reclaim_forgotten(stores.attachments, alone)
        gone = set(report.reclaimed_ids)
        released = [
            Released(
                id=id,
                freed=id in gone,
                freed_bytes=sizes[id] if id in gone else 0,
                holders=len(_others(stores.attachments, id, session_id)),
            )
            for id in found
        ]
    if as_json:
        echo_json(released)
    else:
        for each in released:
            click.echo(_released(each))
    return LEDGER if report.failed_ids else OK


@command.command("gc")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted; delete nothing.")
@click.option(
    "--grace", type=click.FloatRange(min=0), default=24.0, show_default=True, metavar="HOURS",
    help="Delete what a dead process meant to keep only after this many hours.",
)  # fmt: skip
@click.option(
    "--all", "everything", is_flag=True, help="Delete everything even if no holder keeps anything."
)
@JSON
def gc_command(dry_run: bool, grace: float, everything: bool, as_json: bool) -> int:
    r"""Delete attachments that nothing keeps.

    An attachment stays if a holder keeps it, or if a living process is about to keep it. Exit code
    6 if something could not be deleted, or if a run needs bytes that no holder keeps.

    \b
    Example:
        tally attach gc --dry-run
    """
    policy = ReclaimPolicy(
        grace_period_ms=round(grace * 3_600_000),
        empty_root_set=(EmptyRootSet.AUTHORIZE_DELETE_ALL if everything else EmptyRootSet.REFUSE),
    )
    with open_stores(ledger_path()) as stores:
        sizes = _sizes(stores.attachments)
        report = reclaim(
            stores.attachments,
            policy=policy,
            dry_run=dry_run,
            needed=lambda: needed_attachments(stores.ledger),
        )
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        click.echo(_reclaim_line(report))
        for line in _freed(report, sizes):
            click.echo(line)
    if report.needed_ids:
        click.echo(
            f"{len(report.needed_ids):,} not deleted: a run or a session needs them, but its "
            f"reference is lost; tally attach verify names them",
            err=True,
        )
    return LEDGER if report.failed_ids or report.needed_ids else OK


@command.command("verify")
@JSON
def verify_command(as_json: bool) -> int:
    r"""Check the bytes of all attachments, and that runs have theirs.

    Every attachment that a holder keeps is read and compared with its digest. Every run must keep
    the attachments that its records name. Exit code 6 if something does not hold.

    \b
    Example:
        tally attach verify
    """
    with open_stores(ledger_path()) as stores:
        report = verify_references(stores.ledger, stores.attachments)
    if as_json:
        echo_json(report)
    else:
        for line in report.damage:
            click.echo(line)
        for each in report.bad:
            click.echo(f"{each.id}: {each.why}")
        held = f"{quantity(report.references, 'reference')}, {quantity(report.blobs, 'blob')}"
        click.echo(f"{held}, {quantity(report.bytes, 'byte')}")
    return OK if report.ok else LEDGER


# -- helpers -----------------------------------------------------------------------------------


def _holder_of(named: str | None) -> str | None:
    """Return the id of the holder that keeps the attachments of a run; None without a run.

    Raise `UsageError` for a chain of steps, and for a run whose first record was erased. Raise what
    `resolve_run` and `records_of` raise, such as `RunNotFound`.
    """
    if named is None:
        return None
    with open_stores(ledger_path()) as stores:
        run = resolve_run(stores.ledger, named)
        started = next(records_of(stores.ledger, run), None)
    if isinstance(started, StepEntered):
        raise UsageError(
            f"{run} is a chain of steps, which keeps no attachments; name one of its runs (tally "
            f"receipt {run} lists the steps)"
        )
    if not isinstance(started, RunStarted | RunForked):
        raise UsageError(f"the first record of run {run} was erased, which names its attachments")
    return started.session_id


@contextmanager
def _source(name: str) -> Iterator[BinaryIO]:
    """Open a file, or standard input for `-`. Raise `UsageError` if it cannot be opened."""
    if name == "-":
        yield sys.stdin.buffer
        return
    with system_errors(name, UsageError):
        file = open(name, "rb")  # noqa: SIM115 (closed below; the error is of opening alone)
    with file:
        yield file


def _put(
    held: SessionAttachments,
    source: BinaryIO,
    media_type: str | None,
    label: str | None,
    max_bytes: int | None,
) -> AttachmentRef:
    try:
        return held.put(source, media_type=media_type, label=label, bytes_max=max_bytes)
    except AttachmentTooLong as error:
        # The same, with the option's name in it.
        raise AttachmentTooLong(
            name=_plain(error.name), bytes_max=error.bytes_max, how="--max-bytes"
        ) from None


def _others(attachments: CollectableAttachments, id: str, session_id: str) -> list[Reference]:
    """Return the references of other sessions to the same bytes."""
    found = attachments.references(id=id)
    return [each for each in found if each.intent.session_id != session_id]


def _released(each: Released) -> str:
    if each.holders:
        return f"{each.id[:16]}  released; {quantity(each.holders, 'other reference')} to it stay"
    if each.freed:
        return f"{each.id[:16]}  released; {quantity(each.freed_bytes, 'byte')} freed"
    return f"{each.id[:16]}  released; its bytes go with the next tally attach gc"


def _sizes(attachments: CollectableAttachments) -> dict[str, int]:
    with attachments.looking() as rows:
        return {} if rows is None else {each.id: each.byte_len for each in rows.blobs()}


def _freed(report: ReclaimReport, sizes: dict[str, int]) -> Iterator[str]:
    """Yield a line for each attachment that is gone, or would be, the largest first.

    After 20, one line has the number of the others. Unfinished files are summed up in a last line.
    """
    ids = sorted(report.reclaimed_ids, key=lambda id: (-sizes.get(id, 0), id))
    verb = "would free" if report.dry_run else "freed"
    for id in ids[:_FREED_SHOWN]:
        size = quantity(sizes[id], "byte") if id in sizes else "a file that no record names"
        yield f"{verb:<10}  {id[:16]}  {size}"
    if len(ids) > _FREED_SHOWN:
        yield f"{verb:<10}  and {len(ids) - _FREED_SHOWN:,} more (--json has all)"
    if report.orphan_staged_count:
        files = quantity(report.orphan_staged_count, "unfinished file")
        yield f"{verb:<10}  {files}, {quantity(report.orphan_staged_bytes, 'byte')}"


def _label_of(name: str) -> str | None:
    return None if name == "-" else Path(name).name


def _whole_id(held: SessionAttachments, named: str) -> str:
    """Return the id of the attachment whose id begins with `named`, or `named` if there is none.

    Raise `UsageError` if it is the beginning of several ids.
    """
    found = [each.ref.id for each in held.references() if named and each.ref.id.startswith(named)]
    if len(set(found)) > 1:
        raise UsageError(
            f"{named!r} matches {len(found)} ids; type more characters of the id (tally attach ls "
            f"lists them)"
        )
    return found[0] if found else named


def _write(path: Path, chunks: Iterator[bytes]) -> None:
    """Write a file whole or not at all: damaged bytes raise while it has a temporary name.

    A file of this name is replaced. Raise `UsageError` if it cannot be written.
    """
    with system_errors(path, UsageError), whole_file(path, forced=False, mode=0o666) as file:
        for chunk in chunks:
            file.write(chunk)


def _line(each: Reference) -> str:
    state = "held" if each.committed_at_epoch_ms is not None else "intended"
    ref = each.ref
    size = f"{ref.width}x{ref.height}  " if ref.width and ref.height else ""
    return (
        f"{ref.id[:16]}  {state:<9}{ref.byte_len:>14,}  {_plain(ref.media_type):<24}  {size}"
        f"{_plain(ref.label)}"
    )


def _plain(text: str | None) -> str:
    """Return a label with `?` in place of characters that a terminal would act on."""
    return "".join(each if each.isprintable() else "?" for each in text or "")


def _reclaim_line(report: ReclaimReport) -> str:
    verb = "would delete" if report.dry_run else "deleted"
    looked = quantity(report.scanned_blob_count, "blob")
    size = quantity(report.reclaimed_bytes, "byte")
    return (
        f"{looked} checked; {verb} {report.reclaimed_count} ({size}), "
        f"deferred {len(report.condemn_deferred_ids)}, "
        f"failed {len(report.failed_ids)}"
    )
