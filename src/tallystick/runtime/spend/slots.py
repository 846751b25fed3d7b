"""How many child runs of one tree are live at a time, however deep they stand.

Rule 1: a run that waits for its own children lends its place to them: else a tree that is as wide
as there are places would wait for itself for ever.
Rule 2: who stands deeper goes first. So a tree is worked off branch by branch.
Rule 3: a run that waits has an interpreter too. Once so many are begun, live or waiting, only a few
more are live at a time: memory is bounded by the depth of the tree and not by its width. A few may
always be: those that wait, wait for them.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

CHILDREN_LIVE_MAX = 32
CHILDREN_BEGUN_MAX = 64
_FEW = 4

# Those who wait, the deepest first, and of them whoever came first.
_Line = list[tuple[int, int, asyncio.Future[None]]]


class ChildSlots:
    """The places of one tree of runs. Used on one event loop."""

    def __init__(self, most: int = CHILDREN_LIVE_MAX, begun_most: int = CHILDREN_BEGUN_MAX) -> None:
        self._most = most
        self._begun_most = begun_most
        self._live = 0
        self._begun = 0
        self._order = itertools.count()
        self._beginning: _Line = []
        self._returning: _Line = []

    @asynccontextmanager
    async def held(self, *, depth: int) -> AsyncIterator[None]:
        """Have a place while inside: to begin a run, or to go on with one."""
        await self._turn(self._beginning, depth)
        try:
            yield
        finally:
            self._leave(self._beginning)

    @asynccontextmanager
    async def lent(self, *, depth: int) -> AsyncIterator[None]:
        """Give one's place to others while inside. The root has none to give."""
        if depth == 0:
            yield
            return
        self._leave(self._returning)
        try:
            yield
        finally:
            try:
                await self._turn(self._returning, depth)
            except asyncio.CancelledError:
                # Whoever holds it gives it back at once: until then they are one too many.
                self._live += 1
                raise

    async def _turn(self, line: _Line, depth: int) -> None:
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(line, (-depth, next(self._order), turn))
        self._call()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._leave(line)
            raise

    def _leave(self, line: _Line) -> None:
        """Give a place back that was got from a line."""
        self._live -= 1
        self._begun -= line is self._beginning
        self._call()

    def _call(self) -> None:
        """Call those whose turn it is."""
        while (line := self._next()) is not None:
            _, _, turn = heapq.heappop(line)
            self._live += 1
            self._begun += line is self._beginning
            turn.set_result(None)

    def _next(self) -> _Line | None:
        """The line whose first may have a place now; None if nobody may."""
        for line in (self._returning, self._beginning):
            while line and line[0][2].done():
                heapq.heappop(line)
        if self._live >= self._most:
            return None
        full = self._begun >= self._begun_most and self._live >= _FEW
        lines = [self._returning] if full else [self._returning, self._beginning]
        return min((line for line in lines if line), key=lambda line: line[0], default=None)
