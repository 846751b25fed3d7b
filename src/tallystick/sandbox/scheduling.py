"""Run programs side by side: slots, threads, cancellation tokens, and checks in long work."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import contextvars
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar, cast

from tallystick.core.errors import UsageError

# Long work for a program calls `check` now and then, which raises if the program has to end.
#
# The check belongs to the thread, not to the text or the function: sessions share those, while a
# thread serves one program at a time.


class _Watch(threading.local):
    check: Callable[[], None] | None = None


_watch = _Watch()


def check() -> None:
    """Raise if the program that this thread serves has to end; do nothing in other threads.

    The exception is that of the function given to `watched_by`.
    """
    if _watch.check is not None:
        _watch.check()


@contextlib.contextmanager
def watched_by(look: Callable[[], None]) -> Iterator[None]:
    """Make `look` the check of this thread, until the block ends; then the one before it again."""
    before, _watch.check = _watch.check, look
    try:
        yield
    finally:
        _watch.check = before


# Programs that can be cancelled by a token while they run.


class CancellationTokens:
    """The running programs of a sandbox that a caller can cancel by a token."""

    def __init__(self) -> None:
        self._by_token: dict[str, Callable[[], None]] = {}

    def cancel(self, cancellation_token: str) -> bool:
        """Cancel the running program with this token. Return False if there is none.

        This does not wait for the end of the program.
        """
        cancel = self._by_token.get(cancellation_token)
        if cancel is not None:
            cancel()
        return cancel is not None

    def cancellable(
        self, token: str | None, cancel: Callable[[], None]
    ) -> contextlib.AbstractContextManager[None]:
        """Call `cancel` if the token is cancelled before the block ends. None is no token.

        On entry, raise `UsageError` if another program uses the token.
        """
        return contextlib.nullcontext() if token is None else self._register(token, cancel)

    @contextlib.contextmanager
    def _register(self, token: str, cancel: Callable[[], None]) -> Iterator[None]:
        if token in self._by_token:
            raise UsageError(f"cancellation token {token!r} is in use by another program")
        self._by_token[token] = cancel
        try:
            yield
        finally:
            del self._by_token[token]


# Slots limit how many programs are active at once; the first to ask is the first to get one.
#
# A program holds a slot only while its own code runs. It releases the slot while it waits for the
# host, so programs that wait for each other cannot deadlock on slots. It also passes the slot on
# after its share of time, if others wait.


_SHARE_SECONDS = 0.1


class SlotRequest:
    """One request in the queue for slots. It is woken when granted, or to end its wait.

    `wait` returns after so many seconds too, so only `granted` says if there is a slot.
    """

    __slots__ = ("_woken", "granted")

    def __init__(self) -> None:
        self._woken = threading.Event()
        self.granted = False

    def wake(self) -> None:
        """End the wait. Without `granted`, the waiter gets no slot."""
        self._woken.set()

    def wait(self, seconds: float) -> None:
        self._woken.wait(seconds)


class Slots:
    """A fair, counted gate. Methods may be called from any thread.

    Raises `ValueError` for a count below 1.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError("at least one slot is needed")
        self._free = count
        self._queue: collections.deque[SlotRequest] = collections.deque()
        self._guard = threading.Lock()

    @property
    def waiting(self) -> int:
        """The number of programs that wait for a slot."""
        return len(self._queue)

    def try_acquire(self) -> bool:
        """Take a slot and return True if one is free and no program waits; else return False."""
        with self._guard:
            if self._free and not self._queue:
                self._free -= 1
                return True
            return False

    def acquire(
        self, request: SlotRequest | None = None, *, seconds: float = threading.TIMEOUT_MAX
    ) -> bool:
        """Wait for a slot. Return False if the time is over, or `request` was woken without one."""
        request = request or SlotRequest()
        with self._guard:
            if self._free and not self._queue:
                self._free -= 1
                return True
            self._queue.append(request)
        request.wait(seconds)
        with self._guard:
            # `release` may have granted the slot after the wait ended, so only this flag decides.
            if not request.granted:
                self._queue.remove(request)
            return request.granted

    def release(self) -> None:
        """Release a slot. The program that has waited longest gets it; else it is free."""
        with self._guard:
            if self._queue:
                request = self._queue.popleft()
                request.granted = True
                request.wake()
            else:
                self._free += 1

    def used_up(self, since: float) -> bool:
        """Return True if a slot taken at `since` (monotonic seconds) should be passed on.

        That is after 0.1 s, and only if a program waits.
        """
        return bool(self._queue) and time.monotonic() - since > _SHARE_SECONDS


# Threads for programs: as many as there are programs, reused by the next ones.
#
# A program that waits for the host occupies its thread, so the number of threads has no limit of
# its own; `Slots` limits how many are active. The stack size is set explicitly, because guest
# frames live on it. With a small default of the system, deep recursion would crash the process
# instead of ending the program.


_STACK_BYTES = 16 * 1024 * 1024
_CLOSE_SECONDS = 1.0
_stack_size_guard = threading.Lock()

Result = TypeVar("Result")


class Work(Generic[Result]):
    """Work in a thread, with its outcome as a future on `loop`.

    If the waiting task is cancelled, the thread still runs to its end. `asyncio.shield` would give
    the same, but with a second future and another iteration of the loop for every program.
    """

    __slots__ = ("_left", "loop", "outcome", "over", "work")

    def __init__(self, work: Callable[[], Result], loop: asyncio.AbstractEventLoop) -> None:
        self.work = work
        self.loop = loop
        self.outcome: asyncio.Future[Result] = loop.create_future()
        self.over = False
        self._left: asyncio.Future[None] | None = None

    async def wait_until_over(self) -> None:
        """Wait until the thread is done, even if the outcome was cancelled. Raise nothing of it."""
        if not self.over:
            self._left = self.loop.create_future()
            await self._left

    def deliver(self, result: object, error: BaseException | None) -> None:
        """Set the outcome, unless it was cancelled; end `wait_until_over`. Call it on the loop."""
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
    """A thread pool without a limit on its size."""

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue[Any]] = []
        self._threads: list[threading.Thread] = []
        self._guard = threading.Lock()
        self._closed = False

    def run(self, work: Callable[[], Result]) -> Work[Result]:
        """Run `work` in a thread of the pool. To be called on the loop that awaits the outcome.

        What `work` raises is the outcome. Raise `UsageError` if the pool is closed. Not
        `run_in_executor`: its two futures and callbacks would cost a short program a fifth of its
        time.
        """
        made = Work(work, asyncio.get_running_loop())
        with self._guard:
            if self._closed:
                raise UsageError("the sandbox is closed")
            inbox = self._idle.pop() if self._idle else self._start_thread()
        inbox.put(made)
        return made

    def close(self) -> None:
        """End the idle threads, and wait up to 1 s for each thread. Busy ones end later.

        They end with their program.
        """
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
            threads, self._threads = self._threads, []
        for inbox in idle:
            inbox.put(None)
        for thread in threads:
            thread.join(timeout=_CLOSE_SECONDS)

    def _start_thread(self) -> queue.SimpleQueue[Any]:
        inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        thread = threading.Thread(
            target=self._serve, args=(inbox,), name="tally-program", daemon=True
        )
        # The stack size is a setting of the whole process, so two starts must not overlap.
        with _stack_size_guard:
            before = threading.stack_size(_STACK_BYTES)
            try:
                # The thread serves other programs after this one, so it takes nothing of the
                # present context along.
                contextvars.Context().run(thread.start)
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
            # If the loop is closed by now, no task waits for the outcome any more.
            with contextlib.suppress(RuntimeError):
                item.loop.call_soon_threadsafe(item.deliver, result, error)
            del item, result, error
            if closed:
                return
