"""A run that is begun inside steps: who else pays for it, what they note, what its end becomes.

Rule: outside of steps a run always returns. Inside, one that ended because a budget around it is
exhausted raises instead, so that the steps' boundaries see it: a call that nobody pays for, or a
bill that was higher than anyone could know. The run's own limits are the caller's, and return.

A run belongs to the step that it was asked for in, also if it starts after that one was left.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tallystick.core.budget_amount import Dimension, ScopeRow
from tallystick.core.budget_errors import BudgetExhausted
from tallystick.core.charge import Charge
from tallystick.core.step_errors import PreflightRefusal, StepBudgetError
from tallystick.ledger.port import Ledger
from tallystick.runtime.active_step import ActiveStep
from tallystick.runtime.functions import RunFunction
from tallystick.runtime.purse import Place
from tallystick.runtime.refused_call import RefusedCall
from tallystick.runtime.run import Run
from tallystick.runtime.step import current_step, within_step

__all__ = ["RunSteps"]


class RunSteps:
    """The steps around a run, held from where it is begun until it ends, in another thread."""

    def __init__(self, active: ActiveStep | None, *, run: str = "") -> None:
        self._active = active
        self._run = run
        self._begun = False

    @classmethod
    def here(cls, run: str) -> RunSteps:
        """Hold what stands around this point, for a run. A `with` lets go of it."""
        active = current_step()
        return cls(None if active is None else active.hold(run), run=run)

    def __enter__(self) -> RunSteps:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._active is not None:
            if not self._begun:
                self._active.forget_run(self._run)
            self._active.let_go()

    def begin(self, ledger: Ledger) -> tuple[str, str] | tuple[None, None]:
        """The run is about to begin: have its steps on its ledger before it.

        Returns the id of their chain and the path of the innermost, if there are any.
        """
        if self._active is None:
            return None, None
        chain = self._active.book.begin(self._active, ledger)
        self._begun = True
        return chain, self._active.facts.path

    @property
    def model(self) -> str | None:
        """The name of the model, if the call names none."""
        return None if self._active is None else self._active.model

    @property
    def places(self) -> tuple[Place, ...]:
        """What has to pay beside the session."""
        return () if self._active is None else (self._active.place,)

    def noted(self, model: str, charge: Charge) -> None:
        """Count a call that was settled."""
        if self._active is not None:
            self._active.note(charge, model=model)

    def inside(self, function: RunFunction) -> RunFunction:
        """A host function as if the step had called it: programs call from threads of their own."""
        if self._active is None:
            return function
        return dataclasses.replace(function, function=within_step(self._active, function.function))

    def checked(
        self, run: Run, *, stopped_by: RefusedCall | None, rows: Callable[[], list[ScopeRow]]
    ) -> Run:
        """The run, unless it is for the steps to say what becomes of it.

        `stopped_by` is the call by which it ended, if it ended so; `rows` are the scopes around
        the run that are not steps.
        """
        if self._active is None or run.stop in ("cancelled", "in_doubt"):
            return run
        if stopped_by is not None and stopped_by.error.scope.kind != "run":
            scopes = [*rows(), *self._active.rows()]
            facts = _preflight(stopped_by, scopes, message=run.detail)
            raise StepBudgetError(facts, run=run.run, answer=run.answer)
        over = self._active.overdrawn()
        if over is not None:
            raise StepBudgetError(over.facts, run=run.run, answer=run.answer)
        return run


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
