"""Laws of steps, over any nesting of them and any charges.

A program is a tree of steps and calls. What it comes to is said twice: by running it, and by an
oracle that knows only the rules and keeps no tree of scopes.
"""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.core.budget.amount import Budget
from tallystick.core.records import ErrorBoundary
from tallystick.core.step import CompletedStep, StepBudgetError, StepDefinition
from tallystick.steps.decorator import (
    charge_step,
    completed_steps,
    current_step,
    enter_step,
    step_log,
)

# They take long: CI runs them.
pytestmark = pytest.mark.slow

SCALE = max(1, settings().max_examples // 100)
Ended = Literal["completed", "skipped", "escalated", "failed"]


@dataclass(frozen=True)
class Call:
    input: int
    output: int
    nano: int


@dataclass(frozen=True)
class Steps:
    name: str
    budget: Budget
    boundary: ErrorBoundary
    parts: tuple[Call | Steps, ...]

    @property
    def definition(self) -> StepDefinition:
        return StepDefinition(
            name=self.name, function=self.name, budget=self.budget, error_boundary=self.boundary
        )


@dataclass(frozen=True)
class Over(Exception):
    step: str
    limit: str
    escalated: bool = False


@dataclass
class Sums:
    """A step of the oracle, and what was called in it."""

    step: Steps
    calls: list[Call]

    @property
    def breach(self) -> str | None:
        budget = self.step.budget
        tokens = sum(each.input + each.output for each in self.calls)
        if budget.tokens is not None and tokens > budget.tokens:
            return "max_tokens"
        nano = sum(each.nano for each in self.calls)
        return "max_usd" if budget.usd is not None and nano > budget.usd else None


Row = tuple[str, str, int, int, int, int]
small = st.integers(0, 6)
calls = st.builds(Call, input=small, output=small, nano=small)
limits = st.none() | st.integers(0, 30)
budgets = st.builds(Budget, tokens=limits, usd=limits)
boundaries: st.SearchStrategy[ErrorBoundary] = st.sampled_from(["fail", "continue", "escalate"])


def steps_of(parts: st.SearchStrategy[Call | Steps]) -> st.SearchStrategy[Steps]:
    return st.builds(
        Steps,
        name=st.sampled_from("abc"),
        budget=budgets,
        boundary=boundaries,
        parts=st.lists(parts, max_size=4).map(tuple),
    )


programs = steps_of(st.recursive(calls, steps_of, max_leaves=12))


# -- the oracle ----------------------------------------------------------------------------------


def expected(program: Steps, around: tuple[Sums, ...], rows: list[Row]) -> None:
    """What running it has to record, the innermost first. Raises `Over`."""
    own = Sums(program, [])
    status: Ended = "completed"
    inside = (own, *around)
    try:
        for part in program.parts:
            if isinstance(part, Steps):
                expected(part, inside, rows)
                continue
            for each in inside:
                each.calls.append(part)
            for each in inside:
                if each.breach is not None:
                    raise Over(each.step.name, each.breach)
    except Over as error:
        match program.boundary:
            case "continue":
                status = "skipped"
            case "escalate":
                status = "escalated"
                raise Over(error.step, error.limit, True) from None
            case "fail":
                status = "failed"
                raise
    finally:
        rows.append(
            (
                program.name,
                status,
                sum(each.input for each in own.calls),
                sum(each.output for each in own.calls),
                sum(each.nano for each in own.calls),
                len(own.calls),
            )
        )


def oracle(program: Steps) -> tuple[list[Row], Over | None]:
    rows: list[Row] = []
    try:
        expected(program, (), rows)
    except Over as error:
        return rows, error
    return rows, None


# -- the real thing ------------------------------------------------------------------------------


def call(part: Call) -> None:
    charge_step(part.input, part.output, f"{part.nano}e-9")


def run(program: Steps) -> None:
    with enter_step(program.definition):
        for part in program.parts:
            run(part) if isinstance(part, Steps) else call(part)


async def arun(program: Steps) -> None:
    with enter_step(program.definition):
        for part in program.parts:
            await asyncio.sleep(0)
            if isinstance(part, Steps):
                await arun(part)
            else:
                call(part)


def row_of(record: CompletedStep) -> Row:
    return (
        record.name,
        record.status,
        record.input_tokens,
        record.output_tokens,
        record.usd,
        record.llm_calls,
    )


def over_of(error: StepBudgetError) -> Over:
    facts = error.to_dict()
    return Over(str(facts["step"]), str(facts["limit"]), error.escalated)


def outcome(program: Steps) -> tuple[list[Row], Over | None]:
    with step_log() as log:
        over = None
        try:
            run(program)
        except StepBudgetError as error:
            over = over_of(error)
        return [row_of(each) for each in log.drain()], over


async def aoutcome(program: Steps) -> tuple[list[Row], Over | None]:
    with step_log() as log:
        over = None
        try:
            await arun(program)
        except StepBudgetError as error:
            over = over_of(error)
        return [row_of(each) for each in log.drain()], over


@settings(max_examples=200 * SCALE)
@given(program=programs)
def test_a_program_of_steps_records_and_raises_what_the_rules_say(program: Steps) -> None:
    assert outcome(program) == oracle(program)
    assert current_step() is None


@settings(max_examples=50 * SCALE)
@given(mixed=st.lists(programs, min_size=2, max_size=6))
def test_tasks_side_by_side_come_to_what_each_comes_to_alone(mixed: list[Steps]) -> None:
    async def main() -> list[tuple[list[Row], Over | None]]:
        return list(await asyncio.gather(*(aoutcome(each) for each in mixed)))

    assert asyncio.run(main()) == [oracle(each) for each in mixed]


@settings(max_examples=20 * SCALE)
@given(mixed=st.lists(programs, min_size=2, max_size=6))
def test_threads_side_by_side_come_to_what_each_comes_to_alone(mixed: list[Steps]) -> None:
    with ThreadPoolExecutor(len(mixed)) as pool:
        found = list(pool.map(outcome, mixed))

    assert found == [oracle(each) for each in mixed]


# -- sums ----------------------------------------------------------------------------------------


def leaves(program: Steps) -> list[Call]:
    return [
        leaf
        for part in program.parts
        for leaf in (leaves(part) if isinstance(part, Steps) else [part])
    ]


def without_limits(program: Steps) -> Steps:
    parts = (without_limits(each) if isinstance(each, Steps) else each for each in program.parts)
    return Steps(program.name, Budget(), program.boundary, tuple(parts))


@settings(max_examples=50 * SCALE)
@given(mixed=st.lists(programs, min_size=1, max_size=6))
def test_what_all_leaves_used_side_by_side_is_what_the_root_used(mixed: list[Steps]) -> None:
    free = [without_limits(each) for each in mixed]

    async def main() -> None:
        with enter_step(StepDefinition.of("root")) as root:
            assert root is not None
            await asyncio.gather(*(arun(each) for each in free))
            everything = [leaf for each in free for leaf in leaves(each)]
            (row,) = root.scope_tree.tree.rows()
            tokens = sum(each.input + each.output for each in everything)
            assert row.spent.tokens == tokens
            assert row.spent.tokens == root.usage.input_tokens + root.usage.output_tokens
            assert row.spent.usd == root.usage.usd == sum(each.nano for each in everything)
            assert row.spent.model_calls == root.usage.llm_calls == len(everything)
        records = completed_steps().drain()
        tops = [each for each in records if each.path.count("/") == 1]
        assert sum(each.llm_calls for each in tops) == records[-1].llm_calls
        assert len({each.path for each in records}) == len(records)

    contextvars.Context().run(asyncio.run, main())
