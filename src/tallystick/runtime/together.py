"""Records of calls that run side by side, written together: one wait for the disk for many.

Whoever writes waits until what it wrote is committed, or on the disk. Everything that comes in one
turn of the event loop goes into one transaction, forced if any of it must be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future

from tallystick.core.records import (
    ChildBegun,
    ChildEnded,
    QueryAsked,
    QueryFailed,
    QueryRecord,
    QueryRefused,
    QueryReplied,
)
from tallystick.runtime.pen import Pen

__all__ = ["QueryWriter", "Together"]

_Waiting = list[tuple[QueryRecord, asyncio.Future[None]]]


class Together:
    """Gathers records on the event loop."""

    def __init__(self, pen: Pen) -> None:
        self._pen = pen
        self._waiting: _Waiting = []
        self._forced = False

    async def write(self, record: QueryRecord, *, forced: bool) -> None:
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self.flush)
        self._waiting.append((record, written))
        self._forced = self._forced or forced
        await written

    def now(self, record: QueryRecord) -> None:
        """Begin to write at once, behind all that waits. The next write tells of a failure."""
        self.flush()
        self._pen.write([record], forced=False)

    def flush(self) -> None:
        """Begin to write what waits, now."""
        waiting, self._waiting = self._waiting, []
        forced, self._forced = self._forced, False
        if not waiting:
            return
        try:
            writing = self._pen.write([record for record, _ in waiting], forced=forced)
        except BaseException as error:
            _wake(waiting, error)
            return
        if writing.future is None:
            _wake(waiting, None)
            return
        loop = asyncio.get_running_loop()

        def ended(future: Future[None]) -> None:
            loop.call_soon_threadsafe(_wake, waiting, future.exception())

        writing.future.add_done_callback(ended)


def _wake(waiting: _Waiting, error: BaseException | None) -> None:
    for _, written in waiting:
        if written.done():
            continue
        if error is None:
            written.set_result(None)
        else:
            written.set_exception(error)


class QueryWriter:
    """Writes the model calls of one program, and has them counted.

    Once the program is `over`, nothing more of it is written: the run has gone on.
    """

    def __init__(
        self, together: Together, count: Callable[[QueryRecord], None], over: Callable[[], bool]
    ) -> None:
        self._together = together
        self._count = count
        self._over = over

    async def asked(self, record: QueryAsked) -> None:
        if self._over():
            # Nothing is begun before it is written, and nothing more of this program is.
            raise asyncio.CancelledError
        await self._written(record, forced=True)

    async def begun(self, record: ChildBegun) -> None:
        if self._over():
            raise asyncio.CancelledError
        await self._written(record, forced=True)

    async def ended(self, record: QueryReplied | QueryFailed | QueryRefused | ChildEnded) -> None:
        await self._written(record, forced=False)

    async def _written(self, record: QueryRecord, *, forced: bool) -> None:
        if self._over():
            return
        try:
            await self._together.write(record, forced=forced)
        except asyncio.CancelledError:
            # It happened all the same.
            self._together.flush()
            self._count(record)
            raise
        self._count(record)

    def now(self, record: QueryRecord) -> None:
        """At once, behind what waits: whoever asked is being cancelled, or has ended long ago."""
        if not self._over():
            self._together.now(record)
            self._count(record)
