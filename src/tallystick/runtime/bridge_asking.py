"""How a request of the bridge is asked: within its token, side by side, and not longer than it may.

The bridge tells whoever waits; what is asked writes down by itself how it ended.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from tallystick.runtime.bridge_limits import Pace
from tallystick.runtime.bridge_protocol import (
    BridgeAnswer,
    BridgeLeft,
    BridgeQuery,
    BridgeRefused,
    refused_by,
)
from tallystick.runtime.bridge_tokens import TokenScope

__all__ = ["Ask", "Asking", "Outcome"]

Ask = Callable[[BridgeQuery], Awaitable[BridgeAnswer]]
Outcome = BridgeAnswer | BridgeRefused
_Task = asyncio.Future[BridgeAnswer]
_ENDED = "the run was cancelled, or the token revoked"


@dataclass(eq=False, kw_only=True)
class Asking:
    """How the holders of one token ask, and what they have under way."""

    scope: TokenScope
    ask: Ask | None
    pace: Pace
    slots: asyncio.Semaphore
    tasks: set[_Task] = field(default_factory=set)

    def check(self) -> None:
        """Raise what is in the way of any request."""
        scope = self.scope
        if scope.depth > scope.depth_max:
            said = f"{scope.depth} runs stand above this one; at most {scope.depth_max} may"
            raise BridgeRefused("RecursionDepthExceeded", said)
        if self.ask is None:
            raise BridgeRefused("LlmNotConfigured", "there is no model to ask here")

    def leave(self) -> None:
        """Cancel what is under way."""
        for task in tuple(self.tasks):
            task.cancel()

    async def enter(self, *, ends_at: float) -> None:
        """Wait for a place among the requests that the token has under way."""
        try:
            async with asyncio.timeout_at(ends_at):
                await self.slots.acquire()
        except TimeoutError:
            said = "as many requests are under way with this token as may be"
            raise BridgeRefused("LlmCallFailed", said, status=429, retry_after_ms=1_000) from None

    async def asked(
        self, queries: Sequence[BridgeQuery], *, ends_at: float, tasks: list[_Task]
    ) -> tuple[list[tuple[Outcome, int]], BridgeLeft]:
        """What came of each, in order, with its milliseconds; and what the last to end had left.

        Those before it still counted what was held for it. `tasks` gets what is begun.
        """
        self.pace.take(len(queries))
        loop = asyncio.get_running_loop()
        began = loop.time()
        took: dict[_Task, float] = {}
        for query in queries:
            task = asyncio.ensure_future(self._one(query))
            task.add_done_callback(lambda task: took.setdefault(task, loop.time()))
            task.add_done_callback(self.tasks.discard)
            self.tasks.add(task)
            tasks.append(task)
        if not tasks:
            return [], BridgeLeft()
        try:
            await asyncio.wait(tasks, timeout=max(0.0, ends_at - began))
        finally:
            for each in tasks:
                each.cancel()
        now = loop.time()
        found = [(_outcome(each), round((took.get(each, now) - began) * 1000)) for each in tasks]
        known = [_outcome(each).left for each in took]
        left = next((each for each in reversed(known) if each is not None), BridgeLeft())
        return found, left

    def exit(self, tasks: Sequence[_Task]) -> None:
        """Give the place back, once all have ended: one that cannot be left still takes it."""
        pending = set(tasks)

        def ended(task: _Task) -> None:
            pending.discard(task)
            if not task.cancelled():
                # Whoever asked was told already, or is gone.
                task.exception()
            if not pending:
                self.slots.release()

        if not pending:
            self.slots.release()
        for each in tasks:
            each.add_done_callback(ended)

    async def _one(self, query: BridgeQuery) -> BridgeAnswer:
        assert self.ask is not None
        scope = self.scope
        if scope.models is not None and query.model not in (None, *scope.models):
            said = f"model: {(query.model or '')[:80]!r} is not for this program"
            raise BridgeRefused("ConfigError", said)
        cap, wanted = scope.tokens_out_max, query.max_tokens
        if cap is not None and wanted is not None and wanted > cap:
            raise BridgeRefused("ConfigError", f"max_tokens: {wanted:,}; at most {cap:,} here")
        return await self.ask(dataclasses.replace(query, cap=cap))


def _outcome(task: _Task) -> Outcome:
    if not task.done():
        return BridgeRefused("ExecutionTimeout", "no answer within the time of a request")
    if task.cancelled():
        return BridgeRefused("Cancelled", _ENDED)
    error = task.exception()
    return task.result() if error is None else refused_by(error)
