"""One event loop in a thread of its own, for callers that have none or may not block theirs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["LoopThread"]

Result = TypeVar("Result")
_CANCEL_SECONDS = 10.0


async def _all_ended() -> None:
    """Cancel every other task that was not cancelled yet, and wait for all of them."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        if not task.cancelling():
            task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class LoopThread:
    """Starts with its first work, ends with `close`."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()

    def submit(self, work: Coroutine[Any, Any, Result]) -> concurrent.futures.Future[Result]:
        """Run a coroutine on the loop."""
        with self._guard:
            if self._loop is None:
                self._start()
            assert self._loop is not None
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine and wait for it here.

        An interrupt cancels the coroutine, not the wait: what it makes of the cancel is returned.
        """
        tasks: list[asyncio.Task[Result]] = []

        async def held() -> Result:
            tasks.append(asyncio.ensure_future(work))
            return await tasks[0]

        future = self.submit(held())
        try:
            return future.result()
        except KeyboardInterrupt:
            if tasks and self._loop is not None:
                self._loop.call_soon_threadsafe(tasks[0].cancel)
            try:
                return future.result(timeout=_CANCEL_SECONDS)
            except (concurrent.futures.CancelledError, concurrent.futures.TimeoutError):
                raise KeyboardInterrupt from None

    def close(self) -> None:
        with self._guard:
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
        if loop is not None and thread is not None:
            # What still runs gets to write down how it ended.
            ended = asyncio.run_coroutine_threadsafe(_all_ended(), loop)
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
        self._thread.start()
