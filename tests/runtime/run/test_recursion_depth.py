"""A run counts its depth from where it is told to: by its caller, a tool, or the environment."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.runtime.calls.child_models import WIDE, opened, says, tree

from tallystick import Agent, RunLimits, tool
from tallystick.core.budget.amount import BudgetExhausted
from tallystick.core.errors import UsageError
from tallystick.core.records import ChildBegun, RunStarted, depth_of
from tallystick.ledger import MemoryLedger
from tallystick.runtime.calls.functions import depth_here
from tallystick.runtime.runs.history import records_of, whole_records
from tallystick.sandbox.wasm.sandbox import WasmSandbox


@pytest.fixture(autouse=True)
def no_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TALLYSTICK_DEPTH", raising=False)


def depths(session: Any) -> list[int]:
    starts = [next(records_of(session.ledger, row.run)) for row in session.ledger.runs()]
    return sorted(depth_of(each) for each in starts if isinstance(each, RunStarted))


def test_children_count_from_where_their_root_starts(sandbox: WasmSandbox) -> None:
    session = opened(sandbox, tree())

    run = session.run("count 4 now", limits=WIDE, recursion_depth=5)

    assert run.answer == "4"
    assert depths(session) == [5, 6, 6, 7, 7, 7, 7]
    assert all(session.replay(row.run).held for row in session.ledger.runs())


def test_at_its_limit_a_run_has_no_children(sandbox: WasmSandbox) -> None:
    session = opened(sandbox, says("FINAL(rlm_query('shout it', context='so it is'))"))
    limits = RunLimits(depth=3)

    run = session.run("the root", limits=limits, recursion_depth=3)
    below = session.run("the root", limits=limits, recursion_depth=2)

    records = whole_records(session.ledger, run.run)
    assert not [each for each in records if isinstance(each, ChildBegun)]
    assert [
        each for each in whole_records(session.ledger, below.run) if isinstance(each, ChildBegun)
    ]


def test_beyond_its_limit_a_run_is_refused_and_nothing_is_recorded(sandbox: WasmSandbox) -> None:
    session = opened(sandbox, says("FINAL(1)"))

    with pytest.raises(BudgetExhausted, match="depth: 4 needed, 3 left"):
        session.run("the root", limits=RunLimits(depth=3), recursion_depth=4)
    assert [row for row in session.ledger.runs() if row.head.count] == []


def test_a_run_that_a_tool_starts_is_below_the_run_that_called_it(sandbox: WasmSandbox) -> None:
    again: list[Any] = []

    @tool
    def ask_again() -> str:
        """Run the same goal."""
        try:
            return str(again[0].run("the root", limits=RunLimits(depth=3)).answer)
        except BudgetExhausted as error:
            return f"refused: {error.dimension}"

    session = Agent(
        model=says("FINAL(ask_again())"),
        ledger=MemoryLedger(),
        sandbox=sandbox,
        tools=[ask_again],
    )
    again.append(session)

    run = session.run("the root", limits=RunLimits(depth=3))

    assert run.answer == "refused: depth"
    assert depths(session) == [0, 1, 2, 3]


def test_the_environment_says_which_run_started_the_process(
    sandbox: WasmSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened(sandbox, says("FINAL(1)"))
    assert depth_here() == 0
    monkeypatch.setenv("TALLYSTICK_DEPTH", "7")

    session.run("the root")
    session.run("the root", recursion_depth=0)

    assert depths(session) == [0, 7]


@pytest.mark.parametrize("given", ["many", "-1", "1.5", "²", "9" * 20])
def test_a_depth_in_the_environment_that_is_none_is_refused(
    sandbox: WasmSandbox, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("TALLYSTICK_DEPTH", given)

    with pytest.raises(UsageError, match="TALLYSTICK_DEPTH"):
        opened(sandbox, says("FINAL(1)")).run("the root")


@pytest.mark.parametrize("given", [-1, 1.5, True, "2"])
def test_a_depth_that_is_no_whole_number_is_refused(sandbox: WasmSandbox, given: Any) -> None:
    with pytest.raises(UsageError, match="recursion_depth"):
        opened(sandbox, says("FINAL(1)")).run("the root", recursion_depth=given)


def test_a_program_finds_the_depth_of_its_run_in_the_environment(wasm_sandbox: WasmSandbox) -> None:
    session = opened(
        wasm_sandbox, says("import os\nFINAL(os.environ.get('TALLYSTICK_DEPTH', 'none'))")
    )

    # A run that the program starts has this run above it, too.
    assert session.run("the root", recursion_depth=4).answer == "5"
    assert session.run("the root").answer == "none"
    started = whole_records(session.ledger, session.ledger.runs()[-1].run)[0]
    assert isinstance(started, RunStarted)
    assert started.depth is msgspec.UNSET
