"""The pen of a run: writes records in order, and holds back those that may ride along.

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
from typing import Protocol

from tallystick.core.chain import Draft, Head
from tallystick.core.records import (
    Record,
    RunEnded,
    RunForked,
    RunResumed,
    encode_record,
    intent_of,
    tag_of,
)
from tallystick.ledger.port import Also, Ledger

__all__ = ["LedgerPen", "Passage", "Pen", "Writing"]

_HELD_MAX = 256
# A record by which a run is gone on with, or begins as another's continuation.
Passage = RunResumed | RunForked


class Writing:
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
    """A wait on this loop that ends with the write."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not waiting.done():
            waiting.set_result(None)

    future.add_done_callback(lambda _: loop.call_soon_threadsafe(wake))
    return waiting


class Pen(Protocol):
    """Where a driver writes. While it is not `live`, everything is on the record already."""

    @property
    def live(self) -> bool: ...

    def ride(self, record: Record) -> None: ...

    def write(self, records: Sequence[Record], *, forced: bool) -> Writing:
        """Begin to write several in one transaction, behind all that rides along."""
        ...

    def passage(self, *, ending: bool) -> tuple[Passage, RunEnded | None] | None:
        """Whether a run is gone on with here, between what it asks for, or `ending` it.

        With it, how it had ended from outside, if it had: that is not the machine's doing.
        """
        ...

    def compare(self, ended: Sequence[Record]) -> None:
        """Compare how a run had ended from outside, as `passage` said, with how it would now."""
        ...

    def on_passage(self, hear: Callable[[Passage], None]) -> None:
        """Have somebody hear of one that stands in the middle of what is being done."""
        ...


class LedgerPen:
    """Writes to a ledger that this process has claimed a run of. Used from any thread."""

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
        self.live = True

    @property
    def head(self) -> Head:
        """Where the run stands once all that was begun is written."""
        return self._head

    def ride(self, record: Record) -> None:
        with self._guard:
            self._held.append(_draft(record))
            if len(self._held) >= _HELD_MAX:
                self._submit(forced=False)

    def write(self, records: Sequence[Record], *, forced: bool) -> Writing:
        with self._guard:
            self._held.extend(map(_draft, records))
            return Writing(self._submit(forced=forced))

    def passage(self, *, ending: bool) -> tuple[Passage, RunEnded | None] | None:
        return None

    def compare(self, ended: Sequence[Record]) -> None:
        """There is nothing to compare in a run that is new."""

    def on_passage(self, hear: Callable[[Passage], None]) -> None:
        """There is none in a run that is new."""

    def _submit(self, *, forced: bool) -> Future[None]:
        if self._broken is not None:
            # What is written after a hole would look as if nothing were missing.
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
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: Future[None]) -> None:
        error = future.exception()
        if error is not None and self._broken is None:
            self._broken = error


def _draft(record: Record) -> Draft:
    return Draft(tag=tag_of(record), intent=intent_of(record), body=encode_record(record))


_: type[Pen] = LedgerPen
