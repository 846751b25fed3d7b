"""A step that was entered: its place in a tree of scopes, what it used, and how it is left.

Rule: a scope stays as long as anything in it may still spend: the step's own frame, the steps
inside it, and the runs it pays for. A task that outlives the step that began it is not lost to the
budgets around.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tallystick.core.budget_amount import Amount, Breach, ScopeRow
from tallystick.core.charge import Charge
from tallystick.core.step import CompletedStep, StepDefinition, StepStatus, StepUsage
from tallystick.core.step_errors import Escalation, StepBudgetError, StepExhaustion
from tallystick.core.step_records import (
    RUNS_NAMED_MAX,
    STEP_SCHEMA,
    StepEntered,
    StepLeft,
    StepReceipt,
    figure,
    written,
)
from tallystick.core.step_value import NOT_KEPT, KeptValue
from tallystick.runtime.purse import Account, Place
from tallystick.runtime.step_again import Served, StepsAgain
from tallystick.runtime.step_book import Standing, StepBook
from tallystick.runtime.step_history import charges_of
from tallystick.runtime.step_log import StepLog
from tallystick.sandbox.identity import now_ms

__all__ = ["ActiveStep", "entered"]

_ERROR_CHARS_MAX = 4_096


@dataclass(slots=True, eq=False, kw_only=True)
class ActiveStep:
    """A step that was entered. `path` names it: the steps around it, its function, which time.

    `facts` are what a ledger is told of it, `book` tells the ledgers, and `runs` are those begun
    directly in it. `again` has what an earlier life left, where there was one; `kept` is the value
    that it is left with.
    """

    definition: StepDefinition
    depth: int
    path: str
    outer: ActiveStep | None
    account: Account
    log: StepLog
    facts: StepEntered
    book: StepBook
    again: StepsAgain | None = None
    frame: tuple[int, int] = (0, 0)
    kept: KeptValue = NOT_KEPT
    usage: StepUsage = field(default_factory=StepUsage)
    ended: bool = False
    runs: list[str] = field(default_factory=list, repr=False)
    runs_begun: int = 0
    inner: Counter[str] = field(default_factory=Counter, repr=False)
    _holders: int = field(default=1, repr=False)

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def model(self) -> str | None:
        """The model of calls that name none."""
        return self.definition.model

    @property
    def place(self) -> Place:
        """The scope that pays; those around it pay with it."""
        return Place(self.account, self.path)

    @property
    def escalation(self) -> Escalation:
        return Escalation(step=self.definition.name, function=self.definition.function)

    def chain(self) -> Iterator[ActiveStep]:
        """This one and those around it."""
        each: ActiveStep | None = self
        while each is not None:
            yield each
            each = each.outer

    def note(self, charge: Charge, *, model: str) -> None:
        """Count a call in this step and all around. The tree has its own sums, for the limits."""
        with self.account.lock:
            for each in self.chain():
                each.usage = each.usage.with_call(charge, model=model)

    def charge(self, charge: Charge, *, model: str) -> None:
        """Record a call everywhere, and then raise if a limit was passed."""
        with self.account.lock:
            self.note(charge, model=model)
            error = self._error(self.account.tree.spend(self.path, Amount.of_charge(charge)))
        if error is not None:
            raise error

    def overdrawn(self) -> StepBudgetError | None:
        """The first limit that is passed: of the innermost step, tokens before money."""
        with self.account.lock:
            return self._error(self.account.tree.spend(self.path, Amount()))

    def rows(self) -> list[ScopeRow]:
        """Where this one stands, those around it, and whatever else is in their tree."""
        with self.account.lock:
            return self.account.tree.rows()

    def recall(self, charge: Charge, *, model: str) -> None:
        """Count a call of an earlier life everywhere. It is a fact: nothing is raised."""
        with self.account.lock:
            self.note(charge, model=model)
            self.account.tree.spend(self.path, Amount.of_charge(charge))

    def recall_step(self, receipt: StepReceipt) -> None:
        """Count all that a step inside used in an earlier life, which does not run again."""
        with self.account.lock:
            for each in self.chain():
                each.usage = each.usage.with_step(receipt)
            used = Amount(
                tokens=receipt.input_tokens + receipt.output_tokens,
                usd=receipt.usd,
                model_calls=receipt.llm_calls,
            )
            self.account.tree.spend(self.path, used)

    def is_here(self) -> bool:
        """Whether its own frame is what runs here, and no task or thread that it began."""
        return self.frame == _frame()

    def hold(self) -> ActiveStep | None:
        """Keep this scope, also when the step is left; or, if it was, the next one around.

        Whoever holds lets go, once.
        """
        with self.account.lock:
            found = next((each for each in self.chain() if not each.ended), None)
            if found is not None:
                found._holders += 1
            return found

    def name_run(self, run: str) -> None:
        """A run is begun in it."""
        with self.account.lock:
            self.runs_begun += 1
            if len(self.runs) < RUNS_NAMED_MAX:
                self.runs.append(run)

    def forget_run(self, run: str) -> None:
        """A run was not begun after all. A receipt that names it already stays as it is."""
        with self.account.lock:
            self.runs_begun -= 1
            if run in self.runs:
                self.runs.remove(run)

    def let_go(self) -> None:
        """Hold it no longer. With the last holder the scope goes."""
        with self.account.lock:
            self._holders -= 1
            if self._holders:
                return
            self.account.tree.leave(self.path)
            if self.outer is not None:
                self.outer.let_go()
        if self.outer is None:
            self.book.close()

    def end(self, status: StepStatus, error: str | None = None) -> None:
        """Leave it, and write it down. Twice is the same as once.

        Raises what a ledger does that its receipt cannot be written to. It is left all the same.
        """
        kept = self.kept if status == "completed" else NOT_KEPT
        self._recall_unasked(status, kept)
        with self.account.lock:
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
        """Leave it as if it had never been entered."""
        with self.account.lock:
            if self.ended:
                return
            self.ended = True
        self.let_go()

    def _recall_unasked(self, status: StepStatus, kept: KeptValue) -> None:
        if self.again is None or self.ended:
            return
        unasked = self.again.leave(self.facts.path, status, kept)
        for run in unasked.runs:
            for model, charge in charges_of(self.again.records(run.run), self.again.records):
                self.recall(charge, model=model)
        for receipt in unasked.receipts:
            self.recall_step(receipt)

    def _receipt(self, record: CompletedStep) -> StepReceipt:
        """The receipt, for a chain that is named later. All but this frame is unfinished."""
        facts, error = self.facts, record.error
        return StepReceipt(
            schema=STEP_SCHEMA,
            chain="",
            path=facts.path,
            name=facts.name,
            function=facts.function,
            model=None if record.model is None else written(record.model),
            input_tokens=figure(record.input_tokens),
            output_tokens=figure(record.output_tokens),
            usd=figure(record.usd),
            unpriced=record.unpriced,
            llm_calls=record.llm_calls,
            status=record.status,
            error=None if error is None else written(error, chars_max=_ERROR_CHARS_MAX),
            started_at=facts.entered_at,
            # The clock may have been set back meanwhile.
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


def entered(
    definition: StepDefinition,
    *,
    outer: ActiveStep | None,
    log: StepLog,
    depth: int | None = None,
    key: str = "",
    arguments: str = "",
    caller: str = "",
    again: StepsAgain | None = None,
) -> ActiveStep | Served:
    """Enter a step inside another, or on its own. A `depth` of None is one more than outside.

    `arguments` is the digest of what it is called with, `caller` the host call that does. `again`
    is for the outermost: what an earlier life of it left. One that need not run again is not
    entered, and given as it was.
    """
    account = Account() if outer is None else outer.account
    # Another thread may have left it meanwhile.
    outer = None if outer is None else outer.hold()
    again = again if outer is None else outer.again
    try:
        with account.lock:
            path = _path(definition, outer, log=log, key=key, again=again, caller=caller)
        facts = _facts(definition, path=path, key=key, arguments=arguments, caller=caller)
        if again is not None:
            served = again.enter(facts)
            if served is not None:
                _serve(served, outer=outer, log=log)
                return served
            facts = again.since(facts)
        with account.lock:
            account.tree.enter(
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
    if depth is None:
        depth = 1 if outer is None else outer.depth + 1
    return ActiveStep(
        definition=definition,
        depth=depth,
        path=path,
        outer=outer,
        account=account,
        log=log,
        facts=facts,
        book=StepBook(again) if outer is None else outer.book,
        again=again,
        frame=(0, 0) if again is None else _frame(),
    )


def _serve(served: Served, *, outer: ActiveStep | None, log: StepLog) -> None:
    log.add(CompletedStep.of_receipt(served.receipt))
    if outer is not None:
        outer.recall_step(served.receipt)
        outer.let_go()


def _frame() -> tuple[int, int]:
    """What tells apart the tasks and threads that a program runs in."""
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
        path=written(path),
        name=written(definition.name),
        function=written(definition.function),
        key=written(key),
        model=None if model is None else written(model),
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
    again: StepsAgain | None,
    caller: str,
) -> str:
    """The path of a step that is entered now, which no other one in its tree has."""
    part = _escaped(definition.function) + (f"[{_escaped(key)}]" if key else "")
    if outer is None:
        if again is not None:
            return again.root_path(written(part))
        where, time = "", log.occurrence(part)
    elif again is not None:
        where = f"{outer.path}/"
        time = again.time(written(f"{where}{part}"), caller)
    else:
        outer.inner[part] += 1
        where, time = f"{outer.path}/", outer.inner[part]
    return f"{where}{part}" if time == 1 else f"{where}{part}#{time}"


def _escaped(text: str) -> str:
    """Without the characters that paths are put together with."""
    return text.replace("%", "%25").replace("/", "%2F").replace("#", "%23")


_: type[Standing] = ActiveStep
