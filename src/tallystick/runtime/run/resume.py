"""A run gone on with: run again on its record, and from where that ends, live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from tallystick.core.chain import UNKNOWN_RECORD, Head
from tallystick.core.charge import RunLimits
from tallystick.core.errors import (
    BackendError,
    LedgerConflict,
    RecordUnreadable,
    RunNotFound,
    UsageError,
)
from tallystick.core.history import History
from tallystick.core.machine.answer import said_in, value_of
from tallystick.core.machine.prompt import TEMPLATE, TEMPLATES
from tallystick.core.machine.turn import over
from tallystick.core.records import (
    Continuation,
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
from tallystick.memory.runs import functions_of, memory_calls_of
from tallystick.model.port import Model, ModelReply
from tallystick.runtime.calls.children import ChildRunner, Parent
from tallystick.runtime.calls.decisions import Decisions, FindReply, decided
from tallystick.runtime.calls.functions import RunFunction
from tallystick.runtime.calls.queries import FindModel
from tallystick.runtime.context.attachments import RunAttachments
from tallystick.runtime.context.inputs import cited, given_again
from tallystick.runtime.journal.journal import LedgerJournal
from tallystick.runtime.programs.backends import Backends
from tallystick.runtime.programs.native import files_missing, native_again
from tallystick.runtime.run.assembly import (
    ResumeJob,
    begun_programs,
    committed_of,
    drive_continued,
    path_of,
)
from tallystick.runtime.run.replay import rerunnable
from tallystick.runtime.runs.history import (
    NOT_BEGUN,
    refuse_foreign,
    skip_answered,
    whole_records,
)
from tallystick.runtime.runs.lock import held_run
from tallystick.runtime.runs.result import Run, said_at_end
from tallystick.runtime.spend.client_scopes import ClientScopes
from tallystick.runtime.spend.door import ModelDoor
from tallystick.sessions.runs import finish_session, lease_again, watched_by_session
from tallystick.storage.clock import now_ms
from tallystick.vocabulary.runs import check_decision

if TYPE_CHECKING:
    from tallystick.memory.runs import Memory
    from tallystick.sandbox.wasm.sandbox import WasmSandbox
    from tallystick.sessions.runs import SessionLease
    from tallystick.sessions.sessions import Sessions
    from tallystick.skills.runs import Skills
    from tallystick.steps.runs import RunSteps
    from tallystick.vocabulary.runs import VocabularyAsked


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What of a session is needed to go on with a run."""

    ledger: Ledger
    client_scopes: ClientScopes
    functions: Sequence[RunFunction]
    model: Callable[[str | None], Model]
    find_model: Callable[[Model], FindModel]
    sandbox: Callable[[], WasmSandbox]
    run_attachments: Callable[[str, Sequence[str]], RunAttachments]
    lookup: FindReply | None
    skills: Skills | None = None
    memory: Memory | None = None
    vocabulary: VocabularyAsked | None = None
    sessions: Callable[[], Sessions] | None = None
    backends: Backends | None = None

    def known_functions(self) -> dict[str, RunFunction]:
        """What is known of the functions of a run, by their names."""
        of_memory = functions_of(memory_calls_of(self.memory, session_id=""))
        return {each.name: each for each in (*self.functions, *of_memory)}


async def resumed(
    parts: Parts,
    run: str,
    job: ResumeJob,
    steps: RunSteps,
    *,
    children: ChildRunner,
    parent: Parent | None = None,
) -> Run:
    """Go on with a run. One that has its answer is returned as it is.

    `parent` is for a child, which its parent's scopes pay for. That a child cannot be gone on with
    is not its parent's program's to handle, which would go on without it.
    """
    if parent is None:
        return await _resumed(parts, run, job, steps, children=children, parent=None)
    try:
        return await _resumed(parts, run, job, steps, children=children, parent=parent)
    except ResumeRefused:
        raise
    except (BackendError, UsageError) as error:
        why = f"is a part of run {parent.run} and cannot be gone on with: {error}"
        raise ResumeRefused(run=run, why=why) from error


async def _resumed(
    parts: Parts,
    run: str,
    job: ResumeJob,
    steps: RunSteps,
    *,
    children: ChildRunner,
    parent: Parent | None,
) -> Run:
    ledger = parts.ledger
    with held_run(ledger, run, steal=job.steal) as stolen:
        head, records = checked(ledger, run)
        check_resumable(run, records, job.limits)
        check_decision(run, records, job.decision)
        history = History(records)
        run_attachments = parts.run_attachments(history.holder, history.started.grants)
        if isinstance(records[-1], RunEnded) and records[-1].stop == "answered":
            lost = finish_session(parts.sessions, run, records)
            ended = ended_run(run, records, ledger=ledger, run_attachments=run_attachments)
            return msgspec.structs.replace(ended, session_lost=lost)

        def continuation(fence: int) -> Continuation:
            return RunResumed(
                at=now_ms(),
                fence=fence,
                limits=job.limits,
                in_doubt=job.in_doubt,
                stolen=stolen,
                decision=job.decision,
                by=job.by,
                files_missing=files_missing(records),
            )

        with lease_again(parts.sessions, run, records, steal=job.steal) as lease:
            going = continue_run(
                parts,
                run,
                job,
                steps,
                records=records,
                head=head,
                run_attachments=run_attachments,
                started=history.started,
                claim=lambda: ledger.claim(run, create=False),
                continuation=continuation,
                children=children,
                parent=parent,
                lease=lease,
            )
            return await watched_by_session(lease, going)


async def continue_run(
    parts: Parts,
    run: str,
    job: ResumeJob,
    steps: RunSteps,
    *,
    records: Sequence[Record],
    head: Head,
    run_attachments: RunAttachments,
    started: RunStarted,
    claim: Callable[[], int],
    continuation: Callable[[int], Continuation],
    children: ChildRunner,
    parent: Parent | None = None,
    lease: SessionLease | None = None,
) -> Run:
    """Decide what is in doubt, own the run, and go on behind its head.

    `started` is the start as it counts from here on.
    """
    ledger, native = parts.ledger, await native_again(parts.backends, started)
    if native is None and not rerunnable(started, parts.sandbox().guest.image.sha256):
        raise ResumeRefused(run=run, why="was made with another version of the sandbox")
    if started.template not in TEMPLATES:
        why = f"was made with the prompts {started.template}, and this version writes {TEMPLATE}"
        raise ResumeRefused(run=run, why=why)
    model = parts.model(started.model)
    if model.name != started.model:
        why = (
            f"asks {started.model}, and this is {model.name}; resume it with that model, or fork it"
        )
        raise ResumeRefused(run=run, why=why)
    history = History(records)
    skip_answered(model, history)
    find_model = parts.find_model(model)
    _check_models(run, records, find_model)
    limits = job.limits or started.limits
    paying = (
        parts.client_scopes.run(run, limits, ledger, steps=steps, shared_before=not head.count)
        if parent is None
        else parts.client_scopes.child(parent.model_door, run, limits, parent=parent.run)
    )
    with paying as model_door:
        decisions = await _decided(parts, run, records, job, model_door, find_model)
        fence = claim()
        now = ledger.row(run)
        if now is None or now.head != head:
            # Whoever it was taken from has gone on since it was read; nobody does from here on.
            found = None if now is None else now.head.count
            raise LedgerConflict(run=run, field="head", expected=head.count, found=found)
        model_door.run_scopes.reconcile(*history.holds)
        programs = await begun_programs(started, parts.sandbox, native, run_attachments, records)
        try:
            ended, refused = await drive_continued(
                job,
                run=run,
                records=records,
                continuation=continuation(fence),
                journal=LedgerJournal(
                    ledger,
                    run=run,
                    fence=fence,
                    head=head,
                    to_commit=run_attachments.to_commit,
                    committed=committed_of(job.watch, run),
                ),
                model=model,
                programs=programs,
                ledger=ledger,
                functions=[steps.inside(each) for each in parts.functions],
                run_attachments=run_attachments,
                model_door=model_door,
                find_model=find_model,
                decisions=decisions,
                children=children,
                sandbox=parts.sandbox,
                skills=parts.skills,
                memory=parts.memory,
                lease=lease,
                bridges=None if native is None else native.bridges,
            )
        finally:
            await programs.close()
        return steps.checked(ended, stopped_by=refused, rows=parts.client_scopes.rows)


async def _decided(
    parts: Parts,
    run: str,
    records: Sequence[Record],
    job: ResumeJob,
    model_door: ModelDoor,
    find_model: FindModel,
) -> Decisions:
    """What becomes of the calls that are open, in the run and in the runs inside it.

    For those inside it is decided again when they are gone on with; here it is only found out
    whether somebody has to be asked, before anything is written. All that is open is named at once.
    """
    inside: list[OpenIntent] = []
    for child in History(records).awaited_children:
        row = parts.ledger.row(child)
        if row is not None and row.head.count:
            known = whole_records(parts.ledger, child)
            last = known[-1]
            if isinstance(last, RunEnded) and over(History(known).started.limits, last.charge):
                # It may do nothing more, and is told to its parent as it ended.
                continue
            try:
                await _decided(parts, child, known, job, model_door, find_model)
            except RunInDoubt as doubt:
                inside += of_child(doubt.open, child)
    try:
        decisions = await decided(
            run,
            records,
            model=History(records).started.model,
            policy=job.in_doubt,
            functions=parts.known_functions(),
            free=lambda name: _is_free(model_door, find_model, name),
            find_reply=_find_reply(parts.lookup, find_model),
        )
    except RunInDoubt as doubt:
        raise RunInDoubt(run=run, open=(*doubt.open, *inside)) from None
    if inside:
        raise RunInDoubt(run=run, open=tuple(inside))
    return decisions


def checked(ledger: Ledger, run: str) -> tuple[Head, list[Record]]:
    """The records of a run, and where it stands; refused if there is no run to go on with."""
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
    """Refuse where a call is open of a model that is not here: nobody could settle it."""
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
    if any(isinstance(each, RunPruned) for each in records):
        raise ResumeRefused(run=run, why="was pruned: what it would go on from is gone")
    ended = records[-1]
    if isinstance(ended, RunEnded) and ended.stop != "answered":
        before = History(records).started.limits
        allowed = limits or before
        cap = over(allowed, ended.charge)
        if cap is None and ended.stop == "deadline" and allowed.wall_ms <= before.wall_ms:
            # What little is left pays for a call that nobody waits for.
            cap = ended.stop, ended.detail
        if cap is not None:
            raise ResumeRefused(
                run=run, why=f"is at its cap ({cap[1]}); resume it with a higher one"
            )


def last_said(records: Sequence[Record]) -> str | None:
    """Return the last reply of the model that said anything."""
    replies = (each.text for each in reversed(records) if isinstance(each, ModelReplied))
    return next((said for text in replies if (said := said_in(text)) is not None), None)


def ended_run(
    run: str, records: Sequence[Record], *, ledger: Ledger, run_attachments: RunAttachments
) -> Run:
    """A run that has its answer, as it ended."""
    ended, started = records[-1], History(records).started
    assert isinstance(ended, RunEnded)
    found = cited(ended, started, given_again(started, run_attachments), run_attachments)
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
        value=value_of(ended.answer, started) if ended.stop == "answered" else None,
        settings=started.settings or {},
        ledger=path_of(ledger),
        parent=started.parent,
        step=started.step,
    )
