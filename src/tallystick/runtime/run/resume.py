"""Resume a run: repeat it on its record, and continue live where the record ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import msgspec

from tallystick.core.chain import UNKNOWN_RECORD, Head
from tallystick.core.charge import RunLimits
from tallystick.core.citation.cited import Cited
from tallystick.core.errors import (
    BackendError,
    LedgerConflict,
    RecordUnreadable,
    RunNotFound,
    UsageError,
)
from tallystick.core.history import History
from tallystick.core.machine.answer import reply_text, value_of
from tallystick.core.machine.prompt import TEMPLATE, TEMPLATES
from tallystick.core.machine.turn import limit_reached
from tallystick.core.records import (
    Continuation,
    InDoubt,
    ModelReplied,
    QueryAsked,
    Record,
    RunEnded,
    RunPruned,
    RunResumed,
    RunStarted,
)
from tallystick.core.resume_errors import ResumeRefused, RunInDoubt
from tallystick.core.views.open_calls import (
    UNKNOWN,
    Lookup,
    OpenIntent,
    left_calls,
    of_child,
    open_calls,
)
from tallystick.core.views.receipt import holds_steps
from tallystick.ledger.port import Ledger
from tallystick.ledger.verify import bad_entry_of
from tallystick.model.port import Model, ModelReply
from tallystick.runtime.calls.approvals import all_approved
from tallystick.runtime.calls.children import ChildRunner, Parent
from tallystick.runtime.calls.decisions import FindReply, decide
from tallystick.runtime.calls.deltas import HearDelta
from tallystick.runtime.calls.queries import FindModel
from tallystick.runtime.context.attachments import RunAttachments
from tallystick.runtime.journal.effects import Decisions
from tallystick.runtime.programs.backends import is_same
from tallystick.runtime.run.assembly import Plan, RunContext, Watch, drive, path_of
from tallystick.runtime.run.surroundings import NOTHING_AROUND, Surroundings, Within
from tallystick.runtime.runs.decided import Decided
from tallystick.runtime.runs.history import (
    NOT_BEGUN,
    refuse_foreign,
    skip_answered,
    whole_records,
)
from tallystick.runtime.runs.lock import decided_left, lock_run, take_decided
from tallystick.runtime.runs.result import Run, said_at_end
from tallystick.runtime.runs.waiting import Waiting, waiting_in, waiting_of
from tallystick.runtime.spend.door import ModelDoor
from tallystick.sandbox.backend import Backend
from tallystick.storage.clock import now_ms


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """The request for a resume. `limits` None keeps the limits of the run."""

    in_doubt: InDoubt
    limits: RunLimits | None
    steal: bool
    watch: Watch
    heard: HearDelta
    # The decision about what waits for a person. Without digests, it is about the only such thing.
    decided: Decided | None = None
    # Where to find the model of sub-calls, if its recorded name does not say.
    sub_model: str | None = None

    def for_child(self) -> ResumeRequest:
        """Return the request for a child run: it keeps its limits.

        It steals the lock too, if the resume of its parent does.
        """
        return dataclasses.replace(self, limits=None)


async def resume(
    context: RunContext,
    run: str,
    request: ResumeRequest,
    *,
    children: ChildRunner,
    around: Surroundings = NOTHING_AROUND,
    parent: Parent | None = None,
) -> Run:
    """Resume a run, and return its result. A run that was answered is returned as it is.

    `parent` is the parent of a child run, whose scopes pay for it. Raise `ResumeRefused` if the run
    cannot be resumed, `RunInDoubt` if a call in doubt needs a decision, and `ResumeDiverged` if it
    does not repeat its record. Raise the errors of `Leases.again` for a session. Raise
    `RunNotFound`, `UsageError` if a living process works on it, and `LedgerConflict` if another has
    written to it meanwhile. For a child, a `UsageError` or `BackendError` becomes `ResumeRefused`:
    the program of its parent must not catch it and continue.
    """
    try:
        return await _resume(context, run, request, children, around, parent)
    except ResumeRefused:
        raise
    except (BackendError, UsageError) as error:
        if parent is None:
            raise
        why = f"is a part of run {parent.run} and cannot be gone on with: {error}"
        raise ResumeRefused(run=run, why=why) from error


async def _resume(
    context: RunContext,
    run: str,
    request: ResumeRequest,
    children: ChildRunner,
    around: Surroundings,
    parent: Parent | None,
) -> Run:
    ledger = context.ledger
    with lock_run(ledger, run, steal=request.steal) as stolen:
        head, records = read_checked(ledger, run)
        check_resumable(run, records, request.limits)
        if parent is None:
            waits = waiting_in(ledger, run, records)
            # Somebody may have decided where the functions of the run are not.
            left = decided_left(ledger, run, [each.sha256 for each in waits])
            if left is not None and request.decided is not None:
                why = f"was decided about already, by {left.by}; resume it without a decision"
                raise ResumeRefused(run=run, why=why)
            decided = bound(run, waits, request.decided or left)
            if decided is not None and decided.entries not in (0, head.count):
                # An equal request may wait again, after somebody decided about the first one.
                why = "has nothing that waits any more of what was decided about; look at it again"
                raise ResumeRefused(run=run, why=f"{why}: tally inspect {run}")
            request = dataclasses.replace(request, decided=decided)
        if isinstance(records[-1], RunEnded) and records[-1].stop == "answered":
            # Its process may have died between its end and the release of its session.
            leases = context.leases
            lost = leases is not None and leases.finish(run, records)
            ended = ended_run(context, run, records)
            return msgspec.structs.replace(ended, session_lost=lost)
        history = History(records, resumed=True)
        decided = request.decided
        if decided is None:
            # Where all calls were approved once, the runs inside need no further word either.
            request = dataclasses.replace(request, decided=all_approved(history))
        if parent is None:
            children.decide(request.decided)
        run_attachments = context.run_attachments(history.holder, history.started.grants)
        again: AbstractContextManager[Surroundings] = nullcontext(NOTHING_AROUND)
        if context.leases is not None:
            again = context.leases.again(run, records, steal=request.steal)
        with again as lease:
            inside = around if lease is NOTHING_AROUND else Within(lease, around)
            return await inside.during(
                continue_run(
                    context,
                    Continued(
                        run=run,
                        history=history,
                        head=head,
                        started=history.started,
                        run_attachments=run_attachments,
                        claim=lambda: _claim(ledger, run, decided),
                        continuation=lambda fence: RunResumed(
                            at=now_ms(),
                            fence=fence,
                            limits=request.limits,
                            in_doubt=request.in_doubt,
                            stolen=stolen,
                            files_missing=tuple(History(records).files_missing),
                            **_decision_fields(run, records, decided),
                        ),
                    ),
                    request,
                    children=children,
                    around=inside,
                    parent=parent,
                )
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """A record that is continued, by a resume or by a fork.

    `started` is the start of the run with the changes of every continuation.
    """

    run: str
    history: History
    head: Head
    started: RunStarted
    run_attachments: RunAttachments
    claim: Callable[[], int]
    continuation: Callable[[int], Continuation]


async def continue_run(
    context: RunContext,
    record: Continued,
    request: ResumeRequest,
    *,
    children: ChildRunner,
    around: Surroundings = NOTHING_AROUND,
    parent: Parent | None = None,
) -> Run:
    """Decide about calls in doubt, claim the run, and drive it from the end of its record.

    Until the claim, nothing of the run is written. With it, the reservations that a dead process
    of this run left are settled or released. Raise `NoBackendAvailable`, `ResumeRefused`,
    `RunInDoubt`, and `LedgerConflict` if the run has another head than when it was read. Raise what
    `drive` and the surroundings raise.
    """
    run, history, started = record.run, record.history, record.started
    ledger = context.ledger
    backend = await context.backends.for_resumed(started)
    model = _checked_model(context, record, backend)
    find_model = context.models(model)
    _check_models(run, history.records, find_model)
    for each in context.capabilities:
        each.check_resume(run, history)
    first = history.records[0]
    assert isinstance(first, RunStarted)
    limits = request.limits or started.limits
    scopes = context.client_scopes
    paying = (
        scopes.run(
            run,
            limits,
            ledger,
            places=around.scopes,
            noted=around.note_settled,
            shared_before=not record.head.count,
        )
        if parent is None
        else scopes.child(parent.model_door, run, limits, parent=parent.run)
    )
    with paying as door:
        decisions = await _decide(context, run, history.records, request, door, find_model)

        def claim() -> tuple[int, Head]:
            fence = record.claim()
            now = ledger.row(run)
            if now is None or now.head != record.head:
                # Another process has written since the run was read. After this claim it cannot.
                found = None if now is None else now.head.count
                raise LedgerConflict(run=run, field="head", expected=record.head.count, found=found)
            door.run_scopes.reconcile(*history.holds)
            return fence, record.head

        ended, _, refused = await drive(
            context,
            Plan(
                run=run,
                started=first,
                run_attachments=record.run_attachments,
                history=history,
                open_programs=lambda _: backend.open(started, history, record.run_attachments),
                model=model,
                door=door,
                children=children,
                claim=claim,
                continuation=record.continuation,
                limits=limits,
                decisions=decisions,
                around=around,
                watch=request.watch,
                heard=request.heard,
                sockets=backend.sockets,
                inside=parent is not None,
                decided=request.decided,
            ),
        )
        return around.result_of(ended, refused=refused, rows=scopes.rows)


def _checked_model(context: RunContext, record: Continued, backend: Backend) -> Model:
    """Return the model of the run. Raise `ResumeRefused` if the run cannot be resumed here.

    That is for another sandbox version, other prompts, or a model of another name. A model that
    answers by position is advanced past the calls on record.
    """
    run, started = record.run, record.started
    if backend.repeatable and not is_same(backend, started):
        raise ResumeRefused(run=run, why="was made with another version of the sandbox")
    if started.template not in TEMPLATES:
        why = f"was made with the prompts {started.template}, and this version writes {TEMPLATE}"
        raise ResumeRefused(run=run, why=why)
    model = context.recorded_model(started.model)
    if model.name != started.model:
        why = (
            f"asks {started.model}, and this is {model.name}; resume it with that model, or fork it"
        )
        raise ResumeRefused(run=run, why=why)
    skip_answered(model, record.history)
    return model


def _claim(ledger: Ledger, run: str, decided: Decided | None) -> int:
    fence = ledger.claim(run, create=False)
    if decided is not None:
        # Only now: a resume that is refused leaves the decision to the next one.
        take_decided(ledger, run, decided.sha256s)
    return fence


def bound(run: str, waits: Sequence[Waiting], decided: Decided | None) -> Decided | None:
    """Return a decision bound to the digests of what waits in a run; None if nothing does.

    Raise `ResumeRefused` if a decision is needed and missing, or given and not needed. The same if
    it is about something that does not wait any more, or if it does not say which of several.
    """
    if decided is None and not waits:
        return None
    if decided is None:
        why = f"waits for a person: tally approve {run}, or tally deny {run}"
        raise ResumeRefused(run=run, why=why)
    if not waits:
        raise ResumeRefused(run=run, why="has nothing that waits for a person")
    about = [each for each in waits if decided.run in ("", each.run)]
    if decided.sha256s:
        about = [each for each in about if each.sha256 in decided.sha256s]
    if not about:
        why = "waits for something else than what was decided about; look at it again"
        raise ResumeRefused(run=run, why=f"{why}: tally inspect {run}")
    if len(about) > 1 and not (decided.all or decided.sha256s):
        named = ", ".join(dict.fromkeys(each.run for each in waits))
        why = f"waits for {len(about):,} decisions; add --all, or name one of the runs: {named}"
        raise ResumeRefused(run=run, why=why)
    sha256s = tuple(sorted({each.sha256 for each in about}))
    return msgspec.structs.replace(decided, sha256s=sha256s)


def _decision_fields(
    run: str, records: Sequence[Record], decided: Decided | None
) -> dict[str, Any]:
    """Return the fields of a resume that say what was decided, if that is about this run itself."""
    if decided is None:
        return {}
    own = [each for each in waiting_of(run, records) if decided.covers(run, each.sha256)]
    if not own:
        return {}
    return {
        "decision": decided.decision,
        "by": decided.by,
        "because": decided.because or msgspec.UNSET,
        "decided_sha256": own[0].sha256,
        "decided_all": decided.all or msgspec.UNSET,
    }


async def _decide(
    context: RunContext,
    run: str,
    records: Sequence[Record],
    request: ResumeRequest,
    model_door: ModelDoor,
    find_model: FindModel,
) -> Decisions:
    """Return the decisions on the open calls of a run.

    Its child runs are checked too, before anything is written, so that one `RunInDoubt` names every
    call that needs a decision. The decisions on their calls are made when they are resumed.
    """
    inside: list[OpenIntent] = []
    for child in History(records).awaited_children:
        row = context.ledger.row(child)
        if row is not None and row.head.count:
            known = whole_records(context.ledger, child)
            last = known[-1]
            if isinstance(last, RunEnded) and limit_reached(
                History(known).started.limits, last.charge
            ):
                # The child is at a limit, so it is not resumed, and its calls stay as they are.
                continue
            try:
                # Its decisions are dropped: its own resume makes them again, from the same record.
                await _decide(context, child, known, request, model_door, find_model)
            except RunInDoubt as doubt:
                inside += of_child(doubt.open, child)
    try:
        decisions = await decide(
            run,
            records,
            model=History(records).started.model,
            policy=request.in_doubt,
            functions={
                made.name: made for each in context.capabilities for made in each.known_functions()
            },
            free=lambda name: _is_free(model_door, find_model, name),
            find_reply=_find_reply(context.lookup, find_model),
        )
    except RunInDoubt as doubt:
        raise RunInDoubt(run=run, open=(*doubt.open, *inside)) from None
    if inside:
        raise RunInDoubt(run=run, open=tuple(inside))
    return decisions


def read_checked(ledger: Ledger, run: str) -> tuple[Head, list[Record]]:
    """Return the head and the records of a run.

    Raise `RunNotFound`, and `RecordUnreadable` for a record of another version. Raise
    `ResumeRefused` if its chain is damaged or empty, or if it was pruned or imported from a log of
    rlms. Raise `UsageError` for a chain of steps.
    """
    row = ledger.row(run)
    if row is None:
        raise RunNotFound(run=run)
    if not row.head.count:
        raise ResumeRefused(run=run, why=NOT_BEGUN)
    bad = bad_entry_of(ledger, run)
    if bad is not None and bad.why.endswith(UNKNOWN_RECORD):
        raise RecordUnreadable(run=bad.run, seq=bad.seq, why=bad.why)
    if bad is not None:
        raise ResumeRefused(run=bad.run, why=f"does not hold at entry {bad.seq}: {bad.why}")
    records = whole_records(ledger, run)
    if holds_steps(records):
        raise UsageError(
            f"{run} holds steps; resume one of its runs, or all of them with Session.resume_steps"
        )
    refuse_foreign(run, History(records).started)
    return row.head, records


def _check_models(run: str, records: Sequence[Record], find_model: FindModel) -> None:
    """Raise `ResumeRefused` if a call is open of a model that is unknown here: it has no price."""
    for call in (*open_calls(records), *left_calls(records)):
        if isinstance(call, QueryAsked):
            try:
                find_model(call.model)
            except UsageError as error:
                raise ResumeRefused(run=run, why=f"waits for a call of its own: {error}") from None


def _is_free(model_door: ModelDoor, find_model: FindModel, name: str) -> bool:
    try:
        return model_door.terms(find_model(name)).in_process
    except UsageError:
        return False


def _find_reply(lookup: FindReply | None, find_model: FindModel) -> FindReply:
    """Return the function that finds the reply to an earlier call.

    It asks `lookup` if that was given, else the `lookup` method of the model. It returns `UNKNOWN`
    for a model that has none, or that programs may not ask here.
    """

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
    """Raise `ResumeRefused` for a run that was pruned, or that is at a limit.

    `limits` are those for the resume, None for those of the run. A run that ended at its deadline
    needs more time than it had. An answered run is at no limit.
    """
    if any(isinstance(each, RunPruned) for each in records):
        raise ResumeRefused(run=run, why="was pruned: what it would go on from is gone")
    ended = records[-1]
    if isinstance(ended, RunEnded) and ended.stop != "answered":
        before = History(records).started.limits
        allowed = limits or before
        cap = limit_reached(allowed, ended.charge)
        if cap is None and ended.stop == "deadline" and allowed.wall_ms <= before.wall_ms:
            # The few milliseconds that may be left would pay for a call that is cut off at once.
            cap = ended.stop, ended.detail
        if cap is not None:
            raise ResumeRefused(
                run=run, why=f"is at its cap ({cap[1]}); resume it with a higher one"
            )


def last_said(records: Sequence[Record]) -> str | None:
    """Return the last reply with any text, shortened, without its reasoning; None if none has."""
    replies = (each.text for each in reversed(records) if isinstance(each, ModelReplied))
    return next((said for text in replies if (said := reply_text(text)) is not None), None)


def _cite(
    context: RunContext, ended: RunEnded, started: RunStarted, run_attachments: RunAttachments
) -> Cited:
    found = (each.cite_recorded(ended, started, run_attachments) for each in context.capabilities)
    return next((each for each in found if each is not None), Cited())


def ended_run(context: RunContext, run: str, records: Sequence[Record]) -> Run:
    """Return the result of a run that has ended, from its record. Its last record is its end."""
    history = History(records)
    ended, started = records[-1], history.started
    assert isinstance(ended, RunEnded)
    run_attachments = context.run_attachments(history.holder, started.grants)
    found = _cite(context, ended, started, run_attachments)
    return Run(
        run=run,
        answer=ended.answer,
        stop=ended.stop,
        detail=ended.detail,
        partial=ended.partial,
        said=said_at_end(ended, started, last_said(records)),
        turns=ended.charge.turns,
        charge=ended.charge,
        citations=found.citations,
        unchecked=found.unchecked,
        data=value_of(ended.answer, started) if ended.stop == "answered" else None,
        typed=started.schema is not None,
        settings=started.settings or {},
        ledger=path_of(context.ledger),
        parent=started.parent,
        step=started.step,
    )
