"""Define `Run`, the result of a run for its caller."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tallystick.core.charge import Charge
from tallystick.core.citation.cited import Citation, Cited, Unchecked
from tallystick.core.machine.answer import value_of
from tallystick.core.machine.prompt import is_older
from tallystick.core.machine.state import RunState
from tallystick.core.records import RunEnded, RunStarted, StopReason
from tallystick.runtime.runs.waiting import Waiting

_NOTHING = Cited()


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a run that has ended. `answer` is partial unless `stop` is `answered`.

    `citations` are places in the inputs, checked against their bytes. `unchecked` are the claims of
    the answer about its sources that could not be checked. With a schema, `answer` is JSON and
    `value` is that JSON decoded. `said` is the last reply of the model if the run has no answer.
    `session_lost` says that the session could not keep the variables of the run. Inside steps,
    `parent` is the id of their chain in the ledger, and `step` the path of the step that began the
    run. `settings` gives the source of each setting that is not a default. `waits` are the calls
    and programs that wait for a person, of a run that stopped as `waiting`.
    """

    run: str
    answer: str | None
    stop: StopReason
    detail: str
    partial: bool
    turns: int
    charge: Charge
    citations: tuple[Citation, ...]
    ledger: str
    parent: str | None = None
    step: str | None = None
    unchecked: tuple[Unchecked, ...] = ()
    value: object = None
    settings: Mapping[str, str] = {}
    session_lost: bool = False
    said: str | None = None
    waits: tuple[Waiting, ...] = ()

    @property
    def answered(self) -> bool:
        """True if the run has an answer that is not partial."""
        return self.stop == "answered"


def said_at_end(ended: RunEnded, started: RunStarted, said: str | None) -> str | None:
    """Return `said`, the last reply of the model, for a run that was not answered; else None.

    Return None for runs with the prompts of an older version too: their steps have recorded results
    without this reply.
    """
    return None if ended.stop == "answered" or is_older(started) else said


def run_of(
    run_id: str,
    state: RunState,
    *,
    ledger: str,
    cited: Cited = _NOTHING,
    parent: str | None = None,
    step: str | None = None,
    session_lost: bool = False,
) -> Run:
    """Return the result of a run from its final state. The run must have ended."""
    assert state.ended is not None
    return Run(
        run=run_id,
        answer=state.ended.answer,
        stop=state.ended.stop,
        detail=state.ended.detail,
        partial=state.ended.partial,
        turns=state.charge.turns,
        charge=state.ended.charge,
        citations=cited.citations,
        ledger=ledger,
        parent=parent,
        step=step,
        unchecked=cited.unchecked,
        session_lost=session_lost,
        said=said_at_end(state.ended, state.started, state.said),
        value=value_of(state.answer, state.started) if state.ended.stop == "answered" else None,
        settings=state.started.settings or {},
    )
