"""A process that forks while its ledger is open: `fork_worker.py LEDGER WHAT`."""

import faulthandler
import os
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.ledger.builders import EMPTY, OTHER, RUN, drafts, filled, run_id  # noqa: E402

from tallystick.core.errors import LedgerError  # noqa: E402
from tallystick.ledger.sqlite import SqliteLedger  # noqa: E402
from tallystick.storage import sqlite_connection as connection  # noqa: E402

# Newer versions of Python warn of what this file is about.
warnings.simplefilter("ignore", DeprecationWarning)


def in_child(work: Callable[[], object]) -> int:
    """Fork, work in the child, and end it as a program ends, with all that is done then."""
    child = os.fork()
    if child == 0:
        work()
        sys.exit(0)
    return child


def ended(child: int) -> None:
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code == 0, f"the child ended with {code}"


def both(ledger: SqliteLedger) -> None:
    """Child and parent go on with runs of their own. The parent closes first."""
    head = filled(ledger)
    closed, was_closed = os.pipe()

    def work() -> None:
        fence = ledger.claim(OTHER, create=True)
        theirs = ledger.append(OTHER, drafts(1), expected=EMPTY, fence=fence, forced=False)
        os.read(closed, 1)
        # Nothing of this is lost, though the parent let go of the file meanwhile.
        ledger.append(OTHER, drafts(2), expected=theirs, fence=fence, forced=False)

    child = in_child(work)
    head = ledger.append(RUN, drafts(1), expected=head, fence=1, forced=True)
    ledger.close()
    os.write(was_closed, b".")
    ended(child)
    ledger.append(RUN, drafts(1), expected=head, fence=1, forced=True)


def queued(ledger: SqliteLedger) -> None:
    """What was queued when the process forked is written once, by the parent."""
    head = filled(ledger)
    entered, free = threading.Event(), threading.Event()

    def hold() -> None:
        with ledger.file.writing(forced=False):
            entered.set()
            free.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    entered.wait()
    _, written = ledger.submit(RUN, drafts(1), expected=head, fence=1, forced=False)
    # The fork waits for the holder.
    threading.Timer(0.05, free.set).start()
    child = in_child(lambda: print(len(ledger.runs()), flush=True))
    ended(child)
    written.result()
    holder.join()


def in_use(ledger: SqliteLedger) -> None:
    """A fork in the middle of a transaction: the child is told, the parent goes on."""
    filled(ledger)

    def work() -> None:
        again = SqliteLedger(ledger.path)
        for action in (lambda: ledger.claim(RUN, create=False), ledger.runs, again.runs):
            try:
                print(action(), flush=True)
            except LedgerError as error:
                print(error.code, str(error), flush=True)

    with ledger.file.writing(forced=False) as db:
        db.execute("UPDATE run SET fence = 7")
        ended(in_child(work))
    assert ledger.runs()[0].fence == 7


def slow(ledger: SqliteLedger) -> None:
    """A fork does not wait for ever for whoever is in a transaction."""
    connection._FORK_SECONDS = 0.05
    filled(ledger)
    entered, free = threading.Event(), threading.Event()

    def hold() -> None:
        with ledger.file.writing(forced=False):
            entered.set()
            free.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    entered.wait()

    def work() -> None:
        try:
            ledger.claim(RUN, create=False)
        except LedgerError as error:
            print(error.code, flush=True)

    ended(in_child(work))
    free.set()
    holder.join()


def storm(ledger: SqliteLedger) -> None:
    """Threads write and read while the process forks again and again, and the children write."""
    ending = threading.Event()
    heads = {}

    def write(run: str) -> None:
        fence = ledger.claim(run, create=True)
        head = EMPTY
        while not ending.is_set():
            forced = head.count % 5 == 0
            head = ledger.append(run, drafts(1), expected=head, fence=fence, forced=forced)
            assert head.count <= len(list(ledger.read(run)))
        heads[run] = head

    threads = [threading.Thread(target=write, args=(run_id(n),)) for n in (1, 2, 3)]
    for thread in threads:
        thread.start()
    children = [
        in_child(lambda number=number: filled(ledger, run=run_id(number)))  # type: ignore[misc]
        for number in range(10, 20)
    ]
    try:
        for child in children:
            ended(child)
    finally:
        # Also after a failure: the process would wait for these threads instead of telling it.
        ending.set()
        for thread in threads:
            thread.join()
    for run, head in heads.items():
        print(run, head.count, head.hash)


if __name__ == "__main__":
    # A child that crashes in C says nothing by itself.
    faulthandler.enable()
    what = {
        "both": both,
        "queued": queued,
        "in_use": in_use,
        "slow": slow,
        "storm": storm,
    }[sys.argv[2]]
    with SqliteLedger(Path(sys.argv[1])) as opened:
        what(opened)
