"""Runs that programs begin: real runs of their own, capped by what their parent has left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.runtime.calls.child_models import WIDE, opened, says, tree

from tallystick.attachments.memory import MemoryAttachments
from tallystick.core.chain import Head
from tallystick.core.charge import RunLimits
from tallystick.core.records import ChildBegun, ChildEnded, RunStarted, tag_of
from tallystick.ledger.verify import verify_ledger
from tallystick.runtime.runs.history import records_of
from tallystick.runtime.spend.slots import CHILDREN_LIVE_MAX
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.ledgers import CutLedger

__all__ = ["WIDE", "CutLedger", "says", "tree"]


def test_a_tree_of_runs_answers_as_one(sandbox: WasmSandbox) -> None:
    session = opened(sandbox, tree())

    run = session.run("count 8 now", limits=WIDE)

    assert run.answer == "8"
    chains = [row.run for row in session.ledger.runs()]
    assert len(chains) == 15
    assert verify_ledger(session.ledger).ok
    assert all(session.replay(chain).held for chain in chains)
    starts = [next(records_of(session.ledger, chain)) for chain in chains]
    depths = [
        0 if each.caller is None else each.caller.depth
        for each in starts
        if isinstance(each, RunStarted)
    ]
    assert sorted(depths) == [0] + [1] * 2 + [2] * 4 + [3] * 8


def test_what_children_cost_is_in_what_their_parent_cost(sandbox: WasmSandbox) -> None:
    model = tree()
    session = opened(sandbox, model)

    run = session.run("count 4 now", limits=WIDE)

    assert run.charge.usd == model.billed
    assert run.charge.model_calls == 7
    assert run.charge.turns == 1


def test_a_child_reads_its_own_context_and_returns_text(sandbox: WasmSandbox) -> None:
    session = opened(sandbox, says("FINAL(rlm_query('shout it', context='so it is'))"))

    assert session.run("the root").answer == "SO IT IS"


def test_a_batch_keeps_its_order_and_tells_failures_apart(sandbox: WasmSandbox) -> None:
    program = (
        "found = rlm_query_batched(['q'] * 3, contexts=['a', {'x': 'b', 'y': 'b'}, 'c'])\n"
        "FINAL([each if isinstance(each, str) else each.kind for each in found])"
    )
    session = opened(sandbox, says(program))

    run = session.run("the root", limits=WIDE)

    # The second has its texts by name, so its program fails, again and again.
    assert run.answer == '["A","ChildStopped","C"]'


def test_a_single_child_that_stops_is_an_error_that_can_be_caught(sandbox: WasmSandbox) -> None:
    program = "try:\n    rlm_query('q')\nexcept HostError as error:\n    FINAL(error.kind)"
    session = opened(sandbox, says(program, child="RUN(ls)"))

    assert session.run("the root", limits=WIDE).answer == "ChildStopped"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("rlm_query(3)", "text is needed"),
        ("rlm_query('q', context=3)", "context 0"),
        ("rlm_query('q', context=[1])", "context 0"),
        ("rlm_query_batched('q')", "a list of texts"),
        ("rlm_query_batched(['q'], contexts=[])", "1 prompts and 0 contexts"),
        ("rlm_query('q', model='other')", "is not for programs"),
        ("rlm_query_batched(['q'] * 20_000)", "at most 10,000"),
    ],
)
def test_what_cannot_be_asked_is_said_to_the_program(
    sandbox: WasmSandbox, call: str, said: str
) -> None:
    program = f"try:\n    {call}\nexcept HostError as error:\n    FINAL(str(error))"
    session = opened(sandbox, says(program))

    assert said in (session.run("the root", limits=WIDE).answer or "")


def test_at_the_greatest_depth_the_model_is_asked_directly_and_it_is_said(
    sandbox: WasmSandbox,
) -> None:
    program = "FINAL(rlm_query('q', context='c'))"
    session = opened(sandbox, says(program))

    run = session.run("the root", limits=RunLimits(depth=0))

    assert run.answer == "said directly"
    assert len(session.ledger.runs()) == 1
    (finished,) = [
        each for each in records_of(session.ledger, run.run) if tag_of(each) == "program.finished"
    ]
    assert "asked directly" in finished.stderr  # type: ignore[union-attr]
    assert session.replay(run.run).held


def test_a_greater_depth_counts_from_where_it_was_given(sandbox: WasmSandbox) -> None:
    session = opened(sandbox, says("print(rlm_query('q', context='c'))"))
    run = session.run("the root", limits=RunLimits(depth=0, turns=1))
    assert run.answer == "said directly"

    again = session.resume(run.run, limits=RunLimits(depth=1, turns=2))

    # What was asked before is served as it was, and not asked of a run instead.
    assert again.answer == "C"
    assert len(session.ledger.runs()) == 2
    assert session.replay(run.run).held


def test_a_model_that_recurses_for_ever_comes_to_an_end(sandbox: WasmSandbox) -> None:
    session = opened(sandbox, says("", child="FINAL(rlm_query('deeper'))"))

    run = session.run("down", limits=RunLimits(tokens=1_000_000, depth=4))

    assert run.answer == "said directly"
    assert len(session.ledger.runs()) == 5


@pytest.mark.slow
def test_a_thousand_children_through_one_batch(sandbox: WasmSandbox) -> None:
    program = (
        "found = rlm_query_batched(['q'] * 1000, contexts=[f'c{n}' for n in range(1000)])\n"
        "FINAL(found == [f'C{n}' for n in range(1000)])"
    )
    model = says(program)
    model.delay = 0.001
    session = opened(sandbox, model)

    limits = RunLimits(tokens=100_000_000, host_calls=100_000, wall_ms=600_000)
    assert session.run("the root", limits=limits).answer == "true"
    assert 1 < model.most_at_once <= CHILDREN_LIVE_MAX


# -- cut off, and gone on with ---------------------------------------------------------------------


@pytest.mark.parametrize("start", range(4))
def test_a_tree_that_is_cut_off_anywhere_goes_on_to_the_same_answer(
    sandbox: WasmSandbox, start: int
) -> None:
    ledger, attachments, whole = CutLedger(), MemoryAttachments(), tree()
    run = opened(sandbox, whole, ledger, attachments).run("count 4 now", limits=WIDE)
    acts = list(ledger.acts)

    for cut in range(2 + start, len(acts), 4):
        again, before = tree(), CutLedger(acts[:cut])
        session = opened(sandbox, again, before, attachments)
        open_calls = {
            key
            for row in before.runs()
            for key in _open_keys(row.run, list(records_of(before, row.run)))
        }
        ended = session.resume(run.run, in_doubt="retry")

        assert ended.answer == "4", cut
        assert verify_ledger(before).ok
        assert all(session.replay(row.run).held for row in before.runs()), cut
        # Nothing that has an outcome was asked again.
        asked_before = {
            f"{row.run}-{each.intent}"  # type: ignore[union-attr]
            for row in CutLedger(acts[:cut]).runs()
            for each in records_of(CutLedger(acts[:cut]), row.run)
            if tag_of(each) == "model.replied"
        }
        assert not asked_before & set(again.keys), cut
        if not open_calls:
            assert ended.charge.usd == run.charge.usd, cut


def _open_keys(run: str, records: Sequence[Any]) -> set[str]:
    begun = {each.intent for each in records if tag_of(each) == "model.ask"}
    ended = {each.intent for each in records if tag_of(each) in ("model.replied", "model.failed")}
    return {f"{run}-{intent}" for intent in begun - ended}


def test_a_child_is_linked_to_its_parent_and_back(sandbox: WasmSandbox) -> None:
    session = opened(sandbox, says("FINAL(rlm_query('q', context='c'))"))
    run = session.run("the root", limits=WIDE)

    records = list(records_of(session.ledger, run.run))
    (begun,) = [each for each in records if isinstance(each, ChildBegun)]
    (ended,) = [each for each in records if isinstance(each, ChildEnded)]
    started = next(records_of(session.ledger, begun.run))

    assert isinstance(started, RunStarted)
    assert started.caller is not None
    assert (started.caller.run, started.caller.intent) == (run.run, begun.intent)
    row = next(row for row in session.ledger.runs() if row.run == begun.run)
    assert row.head == Head(count=ended.count, hash=ended.hash)
