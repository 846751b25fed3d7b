"""Ledgers that stop anywhere: the first records of a run, as a process leaves them that dies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tallystick.attachments.memory import MemoryAttachments
from tallystick.attachments.port import Transaction
from tallystick.core.chain import Draft, Head, draft_of
from tallystick.core.records import Record
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.port import Ledger


def append_records(ledger: Ledger, run: str, records: Sequence[Record]) -> None:
    """Write the first records of a run to a ledger that has none of it.

    The run is claimed, and stays so. Raise what `claim` does, as `RunExists` or `InvalidName`.
    """
    fence = ledger.claim(run, create=True)
    drafts = [draft_of(each) for each in records]
    ledger.append(run, drafts, expected=Head.of_nothing(), fence=fence, forced=False)


def ledger_of(run: str, records: Sequence[Record]) -> MemoryLedger:
    """Return a ledger with these records of a run, as if its process had died after them.

    Raise `InvalidName` if `run` is not a ULID.
    """
    ledger = MemoryLedger()
    append_records(ledger, run, records)
    return ledger


class CutLedger(MemoryLedger):
    """A ledger that notes every write, and can be had as it was after any of them.

    `acts` are the claims and entries that were written here, in their order, over all chains. With
    `until`, another ledger's first writes are repeated here, and are not among `acts`. Salts are
    zeros, so that repeated writes have the same hashes.
    """

    def __init__(self, until: Sequence[Callable[[MemoryLedger], object]] = ()) -> None:
        super().__init__(salts=bytes)
        self.acts: list[Callable[[MemoryLedger], object]] = []
        for act in until:
            act(self)

    def cut(self, writes: int) -> CutLedger:
        """Return a new ledger, as this one was after so many of its `acts`, or all if it has fewer.

        Its own `acts` are empty.
        """
        return CutLedger(self.acts[:writes])

    def claim(self, run: str, **how: Any) -> int:  # noqa: ANN401 (as its base takes them)
        fence = super().claim(run, **how)
        # After the call: a claim that is refused writes nothing.
        self.acts.append(lambda ledger: MemoryLedger.claim(ledger, run, **how))
        return fence

    def submit(self, run: str, drafts: Sequence[Draft], **more: Any) -> Any:  # noqa: ANN401
        # What belongs to other stores is not repeated.
        fresh = {**more, "also": None}
        self.acts.append(lambda ledger: MemoryLedger.submit(ledger, run, drafts, **fresh))
        return super().submit(run, drafts, **more)


class LastingAttachments(MemoryAttachments):
    """Attachments that forget no snapshot.

    So the last snapshot of any prefix of a run is there, as it was when that was the whole run.
    """

    def forget(self, session_id: str, id: str, *, within: Transaction = None) -> None:
        if not session_id.endswith("/snapshots"):
            super().forget(session_id, id, within=within)

    def forget_session(self, session_id: str, *, within: Transaction = None) -> None:
        if not session_id.endswith("/snapshots"):
            super().forget_session(session_id, within=within)
