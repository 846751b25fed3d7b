"""Start, serve and resume the runs that steps ask for; resume and replay chains of steps.

A recorded run that is over for its step is served as it ended. An interrupted one is resumed, under
the same id. In a replay it is replayed on its record, and one that is not over is a divergence.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import msgspec

from tallystick.core.errors import UsageError
from tallystick.core.history import History
from tallystick.core.machine.turn import limit_reached
from tallystick.core.records import InDoubt, ModelRefused, Record, RunEnded, RunRef
from tallystick.core.resume_errors import ResumeRefused, RunInDoubt
from tallystick.core.step import PreflightRefusal, StepBudgetError, StepsDiverged
from tallystick.ledger.port import Ledger
from tallystick.ledger.verify import verify_ledger
from tallystick.model.port import Model
from tallystick.runtime.run.assembly import RunContext, RunRequest
from tallystick.runtime.run.children import ChildRuns
from tallystick.runtime.run.replay import ReplayReport, replay
from tallystick.runtime.run.resume import ResumeRequest, ended_run, resume
from tallystick.runtime.run.start import start
from tallystick.runtime.run.surroundings import Surroundings
from tallystick.runtime.runs.history import skip_answered, whole_records
from tallystick.runtime.runs.lock import lock_run
from tallystick.runtime.runs.result import Run
from tallystick.steps.active import key_of
from tallystick.steps.decorator import current_step, run_ref, running_on_record
from tallystick.steps.replay import (
    RecordedRun,
    StepDivergence,
    StepHistory,
    StepReplay,
    StepsReport,
)
from tallystick.steps.surroundings import RunSteps

# The name of a run's own limits in a refusal.
_OWN_SCOPE = "this run"


async def run_in_steps(
    context: RunContext, request: RunRequest, steps: RunSteps, around: Surroundings
) -> Run:
    """Run a goal to its end, or return the result of an earlier process.

    `around` are the steps, and the session of the run if it is in one. A recorded run that is over
    is counted in the steps, and returned or raised as `StepBudgetError` as it was then; one that is
    not is resumed. A replay raises `StepsDiverged` for that one.

    Raise `RunInDoubt`, `ResumeRefused` or `UsageError` if the run cannot be resumed: then nothing
    was done, and the same request can be made again. Raise what `start` and `resume` raise too.
    """
    request = dataclasses.replace(request, model=request.model or steps.model)
    found = steps.recorded
    if found is None:
        _skip_answered(steps.again, context.model(request.model))
        children = ChildRuns(context, watch=request.watch, heard=request.heard)
        return await start(context, request, run=steps.run, children=children, around=around)
    try:
        return await _run_recorded(context, request, steps, found)
    except (RunInDoubt, ResumeRefused, UsageError):
        # Nothing was done: a repeated request must find the same recorded run again.
        found.taken = found.counted = False
        raise


async def _run_recorded(
    context: RunContext, request: RunRequest, steps: RunSteps, found: RecordedRun
) -> Run:
    again = steps.again
    assert again is not None
    records = _read_checked(context.ledger, found.run)
    if not _is_over(found, records, limits_changed=steps.limits_changed):
        if again.replaying:
            again.refuse_interrupted(steps.path, found.run)
        return await _continue_run(context, request, steps)
    if again.replaying:
        again.note_replayed(steps.path, _divergence(await replay(context, found.run)))
    steps.count_earlier(context.ledger, History(records))
    again.count([found])
    run = ended_run(context, found.run, records)
    if found.note.refused is not None:
        refused = msgspec.convert(found.note.refused, PreflightRefusal)
        raise StepBudgetError(refused, run=run.run, answer=run.answer)
    return steps.result_of(run, refused=None, rows=context.client_scopes.rows)


async def _continue_run(context: RunContext, request: RunRequest, steps: RunSteps) -> Run:
    again, found = steps.again, steps.recorded
    assert again is not None
    assert found is not None
    # The resume counts the recorded calls itself, as it passes over them.
    found.counted = True
    steps.begin(context.ledger)
    model = context.model(request.model)
    _skip_answered(again, model)
    resuming = ResumeRequest(
        in_doubt=again.in_doubt,
        limits=None,
        steal=False,
        watch=request.watch,
        heard=request.heard,
    )
    return await resume(
        dataclasses.replace(context, recorded_model=lambda _: model),
        found.run,
        resuming,
        children=ChildRuns(context, watch=request.watch, heard=request.heard, resuming=resuming),
        around=steps,
    )


def _skip_answered(again: StepReplay | None, model: Model) -> None:
    """Advance a model that answers by position, such as those of tests, past the recorded calls.

    Other models are left as they are. Raise what `StepReplay.history_of` raises.
    """
    if again is not None:
        runs = [run for found in again.history.runs.values() for run in found]
        own = [run.run for run in runs if run.started.model == model.name]
        skip_answered(model, *(again.history_of(run) for run in own))


def _is_over(found: RecordedRun, records: Sequence[Record], *, limits_changed: bool) -> bool:
    """Return True if a run is over for its step, False if it has to be resumed.

    A run that was answered, or used up its own limits, is over. A run is resumed if it has no end;
    if it was cancelled, or refused by an enclosing scope, and the step was not told; or if the step
    was told of a refusal, and the budgets have changed since.
    """
    ended = found.ended
    if ended is None:
        return False
    if (
        ended.stop == "answered"
        or limit_reached(History(records).started.limits, ended.charge) is not None
    ):
        return True
    if found.note.told:
        return found.note.refused is None or not limits_changed
    refused = [each for each in records if isinstance(each, ModelRefused)]
    by_others = ended.stop == "budget" and bool(refused) and refused[-1].scope != _OWN_SCOPE
    return not by_others and ended.stop != "cancelled"


def _read_checked(ledger: Ledger, run: str) -> list[Record]:
    """Return the records of a run.

    Raise `ResumeRefused` if its chain is not valid or a body was removed, `RunNotFound` if it is
    not there, and `RecordUnreadable` for a body that is no record of this version.
    """
    bad = verify_ledger(ledger, [run]).first_bad
    if bad is not None:
        raise ResumeRefused(run=run, why=f"does not hold at entry {bad.seq}: {bad.why}")
    return whole_records(ledger, run)


def run_of_ref(context: RunContext, ref: RunRef) -> Run | None:
    """Return the run that a kept value refers to; None if it is gone, has no end, or has changed.

    Raise `ResumeRefused` if its chain is not valid, or if a body was removed.
    """
    if context.ledger.row(ref.run) is None:
        return None
    records = _read_checked(context.ledger, ref.run)
    if not records or not isinstance(records[-1], RunEnded):
        return None
    run = ended_run(context, ref.run, records)
    return run if run_ref(run) == ref else None


def _divergence(report: ReplayReport) -> StepDivergence | None:
    found = report.divergence
    if found is None:
        return None
    field = f"entry {found.seq}: {found.field}"
    return StepDivergence(
        step="", run=report.run, field=field, recorded=found.recorded, now=found.now
    )


# Resume and replay of a chain of steps, as context managers.


@contextlib.contextmanager
def resume_steps(context: RunContext, chain: str, *, in_doubt: InDoubt) -> Iterator[None]:
    """Have the next outermost step inside resume a chain, which is locked meanwhile.

    Further outermost steps run as new ones. Raise `UsageError` inside a step, or while a living
    process holds the chain. Raise `RunNotOwned` if it was moved away or imported, and the errors of
    `StepHistory.read`.
    """
    _check_outside()
    ledger = context.ledger
    with lock_run(ledger, chain):
        again = StepReplay(
            StepHistory.read(ledger, chain),
            ledger=ledger,
            key=key_of(ledger),
            fence=ledger.claim(chain, create=False),
            in_doubt=in_doubt,
            find_run=lambda ref: run_of_ref(context, ref),
            count=lambda runs: _count(context, runs),
        )
        with running_on_record(again):
            yield


@contextlib.contextmanager
def replay_steps(context: RunContext, chain: str) -> Iterator[StepsReport]:
    """Have the next outermost step inside replay a chain. Nothing is written, and nothing new runs.

    Give the report, which is complete after the block. Errors that are divergences of this chain
    end here. Raise `UsageError` inside a step, and the errors of `StepHistory.read`.
    """
    _check_outside()
    report = StepsReport(chain=chain)
    again = StepReplay(
        StepHistory.read(context.ledger, chain),
        ledger=context.ledger,
        key=key_of(context.ledger),
        fence=0,
        report=report,
        find_run=lambda ref: run_of_ref(context, ref),
        count=lambda runs: None,
    )
    with running_on_record(again):
        try:
            yield report
        except BaseException as error:
            # A divergence is the result of a replay, and is in the report.
            if not _is_divergence(error, chain):
                raise
        finally:
            again.finish()


def _count(context: RunContext, runs: Sequence[RecordedRun]) -> None:
    """Inform the agent of the cost of runs of an earlier process.

    Those without an end are left out.
    """
    for each in runs:
        if each.ended is not None:
            with context.client_scopes.run(
                each.run, each.started.limits, context.ledger
            ) as model_door:
                model_door.count_recorded(each.started.model, each.ended.charge)


def _is_divergence(error: BaseException, chain: str) -> bool:
    """Return True if an error is a divergence of a chain, or a group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_divergence(each, chain) for each in error.exceptions)
    return isinstance(error, StepsDiverged) and error.chain == chain


def _check_outside() -> None:
    if current_step() is not None:
        raise UsageError(
            "a chain of steps is resumed or replayed outside of steps; leave this step"
        )
