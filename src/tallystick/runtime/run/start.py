"""Start a new run: check the request, build its first record, and drive it."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from tallystick.core.budget.amount import BudgetExhausted, Scope
from tallystick.core.chain import Head
from tallystick.core.clock import RunClock
from tallystick.core.errors import RunExists, UsageError
from tallystick.core.history import History
from tallystick.core.machine.compaction import bound_for, check_bound
from tallystick.core.machine.prompt import TEMPLATE
from tallystick.core.records import AIDS, Caller, RunStarted, zone_given
from tallystick.model.port import Model, window_of
from tallystick.runtime.calls.capability import AskedRun, merge_fields
from tallystick.runtime.calls.children import ChildRunner
from tallystick.runtime.calls.functions import check_functions
from tallystick.runtime.context.namespace import check_variables
from tallystick.runtime.run.assembly import (
    Plan,
    RunContext,
    RunRequest,
    drive,
    given_names,
)
from tallystick.runtime.run.clock import run_clock
from tallystick.runtime.run.surroundings import NOTHING_AROUND, Surroundings
from tallystick.runtime.runs.lock import lock_run
from tallystick.runtime.runs.result import Run
from tallystick.runtime.spend.door import ModelDoor, RefusedCall
from tallystick.sandbox.backend import Backend
from tallystick.storage.clock import new_id, now_ms


async def start(
    context: RunContext,
    request: RunRequest,
    *,
    run: str,
    children: ChildRunner,
    around: Surroundings = NOTHING_AROUND,
) -> Run:
    """Run a goal to its end, and return the result. `run` is the id of the new run.

    It is locked while it runs, and its scope is inside those of `around`. Raise `UsageError` for a
    request that cannot be, `NoBackendAvailable` or `NotSupported` without a sandbox for it, and
    what `around` raises.
    """
    return await around.during(_start(context, request, run, children, around))


async def _start(
    context: RunContext, request: RunRequest, run: str, children: ChildRunner, around: Surroundings
) -> Run:
    request = replace(request, limits=around.limits(request.limits))
    scopes = context.client_scopes
    with (
        lock_run(context.ledger, run),
        scopes.run(
            run, request.limits, context.ledger, places=around.scopes, noted=around.note_settled
        ) as door,
    ):
        backend = await context.backends.for_new(around.backend)
        ended, _, refused = await start_in(
            context,
            request,
            run=run,
            model=context.model(request.model),
            door=door,
            backend=backend,
            children=children,
            around=around,
        )
        return around.result_of(ended, refused=refused, rows=scopes.rows)


async def start_in(
    context: RunContext,
    request: RunRequest,
    *,
    run: str,
    model: Model,
    door: ModelDoor,
    children: ChildRunner,
    backend: Backend | None = None,
    around: Surroundings = NOTHING_AROUND,
    caller: Caller | None = None,
) -> tuple[Run, Head, RefusedCall | None]:
    """Run a goal that `door` pays for. Return its result, its head, and the refused call or None.

    `caller` says which run started it, for a child. Without a `backend` it has that of child runs.
    Raise `UsageError` for a request that cannot be, before anything of it is written, and
    `BudgetExhausted` if more runs are above it than its limit of depth allows. Raise
    `RunExists` if the run is on the ledger. A child may be there without an entry. Raise what
    `drive` and the capabilities raise too.
    """
    backend = backend or context.backends.for_child()
    clock = _check_request(request, backend)
    if request.recursion_depth > request.limits.depth:
        scope = Scope(id=run, parent=None, kind="run", name=run)
        raise BudgetExhausted(
            dimension="depth",
            scope=scope,
            needed=request.recursion_depth,
            left=request.limits.depth,
        )
    # Opened before anything is written: it may not be there.
    sub_model = msgspec.UNSET if context.sub_model is None else context.sub_model().name
    session_id = new_id()
    run_attachments = context.run_attachments(session_id, request.grants)
    _check_names(context, request)
    known = [made for each in context.capabilities for made in each.known_functions()]
    fields = around.start_fields(given_names(request.inputs, known))
    around.share(run_attachments)
    asked = AskedRun(
        goal=request.goal,
        inputs=request.inputs,
        put_skills=request.put_skills,
        session_id=session_id,
        strategy=request.strategy,
        find_model=context.models(model),
        aids=request.aids,
    )
    told = [each.start_fields(asked, run_attachments) for each in context.capabilities]
    fields = merge_fields("given", [fields, *told])
    begun = _first_record(request, model, clock=clock, session_id=session_id, caller=caller)
    name, guest, engine = backend.identity
    begun = msgspec.structs.replace(
        begun,
        guest=guest,
        engine=engine,
        backend=name,
        sub_model=sub_model,
        **fields,
    )
    return await drive(
        context,
        Plan(
            run=run,
            started=begun,
            run_attachments=run_attachments,
            history=History(),
            open_programs=lambda started: backend.open(started, History(), run_attachments),
            model=model,
            door=door,
            children=children,
            claim=lambda: (_claim(context, run, caller), Head.of_nothing()),
            limits=request.limits,
            around=around,
            watch=request.watch,
            heard=request.heard,
            sockets=backend.sockets,
            inside=caller is not None,
            decided=request.decided,
        ),
    )


def _check_request(request: RunRequest, backend: Backend) -> RunClock:
    """Return the clock of a run.

    Raise `UsageError` for grants, a clock or a text that it cannot have.
    """
    backend.check_grants(request.grants)
    _check_texts(request, backend)
    clock = run_clock() if request.clock is None else request.clock
    if not backend.repeatable and not clock.is_present:
        raise UsageError(
            "clock: programs of the process sandbox read the clock of this machine; leave --clock "
            "out, or take the sandbox wasm"
        )
    return clock


def _check_texts(request: RunRequest, backend: Backend) -> None:
    most = backend.text_bytes_max
    for each in request.inputs:
        if most is not None and not each.is_picture and len(each.text) > most:
            raise UsageError(
                f"{each.name}: a text of {len(each.text):,} bytes; programs of this sandbox read "
                f"texts of at most {most:,}: split it, or use the process sandbox "
                "(--sandbox process)"
            )


def _check_names(context: RunContext, request: RunRequest) -> None:
    """Raise `UsageError` if two of the names of data and functions are the same."""
    known = [made for each in context.capabilities for made in each.known_functions()]
    names = check_functions(known)
    check_variables((each.variable for each in request.inputs), functions=names)


def _first_record(
    request: RunRequest,
    model: Model,
    *,
    clock: RunClock,
    session_id: str,
    caller: Caller | None,
) -> RunStarted:
    """Return the first record, with the fields that follow from the request."""
    timezone, utc_offset_s = zone_given(clock)
    return RunStarted(
        goal=request.goal,
        model=model.name,
        limits=request.limits,
        grants=tuple(request.grants),
        contexts=(),
        functions=(),
        texts=(),
        seed=request.seed,
        clock_ns=clock.clock_ns,
        timezone=timezone,
        utc_offset_s=utc_offset_s,
        session_id=session_id,
        template=TEMPLATE,
        guest="",
        engine="",
        started_at=now_ms(),
        temperature=request.temperature,
        caller=caller,
        compact_at=_compact_at(request, model),
        schema=request.schema,
        instructions=request.instructions or msgspec.UNSET,
        settings=request.settings or msgspec.UNSET,
        aids=msgspec.UNSET if request.aids == AIDS else request.aids,
        depth=request.recursion_depth or msgspec.UNSET,
    )


def _compact_at(request: RunRequest, model: Model) -> int:
    if request.compact_at is not None:
        return check_bound(request.compact_at)
    return bound_for(window_of(model), reply_tokens=request.limits.reply_tokens)


def _claim(context: RunContext, run: str, caller: Caller | None) -> int:
    try:
        return context.ledger.claim(run, create=True)
    except RunExists:
        # A child whose process died at once has a row already, and no entry.
        if caller is None:
            raise
        return context.ledger.claim(run, create=False)
