"""How many child runs of one tree are live at a time, however deep they stand.

Rule 1: a run that waits for its own children lends its place to them: else a tree that is as wide
as there are places would wait for itself for ever.
Rule 2: who stands deeper goes first. So a tree is worked off branch by branch, and the runs that
were begun and wait are as many as a few branches hold, not as the tree is wide.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["CHILDREN_LIVE_MAX", "ChildSlots"]

CHILDREN_LIVE_MAX = 32


class ChildSlots:
    """The places of one tree of runs. Used on one event loop."""

    def __init__(self, most: int = CHILDREN_LIVE_MAX) -> None:
        self._free = most
        self._order = itertools.count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def held(self, *, depth: int) -> AsyncIterator[None]:
        """Have a place while inside."""
        await self._take(depth)
        try:
            yield
        finally:
            self._give()

    @asynccontextmanager
    async def lent(self, *, depth: int) -> AsyncIterator[None]:
        """Give one's place to others while inside. The root has none to give."""
        if depth == 0:
            yield
            return
        self._give()
        try:
            yield
        finally:
            try:
                await self._take(depth)
            except asyncio.CancelledError:
                # It is given back once more by whoever holds it.
                self._free -= 1
                raise

    async def _take(self, depth: int) -> None:
        if self._free > 0:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (-depth, next(self._order), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give()
            raise

    def _give(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
