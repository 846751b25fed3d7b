"""Gates: so many at once, and a common wait. Time is a number here; nothing sleeps."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.model.endpoint import Endpoint, Secret
from tallystick.model.pacing import Gate, Pacing

KEYS = (None, Secret("one-key-one-key"), Secret("two-key-two-key"))


class Time:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        until = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, len(self.slept), until))
        await until

    async def go(self, seconds: float) -> None:
        end = self.now + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            self.now, _, until = heapq.heappop(self._sleepers)
            if not until.done():
                until.set_result(None)
            await settled()
        self.now = end
        await settled()


async def settled() -> None:
    for _ in range(12):
        await asyncio.sleep(0)


class Guests:
    """People who come to a gate and stay until they are sent away."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.inside: list[int] = []
        self._leave: dict[int, asyncio.Event] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}

    async def come(self, *names: int) -> None:
        for name in names:
            self._leave[name] = asyncio.Event()
            self.tasks[name] = asyncio.ensure_future(self._visit(name))
            await asyncio.sleep(0)
        await settled()

    async def leave(self, *names: int) -> None:
        for name in names:
            self._leave[name].set()
        await settled()

    async def cancel(self, *names: int) -> None:
        for name in names:
            self.tasks[name].cancel()
        await settled()

    async def all_leave(self) -> None:
        for name in self._leave:
            await self.leave(name)
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)

    async def _visit(self, name: int) -> None:
        async with self.gate.admitted():
            self.inside.append(name)
            try:
                await self._leave[name].wait()
            finally:
                self.inside.remove(name)


def gate_test(
    test: Callable[[Gate, Time, Guests], Coroutine[Any, Any, None]],
) -> Callable[[], None]:
    """A test with a gate for three."""

    def run() -> None:
        async def main() -> None:
            time = Time()
            gate = Gate(concurrency=3, clock=time.clock, sleep=time.sleep, jitter=lambda: 0.0)
            guests = Guests(gate)
            await test(gate, time, guests)
            for _ in range(20):
                await time.go(100.0)
                await guests.all_leave()
            assert guests.inside == []
            assert gate._inside == 0

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


@gate_test
async def test_so_many_are_inside_and_the_others_come_in_order(
    gate: Gate, time: Time, guests: Guests
) -> None:
    await guests.come(1, 2, 3, 4, 5)
    assert guests.inside == [1, 2, 3]

    await guests.leave(2)
    assert guests.inside == [1, 3, 4]

    await guests.come(6)
    await guests.leave(1)
    assert guests.inside == [3, 4, 5]


@gate_test
async def test_cancelling_a_wait_frees_no_place_and_loses_none(
    gate: Gate, time: Time, guests: Guests
) -> None:
    await guests.come(1, 2, 3, 4, 5)
    await guests.cancel(4)
    assert guests.inside == [1, 2, 3]

    await guests.leave(1)
    assert guests.inside == [2, 3, 5]

    await guests.cancel(2)
    await guests.come(6)
    assert guests.inside == [3, 5, 6]


@gate_test
async def test_who_is_called_and_cancelled_at_once_passes_the_call_on(
    gate: Gate, time: Time, guests: Guests
) -> None:
    await guests.come(1, 2, 3, 4, 5)

    guests._leave[1].set()
    await asyncio.sleep(0)
    guests.tasks[4].cancel()
    await settled()

    assert guests.inside == [2, 3, 5]


@gate_test
async def test_after_a_refusal_nobody_is_let_in_before_its_time(
    gate: Gate, time: Time, guests: Guests
) -> None:
    gate.pause(gate.epoch, retry_after_ms=5_000)
    await guests.come(1, 2, 3)
    await time.go(4.9)
    assert guests.inside == []

    await time.go(0.2)
    assert guests.inside == [1]


@gate_test
async def test_after_the_wait_one_probes_and_each_answer_lets_twice_as_many_in(
    gate: Gate, time: Time, guests: Guests
) -> None:
    gate.pause(gate.epoch, retry_after_ms=1_000)
    await guests.come(1, 2, 3, 4)
    await time.go(2.0)
    assert len(guests.inside) == 1

    gate.note_answer(gate.epoch)
    await settled()
    assert len(guests.inside) == 2

    gate.note_answer(gate.epoch)
    await settled()
    assert len(guests.inside) == 3


@gate_test
async def test_a_probe_that_leaves_without_an_answer_is_followed_by_another(
    gate: Gate, time: Time, guests: Guests
) -> None:
    gate.pause(gate.epoch, retry_after_ms=1_000)
    await guests.come(1, 2)
    await time.go(2.0)
    (probe,) = guests.inside

    await guests.cancel(probe)

    assert guests.inside == [3 - probe]


@gate_test
async def test_without_a_word_from_the_server_the_wait_doubles_up_to_a_minute(
    gate: Gate, time: Time, guests: Guests
) -> None:
    waits = []
    for _ in range(11):
        gate.pause(gate.epoch, retry_after_ms=None)
        waits.append(gate._not_before - time.now)
        await time.go(waits[-1])

    assert waits == [0.25, 0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60]

    gate.note_answer(gate.epoch)
    gate.pause(gate.epoch, retry_after_ms=None)
    assert gate._not_before - time.now == 0.25


@gate_test
async def test_many_refusals_of_one_burst_are_one_refusal(
    gate: Gate, time: Time, guests: Guests
) -> None:
    burst = gate.epoch
    for _ in range(3):
        gate.pause(burst, retry_after_ms=None)
    assert gate._not_before - time.now == 0.25

    gate.pause(burst, retry_after_ms=7_000)
    assert round(gate._not_before - time.now) == 7


@gate_test
async def test_an_answer_to_what_was_sent_before_the_refusal_says_nothing(
    gate: Gate, time: Time, guests: Guests
) -> None:
    before = gate.epoch
    gate.pause(before, retry_after_ms=1_000)
    gate.note_answer(before)
    await guests.come(1, 2)
    await time.go(2.0)

    assert len(guests.inside) == 1


@gate_test
async def test_a_refusal_while_others_wait_in_line_holds_them_too(
    gate: Gate, time: Time, guests: Guests
) -> None:
    await guests.come(1, 2, 3, 4, 5)
    gate.pause(gate.epoch, retry_after_ms=3_000)
    await guests.leave(1, 2, 3)
    assert guests.inside == []

    await time.go(3.1)
    assert guests.inside == [4]


def test_those_who_waited_come_back_spread() -> None:
    time = Time()
    gate = Gate(concurrency=2, clock=time.clock, sleep=time.sleep, jitter=lambda: 0.5)
    gate.pause(gate.epoch, retry_after_ms=1_000)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            waiting = asyncio.ensure_future(stack.enter_async_context(gate.admitted()))
            await settled()
            await time.go(2.0)
            await waiting

    asyncio.run(main())

    assert time.slept == [pytest.approx(1.125)]


Action = tuple[str, int]
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["come", "leave", "cancel", "refused", "passed", "go"]), st.integers(0, 9)
    ),
    max_size=40,
)


@given(ACTIONS)
def test_whatever_happens_no_more_than_allowed_are_inside_and_nobody_waits_for_ever(
    actions: list[Action],
) -> None:
    async def main() -> None:
        time = Time()
        gate = Gate(concurrency=3, clock=time.clock, sleep=time.sleep, jitter=lambda: 0.5)
        guests = Guests(gate)
        for number, (action, what) in enumerate(actions):
            known = [name for name in guests.tasks if name % 10 == what]
            match action:
                case "come":
                    await guests.come(10 * number + what)
                case "leave":
                    await guests.leave(*known)
                case "cancel":
                    await guests.cancel(*known)
                case "refused":
                    gate.pause(gate.epoch - what % 2, retry_after_ms=what * 500 or None)
                case "passed":
                    gate.note_answer(gate.epoch - what % 2)
                case _:
                    await time.go(what / 2)
            assert len(guests.inside) <= 3
        await guests.leave(*guests.tasks)
        await time.go(1_000.0)
        assert all(task.done() for task in guests.tasks.values())
        assert gate._inside == 0

    asyncio.run(main())


# -- which gate ---------------------------------------------------------------------------------


def at(url: str, key: Secret | None = None, *, model: str = "m", concurrency: int = 8) -> Endpoint:
    return Endpoint(
        provider="p",
        dialect="openai",
        base_url=url,
        model=model,
        key=key,
        concurrency=concurrency,
    )


def test_models_of_one_provider_and_key_share_a_gate() -> None:
    pacing = Pacing()

    one = pacing.gate(at("https://a.example/v1", KEYS[1]))

    assert pacing.gate(at("https://A.example:443/v1/", KEYS[1], model="other")) is one
    assert pacing.gate(at("https://a.example/v1", KEYS[2])) is not one
    assert pacing.gate(at("https://a.example/v1")) is not one
    assert pacing.gate(at("https://b.example/v1", KEYS[1])) is not one
    assert Pacing().gate(at("https://a.example/v1", KEYS[1])) is not one


def test_where_two_ask_for_different_widths_the_less_wins() -> None:
    pacing = Pacing()

    gate = pacing.gate(at("https://a.example/v1", concurrency=8))
    pacing.gate(at("https://a.example/v1", concurrency=2))

    async def main() -> int:
        guests = Guests(gate)
        await guests.come(1, 2, 3)
        count = len(guests.inside)
        await guests.all_leave()
        return count

    assert asyncio.run(main()) == 2
