"""Prune runs that have ended: delete their bodies, keep the hashes and what proves the cost.

Rule 1: first the pruning is recorded, forced, and in the same transaction the holder of the run
releases its attachments. Then the bodies are erased. Then bytes without a holder are freed. If the
process dies in between, pruning the run again does the rest.
Rule 2: headers and hashes stay, so the chain is still valid, and so are heads and proofs. Of the
bodies, receipts stay, and those that say what the run was forked from.
Rule 3: what may still be needed is kept, with a reason: a run that could be resumed, or that a fork
or an open step builds on, or whose cost is not settled. A chain that is not valid is kept too, so
that it can be examined. A run is checked again under its lock, before anything is written.
Rule 4: copies and runs that were moved away cannot be written here, so they are erased without a
record.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from tallystick.attachments.collect import reclaim_forgotten
from tallystick.attachments.port import AttachmentError, Transaction
from tallystick.attachments.session import snapshots_holder as snapshots_of
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.core.chain import Head, Header, Root, Sealed, check_entry, draft_of, root_of
from tallystick.core.duration import duration_ms
from tallystick.core.errors import (
    LedgerConflict,
    LedgerCorrupt,
    LedgerError,
    RunNotFound,
    UsageError,
)
from tallystick.core.ids import is_ulid, ulid
from tallystick.core.records import (
    ReceiptIssued,
    Record,
    RunEnded,
    RunForked,
    RunPruned,
    RunResumed,
    RunStarted,
    StepEntered,
    StepLeft,
    StepReceipt,
    decode_record,
    tag_of,
)
from tallystick.core.views.open_calls import open_calls
from tallystick.core.views.receipt import Tally
from tallystick.ledger.port import Also, Ledger, RunFilter, RunRow
from tallystick.ledger.scopes import Scopes
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.runs.history import mentions, other_run_of
from tallystick.runtime.runs.in_doubt import last_tag
from tallystick.runtime.runs.lock import is_running, lock_run, running_runs

# Tags of entries whose bodies stay, except the values of steps.
KEPT_TAGS = frozenset({"receipt.issued", "run.forked", "run.pruned", "step.left"})


@dataclass(slots=True, kw_only=True)
class Plan:
    """The result of reading a chain once: what pruning removes, and what prevents it."""

    row: RunRow
    head: Head
    latest: int
    seqs: list[int] = field(default_factory=list)
    bytes: int = 0
    begun: Record | None = None
    ended: RunEnded | None = None
    in_doubt: bool = False
    marked: bool = False
    issued: bool = False
    tally: Tally = field(default_factory=Tally)
    mentioned: set[str] = field(default_factory=set)
    steps_open: set[str] = field(default_factory=set)
    to_issue: dict[str, StepReceipt] = field(default_factory=dict)
    of_steps: bool = False
    broken: str | None = None

    @property
    def run(self) -> str:
        return self.row.run

    @property
    def owned(self) -> bool:
        return not (self.row.moved or self.row.imported)

    @property
    def session(self) -> str | None:
        begun = self.begun
        return begun.session_id if isinstance(begun, RunStarted | RunForked) else None

    def removes(self, record: Record) -> bool:
        """Return True if the body of a record is to be removed.

        The value of a step is in the same body as its receipt. So that body goes too, and the
        receipt is written again. If the run cannot be written here, the body stays.
        """
        if isinstance(record, StepLeft):
            return self.owned and bool(record.value)
        if isinstance(record, StepEntered) and record.missed:
            return False  # only this record has the number of dropped steps
        return tag_of(record) not in KEPT_TAGS

    def note(self, record: Record) -> None:
        """Take in one record, in order. `seqs` and `mentioned` are filled by the caller."""
        self.tally.add(record)
        match record:
            case RunStarted(started_at=at) | RunForked(at=at) | RunResumed(at=at):
                self.latest = max(self.latest, at)
            case ReceiptIssued(receipt=receipt):
                self.issued = True
                self.latest = max(self.latest, receipt.completed_at)
            case StepEntered(path=path):
                self.steps_open.add(path)
            case StepLeft(receipt=left):
                self.steps_open.discard(left.path)
                self.latest = max(self.latest, left.completed_at)
                # A step that was resumed ends again, and only its last receipt counts.
                self.to_issue.pop(left.path, None)
                if self.removes(record):
                    self.to_issue[left.path] = left
            case _:
                pass
        if isinstance(record, RunEnded):
            self.ended = record
        elif isinstance(record, RunPruned):
            self.marked = True
        # Anything else after an end is of a resume. A receipt may follow the end: pruning adds one
        # to runs older than receipts.
        elif not isinstance(record, ReceiptIssued):
            self.ended = None


def read_chain(ledger: Ledger, row: RunRow) -> Plan:
    """Read a chain once, and check it, up to the first entry that is not valid.

    `broken` says why the chain does not hold, None if it does. Raise the error of the ledger if it
    cannot be read.
    """
    plan = Plan(row=row, head=Head.of_nothing(), latest=row.created_at)
    plan.in_doubt = bool(open_calls(_records(ledger, plan)))
    if plan.broken is None and plan.head != row.head and plan.head.count:
        plan.broken = f"{plan.head.count} entries are there, its head counts {row.head.count}"
    return plan


def _records(ledger: Ledger, plan: Plan) -> Iterator[Record]:
    """Yield the records of a chain, noting each in the plan, up to an entry that is not valid."""
    previous = ""
    for seq, entry in enumerate(ledger.read(plan.run)):
        root = root_of(entry, run=plan.run) if seq == 0 else None
        if isinstance(root, Root):
            previous = root.hash
            plan.begun = record_in(entry)
            plan.of_steps = _tag(entry).startswith("step.")
        why = (
            root
            if isinstance(root, str)
            else check_entry(entry, run=plan.run, seq=seq, previous=previous)
        )
        if why is not None:
            plan.broken = f"entry {seq}: {why}"
            return
        previous = entry.hash
        plan.head = Head(count=seq + 1, hash=previous)
        if entry.body is None or entry.salt is None:
            continue
        record = decode_record(entry.body)
        if plan.removes(record):
            plan.seqs.append(seq)
            plan.bytes += len(entry.salt) + len(entry.body)
            plan.mentioned.update(ref.id for ref in mentions(entry))
        plan.note(record)
        yield record


def record_in(entry: Sealed) -> Record | None:
    """Return the record of an entry; None if it was erased or cannot be read."""
    if entry.body is None:
        return None
    try:
        return decode_record(entry.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _tag(entry: Sealed) -> str:
    try:
        return msgspec.json.decode(entry.header, type=Header).tag
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""


def disk_bytes(ledger: SqliteLedger) -> int:
    """Return the size of a ledger's file with its log, in bytes."""
    log = ledger.path.with_name(f"{ledger.path.name}-wal")
    return sum(path.stat().st_size for path in (ledger.path, log) if path.exists())


_TOGETHER = 256
_FREE_SHARE = 8
# Up to this size, writing the file again takes so little time that it is always done.
_SMALL_BYTES = 16 << 20
_UNERASED = RunFilter(unerased=True)
_OUTERMOST = RunFilter(outermost=True)
_INSIDE = RunFilter(inside=True, unerased=True)
# A text that sorts before every id.
_BEFORE_ALL = "0"


def age_ms(text: str) -> int:
    """Return an age in milliseconds from hours, days or weeks: 12h, 30d, 2w.

    The number has at most six digits, without a leading zero. Raise `InvalidLimit` for any other
    text.
    """
    why = "a number of hours, days or weeks: 12h, 30d, 2w"
    return duration_ms(text, field="older-than", units="hdw", why=why)


def _first_id_after(ms: int) -> str:
    """Return the lowest id that a run of a later millisecond can have."""
    return ulid(time_ms=max(0, ms + 1), entropy=bytes(10))


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is not pruned, and why. `pruned` means that it was pruned before."""

    run: str
    why: str
    pruned: bool = False


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was pruned, or would be, and what is removed of it.

    `bytes` counts the bodies. `attachments` counts those without another holder; `note` says so if
    their bytes could not be freed.
    """

    run: str
    bodies: int
    bytes: int
    attachments: int = 0
    attachment_bytes: int = 0
    note: str | None = None


class Pruner:
    """Prunes runs of one ledger.

    It remembers which runs it has pruned, or found prunable in a dry run: a run that they grew from
    is not kept for them any more.
    """

    def __init__(
        self,
        ledger: SqliteLedger,
        attachments: SqliteAttachments,
        scopes: Scopes,
        *,
        clock: Callable[[], int],
    ) -> None:
        self._ledger = ledger
        self._attachments = attachments
        self._scopes = scopes
        self._clock = clock
        self._left: set[str] = set()
        # Runs that were pruned; and those that were pruned or that `look` found prunable.
        self._gone: set[str] = set()
        self._would: set[str] = set()
        self._letting: set[str] = set()

    # -- dry runs ------------------------------------------------------------------------------

    def chosen(
        self, *, older_than_ms: int | None = None, keep: int | None = None
    ) -> Iterator[Pruned | Kept]:
        """Look at each run that is old enough and not among the newest `keep`, the newest first.

        So a fork comes before the run that it was forked from, and does not need it any more.
        `keep` counts outermost runs and steps; runs inside these are kept with them. The age of a
        run is that of the last thing known to have happened to it. A run that may not be pruned is
        yielded as `Kept` if it is old enough by its creation. None is no condition, and so is a
        `keep` of 0. Runs that were pruned before are skipped. Nothing is changed.
        """
        cutoff = None if older_than_ms is None else self._clock() - older_than_ms
        kept_from = self._oldest_kept(keep) if keep else None
        for row in self._candidates(created_by=cutoff, kept_from=kept_from):
            if kept_from is not None and self._is_kept(row, kept_from):
                continue
            found = self._examine(row, gone=self._would)
            if isinstance(found, Kept):
                if not found.pruned:
                    yield found
            elif cutoff is None or found.latest <= cutoff:
                yield self._note_prunable(found)

    def _candidates(self, *, created_by: int | None, kept_from: str | None) -> Iterator[RunRow]:
        """Yield the runs that have their bodies and may be old enough, the newest first.

        They were created by `created_by`, None for any time. Of those from `kept_from` on, only
        runs inside others are yielded, and the caller checks what they are inside of.
        """
        after = "" if created_by is None else _first_id_after(created_by)
        if kept_from is not None:
            # Among the newer runs, only children of an older run may be pruned.
            for row in self._pages(_INSIDE, after):
                if row.run < kept_from:
                    break
                yield row
            after = min(after or kept_from, kept_from)
        yield from self._pages(_UNERASED, after)

    def _pages(self, which: RunFilter, after: str) -> Iterator[RunRow]:
        while rows := self._ledger.runs(which, after=after, most=_TOGETHER, newest_first=True):
            yield from rows
            after = rows[-1].run

    def _oldest_kept(self, keep: int) -> str:
        """Return the oldest of the newest `keep` runs and steps that no program started, by its id.

        If there are fewer, return "0", which sorts before every id.
        """
        found = self._ledger.runs(_OUTERMOST, skip=keep - 1, most=1, newest_first=True)
        return found[0].run if found else _BEFORE_ALL

    def _is_kept(self, row: RunRow, kept_from: str) -> bool:
        """Return True if a run, or the outermost run around it, is among the newest.

        False if one of the runs around it is not here.
        """
        seen = {row.run}
        while row.caller is not None and row.caller not in seen:
            seen.add(row.caller)
            around = self._ledger.row(row.caller)
            if around is None:
                return False
            row = around
        return row.caller is None and row.run >= kept_from

    def look(self, run: str) -> Pruned | Kept:
        """Return what pruning a run would remove, or why it is kept. Nothing is changed.

        Raise `RunNotFound` if it is not here, and the errors of the ledger and the attachments.
        """
        found = self._examine(self._row(run), gone=self._would)
        return found if isinstance(found, Kept) else self._note_prunable(found)

    def _note_prunable(self, plan: Plan) -> Pruned:
        self._would.add(plan.run)
        alone: list[int] = []
        held = self._own_session(plan)
        if held is not None:
            self._letting.add(held)
            for each in self._attachments.references(held):
                others = self._attachments.references(id=each.ref.id)
                if all(other.intent.session_id in self._letting for other in others):
                    alone.append(each.ref.byte_len)
        return Pruned(
            run=plan.run,
            bodies=len(plan.seqs),
            bytes=plan.bytes,
            attachments=len(alone),
            attachment_bytes=sum(alone),
        )

    def _row(self, run: str) -> RunRow:
        row = self._ledger.row(run)
        if row is None:
            raise RunNotFound(run=run)
        return row

    def _examine(self, row: RunRow, *, gone: Collection[str], locked: bool = False) -> Plan | Kept:
        run = row.run
        if not locked and is_running(self._ledger, run):
            return Kept(run=run, why="is running")
        try:
            plan = read_chain(self._ledger, row)
            if plan.head.count and not plan.seqs and plan.broken is None:
                return Kept(run=run, why="was pruned before", pruned=True)
            why = self._reason_to_keep(plan, gone)
        except LedgerCorrupt as error:
            why = f"does not hold: {error.why}"
        return plan if why is None else Kept(run=run, why=why)

    def _reason_to_keep(self, plan: Plan, gone: Collection[str]) -> str | None:
        """Return why a run must not be pruned; None if it may be."""
        if plan.broken is not None:
            return f"does not hold: {plan.broken}"
        if plan.of_steps:
            return "has steps that are open" if plan.steps_open else None
        if plan.owned and plan.ended is None:
            return "has not ended: it can be resumed, or removed"
        if plan.owned and plan.in_doubt:
            return "has calls in doubt: tally ls --in-doubt lists them"
        computed = plan.owned and isinstance(plan.begun, RunStarted)
        if plan.ended is not None and not (plan.issued or computed):
            return "has no receipt that could be kept"
        return self._reason_from_others(plan, gone)

    def _reason_from_others(self, plan: Plan, gone: Collection[str]) -> str | None:
        for fork in self._ledger.forks_of(plan.run):
            row = self._ledger.row(fork)
            if row is not None and fork not in gone and not row.erased:
                return f"is what run {fork} grew from, which needs it"
        if self._scopes.holds(run=plan.run):
            return "holds some of the shared total: tally resolve closes that"
        if not isinstance(plan.begun, RunStarted):
            return None
        steps, caller = plan.begun.parent, plan.begun.caller
        if steps is not None and self._is_open(steps):
            return f"was begun in steps {steps[:40]}, which are open"
        if caller is not None and self._may_resume(caller.run):
            return f"was begun by run {caller.run[:40]}, which has not ended"
        return None

    def _is_open(self, steps: str) -> bool:
        """Return True if a chain of steps is here, and has an open step or is not valid."""
        row = None if steps in self._left else self._ledger.row(steps)
        if row is None:
            return False
        plan = read_chain(self._ledger, row)
        if plan.steps_open or plan.broken is not None:
            return True
        self._left.add(steps)
        return False

    def _may_resume(self, caller: str) -> bool:
        """Return True if a run is here, has no end, and may be resumed."""
        row = self._ledger.row(caller)
        if row is None or row.moved or row.imported:
            return False
        last = last_tag(self._ledger, row)
        return last is None or last[0] not in ("run.ended", "run.pruned")

    def _own_session(self, plan: Plan) -> str | None:
        """Return the holder that belongs to this run alone; None if there is none."""
        session = plan.session
        if session is None or not is_ulid(session):
            return None
        return None if other_run_of(self._ledger, session, plan.run) else session

    # -- pruning -------------------------------------------------------------------------------

    def prune(self, run: str, *, why: str) -> Pruned | Kept:
        """Prune a run, or return why it is kept. It is locked meanwhile, so it cannot be resumed.

        The run is examined again, whatever an earlier look found. `why` is recorded. One that is
        not here, or that another process changes meanwhile, is `Kept`. Raise `RunNotFound` if `run`
        is no id, and the errors of the ledger and the attachments. After such an error, prune it
        again to do the rest. Bytes that could not be freed are no error, but a `note`.
        """
        if not is_ulid(run):
            raise RunNotFound(run=run)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(lock_run(self._ledger, run))
            except UsageError:
                return Kept(run=run, why="is running")
            try:
                plan = self._examine(self._row(run), gone=self._gone, locked=True)
                if isinstance(plan, Kept):
                    return plan
                ids = self.mark(plan, why=why)
                self.erase(plan)
            except RunNotFound:
                return Kept(run=run, why="is not here any more")
            except LedgerConflict as error:
                return Kept(run=run, why=f"was changed meanwhile: {error}")
        self._gone.add(run)
        self._would.add(run)
        return self.free(plan, ids)

    def mark(self, plan: Plan, *, why: str) -> list[str]:
        """Record that a run is pruned, and `why`, and release its attachments, forced.

        Return their ids. Missing receipts are written first. A run that is marked already, moved
        away or a copy gets no record, and the result also has the ids that its records name.
        Without a holder of its own nothing is released, and the result is empty. Raise
        `LedgerConflict` if the run was changed since `plan` was made.
        """
        session = self._own_session(plan)
        ids = [] if session is None else self._held_by(session)
        if plan.marked or not plan.owned:
            if session is not None:
                self._release(session)(None)
            # If an earlier process marked it, the references are gone already, so the ids that the
            # records name are added.
            return [*ids, *(plan.mentioned - set(ids))] if session is not None else []
        records: list[Record] = [StepLeft(receipt=each) for each in plan.to_issue.values()]
        if not plan.issued and not plan.of_steps:
            # The run is older than receipts, so its receipt is made now.
            assert isinstance(plan.begun, RunStarted)
            assert plan.ended is not None
            records.append(ReceiptIssued(receipt=plan.tally.receipt(plan.begun, plan.ended)))
        records.append(
            RunPruned(
                at=self._clock(),
                before=plan.head.count + len(records),
                removed=len(plan.seqs),
                bytes=plan.bytes,
                why=why,
                caller=plan.row.caller,
            )
        )
        self._ledger.append(
            plan.run,
            [draft_of(each, at=self._clock()) for each in records],
            expected=plan.head,
            fence=self._ledger.claim(plan.run, create=False),
            forced=True,
            also=None if session is None else self._release(session),
        )
        return ids

    def _held_by(self, session: str) -> list[str]:
        holders = (session, snapshots_of(session))
        return [each.ref.id for held in holders for each in self._attachments.references(held)]

    def _release(self, session: str) -> Also:
        def release(db: Transaction) -> None:
            for held in (session, snapshots_of(session)):
                self._attachments.forget_session(held, within=db)

        return release

    def erase(self, plan: Plan) -> None:
        """Erase the bodies that a plan names.

        The run must be marked first, so that a crash is repaired.
        """
        self._ledger.erase(plan.run, plan.seqs)

    def free(self, plan: Plan, ids: Sequence[str]) -> Pruned:
        """Free the bytes of those attachments in `ids` that have no reference.

        Return the whole result. An error becomes its `note`, and garbage collection frees them
        later.
        """
        count = size = 0
        note = None
        try:
            loose = [id for id in ids if not self._attachments.references(id=id)]
            for start in range(0, len(loose), _TOGETHER):
                report = reclaim_forgotten(self._attachments, loose[start : start + _TOGETHER])
                count += report.reclaimed_count
                size += report.reclaimed_bytes
        except (AttachmentError, LedgerError) as error:
            note = f"tally attach gc will free its attachments: {error}"
        return Pruned(
            run=plan.run,
            bodies=len(plan.seqs),
            bytes=plan.bytes,
            attachments=count,
            attachment_bytes=size,
            note=note,
        )

    def shrink(self, *, whole: bool = False) -> str | None:
        """Return unused room of the ledger's file to the system. Return why not, if not done now.

        None means that it was done. The file is written again, which takes time in proportion to
        its size. A large file is therefore only shrunk if an eighth of it is free: then the cost is
        in proportion to what was removed. `whole` does it in any case. While a run is running
        nothing is done.
        """
        try:
            # A running run could not write meanwhile, and would fail after its waiting time.
            working = next(running_runs(self._ledger), None)
            if working is not None:
                return f"the ledger's file keeps its size for now: run {working} is running"
            size = disk_bytes(self._ledger)
            large = size > _SMALL_BYTES and size > self._ledger.free_bytes() * _FREE_SHARE
            if large and not whole:
                self._attachments.scrub()
                return "the ledger's file keeps its size: new runs use what is free in it"
            self._attachments.scrub()
            self._ledger.reclaim()
        except LedgerError as error:
            return f"the ledger's file keeps its size for now: {error}"
        return None
