"""One run put together and driven to its end: live, or on its record first and then live."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tallystick.core.chain import Head
from tallystick.core.charge import RunLimits
from tallystick.core.clock import RunClock
from tallystick.core.errors import RunExists, UsageError
from tallystick.core.history import History
from tallystick.core.machine.compaction import bound_for, checked_bound
from tallystick.core.machine.prompt import TEMPLATE
from tallystick.core.machine.turn import changed
from tallystick.core.records import (
    Caller,
    Continuation,
    HostAnswered,
    InDoubt,
    PersonDecision,
    Record,
    RunProgram,
    RunStarted,
    decode_record,
    encode_record,
    zone_given,
)
from tallystick.core.strategy import AskedStrategy
from tallystick.ledger.port import Ledger
from tallystick.memory.runs import functions_of, memory_calls_again, memory_calls_of, memory_given
from tallystick.model.port import Heard, Model
from tallystick.runtime.calls.children import (
    Children,
    ChildRunner,
    LiveChildCalls,
    Parent,
    RecordedChildCalls,
    ResumedChildCalls,
)
from tallystick.runtime.calls.decisions import Decisions
from tallystick.runtime.calls.functions import RunFunction, check_functions
from tallystick.runtime.calls.queries import (
    FindModel,
    LiveQueryCalls,
    Queries,
    RecordedQueryCalls,
    ResumedQueryCalls,
)
from tallystick.runtime.context.attachments import RunAttachments
from tallystick.runtime.context.inputs import (
    Input,
    RunInputs,
    cited_aside,
    given_again,
    given_of,
    layout_of,
    stored,
    texts_of,
)
from tallystick.runtime.context.namespace import check_variables, names_of
from tallystick.runtime.journal.journal import LedgerJournal, Recording
from tallystick.runtime.journal.world import CallLog
from tallystick.runtime.programs.backends import check_grants, without_network
from tallystick.runtime.programs.native import GUEST, CutOff, NativeBackend, NativeSession
from tallystick.runtime.programs.wasm import WasmPrograms
from tallystick.runtime.run.clock import run_clock
from tallystick.runtime.run.driver import Driver
from tallystick.runtime.run.live import LiveWorld
from tallystick.runtime.run.recorded import (
    RecordedWorld,
    ReplayingHost,
    ResumingJournal,
    ResumingWorld,
    note_call,
)
from tallystick.runtime.run.strategy import check_strategy, window_of, with_strategy
from tallystick.runtime.runs.result import Run, run_of
from tallystick.runtime.spend.door import ModelDoor, RefusedCall
from tallystick.runtime.spend.scopes import remaining_of
from tallystick.sandbox.host import HostFunction, HostTable
from tallystick.sandbox.port import Host
from tallystick.sandbox.wasm.image import ENGINE
from tallystick.sessions.runs import (
    given_in_session,
    keep_before_end,
    leave_session,
    load_image,
    share_image,
)
from tallystick.skills.runs import kept_evidence, policies_of, skill_calls_for, skills_asked
from tallystick.skills.scripts import Scripts
from tallystick.storage.clock import now_ms
from tallystick.vocabulary.runs import check_again, check_for, vocabulary_given

if TYPE_CHECKING:
    from tallystick.memory.runs import Memory
    from tallystick.sandbox.wasm.sandbox import WasmSandbox
    from tallystick.sessions.runs import SessionLease
    from tallystick.skills.runs import SkillCalls, Skills
    from tallystick.steps.runs import RunSteps
    from tallystick.vocabulary.runs import VocabularyAsked

# Hears of each record when it is made. One with a method `committed` is told again once the ledger
# has it, from any thread: what is shown of a run then survives the process. It must not raise.
Watch = Callable[[str, Record], None]


def committed_of(watch: Watch, run: str) -> Callable[[Record], None] | None:
    """Return whom to tell that a record of this run is committed; None if nobody asks."""
    hear: Watch | None = getattr(watch, "committed", None)
    return None if hear is None else lambda record: hear(run, record)


@dataclass(frozen=True, slots=True)
class RunJob:
    """What was asked for."""

    goal: str
    inputs: Sequence[Input]
    limits: RunLimits
    grants: Sequence[str]
    seed: int
    temperature: float | None
    watch: Watch
    heard: Heard
    # By name, None for the step's or the session's own.
    model: str | None = None
    # None for code, or direct where a program would find nothing to read.
    strategy: AskedStrategy | None = None
    # In tokens, 0 for never, None for what suits the model.
    compact_at: int | None = None
    # What the answer has to fit, JSON as text.
    schema: str | None = None
    # Those that the user puts in front, each with its arguments behind its name.
    put_skills: Sequence[str] = ()
    # By its id, None for a run of its own; then as it is joined.
    session: str | None = None
    lease: SessionLease | None = None
    # Where each setting came from that is no default, for the record.
    settings: Mapping[str, str] = field(default_factory=dict)
    # None for the present, in UTC.
    clock: RunClock | None = None


async def run_live(
    job: RunJob,
    *,
    run: str,
    session_id: str,
    model: Model,
    sandbox: Callable[[], WasmSandbox],
    ledger: Ledger,
    functions: Sequence[RunFunction],
    run_attachments: RunAttachments,
    model_door: ModelDoor,
    find_model: FindModel,
    steps: RunSteps,
    children: ChildRunner,
    caller: Caller | None = None,
    skills: Skills | None = None,
    memory: Memory | None = None,
    vocabulary: VocabularyAsked | None = None,
    native: NativeBackend | None = None,
) -> tuple[Run, Head, RefusedCall | None]:
    """Run a goal to its end. A cancel ends it too, written down.

    Gives what it came to, where its chain stands, and the call by whose refusal it ended, if it
    ended so. `caller` is the run whose program began it.
    """
    clock = _checked(job, native=native is not None)
    memory_calls = memory_calls_of(memory, session_id=session_id)
    own = functions
    functions = [*functions, *functions_of(memory_calls)]
    check_variables((each.variable for each in job.inputs), functions=check_functions(functions))
    store = stored(job.inputs, run_attachments)
    layout = layout_of(store.inputs, question=job.goal)
    given, values, in_session = given_in_session(
        given_of(store, layout), job.lease, inputs=job.inputs, functions=functions
    )
    share_image(job.lease, run_attachments)
    desk = LiveQueryCalls(run, model_door, find_model, run_attachments, temperature=job.temperature)
    queries = Queries(desk, limits=job.limits)
    parent_of = Parent(
        run=run,
        model_door=model_door,
        limits=job.limits,
        grants=without_network(job.grants),
        seed=job.seed,
        temperature=job.temperature,
        functions=own,
        model=model,
        depth=0 if caller is None else caller.depth,
        compact_at=job.compact_at,
        clock=clock,
    )
    child_desk = LiveChildCalls(parent_of, children, run_attachments)
    skill_given = skills_asked(
        skills,
        job.put_skills,
        goal=job.goal,
        inputs=job.inputs,
        run_attachments=run_attachments,
        session=session_id,
    )
    skill_calls = skill_calls_for(
        skill_given,
        skills,
        session_id=session_id,
        scripts=Scripts(
            sandbox,
            functions,
            granted=job.grants,
            seed=job.seed,
            clock_ns=clock.clock_ns,
            spend=model_door.run_scopes.spend,
        ),
    )
    table = host_table(
        functions,
        run_attachments=run_attachments,
        queries=queries,
        children=Children(child_desk, queries),
        model_door=model_door,
        given=given,
        grants=job.grants,
        skills=skill_calls,
    )
    planned = with_strategy(
        RunStarted(
            goal=job.goal,
            model=model.name,
            limits=job.limits,
            grants=tuple(job.grants),
            contexts=layout.contexts,
            functions=tuple((each.name, each.doc) for each in table.names.functions),
            texts=given.refs,
            seed=job.seed,
            clock_ns=clock.clock_ns,
            timezone=zone_given(clock)[0],
            utc_offset_s=zone_given(clock)[1],
            session_id=session_id,
            template=TEMPLATE,
            guest=sandbox().guest.image.sha256 if native is None else GUEST,
            engine=ENGINE if native is None else native.engine,
            backend="wasm" if native is None else native.sandbox.name,
            started_at=now_ms(),
            temperature=job.temperature,
            views=layout.views,
            files=layout.files,
            values=values,
            inputs=given.inputs,
            images=given.images,
            encodings=store.encodings,
            caller=caller,
            compact_at=_compact_at(job, model),
            schema=job.schema,
            skills=skill_given,
            memory=memory_given(memory, goal=job.goal, has_data=bool(job.inputs)),
            vocabulary=vocabulary_given(vocabulary, run_attachments),
            session=in_session,
            settings=job.settings or msgspec.UNSET,
        ),
        job.strategy,
        layout=layout,
        model=model,
        model_door=model_door,
    )
    # What is refused is refused before anything is written.
    programs = await begun_programs(planned, sandbox, native, run_attachments)
    parent, step = steps.begin(ledger)
    started = _canonical(msgspec.structs.replace(planned, parent=parent, step=step))
    journal = LedgerJournal(
        ledger,
        run=run,
        fence=_claimed(ledger, run, child=caller is not None),
        head=Head.of_nothing(),
        to_commit=run_attachments.to_commit,
        committed=committed_of(job.watch, run),
    )
    bridges = None if native is None else native.bridges
    world = LiveWorld(
        run=run,
        model=model,
        programs=programs,
        bridges=bridges,
        table=table,
        names=names_of(started, given.values),
        policies=policies_of(functions, skill_calls),
        run_attachments=run_attachments,
        model_door=model_door,
        desk=desk,
        queries=queries,
        children=child_desk,
        skills=skill_calls,
        memory=memory_calls,
        heard=job.heard,
    )
    cards = () if skills is None else skills.registry.cards()
    driver = Driver(
        started,
        world=world,
        journal=journal,
        texts=texts_of(given.values),
        watch=lambda record: job.watch(run, record),
        evidence=kept_evidence(started.skills, run_attachments, cards=cards),
        check=check_for(
            started,
            None if vocabulary is None else vocabulary.thesaurus,
            skills=[each.id for each in cards],
        ),
        before_end=keep_before_end(job.lease, programs),
    )
    try:
        try:
            await driver.drive()
        except asyncio.CancelledError:
            if driver.state.ended is None:
                raise
        await leave_session(job.lease, driver.state)
    finally:
        await programs.close()
    run_attachments.run_over(driver.state.ended)
    ended = run_of(
        run,
        driver.state,
        ledger=path_of(ledger),
        cited=await cited_aside(driver.state.ended, started, given, run_attachments),
        parent=parent,
        step=step,
    )
    return ended, journal.head, driver.refused


def _checked(job: RunJob, *, native: bool) -> RunClock:
    """Return the clock of a run. Raises `UsageError` for what such a run cannot have."""
    check_strategy(job.strategy, job.inputs)
    check_grants(job.grants, native=native)
    clock = run_clock() if job.clock is None else job.clock
    if native and not clock.is_present:
        raise UsageError(
            "clock: programs of the process sandbox read the clock of this machine; leave --clock "
            "out, or take the sandbox wasm"
        )
    return clock


async def begun_programs(
    started: RunStarted,
    sandbox: Callable[[], WasmSandbox],
    native: NativeBackend | None,
    run_attachments: RunAttachments,
    records: Sequence[Record] = (),
) -> WasmPrograms | NativeSession:
    """Where the programs of a run are run, as it stands before the next of them.

    `records` are what is recorded of it: those of the WASM sandbox are run again on that.
    """
    if native is not None:
        return await native.begin(started, run_attachments, records)
    session = await sandbox().open(
        session_id=started.session_id, seed=started.seed, clock_ns=started.clock_ns
    )
    await load_image(session, started, run_attachments)
    return WasmPrograms(session, run_attachments)


def host_table(
    functions: Sequence[RunFunction],
    *,
    run_attachments: RunAttachments,
    queries: Queries,
    children: Children,
    model_door: ModelDoor,
    given: RunInputs,
    grants: Sequence[str],
    skills: SkillCalls | None = None,
) -> HostTable:
    """What the programs of a run may call."""
    remaining = remaining_of(model_door.run_scopes)
    return HostTable(
        [
            *run_attachments.functions(),
            *queries.functions(),
            *children.functions(),
            HostFunction(name="budget.remaining", function=remaining, local=True),
            *(() if skills is None else skills.functions()),
            *(each.hosted() for each in functions),
        ],
        texts=given.texts,
        granted=frozenset(grants),
        answering=True,
        find_text=run_attachments.find_text,
    )


def _compact_at(job: RunJob, model: Model) -> int:
    if job.compact_at is not None:
        return checked_bound(job.compact_at)
    return bound_for(window_of(model), reply_tokens=job.limits.reply_tokens)


def _claimed(ledger: Ledger, run: str, *, child: bool) -> int:
    try:
        return ledger.claim(run, create=True)
    except RunExists:
        # A child whose process died at once is there already, and empty.
        if not child:
            raise
        return ledger.claim(run, create=False)


def _canonical(started: RunStarted) -> RunStarted:
    """The start as the ledger will give it back."""
    read = decode_record(encode_record(started))
    assert isinstance(read, RunStarted)
    return read


def path_of(ledger: Ledger) -> str:
    return str(getattr(ledger, "path", "memory"))


# The driver put together for a run that is gone on with: its record first, then the live world.


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


async def drive_continued(
    job: ResumeJob,
    *,
    run: str,
    records: Sequence[Record],
    continuation: Continuation,
    journal: LedgerJournal,
    model: Model,
    programs: WasmPrograms | NativeSession,
    ledger: Ledger,
    functions: Sequence[RunFunction],
    run_attachments: RunAttachments,
    model_door: ModelDoor,
    find_model: FindModel,
    decisions: Decisions,
    children: ChildRunner,
    sandbox: Callable[[], WasmSandbox],
    skills: Skills | None = None,
    memory: Memory | None = None,
    lease: SessionLease | None = None,
    bridges: Path | None = None,
) -> tuple[Run, RefusedCall | None]:
    """Go on with a run to its end. A cancel ends it too, written down.

    Gives what it came to, and the call by whose refusal it ended, if it ended so.
    """
    started = records[0]
    assert isinstance(started, RunStarted)
    given = given_again(started, run_attachments)
    history = History(records)
    own = functions
    memory_calls = memory_calls_again(run, started, memory, records)
    functions = [*functions, *functions_of(memory_calls)]
    now = changed(history.started, continuation)
    live_queries = LiveQueryCalls(
        run, model_door, find_model, run_attachments, temperature=now.temperature
    )
    recorded_desk = RecordedQueryCalls(history, run_attachments)
    desk = ResumedQueryCalls(
        recorded=recorded_desk,
        live=live_queries,
        decisions=decisions,
        model_door=model_door,
        terms_of=lambda name: model_door.terms(find_model(name)),
    )
    queries = Queries(desk, limits=started.limits)
    parent = Parent(
        run=run,
        model_door=model_door,
        limits=job.limits or now.limits,
        grants=without_network(started.grants),
        seed=started.seed,
        temperature=now.temperature,
        functions=own,
        model=model,
        depth=0 if started.caller is None else started.caller.depth,
        compact_at=started.compact_at,
        clock=started.clock,
    )
    live_children = LiveChildCalls(parent, children, run_attachments)
    recorded_children = RecordedChildCalls(history, run_attachments)
    child_desk = ResumedChildCalls(recorded_children, live_children, model_door)
    skill_calls = skill_calls_for(
        started.skills,
        skills,
        session_id=started.session_id,
        scripts=Scripts(
            sandbox,
            functions,
            granted=started.grants,
            seed=started.seed,
            clock_ns=started.clock_ns,
            spend=model_door.run_scopes.spend,
        ),
    )
    table = host_table(
        functions,
        run_attachments=run_attachments,
        queries=queries,
        children=Children(child_desk, queries),
        model_door=model_door,
        given=given,
        grants=started.grants,
        skills=skill_calls,
    )
    _check_functions(run, started, {each.name for each in table.names.functions})
    names = names_of(started, given.values)
    live = LiveWorld(
        run=run,
        model=model,
        programs=programs,
        bridges=bridges,
        table=table,
        names=names,
        policies=policies_of(functions, skill_calls),
        run_attachments=run_attachments,
        model_door=model_door,
        desk=desk,
        queries=queries,
        children=child_desk,
        skills=skill_calls,
        memory=memory_calls,
        heard=job.heard,
    )
    recorded = RecordedWorld(
        history,
        programs,
        names=names,
        table=table,
        run_attachments=run_attachments,
        desk=desk,
        queries=queries,
        children=child_desk,
    )

    def host_of(program: RunProgram, asked: CallLog, then: Host) -> Host:
        return ReplayingHost(
            history.answers.get(program.intent, []),
            names,
            lambda answer: _noted(history, answer, asked, skill_calls),
            again=table,
            read=run_attachments.read,
            queries=queries,
            then=then,
        )

    restored = await programs.restore(history)
    resuming = ResumingJournal(Recording(records), journal, continuation, run=run)
    driver = Driver(
        started,
        world=ResumingWorld(
            history,
            recorded=recorded,
            live=live,
            decisions=decisions,
            model_door=model_door,
            terms=model_door.terms(model),
            host_of=host_of,
            cut_off=CutOff(
                history,
                decisions,
                model_door=model_door,
                terms_of=lambda name: model_door.terms(find_model(name)),
                ledger=ledger,
            ),
            restored=restored,
        ),
        journal=resuming,
        texts=texts_of(given.values),
        watch=lambda record: job.watch(run, record) if resuming.is_new(record) else None,
        evidence=kept_evidence(started.skills, run_attachments),
        check=check_again(started, run_attachments),
        before_end=keep_before_end(lease, programs),
    )
    try:
        await driver.drive()
    except asyncio.CancelledError:
        if driver.state.ended is None:
            raise
    await leave_session(lease, driver.state)
    run_attachments.run_over(driver.state.ended)
    ended = run_of(
        run,
        driver.state,
        ledger=path_of(ledger),
        cited=await cited_aside(driver.state.ended, started, given, run_attachments),
        parent=started.parent,
        step=started.step,
        session_lost=lease is not None and lease.overtaken,
    )
    return ended, driver.refused


def _noted(
    history: History, answer: HostAnswered, asked: CallLog, skills: SkillCalls | None
) -> None:
    note_call(history, answer, asked)
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
