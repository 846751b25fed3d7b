"""The driver put together for a run that is gone on with: its record first, then the live world."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tallystick.attachments.errors import AttachmentError
from tallystick.core.errors import BackendError, UsageError
from tallystick.core.passage import changed
from tallystick.core.passage_records import InDoubt
from tallystick.core.records import (
    HostAnswered,
    Record,
    RunLimits,
    RunProgram,
    RunStarted,
)
from tallystick.core.vocabulary_records import PersonDecision
from tallystick.ledger.port import Ledger
from tallystick.model.port import Heard, Model
from tallystick.runtime.child_desk import (
    ChildRunner,
    LiveChildDesk,
    Parent,
    RecordedChildDesk,
    ResumingChildDesk,
)
from tallystick.runtime.children import Children
from tallystick.runtime.citing import cited_aside
from tallystick.runtime.desk import FindModel, LiveDesk
from tallystick.runtime.doubts import Decisions
from tallystick.runtime.driver import Driver
from tallystick.runtime.functions import RunFunction
from tallystick.runtime.given import given_again, texts_of
from tallystick.runtime.live import LiveWorld
from tallystick.runtime.live_run import Watch, host_table, path_of
from tallystick.runtime.names import names_of
from tallystick.runtime.native_doubt import CutOff
from tallystick.runtime.native_network import without_network
from tallystick.runtime.native_session import NativeSession
from tallystick.runtime.pen import LedgerPen, Passage
from tallystick.runtime.queries import Queries
from tallystick.runtime.recorded_desk import RecordedDesk
from tallystick.runtime.recorded_world import NotedHost, RecordedWorld, note_call
from tallystick.runtime.recording import Recording
from tallystick.runtime.resuming import ResumingPen, ResumingWorld
from tallystick.runtime.resuming_desk import ResumingDesk
from tallystick.runtime.run import Run, run_of
from tallystick.runtime.run_memory import desk_again, functions_of
from tallystick.runtime.run_records import RunRecords
from tallystick.runtime.session_interpreter import leave_session
from tallystick.runtime.session_runs import Joined
from tallystick.runtime.shelf import Shelf
from tallystick.runtime.skill_desk import SkillDesk, desk_for, policies_of
from tallystick.runtime.skill_evidence import kept_evidence
from tallystick.runtime.skill_scripts import Scripts
from tallystick.runtime.skills import Skills
from tallystick.runtime.so_far import start_now
from tallystick.runtime.teller import Teller
from tallystick.runtime.vocabulary_check import check_again
from tallystick.runtime.world import Asked
from tallystick.sandbox.container import unpacked
from tallystick.sandbox.port import Host
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.sandbox.wasm.session import WasmSession

if TYPE_CHECKING:
    from tallystick.runtime.memory import Memory

__all__ = ["ResumeJob", "driven_again"]


@dataclass(frozen=True, slots=True)
class ResumeJob:
    """What was asked for. `limits` of None stay as they are."""

    in_doubt: InDoubt
    limits: RunLimits | None
    steal: bool
    watch: Watch
    heard: Heard
    # What a person says of a program that waits for one, and who it is.
    decision: PersonDecision | None = None
    by: str = ""

    def for_child(self) -> ResumeJob:
        """The same for a run inside: its limits stay as they are, and nobody decides for it."""
        return dataclasses.replace(self, limits=None, decision=None)


async def driven_again(
    job: ResumeJob,
    *,
    run: str,
    records: Sequence[Record],
    passage: Passage,
    pen: LedgerPen,
    model: Model,
    session: WasmSession | NativeSession,
    ledger: Ledger,
    functions: Sequence[RunFunction],
    shelf: Shelf,
    teller: Teller,
    find_model: FindModel,
    decisions: Decisions,
    children: ChildRunner,
    sandbox: Callable[[], WasmSandbox],
    skills: Skills | None = None,
    memory: Memory | None = None,
    joined: Joined | None = None,
) -> Run:
    """Go on with a run to its end. A cancel ends it too, written down."""
    started = records[0]
    assert isinstance(started, RunStarted)
    given = given_again(started, shelf)
    found = RunRecords(records)
    own = functions
    memory_desk = desk_again(run, started, memory, records)
    functions = [*functions, *functions_of(memory_desk)]
    now = changed(start_now(records), passage)
    live_desk = LiveDesk(run, teller, find_model, shelf, temperature=now.temperature)
    recorded_desk = RecordedDesk(records, shelf)
    desk = ResumingDesk(
        recorded=recorded_desk,
        live=live_desk,
        decisions=decisions,
        teller=teller,
        terms_of=lambda name: teller.terms(find_model(name)),
    )
    queries = Queries(desk, limits=started.limits)
    parent = Parent(
        run=run,
        teller=teller,
        limits=job.limits or now.limits,
        grants=without_network(started.grants),
        seed=started.seed,
        temperature=now.temperature,
        functions=own,
        model=model,
        depth=0 if started.caller is None else started.caller.depth,
        compact_at=started.compact_at,
    )
    live_children = LiveChildDesk(parent, children, shelf)
    recorded_children = RecordedChildDesk(records, shelf)
    child_desk = ResumingChildDesk(recorded_children, live_children, teller)
    skill_desk = desk_for(
        started.skills,
        skills,
        session_id=started.session_id,
        scripts=Scripts(
            sandbox,
            functions,
            granted=started.grants,
            seed=started.seed,
            spend=teller.purse.spend,
        ),
    )
    table = host_table(
        functions,
        shelf=shelf,
        queries=queries,
        children=Children(child_desk, queries),
        teller=teller,
        given=given,
        grants=started.grants,
        skills=skill_desk,
    )
    _check_functions(run, started, {each.name for each in table.names.functions})
    names = names_of(started, given.values)
    live = LiveWorld(
        run=run,
        model=model,
        session=None if isinstance(session, NativeSession) else session,
        native=session if isinstance(session, NativeSession) else None,
        table=table,
        names=names,
        policies=policies_of(functions, skill_desk),
        shelf=shelf,
        teller=teller,
        desk=desk,
        queries=queries,
        children=child_desk,
        skills=skill_desk,
        memory=memory_desk,
        heard=job.heard,
    )
    recorded = RecordedWorld(
        found,
        None if isinstance(session, NativeSession) else session,
        names=names,
        table=table,
        shelf=shelf,
        desk=desk,
        queries=queries,
        children=child_desk,
    )

    def host_of(program: RunProgram, asked: Asked, then: Host) -> Host:
        return NotedHost(
            found.answers.get(program.intent, []),
            names,
            lambda answer: _noted(found, answer, asked, skill_desk),
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
            cut_off=CutOff(
                found,
                decisions,
                teller=teller,
                terms_of=lambda name: teller.terms(find_model(name)),
                ledger=ledger,
            ),
            restored=restored,
        ),
        pen=resuming,
        texts=texts_of(given.values),
        watch=lambda record: job.watch(run, record) if resuming.is_new(record) else None,
        evidence=kept_evidence(started.skills, shelf),
        check=check_again(started, shelf),
    )
    try:
        await driver.drive()
    except asyncio.CancelledError:
        if driver.state.ended is None:
            raise
    await leave_session(joined, session, driver.state)
    shelf.run_over(driver.state.ended)
    return run_of(
        run,
        driver.state,
        ledger=path_of(ledger),
        cited=await cited_aside(driver.state.ended, started, given, shelf),
        parent=started.parent,
        step=started.step,
    )


async def _restored(session: WasmSession | NativeSession, records: RunRecords, shelf: Shelf) -> int:
    """Load the last snapshot. Gives the program it was taken after, 0 if there is none to load.

    Of native programs all that are recorded are served: their files are there already.
    """
    if isinstance(session, NativeSession):
        return max(records.programs, default=0)
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


def _noted(
    records: RunRecords, answer: HostAnswered, asked: Asked, skills: SkillDesk | None
) -> None:
    note_call(records, answer, asked)
    asked.answered(answer)
    if skills is not None:
        skills.recalled(answer)


def _check_functions(run: str, started: RunStarted, known: set[str]) -> None:
    missing = [name for name, _ in started.functions if name not in known]
    if missing:
        raise UsageError(
            f"run {run} has programs that may call {', '.join(missing)}; resume it in a session "
            f"with those functions"
        )
