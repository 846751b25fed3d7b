"""Replay a run: drive it again on its record, with nothing live, and compare entry by entry.

A replay uses no model, no network and no host function. Replies and answers come from the ledger,
or are computed again from the run's attachments and compared. Programs run again, and must print,
ask and cost the same. A program that was stopped by time, a cancel or a trap did not stop at a
repeatable instruction, so it is served as it was recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from tallystick.core.errors import ReplayDiverged, ReplayStopped, RunNotFound
from tallystick.core.history import History
from tallystick.core.machine.prompt import TEMPLATE, TEMPLATES
from tallystick.core.records import RunEnded, RunStarted, tag_of
from tallystick.core.resume_errors import ResumeRefused
from tallystick.core.step import StepsNotReplayed
from tallystick.core.views.receipt import holds_steps
from tallystick.ledger.verify import BadEntry, bad_entry_of, verify_ledger
from tallystick.runtime.context.attachments import RunAttachments
from tallystick.runtime.journal.cursor import Divergence, RecordEnds
from tallystick.runtime.programs.execution import RerunStopped
from tallystick.runtime.run.assembly import Plan, RunContext, assemble
from tallystick.runtime.run.driver import Driver
from tallystick.runtime.runs.history import (
    NOT_BEGUN,
    refuse_foreign,
    runs_inside,
    whole_records,
)
from tallystick.sandbox.port import Programs


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a replay. `drift` lists skills that changed since; that is no divergence."""

    run: str
    entries: int
    held: bool
    divergence: Divergence | None
    programs: int
    served: int
    note: str | None = None
    drift: tuple[msgspec.Struct, ...] = ()


async def replay(context: RunContext, run: str, *, timeout_ms: int | None = None) -> ReplayReport:
    """Replay a run, and compare its skills with those of today.

    A damaged chain is reported as a difference, and nothing is driven. Nothing is written. Raise
    `RunNotFound`, `ResumeRefused` or `StepsNotReplayed` if there is nothing to replay, and
    `RecordUnreadable` for a record of another version. Raise `AttachmentError` if an attachment of
    the run is gone or damaged. Raise `ReplayStopped` if the timeout, or the stop of a program from
    outside, comes before any difference.
    """
    ledger = context.ledger
    # The chain first: a replay of records that were changed would prove nothing.
    bad = bad_entry_of(ledger, run)
    if bad is not None:
        return broken_chain(run, entries=verify_ledger(ledger, [run]).entries, bad=bad)
    records = whole_records(ledger, run)
    if not records and ledger.row(run) is not None:
        raise ResumeRefused(run=run, why=NOT_BEGUN)
    if holds_steps(records):
        raise StepsNotReplayed(chain=run, runs=runs_inside(ledger, run))
    if not records or not isinstance(records[0], RunStarted):
        raise RunNotFound(run=run)
    refuse_foreign(run, records[0])
    history = History(records)
    run_attachments = context.run_attachments(history.holder, records[0].grants)
    drift = tuple(
        found for each in context.capabilities for found in each.drift(history, run_attachments)
    )
    report = await _replay(context, run, history, run_attachments, timeout_ms=timeout_ms)
    return msgspec.structs.replace(report, drift=drift)


async def _replay(
    context: RunContext,
    run: str,
    history: History,
    run_attachments: RunAttachments,
    *,
    timeout_ms: int | None,
) -> ReplayReport:
    """Drive the run on its record, and report the first difference.

    Raise `ReplayStopped` if it was stopped before one, and what `assemble` raises.
    """
    records, started = history.records, history.records[0]
    assert isinstance(started, RunStarted)
    assembled = await assemble(
        context,
        Plan(
            run=run,
            started=started,
            run_attachments=run_attachments,
            history=history,
            open_programs=_programs_again(context, run_attachments),
        ),
    )
    journal, runner = assembled.journal, assembled.runner
    divergence: Divergence | None = None
    stopped: RerunStopped | None = None
    try:
        await _drive_for(assembled.driver, timeout_ms=timeout_ms)
    except RerunStopped as error:
        stopped = error
    except RecordEnds:
        # A run without an end, such as one that was cut off: all of its record was repeated.
        pass
    except asyncio.CancelledError:
        # Raised again as in the run, or else a cancel of the replay itself.
        if not journal.cancelled_again:
            raise
    except ReplayDiverged as error:
        divergence = Divergence(
            seq=journal.seq, field=error.field, recorded=error.recorded, now=error.now
        )
    finally:
        if assembled.programs is not None:
            await assembled.programs.close()
    # The first that the journal noted is the earlier one: a program may fail later because of it.
    divergence = journal.first or divergence
    if divergence is None and stopped is not None:
        raise ReplayStopped(
            run=run,
            seq=journal.seq,
            entries=len(records),
            why=str(stopped),
            timed_out=isinstance(stopped, _TimedOut),
        )
    # Without an end, records may be left: a program that was cut off is not always repeated.
    if divergence is None and isinstance(records[-1], RunEnded) and journal.left is not None:
        seq, record = journal.left
        divergence = Divergence(seq=seq, field="entries", recorded=tag_of(record), now=None)
    return ReplayReport(
        run=run,
        entries=len(records),
        held=divergence is None,
        divergence=divergence,
        programs=runner.again,
        served=runner.served.total(),
        note=_other_template(started) if divergence is not None else None,
    )


def _programs_again(
    context: RunContext, run_attachments: RunAttachments
) -> Callable[[RunStarted], Awaitable[Programs | None]]:
    """Return the function that opens the sandbox of the run.

    It returns None if the programs cannot be repeated here, and so are served.
    """

    async def open_programs(started: RunStarted) -> Programs | None:
        backend = await context.backends.to_repeat(started)
        return None if backend is None else await backend.open(started, History(), run_attachments)

    return open_programs


class _TimedOut(RerunStopped):
    """Raised if the replay took longer than its timeout."""


async def _drive_for(driver: Driver, *, timeout_ms: int | None) -> None:
    """Drive to the end. Raise `_TimedOut` after `timeout_ms`; None is no limit."""
    timeout = asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000)
    try:
        async with timeout:
            await driver.drive()
    except TimeoutError:
        if not timeout.expired():
            raise
        raise _TimedOut(f"its timeout of {(timeout_ms or 0) / 1000:g} s passed") from None


def _other_template(started: RunStarted) -> str | None:
    """Return a note if the run was made with a template that this version lacks, else None."""
    if started.template in TEMPLATES:
        return None
    return (
        f"the run was made with the prompts {started.template}; this version writes {TEMPLATE} and "
        "cannot make those again"
    )


def broken_chain(run: str, *, entries: int, bad: BadEntry) -> ReplayReport:
    """Return the report of a run whose chain is damaged."""
    divergence = Divergence(seq=bad.seq, field="chain", recorded=bad.why, now=None)
    return ReplayReport(
        run=run, entries=entries, held=False, divergence=divergence, programs=0, served=0
    )
