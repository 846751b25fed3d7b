"""Run an event loop in a thread of its own, for callers that have none or may not block theirs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")
_CANCEL_SECONDS = 10.0


async def _cancel_all() -> None:
    """Cancel every other task that was not cancelled yet, and wait for all of them."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        if not task.cancelling():
            task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class LoopThread:
    """One event loop in a thread of its own, for callers that have none or may not block theirs.

    The thread starts with the first work, and ends with `close`.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()

    def submit(self, work: Coroutine[Any, Any, Result]) -> concurrent.futures.Future[Result]:
        """Run a coroutine on the loop, and return its future at once.

        Cancelling the future cancels the coroutine. The first call starts the thread.
        """
        with self._guard:
            if self._loop is None:
                self._start()
            assert self._loop is not None
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the loop, and return its result.

        Ctrl-C cancels the coroutine, and its result is still returned: a run that is cancelled has
        one. Raise `KeyboardInterrupt` if the cancel leaves none, or none within 10 seconds. Its own
        errors are raised.
        Do not call this on the loop: it waits.
        """
        tasks: list[asyncio.Task[Result]] = []

        async def run_as_task() -> Result:
            tasks.append(asyncio.ensure_future(work))
            return await tasks[0]

        future = self.submit(run_as_task())
        try:
            return future.result()
        except KeyboardInterrupt:
            if tasks and self._loop is not None:
                self._loop.call_soon_threadsafe(tasks[0].cancel)
            try:
                return future.result(timeout=_CANCEL_SECONDS)
            except (concurrent.futures.CancelledError, concurrent.futures.TimeoutError):
                raise KeyboardInterrupt from None

    def is_here(self) -> bool:
        """Return True in the thread of the loop, which must not wait for its own work."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """Cancel all work, wait for it up to 10 seconds, and end the thread.

        Work that takes longer is left unfinished. Closing twice is harmless. Work that comes later
        starts a new thread. Do not call this on the loop.
        """
        with self._guard:
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
        if loop is not None and thread is not None:
            # Wait for the cancelled work: each run still records how it ended.
            ended = asyncio.run_coroutine_threadsafe(_cancel_all(), loop)
            with contextlib.suppress(concurrent.futures.TimeoutError):
                ended.result(timeout=_CANCEL_SECONDS)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def _start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="tally-loop", daemon=True
        )
        # It serves all later work, so it takes nothing of the first caller's context along.
        contextvars.Context().run(self._thread.start)
