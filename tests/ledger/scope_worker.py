"""A process on a shared scope: `scope_worker.py LEDGER (race|hold|intent) NAME`."""

import os
import random
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.ledger.builders import EMPTY, draft, run_id  # noqa: E402

from tallystick.core.budget.amount import Amount, BudgetExhausted  # noqa: E402
from tallystick.ledger.scopes import SharedScopes  # noqa: E402
from tallystick.ledger.sqlite import SqliteLedger  # noqa: E402
from tallystick.storage.transaction import Transaction  # noqa: E402

WORST = Amount(tokens=7, usd=70, model_calls=1)


def tell(word: object) -> None:
    os.write(1, f"{word}\n".encode())


def race(ledger: SqliteLedger, scopes: SharedScopes, name: str) -> None:
    """Hold, then settle or release, until the cap refuses. Tell what was really spent."""
    chance, owner, spent, intent = random.Random(name), scopes.owner(), 0, 0
    give_up = time.monotonic() + 30
    tell("ready")
    sys.stdin.readline()
    while time.monotonic() < give_up:
        intent += 1
        try:
            with ledger.file.writing(forced=False) as db:
                scopes.hold(db, scope="s", run=name, intent=intent, owner=owner, amount=WORST)
        except BudgetExhausted as refused:
            # What others hold may come back, so only the spent ones count as an end.
            if refused.left < WORST.tokens and not scopes.holds():
                tell(spent)
                return
            continue
        # Seen from outside while it is held: never more than the cap, whoever looks.
        assert all((row.remaining.tokens or 0) >= 0 for row in scopes.rows())
        with ledger.file.writing(forced=False) as db:
            if chance.random() < 0.3:
                scopes.release(db, run=name, intent=intent)
            else:
                used = chance.randint(1, WORST.tokens)
                scopes.settle(db, run=name, intent=intent, actual=Amount(tokens=used, usd=used))
                spent += used
    raise TimeoutError("somebody holds and never settles")


def hold(ledger: SqliteLedger, scopes: SharedScopes, name: str) -> None:
    """Hold something, and wait to be killed."""
    owner = scopes.owner()
    with ledger.file.writing(forced=True) as db:
        scopes.hold(db, scope="s", run=name, intent=1, owner=owner, amount=WORST)
    tell(owner)
    signal.pause()


def intent(ledger: SqliteLedger, scopes: SharedScopes, name: str) -> None:
    """Die in the transaction that records an intent and holds for it, before it is committed."""
    run, owner = run_id(int(name)), scopes.owner()
    fence = ledger.claim(run, create=True)

    def also(db: Transaction | None) -> None:
        assert db is not None
        scopes.hold(db, scope="s", run=run, intent=1, owner=owner, amount=WORST)
        os.kill(os.getpid(), signal.SIGKILL)

    ledger.append(run, [draft(0)], expected=EMPTY, fence=fence, forced=True, also=also)


if __name__ == "__main__":
    work = {"race": race, "hold": hold, "intent": intent}[sys.argv[2]]
    with SqliteLedger(Path(sys.argv[1])) as opened, SharedScopes(opened.file) as shared:
        work(opened, shared, sys.argv[3])
