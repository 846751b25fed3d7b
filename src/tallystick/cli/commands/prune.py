"""`tally rm` and `tally prune`: runs, out of the ledger, or without their content."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec

from tallystick.attachments.collect import CollectableAttachments, reclaim_forgotten
from tallystick.attachments.port import AttachmentError
from tallystick.cli.exit_codes import LEDGER, OK
from tallystick.cli.parts import echo_json
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

# `tally rm`: a run, out of the ledger, and the attachments that nobody else holds.


_TOGETHER = 256


@click.command("rm")
@click.argument("run")
@click.option("--yes", is_flag=True, help="Do not ask.")
def rm_command(run: str, yes: bool) -> int:
    r"""Take a run out of the ledger, with what it kept and nobody else holds.

    A run that another one grew from stays until that one is removed.

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
    # Before it is asked for. The ledger looks again when it is done.
    check_removable(found, ledger.forks_of(found))
    if not yes:
        click.confirm(f"remove run {found}? It cannot be brought back", abort=True, err=True)
    with stores:
        let_go = remove_run_with_attachments(ledger, stores.attachments, found)
        freed = _freed(stores.attachments, let_go) if let_go else ""
    click.echo(f"removed {found}{freed}", err=True)
    return 0


def _freed(attachments: CollectableAttachments, ids: Sequence[str]) -> str:
    """Free the bytes now. The run is gone either way, so that this can fail and be told."""
    count = size = 0
    try:
        for start in range(0, len(ids), _TOGETHER):
            report = reclaim_forgotten(attachments, ids[start : start + _TOGETHER])
            count += report.reclaimed_count
            size += report.reclaimed_bytes
        attachments.scrub()
    except (AttachmentError, LedgerError) as error:
        return f"; tally attach gc will free its attachments: {error}"
    return f" and {count:,} of its attachments, {size:,} bytes" if count else ""


# `tally prune`: the bodies of runs that have ended, out of the ledger.


_WHY_CHARS_MAX = 300


class _Report(msgspec.Struct, kw_only=True):
    """What was pruned, or would be, and what was kept. The file's size in bytes, with its log."""

    dry_run: bool
    pruned: list[Pruned]
    kept: list[Kept]
    ledger_bytes_before: int
    ledger_bytes_after: int
    note: str | None = None


@click.command("prune")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option(
    "--older-than", metavar="AGE", help="Runs that nothing happened to for: 12h, 30d, 2w."
)
@click.option("--keep", type=click.IntRange(min=0), metavar="N", help="All but the newest N.")
@click.option("--dry-run", is_flag=True, help="Say what would go; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def prune_command(
    runs: tuple[str, ...],
    older_than: str | None,
    keep: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    r"""Take what runs said and did out of the ledger; keep their receipts and their proof.

    Every header and hash stays: tally verify still holds, heads and proofs too, tally receipt
    still says what the run cost. Prompts, replies, programs, answers and the attachments that
    nobody else holds go, and cannot be brought back.

    With --older-than or --keep, or both, runs that may not be pruned are named and passed over.
    Named runs that are refused make the exit code 6.

    \b
    Example:
        tally prune --older-than 30d --dry-run
        tally prune --keep 100 --yes
    """
    if runs and (older_than is not None or keep is not None):
        raise UsageError("name runs, or choose them by --older-than and --keep, not both")
    if not runs and older_than is None and keep is None:
        raise UsageError("say which runs: by name, by --older-than AGE, or by --keep N")
    age = None if older_than is None else age_ms(older_than)
    with open_stores(ledger_path()) as stores:
        ledger, attachments, scopes = stores.ledger, stores.attachments, stores.scopes
        # Newest first: a fork goes before what it grew from.
        named = sorted({resolve_run(ledger, run) for run in runs}, reverse=True)

        def opened() -> Pruner:
            return Pruner(ledger, attachments, scopes, clock=now_ms)

        looked = opened()
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
            # Looked at again: it may have taken a while to say yes.
            _do(opened(), report, why=_why(older_than, keep))
            report.ledger_bytes_after = disk_bytes(ledger)
    _tell(report, as_json=as_json)
    return LEDGER if named and any(not each.pruned for each in report.kept) else OK


def _do(pruner: Pruner, report: _Report, *, why: str) -> None:
    planned, report.pruned = report.pruned, []
    for each in planned:
        done = pruner.prune(each.run, why=why)
        if isinstance(done, Kept):
            report.kept.append(done)
        else:
            report.pruned.append(done)
    if report.pruned:
        report.note = pruner.shrink()


def _why(older_than: str | None, keep: int | None) -> str:
    """What is written down as the reason."""
    reasons = []
    if older_than is not None:
        reasons.append(f"older than {older_than}")
    if keep is not None:
        reasons.append(f"not among the newest {keep:,}")
    return " and ".join(reasons) or "by name"


def _question(found: Sequence[Pruned]) -> str:
    size = sum(each.bytes + each.attachment_bytes for each in found)
    return f"prune {_count(len(found), 'run', 'runs')}, {size:,} bytes? It cannot be brought back"


def _tell(report: _Report, *, as_json: bool) -> None:
    for kept in report.kept:
        click.echo(f"kept {kept.run}: it {plain(kept.why, chars_max=_WHY_CHARS_MAX)}", err=True)
    if as_json:
        echo_json(report)
        return
    for each in report.pruned:
        click.echo(_line(each))
    if not report.pruned:
        click.echo("nothing to prune", err=True)
        return
    what = "would be pruned" if report.dry_run else "pruned"
    click.echo(
        f"{what}: {_count(len(report.pruned), 'run', 'runs')}, {_said(report.pruned)}", err=True
    )
    if not report.dry_run:
        before, after = report.ledger_bytes_before, report.ledger_bytes_after
        click.echo(f"the ledger's file had {before:,} bytes and has {after:,}", err=True)
    for note in (report.note, *(each.note for each in report.pruned)):
        if note is not None:
            click.echo(f"note: {plain(note, chars_max=_WHY_CHARS_MAX)}", err=True)


def _line(each: Pruned) -> str:
    return f"{each.run}  {_said([each])}"


def _said(found: Sequence[Pruned]) -> str:
    bodies, size = sum(each.bodies for each in found), sum(each.bytes for each in found)
    said = f"{_count(bodies, 'body', 'bodies')}, {size:,} bytes"
    held = sum(each.attachments for each in found)
    if held:
        freed = sum(each.attachment_bytes for each in found)
        said += f"; {_count(held, 'attachment', 'attachments')}, {freed:,} bytes"
    return said


def _count(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"
