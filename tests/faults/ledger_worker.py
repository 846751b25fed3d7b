"""Appends to several runs at once, each in a thread: `ledger_worker.py LEDGER (forced|unforced)`.

After each append that was to be forced it says the run and its head; `unforced` says the same, and
forces nothing. The log is taken over into the file often, and the ledger is closed and opened again
in the middle, as processes do that come and go.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from tests.ledger.builders import EMPTY, draft, run_id

from tallystick.core.chain import Head
from tallystick.ledger.sqlite import SqliteLedger

RUNS = 3
ROUNDS = 2
APPENDS = 8
# Pages; a thousand is SQLite's own.
CHECKPOINT_PAGES = 24


def work(ledger: SqliteLedger, number: int, heads: dict[int, Head], forced: bool) -> None:
    run = run_id(number)
    fence = ledger.claim(run, create=number not in heads)
    head = heads.get(number, EMPTY)
    for each in range(APPENDS):
        # Every third is only committed: the next that is forced carries it.
        asked = each % 3 != 1
        drafts = [draft(head.count, text="x" * 37 * (each + 1)), draft(head.count + 1)]
        head, written = ledger.submit(
            run, drafts, expected=head, fence=fence, forced=asked and forced
        )
        if asked:
            written.result()
            os.write(1, f"forced {run} {head.count} {head.hash}\n".encode())
    heads[number] = head


def main(path: Path, *, forced: bool) -> None:
    heads: dict[int, Head] = {}
    for _ in range(ROUNDS):
        with SqliteLedger(path) as ledger:
            with ledger.file.writing(forced=False) as db:
                db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}").fetchall()
            threads = [
                threading.Thread(
                    target=work, args=(ledger, number, heads), kwargs={"forced": forced}
                )
                for number in range(1, RUNS + 1)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert len(heads) == RUNS


if __name__ == "__main__":
    main(Path(sys.argv[1]), forced=sys.argv[2] == "forced")
