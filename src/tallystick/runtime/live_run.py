"""One run, live: everything it needs is put together, it is driven to its end, and summed up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from tallystick.core.chain import Head
from tallystick.core.compaction import bound_for, checked_bound
from tallystick.core.errors import RunExists
from tallystick.core.prompt import TEMPLATE
from tallystick.core.records import (
    Caller,
    Record,
    RunLimits,
    RunStarted,
    decode_record,
    encode_record,
)
from tallystick.core.strategy import AskedStrategy
from tallystick.ledger.port import Ledger
from tallystick.model.port import Heard, Model
from tallystick.runtime.child_desk import ChildRunner, LiveChildDesk, Parent
from tallystick.runtime.children import Children
from tallystick.runtime.citing import cited_aside
from tallystick.runtime.desk import FindModel, LiveDesk
from tallystick.runtime.driver import Driver
from tallystick.runtime.functions import RunFunction
from tallystick.runtime.given import Given, given_of, stored, texts_of
from tallystick.runtime.inputs import Input, layout_of
from tallystick.runtime.live import LiveWorld
from tallystick.runtime.names import names_of
from tallystick.runtime.native_network import check_grants, without_network
from tallystick.runtime.native_run import GUEST, NativeBackend
from tallystick.runtime.native_session import NativeSession
from tallystick.runtime.pen import LedgerPen
from tallystick.runtime.purse import remaining_of
from tallystick.runtime.queries import Queries
from tallystick.runtime.run import Run, run_of
from tallystick.runtime.run_memory import desk_of, functions_of, memory_given
from tallystick.runtime.session_interpreter import (
    given_in_session,
    leave_session,
    load_image,
    share_image,
)
from tallystick.runtime.session_runs import Joined
from tallystick.runtime.shelf import Shelf
from tallystick.runtime.skill_desk import SkillDesk, desk_for, policies_of
from tallystick.runtime.skill_evidence import kept_evidence
from tallystick.runtime.skill_scripts import Scripts
from tallystick.runtime.skills import Skills, skills_asked
from tallystick.runtime.step_run import RunSteps
from tallystick.runtime.strategy import check_strategy, window_of, with_strategy
from tallystick.runtime.teller import Teller
from tallystick.runtime.variables import check_variables
from tallystick.runtime.vocabulary_check import VocabularyAsked, check_for, vocabulary_given
from tallystick.sandbox.host import HostFunction, HostTable
from tallystick.sandbox.identity import now_ms
from tallystick.sandbox.wasm.engine import ENGINE
from tallystick.sandbox.wasm.sandbox import CLOCK_NS, WasmSandbox
from tallystick.sandbox.wasm.session import WasmSession

if TYPE_CHECKING:
    from tallystick.runtime.memory import Memory

__all__ = ["RunJob", "Watch", "begun_session", "host_table", "path_of", "run_live"]

Watch = Callable[[str, Record], None]


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
    strategy: AskedStrategy = "code"
    # In tokens, 0 for never, None for what suits the model.
    compact_at: int | None = None
    # What the answer has to fit, JSON as text.
    schema: str | None = None
    # Those that the user puts in front, each with its arguments behind its name.
    put_skills: Sequence[str] = ()
    # By its id, None for a run of its own; then as it is joined.
    session: str | None = None
    joined: Joined | None = None


async def run_live(
    job: RunJob,
    *,
    run: str,
    session_id: str,
    model: Model,
    sandbox: Callable[[], WasmSandbox],
    ledger: Ledger,
    functions: Sequence[RunFunction],
    shelf: Shelf,
    teller: Teller,
    find_model: FindModel,
    steps: RunSteps,
    children: ChildRunner,
    caller: Caller | None = None,
    skills: Skills | None = None,
    memory: Memory | None = None,
    vocabulary: VocabularyAsked | None = None,
    native: NativeBackend | None = None,
) -> tuple[Run, Head]:
    """Run a goal to its end. A cancel ends it too, written down.

    Gives what it came to, and where its chain stands. `caller` is the run whose program began it.
    """
    check_strategy(job.strategy, job.inputs)
    check_grants(job.grants, native=native is not None)
    memory_desk = desk_of(memory, session_id=session_id)
    own = functions
    functions = [*functions, *functions_of(memory_desk)]
    check_variables(
        (each.variable for each in job.inputs), functions=(each.name for each in functions)
    )
    store = stored(job.inputs, shelf)
    layout = layout_of(store.inputs, question=job.goal)
    given, values, in_session = given_in_session(
        given_of(store, layout), job.joined, inputs=job.inputs, functions=functions
    )
    share_image(job.joined, shelf)
    desk = LiveDesk(run, teller, find_model, shelf, temperature=job.temperature)
    queries = Queries(desk, limits=job.limits)
    parent_of = Parent(
        run=run,
        teller=teller,
        limits=job.limits,
        grants=without_network(job.grants),
        seed=job.seed,
        temperature=job.temperature,
        functions=own,
        model=model,
        depth=0 if caller is None else caller.depth,
        compact_at=job.compact_at,
    )
    child_desk = LiveChildDesk(parent_of, children, shelf)
    skill_given = skills_asked(
        skills,
        job.put_skills,
        goal=job.goal,
        inputs=job.inputs,
        shelf=shelf,
        session=session_id,
    )
    skill_desk = desk_for(
        skill_given,
        skills,
        session_id=session_id,
        scripts=Scripts(
            sandbox,
            functions,
            granted=job.grants,
            seed=job.seed,
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
        grants=job.grants,
        skills=skill_desk,
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
            clock_ns=CLOCK_NS,
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
            vocabulary=vocabulary_given(vocabulary, shelf),
            session=in_session,
        ),
        job.strategy,
        layout=layout,
        model=model,
        teller=teller,
    )
    # What is refused is refused before anything is written.
    session = await begun_session(planned, sandbox, native, shelf)
    parent, step = steps.begin(ledger)
    started = _canonical(msgspec.structs.replace(planned, parent=parent, step=step))
    pen = LedgerPen(
        ledger,
        run=run,
        fence=_claimed(ledger, run, child=caller is not None),
        head=Head.of_nothing(),
        to_commit=shelf.to_commit,
    )
    world = LiveWorld(
        run=run,
        model=model,
        session=None if isinstance(session, NativeSession) else session,
        native=session if isinstance(session, NativeSession) else None,
        table=table,
        names=names_of(started, given.values),
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
    cards = () if skills is None else skills.registry.cards()
    driver = Driver(
        started,
        world=world,
        pen=pen,
        texts=texts_of(given.values),
        watch=lambda record: job.watch(run, record),
        evidence=kept_evidence(started.skills, shelf, cards=cards),
        check=check_for(
            started,
            None if vocabulary is None else vocabulary.thesaurus,
            skills=[each.id for each in cards],
        ),
    )
    try:
        try:
            await driver.drive()
        except asyncio.CancelledError:
            if driver.state.ended is None:
                raise
        await leave_session(job.joined, session, driver.state)
    finally:
        await session.close()
    shelf.run_over(driver.state.ended)
    ended = run_of(
        run,
        driver.state,
        ledger=path_of(ledger),
        cited=await cited_aside(driver.state.ended, started, given, shelf),
        parent=parent,
        step=step,
    )
    return ended, pen.head


async def begun_session(
    started: RunStarted,
    sandbox: Callable[[], WasmSandbox],
    native: NativeBackend | None,
    shelf: Shelf,
    records: Sequence[Record] = (),
) -> WasmSession | NativeSession:
    """The session that the programs of a run have, as it stands before the next of them.

    `records` are what is recorded of it: those of the WASM sandbox are run again on that.
    """
    if native is not None:
        return await native.begin(started, shelf, records)
    session = await sandbox().open(
        session_id=started.session_id, seed=started.seed, clock_ns=started.clock_ns
    )
    await load_image(session, started, shelf)
    return session


def host_table(
    functions: Sequence[RunFunction],
    *,
    shelf: Shelf,
    queries: Queries,
    children: Children,
    teller: Teller,
    given: Given,
    grants: Sequence[str],
    skills: SkillDesk | None = None,
) -> HostTable:
    """What the programs of a run may call."""
    remaining = remaining_of(teller.purse)
    return HostTable(
        [
            *shelf.functions(),
            *queries.functions(),
            *children.functions(),
            HostFunction(name="budget.remaining", function=remaining, local=True),
            *(() if skills is None else skills.functions()),
            *(each.hosted() for each in functions),
        ],
        texts=given.texts,
        granted=frozenset(grants),
        answering=True,
        find_text=shelf.find_text,
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
