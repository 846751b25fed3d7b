"""Steps on the ledger: for each tree of steps a chain, begun with the first run inside.

Rule 1: entering a step writes nothing. That it was entered rides along: with the first run inside
it, or else with its receipt.
Rule 2: a receipt is committed when its step ends, by whoever leaves it, from any thread. A chain
has one head, and a lock under which it is written.
Rule 3: a chain that could not be written is given up, since nobody knows where it stands. Whoever
ends a step in it hears why. The next run inside begins another, with all that is known so far.
Rule 4: what there is to note of a run rides along too: it is written before any other run is begun,
and before a step is left. Where a process dies earlier, nothing that is recorded depends on it.
Rule 5: a chain that is gone on with is written behind its head, and only what is new: a step that
ran again and came to what it had come to leaves nothing. While any of its steps may still write, a
chain is held, so that nobody else goes on with it.

Rejected: a chain for every step that is entered. A step does not know which ledger its runs will be
in, and most hold none.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from tallystick.core.chain import Head
from tallystick.core.errors import LedgerError
from tallystick.core.records import Record
from tallystick.core.step_records import RunNote, StepEntered, StepLeft
from tallystick.ledger.port import Ledger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.pen import LedgerPen
from tallystick.runtime.run_lock import held_run
from tallystick.runtime.step_again import StepsAgain
from tallystick.sandbox.identity import new_id

__all__ = ["STEPS_HELD_MAX", "Standing", "StepBook", "key_of"]

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


_Left = tuple[Standing, StepLeft]


class StepBook:
    """What is written of the steps in one tree, in the ledger of each run inside.

    With `again` they go on with a chain, or replay it; then nothing is written.
    """

    def __init__(self, again: StepsAgain | None = None) -> None:
        self._guard = threading.Lock()
        self._chains: dict[object, _Chain] = {}
        self._left: deque[_Left] = deque(maxlen=STEPS_HELD_MAX)
        self._dropped = 0
        self._again = again
        if again is not None and not again.replaying:
            self._chains[again.key] = _Chain(again.ledger, id=again.chain, again=again)

    def begin(self, step: Standing, ledger: Ledger, note: RunNote | None = None) -> str:
        """Have the steps around a run on its ledger, before it is. Returns the id of their chain.

        `note` is what there is to say of the run. Raises what the ledger does; then the run is not
        to begin.
        """
        again = self._again
        if again is not None and again.replaying:
            return again.chain
        key = key_of(ledger)
        with self._guard:
            chain = self._chains.get(key)
            if chain is None or (chain.given_up and again is None):
                *_, outermost = step.chain()
                # Listed where the steps began, which is before their first run.
                id = new_id(time_ms=outermost.facts.entered_at)
                chain = _Chain(ledger, id=id, left=list(self._left), missed=self._dropped)
                self._replace(key, chain)
        if note is not None:
            chain.note(step, note)
        chain.write(step)
        return chain.id

    def note(self, step: Standing, ledger: Ledger, note: RunNote) -> None:
        """Have what there is to say of a run in a step written with whatever comes next."""
        with self._guard:
            chain = self._chains.get(key_of(ledger))
        if chain is not None:
            chain.note(step, note)

    def end(self, step: Standing, left: StepLeft) -> None:
        """Commit the receipt of a step that is left, wherever there is a chain.

        Raises what the first ledger does that cannot; the others have it.
        """
        with self._guard:
            chains = list(self._chains.values())
            self._dropped += len(self._left) == self._left.maxlen
            # A chain has the value; one that is begun later, in another ledger, has the receipt.
            held = msgspec.structs.replace(left, value="", value_kind="") if chains else left
            self._left.append((step, held))
        unwritten: Exception | None = None
        for chain in chains:
            try:
                chain.write(step, left)
            except Exception as error:
                unwritten = unwritten or error
        if unwritten is not None:
            raise unwritten

    def close(self) -> None:
        """Nothing more comes: let others go on with the chains. Twice is the same as once."""
        with self._guard:
            for chain in self._chains.values():
                chain.close()

    def _replace(self, key: object, chain: _Chain) -> None:
        before = self._chains.get(key)
        self._chains[key] = chain
        if before is not None:
            before.close()


class _Chain:
    """The steps of one tree, in one ledger."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        id: str,
        left: Sequence[_Left] = (),
        missed: int = 0,
        again: StepsAgain | None = None,
    ) -> None:
        self.id = id
        self._ledger = ledger
        self._left = left
        self._missed = missed
        self._again = again
        self._writing = threading.Lock()
        self._held = contextlib.ExitStack()
        self._pen: LedgerPen | None = None
        self._failed: BaseException | None = None
        # Paths of the steps that are written as entered and not as left.
        self._open: set[str] = set()
        self._notes: list[tuple[Standing, RunNote]] = []

    @property
    def given_up(self) -> bool:
        return self._failed is not None

    def note(self, step: Standing, note: RunNote) -> None:
        with self._writing:
            self._notes.append((step, note))

    def write(self, step: Standing, left: StepLeft | None = None) -> None:
        """Commit a receipt, or that a step was entered, and whatever has to stand before it.

        A step that came to what it had come to is not written again.
        """
        if left is not None:
            receipt = msgspec.structs.replace(left.receipt, chain=self.id)
            left = msgspec.structs.replace(left, receipt=receipt)
        with self._writing:
            if self._failed is not None:
                why = f"steps {self.id} could not be written before: {self._failed}"
                raise LedgerError(f"{why}; what they cost is in the receipts of their runs")
            try:
                self._write(step, left)
            except BaseException as error:
                self._failed = error
                raise

    def close(self) -> None:
        """Hold the chain no longer."""
        with self._writing:
            self._held.close()

    def _write(self, step: Standing, left: StepLeft | None) -> None:
        notes, self._notes = self._notes, []
        if left is not None:
            own = tuple(note for each, note in notes if each is step)
            left = msgspec.structs.replace(left, notes=own)
        records: list[Record] = []
        for earlier, its in self._left:
            records += self._records(earlier, its)
        records += self._records(step, left)
        # Of a step that has ended its receipt has them.
        told = [(each, note) for each, note in notes if not each.ended]
        records += [msgspec.structs.replace(each.facts, note=note) for each, note in told]
        if not records:
            return
        self._opened(records).write(records, forced=False).result()
        self._left = ()

    def _opened(self, records: list[Record]) -> LedgerPen:
        if self._pen is None:
            fence, head = 0, Head.of_nothing()
            if self._again is not None:
                # Whoever goes on with it has claimed it, and holds it.
                fence, head = self._again.fence, self._again.history.head
            else:
                records[0] = _missing(records[0], self._missed)
                self._held.enter_context(held_run(self._ledger, self.id))
                fence = self._ledger.claim(self.id, create=True)
            self._pen = LedgerPen(self._ledger, run=self.id, fence=fence, head=head)
        return self._pen

    def _records(self, step: Standing, left: StepLeft | None) -> Iterator[Record]:
        """What is to be written, in order: each step that is open here once, before its inside."""
        again = self._again
        fresh = again is None or left is None or step.facts.path in self._open
        if again is not None and not fresh and again.has(step.facts, left):
            return
        for each in reversed(list(step.chain())):
            # One that has ended comes with its receipt, or came: its own thread sees to that.
            others_to_write = each.ended and (left is None or each is not step)
            if each.facts.path not in self._open and not others_to_write:
                self._open.add(each.facts.path)
                if again is None or not again.has(each.facts):
                    yield each.facts
        if left is not None:
            self._open.discard(step.facts.path)
            yield left


def _missing(first: Record, missed: int) -> Record:
    assert isinstance(first, StepEntered)
    return msgspec.structs.replace(first, missed=missed) if missed else first


def key_of(ledger: Ledger) -> object:
    """What tells ledgers apart. Sessions may each have opened the same file."""
    # The id stays taken: a chain holds its ledger.
    return str(ledger.path.absolute()) if isinstance(ledger, SqliteLedger) else id(ledger)
