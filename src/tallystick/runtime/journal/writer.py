"""The writer of a run's ledger: records appended in order, held back or committed together.

*Riding along* costs nothing until something is committed. *Committed* survives the process.
*Forced* is on the disk, with everything before it. Attachments that records refer to are committed
in the transaction that writes them.

Writing is begun here and done by the ledger's writer. Whoever needs it done waits: a thread for the
result, a loop by awaiting. What was begun is done, whether or not somebody still waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from tallystick.core.chain import Draft, Head
from tallystick.core.records import Record, encode_record, intent_of, tag_of
from tallystick.ledger.port import Also, Ledger

_HELD_MAX = 256


class PendingWrite:
    """A write that was begun."""

    def __init__(self, future: Future[None] | None = None) -> None:
        self.future = future

    def result(self) -> None:
        """Wait for it in a thread. Raises what the ledger does."""
        if self.future is not None:
            self.future.result()

    async def done(self) -> None:
        """Wait for it on a loop. A cancel is raised too, but not before it is done."""
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
    """Return a wait on this loop that ends with the write."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not waiting.done():
            waiting.set_result(None)

    future.add_done_callback(lambda _: loop.call_soon_threadsafe(wake))
    return waiting


class LedgerWriter:
    """Writes to a ledger that this process has claimed a run of. Used from any thread.

    `committed` is called with each record once the ledger has it, in order, before anyone who
    waits for the write continues. It must not raise.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        run: str,
        fence: int,
        head: Head,
        to_commit: Callable[[], Also | None] = lambda: None,
        committed: Callable[[Record], None] | None = None,
    ) -> None:
        self._to_commit = to_commit
        self._committed = committed
        self._untold: list[Record] = []
        self._ledger = ledger
        self._run = run
        self._fence = fence
        self._head = head
        self._guard = threading.Lock()
        self._held: list[Draft] = []
        self._broken: BaseException | None = None

    @property
    def head(self) -> Head:
        """Where the run stands once all that was begun is written."""
        return self._head

    def append_later(self, record: Record) -> None:
        """Write a record with whatever is written next."""
        with self._guard:
            self._hold([record])
            if len(self._held) >= _HELD_MAX:
                self._submit(forced=False)

    def write(self, records: Sequence[Record], *, forced: bool) -> PendingWrite:
        """Begin to write several in one transaction, behind all that rides along."""
        with self._guard:
            self._hold(records)
            return PendingWrite(self._submit(forced=forced))

    def _hold(self, records: Sequence[Record]) -> None:
        self._held.extend(map(_draft, records))
        if self._committed is not None:
            self._untold.extend(records)

    def _submit(self, *, forced: bool) -> Future[None]:
        if self._broken is not None:
            # What is written after a hole would look as if nothing were missing.
            raise self._broken
        drafts, self._held = self._held, []
        records, self._untold = self._untold, []
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
        future.add_done_callback(self._ended)
        return future if self._committed is None else _told(future, self._committed, records)

    def _ended(self, future: Future[None]) -> None:
        error = future.exception()
        if error is not None and self._broken is None:
            self._broken = error


def _told(
    written: Future[None], committed: Callable[[Record], None], records: Sequence[Record]
) -> Future[None]:
    """Return a future that ends when the records are committed and told."""
    told: Future[None] = Future()
    # From here on nobody who stops to wait can cancel it.
    told.set_running_or_notify_cancel()

    def tell(done: Future[None]) -> None:
        error = done.exception()
        if error is not None:
            told.set_exception(error)
            return
        for record in records:
            committed(record)
        told.set_result(None)

    written.add_done_callback(tell)
    return told


def _draft(record: Record) -> Draft:
    return Draft(tag=tag_of(record), intent=intent_of(record), body=encode_record(record))
