"""Work that a step hands to threads, pools, tasks and callbacks: the step pays for it, always."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest

from tallystick.core.step import InvalidStep, StepBudgetError
from tallystick.steps import (
    ActiveStep,
    StepLog,
    charge_step,
    current_step,
    step,
    step_log,
    within_step,
)

Work = Callable[..., None]
Way = Callable[[Work], None]
_TOKENS = 6


@step
def entered() -> None:
    """Have steps follow threads from now on."""


@pytest.fixture
def log() -> Iterator[StepLog]:
    with step_log() as opened:
        yield opened


@pytest.fixture(scope="module")
def older_pool() -> Iterator[ThreadPoolExecutor]:
    """A pool whose threads are older than every step."""
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda each: each, range(20))) == list(range(20))
        yield pool


def spent(log: StepLog) -> dict[str, int]:
    return {each.name: each.input_tokens for each in log.peek()}


# -- ways to hand work over ----------------------------------------------------------------------


def by_submit(work: Work) -> None:
    with ThreadPoolExecutor(1) as pool:
        for future in [pool.submit(work), pool.submit(work)]:
            future.result()


def by_map(work: Work) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda number: work(), range(2)))


def by_thread(work: Work) -> None:
    for each in [threading.Thread(target=work), threading.Thread(target=work)]:
        each.start()
        each.join()


def by_a_class_of_thread(work: Work) -> None:
    class Worker(threading.Thread):
        def run(self) -> None:
            work()
            work()

    worker = Worker()
    worker.start()
    worker.join()


def by_timer(work: Work) -> None:
    for each in [threading.Timer(0.001, work), threading.Timer(0.001, work)]:
        each.start()
        each.join()


def by_a_thread_of_a_thread(work: Work) -> None:
    by_thread_once(lambda: by_thread(work))


def by_thread_once(work: Work) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def by_the_initializer_of_a_pool(work: Work) -> None:
    with ThreadPoolExecutor(1, initializer=work) as pool:
        pool.submit(work).result()


def by_callback_of_a_future(work: Work) -> None:
    go = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        future: Future[bool] = pool.submit(go.wait, 10)
        future.add_done_callback(lambda done: work())
        future.add_done_callback(lambda done: work())
        go.set()


def by_thread_pool(ask: Callable[[ThreadPool, Work], object]) -> Way:
    def way(work: Work) -> None:
        with ThreadPool(1) as pool:
            ask(pool, work)
            pool.close()
            pool.join()

    return way


def by_loop(hand: Callable[[asyncio.AbstractEventLoop, Work], Any]) -> Way:
    async def main(work: Work) -> None:
        await hand(asyncio.get_running_loop(), work)

    return lambda work: asyncio.run(main(work))


async def to_thread(loop: asyncio.AbstractEventLoop, work: Work) -> None:
    await asyncio.gather(asyncio.to_thread(work), asyncio.to_thread(work))


async def in_default_executor(loop: asyncio.AbstractEventLoop, work: Work) -> None:
    await loop.run_in_executor(None, work)
    await loop.run_in_executor(None, work)


async def in_tasks(loop: asyncio.AbstractEventLoop, work: Work) -> None:
    async def asked() -> None:
        await asyncio.sleep(0)
        work()

    async with asyncio.TaskGroup() as group:
        group.create_task(asked())
        group.create_task(asked())


async def by_callbacks_of_the_loop(loop: asyncio.AbstractEventLoop, work: Work) -> None:
    loop.call_soon(work)
    loop.call_later(0.001, work)
    await asyncio.sleep(0.05)


async def threadsafe(loop: asyncio.AbstractEventLoop, work: Work) -> None:
    async def asked() -> None:
        work()

    def other_thread() -> None:
        asyncio.run_coroutine_threadsafe(asked(), loop).result(10)
        loop.call_soon_threadsafe(work)

    await asyncio.to_thread(other_thread)
    await asyncio.sleep(0.01)


WAYS: dict[str, Way] = {
    "ThreadPoolExecutor.submit": by_submit,
    "ThreadPoolExecutor.map": by_map,
    "an initializer": by_the_initializer_of_a_pool,
    "Thread": by_thread,
    "a class of Thread": by_a_class_of_thread,
    "Timer": by_timer,
    "a thread of a thread": by_a_thread_of_a_thread,
    "Future.add_done_callback": by_callback_of_a_future,
    "ThreadPool.apply": by_thread_pool(lambda pool, work: [pool.apply(work), pool.apply(work)]),
    "ThreadPool.apply_async": by_thread_pool(
        lambda pool, work: [pool.apply_async(work), pool.apply_async(work)]
    ),
    "ThreadPool.map": by_thread_pool(lambda pool, work: pool.map(lambda each: work(), [1, 2])),
    "ThreadPool.map_async": by_thread_pool(
        lambda pool, work: pool.map_async(lambda each: work(), [1, 2])
    ),
    "ThreadPool.starmap": by_thread_pool(lambda pool, work: pool.starmap(work, [(), ()])),
    "ThreadPool.starmap_async": by_thread_pool(
        lambda pool, work: pool.starmap_async(work, [(), ()])
    ),
    "ThreadPool.imap": by_thread_pool(
        lambda pool, work: list(pool.imap(lambda each: work(), [1, 2]))
    ),
    "ThreadPool.imap_unordered": by_thread_pool(
        lambda pool, work: list(pool.imap_unordered(lambda each: work(), [1, 2]))
    ),
    "a callback of ThreadPool": by_thread_pool(
        lambda pool, work: pool.apply_async(work, callback=lambda done: work())
    ),
    "asyncio.to_thread": by_loop(to_thread),
    "run_in_executor": by_loop(in_default_executor),
    "tasks": by_loop(in_tasks),
    "callbacks of the loop": by_loop(by_callbacks_of_the_loop),
    "run_coroutine_threadsafe": by_loop(threadsafe),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_work_that_is_handed_over_is_paid_by_the_step_that_hands_it_over(
    way: Way, log: StepLog
) -> None:
    refused: list[str] = []

    def work() -> None:
        try:
            charge_step(_TOKENS, 0, 0)
        except StepBudgetError as error:
            refused.append(str(error))

    @step("outer", budget={"max_tokens": 1_000})
    def outer() -> None:
        @step("inner", budget={"max_tokens": 10})
        def inner() -> None:
            way(work)

        inner()

    outer()

    assert spent(log) == {"inner": 2 * _TOKENS, "outer": 2 * _TOKENS}
    assert refused == ["step `inner` exceeded max_tokens budget (12 > 10)"]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_work_that_is_handed_over_outside_of_steps_is_outside(way: Way) -> None:
    seen: list[ActiveStep | None] = []
    entered()

    way(lambda: seen.append(current_step()))

    assert seen == [None, None]


def test_a_pool_that_is_older_than_the_step_is_paid_by_it(
    older_pool: ThreadPoolExecutor, log: StepLog
) -> None:
    @step("plan", budget={"max_tokens": 10})
    def plan() -> None:
        older_pool.submit(charge_step, _TOKENS, 0, 0).result()
        with pytest.raises(StepBudgetError):
            older_pool.submit(charge_step, _TOKENS, 0, 0).result()

    plan()
    assert spent(log) == {"plan": 2 * _TOKENS}


def test_a_pool_that_a_step_made_works_for_others_after_it(log: StepLog) -> None:
    pools: list[Executor] = []

    def work() -> str:
        active = current_step()
        charge_step(_TOKENS, 0, 0)
        return "none" if active is None else active.name

    @step("first", budget={"max_tokens": 10})
    def first() -> str:
        pools.append(ThreadPoolExecutor(1))
        return pools[0].submit(work).result()

    @step("second", budget={"max_tokens": 10})
    def second() -> str:
        return pools[0].submit(work).result()

    said = [first(), second(), pools[0].submit(work).result()]
    pools[0].shutdown()

    assert said == ["first", "second", "none"]
    assert spent(log) == {"first": _TOKENS, "second": _TOKENS}


def test_many_threads_of_one_step_hold_its_limit_together(log: StepLog) -> None:
    refused = threading.Semaphore(0)

    def work(number: int) -> None:
        try:
            charge_step(1, 0, 0)
        except StepBudgetError:
            refused.release()

    @step("wide", budget={"max_tokens": 300})
    def wide() -> None:
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(work, range(400)))

    wide()
    assert spent(log) == {"wide": 400}
    assert sum(refused.acquire(blocking=False) for _ in range(400)) == 100


def test_a_step_that_is_entered_in_a_thread_stands_inside_the_one_that_started_it(
    log: StepLog,
) -> None:
    @step("part", budget={"max_tokens": 100})
    def part(number: int) -> str:
        charge_step(number, 0, 0)
        found = current_step()
        assert found is not None
        return found.path

    @step("whole", budget={"max_tokens": 5})
    def whole() -> str:
        with ThreadPoolExecutor(1) as pool:
            path = pool.submit(part, 4).result()
            with pytest.raises(StepBudgetError, match="`whole`"):
                pool.submit(part, 4).result()
            return path

    assert whole().endswith("/part")
    assert [(each.name, each.status) for each in log.peek()] == [
        ("part", "completed"),
        ("part", "failed"),
        ("whole", "completed"),
    ]


# -- work that outlives its step -----------------------------------------------------------------


def test_a_thread_that_outlives_its_step_is_paid_by_it_and_by_those_around(log: StepLog) -> None:
    may_go = threading.Event()
    said: list[str] = []

    def late() -> None:
        may_go.wait(10)
        for _ in range(2):
            try:
                charge_step(_TOKENS, 0, 0)
            except StepBudgetError as error:
                said.append(str(error))

    @step("inner", budget={"max_tokens": 10})
    def inner() -> threading.Thread:
        charge_step(1, 0, 0)
        thread = threading.Thread(target=late)
        thread.start()
        return thread

    @step("outer", budget={"max_tokens": 100})
    def outer() -> None:
        thread = inner()
        may_go.set()
        thread.join(10)
        found = current_step()
        assert found is not None
        assert [row.scope.name for row in found.rows()] == ["outer"]

    outer()

    # The receipt of the inner one was written before: what came later is in those around.
    assert spent(log) == {"inner": 1, "outer": 1 + 2 * _TOKENS}
    assert said == ["step `inner` exceeded max_tokens budget (13 > 10)"]


def test_a_task_that_outlives_the_outermost_step_is_not_free(log: StepLog) -> None:
    async def main() -> list[BaseException | None]:
        go = asyncio.Event()

        async def late() -> None:
            await go.wait()
            charge_step(_TOKENS, 0, 0)

        @step("plan", budget={"max_tokens": 10})
        async def plan() -> list[asyncio.Task[None]]:
            return [asyncio.create_task(late()), asyncio.create_task(late())]

        tasks = await plan()
        assert current_step() is None
        go.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, second = asyncio.run(main())

    assert first is None
    assert str(second) == "step `plan` exceeded max_tokens budget (12 > 10)"


def test_a_step_that_was_used_up_pays_nothing_more_for_what_outlives_it(log: StepLog) -> None:
    may_go = threading.Event()
    errors: list[str] = []

    def late() -> None:
        may_go.wait(10)
        try:
            inside()
        except StepBudgetError as error:
            errors.append(str(error))

    @step("inside")
    def inside() -> None:
        charge_step(0, 1, 0)

    @step("plan", budget={"max_tokens": 10})
    def plan() -> threading.Thread:
        thread = threading.Thread(target=late)
        thread.start()
        charge_step(10, 0, 0)
        return thread

    thread = plan()
    may_go.set()
    thread.join(10)

    assert errors == ["step `plan` exceeded max_tokens budget (11 > 10)"]


def test_work_is_taken_out_of_its_step_by_name(log: StepLog) -> None:
    seen: list[ActiveStep | None] = []

    @step("plan", budget={"max_tokens": 0})
    def plan() -> None:
        def look() -> None:
            seen.append(current_step())

        by_thread_once(within_step(None, look))

    plan()
    assert seen == [None]


def test_a_thread_that_ended_keeps_nothing_of_its_step_alive() -> None:
    threads: list[threading.Thread] = []

    @step("plan")
    def plan() -> None:
        threads.append(threading.Thread(target=lambda: None))
        threads[0].start()
        threads[0].join()

    plan()
    assert "run" not in vars(threads[0])


# -- other processes -----------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_is_refused_by_name_and_not_free(log: StepLog) -> None:
    @step("plan", budget={"max_tokens": 10})
    def plan() -> bytes:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                charge_step(1, 0, 0)
                os.write(writing, b"free")
            except InvalidStep as error:
                os.write(writing, str(error).encode())
            finally:
                os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)
        with os.fdopen(reading, "rb") as said:
            return said.read()

    assert b"plan: it was entered in process" in plan()
    assert spent(log) == {"plan": 0}
