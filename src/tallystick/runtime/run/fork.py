"""Fork a run: start a new run from the end of a turn of another.

The two share the entries before that by reference: the chain of the fork begins with the hash of
the last shared entry, and only its own entries are stored. The fork holds the attachments that it
needs, so it does not depend on those of the other run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tallystick.core.chain import Head
from tallystick.core.charge import RunLimits
from tallystick.core.errors import RunNotFound, TallystickError, UsageError
from tallystick.core.history import History
from tallystick.core.machine.turn import with_new_terms
from tallystick.core.records import (
    AskModel,
    AttachmentRef,
    ReceiptIssued,
    Record,
    RunForked,
)
from tallystick.core.views.open_calls import open_calls
from tallystick.core.views.receipt import holds_steps
from tallystick.ledger.port import Ledger
from tallystick.ledger.verify import bad_entry_of
from tallystick.runtime.calls.children import ChildRunner
from tallystick.runtime.calls.deltas import HearDelta
from tallystick.runtime.run.assembly import RunContext, Watch
from tallystick.runtime.run.resume import Continued, ResumeRequest, continue_run
from tallystick.runtime.run.surroundings import NOTHING_AROUND, Surroundings
from tallystick.runtime.runs.history import (
    put_id_in,
    records_of,
    references_in,
    refuse_foreign,
    whole_records,
)
from tallystick.runtime.runs.lock import lock_run
from tallystick.runtime.runs.result import Run
from tallystick.storage.clock import new_id, now_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRequest:
    """The request for a fork: after which turn, and the settings that differ from there on."""

    turn: int
    limits: RunLimits | None
    temperature: float | None
    watch: Watch
    heard: HearDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class _Root:
    """The chain that has the last shared entry: its run, the number of entries, and their hash."""

    run: str
    count: int
    hash: str


async def fork(
    context: RunContext,
    parent: str,
    run: str,
    request: ForkRequest,
    *,
    children: ChildRunner,
    around: Surroundings = NOTHING_AROUND,
) -> Run:
    """Start `run` as a fork of `parent`, and drive it to its end.

    The turns are counted from 1; 0 is before the first. Raise `RunNotFound`, or `UsageError` if the
    parent cannot be forked after this turn: its chain is damaged, it holds steps, it has no such
    turn, or a call or a child run is open there. Raise `ResumeRefused` if it was pruned, or was
    imported from a log of rlms, `RecordUnreadable` for a record of another version, and the errors
    of `continue_run`. If the parent is removed meanwhile, the fork is removed again, and the error
    is raised.
    """
    ledger = context.ledger
    if ledger.row(parent) is None:
        raise RunNotFound(run=parent)
    bad = bad_entry_of(ledger, parent)
    if bad is not None:
        raise UsageError(f"run {bad.run} does not hold at entry {bad.seq}: {bad.why}")
    whole = whole_records(ledger, parent)
    if holds_steps(whole):
        raise UsageError(f"{parent} holds steps, which are not forked; name one of its runs")
    refuse_foreign(parent, History(whole).started)
    shared = shared_records(parent, whole, request.turn)
    # The fork would have to decide about a call of another run, which that run may decide too.
    if open_calls(shared):
        raise UsageError(f"run {parent} has a call under way after turn {request.turn}")
    if inside := History(shared).awaited_children:
        raise UsageError(
            f"run {parent} was cut off inside run {inside[0]} in turn {request.turn}; resume it "
            f"first, or fork it at an earlier turn"
        )
    root = _root_of(ledger, parent, len(shared))
    # The client's own model: a fork is how a run is continued with another one.
    model = context.recorded_model(None)
    before = History(shared).started
    record = RunForked(
        parent=root.run,
        count=root.count,
        hash=root.hash,
        turn=request.turn,
        at=now_ms(),
        session_id=new_id(),
        model=None if model.name == before.model else model.name,
        limits=None if request.limits == before.limits else request.limits,
        temperature=request.temperature,
        files_missing=tuple(History(shared).files_missing),
    )
    run_attachments = context.run_attachments(record.session_id, before.grants)

    def claim() -> int:
        fence = ledger.claim(run, create=True, grown_from=root.hash)
        try:
            # From this claim on, the parent cannot be removed or pruned. Read it again: it may
            # have been, between the first read and the claim.
            whole_records(ledger, parent)
        except TallystickError:
            ledger.remove(run)
            raise
        return fence

    with lock_run(ledger, run):
        run_attachments.share(_attachments_of(context, shared))
        return await continue_run(
            context,
            Continued(
                run=run,
                history=History(shared, resumed=True),
                head=Head(count=0, hash=root.hash),
                started=with_new_terms(before, record),
                run_attachments=run_attachments,
                claim=claim,
                continuation=lambda fence: record,
            ),
            ResumeRequest(
                in_doubt="halt",
                limits=request.limits,
                steal=False,
                watch=request.watch,
                heard=request.heard,
            ),
            children=children,
            around=around,
        )


def shared_records(run: str, records: Sequence[Record], turn: int) -> Sequence[Record]:
    """Return the records that a fork after a turn shares.

    Raise `UsageError` if the run does not have that turn.
    """
    return records[: _place_after(run, records, turn)]


def _place_after(run: str, records: Sequence[Record], turn: int) -> int:
    """Return the number of records up to the end of a turn: those before the next turn's call.

    After the last turn, the end of the run is not among them. Raise `UsageError` if the run does
    not have that turn.
    """
    turns = [each.turn for each in records if isinstance(each, AskModel)]
    last = max(turns, default=0)
    if not 0 <= turn <= last:
        has = f"turns 1 to {last}" if last > 1 else "one turn" if last else "no turn"
        after = f"--at {last} or less" if last else "--at 0"
        raise UsageError(f"run {run} has {has}: fork it with {after} (0 is before the first)")
    for place, record in enumerate(records):
        if isinstance(record, AskModel) and record.turn > turn:
            return place
        if turn == last and place and isinstance(record, ReceiptIssued):
            # The end of the parent is not shared, unless the parent was resumed after it.
            later = records[place + 1 :]
            if not any(isinstance(each, AskModel | ReceiptIssued) for each in later):
                return place
    return len(records)


def _root_of(ledger: Ledger, run: str, count: int) -> _Root:
    """Return the chain with the last of `count` shared records: of the run, or of an ancestor."""
    own = [run]
    lengths: list[int] = []
    while True:
        first = next(records_of(ledger, own[-1]), None)
        if not isinstance(first, RunForked):
            break
        lengths.append(first.count)
        own.append(first.parent)
    # From the oldest ancestor on: each has the records before those of the next.
    base = 0
    for chain, shared in zip(reversed(own[1:]), reversed(lengths), strict=True):
        if count <= base + shared:
            return _root_at(ledger, chain, count - base)
        base += shared
    return _root_at(ledger, run, count - base)


def _root_at(ledger: Ledger, run: str, count: int) -> _Root:
    last = next(ledger.read(run, start=count - 1, stop=count))
    return _Root(run=run, count=count, hash=last.hash)


def _attachments_of(context: RunContext, shared: Sequence[Record]) -> list[AttachmentRef]:
    """Return the attachments of the shared records, and those that programs had put by then."""
    put = {id for record in shared if (id := put_id_in(record)) is not None}
    found = {ref.id: ref for record in shared for ref in references_in(record)}
    for each in context.run_attachments(History(shared).holder, ()).references():
        if each.ref.id in put:
            found.setdefault(each.ref.id, each.ref)
    return list(found.values())
