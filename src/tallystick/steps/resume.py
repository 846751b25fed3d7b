"""Runs that steps ask for, new or of an earlier process; chains resumed or replayed.

One that is over for its step is served as it ended; one that was cut off is gone on with, under the
same id. In a replay it is run again on its record, and one that is not over is a divergence.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import msgspec

from tallystick.core.errors import UsageError
from tallystick.core.history import History
from tallystick.core.machine.turn import over
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
from tallystick.runtime.runs.lock import held_run
from tallystick.runtime.runs.result import Run
from tallystick.steps.active import key_of
from tallystick.steps.replay import (
    RecordedRun,
    StepDivergence,
    StepHistory,
    StepReplay,
    StepsReport,
)
from tallystick.steps.step import current_step, run_ref, running_again
from tallystick.steps.surroundings import RunSteps

# The scope of a run's own limits, as a refusal names it.
_OWN_SCOPE = "this run"


async def run_placed(
    context: RunContext, request: RunRequest, steps: RunSteps, around: Surroundings
) -> Run:
    """Run a goal to its end, or give what an earlier process came to.

    `around` are the steps, and the session of the run if it is in one.
    """
    request = dataclasses.replace(request, model=request.model or steps.model)
    found = steps.recorded
    if found is None:
        _skip_answered(steps.again, context.model(request.model))
        children = ChildRuns(context, watch=request.watch, heard=request.heard)
        return await start(context, request, run=steps.run, children=children, around=around)
    try:
        return await _recorded(context, request, steps, found)
    except (RunInDoubt, ResumeRefused, UsageError):
        # Nothing was done: who asks once more asks for the same one.
        found.taken = found.counted = False
        raise


async def _recorded(
    context: RunContext, request: RunRequest, steps: RunSteps, found: RecordedRun
) -> Run:
    again = steps.again
    assert again is not None
    records = _checked(context.ledger, found.run)
    if not _is_over(found, records, limits_changed=steps.limits_changed):
        if again.replaying:
            again.cut_off(steps.path, found.run)
        return await _continue_run(context, request, steps)
    if again.replaying:
        again.replayed(steps.path, _divergence(await replay(context, found.run)))
    steps.recall(context.ledger, History(records))
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
    # What it has cost is counted as it is gone through.
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
    """Put a model that answers by position, as those of tests do, after all calls it answered."""
    if again is not None:
        runs = [run for found in again.history.runs.values() for run in found]
        own = [run.run for run in runs if run.started.model == model.name]
        skip_answered(model, *(again.history_of(run) for run in own))


def _is_over(found: RecordedRun, records: Sequence[Record], *, limits_changed: bool) -> bool:
    """Whether a run is over for its step: it has its answer, or the step knows that it has none.

    One that was cancelled, or not paid for by others, and whose step never heard of it, is gone on
    with; so is one that was not paid for if there is another budget now.
    """
    ended = found.ended
    if ended is None:
        return False
    if ended.stop == "answered" or over(History(records).started.limits, ended.charge) is not None:
        return True
    if found.note.told:
        return found.note.refused is None or not limits_changed
    refused = [each for each in records if isinstance(each, ModelRefused)]
    by_others = ended.stop == "budget" and bool(refused) and refused[-1].scope != _OWN_SCOPE
    return not by_others and ended.stop != "cancelled"


def _checked(ledger: Ledger, run: str) -> list[Record]:
    """The records of a run; refused if its chain does not hold."""
    bad = verify_ledger(ledger, [run]).first_bad
    if bad is not None:
        raise ResumeRefused(run=run, why=f"does not hold at entry {bad.seq}: {bad.why}")
    return whole_records(ledger, run)


def run_of_ref(context: RunContext, ref: RunRef) -> Run | None:
    """The run that a kept value refers to, None if it is not what it was."""
    if context.ledger.row(ref.run) is None:
        return None
    records = _checked(context.ledger, ref.run)
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


# A chain of steps gone on with, or replayed, for the length of a `with`.


@contextlib.contextmanager
def resumed_steps(context: RunContext, chain: str, *, in_doubt: InDoubt) -> Iterator[None]:
    """Have the next outermost step go on with a chain, which is held meanwhile."""
    _check_outside()
    ledger = context.ledger
    with held_run(ledger, chain):
        again = StepReplay(
            StepHistory.read(ledger, chain),
            ledger=ledger,
            key=key_of(ledger),
            fence=ledger.claim(chain, create=False),
            in_doubt=in_doubt,
            find_run=lambda ref: run_of_ref(context, ref),
            count=lambda runs: _count(context, runs),
        )
        with running_again(again):
            yield


@contextlib.contextmanager
def replayed_steps(context: RunContext, chain: str) -> Iterator[StepsReport]:
    """Have the next outermost step run again on a chain, with nothing live. Writes nothing."""
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
    with running_again(again):
        try:
            yield report
        except BaseException as error:
            # A divergence is in the report, which is what was asked for.
            if not _is_divergence(error, chain):
                raise
        finally:
            again.over()


def _count(context: RunContext, runs: Sequence[RecordedRun]) -> None:
    """Have the session know what runs of an earlier life have cost."""
    for each in runs:
        if each.ended is not None:
            with context.client_scopes.run(
                each.run, each.started.limits, context.ledger
            ) as model_door:
                model_door.count_recorded(each.started.model, each.ended.charge)


def _is_divergence(error: BaseException, chain: str) -> bool:
    """Whether an error is a divergence of a chain, or a group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_divergence(each, chain) for each in error.exceptions)
    return isinstance(error, StepsDiverged) and error.chain == chain


def _check_outside() -> None:
    if current_step() is not None:
        raise UsageError("a chain of steps is gone on with by its outermost step, outside of steps")
