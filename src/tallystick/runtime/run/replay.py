"""Replay: a run of a ledger driven again over a recorded world, compared entry by entry.

No model, no network, no host function. Replies and answers come from the ledger, or are made again
from the run's attachments and compared; programs run again and must print, ask and cost what they
did. A program that was ended by time, a cancel or a trap did
not end at a repeatable place: it is served as it was recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from tallystick.core.errors import LedgerError, ReplayDiverged, ReplayStopped, RunNotFound
from tallystick.core.history import History
from tallystick.core.machine.native import is_native_run
from tallystick.core.machine.prompt import TEMPLATE, TEMPLATES
from tallystick.core.records import Record, RunEnded, RunStarted, tag_of
from tallystick.core.resume_errors import ResumeRefused
from tallystick.core.step import StepsNotReplayed
from tallystick.core.views.receipt import holds_steps
from tallystick.ledger.port import Ledger
from tallystick.ledger.verify import BadEntry, bad_entry_of, verify_ledger
from tallystick.runtime.calls.children import Children, RecordedChildCalls
from tallystick.runtime.calls.queries import Queries, RecordedQueryCalls
from tallystick.runtime.context.attachments import RunAttachments
from tallystick.runtime.context.inputs import given_again, texts_of
from tallystick.runtime.context.namespace import names_of
from tallystick.runtime.journal.journal import ComparingJournal, Divergence, NothingMore, Recording
from tallystick.runtime.programs.wasm import WasmPrograms
from tallystick.runtime.run.driver import Driver
from tallystick.runtime.run.recorded import RecordedWorld, RerunStopped
from tallystick.runtime.runs.history import (
    NOT_BEGUN,
    refuse_foreign,
    runs_inside,
    whole_records,
)
from tallystick.sandbox.host import HostTable
from tallystick.sandbox.port import Programs
from tallystick.sandbox.wasm.image import ENGINE
from tallystick.sessions.runs import load_image
from tallystick.skills.runs import SkillDrift, drift_since, kept_evidence
from tallystick.vocabulary.runs import check_again

if TYPE_CHECKING:
    from tallystick.sandbox.wasm.sandbox import WasmSandbox
    from tallystick.skills.runs import Skills


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay found. `drift` are skills that changed since; the run holds all the same."""

    run: str
    entries: int
    held: bool
    divergence: Divergence | None
    programs: int
    served: int
    note: str | None = None
    drift: tuple[SkillDrift, ...] = ()


async def replay_records(
    run: str,
    records: Sequence[Record],
    *,
    programs: Programs | None,
    run_attachments: RunAttachments,
    timeout_ms: int | None = None,
) -> ReplayReport:
    """Drive the recorded run again. Without `programs`, they are served, not run.

    Raise `ReplayStopped` if the timeout, or the end of the session, comes before any difference.
    """
    if not records or not isinstance(records[0], RunStarted):
        raise LedgerError(f"run {run} does not begin with its start")
    started = records[0]
    given = given_again(started, run_attachments)
    history = History(records)
    desk = RecordedQueryCalls(history, run_attachments)
    queries = Queries(desk, limits=started.limits)
    children = RecordedChildCalls(history, run_attachments)
    recording = Recording(records)
    world = RecordedWorld(
        history,
        programs,
        desk=desk,
        queries=queries,
        children=children,
        names=names_of(started, given.values),
        table=HostTable(
            [
                *run_attachments.functions(),
                *queries.functions(),
                *Children(children, queries).functions(),
            ],
            texts=given.texts,
            granted=frozenset(started.grants),
            find_text=run_attachments.find_text,
        ),
        run_attachments=run_attachments,
    )
    journal = ComparingJournal(recording, ends_again=lambda: world.ended)
    driver = Driver(
        started,
        world=world,
        journal=journal,
        texts=texts_of(given.values),
        evidence=kept_evidence(started.skills, run_attachments, live=False),
        check=check_again(started, run_attachments),
    )
    divergence: Divergence | None = None
    stopped: RerunStopped | None = None
    try:
        await _driven(driver, timeout_ms=timeout_ms)
    except RerunStopped as error:
        stopped = error
    except NothingMore:
        pass
    except asyncio.CancelledError:
        if not world.cancelled:
            raise
    except ReplayDiverged as error:
        divergence = Divergence(
            seq=recording.seq, field=error.field, recorded=error.recorded, now=error.now
        )
    divergence = journal.first or divergence
    if divergence is None and stopped is not None:
        raise ReplayStopped(
            run=run,
            seq=recording.seq,
            entries=len(records),
            why=str(stopped),
            timed_out=isinstance(stopped, _TimedOut),
        )
    if divergence is None and isinstance(records[-1], RunEnded) and recording.left is not None:
        seq, record = recording.left
        divergence = Divergence(seq=seq, field="entries", recorded=tag_of(record), now=None)
    return ReplayReport(
        run=run,
        entries=len(records),
        held=divergence is None,
        divergence=divergence,
        programs=world.programs,
        served=world.served,
        note=_other_template(records[0]) if divergence is not None else None,
    )


class _TimedOut(RerunStopped):
    """The replay took longer than its caller allowed."""


async def _driven(driver: Driver, *, timeout_ms: int | None) -> None:
    """Drive to the end. Raise `_TimedOut` if that takes too long."""
    timeout = asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000)
    try:
        async with timeout:
            await driver.drive()
    except TimeoutError:
        if not timeout.expired():
            raise
        raise _TimedOut(f"its timeout of {(timeout_ms or 0) / 1000:g} s passed") from None


def _other_template(started: RunStarted) -> str | None:
    """Why prompts differ, where that is no fault of the record."""
    if started.template in TEMPLATES:
        return None
    return (
        f"the run was made with the prompts {started.template}; this version writes {TEMPLATE} and "
        "cannot make those again"
    )


def broken_chain(run: str, *, entries: int, bad: BadEntry) -> ReplayReport:
    """The report of a run whose hashes, computed again, are not the recorded ones."""
    divergence = Divergence(seq=bad.seq, field="chain", recorded=bad.why, now=None)
    return ReplayReport(
        run=run, entries=entries, held=False, divergence=divergence, programs=0, served=0
    )


def rerunnable(started: RunStarted, guest: str) -> bool:
    """True if programs of this run mean the same here: same guest, same engine."""
    # With the engine: the sandbox is open, or the guest would not be known.
    return started.guest == guest and started.engine == ENGINE


# A run of a ledger, replayed: its chain is checked first, then it is driven again.


async def replayed(
    run: str,
    *,
    ledger: Ledger,
    sandbox: Callable[[], WasmSandbox],
    shelf_of: Callable[[str, Sequence[str]], RunAttachments],
    skills: Skills | None,
    timeout_ms: int | None = None,
) -> ReplayReport:
    """Run it again from its record, and compare; its skills too, with those there are now."""
    # The chain first: records that are not the ones that were sealed prove nothing.
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
    started = records[0]
    refuse_foreign(run, started)
    run_attachments = shelf_of(History(records).holder, started.grants)
    drift = drift_since(started, records, skills, run_attachments)
    if is_native_run(started) or not rerunnable(started, sandbox().guest.image.sha256):
        report = await replay_records(
            run,
            records,
            programs=None,
            run_attachments=run_attachments,
            timeout_ms=timeout_ms,
        )
        return msgspec.structs.replace(report, drift=drift)
    session = await sandbox().open(
        session_id=started.session_id, seed=started.seed, clock_ns=started.clock_ns
    )
    try:
        await load_image(session, started, run_attachments)
        report = await replay_records(
            run,
            records,
            programs=WasmPrograms(session, run_attachments),
            run_attachments=run_attachments,
            timeout_ms=timeout_ms,
        )
        return msgspec.structs.replace(report, drift=drift)
    finally:
        await session.close()
