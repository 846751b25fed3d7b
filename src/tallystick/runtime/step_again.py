"""A program of steps that runs again on what an earlier life of it left in a ledger.

Rule 1: a step is known by its path. Resumed, one that had completed with the same arguments is
served; any other runs again, and what it asks for is found in the record. Replayed, all run again.
Rule 2: a run is known by the step it was begun in and what it was asked for with. The frame of a
step asks in an order: what it asks for and the record does not have is a divergence, as long as
there are recorded runs it has not asked for. Tasks and threads have none: there it is a new run.
Rule 3: what a program reached by a host call is known by that call too. Where the answer of the
call is recorded nobody makes it again, and the steps and runs in it are not asked for.
Rule 4: nothing that was spent is forgotten. What is recorded in a step and not asked for again is
counted when the step is left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import msgspec

from tallystick.core.errors import UsageError
from tallystick.core.passage_records import InDoubt
from tallystick.core.records import Record
from tallystick.core.step_errors import StepsDiverged
from tallystick.core.step_records import StepEntered, StepLeft, StepReceipt, StepStatus
from tallystick.core.step_value import KeptValue, RunRef, value_of
from tallystick.ledger.port import Ledger
from tallystick.runtime.history import whole_records
from tallystick.runtime.step_history import RecordedRun, RunAsked, StepHistory, Times
from tallystick.runtime.step_report import (
    StepDivergence,
    StepsReport,
    entered_otherwise,
    left_otherwise,
    shown,
)

__all__ = ["Served", "StepsAgain", "Unasked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A step that is not entered: what it came to, and its receipt."""

    value: object
    receipt: StepReceipt


@dataclass(slots=True, kw_only=True)
class Unasked:
    """What is recorded inside a step and was not asked for again: its runs, and whole steps."""

    runs: list[RecordedRun] = field(default_factory=list)
    receipts: list[StepReceipt] = field(default_factory=list)


class StepsAgain:
    """One life of a program on the record of another. Shared by all its steps and runs.

    `key` tells the ledger of the chain from others, `fence` is of whoever goes on with it.
    `find_run` gives the run that a value refers to, None if it is not that any more. `count` tells
    the session of runs that it has not paid for in this life.
    """

    def __init__(
        self,
        history: StepHistory,
        *,
        ledger: Ledger,
        key: object,
        fence: int,
        in_doubt: InDoubt = "halt",
        report: StepsReport | None = None,
        find_run: Callable[[RunRef], object | None],
        count: Callable[[Sequence[RecordedRun]], None],
    ) -> None:
        self.history = history
        self.ledger = ledger
        self.key = key
        self.fence = fence
        self.in_doubt: InDoubt = in_doubt
        self._report = report
        self._find_run = find_run
        self._count = count
        self._guard = threading.Lock()
        self._taken = False
        self._seen: set[str] = set()
        self._times: dict[str, Times] = {}

    @property
    def chain(self) -> str:
        return self.history.chain

    @property
    def replaying(self) -> bool:
        """Whether nothing live may happen."""
        return self._report is not None

    # -- steps ---------------------------------------------------------------------------------

    def take(self) -> bool:
        """Be the one outermost step that goes on with the chain. False if another is."""
        with self._guard:
            taken, self._taken = self._taken, True
        return not taken

    def root_path(self, part: str) -> str:
        """The path of the outermost step. `part` is the function that is called, and its key."""
        path = self.history.root.path
        if path != part and not path.startswith(f"{part}#"):
            self._diverge(step=path, field="step", recorded=path, now=part)
        return path

    def time(self, first: str, caller: str) -> int:
        """Which time a step is entered inside another. `first` is its path the first time."""
        with self._guard:
            if first not in self._times:
                self._times[first] = Times(self.history.times(first))
            return self._times[first].next(caller)

    def enter(self, facts: StepEntered) -> Served | None:
        """A step is about to be entered. Returns what it is served with, if it is."""
        path = facts.path
        self._seen.add(path)
        before, left = self.history.entered.get(path), self.history.left.get(path)
        if self._report is not None:
            with self._guard:
                self._report.steps += 1
                self._report.note(entered_otherwise(facts, before))
            return None
        if (
            before is None
            or left is None
            or left.receipt.status != "completed"
            or left.receipt.unfinished
            or not before.arguments_sha256
            or before.arguments_sha256 != facts.arguments_sha256
        ):
            return None
        try:
            value = value_of(KeptValue(kind=left.value_kind, text=left.value), self._found)
        except ValueError:
            return None
        self.count(list(self.history.within(path)))
        return Served(value=value, receipt=left.receipt)

    def since(self, facts: StepEntered) -> StepEntered:
        """The facts of a step with the time at which it was entered first."""
        before = self.history.entered.get(facts.path)
        if before is None:
            return facts
        return msgspec.structs.replace(facts, entered_at=before.entered_at)

    def has(self, facts: StepEntered, left: StepLeft | None = None) -> bool:
        """Whether the chain says that a step is open, or was left so, with these facts."""
        before = self.history.entered.get(facts.path)
        if before is None or _undated(before) != _undated(facts):
            return False
        known = self.history.left.get(facts.path)
        return known is None if left is None else known is not None and _is_same(left, known)

    def leave(self, path: str, status: StepStatus, kept: KeptValue) -> Unasked:
        """A step is left. Returns what of it was not asked for again; it counts as if it had."""
        if self._report is not None:
            self._report.note(left_otherwise(path, status, kept, self.history.left.get(path)))
            if status == "completed":
                self._note_unasked(path, self._report)
        unasked = self._unasked(path)
        self.count(unasked.runs)
        for each in unasked.receipts:
            self.count(list(self.history.within(each.path)))
        return unasked

    def limits_changed(self, facts: StepEntered) -> bool:
        """Whether a step declares another budget than it did."""
        before = self.history.entered.get(facts.path)
        now = facts.tokens_max, facts.usd_max
        return before is not None and (before.tokens_max, before.usd_max) != now

    # -- runs ----------------------------------------------------------------------------------

    def find(
        self, path: str, asked: RunAsked, *, key: object, in_order: bool, caller: str
    ) -> RecordedRun | None:
        """The recorded run that is asked for in a step, None if it is a new one.

        Raises `StepsDiverged` if the step asked for another at this place. `in_order` says that its
        own frame asks, and not one of several tasks or threads; `caller` that a host call does.
        """
        if key != self.key:
            raise UsageError(
                f"steps {self.chain} are in another ledger than this session's: what they did here "
                f"is not known, and would be paid for again"
            )
        with self._guard:
            waiting = [each for each in self._waiting(path) if each.note.caller == caller]
            for each in waiting:
                if each.asked.difference(asked) is None:
                    each.taken = True
                    return each
        nearest = _nearest(waiting, asked, strict=in_order or self.replaying)
        if nearest is None:
            self._check_missing(path, asked)
            return None
        field = nearest.asked.difference(asked)
        assert field is not None
        recorded, now = getattr(nearest.asked, field), getattr(asked, field)
        self._diverge(step=path, run=nearest.run, field=field, recorded=recorded, now=now)

    def records(self, run: str) -> list[Record]:
        """All that is recorded of a run."""
        return whole_records(self.ledger, run)

    def count(self, runs: Sequence[RecordedRun]) -> None:
        """Tell the session of runs that an earlier life paid for, each once."""
        with self._guard:
            fresh = [each for each in runs if not each.counted]
            for each in fresh:
                each.counted = True
        if fresh and not self.replaying:
            self._count(fresh)

    def refuse(self, now: str) -> None:
        """Raise if nothing live may happen."""
        if self.replaying:
            self._diverge(step=self.history.root.path, field="run", recorded=None, now=now)

    # -- a replay ------------------------------------------------------------------------------

    def replayed(self, path: str, found: StepDivergence | None) -> None:
        """A run was replayed, and held or did not."""
        if self._report is not None:
            with self._guard:
                self._report.runs += 1
                self._report.note(
                    None if found is None else msgspec.structs.replace(found, step=path)
                )

    def cut_off(self, path: str, run: str) -> NoReturn:
        """Raise: a run that is asked for has no end that was told, and nobody goes on with it."""
        self._diverge(step=path, run=run, field="end", recorded=None, now="asked for")

    def over(self) -> None:
        """The program has ended."""
        root = self.history.root.path
        if self._report is not None and not self._taken:
            self._report.note(StepDivergence(step=root, field="step", recorded=root, now=None))

    def _note_unasked(self, path: str, report: StepsReport) -> None:
        """What the step had asked for itself, and did not. Host calls are not made in a replay."""
        for run in self._waiting(path):
            if not run.note.caller:
                report.note(
                    StepDivergence(step=path, run=run.run, field="run", recorded=run.run, now=None)
                )
        for inner in self.history.inside.get(path, ()):
            if inner not in self._seen and not self.history.entered[inner].caller:
                report.note(StepDivergence(step=path, field="step", recorded=inner, now=None))

    # -- inside --------------------------------------------------------------------------------

    def _diverge(
        self, *, step: str, field: str, recorded: object, now: object, run: str | None = None
    ) -> NoReturn:
        found = StepDivergence(step=step, run=run, field=field, recorded=recorded, now=now)
        if self._report is not None:
            self._report.note(found)
        raise StepsDiverged(
            chain=self.chain,
            step=step,
            run=run,
            field=field,
            recorded=shown(recorded),
            now=shown(now),
        )

    def _found(self, ref: RunRef) -> object:
        run = self._find_run(ref)
        if run is None:
            raise ValueError(f"run {ref.run} is not what it was")
        return run

    def _check_missing(self, path: str, asked: RunAsked) -> None:
        """Refuse to pay again for a run that a receipt names and this ledger does not have."""
        if self.replaying:
            self._diverge(step=path, field="run", recorded=None, now=asked.goal)
        left = self.history.left.get(path)
        if left is None or left.receipt.unfinished:
            # It may name runs that never came so far as to be written.
            return
        for run in left.receipt.runs:
            if run not in self.history.ids:
                self._diverge(
                    step=path, run=run, field="run", recorded=run, now="not in this ledger"
                )

    def _waiting(self, path: str) -> list[RecordedRun]:
        return [each for each in self.history.runs.get(path, ()) if not each.taken]

    def _unasked(self, path: str) -> Unasked:
        found = Unasked()
        waiting = [path]
        while waiting:
            here = waiting.pop()
            with self._guard:
                runs = self._waiting(here)
                for each in runs:
                    each.taken = True
            found.runs += runs
            for inner in self.history.inside.get(here, ()):
                if inner in self._seen:
                    continue
                self._seen.add(inner)
                left = self.history.left.get(inner)
                if left is None:
                    waiting.append(inner)
                else:
                    found.receipts.append(left.receipt)
        return found


def _undated(facts: StepEntered) -> StepEntered:
    return msgspec.structs.replace(facts, entered_at=0, missed=0, note=None)


def _is_same(left: StepLeft, before: StepLeft) -> bool:
    """Whether a step came to what it had come to. Times, and the order of its runs, may differ."""
    return _timeless(left) == _timeless(before)


def _timeless(left: StepLeft) -> StepLeft:
    receipt = left.receipt
    return msgspec.structs.replace(
        left,
        notes=(),
        receipt=msgspec.structs.replace(
            receipt, started_at=0, completed_at=0, runs=tuple(sorted(receipt.runs))
        ),
    )


def _nearest(
    waiting: Sequence[RecordedRun], asked: RunAsked, *, strict: bool
) -> RecordedRun | None:
    """Of several that are not what is asked for, the one that was to be.

    One that asks the same under other limits; or else, if `strict`, one with the same goal, or the
    first.
    """
    twins = [each for each in waiting if each.asked.is_twin(asked)]
    same = [each for each in waiting if each.asked.goal == asked.goal]
    return next(iter([*twins, *same, *waiting] if strict else twins), None)
