"""Calls that wait for money which other calls hold: in line, woken, and served in order."""

from __future__ import annotations

import asyncio
import functools
import math
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, ParamSpec

import pytest

from tallystick.core.budget.amount import Amount, Budget, BudgetExhausted
from tallystick.ledger.scopes import SharedScopes
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.spend.line import Waiter, WaitingLines
from tallystick.runtime.spend.scopes import (
    DEPLOYMENT,
    Hold,
    MoneyWait,
    RunScopes,
    ScopeRef,
    ScopeTree,
    SharedCap,
)

WAITERS = 50
P = ParamSpec("P")


def on_a_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    @functools.wraps(test)
    def run(*args: P.args, **more: P.kwargs) -> None:
        asyncio.run(test(*args, **more))

    return run


class Counted(RunScopes):
    """Counts how often somebody asks for money."""

    looks = 0

    def reserve(self, worst: Amount, *, usd_waived: bool = False) -> Hold:
        self.looks += 1
        return super().reserve(worst, usd_waived=usd_waived)


def tree(tokens: int) -> ScopeTree:
    made = ScopeTree()
    made.tree.enter("s", parent=None, budget=Budget(tokens=tokens), kind="session", name="")
    return made


async def paid(
    scopes: RunScopes, tokens: int, *, ends_at: float = math.inf, seen: Callable[[], None]
) -> Hold:
    with MoneyWait(scopes, ends_at=ends_at) as waiting:
        while True:
            await waiting.turn()
            try:
                hold = scopes.reserve(Amount(tokens=tokens))
            except BudgetExhausted as error:
                if not waiting.stays(error):
                    raise
                continue
            seen()
            return hold


@on_a_loop
async def test_fifty_waiters_are_served_in_the_order_they_came_and_none_polls() -> None:
    scopes = Counted([ScopeRef(tree(10), "s")])
    served: list[int] = []
    first = scopes.reserve(Amount(tokens=10))

    async def one(number: int) -> None:
        # The sizes differ: a small one does not pass a large one that came before it.
        hold = await paid(scopes, 1 + number % 10, seen=lambda: served.append(number))
        await asyncio.sleep(0)
        scopes.settle(hold, Amount())

    tasks = [asyncio.create_task(one(number)) for number in range(WAITERS)]
    await asyncio.sleep(0.1)
    before = scopes.looks
    await asyncio.sleep(0.3)
    assert scopes.looks == before
    assert served == []
    scopes.release(first)
    await asyncio.gather(*tasks)

    assert served == list(range(WAITERS))
    # About a look when it comes and one or two when it is called.
    assert scopes.looks < 5 * WAITERS


@on_a_loop
async def test_who_comes_later_does_not_pass_those_in_line() -> None:
    scopes = RunScopes([ScopeRef(tree(10), "s")])
    served: list[str] = []
    holds = [scopes.reserve(Amount(tokens=4)), scopes.reserve(Amount(tokens=4))]
    large = asyncio.create_task(paid(scopes, 6, seen=lambda: served.append("large")))
    await asyncio.sleep(0.01)
    # Two tokens are free, and it needs only one.
    small = asyncio.create_task(paid(scopes, 1, seen=lambda: served.append("small")))
    await asyncio.sleep(0.01)
    assert served == []

    scopes.release(holds[0])
    scopes.release(await large)
    await small

    assert served == ["large", "small"]


@on_a_loop
async def test_what_nobody_holds_is_refused_and_the_next_in_line_is_called() -> None:
    scopes = RunScopes([ScopeRef(tree(10), "s")])
    held = scopes.reserve(Amount(tokens=10))
    too_much = asyncio.create_task(paid(scopes, 11, seen=lambda: None))
    enough = asyncio.create_task(paid(scopes, 10, seen=lambda: None))
    await asyncio.sleep(0.01)

    scopes.release(held)

    with pytest.raises(BudgetExhausted):
        await too_much
    assert (await enough).open


@on_a_loop
async def test_one_that_is_cancelled_leaves_the_line_to_the_next() -> None:
    scopes = RunScopes([ScopeRef(tree(10), "s")])
    held = scopes.reserve(Amount(tokens=10))
    left = asyncio.create_task(paid(scopes, 10, seen=lambda: None))
    stays = asyncio.create_task(paid(scopes, 10, seen=lambda: None))
    await asyncio.sleep(0.01)

    left.cancel()
    scopes.release(held)

    assert (await stays).open
    with pytest.raises(asyncio.CancelledError):
        await left


@on_a_loop
async def test_after_its_time_a_call_is_refused_although_others_hold_the_money() -> None:
    scopes = RunScopes([ScopeRef(tree(10), "s")])
    scopes.reserve(Amount(tokens=10))

    with pytest.raises(BudgetExhausted):
        await paid(scopes, 1, ends_at=time.monotonic() + 0.05, seen=lambda: None)


def test_a_call_on_another_event_loop_is_woken() -> None:
    budget = tree(10)
    scopes = RunScopes([ScopeRef(budget, "s")])
    held = scopes.reserve(Amount(tokens=10))
    begun = threading.Event()
    took: list[float] = []

    async def wait() -> None:
        begun.set()
        await paid(scopes, 10, seen=lambda: took.append(time.monotonic()))

    thread = threading.Thread(target=lambda: asyncio.run(wait()))
    thread.start()
    assert begun.wait(5)
    time.sleep(0.1)
    released = time.monotonic()
    scopes.release(held)
    thread.join(5)

    assert took[0] - released < 1


@on_a_loop
async def test_a_line_goes_past_a_call_whose_loop_is_closed() -> None:
    lines = WaitingLines()
    asyncio_loop = asyncio.new_event_loop()

    async def join() -> None:
        lines.join("s", Waiter())

    await asyncio.to_thread(lambda: asyncio_loop.run_until_complete(join()))
    asyncio_loop.close()
    here = Waiter()
    lines.join("s", here)

    lines.wake(["s"])

    await asyncio.wait_for(here.wait(5), 1)
    assert lines.is_first("s", here)


@on_a_loop
async def test_what_another_process_holds_is_looked_at_by_the_first_alone_and_ever_less(
    tmp_path: Path,
) -> None:
    with (
        SqliteLedger(tmp_path / "ledger.db") as ledger,
        SharedScopes(ledger.file) as others,
    ):
        mine = SharedScopes(ledger.file)
        mine.record_total(DEPLOYMENT, Budget(tokens=10))
        try:
            elsewhere = SharedCap(others, run="elsewhere")
            number = elsewhere.reserve(Amount(tokens=10), usd_waived=False)
            assert number is not None
            scopes = Counted([], SharedCap(mine, run="here"))
            tasks = [
                asyncio.create_task(paid(scopes, 1, seen=lambda: None)) for _ in range(WAITERS)
            ]
            await asyncio.sleep(1.5)
            # Only the first looks, after 20, 40, 80 ... ms. Those behind it have not looked at all.
            assert 5 <= scopes.looks <= 12

            elsewhere.release(number)
            await asyncio.wait_for(asyncio.gather(*tasks[:10]), 5)
            assert mine.remaining(DEPLOYMENT).tokens == 0
            for task in tasks[10:]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            mine.close()
