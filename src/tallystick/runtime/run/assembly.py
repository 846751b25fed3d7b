"""Put the parts of a run together, in one place, and drive it to its end.

A new run, a child, a resumed run, a fork and a replay differ by their plan: what is on record, who
pays, and whether anything is written. Everything else is the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tallystick.core.chain import Head
from tallystick.core.charge import RunLimits
from tallystick.core.clock import RunClock
from tallystick.core.history import History
from tallystick.core.machine.state import RunState
from tallystick.core.machine.turn import with_new_terms
from tallystick.core.records import (
    AIDS,
    Continuation,
    Record,
    RunStarted,
    decode_record,
    depth_of,
    encode_record,
)
from tallystick.core.resume_errors import FunctionsMissing
from tallystick.core.strategy import AskedStrategy
from tallystick.ledger.port import Ledger
from tallystick.model.port import Model
from tallystick.runtime.calls.approvals import Approvals, Word
from tallystick.runtime.calls.capability import (
    Capability,
    RunCapabilities,
    RunCapability,
    RunData,
    RunServices,
)
from tallystick.runtime.calls.children import Children, ChildRunner, Parent
from tallystick.runtime.calls.decisions import FindReply
from tallystick.runtime.calls.deltas import HearDelta, hear_nothing
from tallystick.runtime.calls.functions import Ask, RunFunction
from tallystick.runtime.calls.host import CountInside, HostFunctions
from tallystick.runtime.calls.queries import AskedModels, FindModel, Queries, no_models
from tallystick.runtime.calls.turn_call import AskedModel
from tallystick.runtime.context.attachments import RunAttachments
from tallystick.runtime.context.inputs import Input
from tallystick.runtime.context.namespace import names_of, texts_of
from tallystick.runtime.journal.effects import Decisions, Effects
from tallystick.runtime.journal.journal import Journal
from tallystick.runtime.journal.writer import LedgerWriter
from tallystick.runtime.programs.backends import Backends, without_network
from tallystick.runtime.programs.execution import ProgramParts, ProgramRunner, count_inside
from tallystick.runtime.programs.native_effect import Settling
from tallystick.runtime.run.driver import Driver, Hooks
from tallystick.runtime.run.surroundings import NOTHING_AROUND, Leases, Surroundings
from tallystick.runtime.runs.decided import Decided
from tallystick.runtime.runs.lock import stop_requested, take_decided
from tallystick.runtime.runs.result import Run, run_of
from tallystick.runtime.runs.waiting import waiting_in
from tallystick.runtime.spend.client_scopes import ClientScopes
from tallystick.runtime.spend.door import ModelDoor, RefusedCall
from tallystick.runtime.spend.scopes import remaining_of
from tallystick.sandbox.host import HostFunction, HostTable
from tallystick.sandbox.port import Programs

if TYPE_CHECKING:
    pass

# How often a run looks whether somebody asked for its stop, in seconds. A look is one file.
_LOOK_SECONDS = 0.15
# Called with the run and each new record.
Watch = Callable[[str, Record], None]


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The request for a new run."""

    goal: str
    inputs: Sequence[Input]
    limits: RunLimits
    grants: Sequence[str]
    seed: int
    temperature: float | None
    watch: Watch
    heard: HearDelta
    # By name, None for the model of the step or the client.
    model: str | None = None
    # The model of sub-calls that name none, by name; None for that of the run.
    sub_model: str | None = None
    # None for code, or direct if there is nothing that a program could read.
    strategy: AskedStrategy | None = None
    # The prompt tokens at which old turns are shortened, 0 for never, None to suit the model.
    compact_at: int | None = None
    # The JSON schema of the answer, as text.
    schema: str | None = None
    # Skills that the user puts into the prompt, each a name with its arguments.
    put_skills: Sequence[str] = ()
    # The id of a session, None for a run without one.
    session: str | None = None
    # The origin of each setting that is no default, for the record.
    settings: Mapping[str, str] = field(default_factory=dict)
    # None for the present, in UTC.
    clock: RunClock | None = None
    # The helps for weak models; fewer than all only to measure what each one brings.
    aids: tuple[str, ...] = AIDS
    # What the caller wants of every answer; None for nothing.
    instructions: str | None = None
    # An approval that holds for all calls of the run, for the child of a run that has one.
    decided: Decided | None = None
    # The number of runs above this one.
    recursion_depth: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The part of a client that all its runs share. Created once for each call of the client.

    `model` finds the model of a new run by its name, `recorded_model` that of a recorded one, and
    `models` those that programs may ask, beside the run's own. `sub_model` returns the model of
    sub-calls that name none; None for the run's own. `ask` says which calls need a person's word,
    beside those whose function says so.
    """

    ledger: Ledger
    client_scopes: ClientScopes
    capabilities: Sequence[Capability]
    model: Callable[[str | None], Model]
    recorded_model: Callable[[str | None], Model]
    models: Callable[[Model], FindModel]
    run_attachments: Callable[[str, Sequence[str]], RunAttachments]
    backends: Backends
    lookup: FindReply | None = None
    leases: Leases | None = None
    sub_model: Callable[[], Model] | None = None
    ask: Ask | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The differences between one execution of a run and another.

    `history` is empty for a new run. A replay has no `door`, so no model is asked, and no `claim`,
    so nothing is written. `open_programs` opens the sandbox; it returns None if the programs are
    served from the record.
    """

    run: str
    started: RunStarted
    run_attachments: RunAttachments
    history: History
    open_programs: Callable[[RunStarted], Any]
    model: Model | None = None
    door: ModelDoor | None = None
    children: ChildRunner | None = None
    claim: Callable[[], tuple[int, Head]] | None = None
    continuation: Callable[[int], Continuation] | None = None
    limits: RunLimits | None = None
    decisions: Decisions = field(default_factory=Decisions)
    around: Surroundings = NOTHING_AROUND
    watch: Watch | None = None
    heard: HearDelta = hear_nothing
    sockets: Path | None = None
    # True for the run of a program, which is stopped with the run that it is inside of.
    inside: bool = False
    # What a person decided about what the run waits for.
    decided: Decided | None = None


class Assembled:
    """The parts of one run, ready to be driven once. The caller closes `programs`."""

    def __init__(
        self,
        driver: Driver,
        runner: ProgramRunner,
        journal: Journal,
        programs: Programs | None,
        opened: RunCapabilities,
    ) -> None:
        self.driver = driver
        self.opened = opened
        self.runner = runner
        self.journal = journal
        self.programs = programs
        self.writer: LedgerWriter | None = None


async def assemble(context: RunContext, plan: Plan) -> Assembled:
    """Put a run together. Every refusal is raised before anything is written.

    Raise `UsageError` if programs of a recorded run need functions that are not here. Raise what
    the capabilities, the sandbox and `claim` raise. The sandbox is closed after an error.
    """
    run, history, started = plan.run, plan.history, plan.started
    journal = Journal(history, run=run)
    effects = Effects(history, journal, plan.decisions)
    find_model = no_models if plan.model is None else context.models(plan.model)
    queries = Queries(
        effects,
        AskedModels(
            run=run,
            door=plan.door,
            find_model=find_model,
            run_attachments=plan.run_attachments,
            temperature=_as_it_counts(plan).temperature,
            heard=plan.heard,
        ),
    )
    children = _children(plan, effects, queries)
    opened = _open_capabilities(context, plan, queries, children, find_model)
    data = opened.data()
    # What a session kept of its last run is there too; data of the run itself win.
    data = replace(data, values={**started.values, **data.values})
    table = _table(plan, opened, queries, children, data)
    is_new = not history.records
    if is_new:
        functions = tuple((each.name, each.doc) for each in table.names.functions)
        started = opened.finish(msgspec.structs.replace(started, functions=functions))
    elif plan.door is not None:
        _check_functions(run, started, table)
    # The sandbox before the claim: a run whose sandbox does not open here stays as it is, and the
    # process that has it may continue.
    programs: Programs | None = await plan.open_programs(started)
    writer = None
    try:
        if is_new:
            started = _as_stored(started, plan.around.begin(context.ledger))
        restored = 0
        if not is_new and programs is not None and plan.claim is not None:
            restored = await programs.restore(history)
        if plan.claim is not None:
            fence, head = plan.claim()
            writer = LedgerWriter(
                context.ledger,
                run=run,
                fence=fence,
                head=head,
                to_commit=plan.run_attachments.to_commit,
            )
            # Only now: the record of a resume names the fence of its claim.
            then = plan.continuation
            journal.open(writer, None if then is None else then(fence))
    except BaseException:
        if programs is not None:
            await programs.close()
        raise
    # A replay calls none of them: their answers are on record.
    tools = () if plan.door is None else opened.functions()
    word = Word(
        decided=plan.decided,
        ask=context.ask,
        look=lambda sha256: take_decided(context.ledger, run, [sha256]),
    )
    runner = ProgramRunner(
        effects,
        ProgramParts(
            run=run,
            programs=programs,
            functions=HostFunctions(
                table,
                names_of(started, data.values),
                tools,
                plan.run_attachments,
                refuse=opened.refuse,
                fields_of=opened.fields_of,
                note_served_answer=opened.note_served_answer,
                count_inside=_count_inside(plan),
                approvals=Approvals(run, tools, history, word),
            ),
            run_attachments=plan.run_attachments,
            children=children,
            door=plan.door,
            around=opened.around,
            restored=restored,
        ),
    )
    driver = Driver(
        started,
        effects=effects,
        asked=AskedModel(
            run=run,
            model=plan.model,
            door=plan.door,
            read=plan.run_attachments.read,
            heard=plan.heard,
        ),
        programs=runner,
        texts=texts_of(data.values),
        hooks=_hooks(plan, opened, programs),
        settling=_settling(context, plan, find_model),
    )
    assembled = Assembled(driver, runner, journal, programs, opened)
    assembled.writer = writer
    return assembled


async def drive(context: RunContext, plan: Plan) -> tuple[Run, Head, RefusedCall | None]:
    """Put a run together and drive it to its end. A cancel ends it too, and the end is recorded.

    Return the result, the head, and the model call whose refusal ended the run, else None. A cancel
    that came before the run was live is raised, and no end is recorded. Raise what `assemble`,
    `Driver.drive` and `Surroundings.after_end` raise. The sandbox is closed in every case.
    """
    assembled = await assemble(context, plan)
    driver = assembled.driver
    assert assembled.writer is not None, "a replay is driven by its report"
    assert assembled.programs is not None, "a run that is live has what runs its programs"
    try:
        try:
            await _drive_until_stopped(driver, context.ledger, plan)
        except asyncio.CancelledError:
            # The caller of a cancelled run gets its result: the end is on record.
            if driver.state.ended is None:
                raise
        await plan.around.after_end(driver.state)
    finally:
        await assembled.programs.close()
    ended, started = driver.state.ended, driver.started
    plan.run_attachments.run_over(ended)
    run = run_of(
        plan.run,
        driver.state,
        ledger=path_of(context.ledger),
        cited=await assembled.opened.cite(ended, started),
        parent=started.parent,
        step=started.step,
        session_lost=plan.around.session_lost,
    )
    if run.stop == "waiting":
        run = msgspec.structs.replace(run, waits=tuple(waiting_in(context.ledger, plan.run)))
    return run, assembled.writer.head, driver.refused


async def _drive_until_stopped(driver: Driver, ledger: Ledger, plan: Plan) -> None:
    """Drive a run to its end, and cancel it if somebody asks for its stop.

    Raise what `Driver.drive` raises. A cancel of the caller cancels the run, whose end is awaited.
    """
    if plan.inside:
        await driver.drive()
        return
    driving = asyncio.ensure_future(driver.drive())
    left: asyncio.CancelledError | None = None
    while not driving.done():
        try:
            await asyncio.wait({driving}, timeout=_LOOK_SECONDS)
        except asyncio.CancelledError as error:
            left = error
            driving.cancel()
            continue
        if left is None and driver.stopped_by is None and not driving.done():
            driver.stopped_by = stop_requested(ledger, plan.run)
            if driver.stopped_by is not None:
                driving.cancel()
    if driving.cancelled():
        raise left or asyncio.CancelledError
    driving.result()
    if left is not None:
        raise left


def path_of(ledger: Ledger) -> str:
    """Return the path of a ledger as a result names it: "memory" without a file."""
    return str(getattr(ledger, "path", "memory"))


def given_names(inputs: Sequence[Input], functions: Sequence[RunFunction]) -> set[str]:
    """Return the names that programs find: those of their data, and of functions.

    For a function `a.b`, this is `a`.
    """
    taken = {each.variable for each in inputs}
    return taken | {each.name.partition(".")[0] for each in functions}


# -- the parts ---------------------------------------------------------------------------------


def _as_it_counts(plan: Plan) -> RunStarted:
    """Return the start of the run with the changes of every continuation."""
    if not plan.history.records:
        return plan.started
    now = plan.history.started
    # A fence is known only once the run is claimed; nothing here depends on it.
    return now if plan.continuation is None else with_new_terms(now, plan.continuation(0))


def _children(plan: Plan, effects: Effects, queries: Queries) -> Children:
    depth, is_root = depth_of(plan.started), plan.started.caller is None
    if plan.door is None or plan.model is None or plan.children is None:
        return Children(effects, queries, plan.run_attachments, depth=depth, is_root=is_root)
    now = _as_it_counts(plan)
    parent = Parent(
        run=plan.run,
        model_door=plan.door,
        limits=plan.limits or now.limits,
        grants=without_network(now.grants),
        seed=now.seed,
        temperature=now.temperature,
        wrap=plan.around.wrap,
        deeper=plan.around.deeper,
        model=plan.model,
        depth=depth,
        compact_at=plan.started.compact_at,
        clock=plan.started.clock,
    )
    return Children(
        effects,
        queries,
        plan.run_attachments,
        depth=depth,
        is_root=is_root,
        parent=parent,
        runner=plan.children,
    )


def _count_inside(plan: Plan) -> CountInside:
    """Return the function that counts served model calls and children; a replay counts nothing."""
    door = plan.door
    return lambda calls: None if door is None else count_inside(door, calls)


def _open_capabilities(
    context: RunContext,
    plan: Plan,
    queries: Queries,
    children: Children,
    find_model: FindModel,
) -> RunCapabilities:
    """Open the capabilities of a run, in their order. Return those that the run has.

    Raise what they raise.
    """
    opened: list[RunCapability] = []

    def others(asking: RunCapability) -> Sequence[RunFunction]:
        return [made for each in opened if each is not asking for made in each.functions()]

    services = RunServices(
        run=plan.run,
        run_attachments=plan.run_attachments,
        queries=queries,
        door=plan.door,
        others=others,
        wrap=plan.around.wrap,
        sandbox=context.backends.wasm,
        model=plan.model,
        find_model=find_model,
        children=children,
        sockets=plan.sockets,
    )
    for each in context.capabilities:
        found = each.open(plan.started, plan.history, services)
        if found is not None:
            opened.append(found)
    return RunCapabilities(opened)


def _check_functions(run: str, started: RunStarted, table: HostTable) -> None:
    """Raise `UsageError` if programs of a recorded run may call functions that are not here."""
    missing = [name for name, _ in started.functions if not table.has(name)]
    if missing:
        raise FunctionsMissing(
            f"run {run} has programs that may call {', '.join(missing)}; resume it in a session "
            f"with those functions"
        )


def _table(
    plan: Plan, opened: RunCapabilities, queries: Queries, children: Children, data: RunData
) -> HostTable:
    """Return the table of all functions that the programs of a run may call.

    A replay has no `budget.remaining`, and none of the capabilities: their answers are on record.
    """
    functions = [*plan.run_attachments.functions(), *queries.functions(), *children.functions()]
    if plan.door is not None:
        remaining = remaining_of(plan.door.run_scopes)
        functions.append(HostFunction(name="budget.remaining", function=remaining, local=True))
        functions.extend(each.hosted() for each in opened.functions())
    return HostTable(
        functions,
        texts=data.texts,
        granted=frozenset(plan.started.grants),
        answering=True,
        find_text=plan.run_attachments.find_text,
    )


def _hooks(plan: Plan, opened: RunCapabilities, programs: Programs | None) -> Hooks:
    watch, run = plan.watch, plan.run
    return Hooks(
        watch=None if watch is None else lambda record: watch(run, record),
        evidence=opened.evidence,
        check=opened.check,
        before_end=_before_end(plan, programs),
    )


def _before_end(
    plan: Plan, programs: Programs | None
) -> Callable[[RunState], Awaitable[None]] | None:
    """Return the function that keeps variables before the end is written; None without one."""
    around = plan.around
    if programs is None or plan.claim is None or around is NOTHING_AROUND:
        return None
    return lambda state: around.before_end(state, programs)


def _settling(context: RunContext, plan: Plan, find_model: FindModel) -> Settling | None:
    door = plan.door
    if door is None:
        return None
    return Settling(
        door=door, terms_of=lambda name: door.terms(find_model(name)), ledger=context.ledger
    )


def _as_stored(started: RunStarted, more: Mapping[str, Any]) -> RunStarted:
    """Return the start as the ledger will decode it, so that a replay sees an equal one."""
    read = decode_record(encode_record(msgspec.structs.replace(started, **more)))
    assert isinstance(read, RunStarted)
    return read
