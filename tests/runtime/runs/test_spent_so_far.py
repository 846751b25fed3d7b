"""What a run has spent that has no end yet."""

from __future__ import annotations

from tests.ledger.builders import drafted, run_id
from tests.upkeep.transfer_builders import started

from tallystick.core.chain import Head
from tallystick.core.charge import Charge, Reserved
from tallystick.core.records import AskModel
from tallystick.ledger.memory import MemoryLedger
from tallystick.runtime.runs.history import spent_so_far


def test_an_open_call_counts_with_all_that_it_reserved() -> None:
    run = run_id(1)
    reserved = Reserved(tokens_in=10, tokens_out=90, usd=5_000, price="published")
    asked = AskModel(intent=1, turn=1, base=None, added=(), request_sha256="0", reserved=reserved)
    ledger = MemoryLedger()
    fence = ledger.claim(run, create=True)
    drafts = [started(run_id(99), []), drafted(asked)]
    ledger.append(run, drafts, expected=Head.of_nothing(), fence=fence, forced=False)

    spent = spent_so_far(ledger, run)

    assert spent == Charge(usd=5_000, tokens_in=10, tokens_out=90, model_calls=1)


def test_a_run_that_is_not_there_has_spent_nothing() -> None:
    assert spent_so_far(MemoryLedger(), run_id(1)) == Charge()
