"""How fast a provider is asked: so many at once, and together off its back when it says so.

One gate stands before each provider (address and key), whoever asks. After a refusal nobody is let
through before its time; then one is, to probe, and each answer after that lets twice as many in.
Everybody at once would be refused at once.

A gate belongs to one event loop while anybody waits at it. It holds no timer: who waits, sleeps.
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


# Without a word from the server: doubled with every refusal in a row. It is the wait of one run
# between two attempts, so that a run which asks alone waits no longer here than it does anyway.
_HOLD_SECONDS = 0.25
_HOLD_SECONDS_MAX = 60.0
# Those who waited come back spread over so long, so that two processes do not keep in step.
_SPREAD_SECONDS = 0.25


class Gate:
    """Lets so many in at once. Cancelling a wait gives up the wait and nothing else."""

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
        """Grows with every common wait. What was begun in an older one says nothing of this one."""
        return self._epoch

    def narrow(self, concurrency: int) -> None:
        """Let at most so many in from now on."""
        self._concurrency = min(self._concurrency, concurrency)
        self._width = min(self._width, self._concurrency)

    @asynccontextmanager
    async def admitted(self) -> AsyncIterator[None]:
        """Wait for a place and hold it while inside."""
        await self._enter()
        try:
            yield
        finally:
            self._inside -= 1
            self._wake()

    def refused(self, epoch: int, *, retry_after_ms: int | None) -> None:
        """The provider wants to be left alone: so long, or as long as experience says."""
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

    def passed(self, epoch: int) -> None:
        """The provider answered: twice as many may ask."""
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
            # Whoever was called and goes away passes the call on.
            self._wake()
            raise

    async def _turn(self, *, first: bool) -> None:
        """Wait to be called; who was called in vain stays ahead of the others."""
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
    """The gates of a process: one for each provider, shared by all models that ask it."""

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
        """The gate of an endpoint's provider. Where two ask for different widths, the less wins."""
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
