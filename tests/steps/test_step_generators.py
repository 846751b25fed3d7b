"""Steps that are generators, or return one: charged until they are exhausted, closed or dropped."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

import pytest

from tallystick.core.errors import TallystickError
from tallystick.core.records import ErrorBoundary
from tallystick.core.step import InvalidStep, StepBudgetError
from tallystick.steps import StepLog, charge_step, current_step, step, step_log


@pytest.fixture
def log() -> Iterator[StepLog]:
    with step_log() as opened:
        yield opened


def brief(log: StepLog) -> list[tuple[str, str, int]]:
    return [(each.name, each.status, each.input_tokens) for each in log.peek()]


def charged(value: int) -> int:
    charge_step(4, 0, 0)
    return value


def counted(most: int = 5) -> Iterator[int]:
    for number in range(most):
        yield charged(number)


def test_a_generator_is_charged_until_it_is_exhausted(log: StepLog) -> None:
    @step("count", budget={"max_tokens": 100})
    def count() -> Iterator[int]:
        yield from counted(3)

    values = count()
    assert current_step() is None
    assert brief(log) == []
    assert [(value, current_step()) for value in values] == [(0, None), (1, None), (2, None)]
    assert brief(log) == [("count", "completed", 12)]


LAZY: dict[str, Callable[[], Any]] = {
    "a generator": counted,
    "a generator expression": lambda: (charged(each) for each in range(5)),
    "map": lambda: map(charged, range(5)),
    "filter": lambda: filter(charged, range(1, 6)),
    "zip": lambda: zip(map(charged, range(5)), range(5), strict=True),
    "itertools": lambda: itertools.chain(map(charged, range(2)), map(charged, range(3))),
}


@pytest.mark.parametrize("made", LAZY.values(), ids=LAZY.keys())
def test_a_function_that_returns_what_is_computed_later_is_charged_for_it(
    made: Callable[[], Any], log: StepLog
) -> None:
    @step("later", budget={"max_tokens": 10})
    def later() -> Iterator[Any]:
        return made()  # type: ignore[no-any-return]

    values = later()
    assert len(list(itertools.islice(values, 2))) == 2
    with pytest.raises(StepBudgetError, match=r"12 > 10"):
        next(values)
    with pytest.raises(StopIteration):
        next(values)
    assert brief(log) == [("later", "failed", 12)]


def test_a_coroutine_function_that_returns_a_generator_is_charged_for_it(log: StepLog) -> None:
    @step("later")
    async def later() -> Iterator[int]:
        await asyncio.sleep(0)
        return counted(2)

    assert list(asyncio.run(later())) == [0, 1]
    assert brief(log) == [("later", "completed", 8)]


def test_the_steps_around_are_those_of_the_call_and_pay_too(log: StepLog) -> None:
    @step("each")
    def each() -> Iterator[int]:
        return counted(2)

    @step("outer", budget={"max_tokens": 7})
    def outer() -> Iterator[int]:
        return each()

    @step("consumer", budget={"max_tokens": 0})
    def consumer(values: Iterator[int]) -> None:
        assert next(values) == 0
        with pytest.raises(StepBudgetError, match=r"`outer` exceeded max_tokens budget \(8 > 7\)"):
            next(values)

    consumer(outer())
    assert brief(log) == [
        ("each", "failed", 8),
        ("outer", "failed", 8),
        ("consumer", "completed", 0),
    ]


def test_steps_between_two_values_do_not_mix_with_those_of_the_consumer(log: StepLog) -> None:
    @step("inner")
    def inner() -> Iterator[str | None]:
        found = current_step()
        yield None if found is None else found.name

    @step("outer")
    def outer() -> Iterator[str | None]:
        for value in inner():
            found = current_step()
            assert found is not None
            yield f"{found.name} {value}"

    @step("consumer")
    def consumer() -> None:
        for value in outer():
            found = current_step()
            assert found is not None
            assert (value, found.name) == ("outer inner", "consumer")

    consumer()
    assert [each.name for each in log.peek()] == ["inner", "outer", "consumer"]


def test_two_generators_side_by_side_are_each_charged_their_own(log: StepLog) -> None:
    @step("count", key=lambda most: str(most))
    def count(most: int) -> Iterator[int]:
        yield from counted(most)

    assert list(itertools.zip_longest(count(2), count(4))) == [(0, 0), (1, 1), (None, 2), (None, 3)]
    assert brief(log) == [("count", "completed", 8), ("count", "completed", 16)]


def test_a_generator_is_sent_values_and_returns_one(log: StepLog) -> None:
    @step("talk")
    def talk() -> Generator[str, str, str]:
        said = yield "hello"
        charge_step(1, 0, 0)
        try:
            said = yield f"you said {said}"
        except KeyError:
            said = yield "caught"
        return f"bye, {said}"

    values = talk()
    assert next(values) == "hello"
    assert values.send("hi") == "you said hi"
    assert values.throw(KeyError("x")) == "caught"
    with pytest.raises(StopIteration) as ended:
        values.send("ann")
    assert ended.value.value == "bye, ann"
    assert brief(log) == [("talk", "completed", 1)]


def test_a_generator_that_raises_ends_its_step(log: StepLog) -> None:
    @step("fails")
    def fails() -> Iterator[int]:
        yield 1
        raise ValueError("no")

    values = fails()
    next(values)
    with pytest.raises(ValueError, match="no"):
        next(values)
    assert [(each.status, each.error) for each in log.peek()] == [("failed", "ValueError: no")]


@pytest.mark.parametrize("boundary", ["continue", "escalate", "fail"])
def test_the_boundary_of_a_generator_decides_what_its_consumer_gets(
    boundary: ErrorBoundary, log: StepLog
) -> None:
    @step("count", budget={"max_tokens": 5}, error_boundary=boundary)
    def count() -> Iterator[int]:
        yield from counted()

    got: list[int] = []
    caught: list[StepBudgetError] = []
    try:
        got.extend(count() or ())
    except StepBudgetError as error:
        caught.append(error)

    assert got == [0]
    assert [each.escalated for each in caught] == (
        [] if boundary == "continue" else [boundary == "escalate"]
    )
    status = {"continue": "skipped", "escalate": "escalated", "fail": "failed"}[boundary]
    assert brief(log) == [("count", status, 8)]


@pytest.mark.parametrize("end", ["close", "drop", "never started"])
def test_a_generator_that_is_not_exhausted_ends_its_step_when_it_goes(
    end: str, log: StepLog
) -> None:
    cleaned = []

    @step("count")
    def count() -> Iterator[int]:
        try:
            yield from counted()
        finally:
            charge_step(1, 0, 0)
            cleaned.append(current_step())

    values: Any = count()
    if end != "never started":
        next(values)
    if end == "close":
        values.close()
        values.close()
    else:
        del values
    assert current_step() is None
    assert brief(log) == [("count", "completed", 0 if end == "never started" else 5)]
    assert len(cleaned) == (0 if end == "never started" else 1)


def test_a_generator_is_consumed_in_another_thread(log: StepLog) -> None:
    @step("count", budget={"max_tokens": 100})
    def count() -> Iterator[int]:
        yield from counted(3)

    values = count()
    first = next(values)
    rest: list[int] = []
    thread = threading.Thread(target=lambda: rest.extend(values))
    thread.start()
    thread.join()

    assert [first, *rest] == [0, 1, 2]
    assert brief(log) == [("count", "completed", 12)]


def test_a_context_manager_that_is_a_step_is_charged_to_its_end(log: StepLog) -> None:
    @contextlib.contextmanager
    @step("opened")
    def opened() -> Iterator[str]:
        charge_step(1, 0, 0)
        yield "value"
        charge_step(2, 0, 0)

    with opened() as value:
        assert value == "value"
        assert current_step() is None
    assert brief(log) == [("opened", "completed", 3)]


def test_a_generator_that_asks_itself_refuses_that_and_goes_on(log: StepLog) -> None:
    @step("loop")
    def loop() -> Iterator[str]:
        try:
            next(values)
        except ValueError as error:
            yield str(error)

    values = loop()
    assert list(values) == ["generator already executing"]
    assert brief(log) == [("loop", "completed", 0)]


def test_a_file_is_returned_as_it_is(log: StepLog, tmp_path: Any) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")

    @step
    def opened() -> Any:
        return open(tmp_path / "a.txt")

    with opened() as file:
        assert file.read() == "one\ntwo\n"


# -- async generators ----------------------------------------------------------------------------


async def acounted(most: int = 5) -> AsyncIterator[int]:
    for number in range(most):
        await asyncio.sleep(0)
        yield charged(number)


def test_an_async_generator_is_charged_until_it_is_exhausted(log: StepLog) -> None:
    @step("count", budget={"max_tokens": 100})
    async def count() -> AsyncIterator[int]:
        async for each in acounted(3):
            yield each

    async def main() -> None:
        assert [(each, current_step()) async for each in count()] == [
            (0, None),
            (1, None),
            (2, None),
        ]

    asyncio.run(main())
    assert brief(log) == [("count", "completed", 12)]


def test_a_function_that_returns_an_async_generator_is_charged_for_it(log: StepLog) -> None:
    @step("count", budget={"max_tokens": 5})
    def count() -> AsyncIterator[int]:
        return acounted()

    async def main() -> None:
        values = count()
        assert await anext(values) == 0
        with pytest.raises(StepBudgetError, match=r"8 > 5"):
            await anext(values)
        with pytest.raises(StopAsyncIteration):
            await anext(values)

    asyncio.run(main())
    assert brief(log) == [("count", "failed", 8)]


def test_an_async_generator_with_the_boundary_continue_ends(log: StepLog) -> None:
    @step("count", budget={"max_tokens": 5}, error_boundary="continue")
    async def count() -> AsyncIterator[int]:
        async for each in acounted():
            yield each

    async def main() -> list[int]:
        return [each async for each in count()]  # type: ignore[union-attr]

    assert asyncio.run(main()) == [0]
    assert brief(log) == [("count", "skipped", 8)]


def test_async_generators_of_tasks_are_each_charged_their_own(log: StepLog) -> None:
    @step("count", key=lambda most: str(most))
    async def count(most: int) -> AsyncIterator[int]:
        async for each in acounted(most):
            yield each

    async def all_of(most: int) -> list[int]:
        return [each async for each in count(most)]

    async def main() -> None:
        assert list(await asyncio.gather(all_of(1), all_of(4))) == [[0], [0, 1, 2, 3]]

    asyncio.run(main())
    assert sorted(brief(log)) == [("count", "completed", 4), ("count", "completed", 16)]


@pytest.mark.parametrize("end", ["aclose", "drop", "cancel"])
def test_an_async_generator_that_is_not_exhausted_ends_its_step(end: str, log: StepLog) -> None:
    @step("count")
    async def count() -> AsyncIterator[int]:
        yield charged(1)
        await asyncio.sleep(10)

    async def main() -> None:
        values: Any = count()
        await anext(values)
        if end == "aclose":
            await values.aclose()
            await values.aclose()
        elif end == "cancel":
            task = asyncio.ensure_future(anext(values))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            del values

    asyncio.run(main())
    status = "failed" if end == "cancel" else "completed"
    assert brief(log) == [("count", status, 4)]


# -- what cannot be charged ----------------------------------------------------------------------


def test_a_coroutine_that_is_returned_is_refused_by_name(log: StepLog) -> None:
    async def inner() -> None: ...

    @step
    def plain() -> object:
        return inner()

    @step
    async def awaited() -> object:
        return inner()

    for call in (plain, lambda: asyncio.run(awaited())):
        with pytest.raises(InvalidStep, match="use async def") as caught:
            call()
        assert isinstance(caught.value, TallystickError)
