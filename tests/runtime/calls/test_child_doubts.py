"""What is in doubt in a tree of runs is named, all of it, before anything is done."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runtime.calls.child_models import WIDE, opened, says, tree

from tallystick.attachments.memory import MemoryAttachments
from tallystick.client import Session
from tallystick.core.budget.amount import Budget
from tallystick.core.resume_errors import RunInDoubt
from tallystick.core.views.open_calls import open_calls
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.runs.history import records_of
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.ledgers import CutLedger
from tallystick.testing.models import PRICING


def open_in(ledger: CutLedger) -> set[tuple[str, int]]:
    return {
        (row.run, call.intent)
        for row in ledger.runs()
        if row.head.count
        for call in open_calls(records_of(ledger, row.run))
    }


def test_calls_of_several_children_are_all_named(sandbox: WasmSandbox) -> None:
    ledger, attachments = CutLedger(), MemoryAttachments()
    model = tree(delay=0.02)
    run = opened(sandbox, model, ledger, attachments).run("count 4 now", limits=WIDE)
    prefixes = [CutLedger(ledger.acts[:cut]) for cut in range(2, len(ledger.acts))]
    before = max(prefixes, key=lambda each: len(open_in(each)))
    assert len(open_in(before)) > 1
    session = opened(sandbox, tree(), before, attachments)

    with pytest.raises(RunInDoubt) as caught:
        session.resume(run.run)

    named = {(each.run or run.run, each.intent) for each in caught.value.open}
    assert named == open_in(before)
    assert caught.value.run == run.run
    assert all(name in str(caught.value) for name, _ in named)
    assert session.resume(run.run, in_doubt="retry").answer == "4"


def test_children_wait_for_what_others_hold_of_a_total(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    model = says(
        "found = rlm_query_batched(['q'] * 12, contexts=['c'] * 12)\nFINAL(found == ['C'] * 12)"
    )
    model.delay = 0.01
    with (
        SqliteLedger(tmp_path / "ledger.db") as ledger,
        # It pays for two calls at their worst at a time, and for all at what they cost.
        Session(
            model=model,
            ledger=ledger,
            sandbox=sandbox,
            pricing=PRICING,
            total=Budget.of(usd="0.05"),
        ) as session,
    ):
        run = session.run("the root", limits=WIDE)

    assert run.answer == "true"
    assert model.billed <= 50_000_000
