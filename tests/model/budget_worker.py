"""Runs on a ledger that others use too: `budget_worker.py LEDGER URL NAME USD_TOTAL RUNS`.

Prints `ready` and waits for a line; then a line with the stop of each run.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.host_call_sandbox import HostCallSandbox  # noqa: E402
from tests.model.billing_server import PRICES  # noqa: E402

from tallystick.client import Session  # noqa: E402
from tallystick.core.budget.amount import Budget  # noqa: E402
from tallystick.core.charge import RunLimits  # noqa: E402
from tallystick.core.machine import machine  # noqa: E402
from tallystick.ledger.sqlite import SqliteLedger  # noqa: E402
from tallystick.model.endpoint import Endpoint  # noqa: E402
from tallystick.model.http import HttpModel  # noqa: E402
from tallystick.model.price_table import PriceTable, Pricing  # noqa: E402
from tallystick.runtime.calls import queries  # noqa: E402


def main(ledger: str, url: str, name: str, usd_total: str, runs: int) -> None:
    # What is waited between attempts is decided elsewhere; here it would be waited for.
    machine._WAIT_MS = queries._WAIT_MS = 1
    where = Endpoint(
        provider="fake",
        dialect="openai",
        base_url=url,
        model="m",
        silence_seconds=0.2,
        total_seconds=1.0,
        concurrency=16,
    )
    session = Session(
        config=None,
        model=HttpModel(where),
        ledger=SqliteLedger(Path(ledger), busy_seconds=60),
        sandbox=HostCallSandbox(),
        total=Budget.of(usd=usd_total),
        pricing=Pricing(declared=PriceTable.of_user(PRICES)),
    )
    limits = RunLimits(tokens=10_000_000, reply_tokens=300, turns=3, retries=1)
    print("ready", flush=True)
    sys.stdin.readline()
    with session:
        for number in range(runs):
            run = session.run(f"run {name}-{number}: what is it?", limits=limits)
            print(run.stop, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
