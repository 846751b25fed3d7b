"""A run in progress: `Handle` follows and stops it, `Stream` iterates over its events."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tallystick.core.errors import RunNotFound, UsageError

if TYPE_CHECKING:
    from tallystick.agent.engine import Engine
    from tallystick.interop.trajectory_events import TrajectoryEvent
    from tallystick.live.deltas import DeltaBuffer
    from tallystick.live.follow import Followed
    from tallystick.runtime.calls.deltas import TextDelta
    from tallystick.runtime.runs.result import Run

T = TypeVar("T")
# How long a stop waits for the run to record its end.
_STOP_SECONDS = 5.0
# How long it waits before it looks again.
_LOOK_SECONDS = 0.02


class Handle(Generic[T]):
    """A run that goes on while its caller does something else. Made by `Agent.start`.

    It can be awaited: `run = await handle`. Any thread may use it.
    """

    def __init__(
        self,
        agent: object,
        engine: Engine,
        run: str,
        future: concurrent.futures.Future[Any],
        finish: Callable[[Run[Any]], Run[Any]],
        deltas: DeltaBuffer | None = None,
    ) -> None:
        # The agent is kept: it would be closed with its last reference, and cancel the run.
        self._agent = agent
        self._engine = engine
        self._id = run
        self._future = future
        self._finish = finish
        self._deltas = deltas

    @property
    def id(self) -> str:
        """The id of the run in the ledger."""
        return self._id

    @property
    def done(self) -> bool:
        """True if the run has ended, or could not be started."""
        return self._future.done()

    def __repr__(self) -> str:
        return f"<Handle of run {self._id}, {'done' if self.done else 'running'}>"

    def events(self, *, after: int = 0) -> Followed:
        """Return the events of the run, from the first one on, to iterate over.

        It takes `for` and `async for`, ends with the run, and holds nothing up. `after` is the
        number of the last event that was seen. They are those of `tallystick.follow`.
        """
        from tallystick.live.follow import Followed

        return Followed(
            self._engine.stores,
            self._id,
            after=after,
            deltas=self._deltas,
            is_going=lambda: not self.done,
        )

    def stop(self, *, by: str | None = None) -> None:
        """Stop the run: it ends as cancelled, and can be resumed. `by` is recorded.

        Return when it has ended. One that does not end in 5 seconds is cancelled in this process,
        which is not waited for. A run that has ended stays as it is.
        """
        give_up = time.monotonic() + _STOP_SECONDS
        asked = False
        while not self.done and (left := give_up - time.monotonic()) > 0:
            # A run that has not begun yet cannot be asked.
            asked = asked or self._ask_to_stop(by, left)
            self.wait(_LOOK_SECONDS)
        if not self.done:
            self._future.cancel()

    def _ask_to_stop(self, by: str | None, seconds: float) -> bool:
        """Ask the run to stop, and wait for that. Return False if nothing works on it now."""
        from tallystick.live.stop import stop

        try:
            stop(self._id, by=by, wait=seconds, ledger=self._engine.ledger)
        except (RunNotFound, UsageError):
            return False
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run has ended, `timeout` seconds at most. Return True if it has."""
        done, _ = concurrent.futures.wait([self._future], timeout)
        return bool(done)

    def result(self, timeout: float | None = None) -> Run[T]:
        """Wait for the run, and return its result as `Agent.run` does.

        Raise what `Agent.run` raises, and `TimeoutError` after `timeout` seconds.
        """
        if not self.wait(timeout):
            raise TimeoutError(f"run {self._id} is still running after {timeout} s")
        return self._finish(self._future.result())

    async def aresult(self) -> Run[T]:
        """Wait for the run as `result` does, for callers that await, and raise what it raises.

        A cancel leaves the run running.
        """
        return self._finish(await asyncio.shield(asyncio.wrap_future(self._future)))

    async def astop(self, *, by: str | None = None) -> None:
        """Stop the run as `stop` does, for callers that await."""
        await asyncio.to_thread(lambda: self.stop(by=by))

    def __await__(self) -> Generator[Any, None, Run[T]]:
        return self.aresult().__await__()


class Stream(Generic[T]):
    """The events of a run that starts with the first of them. Made by `Agent.stream`.

    It takes `for` and `async for`, once. Leaving the loop early stops the run, which is recorded.
    `run` is the result after the loop.
    """

    def __init__(self, start: Callable[[asyncio.AbstractEventLoop | None], Handle[T]]) -> None:
        self._start = start
        self._handle: Handle[T] | None = None
        self._run: Run[T] | None = None

    @property
    def run(self) -> Run[T]:
        """The result of the run. Raise `UsageError` before it has ended."""
        if self._run is None:
            raise UsageError("stream: the run has not ended; iterate over the stream first")
        return self._run

    @property
    def handle(self) -> Handle[T]:
        """The run in progress. Raise `UsageError` before the first event was asked for."""
        if self._handle is None:
            raise UsageError("stream: the run has not begun; iterate over the stream first")
        return self._handle

    def __iter__(self) -> Iterator[TrajectoryEvent | TextDelta]:
        handle = self._begin(None)
        try:
            with handle.events() as events:
                yield from events
            self._run = handle.result()
        finally:
            handle.stop()

    async def __aiter__(self) -> AsyncIterator[TrajectoryEvent | TextDelta]:
        handle = self._begin(asyncio.get_running_loop())
        try:
            with handle.events() as events:
                async for event in events:
                    yield event
            self._run = await handle.aresult()
        finally:
            if not handle.done:
                # Not awaited in a thread: a loop that is being closed has none to give.
                handle.stop()

    def _begin(self, loop: asyncio.AbstractEventLoop | None) -> Handle[T]:
        if self._handle is not None:
            raise UsageError(
                "stream: it is iterated over once; tallystick.follow reads a run again"
            )
        self._handle = self._start(loop)
        return self._handle
