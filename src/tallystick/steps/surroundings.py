"""A run that is begun inside steps: who else pays for it, what they note, what its end becomes.

Rule: outside of steps a run always returns. Inside, one that ended because a budget around it is
exhausted raises instead, so that the steps' boundaries see it: a call that nobody pays for, or a
bill that was higher than anyone could know. The run's own limits are the caller's, and return.

A run belongs to the step that it was asked for in, also if it starts after that one was left. Where
the step runs again, it may be one of an earlier life: it is found when it is asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tallystick.core.budget.amount import BudgetExhausted, Dimension, ScopeRow
from tallystick.core.charge import Charge
from tallystick.core.history import History
from tallystick.core.records import RunNote, figure, written
from tallystick.core.step import PreflightRefusal, StepBudgetError
from tallystick.ledger.port import Ledger
from tallystick.runtime.calls.functions import RunFunction
from tallystick.runtime.run.surroundings import Asking, Surroundings
from tallystick.runtime.runs.history import whole_records
from tallystick.runtime.runs.result import Run
from tallystick.runtime.spend.door import RefusedCall
from tallystick.runtime.spend.scopes import ScopeRef
from tallystick.steps.active import ActiveStep, key_of
from tallystick.steps.replay import (
    RecordedRun,
    RunAsked,
    StepReplay,
    charges_of,
    inputs_digest,
)
from tallystick.steps.step import call_around, current_step, refuse_if_replaying, within_step
from tallystick.storage.clock import new_id

if TYPE_CHECKING:
    from tallystick.runtime.run.assembly import RunContext, RunRequest


class RunSteps(Surroundings):
    """The steps around a run, held from where it is begun until it ends, in another thread.

    `recorded` is what an earlier life left of the run, None of a new one.
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
        """Hold what stands around this point, for a run. A `with` lets go of it."""
        refuse_if_replaying(run)
        active = current_step()
        held = None if active is None else active.hold()
        if held is not None:
            held.name_run(run)
        return cls(held, run=run)

    @classmethod
    def for_request(
        cls,
        goal: str,
        ledger: Callable[[], Ledger],
        asked: Callable[[StepReplay, str | None], RunAsked],
    ) -> RunSteps:
        """The same for a run that is asked for here: a new one, or one of an earlier life.

        `asked` says with what, given the model of the step. Raises `StepsDiverged` if the step
        asked for another one at this place.
        """
        active = current_step()
        if active is None or active.again is None:
            refuse_if_replaying(goal)
        caller = call_around(active)
        held = None if active is None else active.hold()
        if held is None or held.again is None:
            found, run = None, new_id()
        else:
            try:
                found = held.again.find(
                    held.facts.path,
                    asked(held.again, held.model),
                    key=key_of(ledger()),
                    in_order=held.is_here(),
                    caller=caller,
                )
            except BaseException:
                held.let_go()
                raise
            run = new_id() if found is None else found.run
        if held is not None:
            held.name_run(run)
        return cls(held, run=run, recorded=found, caller=caller)

    def __enter__(self) -> RunSteps:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._active is not None:
            if not self._begun:
                self._active.forget_run(self.run)
            self._active.let_go()

    def begin(self, ledger: Ledger) -> Mapping[str, Any]:
        """Have the steps on the ledger of a run that is about to begin, before it.

        Gives the id of their chain and the path of the innermost, if there are any.
        """
        if self._active is None:
            return {}
        new = self._caller and self.recorded is None
        note = RunNote(run=self.run, caller=self._caller) if new else None
        chain = self._active.book.begin(self._active, ledger, note)
        self._begun, self._ledger = True, ledger
        return {"parent": chain, "step": self._active.facts.path}

    def recall(self, ledger: Ledger, history: History) -> None:
        """The run is over in the record: count in the steps around what it came to."""
        assert self._active is not None
        self._begun, self._ledger = True, ledger
        for model, charge in charges_of(history, lambda run: History(whole_records(ledger, run))):
            self._active.recall(charge, model=model)

    @property
    def is_recorded(self) -> bool:
        """Whether it is a run of an earlier process, which knows its session itself."""
        return self.recorded is not None

    @property
    def around(self) -> Surroundings:
        """The steps themselves."""
        return self

    async def work(self, context: RunContext, request: RunRequest, around: Surroundings) -> Run:
        """Run a goal to its end, or give what an earlier process came to."""
        from tallystick.steps.resume import run_placed

        return await run_placed(context, request, self, around)

    @property
    def again(self) -> StepReplay | None:
        """What an earlier life of the steps left."""
        return None if self._active is None else self._active.again

    @property
    def path(self) -> str:
        """The path of the step that the run is begun in."""
        return "" if self._active is None else self._active.facts.path

    @property
    def limits_changed(self) -> bool:
        """Whether a step around declares another budget than in an earlier life."""
        again = self.again
        around = () if self._active is None else self._active.chain()
        return again is not None and any(again.limits_changed(each.facts) for each in around)

    @property
    def model(self) -> str | None:
        """The name of the model, if the call names none."""
        return None if self._active is None else self._active.model

    @property
    def scopes(self) -> Sequence[ScopeRef]:
        """What has to pay beside the client."""
        return () if self._active is None else (self._active.place,)

    def note_settled(self, model: str, charge: Charge) -> None:
        """Count a call that was settled."""
        if self._active is not None:
            self._active.note(charge, model=model)

    def wrap(self, function: RunFunction) -> RunFunction:
        """A host function as if the step had called it: programs call from threads of their own."""
        if self._active is None:
            return function
        return dataclasses.replace(function, function=within_step(self._active, function.function))

    def result_of(
        self, run: Run, *, refused: RefusedCall | None, rows: Callable[[], list[ScopeRow]]
    ) -> Run:
        """Return the run, unless it is for the steps to say what becomes of it.

        `refused` is the call by which it ended, if it ended so; `rows` are the scopes around the
        run that are not steps.
        """
        if self._active is None or run.stop in ("cancelled", "in_doubt"):
            return run
        if refused is not None and refused.error.scope.kind != "run":
            scopes = [*rows(), *self._active.rows()]
            facts = _preflight(refused, scopes, message=run.detail)
            self._note(RunNote(run=run.run, told=True, refused=_fit(facts)))
            raise StepBudgetError(facts, run=run.run, answer=run.answer)
        over = self._active.overdrawn()
        if over is not None:
            raise StepBudgetError(over.facts, run=run.run, answer=run.answer)
        return run

    def result_for_caller(self, run: Run) -> Run:
        """The run, about to be told to the step; of one without an answer that is noted.

        So a step that runs again is told the same.
        """
        known = self.recorded is not None and self.recorded.note.told
        if not run.answered and not known:
            self._note(RunNote(run=run.run, told=True))
        return run

    def _note(self, note: RunNote) -> None:
        if self._active is not None and self._ledger is not None:
            self._active.book.note(self._active, self._ledger, note)


def _fit(facts: PreflightRefusal) -> dict[str, object]:
    """An error as a record holds it."""
    found: dict[str, object] = {}
    for name in facts.__struct_fields__:
        value = getattr(facts, name)
        fits = written(value) if isinstance(value, str) else value
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
        """Hold the steps around a run that is asked for here; find which run it is."""

        def asked(again: StepReplay, model: str | None) -> RunAsked:
            name = None if again.replaying else client.model_of(request.model or model).name
            return RunAsked(
                goal=request.goal,
                inputs=inputs_digest(request.inputs),
                # Nobody opens a model for a replay.
                model=name,
                limits=request.limits,
                grants=tuple(request.grants),
                seed=request.seed,
                temperature=request.temperature,
                schema=request.schema,
            )

        return RunSteps.for_request(request.goal, lambda: client.ledger, asked)

    def here(self, run: str) -> RunSteps:
        """Hold the steps around a run that is resumed or forked here."""
        return RunSteps.here(run)
