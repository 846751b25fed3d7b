"""A chain of steps gone on with, or replayed, for the length of a `with`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from tallystick.core.errors import UsageError
from tallystick.core.passage_records import InDoubt
from tallystick.core.step_errors import StepsDiverged
from tallystick.runtime.resume import Parts
from tallystick.runtime.run_lock import held_run
from tallystick.runtime.step_again import StepsAgain
from tallystick.runtime.step_asked import run_of_ref
from tallystick.runtime.step_book import key_of
from tallystick.runtime.step_frame import current_step, running_again
from tallystick.runtime.step_history import RecordedRun, StepHistory
from tallystick.runtime.step_report import StepsReport

__all__ = ["replayed_steps", "resumed_steps"]


@contextlib.contextmanager
def resumed_steps(parts: Parts, chain: str, *, in_doubt: InDoubt) -> Iterator[None]:
    """Have the next outermost step go on with a chain, which is held meanwhile."""
    _check_outside()
    ledger = parts.ledger
    with held_run(ledger, chain):
        again = StepsAgain(
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
    again = StepsAgain(
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
            with parts.till.run(each.run, each.started.limits, parts.ledger) as teller:
                teller.recalled(each.started.model, each.ended.charge)


def _is_divergence(error: BaseException, chain: str) -> bool:
    """Whether an error is a divergence of a chain, or a group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_divergence(each, chain) for each in error.exceptions)
    return isinstance(error, StepsDiverged) and error.chain == chain


def _check_outside() -> None:
    if current_step() is not None:
        raise UsageError("a chain of steps is gone on with by its outermost step, outside of steps")
