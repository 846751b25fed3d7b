"""A tree of runs counted from its records: the sum is right at every moment, also after a cut."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.runtime.calls.child_models import is_root
from tests.runtime.calls.test_children import WIDE, says, tree

from tallystick.attachments.memory import MemoryAttachments
from tallystick.client import Session
from tallystick.core.charge import Charge
from tallystick.core.machine.turn import charge_of
from tallystick.core.records import (
    ChildBegun,
    ChildEnded,
    ModelFailed,
    ModelReplied,
    ProgramFinished,
    QueryFailed,
    QueryReplied,
    Record,
    RunEnded,
    RunStarted,
)
from tallystick.core.resume_errors import RunInDoubt
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.verify import verify_ledger
from tallystick.runtime.runs.history import whole_records
from tallystick.runtime.runs.tree import Node, RunTree, open_records, tree_of
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.ledgers import CutLedger
from tallystick.testing.models import PRICING, ModelDouble, block

MIXED = (
    "found = rlm_query_batched(['q'] * 3, contexts=['a', 'b', 'c'])\n"
    "said = llm_query_batched(['x', 'y'])\n"
    "FINAL([*found, *said])"
)
CALLS = ModelReplied | ModelFailed | QueryReplied | QueryFailed


def opened(
    sandbox: WasmSandbox, model: Any, ledger: Any = None, attachments: Any = None
) -> Session:
    return Session(
        model=model,
        ledger=ledger or MemoryLedger(),
        attachments=attachments,
        sandbox=sandbox,
        pricing=PRICING,
    )


def counting(tally: RunTree) -> Callable[[str, Record], None]:
    def watch(run: str, record: Record) -> None:
        tally.add(run, record)

    return watch


def nodes_of(node: Node) -> list[Node]:
    return [node, *(each for child in node.children for each in nodes_of(child))]


@pytest.mark.parametrize(
    ("model", "goal"), [(tree(), "count 4 now"), (says(MIXED), "the root")], ids=["tree", "mixed"]
)
def test_at_every_record_the_sum_is_of_all_calls_so_far_and_at_the_end_the_charge(
    sandbox: WasmSandbox, model: ModelDouble, goal: str
) -> None:
    tally, paid, guard = RunTree(), [Charge()], threading.Lock()
    wrong: list[tuple[Record, Charge]] = []

    def watch(run: str, record: Record) -> None:
        with guard:
            tally.add(run, record)
            if isinstance(record, CALLS):
                paid[0] += charge_of(record)
            used, calls = tally.root.used, paid[0]
            if (used.usd, used.tokens_in, used.tokens_out, used.model_calls) != (
                calls.usd,
                calls.tokens_in,
                calls.tokens_out,
                calls.model_calls,
            ):
                wrong.append((record, used))

    run = opened(sandbox, model).run(goal, limits=WIDE, watch=watch)

    assert run.stop == "answered"
    assert wrong == []
    assert tally.root.used == run.charge
    assert run.charge.usd == model.billed
    assert (tally.live, tally.failed, tally.waiting) == (0, 0, 0)
    assert tally.root.answer == run.answer


@pytest.mark.slow
def test_a_watcher_is_told_how_many_wait_for_a_place(sandbox: WasmSandbox) -> None:
    class Watcher:
        def __init__(self) -> None:
            self.tally, self.most = RunTree(), 0

        def __call__(self, run: str, record: Record) -> None:
            self.tally.add(run, record)

        def waits(self, parent: str, change: int) -> None:
            self.tally.waits(parent, change)
            self.most = max(self.most, self.tally.root.waiting)

    program = "FINAL(len(rlm_query_batched(['q'] * 40, contexts=['c'] * 40)))"
    watcher = Watcher()

    run = opened(sandbox, says(program)).run("the root", limits=WIDE, watch=watcher)

    assert run.answer == "40"
    assert watcher.most >= 40 - 32
    assert (watcher.tally.waiting, watcher.tally.answered) == (0, 40)


# -- cut off, and gone on with ---------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, 1, 2])
def test_what_was_spent_before_a_crash_is_counted_once(sandbox: WasmSandbox, start: int) -> None:
    ledger, attachments = CutLedger(), MemoryAttachments()
    run = opened(sandbox, tree(), ledger, attachments).run("count 4 now", limits=WIDE)
    acts = list(ledger.acts)

    for cut in range(6 + start * 3, len(acts), 9):
        before = CutLedger(acts[:cut])
        records = whole_records(before, run.run)
        if not records:
            continue
        tally = RunTree(records, open_records(before, records))
        spent = tally.root.used
        ended = opened(sandbox, tree(), before, attachments).resume(
            run.run, in_doubt="retry", watch=counting(tally)
        )

        assert ended.answer == "4"
        assert tally.root.used == ended.charge, cut
        assert spent.model_calls <= ended.charge.model_calls
        assert tree_of(before, run.run).charge == ended.charge


@pytest.fixture
def cancelled(sandbox: WasmSandbox) -> tuple[MemoryLedger, MemoryAttachments, str]:
    """A tree that was stopped while one child had answered and two were being answered."""
    ledger, attachments = MemoryLedger(), MemoryAttachments()
    model = says("FINAL(rlm_query_batched(['q'] * 3, contexts=['a', 'b', 'c']))")
    model.before = lambda call: model.hang() if call.number > 1 and not is_root(call) else None
    session = opened(sandbox, model, ledger, attachments)
    answered = threading.Event()

    def watch(run: str, record: Record) -> None:
        if isinstance(record, ChildEnded):
            answered.set()

    going = session.engine.loop.submit(session.arun("the root", limits=WIDE, watch=watch))
    assert model.wait_until_hung(2)
    assert answered.wait(20)
    session.close()
    assert going.done()
    starts = {row.run: whole_records(ledger, row.run)[0] for row in ledger.runs()}
    (run,) = [
        each
        for each, start in starts.items()
        if isinstance(start, RunStarted) and start.caller is None
    ]
    return ledger, attachments, run


def test_a_tree_that_was_stopped_goes_on_where_each_of_its_runs_was(
    sandbox: WasmSandbox, cancelled: tuple[MemoryLedger, MemoryAttachments, str]
) -> None:
    ledger, attachments, run = cancelled
    before = whole_records(ledger, run)
    stopped = before[-1]
    assert isinstance(stopped, RunEnded)
    assert stopped.stop == "cancelled"
    stops = [each.stop for each in before if isinstance(each, ChildEnded)]
    assert sorted(stops) == ["answered", "cancelled", "cancelled"]
    tally = RunTree(before, open_records(ledger, before))
    assert tally.root.used == stopped.charge
    model = says("")
    session = opened(sandbox, model, ledger, attachments)

    with pytest.raises(RunInDoubt) as caught:
        session.resume(run)
    assert model.asked == []
    assert len({each.run for each in caught.value.open}) == 2
    ended = session.resume(run, in_doubt="retry", watch=counting(tally))

    assert ended.answer == '["A","B","C"]'
    assert len(model.asked) == 2
    assert ended.charge.usd == (stopped.charge.usd or 0) + model.billed
    assert tally.root.used == ended.charge
    assert verify_ledger(ledger).ok
    assert all(session.replay(row.run).held for row in ledger.runs())
    begun = [each for each in whole_records(ledger, run) if isinstance(each, ChildBegun)]
    assert sorted(each.attempt for each in begun) == [1, 1, 1, 2, 2]
    assert len({each.run for each in begun}) == 3


def test_the_tree_of_one_that_was_stopped_says_so_and_sums_up(
    cancelled: tuple[MemoryLedger, MemoryAttachments, str],
) -> None:
    ledger, _, run = cancelled

    root = tree_of(ledger, run)

    ended = whole_records(ledger, run)[-1]
    assert isinstance(ended, RunEnded)
    assert root.charge == ended.charge
    assert sorted(each.stop for each in nodes_of(root)) == [
        "answered",
        "cancelled",
        "cancelled",
        "cancelled",
    ]


# -- whoever watches -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [RunStarted, ModelReplied, ProgramFinished, RunEnded])
def test_a_watcher_that_fails_at_a_child_harms_neither_the_child_nor_the_run(
    sandbox: WasmSandbox, kind: type[Record]
) -> None:
    told: list[str] = []

    def watch(run: str, record: Record) -> None:
        told.append(run)
        if isinstance(record, kind) and run != told[0]:
            raise BrokenPipeError("nobody reads")

    model = says("FINAL(rlm_query_batched(['q'] * 3, contexts=['a', 'b', 'c']))")
    session = opened(sandbox, model)

    run = session.run("the root", limits=WIDE, watch=watch)

    assert run.answer == '["A","B","C"]'
    assert run.charge.usd == model.billed
    assert all(session.replay(row.run).held for row in session.ledger.runs())


def test_a_watcher_that_fails_at_everything_ends_the_run_and_loses_nothing(
    sandbox: WasmSandbox,
) -> None:
    def watch(run: str, record: Record) -> None:
        if isinstance(record, ChildBegun) or broken:
            broken.append(1)
            raise BrokenPipeError("nobody reads")

    broken: list[int] = []
    model = says("print(rlm_query_batched(['q'] * 3, contexts=['a', 'b', 'c']))")
    session = opened(sandbox, model)

    with pytest.raises(BrokenPipeError):
        session.run("the root", limits=WIDE, watch=watch)

    root = session.ledger.runs()[0].run
    ended = whole_records(session.ledger, root)[-1]
    assert isinstance(ended, RunEnded)
    assert (ended.stop, ended.charge.usd) == ("cancelled", model.billed)
    assert session.replay(root).held


def test_a_program_that_is_left_has_no_live_children_any_more(sandbox: WasmSandbox) -> None:
    tally = RunTree()
    model = says("FINAL(1)", child=block("while True: pass"))
    session = opened(sandbox, model)
    run = session.run("the root", limits=WIDE, watch=counting(tally))
    begun = ChildBegun(intent=9, program=2, item=0, run="child", request_sha256="")
    tally.add(run.run, begun)
    assert tally.live == 1

    tally.add(
        run.run,
        next(
            each
            for each in whole_records(session.ledger, run.run)
            if isinstance(each, ProgramFinished)
        ),
    )

    assert (tally.live, tally.failed) == (0, 1)
