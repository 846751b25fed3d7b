"""A run gone on with: run again on its record, and from where that ends, live."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tallystick.attachments.errors import AttachmentError
from tallystick.core.caps import over
from tallystick.core.chain import Head
from tallystick.core.errors import BackendError, RunNotFound, UsageError
from tallystick.core.lookup import UNKNOWN, Lookup
from tallystick.core.passage_errors import ResumeRefused
from tallystick.core.passage_records import InDoubt
from tallystick.core.records import (
    HostAnswered,
    Record,
    RunEnded,
    RunLimits,
    RunProgram,
    RunPruned,
    RunResumed,
    RunStarted,
)
from tallystick.core.step_receipt import holds_steps
from tallystick.ledger.port import Ledger, find_row
from tallystick.ledger.verify import verify
from tallystick.model.port import Heard, Model, ModelReply
from tallystick.runtime.desk import FindModel, LiveDesk
from tallystick.runtime.doubts import Decisions, FindReply, decided
from tallystick.runtime.driver import Asked, Driver
from tallystick.runtime.functions import RunFunction
from tallystick.runtime.given import given_again, texts_of
from tallystick.runtime.history import whole_records
from tallystick.runtime.live import LiveWorld
from tallystick.runtime.live_run import Watch, cited, host_table, path_of
from tallystick.runtime.names import names_of
from tallystick.runtime.pen import LedgerPen, Passage
from tallystick.runtime.queries import Queries
from tallystick.runtime.recorded_desk import RecordedDesk
from tallystick.runtime.recorded_world import NotedHost, RecordedWorld, note_call
from tallystick.runtime.recording import Recording
from tallystick.runtime.replay import rerunnable
from tallystick.runtime.resuming import ResumingPen, ResumingWorld
from tallystick.runtime.resuming_desk import ResumingDesk
from tallystick.runtime.run import Run, run_of
from tallystick.runtime.run_lock import held_run
from tallystick.runtime.run_records import RunRecords
from tallystick.runtime.shelf import Shelf
from tallystick.runtime.so_far import holder_of, holds_of, skip_answered, start_now
from tallystick.runtime.step_run import RunSteps
from tallystick.runtime.teller import Teller
from tallystick.runtime.till import Till
from tallystick.sandbox.container import unpacked
from tallystick.sandbox.identity import now_ms
from tallystick.sandbox.port import Host
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.sandbox.wasm.session import WasmSession

__all__ = ["FindReply", "Parts", "ResumeJob", "gone_on_with", "resumed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What of a session is needed to go on with a run."""

    ledger: Ledger
    till: Till
    functions: Sequence[RunFunction]
    model: Callable[[], Model]
    find_model: Callable[[Model], FindModel]
    sandbox: Callable[[], WasmSandbox]
    shelf: Callable[[str, Sequence[str]], Shelf]
    lookup: FindReply | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeJob:
    """What was asked for. `limits` of None stay as they are."""

    in_doubt: InDoubt
    limits: RunLimits | None
    steal: bool
    watch: Watch
    heard: Heard


async def resumed(parts: Parts, run: str, job: ResumeJob, steps: RunSteps) -> Run:
    """Go on with a run. One that has its answer is returned as it is."""
    ledger = parts.ledger
    with held_run(ledger, run, steal=job.steal) as stolen:
        head, records = _checked(ledger, run)
        check_resumable(run, records, job.limits)
        shelf = parts.shelf(holder_of(records), start_now(records).grants)
        if isinstance(records[-1], RunEnded) and records[-1].stop == "answered":
            return ended_run(run, records, ledger=ledger, shelf=shelf)

        def passage(fence: int) -> Passage:
            return RunResumed(
                at=now_ms(), fence=fence, limits=job.limits, in_doubt=job.in_doubt, stolen=stolen
            )

        return await gone_on_with(
            parts,
            run,
            job,
            steps,
            records=records,
            head=head,
            shelf=shelf,
            started=start_now(records),
            claim=lambda: ledger.claim(run, create=False),
            passage=passage,
        )


async def gone_on_with(
    parts: Parts,
    run: str,
    job: ResumeJob,
    steps: RunSteps,
    *,
    records: Sequence[Record],
    head: Head,
    shelf: Shelf,
    started: RunStarted,
    claim: Callable[[], int],
    passage: Callable[[int], Passage],
) -> Run:
    """Decide what is in doubt, own the run, and go on behind its head.

    `started` is the start as it counts from here on.
    """
    ledger, sandbox = parts.ledger, parts.sandbox()
    if not rerunnable(started, sandbox.guest.image.sha256):
        raise ResumeRefused(run=run, why="was made with another version of the sandbox")
    model = parts.model()
    if model.name != started.model:
        raise ResumeRefused(run=run, why=f"asks {started.model}, and this is {model.name}")
    skip_answered(model, records)
    find_model = parts.find_model(model)
    with parts.till.run(run, job.limits or started.limits, ledger, steps=steps) as teller:
        decisions = await decided(
            run,
            records,
            model=started.model,
            policy=job.in_doubt,
            functions={each.name: each for each in parts.functions},
            free=lambda name: _is_free(teller, find_model, name),
            find_reply=_find_reply(parts.lookup, find_model),
        )
        fence = claim()
        teller.purse.reconcile(*holds_of(records))
        session = await sandbox.open(
            session_id=started.session_id, seed=started.seed, clock_ns=started.clock_ns
        )
        try:
            ended = await _driven(
                job,
                run=run,
                records=records,
                passage=passage(fence),
                pen=LedgerPen(ledger, run=run, fence=fence, head=head, to_commit=shelf.to_commit),
                model=model,
                session=session,
                ledger=ledger,
                functions=[steps.inside(each) for each in parts.functions],
                shelf=shelf,
                teller=teller,
                find_model=find_model,
                decisions=decisions,
            )
        finally:
            await session.close()
        return steps.checked(ended, stopped_by=teller.stopped_by, rows=parts.till.rows)


def _checked(ledger: Ledger, run: str) -> tuple[Head, list[Record]]:
    """The records of a run, and where it stands; refused if the chain does not hold."""
    row = find_row(ledger, run)
    if row is None:
        raise RunNotFound(run=run)
    bad = verify(ledger, [run]).first_bad
    if bad is not None:
        raise ResumeRefused(run=run, why=f"does not hold at entry {bad.seq}: {bad.why}")
    return row.head, whole_records(ledger, run)


def _is_free(teller: Teller, find_model: FindModel, name: str) -> bool:
    try:
        return teller.terms(find_model(name)).in_process
    except UsageError:
        return False


def _find_reply(lookup: FindReply | None, find_model: FindModel) -> FindReply:
    """Asks whoever was given, else the model itself, if it can be asked."""

    async def find(name: str, key: str) -> ModelReply | Lookup:
        if lookup is not None:
            return await lookup(name, key)
        try:
            model = find_model(name)
        except UsageError:
            return UNKNOWN
        asked = getattr(model, "lookup", None)
        if asked is None:
            return UNKNOWN
        found: ModelReply | Lookup = await asked(key)
        return found

    return find


def check_resumable(run: str, records: Sequence[Record], limits: RunLimits | None) -> None:
    """Refuse what cannot be gone on with, before anything is done."""
    if holds_steps(records):
        raise UsageError(f"{run} holds steps; resume one of its runs, or run the program again")
    if any(isinstance(each, RunPruned) for each in records):
        raise ResumeRefused(run=run, why="was pruned: what it would go on from is gone")
    ended = records[-1]
    if isinstance(ended, RunEnded):
        cap = over(limits or start_now(records).limits, ended.charge)
        if ended.stop != "answered" and cap is not None:
            raise ResumeRefused(
                run=run, why=f"is at its cap ({cap[1]}); resume it with a higher one"
            )


def ended_run(run: str, records: Sequence[Record], *, ledger: Ledger, shelf: Shelf) -> Run:
    """A run that has its answer, as it ended."""
    ended, started = records[-1], start_now(records)
    assert isinstance(ended, RunEnded)
    return Run(
        run=run,
        answer=ended.answer,
        stop=ended.stop,
        detail=ended.detail,
        partial=ended.partial,
        turns=ended.charge.turns,
        charge=ended.charge,
        citations=cited(ended, started, given_again(started, shelf).values),
        ledger=path_of(ledger),
        parent=started.parent,
        step=started.step,
    )


async def _driven(
    job: ResumeJob,
    *,
    run: str,
    records: Sequence[Record],
    passage: Passage,
    pen: LedgerPen,
    model: Model,
    session: WasmSession,
    ledger: Ledger,
    functions: Sequence[RunFunction],
    shelf: Shelf,
    teller: Teller,
    find_model: FindModel,
    decisions: Decisions,
) -> Run:
    """Go on with a run to its end. A cancel ends it too, written down."""
    started = records[0]
    assert isinstance(started, RunStarted)
    given = given_again(started, shelf)
    found = RunRecords(records)
    live_desk = LiveDesk(run, teller, find_model, shelf)
    recorded_desk = RecordedDesk(records, shelf)
    desk = ResumingDesk(
        recorded=recorded_desk,
        live=live_desk,
        decisions=decisions,
        teller=teller,
        terms_of=lambda name: teller.terms(find_model(name)),
    )
    queries = Queries(desk, limits=started.limits)
    table = host_table(
        functions, shelf=shelf, queries=queries, teller=teller, given=given, grants=started.grants
    )
    _check_functions(run, started, {each.name for each in table.names.functions})
    names = names_of(started, given.values)
    live = LiveWorld(
        run=run,
        model=model,
        session=session,
        table=table,
        names=names,
        policies={each.name: each.policy for each in functions},
        shelf=shelf,
        teller=teller,
        desk=desk,
        queries=queries,
        heard=job.heard,
    )
    recorded = RecordedWorld(
        found, session, names=names, table=table, shelf=shelf, desk=desk, queries=queries
    )

    def host_of(program: RunProgram, asked: Asked, then: Host) -> Host:
        return NotedHost(
            found.answers.get(program.intent, []),
            names,
            lambda answer: _noted(found, answer, asked),
            again=table,
            read=shelf.read,
            queries=queries,
            then=then,
        )

    restored = await _restored(session, found, shelf)
    resuming = ResumingPen(Recording(records), pen, passage, run=run)
    driver = Driver(
        started,
        world=ResumingWorld(
            found,
            recorded=recorded,
            live=live,
            decisions=decisions,
            teller=teller,
            terms=teller.terms(model),
            host_of=host_of,
            restored=restored,
        ),
        pen=resuming,
        texts=texts_of(given.values),
        watch=lambda record: job.watch(run, record) if resuming.live else None,
    )
    try:
        await driver.drive()
    except asyncio.CancelledError:
        if driver.state.ended is None:
            raise
    shelf.run_over(driver.state.ended)
    return run_of(
        run,
        driver.state,
        ledger=path_of(ledger),
        citations=cited(driver.state.ended, started, given.values),
        parent=started.parent,
        step=started.step,
    )


async def _restored(session: WasmSession, records: RunRecords, shelf: Shelf) -> int:
    """Load the last snapshot. Gives the program it was taken after, 0 if there is none to load."""
    for intent, taken in sorted(records.snapshots.items(), reverse=True):
        try:
            with shelf.read_snapshot(taken.image) as chunks:
                _, image = unpacked(chunks)
            await session.load(image)
        except (AttachmentError, BackendError):
            # Gone, damaged, or of another sandbox: the programs are run again.
            continue
        return intent
    return 0


def _noted(records: RunRecords, answer: HostAnswered, asked: Asked) -> None:
    note_call(records, answer, asked)
    asked.answered(answer)


def _check_functions(run: str, started: RunStarted, known: set[str]) -> None:
    missing = [name for name, _ in started.functions if name not in known]
    if missing:
        raise UsageError(
            f"run {run} has programs that may call {', '.join(missing)}; resume it in a session "
            f"with those functions"
        )
