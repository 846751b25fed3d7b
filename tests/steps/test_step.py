"""Steps of a host program: nested, side by side, left in every way there is."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tallystick.core.budget.amount import Amount, BudgetExhausted
from tallystick.core.errors import UsageError
from tallystick.core.step import (
    CompletedStep,
    InvalidStep,
    StepBudgetError,
    StepDefinition,
    StepUsage,
)
from tallystick.runtime.spend.scopes import RunScopes
from tallystick.steps.active import ActiveStep, StepLog
from tallystick.steps.decorator import (
    charge_step,
    completed_steps,
    current_step,
    enter_step,
    step,
    step_log,
    step_model,
    within_step,
)


@pytest.fixture
def log() -> Iterator[StepLog]:
    with step_log() as opened:
        yield opened


def brief(records: list[CompletedStep]) -> list[tuple[str, str, int]]:
    return [(each.name, each.status, each.input_tokens) for each in records]


def here() -> ActiveStep:
    found = current_step()
    assert found is not None
    return found


@step
def ask(tokens: int = 1) -> str:
    """Ask once."""
    charge_step(tokens, 0, 0)
    return "asked"


@step
async def aask(tokens: int = 1) -> str:
    await asyncio.sleep(0)
    charge_step(tokens, 0, 0)
    await asyncio.sleep(0)
    return "asked"


# -- declaring -----------------------------------------------------------------------------------


def test_a_step_is_the_function_it_was_with_or_without_parentheses(log: StepLog) -> None:
    @step()
    def other(value: int, *, twice: bool = False) -> int:
        return value * 2 if twice else value

    assert ask(5) == "asked"
    assert (ask.__name__, ask.__doc__) == ("ask", "Ask once.")
    assert list(inspect.signature(other).parameters) == ["value", "twice"]
    assert other(4, twice=True) == 8
    assert brief(log.peek()) == [("ask", "completed", 5), ("other", "completed", 0)]


def test_an_async_function_stays_one(log: StepLog) -> None:
    assert inspect.iscoroutinefunction(aask)
    assert asyncio.run(aask(3)) == "asked"
    assert brief(log.peek()) == [("aask", "completed", 3)]


def test_a_method_is_a_step_too(log: StepLog) -> None:
    class Agent:
        @step("agent.plan")
        def plan(self, goal: str) -> str:
            charge_step(2, 0, 0)
            return f"{goal}!"

    assert Agent().plan("go") == "go!"
    assert brief(log.peek()) == [("agent.plan", "completed", 2)]


def test_what_is_no_function_with_a_name_is_refused_when_it_is_declared() -> None:
    wrong: list[Any] = [5, "ask", functools.partial(ask)]
    for function in wrong:
        with pytest.raises(InvalidStep):
            step()(function)


@pytest.mark.parametrize(
    "given",
    [
        {"budget": {"max_tokens": -1}},
        {"budget": 5},
        {"error_boundary": "skip"},
        {"model": 5},
        {"name": ""},
    ],
)
def test_a_bad_definition_is_an_error_before_anything_is_called(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        step(**given)(ask)


def test_a_coroutine_that_would_run_outside_is_refused(log: StepLog) -> None:
    async def later() -> None: ...

    @step
    def plain() -> object:
        return later()

    with pytest.raises(InvalidStep, match="async def"):
        plain()
    gc.collect()
    assert [each.status for each in log.peek()] == ["failed"]


# -- nesting -------------------------------------------------------------------------------------


def test_usage_counts_in_every_step_around(log: StepLog) -> None:
    @step
    def outer() -> None:
        charge_step(1, 0, 0)
        ask(10)
        ask(100)

    outer()
    assert brief(log.peek()) == [
        ("ask", "completed", 10),
        ("ask", "completed", 100),
        ("outer", "completed", 111),
    ]


@pytest.mark.parametrize(("outer", "inner", "named"), [(5, 50, "outer"), (50, 5, "inner")])
def test_the_tighter_limit_wins(outer: int, inner: int, named: str, log: StepLog) -> None:
    @step("inner", budget={"max_tokens": inner})
    def within() -> None:
        charge_step(6, 0, 0)

    @step("outer", budget={"max_tokens": outer})
    def around() -> None:
        within()

    with pytest.raises(StepBudgetError) as caught:
        around()
    assert caught.value.to_dict()["step"] == named


def test_where_both_are_passed_the_inner_one_is_named(log: StepLog) -> None:
    both = {"max_tokens": 5}
    definition = StepDefinition.of("f", name="outer", budget=both)

    with enter_step(definition), pytest.raises(StepBudgetError) as caught:
        step("inner", budget=both)(ask)(6)
    assert caught.value.to_dict()["step"] == "inner"


def test_the_places_that_pay_are_the_innermost_scope_and_refuse_for_all_around(
    log: StepLog,
) -> None:
    @step("inner", budget={"max_tokens": 100})
    def inner() -> None:
        run_scopes = RunScopes([here().place])
        assert run_scopes.remaining().tokens == 9
        with pytest.raises(BudgetExhausted, match="9 left in step outer"):
            run_scopes.reserve(Amount(tokens=10))
        hold = run_scopes.reserve(Amount(tokens=9))
        assert run_scopes.remaining().tokens == 0
        run_scopes.settle(hold, Amount(tokens=3))
        assert run_scopes.remaining().tokens == 6

    @step("outer", budget={"max_tokens": 10})
    def outer() -> None:
        charge_step(1, 0, 0)
        inner()
        assert RunScopes([here().place]).remaining().tokens == 6

    outer()


def test_a_path_says_which_step_it_was(log: StepLog) -> None:
    @step(key=lambda word: word)
    def keyed(word: str) -> None: ...

    @step
    def outer() -> None:
        ask()
        ask()
        keyed("a/b")
        keyed("a/b")
        keyed("c#%")

    outer()
    outer()
    paths = [each.path for each in log.drain()]
    inner = ["ask", "ask#2", "keyed[a%2Fb]", "keyed[a%2Fb]#2", "keyed[c%23%25]"]
    assert paths == [
        *(f"outer/{each}" for each in inner), "outer",
        *(f"outer#2/{each}" for each in inner), "outer#2",
    ]  # fmt: skip


@pytest.mark.parametrize("key", ["", lambda: "", lambda: 5])
def test_a_key_is_a_text(key: Any, log: StepLog) -> None:
    with pytest.raises(InvalidStep, match=r"^key: "):
        step(key=key)(lambda: None)()
    assert log.peek() == []


def test_recursion_is_nesting(log: StepLog) -> None:
    @step(budget={"max_tokens": 100})
    def down(levels: int) -> int:
        charge_step(1, 0, 0)
        return down(levels - 1) if levels else here().depth

    assert down(9) == 10
    assert [each.input_tokens for each in log.peek()] == list(range(1, 11))


# -- side by side --------------------------------------------------------------------------------


def test_fifty_steps_side_by_side_are_each_charged_their_own(log: StepLog) -> None:
    @step(budget={"max_tokens": 10_000})
    async def work(number: int) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
            charge_step(number, 1, 0, f"model {number}")
            assert here().usage.model == f"model {number}"

    async def main() -> None:
        await asyncio.gather(*(work(number) for number in range(50)))

    asyncio.run(main())
    records = sorted(log.peek(), key=lambda each: each.input_tokens)
    assert [each.input_tokens for each in records] == [5 * number for number in range(50)]
    assert {each.llm_calls for each in records} == {5}
    assert len({each.path for each in records}) == 50


def test_fifty_inside_one_share_its_limit_and_add_up(log: StepLog) -> None:
    @step(key=lambda number: str(number))
    async def work(number: int) -> None:
        await asyncio.sleep(0)
        charge_step(number, 0, 0)

    @step("all", budget={"max_tokens": sum(range(50))})
    async def everything() -> None:
        await asyncio.gather(*(work(number) for number in range(50)))

    asyncio.run(everything())
    records = log.peek()
    assert brief(records)[-1] == ("all", "completed", sum(range(50)))
    assert sorted(each.path for each in records[:-1]) == sorted(
        f"everything/work[{number}]" for number in range(50)
    )


def test_threads_do_not_see_each_other() -> None:
    barrier = threading.Barrier(16)

    @step("work", budget={"max_tokens": 1_000})
    def work(number: int) -> None:
        barrier.wait(10)
        assert here().outer is None
        for _ in range(20):
            charge_step(number, 0, 0)
        assert here().usage.input_tokens == 20 * number
        barrier.wait(10)

    def in_thread(number: int) -> list[CompletedStep]:
        work(number)
        assert current_step() is None
        return completed_steps().drain()

    with ThreadPoolExecutor(16) as pool:
        taken = list(pool.map(in_thread, range(16)))
    assert [brief(each) for each in taken] == [
        [("work", "completed", 20 * number)] for number in range(16)
    ]


def test_a_thread_that_is_given_the_context_stands_in_its_step(log: StepLog) -> None:
    @step("outer", budget={"max_tokens": 10})
    async def outer() -> None:
        await asyncio.gather(*(asyncio.to_thread(ask, 2) for _ in range(5)))
        with ThreadPoolExecutor(1) as pool:
            context = contextvars.copy_context()
            with pytest.raises(StepBudgetError):
                pool.submit(context.run, ask, 1).result()

    asyncio.run(outer())
    assert brief(log.peek())[-1] == ("outer", "completed", 11)


def test_a_function_can_be_called_as_if_from_inside_a_step(log: StepLog) -> None:
    @step("outer")
    async def outer() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(within_step(current_step(), ask), 4).result()
        assert await within_step(here(), aask)(3) == "asked"
        assert within_step(None, current_step)() is None
        assert here().name == "outer"

    asyncio.run(outer())
    assert brief(log.peek()) == [
        ("ask", "completed", 4),
        ("aask", "completed", 3),
        ("outer", "completed", 7),
    ]


def test_a_model_default_does_not_leak_between_tasks(log: StepLog) -> None:
    async def main() -> list[str | None]:
        @step(key=lambda model: model)
        async def asked(model: str) -> str | None:
            return await _slow_model()

        small = step("s", model="small")(_slow_model)
        large = step("l", model="large")(_slow_model)
        return list(await asyncio.gather(small(), large(), asked("x"), _slow_model()))

    assert asyncio.run(main()) == ["small", "large", None, None]


async def _slow_model() -> str | None:
    await asyncio.sleep(0)
    return step_model()


def test_a_task_that_outlives_its_step_is_still_paid_for_by_it_and_all_around(
    log: StepLog,
) -> None:
    async def main() -> None:
        go = asyncio.Event()
        begun: list[asyncio.Task[None]] = []

        @step("late")
        async def late() -> None:
            await go.wait()
            charge_step(7, 0, 0)

        async def bare() -> None:
            await go.wait()
            charge_step(1, 0, 0)

        @step("inner", budget={"max_tokens": 5})
        async def inner() -> None:
            async with asyncio.TaskGroup():
                begun.append(asyncio.create_task(late()))
                begun.append(asyncio.create_task(bare()))
                await asyncio.sleep(0)

        @step("outer", budget={"max_tokens": 100})
        async def outer() -> None:
            await inner()
            tree = here().scope_tree.tree
            assert [row.scope.name for row in tree.rows()] == ["outer", "inner", "late"]
            go.set()
            found = await asyncio.gather(*begun, return_exceptions=True)
            assert [str(each) for each in found] == [
                "step `inner` exceeded max_tokens budget (7 > 5)",
                "step `inner` exceeded max_tokens budget (8 > 5)",
            ]
            assert [row.scope.name for row in tree.rows()] == ["outer"]

        await outer()

    asyncio.run(main())
    assert brief(log.peek()) == [
        ("inner", "completed", 0),
        ("late", "failed", 7),
        ("outer", "completed", 8),
    ]


# -- being left ----------------------------------------------------------------------------------


def leave_by(error: BaseException) -> Callable[[], None]:
    @step(error_boundary="continue")
    def raises() -> None:
        charge_step(1, 0, 0)
        raise error

    return raises


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no"), "ValueError: no"),
        (KeyError(), "KeyError"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (SystemExit(3), "SystemExit: 3"),
        (StopIteration(5), "StopIteration: 5"),
        (GeneratorExit(), "GeneratorExit"),
    ],
)
def test_any_other_error_is_written_down_and_goes_on(
    error: BaseException, said: str, log: StepLog
) -> None:
    with pytest.raises(type(error)) as caught:
        leave_by(error)()

    assert caught.value is error
    assert [(each.status, each.error) for each in log.peek()] == [("failed", said)]
    assert current_step() is None


def test_a_step_that_is_cancelled_is_left(log: StepLog) -> None:
    async def main() -> None:
        @step(error_boundary="continue")
        async def waits() -> None:
            await asyncio.Event().wait()

        task = asyncio.create_task(waits())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert [(each.status, each.error) for each in log.peek()] == [("failed", "CancelledError")]


def test_budget_errors_of_tasks_reach_the_boundary_in_their_group(log: StepLog) -> None:
    @step("inner", budget={"max_tokens": 0})
    async def inner() -> None:
        charge_step(1, 0, 0)

    @step("outer", error_boundary="continue")
    async def outer() -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(inner())
        return "done"

    assert asyncio.run(outer()) is None
    assert [(each.name, each.status) for each in log.peek()] == [
        ("inner", "failed"),
        ("outer", "skipped"),
    ]


def test_an_escalated_group_is_one_marked_error(log: StepLog) -> None:
    @step("outer", error_boundary="escalate")
    async def outer() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(step("inner", budget={"max_tokens": 0})(aask)())

    with pytest.raises(StepBudgetError) as caught:
        asyncio.run(outer())
    assert caught.value.escalated
    assert isinstance(caught.value.__cause__, ExceptionGroup)


def test_an_async_step_keeps_to_its_boundary(log: StepLog) -> None:
    too_much = {"max_tokens": 0}

    assert asyncio.run(step(budget=too_much, error_boundary="continue")(aask)()) is None
    with pytest.raises(StepBudgetError) as caught:
        asyncio.run(step(budget=too_much, error_boundary="escalate")(aask)())
    assert caught.value.escalated
    with pytest.raises(StepBudgetError) as caught:
        asyncio.run(step(budget=too_much)(aask)())
    assert not caught.value.escalated
    statuses = [each.status for each in log.peek() if each.path.count("/") == 0]
    assert statuses == ["skipped", "escalated", "failed"]


def test_a_breach_that_one_step_survives_is_there_for_the_next(log: StepLog) -> None:
    @step("one", error_boundary="continue")
    def one() -> None:
        charge_step(6, 0, 0)

    @step("all", budget={"max_tokens": 10})
    def everything() -> list[None]:
        return [one(), one(), one()]

    with enter_step(StepDefinition.of("top", error_boundary="continue")):
        everything()
    assert [(each.name, each.status) for each in log.peek()] == [
        ("one", "completed"),
        ("one", "skipped"),
        ("one", "skipped"),
        ("all", "completed"),
        ("top", "completed"),
    ]
    assert log.peek()[-1].input_tokens == 18


def test_a_generator_that_calls_steps_leaves_none_open(log: StepLog) -> None:
    def each() -> Iterator[str]:
        for number in range(3):
            yield ask(number)

    found = []
    for value in each():
        assert current_step() is None
        found.append(value)
    assert found == ["asked"] * 3


def test_a_step_that_a_generator_holds_open_ends_with_it_wherever_that_is(log: StepLog) -> None:
    def held() -> Iterator[None]:
        with enter_step(StepDefinition.of("held")):
            yield

    @step
    def outer() -> list[Iterator[None]]:
        opened = held()
        next(opened)
        return [opened]

    (opened,) = contextvars.copy_context().run(outer)
    opened.close()  # type: ignore[attr-defined]

    assert current_step() is None
    assert [(each.name, each.status) for each in log.peek()] == [
        ("outer", "completed"),
        ("held", "failed"),
    ]


# -- logs ----------------------------------------------------------------------------------------


def test_a_context_has_a_log_from_its_first_step_on() -> None:
    def fresh() -> list[CompletedStep]:
        ask(3)
        return completed_steps().drain()

    assert brief(contextvars.Context().run(fresh)) == [("ask", "completed", 3)]
    assert brief(contextvars.Context().run(fresh)) == [("ask", "completed", 3)]


def test_a_log_that_is_opened_inside_has_what_is_inside(log: StepLog) -> None:
    @step
    def outer() -> list[CompletedStep]:
        ask(1)
        with step_log() as inside:
            ask(2)
        ask(3)
        return inside.peek()

    assert brief(outer()) == [("ask", "completed", 2)]
    assert brief(log.peek()) == [
        ("ask", "completed", 1),
        ("ask", "completed", 3),
        ("outer", "completed", 6),
    ]


def test_a_log_that_nobody_drains_keeps_the_last_and_says_what_it_lost() -> None:
    log = StepLog(records_max=3)
    record = CompletedStep.of(StepDefinition.of("f"), StepUsage(), status="completed")
    for _ in range(5):
        log.add(record)

    assert len(log.peek()) == 3
    assert log.dropped == 2
    log.reset()
    assert (log.peek(), log.dropped) == ([], 0)


def test_draining_from_many_threads_loses_and_doubles_nothing() -> None:
    log = StepLog(records_max=100_000)
    taken: list[CompletedStep] = []

    def work(number: int) -> None:
        for count in range(50):
            record = CompletedStep.of(
                StepDefinition.of("f"), StepUsage(), status="completed", path=f"{number}.{count}"
            )
            log.add(record)
            taken.extend(log.drain())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    taken.extend(log.drain())
    assert len(taken) == len({each.path for each in taken}) == 400
