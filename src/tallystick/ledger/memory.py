"""A ledger in memory: a double for tests, and for runs that need not be kept."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import islice

import msgspec

from tallystick.core.chain import Draft, Head, Sealed, is_of_fork
from tallystick.ledger import custody
from tallystick.ledger.facts import copy_facts, row_after_entries, select_rows, tagged_entry
from tallystick.ledger.port import (
    EVERY_RUN,
    Also,
    ExportHeader,
    RunFilter,
    RunRow,
    TransferLedger,
)


class MemoryLedger:
    """A ledger that lives as long as its process. It can be shared between threads."""

    def __init__(self, *, salts: custody.Salts = os.urandom) -> None:
        self._salts = salts
        self._guard = threading.Lock()
        self._rows: dict[str, RunRow] = {}
        self._entries: dict[str, list[Sealed]] = {}
        # The places of the entries of each run in the order of all runs.
        self._places: dict[str, list[int]] = {}
        self._next_place = 0

    @property
    def lock_folder(self) -> None:
        """None: no other process can open this ledger."""
        return None

    def shared_scopes(self) -> None:
        """Return None: no other process can open this ledger."""
        return None

    def claim(
        self,
        run: str,
        *,
        create: bool,
        grown_from: str | None = None,
        owner: str | None = None,
    ) -> int:
        with self._guard:
            row = custody.row_after_claim(
                self._rows.get(run), run, create=create, grown_from=grown_from, owner=owner
            )
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
        """Append at once, in this thread.

        The returned future is done; it has the error if there is one. Raise `InvalidLimit` itself
        if a body has more than `BODY_BYTES_MAX` bytes.
        """
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
            custody.require_row(self._rows.get(run), run)
            return iter(self._entries[run][start:stop])

    def order(self, starts: Mapping[str, int], *, most: int) -> Sequence[tuple[str, int]]:
        with self._guard:
            found = [
                (place, run, seq)
                for run, start in starts.items()
                for seq, place in enumerate(self._places.get(run, ())[start:], start)
            ]
        return [(run, seq) for _, run, seq in sorted(found)[:most]]

    def runs(
        self,
        which: RunFilter = EVERY_RUN,
        *,
        after: str = "",
        skip: int = 0,
        most: int | None = None,
        newest_first: bool = False,
    ) -> Sequence[RunRow]:
        with self._guard:
            rows = [self._rows[run] for run in sorted(self._rows, reverse=newest_first)]
        return select_rows(
            rows, which, after=after, skip=skip, most=most, newest_first=newest_first
        )

    def row(self, run: str) -> RunRow | None:
        with self._guard:
            return self._rows.get(run)

    def forks_of(self, run: str) -> Sequence[str]:
        with self._guard:
            return self._forks_of(run)

    def remove(self, run: str, *, also: Also | None = None) -> None:
        with self._guard:
            custody.require_row(self._rows.get(run), run)
            custody.check_removable(run, self._forks_of(run))
            if also is not None:
                also(None)
            del self._rows[run]
            del self._entries[run]
            self._places.pop(run, None)

    def release(self, run: str) -> RunRow:
        with self._guard:
            row = custody.row_after_release(self._rows.get(run), run)
            self._rows[run] = row
        return row

    def adopt(
        self, header: ExportHeader, entries: Iterator[Sealed], *, also: Also | None = None
    ) -> None:
        with self._guard:
            known = custody.known_head(self._rows.get(header.run), header)
            grown: list[tuple[RunRow, list[Sealed]]] = []
            for ancestor in header.ancestors:
                here = custody.shared_head(
                    self._rows.get(ancestor.run), ancestor, run=header.run, hash_at=self._hash_at
                )
                shared = islice(entries, ancestor.count)
                fresh = custody.new_entries(shared, known=here, of=ancestor.run, run=header.run)
                new = [entry for _, entry in fresh]
                if here is not None:
                    grown.append((custody.shared_row(ancestor), new))
            if known is not None:
                fresh = custody.new_entries(entries, known=known, of=header.run, run=header.run)
                grown.append((custody.imported_row(header), [entry for _, entry in fresh]))
            if also is not None:
                also(None)
            for row, new in grown:
                before = self._rows.get(row.run)
                found = row if before is None else copy_facts(before, row)
                self._rows[row.run] = row_after_entries(found, map(tagged_entry, new))
                self._extend(row.run, new)

    def erase(self, run: str, seqs: Sequence[int]) -> None:
        with self._guard:
            row = custody.require_row(self._rows.get(run), run)
            entries = self._entries[run]
            fork = bool(entries) and is_of_fork(entries[0].header)
            custody.check_erasable(row, seqs, fork=fork)
            for seq in seqs:
                entries[seq] = msgspec.structs.replace(entries[seq], salt=None, body=None)
            self._rows[run] = msgspec.structs.replace(row, erased=True)

    def _hash_at(self, run: str, seq: int) -> str | None:
        entries = self._entries[run]
        return entries[seq].hash if seq < len(entries) else None

    def _forks_of(self, run: str) -> list[str]:
        return [
            each
            for each, row in sorted(self._rows.items())
            if row.grown_from == run or (not row.head.count and self._grows_from(each, run))
        ]

    def _grows_from(self, fork: str, run: str) -> bool:
        """Return True if `fork`, which has no entry, was claimed with the hash of one of `run`."""
        root = self._rows[fork].head
        known = root != Head.of_nothing()
        return known and any(each.hash == root.hash for each in self._entries.get(run, ()))

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
            row = custody.row_after_append(
                self._rows.get(run), run, expected=expected, fence=fence, head=head
            )
            if also is not None:
                also(None)
            self._rows[run] = row_after_entries(row, map(tagged_entry, entries))
            self._extend(run, entries)

    def _extend(self, run: str, entries: Sequence[Sealed]) -> None:
        self._entries.setdefault(run, []).extend(entries)
        end = self._next_place + len(entries)
        self._places.setdefault(run, []).extend(range(self._next_place, end))
        self._next_place = end


_: type[TransferLedger] = MemoryLedger
