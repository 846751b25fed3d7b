"""A process that appends to a ledger: `append_worker.py LEDGER (forever|race|syncs) [HOW]`."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.ledger.builders import EMPTY, RUN, draft  # noqa: E402

from tallystick.core.errors import LedgerConflict  # noqa: E402
from tallystick.ledger.port import find_row  # noqa: E402
from tallystick.ledger.sqlite import SqliteLedger  # noqa: E402


def tell(word: object) -> None:
    os.write(1, f"{word}\n".encode())


def forever(ledger: SqliteLedger, how: str) -> None:
    """Append until killed, telling each head once it was acknowledged."""
    fence = ledger.claim(RUN, create=True)
    head = EMPTY
    while True:
        forced = how == "forced"
        head = ledger.append(RUN, [draft(head.count)], expected=head, fence=fence, forced=forced)
        tell(f"{head.count} {head.hash}")


def race(ledger: SqliteLedger, how: str) -> None:
    """Claim and append until a number of entries were ours. Tell how many others came first."""
    tell("ready")
    sys.stdin.readline()
    ours, conflicts = 0, 0
    while ours < int(how):
        fence = ledger.claim(RUN, create=False)
        row = find_row(ledger, RUN)
        assert row is not None
        try:
            ledger.append(
                RUN, [draft(row.head.count)], expected=row.head, fence=fence, forced=False
            )
            ours += 1
        except LedgerConflict:
            conflicts += 1
    tell(conflicts)


def syncs(ledger: SqliteLedger, how: str) -> None:
    """Append ten times between two marks."""
    fence = ledger.claim(RUN, create=True)
    head = EMPTY
    # The first sync of a log also forces its directory; what is counted is what comes after.
    head = ledger.append(RUN, [draft(0)], expected=head, fence=fence, forced=True)
    tell("mark")
    for _ in range(10):
        drafts = [] if how == "nothing" else [draft(0)]
        forced = how != "committed"
        head = ledger.append(RUN, drafts, expected=head, fence=fence, forced=forced)
    tell("mark")


if __name__ == "__main__":
    work = {"forever": forever, "race": race, "syncs": syncs}[sys.argv[2]]
    with SqliteLedger(Path(sys.argv[1])) as opened:
        work(opened, *(sys.argv[3:] or ["committed"]))
