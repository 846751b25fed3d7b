"""`tally rm` and `tally prune`: delete runs from the ledger, or only their content."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec

from tallystick.attachments.collect import CollectableAttachments, reclaim_forgotten
from tallystick.attachments.port import AttachmentError
from tallystick.cli.exit_codes import LEDGER, OK
from tallystick.cli.parts import JSON, echo_json, echo_line
from tallystick.cli.show import plain
from tallystick.core.errors import LedgerError, UsageError
from tallystick.ledger.custody import check_removable
from tallystick.runtime.runs.history import require_not_awaited, resolve_run
from tallystick.runtime.runs.in_doubt import require_no_doubt
from tallystick.runtime.runs.lock import require_idle
from tallystick.settings.paths import ledger_path
from tallystick.storage.clock import now_ms
from tallystick.stores import open_stores
from tallystick.upkeep.prune import Kept, Pruned, Pruner, age_ms, disk_bytes
from tallystick.upkeep.transfer import (
    remove_run_with_attachments,
)

# `tally rm`: delete a run, and the attachments that nothing else keeps.


_TOGETHER = 256


@click.command("rm")
@click.argument("run")
@click.option("--yes", is_flag=True, help="Delete the run without asking.")
def rm_command(run: str, yes: bool) -> int:
    r"""Delete a run from the ledger.

    Attachments that only this run keeps are deleted too. A run that was forked cannot be deleted
    before its forks are. RUN is an id, the beginning of one, or `last`.

    \b
    Example:
        tally rm last --yes
    """
    stores = open_stores(ledger_path())
    ledger = stores.ledger
    found = resolve_run(ledger, run)
    require_idle(ledger, found)
    require_not_awaited(ledger, found)
    require_no_doubt(ledger, found, stores.scopes)
    # Refuse before the user is asked. The ledger checks again in the transaction that deletes.
    check_removable(found, ledger.forks_of(found))
    if not yes:
        click.confirm(f"remove run {found}? This cannot be undone", abort=True, err=True)
    with stores:
        freed_ids = remove_run_with_attachments(ledger, stores.attachments, found)
        freed = _free(stores.attachments, freed_ids) if freed_ids else ""
    click.echo(f"removed {found}{freed}", err=True)
    return 0


def _free(attachments: CollectableAttachments, ids: Sequence[str]) -> str:
    """Delete the bytes of attachments that nothing keeps any more, and write how many they were.

    If it was none, the text is empty. The run is deleted already, so a failure is not raised: the
    text names it, and the command that frees the bytes later.
    """
    count = size = 0
    try:
        for start in range(0, len(ids), _TOGETHER):
            report = reclaim_forgotten(attachments, ids[start : start + _TOGETHER])
            count += report.reclaimed_count
            size += report.reclaimed_bytes
        attachments.scrub()
    except (AttachmentError, LedgerError) as error:
        return f"; its attachments are not deleted yet (to delete them: tally attach gc): {error}"
    return f" and {count:,} of its attachments, {size:,} bytes" if count else ""


# `tally prune`: delete the content of ended runs, and keep their hashes.


_WHY_CHARS_MAX = 300


class _Report(msgspec.Struct, kw_only=True):
    """The result of a prune: the runs that were pruned (or would be), and those that were kept.

    The sizes are of the ledger's file with its write-ahead log, in bytes.
    """

    dry_run: bool
    pruned: list[Pruned]
    kept: list[Kept]
    ledger_bytes_before: int
    ledger_bytes_after: int
    note: str | None = None


@click.command("prune")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option(
    "--older-than",
    metavar="AGE",
    help="Prune runs without a new record for this long, such as 12h, 30d or 2w.",
)
@click.option(
    "--keep", type=click.IntRange(min=0), metavar="N", help="Prune all runs but the newest N."
)
@click.option("--dry-run", is_flag=True, help="Show what would be deleted; change nothing.")
@click.option("--yes", is_flag=True, help="Prune without asking.")
@JSON
def prune_command(
    runs: tuple[str, ...],
    older_than: str | None,
    keep: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    r"""Delete the content of old runs; keep hashes and receipts.

    Prompts, replies, programs, answers, and attachments that nothing else keeps are deleted for
    good. Every header and hash stays: tally verify still checks the runs, heads and proofs stay
    valid, and tally receipt still shows what a run cost.

    Name runs, or choose them with --older-than or --keep, or both; chosen runs that may not be
    pruned are reported and skipped. Exit codes: 0 done, 2 wrong usage, 6 a named run was not
    pruned, or the ledger failed.

    \b
    Example:
        tally prune --older-than 30d --dry-run
        tally prune --keep 100 --yes
    """
    if runs and (older_than is not None or keep is not None):
        raise UsageError("name runs, or choose them with --older-than and --keep, not both")
    if not runs and older_than is None and keep is None:
        raise UsageError("name the runs to prune, or choose them with --older-than AGE or --keep N")
    age = None if older_than is None else age_ms(older_than)
    with open_stores(ledger_path()) as stores:
        ledger, attachments, scopes = stores.ledger, stores.attachments, stores.scopes
        # Newest first, since a forked run can be pruned only after its forks.
        named = sorted({resolve_run(ledger, run) for run in runs}, reverse=True)

        def new_pruner() -> Pruner:
            return Pruner(ledger, attachments, scopes, clock=now_ms)

        looked = new_pruner()
        found = (
            [looked.look(run) for run in named]
            if named
            else list(looked.chosen(older_than_ms=age, keep=keep))
        )
        size = disk_bytes(ledger)
        report = _Report(
            dry_run=dry_run,
            pruned=[each for each in found if isinstance(each, Pruned)],
            kept=[each for each in found if isinstance(each, Kept)],
            ledger_bytes_before=size,
            ledger_bytes_after=size,
        )
        if report.pruned and not dry_run:
            if not yes:
                click.confirm(_question(report.pruned), abort=True, err=True)
            # Check each run again: the user may have taken a while to answer.
            _prune(new_pruner(), report, why=_reason(older_than, keep))
            report.ledger_bytes_after = disk_bytes(ledger)
    _echo_report(report, as_json=as_json)
    return LEDGER if named and any(not each.pruned for each in report.kept) else OK


def _prune(pruner: Pruner, report: _Report, *, why: str) -> None:
    """Prune the planned runs; move those that are refused now to `report.kept`.

    If any was pruned, shrink the file then, and put into `report.note` what could not be done.
    """
    planned, report.pruned = report.pruned, []
    for each in planned:
        done = pruner.prune(each.run, why=why)
        if isinstance(done, Kept):
            report.kept.append(done)
        else:
            report.pruned.append(done)
    if report.pruned:
        report.note = pruner.shrink()


def _reason(older_than: str | None, keep: int | None) -> str:
    """Return the reason that is recorded in each pruned run."""
    reasons = []
    if older_than is not None:
        reasons.append(f"older than {older_than}")
    if keep is not None:
        reasons.append(f"not among the newest {keep:,}")
    return " and ".join(reasons) or "by name"


def _question(found: Sequence[Pruned]) -> str:
    size = sum(each.bytes + each.attachment_bytes for each in found)
    return f"prune {_count(len(found), 'run', 'runs')}, {size:,} bytes? This cannot be undone"


def _echo_report(report: _Report, *, as_json: bool) -> None:
    for kept in report.kept:
        echo_line(f"kept {kept.run}: it {plain(kept.why, chars_max=_WHY_CHARS_MAX)}", err=True)
    if as_json:
        echo_json(report)
        return
    for each in report.pruned:
        echo_line(_line(each), indent=28)
    if not report.pruned:
        click.echo("nothing to prune", err=True)
        return
    what = "would be pruned" if report.dry_run else "pruned"
    echo_line(
        f"{what}: {_count(len(report.pruned), 'run', 'runs')}, {_amount(report.pruned)}", err=True
    )
    if not report.dry_run:
        before, after = report.ledger_bytes_before, report.ledger_bytes_after
        click.echo(f"ledger file: {before:,} bytes before, {after:,} bytes now", err=True)
    for note in (report.note, *(each.note for each in report.pruned)):
        if note is not None:
            echo_line(f"note: {plain(note, chars_max=_WHY_CHARS_MAX)}", indent=6, err=True)


def _line(each: Pruned) -> str:
    return f"{each.run}  {_amount([each])}"


def _amount(found: Sequence[Pruned]) -> str:
    """Write how many record bodies and attachments were deleted, and their bytes."""
    bodies, size = sum(each.bodies for each in found), sum(each.bytes for each in found)
    said = f"{_count(bodies, 'body', 'bodies')}, {size:,} bytes"
    held = sum(each.attachments for each in found)
    if held:
        freed = sum(each.attachment_bytes for each in found)
        said += f"; {_count(held, 'attachment', 'attachments')}, {freed:,} bytes"
    return said


def _count(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"
