"""Runs that steps ask for, new or of an earlier process; chains resumed or replayed.

One that is over for its step is served as it ended; one that was cut off is gone on with, under the
same id. In a replay it is run again on its record, and one that is not over is a divergence.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Iterator, Sequence

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
from tallystick.runtime.programs.native import native_for
from tallystick.runtime.run.assembly import ResumeJob, RunJob, run_live
from tallystick.runtime.run.children import ChildRuns
from tallystick.runtime.run.replay import ReplayReport
from tallystick.runtime.run.resume import Parts, ended_run, resumed
from tallystick.runtime.runs.history import skip_answered, whole_records
from tallystick.runtime.runs.lock import held_run
from tallystick.runtime.runs.result import Run
from tallystick.steps.active import key_of
from tallystick.steps.replay import (
    RecordedRun,
    RunAsked,
    StepDivergence,
    StepHistory,
    StepReplay,
    StepsReport,
    inputs_digest,
)
from tallystick.steps.runs import RunSteps
from tallystick.steps.step import current_step, run_ref, running_again
from tallystick.storage.clock import new_id

# The scope of a run's own limits, as a refusal names it.
_OWN_SCOPE = "this run"


def steps_for(
    job: RunJob, ledger: Callable[[], Ledger], model_of: Callable[[str | None], Model]
) -> RunSteps:
    """The steps around a run that is asked for here, held; and which run it is."""

    def asked(again: StepReplay, model: str | None) -> RunAsked:
        name = None if again.replaying else model_of(job.model or model).name
        return RunAsked(
            goal=job.goal,
            inputs=inputs_digest(job.inputs),
            # Nobody opens a model for a replay.
            model=name,
            limits=job.limits,
            grants=tuple(job.grants),
            seed=job.seed,
            temperature=job.temperature,
            schema=job.schema,
        )

    return RunSteps.asked(job.goal, ledger, asked)


async def run_asked(
    parts: Parts,
    job: RunJob,
    steps: RunSteps,
    *,
    model_of: Callable[[str | None], Model],
    replay: Callable[[str], Awaitable[ReplayReport]],
) -> Run:
    """Run a goal to its end, or give what an earlier life came to."""
    with steps:
        found = steps.recorded
        if found is None:
            return await _new(parts, job, steps, model_of)
        try:
            return await _recorded(parts, job, steps, found, model_of, replay)
        except (RunInDoubt, ResumeRefused, UsageError):
            # Nothing was done: who asks once more asks for the same one.
            found.taken = found.counted = False
            raise


async def _new(
    parts: Parts, job: RunJob, steps: RunSteps, model_of: Callable[[str | None], Model]
) -> Run:
    ledger, client_scopes, run = parts.ledger, parts.client_scopes, steps.run
    session_id = new_id()
    with (
        held_run(ledger, run),
        client_scopes.run(run, job.limits, ledger, steps=steps) as model_door,
    ):
        model = model_of(job.model or steps.model)
        _skip_answered(steps.again, model)
        ended, _, refused = await run_live(
            job,
            run=run,
            session_id=session_id,
            model=model,
            sandbox=parts.sandbox,
            native=await native_for(parts.backends, job.lease),
            ledger=ledger,
            functions=[steps.inside(each) for each in parts.functions],
            run_attachments=parts.run_attachments(session_id, job.grants),
            model_door=model_door,
            find_model=parts.find_model(model),
            steps=steps,
            children=ChildRuns(parts, watch=job.watch, heard=job.heard),
            skills=parts.skills,
            memory=parts.memory,
            vocabulary=parts.vocabulary,
        )
        return steps.checked(ended, stopped_by=refused, rows=client_scopes.rows)


async def _recorded(
    parts: Parts,
    job: RunJob,
    steps: RunSteps,
    found: RecordedRun,
    model_of: Callable[[str | None], Model],
    replay: Callable[[str], Awaitable[ReplayReport]],
) -> Run:
    again = steps.again
    assert again is not None
    records = _checked(parts.ledger, found.run)
    if not _is_over(found, records, limits_changed=steps.limits_changed):
        if again.replaying:
            again.cut_off(steps.path, found.run)
        return await _continue_run(parts, job, steps, model_of)
    if again.replaying:
        again.replayed(steps.path, _divergence(await replay(found.run)))
    steps.recall(parts.ledger, records)
    again.count([found])
    run = _ended(parts, found.run, records)
    if found.note.refused is not None:
        refused = msgspec.convert(found.note.refused, PreflightRefusal)
        raise StepBudgetError(refused, run=run.run, answer=run.answer)
    return steps.checked(run, stopped_by=None, rows=parts.client_scopes.rows)


async def _continue_run(
    parts: Parts, job: RunJob, steps: RunSteps, model_of: Callable[[str | None], Model]
) -> Run:
    again, found = steps.again, steps.recorded
    assert again is not None
    assert found is not None
    # What it has cost is counted as it is gone through.
    found.counted = True
    steps.begin(parts.ledger)
    model = model_of(job.model or steps.model)
    _skip_answered(again, model)
    resuming = ResumeJob(
        in_doubt=again.in_doubt, limits=None, steal=False, watch=job.watch, heard=job.heard
    )
    return await resumed(
        dataclasses.replace(parts, model=lambda _: model),
        found.run,
        resuming,
        steps,
        children=ChildRuns(parts, watch=job.watch, heard=job.heard, resuming=resuming),
    )


def _skip_answered(again: StepReplay | None, model: Model) -> None:
    """Put a model that answers by position, as those of tests do, after all calls it answered."""
    if again is not None:
        runs = [run for found in again.history.runs.values() for run in found]
        own = [run.run for run in runs if run.started.model == model.name]
        skip_answered(model, *(History(again.records(run)) for run in own))


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


def run_of_ref(parts: Parts, ref: RunRef) -> Run | None:
    """The run that a kept value refers to, None if it is not what it was."""
    if parts.ledger.row(ref.run) is None:
        return None
    records = _checked(parts.ledger, ref.run)
    if not records or not isinstance(records[-1], RunEnded):
        return None
    run = _ended(parts, ref.run, records)
    return run if run_ref(run) == ref else None


def _ended(parts: Parts, run: str, records: Sequence[Record]) -> Run:
    run_attachments = parts.run_attachments(
        History(records).holder, History(records).started.grants
    )
    return ended_run(run, records, ledger=parts.ledger, run_attachments=run_attachments)


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
def resumed_steps(parts: Parts, chain: str, *, in_doubt: InDoubt) -> Iterator[None]:
    """Have the next outermost step go on with a chain, which is held meanwhile."""
    _check_outside()
    ledger = parts.ledger
    with held_run(ledger, chain):
        again = StepReplay(
            StepHistory.read(ledger, chain),
            ledger=ledger,
            key=key_of(ledger),
            fence=ledger.claim(chain, create=False),
            in_doubt=in_doubt,
            find_run=lambda ref: run_of_ref(parts, ref),
            count=lambda runs: _count(parts, runs),
        )
        with running_again(again):
            yield


@contextlib.contextmanager
def replayed_steps(parts: Parts, chain: str) -> Iterator[StepsReport]:
    """Have the next outermost step run again on a chain, with nothing live. Writes nothing."""
    _check_outside()
    report = StepsReport(chain=chain)
    again = StepReplay(
        StepHistory.read(parts.ledger, chain),
        ledger=parts.ledger,
        key=key_of(parts.ledger),
        fence=0,
        report=report,
        find_run=lambda ref: run_of_ref(parts, ref),
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


def _count(parts: Parts, runs: Sequence[RecordedRun]) -> None:
    """Have the session know what runs of an earlier life have cost."""
    for each in runs:
        if each.ended is not None:
            with parts.client_scopes.run(each.run, each.started.limits, parts.ledger) as model_door:
                model_door.recalled(each.started.model, each.ended.charge)


def _is_divergence(error: BaseException, chain: str) -> bool:
    """Whether an error is a divergence of a chain, or a group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_divergence(each, chain) for each in error.exceptions)
    return isinstance(error, StepsDiverged) and error.chain == chain


def _check_outside() -> None:
    if current_step() is not None:
        raise UsageError("a chain of steps is gone on with by its outermost step, outside of steps")
