"""`tally rm`: a run, out of the ledger, and the attachments that nobody else holds."""

from __future__ import annotations

from collections.abc import Sequence

import click

from tallystick.attachments.collect import reclaim_forgotten
from tallystick.attachments.errors import AttachmentError
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.core.errors import LedgerError
from tallystick.ledger.custody import check_removable
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.carry import remove_run_with_attachments
from tallystick.runtime.history import require_not_awaited, resolve_run
from tallystick.runtime.paths import ledger_path
from tallystick.runtime.run_lock import require_idle

__all__ = ["command"]

_TOGETHER = 256


@click.command("rm")
@click.argument("run")
@click.option("--yes", is_flag=True, help="Do not ask.")
def command(run: str, yes: bool) -> int:
    r"""Take a run out of the ledger, with what it kept and nobody else holds.

    A run that another one grew from stays until that one is removed.

    \b
    Example:
        tally rm last --yes
    """
    ledger = SqliteLedger(ledger_path())
    found = resolve_run(ledger, run)
    require_idle(ledger, found)
    require_not_awaited(ledger, found)
    # Before it is asked for. The ledger looks again when it is done.
    check_removable(found, ledger.forks_of(found))
    if not yes:
        click.confirm(f"remove run {found}? It cannot be brought back", abort=True, err=True)
    with SqliteAttachments(ledger.file) as attachments:
        let_go = remove_run_with_attachments(ledger, attachments, found)
        freed = _freed(attachments, let_go) if let_go else ""
    click.echo(f"removed {found}{freed}", err=True)
    return 0


def _freed(attachments: SqliteAttachments, ids: Sequence[str]) -> str:
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
