"""Programs of steps that go on as others than they were, or in another order."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.steps.step_processes import (
    CALL_NANO,
    Lives,
    Trip,
    begin,
    chains_in,
    journal,
    left,
    paid,
    provider,
    resume,
    told,
)

from tallystick.cli.errors import exit_code_of
from tallystick.cli.exit_codes import DIVERGED
from tallystick.client import Session
from tallystick.core.charge import RunLimits
from tallystick.core.records import ModelReplied, Record, RunEnded, StepEntered
from tallystick.core.step import StepsDiverged
from tallystick.runtime.context.inputs import given_text
from tallystick.runtime.runs.history import records_of, runs_inside
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.steps.decorator import current_step, step, step_log

# They take long: CI runs them.
pytestmark = pytest.mark.slow


@pytest.fixture
def lives(sandbox: WasmSandbox) -> Lives:
    return Lives(sandbox)


# -- what is another -----------------------------------------------------------------------------


def test_a_step_with_other_arguments_runs_again_and_the_record_has_the_new_ones(
    lives: Lives,
) -> None:
    called: list[int] = []

    def program(session: Session, size: int) -> object:
        @step
        def inner(size: int) -> str:
            called.append(size)
            return f"{session.run('task a in 1').answer} {size}"

        @step
        def plan() -> object:
            return [inner(size), session.run("task b in 1").answer]

        return plan()

    begin(lives, lambda session: program(session, 1))
    after = lives.cut(journal(lives).where(left("plan/inner")))

    assert resume(after, lambda session: program(session, 2)) == ["a done 2", "b done"]
    assert len(after.provider.keys) == 1
    assert resume(after, lambda session: program(session, 2)) == ["a done 2", "b done"]
    assert called == [1, 2]
    assert told(after.ledger, after.chain) == [
        "+plan",
        "+plan/inner",
        "-plan/inner completed",
        "+plan/inner",
        "-plan/inner completed",
        "-plan completed",
    ]


ASKED: dict[str, Any] = {"goal": "task a in 2", "inputs": [given_text("one", name="a")]}


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("goal", {"goal": "task b in 2"}),
        ("inputs", {"inputs": [given_text("two", name="a")]}),
        ("inputs", {"inputs": [given_text("one", name="b")]}),
        ("inputs", {"inputs": []}),
        ("limits", {"limits": RunLimits(turns=7)}),
        ("grants", {"grants": ["attachments.read"]}),
        ("seed", {"seed": 1}),
        ("temperature", {"temperature": 0.5}),
        ("model", {"model": "fake:other"}),
    ],
)
@pytest.mark.parametrize("over", [True, False], ids=["ended", "cut off"])
def test_a_run_that_is_asked_for_with_something_else_is_a_divergence_and_nothing_is_paid(
    lives: Lives, field: str, other: dict[str, Any], over: bool
) -> None:
    def program(session: Session, **more: Any) -> object:
        asked = {**ASKED, **more}
        goal = asked.pop("goal")

        @step
        def inner() -> str | None:
            session.run("task zero in 1")
            return session.run(goal, **asked).answer

        @step
        def plan() -> tuple[str | None]:
            return (inner(),)

        return plan()

    begin(lives, program)
    kind: type[Record] = RunEnded if over else ModelReplied
    seen = 0

    def second(_: str, record: Record) -> bool:
        nonlocal seen
        seen += isinstance(record, kind)
        return seen == 2

    after = lives.cut(journal(lives).where(second))
    more = provider(name="fake:other")
    with (
        after.session(models={"fake:other": more}) as session,
        step_log(),
        session.resume_steps(after.chain),
        pytest.raises(StepsDiverged) as caught,
    ):
        program(session, **other)

    error = caught.value
    assert (error.step, error.field, error.chain) == ("plan/inner", field, after.chain)
    assert error.run in runs_inside(after.ledger, after.chain)
    assert error.recorded != error.now
    assert all(part in str(error) for part in ("plan/inner", str(error.run), field))
    assert exit_code_of(error) == DIVERGED
    assert after.provider.keys == more.keys == []
    # The program that it was goes on all the same.
    assert resume(after, program) == ("a done",)
    assert paid(after) == (3, 3 * CALL_NANO)


def test_the_outermost_step_is_the_one_of_the_chain(lives: Lives) -> None:
    begin(lives, Trip())
    with lives.session() as session:

        @step
        def other() -> None: ...

        with session.resume_steps(lives.chain), pytest.raises(StepsDiverged) as caught:
            other()
        assert current_step() is None

    assert (caught.value.field, caught.value.recorded) == ("step", "trip")


def test_the_second_time_that_a_step_was_called_goes_on_as_the_second(lives: Lives) -> None:
    def program(session: Session) -> Callable[[str], object]:
        @step(key=lambda name: f"k/{name}")
        def plan(name: str) -> list[str | None]:
            return [session.run(f"task {each} in 1").answer for each in (name, "end")]

        return plan

    with lives.session() as session, step_log():
        program(session)("a")
        program(session)("a")
    first, second = chains_in(lives.ledger)
    ended = journal(lives).where(
        lambda run, record: isinstance(record, StepEntered) and record.path.endswith("#2")
    )
    after = lives.cut(ended + 3)
    with after.session() as session, step_log(), session.resume_steps(second):
        assert program(session)("a") == ["a done", "end done"]

    assert told(after.ledger, second) == ["+plan[k%2Fa]#2", "-plan[k%2Fa]#2 completed"]
    assert len(after.provider.keys) == 1
    assert told(after.ledger, first)[-1] == "-plan[k%2Fa] completed"


# -- side by side --------------------------------------------------------------------------------


def keyed(session: Session, order: list[int]) -> object:
    @step(key=lambda number: str(number))
    async def one(number: int) -> str | None:
        return (await session.arun(f"task t{number} in 2")).answer

    @step
    async def plan() -> list[str | None]:
        found = await asyncio.gather(*(one(number) for number in order))
        return sorted(str(each) for each in found)  # type: ignore[return-value]

    return asyncio.run(plan())


def unkeyed(session: Session, order: list[int]) -> object:
    @step
    async def plan() -> list[str]:
        asked = (session.arun(f"task t{number % 3} in 2", seed=number // 3) for number in order)
        return sorted(str(each.answer) for each in await asyncio.gather(*asked))

    return asyncio.run(plan())


def threaded(session: Session, order: list[int]) -> object:
    @step
    def plan() -> list[str]:
        found: list[str] = []

        def one(number: int) -> None:
            found.append(str(session.run(f"task t{number % 3} in 2", seed=number // 3).answer))

        threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(one, number))
            for number in order
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        return sorted(found)

    return plan()


@pytest.mark.parametrize("program", [keyed, unkeyed, threaded])
def test_the_order_in_which_siblings_start_does_not_matter(
    lives: Lives, program: Callable[..., object]
) -> None:
    order = list(range(6))
    whole = begin(lives, lambda session: program(session, order))
    writes = len(journal(lives).journal)

    for at in range(1, writes + 1, 3):
        after = lives.cut(at)
        known = {
            f"{run}-{each.intent}"
            for run in runs_inside(after.ledger, after.chain)
            for each in records_of(after.ledger, run)
            if isinstance(each, ModelReplied)
        }
        turned = order[at % 6 :] + order[: at % 6]
        assert resume(after, functools.partial(program, order=turned)) == whole
        assert not known & set(after.provider.keys)
        assert paid(after) == (12, 12 * CALL_NANO)
        assert len(runs_inside(after.ledger, after.chain)) == 6


def test_a_sibling_that_is_asked_for_under_other_limits_is_a_divergence(lives: Lives) -> None:
    def program(session: Session, turns: int) -> object:
        @step
        async def plan() -> int:
            limits = RunLimits(turns=turns)
            asked = (session.arun(f"task t{each} in 1", limits=limits) for each in range(3))
            return len(await asyncio.gather(*asked))

        return asyncio.run(plan())

    begin(lives, lambda session: program(session, 3))
    after = lives.cut(len(journal(lives).journal) - 1)

    with pytest.raises(StepsDiverged) as caught:
        resume(after, lambda session: program(session, 4))
    assert caught.value.field == "limits"
    assert after.provider.keys == []
