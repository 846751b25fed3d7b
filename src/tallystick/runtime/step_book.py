"""Steps on the ledger: for each tree of steps a chain, begun with the first run inside.

Rule 1: entering a step writes nothing. That it was entered rides along: with the first run inside
it, or else with its receipt.
Rule 2: a receipt is committed when its step ends, by whoever leaves it, from any thread. A chain
has one head, and a lock under which it is written.
Rule 3: a chain that could not be written is given up, since nobody knows where it stands. Whoever
ends a step in it hears why. The next run inside begins another, with all that is known so far.

Rejected: a chain for every step that is entered. A step does not know which ledger its runs will be
in, and most hold none.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from tallystick.core.chain import Head
from tallystick.core.errors import LedgerError
from tallystick.core.records import Record
from tallystick.core.step_records import StepEntered, StepLeft, StepReceipt
from tallystick.ledger.port import Ledger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.pen import LedgerPen
from tallystick.sandbox.identity import new_id

__all__ = ["STEPS_HELD_MAX", "Standing", "StepBook"]

# Steps that were left before a run was begun are held for the chain it makes, the last of them: a
# step may go on for months with no run in it. How many are not there is written in the chain.
STEPS_HELD_MAX = 1_000


class Standing(Protocol):
    """A step as it is seen from here."""

    @property
    def facts(self) -> StepEntered: ...

    @property
    def ended(self) -> bool:
        """Whether it is left. True before its receipt is given to the book."""
        ...

    def chain(self) -> Iterator[Standing]:
        """This one and those around it."""
        ...


_Left = tuple[Standing, StepReceipt]


class StepBook:
    """What is written of the steps in one tree, in the ledger of each run inside."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._chains: dict[object, _Chain] = {}
        self._left: deque[_Left] = deque(maxlen=STEPS_HELD_MAX)
        self._dropped = 0

    def begin(self, step: Standing, ledger: Ledger) -> str:
        """Have the steps around a run on its ledger, before it is. Returns the id of their chain.

        Raises what the ledger does; then the run is not to begin.
        """
        key = _key_of(ledger)
        with self._guard:
            chain = self._chains.get(key)
            if chain is None or chain.given_up:
                *_, outermost = step.chain()
                # Listed where the steps began, which is before their first run.
                id = new_id(time_ms=outermost.facts.entered_at)
                chain = _Chain(ledger, id=id, left=list(self._left), missed=self._dropped)
                self._chains[key] = chain
        chain.write(step)
        return chain.id

    def end(self, step: Standing, receipt: StepReceipt) -> None:
        """Commit the receipt of a step that is left, wherever there is a chain.

        Raises what the first ledger does that cannot; the others have it.
        """
        with self._guard:
            self._dropped += len(self._left) == self._left.maxlen
            self._left.append((step, receipt))
            chains = list(self._chains.values())
        unwritten: Exception | None = None
        for chain in chains:
            try:
                chain.write(step, receipt)
            except Exception as error:
                unwritten = unwritten or error
        if unwritten is not None:
            raise unwritten


class _Chain:
    """The steps of one tree, in one ledger."""

    def __init__(self, ledger: Ledger, *, id: str, left: Sequence[_Left], missed: int) -> None:
        self.id = id
        self._ledger = ledger
        self._left = left
        self._missed = missed
        self._writing = threading.Lock()
        self._pen: LedgerPen | None = None
        self._failed: BaseException | None = None
        # Paths of the steps that are written as entered and not as left.
        self._open: set[str] = set()

    @property
    def given_up(self) -> bool:
        return self._failed is not None

    def write(self, step: Standing, receipt: StepReceipt | None = None) -> None:
        """Commit a receipt, or that a step was entered, and whatever has to stand before it."""
        with self._writing:
            if self._failed is not None:
                why = f"steps {self.id} could not be written before: {self._failed}"
                raise LedgerError(f"{why}; what they cost is in the receipts of their runs")
            try:
                self._write(step, receipt)
            except BaseException as error:
                self._failed = error
                raise

    def _write(self, step: Standing, receipt: StepReceipt | None) -> None:
        records: list[Record] = []
        for earlier, its in self._left:
            records += self._records(earlier, its)
        records += self._records(step, receipt)
        if not records:
            return
        if self._pen is None:
            records[0] = _missing(records[0], self._missed)
            fence = self._ledger.claim(self.id, create=True)
            self._pen = LedgerPen(self._ledger, run=self.id, fence=fence, head=Head.of_nothing())
        self._pen.write(records, forced=False).result()
        self._left = ()

    def _records(self, step: Standing, receipt: StepReceipt | None) -> Iterator[Record]:
        """What is to be written, in order: each step that is open here once, before its inside."""
        for each in reversed(list(step.chain())):
            # One that has ended comes with its receipt, or came: its own thread sees to that.
            others_to_write = each.ended and (receipt is None or each is not step)
            if each.facts.path not in self._open and not others_to_write:
                self._open.add(each.facts.path)
                yield each.facts
        if receipt is not None:
            self._open.discard(step.facts.path)
            yield StepLeft(receipt=msgspec.structs.replace(receipt, chain=self.id))


def _missing(first: Record, missed: int) -> Record:
    assert isinstance(first, StepEntered)
    return msgspec.structs.replace(first, missed=missed) if missed else first


def _key_of(ledger: Ledger) -> object:
    """What tells ledgers apart. Sessions may each have opened the same file."""
    # The id stays taken: a chain holds its ledger.
    return str(ledger.path.absolute()) if isinstance(ledger, SqliteLedger) else id(ledger)
