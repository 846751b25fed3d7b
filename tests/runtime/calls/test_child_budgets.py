"""What children may use: at most what their parent has left, and nothing is refused too early."""

from __future__ import annotations

from typing import Any

import pytest
from tests.runtime.calls.child_models import opened, says, tree

from tallystick.attachments.memory import MemoryAttachments
from tallystick.core.charge import RunLimits
from tallystick.core.records import QueryRefused, RunEnded, RunStarted
from tallystick.ledger.memory import MemoryLedger
from tallystick.runtime.runs.history import records_of
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.ledgers import CutLedger


@pytest.mark.parametrize("usd", [3_000_000, 20_000_000, 60_000_000, 200_000_000])
def test_a_tree_never_overdraws_the_cap_of_its_root(sandbox: WasmSandbox, usd: int) -> None:
    model = tree()
    session = opened(sandbox, model)

    run = session.run("count 16 now", limits=RunLimits(tokens=10_000_000, usd=usd))

    assert model.billed <= usd
    assert run.charge.usd is None or run.charge.usd <= usd


def test_children_wait_for_what_others_hold_and_are_not_refused_for_it(
    sandbox: WasmSandbox,
) -> None:
    program = (
        "found = rlm_query_batched(['q'] * 40, contexts=['c'] * 40)\n"
        "FINAL([each if isinstance(each, str) else str(each) for each in found] == ['C'] * 40)"
    )
    model = says(program)
    model.delay = 0.01
    session = opened(sandbox, model)

    # All together hold more than that at once; what they cost is less.
    run = session.run("the root", limits=RunLimits(tokens=15_000))

    assert run.answer == "true"
    assert model.most_at_once > 1


def test_a_child_that_nothing_is_left_for_is_refused_and_not_begun(sandbox: WasmSandbox) -> None:
    program = (
        "found = rlm_query_batched(['q'] * 60, contexts=['c'] * 60)\n"
        "FINAL(sorted({each if isinstance(each, str) else each.kind for each in found}))"
    )
    session = opened(sandbox, says(program))

    run = session.run("the root", limits=RunLimits(tokens=100_000, model_calls=5))

    # Those who were begun before that was known were stopped at their first call.
    assert run.answer == '["BudgetExhausted","C","ChildStopped"]'
    refused = [
        each for each in records_of(session.ledger, run.run) if isinstance(each, QueryRefused)
    ]
    assert len(session.ledger.runs()) == 1 + 60 - len(refused)
    assert len(refused) >= 60 - 32
    assert session.replay(run.run).held


@pytest.mark.parametrize("cut", [0, 2])
def test_a_refusal_is_served_again_to_whoever_goes_on(sandbox: WasmSandbox, cut: int) -> None:
    program = (
        "found = rlm_query_batched(['q'] * 2, contexts=['c'] * 2)\n"
        "found += rlm_query_batched(['q'] * 2, contexts=['c'] * 2)\n"
        "try:\n    rlm_query('q', model='other')\n"
        "except HostError as error:\n"
        "    FINAL([each if isinstance(each, str) else each.kind for each in found] + [error.kind])"
    )
    ledger, attachments = CutLedger(), MemoryAttachments()
    limits = RunLimits(tokens=100_000, model_calls=3)
    run = opened(sandbox, says(program), ledger, attachments).run("the root", limits=limits)
    assert run.answer == '["C","C","BudgetExhausted","BudgetExhausted","UnknownModel"]'
    whole = list(records_of(ledger, run.run))
    last = max(place for place, each in enumerate(whole) if isinstance(each, QueryRefused))

    cut_at = next(
        number
        for number in range(len(ledger.acts))
        if len(_records(CutLedger(ledger.acts[:number]), run.run)) > last - cut
    )
    again = opened(sandbox, says(program), CutLedger(ledger.acts[:cut_at]), attachments)

    assert again.resume(run.run).answer == run.answer
    assert all(again.replay(row.run).held for row in again.ledger.runs())


def _records(ledger: MemoryLedger, run: str) -> list[Any]:
    known = any(row.run == run for row in ledger.runs())
    return list(records_of(ledger, run)) if known else []


def test_a_deadline_ends_the_whole_tree_and_every_run_of_it(sandbox: WasmSandbox) -> None:
    model = says("FINAL(rlm_query_batched(['q'] * 4))", child="FINAL(rlm_query('deeper'))")
    model.delay = 0.05
    session = opened(sandbox, model)

    run = session.run("the root", limits=RunLimits(tokens=10_000_000, depth=100, wall_ms=900))

    assert run.stop == "deadline"
    ends = [list(records_of(session.ledger, row.run))[-1] for row in session.ledger.runs()]
    assert len(ends) > 5
    assert all(isinstance(each, RunEnded) for each in ends)
    assert all(session.replay(row.run).held for row in session.ledger.runs())
    assert run.charge.usd is not None
    assert run.charge.usd >= model.billed


def test_a_child_has_no_more_than_its_parent_has_left(sandbox: WasmSandbox) -> None:
    session = opened(sandbox, says("FINAL(rlm_query('q', context='c'))"))

    session.run("the root", limits=RunLimits(tokens=30_000, usd=500_000_000))

    _, child = [next(records_of(session.ledger, row.run)) for row in session.ledger.runs()]
    assert isinstance(child, RunStarted)
    assert child.limits.tokens < 30_000
    assert child.limits.usd is not None
    assert child.limits.usd < 500_000_000


@pytest.mark.parametrize("asks", ["query", "batched", "whole"])
def test_a_childs_own_calls_wait_for_what_a_sibling_holds(sandbox: WasmSandbox, asks: str) -> None:
    """A program's call waits as a turn's does: what is held now may be given back."""
    question = "'y' * 6_000"
    calls = {
        "query": f"FINAL(llm_query({question}))",
        "batched": f"FINAL(llm_query_batched([{question}])[0])",
        "whole": f"FINAL(llm_query_batched([{question}], fit='whole')[0])",
    }
    program = (
        "found = rlm_query_batched(['q'] * 4, contexts=['c'] * 4)\n"
        "FINAL([each if isinstance(each, str) else each.kind for each in found])"
    )
    model = says(program, child=calls[asks], delay=0.05)
    session = opened(sandbox, model)

    # One such call is at most 6,000 tokens and is billed as 1,500: two at once are too many.
    limits = RunLimits(tokens=17_500, reply_tokens=500)
    run = session.run("the root", limits=limits)

    assert run.answer == '["said directly","said directly","said directly","said directly"]'
    records = [
        each for row in session.ledger.runs() for each in records_of(session.ledger, row.run)
    ]
    assert not [each for each in records if isinstance(each, QueryRefused)]
    assert all(session.replay(row.run).held for row in session.ledger.runs())


def test_a_childs_own_call_is_refused_where_nothing_is_held(sandbox: WasmSandbox) -> None:
    program = "FINAL(rlm_query_batched(['q'] * 2, contexts=['c'] * 2) and 'done')"
    child = "try:\n    llm_query('y' * 60_000)\nexcept HostError as error:\n    FINAL(error.kind)"
    session = opened(sandbox, says(program, child=child))

    run = session.run("the root", limits=RunLimits(tokens=20_000, reply_tokens=500))

    assert run.answer == "done"
    records = [
        each for row in session.ledger.runs() for each in records_of(session.ledger, row.run)
    ]
    refused = [each for each in records if isinstance(each, QueryRefused)]
    assert [each.dimension for each in refused] == ["tokens", "tokens"]


def test_who_waits_for_money_does_not_keep_the_model_from_those_who_hold_it(
    sandbox: WasmSandbox,
) -> None:
    program = (
        "found = rlm_query_batched(['q'] * 4, contexts=['c'] * 4)\n"
        "FINAL([each if isinstance(each, str) else each.kind for each in found])"
    )
    child = "FINAL(llm_query_batched(['y' * 3_000] * 2, fit='whole')[1])"
    # The model is asked by one at a time.
    model = says(program, child=child, places=1, delay=0.01)
    session = opened(sandbox, model)

    run = session.run("the root", limits=RunLimits(tokens=18_500, reply_tokens=500))

    assert run.answer == '["said directly","said directly","said directly","said directly"]'
    assert run.charge.wall_ms < 15_000
