"""A ledger in memory: the double for tests, and for runs that nobody needs afterwards."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import msgspec

from tallystick.core.chain import Draft, Head, Sealed
from tallystick.ledger import custody
from tallystick.ledger.port import Also, ExportHeader, RunRow, TransferLedger

__all__ = ["MemoryLedger"]


class MemoryLedger:
    """Keeps runs as long as the process lives. Safe to share between threads."""

    def __init__(self, *, salts: custody.Salts = os.urandom) -> None:
        self._salts = salts
        self._guard = threading.Lock()
        self._rows: dict[str, RunRow] = {}
        self._entries: dict[str, list[Sealed]] = {}

    def claim(self, run: str, *, create: bool) -> int:
        with self._guard:
            row = custody.claimed(self._rows.get(run), run, create=create)
            self._rows[run] = row
            self._entries.setdefault(run, [])
        return row.fence

    def submit(
        self,
        run: str,
        drafts: Sequence[Draft],
        *,
        expected: Head,
        fence: int,
        forced: bool,
        also: Also | None = None,
    ) -> tuple[Head, Future[None]]:
        """Done at once, in this thread."""
        entries, head = custody.seal_all(run, drafts, head=expected, salts=self._salts)
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        try:
            self._append(run, entries, expected=expected, fence=fence, head=head, also=also)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)
        return head, future

    def append(
        self,
        run: str,
        drafts: Sequence[Draft],
        *,
        expected: Head,
        fence: int,
        forced: bool,
        also: Also | None = None,
    ) -> Head:
        entries, head = custody.seal_all(run, drafts, head=expected, salts=self._salts)
        self._append(run, entries, expected=expected, fence=fence, head=head, also=also)
        return head

    def read(self, run: str, *, start: int = 0, stop: int | None = None) -> Iterator[Sealed]:
        with self._guard:
            custody.required(self._rows.get(run), run)
            return iter(self._entries[run][start:stop])

    def runs(self) -> Sequence[RunRow]:
        with self._guard:
            return [self._rows[run] for run in sorted(self._rows)]

    def remove(self, run: str, *, also: Also | None = None) -> None:
        with self._guard:
            custody.required(self._rows.get(run), run)
            if also is not None:
                also(None)
            del self._rows[run]
            del self._entries[run]

    def release(self, run: str) -> RunRow:
        with self._guard:
            row = custody.released(self._rows.get(run), run)
            self._rows[run] = row
        return row

    def adopt(
        self, header: ExportHeader, entries: Iterator[Sealed], *, also: Also | None = None
    ) -> None:
        with self._guard:
            known = custody.known_head(self._rows.get(header.run), header)
            fresh = []
            if known is not None:
                grown = custody.without_known(entries, known=known, run=header.run)
                fresh = [entry for _, entry in grown]
            if also is not None:
                also(None)
            if known is not None:
                self._entries.setdefault(header.run, []).extend(fresh)
                self._rows[header.run] = custody.adopted(header)

    def erase(self, run: str, seqs: Sequence[int]) -> None:
        with self._guard:
            custody.check_place(custody.required(self._rows.get(run), run), seqs)
            entries = self._entries[run]
            for seq in seqs:
                entries[seq] = msgspec.structs.replace(entries[seq], salt=None, body=None)

    def _append(
        self,
        run: str,
        entries: Sequence[Sealed],
        *,
        expected: Head,
        fence: int,
        head: Head,
        also: Also | None,
    ) -> None:
        with self._guard:
            row = custody.appended(
                self._rows.get(run), run, expected=expected, fence=fence, head=head
            )
            if also is not None:
                also(None)
            self._rows[run] = row
            self._entries[run].extend(entries)


_: type[TransferLedger] = MemoryLedger
