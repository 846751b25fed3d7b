"""Limit how many child runs of one tree of runs are live at a time, at every depth together.

Rule 1: a run that waits for its children lends its place to them. Otherwise a tree as wide as there
are places would wait for itself forever.
Rule 2: deeper runs go first, so a tree is worked off branch by branch.
Rule 3: a run that waits keeps its interpreter, so memory has to be bounded too. Once
`CHILDREN_BEGUN_MAX` runs have begun, live or waiting, only `_FEW` are live at a time. It cannot be
none: those that wait, wait for them. So memory grows with the depth of a tree, not its width.
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

# The runs that wait: the deepest first, then in the order in which they came.
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
    async def hold(self, *, depth: int) -> AsyncIterator[None]:
        """Take a place, to start or resume a run, and give it back on the way out.

        Wait for one if all are taken. `depth` is that of the run; deeper ones go first.
        """
        await self._turn(self._beginning, depth)
        try:
            yield
        finally:
            self._leave(self._beginning)

    @asynccontextmanager
    async def lend(self, *, depth: int) -> AsyncIterator[None]:
        """Give the place to other runs, and take one again on the way out.

        The root (`depth` 0) has no place, and gives none. On the way out, wait for a place; a
        cancel ends that wait.
        """
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
                # The enclosing `hold` subtracts one when it exits, so add one here, or the count
                # goes wrong. Until then it may be one above the maximum.
                self._live += 1
                raise

    async def _turn(self, line: _Line, depth: int) -> None:
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(line, (-depth, next(self._order), turn))
        self._call()
        try:
            await turn
        except asyncio.CancelledError:
            # Given a place in the same turn of the event loop as the cancel: give it back.
            if not turn.cancelled():
                self._leave(line)
            raise

    def _leave(self, line: _Line) -> None:
        """Give back a place that came from this line, and call the next."""
        self._live -= 1
        self._begun -= line is self._beginning
        self._call()

    def _call(self) -> None:
        """Give the free places to those who are next."""
        while (line := self._next()) is not None:
            _, _, turn = heapq.heappop(line)
            self._live += 1
            self._begun += line is self._beginning
            turn.set_result(None)

    def _next(self) -> _Line | None:
        """Return the line whose first may have a place now; None if no run may."""
        for line in (self._returning, self._beginning):
            while line and line[0][2].done():
                heapq.heappop(line)
        if self._live >= self._most:
            return None
        full = self._begun >= self._begun_most and self._live >= _FEW
        lines = [self._returning] if full else [self._returning, self._beginning]
        return min((line for line in lines if line), key=lambda line: line[0], default=None)
