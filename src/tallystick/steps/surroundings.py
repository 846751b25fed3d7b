"""Connect a run to the steps around it: who pays, what they note, and what its end becomes.

Rule: outside of steps a run always returns. Inside, a run that ended because an enclosing budget is
exhausted raises instead, so that the boundaries of the steps see it: a call was refused, or a bill
was higher than its reservation. If the run reached its own limits, which its caller set, it
returns.

A run belongs to the step in which it was asked for, even if it starts after that step was left. If
the step runs again, the run may be one of an earlier process: it is looked up when it is asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tallystick.core.budget.amount import BudgetExhausted, Dimension, ScopeRow
from tallystick.core.charge import Charge
from tallystick.core.history import History
from tallystick.core.records import RunNote, encodable, figure
from tallystick.core.step import PreflightRefusal, StepBudgetError
from tallystick.ledger.port import Ledger
from tallystick.runtime.calls.functions import RunFunction
from tallystick.runtime.run.surroundings import Asking, Surroundings
from tallystick.runtime.runs.history import whole_records
from tallystick.runtime.runs.result import Run
from tallystick.runtime.spend.door import RefusedCall
from tallystick.runtime.spend.scopes import ScopeRef
from tallystick.steps.active import ActiveStep, key_of
from tallystick.steps.decorator import call_around, current_step, refuse_if_replaying, within_step
from tallystick.steps.replay import (
    RecordedRun,
    RunAsked,
    StepReplay,
    charges_of,
    inputs_digest,
)
from tallystick.storage.clock import new_id

if TYPE_CHECKING:
    from tallystick.runtime.run.assembly import RunContext, RunRequest


class RunSteps(Surroundings):
    """The steps around a run, kept open from its start until it ends, in another thread.

    `recorded` is the run of an earlier process, None for a new one. Leaving it as a context manager
    lets the steps go, and takes back the name of a run that did not begin.
    """

    def __init__(
        self,
        active: ActiveStep | None,
        *,
        run: str = "",
        recorded: RecordedRun | None = None,
        caller: str = "",
    ) -> None:
        self._active = active
        self._caller = caller
        self._begun = False
        self._ledger: Ledger | None = None
        self.run = run
        self.recorded = recorded

    @classmethod
    def here(cls, run: str) -> RunSteps:
        """Keep the steps around this point open for a run. Use the result as a context manager.

        Outside of steps it has none. Raise `StepsDiverged` in a replay.
        """
        refuse_if_replaying(run)
        active = current_step()
        if active is not None:
            active.hold()
            active.name_run(run)
        return cls(active, run=run)

    @classmethod
    def for_request(
        cls,
        goal: str,
        ledger: Callable[[], Ledger],
        request_of: Callable[[StepReplay, str | None], RunAsked],
    ) -> RunSteps:
        """Keep the steps around open for a run that is asked for: new, or of an earlier process.

        `ledger` and `request_of` are called only if the steps have a record. `request_of` returns
        the request, given the model of the step. Raise `StepsDiverged` if the step made another
        request at this point, and `UsageError` if the ledger is not that of the record.
        """
        active = current_step()
        if active is None or active.again is None:
            refuse_if_replaying(goal)
        caller = call_around(active)
        if active is None:
            return cls(None, run=new_id(), caller=caller)
        active.hold()
        found = None
        if active.again is not None:
            try:
                found = active.again.find(
                    active.facts.path,
                    request_of(active.again, active.model),
                    key=key_of(ledger()),
                    in_order=active.is_here(),
                    caller=caller,
                )
            except BaseException:
                active.let_go()
                raise
        run = new_id() if found is None else found.run
        active.name_run(run)
        return cls(active, run=run, recorded=found, caller=caller)

    def __enter__(self) -> RunSteps:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._active is not None:
            if not self._begun:
                self._active.forget_run(self.run)
            self._active.let_go()

    def begin(self, ledger: Ledger) -> Mapping[str, Any]:
        """Write the steps to the ledger of a run that is about to begin, before it.

        Return the id of their chain and the path of the innermost, or nothing outside of steps.
        Errors of the ledger are raised; then the run must not begin.
        """
        if self._active is None:
            return {}
        new = self._caller and self.recorded is None
        note = RunNote(run=self.run, caller=self._caller) if new else None
        chain = self._active.book.begin(self._active, ledger, note)
        self._begun, self._ledger = True, ledger
        return {"parent": chain, "step": self._active.facts.path}

    def count_earlier(self, ledger: Ledger, history: History) -> None:
        """Count the cost of a run that is over in the record in the steps around.

        The run counts as begun. Call it only inside steps. Raise `ResumeRefused` if a record of a
        run inside it was erased; one that was removed has no cost.
        """
        assert self._active is not None
        self._begun, self._ledger = True, ledger
        for model, charge in charges_of(history, lambda run: History(whole_records(ledger, run))):
            self._active.count_earlier(charge, model=model)

    @property
    def is_recorded(self) -> bool:
        """True for a run of an earlier process, whose session is recorded."""
        return self.recorded is not None

    @property
    def around(self) -> Surroundings:
        """The steps themselves."""
        return self

    async def work(self, context: RunContext, request: RunRequest, around: Surroundings) -> Run:
        """Run a goal to its end, or return the result of an earlier process.

        Raise the errors of `run_in_steps`.
        """
        from tallystick.steps.resume import run_in_steps

        return await run_in_steps(context, request, self, around)

    @property
    def again(self) -> StepReplay | None:
        """The record of an earlier process; None if there is none."""
        return None if self._active is None else self._active.again

    @property
    def path(self) -> str:
        """The path of the step that the run is begun in; "" outside of steps."""
        return "" if self._active is None else self._active.facts.path

    @property
    def limits_changed(self) -> bool:
        """True if a step around declares another budget than the recorded one; False without."""
        again = self.again
        around = () if self._active is None else self._active.chain()
        return again is not None and any(again.limits_changed(each.facts) for each in around)

    @property
    def model(self) -> str | None:
        """The name of the model of the step, for a call that names none; None if it has none."""
        return None if self._active is None else self._active.model

    @property
    def scopes(self) -> Sequence[ScopeRef]:
        """The scope of the step, which pays beside the agent's; none outside of steps."""
        return () if self._active is None else (self._active.place,)

    def note_settled(self, model: str, charge: Charge) -> None:
        """Count a settled model call in the usage of the steps.

        Their scopes were charged already.
        """
        if self._active is not None:
            self._active.note(charge, model=model)

    def wrap(self, function: RunFunction) -> RunFunction:
        """Return a host function that runs in the step: programs call from threads of their own."""
        if self._active is None:
            return function
        return dataclasses.replace(function, function=within_step(self._active, function.function))

    def result_of(
        self, run: Run, *, refused: RefusedCall | None, rows: Callable[[], list[ScopeRow]]
    ) -> Run:
        """Return the run, or raise `StepBudgetError` if a budget of the steps around ended it.

        It is raised if another scope than the run's own refused the call that ended it. It is also
        raised if a limit of a step is passed. A run that was cancelled or is in doubt is returned.
        `refused` is the call by which it ended, None if it ended otherwise. `rows` returns the
        scopes around the run that are not steps. A refusal is noted for a later resume.
        """
        if self._active is None or run.stop in ("cancelled", "in_doubt"):
            return run
        if refused is not None and refused.error.scope.kind != "run":
            scopes = [*rows(), *self._active.rows()]
            facts = _preflight(refused, scopes, message=run.detail)
            self._note(RunNote(run=run.run, told=True, refused=_fit(facts)))
            raise StepBudgetError(facts, run=run.run, answer=run.answer)
        over = self._active.find_breach()
        if over is not None:
            raise StepBudgetError(over.facts, run=run.run, answer=run.answer)
        return run

    def result_for_caller(self, run: Run) -> Run:
        """Return the run, which is about to be reported to the step.

        That a run without an answer was reported is noted, so that a step that runs again gets the
        same. Nothing is noted if the run has not begun.
        """
        known = self.recorded is not None and self.recorded.note.told
        if not run.answered and not known:
            self._note(RunNote(run=run.run, told=True))
        return run

    def _note(self, note: RunNote) -> None:
        if self._active is not None and self._ledger is not None:
            self._active.book.note(self._active, self._ledger, note)


def _fit(facts: PreflightRefusal) -> dict[str, object]:
    """Return an error with values that fit a record."""
    found: dict[str, object] = {}
    for name in facts.__struct_fields__:
        value = getattr(facts, name)
        fits = encodable(value) if isinstance(value, str) else value
        found[name] = figure(value) if isinstance(value, int) else fits
    return found


def _preflight(refused: RefusedCall, rows: list[ScopeRow], *, message: str) -> PreflightRefusal:
    error = refused.error
    dimension: Dimension = error.dimension if isinstance(error, BudgetExhausted) else "usd"
    limits = [getattr(row.limit, dimension) for row in rows if row.scope == error.scope]
    spent = [row.spent.usd or 0 for row in rows if row.scope.kind == "session"]
    provider, colon, _ = refused.model.partition(":")
    return PreflightRefusal(
        dimension=dimension,
        limit_value=limits[0] if limits else None,
        projected_usd=refused.usd,
        session_usd=sum(spent),
        projected_input_tokens=refused.tokens_in,
        projected_output_tokens=refused.tokens_out,
        provider=provider if colon else "",
        model=refused.model,
        message=message,
    )


class StepPlace:
    """The steps around a place in a program, for runs that are asked for there."""

    def for_request(self, request: RunRequest, client: Asking) -> RunSteps:
        """Keep the steps around a run that is asked for here open, and find out which run it is.

        If the steps have a record, raise `UsageError` if an input cannot be read, or in a resume if
        the model cannot be opened. Raise the errors of `RunSteps.for_request`.
        """

        def request_of(again: StepReplay, model: str | None) -> RunAsked:
            name = None if again.replaying else client.model_of(request.model or model).name
            return RunAsked(
                goal=request.goal,
                inputs=inputs_digest(request.inputs),
                # None in a replay, because no model is opened for it.
                model=name,
                limits=request.limits,
                grants=tuple(request.grants),
                seed=request.seed,
                temperature=request.temperature,
                schema=request.schema,
                instructions=request.instructions,
            )

        return RunSteps.for_request(request.goal, lambda: client.ledger, request_of)

    def here(self, run: str) -> RunSteps:
        """Keep the steps around a run that is resumed or forked here open, inside the result.

        Raise `StepsDiverged` in a replay.
        """
        return RunSteps.here(run)
