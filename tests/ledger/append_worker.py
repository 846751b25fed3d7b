"""A process that appends to a ledger: `append_worker.py LEDGER WHAT [HOW]`."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.ledger.builders import EMPTY, RUN, draft, run_id  # noqa: E402

from tallystick.core.errors import LedgerConflict, LedgerError  # noqa: E402
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
        row = ledger.row(RUN)
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


def together(ledger: SqliteLedger, how: str) -> None:
    """Force a number of runs at the same time, between two marks."""
    fences = {run_id(n): ledger.claim(run_id(n), create=True) for n in range(1, int(how) + 1)}
    head = ledger.append(RUN, [draft(0)], expected=EMPTY, fence=fences.pop(RUN), forced=True)
    tell("mark")
    with ledger.file.writing(forced=False):
        futures = [
            ledger.submit(run, [draft(0)], expected=EMPTY, fence=fence, forced=True)[1]
            for run, fence in fences.items()
        ]
    for written in futures:
        written.result()
    tell("mark")
    assert head.count == 1


def failing(ledger: SqliteLedger, how: str) -> None:
    """Append to a run a number of times, forced by turns, while its disk fails.

    Tell how each ended. After a failure, go on from where the run stands.
    """
    head = EMPTY
    for number in range(int(how)):
        drafts = [draft(0, text=str(number) * 3_000)]
        try:
            head = ledger.append(RUN, drafts, expected=head, fence=1, forced=number % 2 == 0)
            tell("ok")
        except LedgerError as error:
            tell(error.code)
            head = ledger.runs()[0].head


if __name__ == "__main__":
    work = {
        "forever": forever,
        "race": race,
        "syncs": syncs,
        "together": together,
        "failing": failing,
    }[sys.argv[2]]
    with SqliteLedger(Path(sys.argv[1])) as opened:
        work(opened, *(sys.argv[3:] or ["committed"]))
