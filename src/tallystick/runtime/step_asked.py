"""A run that was asked for: a new one, or inside steps that run again one of an earlier life.

One that is over for its step is served as it ended; one that was cut off is gone on with, under the
same id. In a replay it is run again on its record, and one that is not over is a divergence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

import msgspec

from tallystick.core.caps import over
from tallystick.core.errors import UsageError
from tallystick.core.passage_errors import ResumeRefused, RunInDoubt
from tallystick.core.records import ModelRefused, Record, RunEnded
from tallystick.core.step_errors import PreflightRefusal, StepBudgetError
from tallystick.core.step_value import RunRef
from tallystick.ledger.port import Ledger, find_row
from tallystick.ledger.verify import verify
from tallystick.model.port import Model
from tallystick.runtime.child_run import Family
from tallystick.runtime.history import whole_records
from tallystick.runtime.live_run import RunJob, run_live
from tallystick.runtime.native_run import native_for
from tallystick.runtime.replay import ReplayReport
from tallystick.runtime.resume import Parts, ResumeJob, ended_run, resumed
from tallystick.runtime.run import Run
from tallystick.runtime.run_lock import held_run
from tallystick.runtime.so_far import holder_of, skip_answered, start_now
from tallystick.runtime.step_again import StepsAgain
from tallystick.runtime.step_frame import run_ref
from tallystick.runtime.step_history import RecordedRun, RunAsked, inputs_digest
from tallystick.runtime.step_report import StepDivergence
from tallystick.runtime.step_run import RunSteps
from tallystick.sandbox.identity import new_id

__all__ = ["run_asked", "run_of_ref", "steps_for"]

# The scope of a run's own limits, as a refusal names it.
_OWN_SCOPE = "this run"


def steps_for(
    job: RunJob, ledger: Callable[[], Ledger], model_of: Callable[[str | None], Model]
) -> RunSteps:
    """The steps around a run that is asked for here, held; and which run it is."""

    def asked(again: StepsAgain, model: str | None) -> RunAsked:
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
    ledger, till, run = parts.ledger, parts.till, steps.run
    session_id = new_id()
    with held_run(ledger, run), till.run(run, job.limits, ledger, steps=steps) as teller:
        model = model_of(job.model or steps.model)
        _skip_answered(steps.again, model)
        ended, _ = await run_live(
            job,
            run=run,
            session_id=session_id,
            model=model,
            sandbox=parts.sandbox,
            native=await native_for(parts.backends, job.joined),
            ledger=ledger,
            functions=[steps.inside(each) for each in parts.functions],
            shelf=parts.shelf(session_id, job.grants),
            teller=teller,
            find_model=parts.find_model(model),
            steps=steps,
            children=Family(parts, watch=job.watch, heard=job.heard),
            skills=parts.skills,
            memory=parts.memory,
            vocabulary=parts.vocabulary,
        )
        return steps.checked(ended, stopped_by=teller.stopped_by, rows=till.rows)


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
        return await _gone_on_with(parts, job, steps, model_of)
    if again.replaying:
        again.replayed(steps.path, _divergence(await replay(found.run)))
    steps.recall(parts.ledger, records)
    again.count([found])
    run = _ended(parts, found.run, records)
    if found.note.refused is not None:
        refused = msgspec.convert(found.note.refused, PreflightRefusal)
        raise StepBudgetError(refused, run=run.run, answer=run.answer)
    return steps.checked(run, stopped_by=None, rows=parts.till.rows)


async def _gone_on_with(
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
        children=Family(parts, watch=job.watch, heard=job.heard, resuming=resuming),
    )


def _skip_answered(again: StepsAgain | None, model: Model) -> None:
    """Put a model that answers by position, as those of tests do, behind all calls it answered."""
    skip = getattr(model, "skip", None)
    if again is not None and skip is not None:
        counting = _Counting(model.name)
        for runs in again.history.runs.values():
            for run in runs:
                if run.started.model == model.name:
                    skip_answered(cast(Model, counting), again.records(run.run))
        skip(counting.calls)


class _Counting:
    """Counts what a model would skip, of several runs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls = 0

    def skip(self, calls: int) -> None:
        self.calls += calls


def _is_over(found: RecordedRun, records: Sequence[Record], *, limits_changed: bool) -> bool:
    """Whether a run is over for its step: it has its answer, or the step knows that it has none.

    One that was cancelled, or not paid for by others, and whose step never heard of it, is gone on
    with; so is one that was not paid for if there is another budget now.
    """
    ended = found.ended
    if ended is None:
        return False
    if ended.stop == "answered" or over(start_now(records).limits, ended.charge) is not None:
        return True
    if found.note.told:
        return found.note.refused is None or not limits_changed
    refused = [each for each in records if isinstance(each, ModelRefused)]
    by_others = ended.stop == "budget" and bool(refused) and refused[-1].scope != _OWN_SCOPE
    return not by_others and ended.stop != "cancelled"


def _checked(ledger: Ledger, run: str) -> list[Record]:
    """The records of a run; refused if its chain does not hold."""
    bad = verify(ledger, [run]).first_bad
    if bad is not None:
        raise ResumeRefused(run=run, why=f"does not hold at entry {bad.seq}: {bad.why}")
    return whole_records(ledger, run)


def run_of_ref(parts: Parts, ref: RunRef) -> Run | None:
    """The run that a kept value refers to, None if it is not what it was."""
    if find_row(parts.ledger, ref.run) is None:
        return None
    records = _checked(parts.ledger, ref.run)
    if not records or not isinstance(records[-1], RunEnded):
        return None
    run = _ended(parts, ref.run, records)
    return run if run_ref(run) == ref else None


def _ended(parts: Parts, run: str, records: Sequence[Record]) -> Run:
    shelf = parts.shelf(holder_of(records), start_now(records).grants)
    return ended_run(run, records, ledger=parts.ledger, shelf=shelf)


def _divergence(report: ReplayReport) -> StepDivergence | None:
    found = report.divergence
    if found is None:
        return None
    field = f"entry {found.seq}: {found.field}"
    return StepDivergence(
        step="", run=report.run, field=field, recorded=found.recorded, now=found.now
    )
