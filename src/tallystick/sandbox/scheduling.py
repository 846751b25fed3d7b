"""Programs side by side: slots, threads, what a token cancels, and when long work stops."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar, cast

from tallystick.core.errors import UsageError

# Long work done for a program in its own thread asks here whether it shall stop.
#
# The check is per thread, since texts and host functions are shared by sessions and the program
# whose call is being served is the one this thread runs.


class _Watch(threading.local):
    check: Callable[[], None] | None = None


_watch = _Watch()


def check() -> None:
    """Raise if the program that this thread serves has to end."""
    if _watch.check is not None:
        _watch.check()


@contextlib.contextmanager
def watched_by(look: Callable[[], None]) -> Iterator[None]:
    """Make `look` the check of this thread."""
    before, _watch.check = _watch.check, look
    try:
        yield
    finally:
        _watch.check = before


# What can be cancelled by a token, while it runs.


class Cancels:
    """The programs of a sandbox that somebody can end by a token."""

    def __init__(self) -> None:
        self._by_token: dict[str, Callable[[], None]] = {}

    def cancel(self, cancellation_token: str) -> bool:
        """End what runs with this token in its context. Says whether there was anything."""
        cancel = self._by_token.get(cancellation_token)
        if cancel is not None:
            cancel()
        return cancel is not None

    def cancellable(
        self, token: str | None, cancel: Callable[[], None]
    ) -> contextlib.AbstractContextManager[None]:
        """Let `cancel` be called by a token for a while."""
        return contextlib.nullcontext() if token is None else self._registered(token, cancel)

    @contextlib.contextmanager
    def _registered(self, token: str, cancel: Callable[[], None]) -> Iterator[None]:
        if token in self._by_token:
            raise UsageError(f"cancellation token {token!r} is in use by another program")
        self._by_token[token] = cancel
        try:
            yield
        finally:
            del self._by_token[token]


# How many programs may be active at once, first come first served.
#
# A program holds a slot only while its own code runs. It gives the slot back while it waits for the
# host, so programs that wait for each other cannot deadlock on slots, and it passes the slot on
# when it has had its share and others wait.


_SHARE_SECONDS = 0.1


class Turn:
    """A place in the queue. Woken when its slot has come, or by whoever ends the wait."""

    __slots__ = ("_woken", "granted")

    def __init__(self) -> None:
        self._woken = threading.Event()
        self.granted = False

    def wake(self) -> None:
        self._woken.set()

    def wait(self, seconds: float) -> None:
        self._woken.wait(seconds)


class Slots:
    """A fair, counted gate."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError("at least one slot is needed")
        self._free = count
        self._queue: collections.deque[Turn] = collections.deque()
        self._guard = threading.Lock()

    @property
    def waiting(self) -> int:
        """How many programs wait for a slot."""
        return len(self._queue)

    def try_acquire(self) -> bool:
        """Take a slot if one is free and nobody waits."""
        with self._guard:
            if self._free and not self._queue:
                self._free -= 1
                return True
            return False

    def acquire(self, turn: Turn | None = None, *, seconds: float = threading.TIMEOUT_MAX) -> bool:
        """Wait for a slot. False if the time is over, or if the turn was woken without one."""
        turn = turn or Turn()
        with self._guard:
            if self._free and not self._queue:
                self._free -= 1
                return True
            self._queue.append(turn)
        turn.wait(seconds)
        with self._guard:
            if not turn.granted:
                self._queue.remove(turn)
            return turn.granted

    def release(self) -> None:
        """Give the slot back; the longest waiting gets it."""
        with self._guard:
            if self._queue:
                turn = self._queue.popleft()
                turn.granted = True
                turn.wake()
            else:
                self._free += 1

    def used_up(self, since: float) -> bool:
        """Say whether who got the slot at `since` should pass it on."""
        return bool(self._queue) and time.monotonic() - since > _SHARE_SECONDS


# Threads for programs: as many as there are programs, kept for the next one.
#
# A program that waits for the host occupies its thread, so their number has no bound of its own;
# what is bounded is how many are active (`Slots`). The stack is set explicitly: guest frames live
# on it, and the default of a small system would end the process instead of the program.


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
