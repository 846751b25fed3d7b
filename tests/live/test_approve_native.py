"""A call of a native program waits inside for a person, since the program cannot be run again."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.escape.process.boxes import made_sandbox

from tallystick.client import Session
from tallystick.core.errors import UsageError
from tallystick.core.records import CallDecided, CallWaiting
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.live.stop import stop
from tallystick.runtime.calls.functions import host_function
from tallystick.runtime.runs.history import whole_records
from tallystick.runtime.runs.result import Run
from tallystick.runtime.runs.waiting import waiting_in
from tallystick.sandbox.process.sandbox import ProcessSandbox
from tallystick.testing.models import PRICING, ModelDouble, block

# Starts boxes: CI runs them.
pytestmark = pytest.mark.slow

TRIES = (
    "try:\n    print(pay('INV-1'))\nexcept HostError as error:\n    print(error.kind, error)\n"
    "FINAL('done')"
)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessSandbox]:
    made = made_sandbox(tmp_path_factory.mktemp("output"), spares=0)
    yield made
    asyncio.run(made.close())


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqliteLedger]:
    with SqliteLedger(tmp_path / "ledger.db") as made:
        yield made


class Working:
    """A run in a thread of its own, up to the call that waits."""

    def __init__(self, process: ProcessSandbox, ledger: SqliteLedger) -> None:
        self.paid: list[str] = []
        self.ended: list[Run] = []

        @host_function(ask=True)
        def pay(invoice: str) -> str:
            """Pay an invoice."""
            self.paid.append(invoice)
            return f"paid {invoice}"

        sandbox: Any = process
        self.session = Session(
            config=None,
            model=ModelDouble(block(TRIES)),
            ledger=ledger,
            sandbox=sandbox,
            backend="process",
            functions=[pay],
            pricing=PRICING,
        )
        self._thread = threading.Thread(
            target=lambda: self.ended.append(self.session.run("Pay it."))
        )
        self._thread.start()
        deadline = time.monotonic() + 30
        while not (ledger.runs() and waiting_in(ledger, ledger.runs()[0].run)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        self.run = ledger.runs()[0].run

    def join(self) -> Run:
        self._thread.join(30)
        self.session.close()
        return self.ended[0]


@pytest.mark.parametrize("decision", ["approve", "deny"])
def test_the_call_goes_on_in_its_own_process_once_somebody_has_decided(
    process: ProcessSandbox, ledger: SqliteLedger, decision: str
) -> None:
    working = Working(process, ledger)
    with Session(ledger=ledger, config=None) as other:
        if decision == "approve":
            assert other.approve(working.run, by="ann") is None
        else:
            assert other.deny(working.run, by="ann", because="too much") is None

    ended = working.join()

    assert (ended.stop, ended.answer) == ("answered", "done")
    assert working.paid == (["INV-1"] if decision == "approve" else [])
    records = whole_records(ledger, working.run)
    (decided,) = [each for each in records if isinstance(each, CallDecided)]
    assert (decided.decision, decided.by) == (decision, "ann")
    (waited,) = [each for each in records if isinstance(each, CallWaiting)]
    assert decided.request_sha256 == waited.request_sha256
    with Session(ledger=ledger, config=None) as other:
        assert other.replay(working.run).held
        with pytest.raises(UsageError, match="has nothing that waits"):
            other.approve(working.run)


def test_a_run_whose_call_waits_inside_can_be_stopped(
    process: ProcessSandbox, ledger: SqliteLedger
) -> None:
    working = Working(process, ledger)

    stop(working.run, ledger=ledger)

    ended = working.join()
    assert ended.stop in ("cancelled", "in_doubt")
    assert working.paid == []
    assert waiting_in(ledger, working.run) == []
