"""Limit the load on each provider: parallel requests, and one back-off that all requests share.

There is one gate per provider (address and key), shared by all models. After a refusal no request
is admitted until the wait is over. Then one is, as a probe, and each answer doubles the number, up
to the provider's `concurrency`. If all were admitted at once, all would be refused again.

A gate belongs to one event loop while requests wait at it. It has no timer: each waiting request
sleeps by itself.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tallystick.model.endpoint import Endpoint, Secret


# The wait if the server names none, doubled with every refusal in a row. It equals the first wait
# of a run between two attempts, so a run without competitors waits no longer here than it does
# anyway.
_HOLD_SECONDS = 0.25
_HOLD_SECONDS_MAX = 60.0
# Waiting requests return at random times within this span, so that two processes do not stay in
# step.
_SPREAD_SECONDS = 0.25


class Gate:
    """Admits a limited number of requests. To cancel a wait gives up that wait and no more."""

    def __init__(
        self,
        *,
        concurrency: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._concurrency = concurrency
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter
        self._inside = 0
        self._width = concurrency
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._not_before = 0.0
        self._refusals = 0
        self._epoch = 0

    @property
    def epoch(self) -> int:
        """A number that grows with every shared wait.

        Answers to requests that were begun in an older epoch are ignored: they say nothing about
        the present load.
        """
        return self._epoch

    def narrow(self, concurrency: int) -> None:
        """Lower the number of parallel requests to `concurrency`, if it is higher now.

        It never rises.
        """
        self._concurrency = min(self._concurrency, concurrency)
        self._width = min(self._width, self._concurrency)

    @asynccontextmanager
    async def admitted(self) -> AsyncIterator[None]:
        """Wait for admission, and keep it while inside. Cancelling the wait gives up the place."""
        await self._enter()
        try:
            yield
        finally:
            self._inside -= 1
            self._wake()

    def pause(self, epoch: int, *, retry_after_ms: int | None) -> None:
        """Pause all requests to this provider for `retry_after_ms`. A longer pause stays as it is.

        Without it, pause for 0.25 s, doubled with each refusal in a row, up to 60 s. Then one
        request at a time is admitted. Refusals of requests that were sent in the same epoch count
        once.
        """
        if epoch == self._epoch:
            self._epoch += 1
            self._refusals += 1
            self._width = 1
        if retry_after_ms is None:
            doubled = min(max(self._refusals - 1, 0), 16)
            seconds = min(_HOLD_SECONDS * 2.0**doubled, _HOLD_SECONDS_MAX)
        else:
            seconds = retry_after_ms / 1000
        self._not_before = max(self._not_before, self._clock() + seconds)

    def note_answer(self, epoch: int) -> None:
        """Note an answer of the provider: reset the back-off, and admit twice as many requests.

        An answer to a request of an older epoch changes nothing.
        """
        if epoch == self._epoch:
            self._refusals = 0
            self._width = min(2 * self._width, self._concurrency)
            self._wake()

    async def _enter(self) -> None:
        called = False
        try:
            while True:
                held = self._not_before - self._clock()
                if held > 0:
                    await self._sleep(held + self._jitter() * _SPREAD_SECONDS)
                elif self._inside < self._width and (called or not self._waiting):
                    self._inside += 1
                    return
                else:
                    await self._turn(first=called)
                    called = True
        except BaseException:
            # If this waiter was called and is cancelled now, the next one must be called instead.
            self._wake()
            raise

    async def _turn(self, *, first: bool) -> None:
        """Wait to be called. With `first`, wait before the others, after a call in vain."""
        turn = asyncio.get_running_loop().create_future()
        if first:
            self._waiting.appendleft(turn)
        else:
            self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
            raise

    def _wake(self) -> None:
        for _ in range(self._width - self._inside):
            if not self._waiting:
                return
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)


class Pacing:
    """The gates of a process: one for each provider, shared by all models that use it."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter
        self._gates: dict[tuple[str, Secret | None], Gate] = {}

    def gate(self, endpoint: Endpoint) -> Gate:
        """Return the gate of an endpoint's provider: one for each address and key.

        The lowest `concurrency` asked for so far applies.
        """
        which = (endpoint.origin, endpoint.key)
        gate = self._gates.get(which)
        if gate is None:
            gate = self._gates[which] = Gate(
                concurrency=endpoint.concurrency,
                clock=self._clock,
                sleep=self._sleep,
                jitter=self._jitter,
            )
        gate.narrow(endpoint.concurrency)
        return gate
