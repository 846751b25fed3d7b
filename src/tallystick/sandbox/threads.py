"""Threads for programs: as many as there are programs, kept for the next one.

A program that waits for the host occupies its thread, so their number has no bound of its own; what
is bounded is how many are active (`slots`). The stack is set explicitly: guest frames live on it,
and the default of a small system would end the process instead of the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from tallystick.core.errors import UsageError

__all__ = ["ProgramThreads", "Work"]

_STACK_BYTES = 16 * 1024 * 1024
_CLOSE_SECONDS = 1.0
_stack_size_guard = threading.Lock()

Result = TypeVar("Result")


class Work(Generic[Result]):
    """Work in a thread. Whoever waits for its outcome may leave; the thread goes on to its end.

    That is what `asyncio.shield` would give, at the price of a second future and a further turn of
    the loop for every program.
    """

    __slots__ = ("_left", "loop", "outcome", "over", "work")

    def __init__(self, work: Callable[[], Result], loop: asyncio.AbstractEventLoop) -> None:
        self.work = work
        self.loop = loop
        self.outcome: asyncio.Future[Result] = loop.create_future()
        self.over = False
        self._left: asyncio.Future[None] | None = None

    async def ended(self) -> None:
        """Wait for the end of the thread's part, also after the outcome was cancelled."""
        if not self.over:
            self._left = self.loop.create_future()
            await self._left

    def deliver(self, result: object, error: BaseException | None) -> None:
        """Hand over what came of it. Called on the loop."""
        self.over = True
        if self._left is not None and not self._left.done():
            self._left.set_result(None)
        if self.outcome.done():
            return
        if error is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(cast("Result", result))


class ProgramThreads:
    """A pool without a limit."""

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue[Any]] = []
        self._threads: list[threading.Thread] = []
        self._guard = threading.Lock()
        self._closed = False

    def run(self, work: Callable[[], Result]) -> Work[Result]:
        """Run `work` in a thread of the pool. To be called on the loop that awaits the outcome.

        The outcome goes straight to that loop: the two futures and callbacks of
        `run_in_executor` cost a short program a fifth of its time.
        """
        made = Work(work, asyncio.get_running_loop())
        with self._guard:
            if self._closed:
                raise UsageError("the sandbox is closed")
            inbox = self._idle.pop() if self._idle else self._started()
        inbox.put(made)
        return made

    def close(self) -> None:
        """End the idle threads and wait for them. Busy ones end with their program."""
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
            threads, self._threads = self._threads, []
        for inbox in idle:
            inbox.put(None)
        for thread in threads:
            thread.join(timeout=_CLOSE_SECONDS)

    def _started(self) -> queue.SimpleQueue[Any]:
        inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        thread = threading.Thread(
            target=self._serve, args=(inbox,), name="tally-program", daemon=True
        )
        with _stack_size_guard:
            before = threading.stack_size(_STACK_BYTES)
            try:
                thread.start()
            finally:
                threading.stack_size(before)
        self._threads.append(thread)
        return inbox

    def _serve(self, inbox: queue.SimpleQueue[Any]) -> None:
        while (item := inbox.get()) is not None:
            result, error = None, None
            try:
                result = item.work()
            except BaseException as raised:
                error = raised
            with self._guard:
                closed = self._closed
                if not closed:
                    self._idle.append(inbox)
            # A loop that is closed by now has nobody left who waits.
            with contextlib.suppress(RuntimeError):
                item.loop.call_soon_threadsafe(item.deliver, result, error)
            del item, result, error
            if closed:
                return
