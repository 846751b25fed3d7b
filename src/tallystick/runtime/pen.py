"""The pen of a run: writes records in order, and holds back those that may ride along.

*Riding along* costs nothing until something is committed. *Committed* survives the process.
*Forced* is on the disk, with everything before it. Attachments that records refer to are committed
in the transaction that writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tallystick.core.chain import Draft, Head
from tallystick.core.records import Record, encode_record, intent_of, tag_of
from tallystick.ledger.port import Also, Ledger

__all__ = ["LedgerPen", "Pen"]

_HELD_MAX = 256


class Pen(Protocol):
    """Where a driver writes."""

    def ride(self, record: Record) -> None: ...

    def commit(self, record: Record) -> None: ...

    def force(self, record: Record) -> None: ...

    def all(self, records: Sequence[Record], *, forced: bool) -> None:
        """Several in one transaction."""
        ...


class LedgerPen:
    """Writes to a ledger that this process has claimed a run of."""

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
        self._held: list[Draft] = []
        self._broken: Exception | None = None

    @property
    def head(self) -> Head:
        return self._head

    def ride(self, record: Record) -> None:
        self._held.append(_draft(record))
        if len(self._held) >= _HELD_MAX:
            self._write(forced=False)

    def commit(self, record: Record) -> None:
        self._held.append(_draft(record))
        self._write(forced=False)

    def force(self, record: Record) -> None:
        self._held.append(_draft(record))
        self._write(forced=True)

    def all(self, records: Sequence[Record], *, forced: bool) -> None:
        self._held.extend(map(_draft, records))
        self._write(forced=forced)

    def _write(self, *, forced: bool) -> None:
        if self._broken is not None:
            # What is written after a hole would look as if nothing were missing.
            raise self._broken
        drafts, self._held = self._held, []
        try:
            self._head = self._ledger.append(
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


def _draft(record: Record) -> Draft:
    return Draft(tag=tag_of(record), intent=intent_of(record), body=encode_record(record))


_: type[Pen] = LedgerPen
