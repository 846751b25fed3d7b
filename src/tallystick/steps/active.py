"""A step that was entered: its budget scope, its usage, and its chain in the ledger.

Rule 1: a scope stays open as long as something in it may still spend: the step's own frame, the
steps inside it, and the runs that it pays for.
Rule 2: what outlives a step is paid by it all the same. A task or thread that charges a step which
has ended opens its scope again, with all that was spent there, and those around it.
Rule 3: a step pays in the process that entered it. A forked process has a copy of its sums, which
would pay a second time; it is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from tallystick.core.budget.amount import Amount, Breach, ScopeRow
from tallystick.core.chain import Head
from tallystick.core.charge import Charge
from tallystick.core.errors import LedgerError
from tallystick.core.records import (
    NOT_KEPT,
    RUNS_NAMED_MAX,
    STEP_SCHEMA,
    KeptValue,
    Record,
    RunNote,
    StepEntered,
    StepLeft,
    StepReceipt,
    StepStatus,
    encodable,
    figure,
)
from tallystick.core.step import (
    CompletedStep,
    Escalation,
    InvalidStep,
    StepBudgetError,
    StepDefinition,
    StepExhaustion,
    StepUsage,
)
from tallystick.ledger.port import Ledger
from tallystick.runtime.journal.writer import LedgerWriter
from tallystick.runtime.runs.lock import lock_run
from tallystick.runtime.spend.scopes import ScopeRef, ScopeTree
from tallystick.steps.replay import Served, StepReplay, charges_of
from tallystick.storage.clock import new_id, now_ms

# The limit of a log that is never drained: a program that runs for months keeps the last ones, and
# counts those that were dropped.
STEPS_KEPT_MAX = 10_000


class StepLog:
    """Completed steps in the order they ended, shared by all tasks and threads of one context.

    It keeps the last `records_max` of them.
    """

    def __init__(self, *, records_max: int = STEPS_KEPT_MAX) -> None:
        self._records: deque[CompletedStep] = deque(maxlen=records_max)
        self._entered: Counter[str] = Counter()
        # Reentrant, here and below: an abandoned generator ends its step when the garbage collector
        # finds it, which may be in the middle of any of these methods.
        self._guard = threading.RLock()
        self._dropped = 0

    @property
    def dropped(self) -> int:
        """The number of steps that were dropped since the last reset, because the log was full."""
        return self._dropped

    def peek(self) -> list[CompletedStep]:
        """Return a copy of the log."""
        with self._guard:
            return list(self._records)

    def drain(self) -> list[CompletedStep]:
        """Return the content of the log, and empty it. The counts of entered steps stay."""
        with self._guard:
            taken = list(self._records)
            self._records.clear()
        return taken

    def reset(self) -> None:
        """Empty the log, and forget how often each step was entered and how many were dropped."""
        with self._guard:
            self._records.clear()
            self._entered.clear()
            self._dropped = 0

    def add(self, record: CompletedStep) -> None:
        """Append a step. If the log is full, the oldest one is dropped."""
        with self._guard:
            self._dropped += len(self._records) == self._records.maxlen
            self._records.append(record)

    def occurrence(self, path: str) -> int:
        """Count one more step that is entered at a path, and return the count: 1 for the first."""
        with self._guard:
            self._entered[path] += 1
            return self._entered[path]


# Steps in the ledger: one chain for each tree of steps, begun with the first run inside.
#
# Rule 1: entering a step writes nothing. The entry is deferred: it is written with the first run
# inside, or else with the receipt.
# Rule 2: a receipt is committed when its step ends, in the thread that leaves it. A chain has one
# head, and a lock for writing.
# Rule 3: a chain that could not be written is given up, because its head is unknown. Steps that end
# in it raise the reason. The next run inside begins another chain, with all that is known so far.
# Rule 4: notes about a run are deferred too: they are written before the next run is begun, and
# before a step is left. If the process dies earlier, nothing that is recorded depends on them.
# Rule 5: a resumed chain is appended to, and only with what is new: a step that ran again with the
# same result writes nothing. While any of its steps may still write, a chain is locked, so that no
# other process resumes it.
#
# Rejected: a chain for every step that is entered. A step does not know which ledger its runs will
# be in, and most steps contain no run.


# Steps that ended before the first run are kept for its chain, the last of them: a step may last
# for months without a run. The number of dropped ones is written in the chain.
STEPS_HELD_MAX = 1_000


class StepView(Protocol):
    """The part of a step that its book needs."""

    @property
    def facts(self) -> StepEntered: ...

    @property
    def ended(self) -> bool:
        """True once the step is left. It becomes True before the receipt is given to the book."""
        ...

    def chain(self) -> Iterator[StepView]:
        """Yield this step and those around it, the innermost first."""
        ...


_Left = tuple[StepView, StepLeft]


class StepBook:
    """The records of one tree of steps, in the ledger of each run inside.

    With `again`, they extend an earlier chain. In a replay nothing is written.
    """

    def __init__(self, again: StepReplay | None = None) -> None:
        self._guard = threading.RLock()
        self._chains: dict[object, _Chain] = {}
        self._left: deque[_Left] = deque(maxlen=STEPS_HELD_MAX)
        self._dropped = 0
        self._again = again
        if again is not None and not again.replaying:
            self._chains[again.key] = _Chain(again.ledger, id=again.chain, again=again)

    def begin(self, step: StepView, ledger: Ledger, note: RunNote | None = None) -> str:
        """Write the steps around a new run to its ledger first. Return the id of their chain.

        `note` is a note about the run. In a replay nothing is written, and the recorded chain is
        returned. Errors of the ledger are raised, and `LedgerError` if an earlier write of a
        resumed chain failed; then the run must not begin.
        """
        again = self._again
        if again is not None and again.replaying:
            return again.chain
        key = key_of(ledger)
        with self._guard:
            chain = self._chains.get(key)
            if chain is None or (chain.given_up and again is None):
                *_, outermost = step.chain()
                # The time in the id is when the steps began, so they are listed before their runs.
                id = new_id(time_ms=outermost.facts.entered_at)
                chain = _Chain(ledger, id=id, left=list(self._left), missed=self._dropped)
                self._replace(key, chain)
        if note is not None:
            chain.note(step, note)
        chain.write(step)
        return chain.id

    def note(self, step: StepView, ledger: Ledger, note: RunNote) -> None:
        """Keep a note about a run in a step, to be written with the next record.

        It is dropped if the steps have no chain in that ledger.
        """
        with self._guard:
            chain = self._chains.get(key_of(ledger))
        if chain is not None:
            chain.note(step, note)

    def end(self, step: StepView, left: StepLeft) -> None:
        """Commit the receipt of an ended step in each chain.

        Chains that are begun later get it too, if it is among the last `STEPS_HELD_MAX`. If ledgers
        fail, the first error is raised, after the other chains have been written.
        """
        with self._guard:
            chains = list(self._chains.values())
            self._dropped += len(self._left) == self._left.maxlen
            # Only existing chains get the value. A chain that is begun later, in another ledger,
            # gets the receipt without it.
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
        """Release the locks of the chains, since nothing more is written. Can be called twice."""
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
        again: StepReplay | None = None,
    ) -> None:
        self.id = id
        self._ledger = ledger
        self._left = left
        self._missed = missed
        self._again = again
        self._writing = threading.RLock()
        self._held = contextlib.ExitStack()
        self._locked = False
        self._pen: LedgerWriter | None = None
        self._failed: BaseException | None = None
        # Paths of the steps whose entry is written and whose end is not.
        self._open: set[str] = set()
        self._notes: list[tuple[StepView, RunNote]] = []

    @property
    def given_up(self) -> bool:
        return self._failed is not None

    def note(self, step: StepView, note: RunNote) -> None:
        with self._writing:
            self._notes.append((step, note))

    def write(self, step: StepView, left: StepLeft | None = None) -> None:
        """Commit the receipt of a step, or its entry, and all records that must precede it.

        Nothing is written for a resumed step with the recorded result. Raise `LedgerError` if an
        earlier write has failed. The first error gives the chain up, and is raised as it is.
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
        """Release the lock of the chain. A later write takes it again."""
        with self._writing:
            self._held.close()
            self._locked = False

    def _write(self, step: StepView, left: StepLeft | None) -> None:
        notes, self._notes = self._notes, []
        if left is not None:
            own = tuple(note for each, note in notes if each is step)
            left = msgspec.structs.replace(left, notes=own)
        records: list[Record] = []
        for earlier, its in self._left:
            records += self._records(earlier, its)
        records += self._records(step, left)
        # The notes of an ended step are in its receipt.
        of_open_steps = [(each, note) for each, note in notes if not each.ended]
        records += [msgspec.structs.replace(each.facts, note=note) for each, note in of_open_steps]
        if not records:
            return
        self._open_writer(records).write(records, forced=False).result()
        self._left = ()

    def _open_writer(self, records: list[Record]) -> LedgerWriter:
        if self._pen is None:
            fence, head = 0, Head.of_nothing()
            if self._again is not None:
                # The resume has claimed the chain and locked it already.
                fence, head = self._again.fence, self._again.history.head
            else:
                records[0] = _with_missed(records[0], self._missed)
                self._lock()
                fence = self._ledger.claim(self.id, create=True)
            self._pen = LedgerWriter(self._ledger, run=self.id, fence=fence, head=head)
        elif self._again is None and not self._locked:
            # Something outlived the steps, which had let the chain go.
            self._lock()
        return self._pen

    def _lock(self) -> None:
        self._held.enter_context(lock_run(self._ledger, self.id))
        self._locked = True

    def _records(self, step: StepView, left: StepLeft | None) -> Iterator[Record]:
        """Yield what to write: entries of open steps from the outermost, then the receipt.

        What the chain has already is left out. The steps are noted as open, or as ended, while this
        is iterated.
        """
        again = self._again
        fresh = again is None or left is None or step.facts.path in self._open
        if again is not None and not fresh and again.has_record(step.facts, left):
            return
        for each in reversed(list(step.chain())):
            # The entry of an ended step is written with its receipt, by the thread that ends it.
            others_to_write = each.ended and (left is None or each is not step)
            if each.facts.path not in self._open and not others_to_write:
                self._open.add(each.facts.path)
                if again is None or not again.has_record(each.facts):
                    yield each.facts
        if left is not None:
            self._open.discard(step.facts.path)
            yield left


def _with_missed(first: Record, missed: int) -> Record:
    assert isinstance(first, StepEntered)
    return msgspec.structs.replace(first, missed=missed) if missed else first


def key_of(ledger: Ledger) -> object:
    """Return a key for the file of a ledger: its absolute path, in which links are not resolved.

    A ledger without a file has a key of its own.
    """
    # `id` is safe here, because the chain keeps its ledger alive.
    path = getattr(ledger, "path", None)
    return str(path.absolute()) if isinstance(path, Path) else id(ledger)


_ERROR_CHARS_MAX = 4_096


@dataclass(slots=True, eq=False, kw_only=True)
class ActiveStep:
    """A step that was entered. `path` names it: the steps around it, its function, its occurrence.

    `facts` is its entry in the ledger, `book` writes to the ledgers, and `runs` are those begun
    directly in it. `again` is the record of an earlier process, if there is one; `kept` is the
    value that is recorded when the step ends. `frame` is the thread and the task that entered it,
    and `left_elsewhere` is True if it was left where `current_step` was another one.
    """

    definition: StepDefinition
    depth: int
    path: str
    outer: ActiveStep | None
    scope_tree: ScopeTree
    log: StepLog
    facts: StepEntered
    book: StepBook
    again: StepReplay | None = None
    frame: tuple[int, int]
    left_elsewhere: bool = False
    kept: KeptValue = NOT_KEPT
    usage: StepUsage = field(default_factory=StepUsage)
    ended: bool = False
    runs: list[str] = field(default_factory=list, repr=False)
    runs_begun: int = 0
    inner: Counter[str] = field(default_factory=Counter, repr=False)
    _holders: int = field(default=1, repr=False)
    _closed: ScopeRow | None = field(default=None, repr=False)
    _process: int = field(default_factory=os.getpid, repr=False)

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def model(self) -> str | None:
        """The model of calls that name none; None if the step has none."""
        return self.definition.model

    @property
    def place(self) -> ScopeRef:
        """The scope that pays; those around it pay with it."""
        return ScopeRef(self.scope_tree, self.path)

    @property
    def escalation(self) -> Escalation:
        return Escalation(step=self.definition.name, function=self.definition.function)

    def chain(self) -> Iterator[ActiveStep]:
        """Yield this step and those around it, the innermost first."""
        each: ActiveStep | None = self
        while each is not None:
            yield each
            each = each.outer

    def note(self, charge: Charge, *, model: str) -> None:
        """Count a model call in this step and all around.

        The tree of scopes is not changed: it has sums of its own, for the limits.
        """
        with self.scope_tree.lock:
            for each in self.chain():
                each.usage = each.usage.with_call(charge, model=model)

    def charge(self, charge: Charge, *, model: str) -> None:
        """Record a model call in all scopes. Then raise `StepBudgetError` if a limit is passed.

        The error is for the innermost step with a passed limit, even if an earlier call passed it.
        Raise `InvalidStep` in another process than the one that entered the step.
        """
        self.hold()
        try:
            with self.scope_tree.lock:
                self.note(charge, model=model)
                error = self._error(self.scope_tree.tree.spend(self.path, Amount.of_charge(charge)))
        finally:
            self.let_go()
        if error is not None:
            raise error

    def find_breach(self) -> StepBudgetError | None:
        """Return an error for the first limit that is passed; None if none is.

        The innermost step comes first, and tokens before money.
        """
        with self.scope_tree.lock:
            return self._error(self.scope_tree.tree.spend(self.path, Amount()))

    def rows(self) -> list[ScopeRow]:
        """Return the rows of all scopes in the tree of this step."""
        with self.scope_tree.lock:
            return self.scope_tree.tree.rows()

    def count_earlier(self, charge: Charge, *, model: str) -> None:
        """Count a model call of an earlier process in usage and scopes. No limit is checked."""
        with self.scope_tree.lock:
            self.note(charge, model=model)
            self.scope_tree.tree.spend(self.path, Amount.of_charge(charge))

    def count_earlier_step(self, receipt: StepReceipt) -> None:
        """Count the use of an inner step that ran in an earlier process and does not run again.

        No limit is checked.
        """
        with self.scope_tree.lock:
            for each in self.chain():
                each.usage = each.usage.with_step(receipt)
            used = Amount(
                tokens=receipt.input_tokens + receipt.output_tokens,
                usd=receipt.usd,
                model_calls=receipt.llm_calls,
            )
            self.scope_tree.tree.spend(self.path, used)

    def is_here(self) -> bool:
        """Return True in the task and thread that entered the step, False in those it started."""
        return self.frame == _frame()

    def hold(self) -> None:
        """Keep the step's budget scope open, even after the step ends. Call `let_go` once for it.

        A scope that was closed is opened again, with what was spent in it. Raise `InvalidStep` in
        another process than the one that entered the step.
        """
        if self._process != os.getpid():
            raise InvalidStep(
                field=self.name,
                why=f"it was entered in process {self._process}, and cannot pay in {os.getpid()}, "
                f"which was forked from it; return what the call used, and charge it there",
            )
        with self.scope_tree.lock:
            if self._closed is not None:
                if self.outer is not None:
                    self.outer.hold()
                self.scope_tree.tree.reopen(self._closed)
                self._closed = None
            self._holders += 1

    def name_run(self, run: str) -> None:
        """Note that a run begins in this step.

        The first `RUNS_NAMED_MAX` are named, the others only counted.
        """
        with self.scope_tree.lock:
            self.runs_begun += 1
            if len(self.runs) < RUNS_NAMED_MAX:
                self.runs.append(run)

    def forget_run(self, run: str) -> None:
        """Note that a run did not begin after all. A receipt that names it is not changed."""
        with self.scope_tree.lock:
            self.runs_begun -= 1
            if run in self.runs:
                self.runs.remove(run)

    def let_go(self) -> None:
        """End one `hold`. With the last one the scope is closed, and the step around is let go.

        The last of an outermost step closes its book.
        """
        with self.scope_tree.lock:
            self._holders -= 1
            if self._holders:
                return
            self._closed = self.scope_tree.tree.leave(self.path)
            if self.outer is not None:
                self.outer.let_go()
        if self.outer is None:
            self.book.close()

    def end(self, status: StepStatus, error: str | None = None) -> None:
        """End the step, add it to the log, and commit its receipt. A second call does nothing.

        First, recorded runs and steps that were not asked for again are counted. If such a run
        cannot be read any more, that error is raised, and the step stays open. Errors of a ledger
        that cannot be written are raised; the step has ended nevertheless.
        """
        kept = self.kept if status == "completed" else NOT_KEPT
        self._count_unasked(status, kept)
        with self.scope_tree.lock:
            if self.ended:
                return
            self.ended = True
            record = CompletedStep.of(
                self.definition, self.usage, status=status, error=error, path=self.path
            )
            receipt = self._receipt(record)
        self.log.add(record)
        try:
            self.book.end(self, StepLeft(receipt=receipt, value=kept.text, value_kind=kept.kind))
        finally:
            self.let_go()

    def forget(self) -> None:
        """End the step without a receipt, and without an entry in the log.

        What it spent stays counted. Does nothing if it has ended.
        """
        with self.scope_tree.lock:
            if self.ended:
                return
            self.ended = True
        self.let_go()

    def _count_unasked(self, status: StepStatus, kept: KeptValue) -> None:
        if self.again is None or self.ended:
            return
        unasked = self.again.leave(self.facts.path, status, kept)
        for run in unasked.runs:
            for model, charge in charges_of(self.again.history_of(run.run), self.again.history_of):
                self.count_earlier(charge, model=model)
        for receipt in unasked.receipts:
            self.count_earlier_step(receipt)

    def _receipt(self, record: CompletedStep) -> StepReceipt:
        """Return the receipt, for a chain to be named later.

        All holders of the scope except this frame count as unfinished.
        """
        facts, error = self.facts, record.error
        return StepReceipt(
            schema=STEP_SCHEMA,
            chain="",
            path=facts.path,
            name=facts.name,
            function=facts.function,
            model=None if record.model is None else encodable(record.model),
            input_tokens=figure(record.input_tokens),
            output_tokens=figure(record.output_tokens),
            usd=figure(record.usd),
            unpriced=record.unpriced,
            llm_calls=record.llm_calls,
            status=record.status,
            error=None if error is None else encodable(error, chars_max=_ERROR_CHARS_MAX),
            started_at=facts.entered_at,
            # `max`, because the clock may have been set back meanwhile.
            completed_at=max(facts.entered_at, figure(now_ms())),
            runs=tuple(self.runs),
            runs_begun=self.runs_begun,
            unfinished=self._holders - 1,
        )

    def _error(self, breaches: list[Breach]) -> StepBudgetError | None:
        if not breaches:
            return None
        first = breaches[0]
        passed = next(each for each in self.chain() if each.path == first.scope.id)
        spent = next(row.spent for row in self.rows() if row.scope.id == first.scope.id)
        return StepBudgetError(
            StepExhaustion(
                step=passed.definition.name,
                function=passed.definition.function,
                limit="max_usd" if first.dimension == "usd" else "max_tokens",
                limit_value=first.limit,
                consumed_tokens=spent.tokens,
                consumed_usd=spent.usd or 0,
                error_boundary=passed.definition.error_boundary,
            )
        )


def enter(
    definition: StepDefinition,
    *,
    outer: ActiveStep | None,
    log: StepLog,
    depth: int | None = None,
    key: str = "",
    arguments: str = "",
    caller: str = "",
    again: StepReplay | None = None,
) -> ActiveStep | Served:
    """Enter a step inside another, or an outermost one.

    A `depth` of None is one more than that of `outer`, which may have ended. `arguments` is the
    digest of the arguments of the call, `caller` the host call that makes it. `again` is for the
    outermost step: the record of an earlier process.

    Return a `Served`, without entering, if the step was completed there and need not run again: its
    use is counted, and it is in the log. Raise `StepsDiverged` if the recorded outermost step is
    another, and the errors of `StepReplay.enter`.
    """
    scope_tree = ScopeTree() if outer is None else outer.scope_tree
    if outer is not None:
        outer.hold()
    again = again if outer is None else outer.again
    try:
        with scope_tree.lock:
            path = _path(definition, outer, log=log, key=key, again=again, caller=caller)
        facts = _facts(definition, path=path, key=key, arguments=arguments, caller=caller)
        if again is not None:
            served = again.enter(facts)
            if served is not None:
                _serve(served, outer=outer, log=log)
                return served
            facts = again.with_first_time(facts)
        if depth is None:
            depth = 1 if outer is None else outer.depth + 1
        active = ActiveStep(
            definition=definition,
            depth=depth,
            path=path,
            outer=outer,
            scope_tree=scope_tree,
            log=log,
            facts=facts,
            book=StepBook(again) if outer is None else outer.book,
            again=again,
            frame=_frame(),
        )
        with scope_tree.lock:
            scope_tree.tree.enter(
                path,
                parent=None if outer is None else outer.path,
                budget=definition.budget,
                kind="step",
                name=definition.name,
            )
    except BaseException:
        if outer is not None:
            outer.let_go()
        raise
    return active


def _serve(served: Served, *, outer: ActiveStep | None, log: StepLog) -> None:
    log.add(CompletedStep.of_receipt(served.receipt))
    if outer is not None:
        outer.count_earlier_step(served.receipt)
        outer.let_go()


def _frame() -> tuple[int, int]:
    """Return a key of the current task and thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident(), id(task)


def _facts(
    definition: StepDefinition, *, path: str, key: str, arguments: str, caller: str
) -> StepEntered:
    model, budget = definition.model, definition.budget
    return StepEntered(
        path=encodable(path),
        name=encodable(definition.name),
        function=encodable(definition.function),
        key=encodable(key),
        model=None if model is None else encodable(model),
        tokens_max=budget.tokens,
        usd_max=budget.usd,
        error_boundary=definition.error_boundary,
        entered_at=figure(now_ms()),
        arguments_sha256=arguments,
        caller=caller,
    )


def _path(
    definition: StepDefinition,
    outer: ActiveStep | None,
    *,
    log: StepLog,
    key: str,
    again: StepReplay | None,
    caller: str,
) -> str:
    """Return the path of a step that is entered now, and count one more of its kind.

    No other step in its tree has it. Raise `StepsDiverged` if the recorded outermost step is
    another.
    """
    part = _escape(definition.function) + (f"[{_escape(key)}]" if key else "")
    if outer is None:
        if again is not None:
            return again.root_path(encodable(part))
        where, time = "", log.occurrence(part)
    elif again is not None:
        where = f"{outer.path}/"
        time = again.occurrence(encodable(f"{where}{part}"), caller)
    else:
        outer.inner[part] += 1
        where, time = f"{outer.path}/", outer.inner[part]
    return f"{where}{part}" if time == 1 else f"{where}{part}#{time}"


def _escape(text: str) -> str:
    """Return a text with `%`, `/` and `#` escaped, which separate the parts of a path."""
    return text.replace("%", "%25").replace("/", "%2F").replace("#", "%23")


_: type[StepView] = ActiveStep
