"""Write the records of one run to the ledger, in order.

A *deferred* record waits in memory for the next write, or until 256 have gathered. A *committed*
one survives the process. A *forced* one is on disk, with everything before it. Attachments that
records refer to are committed in the transaction that writes the records.

A write starts here and is done by the writer of the ledger. A thread waits with `result`, a
coroutine with `wait`. Cancelling the wait does not cancel the write.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from tallystick.core.chain import Draft, Head, draft_of
from tallystick.core.records import Record
from tallystick.ledger.port import Also, Ledger
from tallystick.storage.clock import now_ms

# Bounds the memory for a program with very many host calls, at a transaction for so many records.
_HELD_MAX = 256


class PendingWrite:
    """A write in progress. Without a future there is nothing to write."""

    def __init__(self, future: Future[None] | None = None) -> None:
        self.future = future

    def result(self) -> None:
        """Wait in this thread until it is done. Raise what the ledger raises."""
        if self.future is not None:
            self.future.result()

    async def wait(self) -> None:
        """Wait until it is done. Raise what the ledger raises, or a cancel after that."""
        left: asyncio.CancelledError | None = None
        while self.future is not None and not self.future.done():
            try:
                await _woken_by(self.future)
            except asyncio.CancelledError as error:
                left = error
        self.result()
        if left is not None:
            raise left


def _woken_by(future: Future[None]) -> asyncio.Future[None]:
    """Return a wait on this loop that ends with the write, whether it succeeds or fails."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not waiting.done():
            waiting.set_result(None)

    future.add_done_callback(lambda _: loop.call_soon_threadsafe(wake))
    return waiting


class LedgerWriter:
    """Writes to a ledger that this process has claimed a run of. Used from any thread.

    `to_commit` is called once for each write, just before it, and returns what to commit in its
    transaction. After a failed write, every other one raises the same error.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        run: str,
        fence: int,
        head: Head,
        to_commit: Callable[[], Also | None] = lambda: None,
    ) -> None:
        self._to_commit = to_commit
        self._ledger = ledger
        self._run = run
        self._fence = fence
        self._head = head
        self._guard = threading.Lock()
        self._held: list[Draft] = []
        self._broken: BaseException | None = None

    @property
    def head(self) -> Head:
        """The head of the run once every write that has started is done."""
        return self._head

    def append_later(self, record: Record) -> None:
        """Defer a record to the next write. The 256th that waits starts one, and does not wait.

        Raise what the ledger raises if that write cannot start.
        """
        with self._guard:
            self._hold([record])
            if len(self._held) >= _HELD_MAX:
                self._submit(forced=False)

    def write(self, records: Sequence[Record], *, forced: bool) -> PendingWrite:
        """Start to write records in one transaction, after all deferred ones.

        If `forced`, the write is done only when they are on disk. Raise what the ledger raises if
        the write cannot start.
        """
        with self._guard:
            self._hold(records)
            return PendingWrite(self._submit(forced=forced))

    def _hold(self, records: Sequence[Record]) -> None:
        # The time at which it happened: a record that waits for the next write is no later for it.
        at = now_ms()
        self._held.extend(draft_of(record, at=at) for record in records)

    def _submit(self, *, forced: bool) -> Future[None]:
        if self._broken is not None:
            # A record that is written after a lost one would hide that it is missing.
            raise self._broken
        drafts, self._held = self._held, []
        try:
            self._head, future = self._ledger.submit(
                self._run,
                drafts,
                expected=self._head,
                fence=self._fence,
                forced=forced,
                also=self._to_commit(),
            )
        except Exception as error:
            self._broken = error
            raise
        future.add_done_callback(self._note_failure)
        return future

    def _note_failure(self, future: Future[None]) -> None:
        error = future.exception()
        if error is not None and self._broken is None:
            self._broken = error
