"""Pruning: the bodies of runs that have ended go; what proves them and what they cost stays.

Rule 1: first it is written, forced, that the run is pruned, and in the same transaction its session
lets go of its attachments. Then the bodies are erased. Then bytes that nobody holds are freed. A
process that dies in between has begun it: pruning the run again does the rest.
Rule 2: headers and hashes stay, so the chain still holds, and heads and proofs with it. Of bodies
stay the receipts, and what says of what the run grew.
Rule 3: what somebody may still need is kept, with a reason: a run that could go on, or that a fork
or an open step builds on, or whose cost is not settled; and a chain that does not hold, since that
is to be looked at. A run is looked at again under its lock, before anything is written.
Rule 4: runs that are not ours to write, copies and those moved away, are erased without a record.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from tallystick.attachments.collect import reclaim_forgotten
from tallystick.attachments.port import AttachmentError, Transaction
from tallystick.attachments.session import snapshots_holder as snapshots_of
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.core.chain import Draft, Head, Header, Root, Sealed, check_entry, root_of
from tallystick.core.errors import (
    InvalidLimit,
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
    encode_record,
    intent_of,
    tag_of,
)
from tallystick.core.views.open_calls import open_calls
from tallystick.core.views.receipt import Tally
from tallystick.ledger.port import Also, Ledger, RunFilter, RunRow
from tallystick.ledger.scopes import Scopes
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.runs.history import mentions, other_run_of
from tallystick.runtime.runs.in_doubt import last_tag
from tallystick.runtime.runs.lock import held_run, is_running, running_runs

# What one reading of a chain says about pruning it: what goes, and what speaks against it.


# Whose bodies stay, but for what a step gave.
KEPT_TAGS = frozenset({"receipt.issued", "run.forked", "run.pruned", "step.left"})


@dataclass(slots=True, kw_only=True)
class Plan:
    """What one reading of a chain found: what is to be taken out, and what speaks against it."""

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

    def goes(self, record: Record) -> bool:
        """Whether the body of a record is to be taken out.

        What a step gave stands beside its receipt, so that goes too, and the receipt is written
        again; where nothing can be written, it stays.
        """
        if isinstance(record, StepLeft):
            return self.owned and bool(record.value)
        if isinstance(record, StepEntered) and record.missed:
            return False  # nothing else says how many steps are not there
        return tag_of(record) not in KEPT_TAGS

    def note(self, record: Record) -> None:
        """Take in one record, in its turn."""
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
                self.to_issue.pop(left.path, None)
                if self.goes(record):
                    self.to_issue[left.path] = left
            case _:
                pass
        if isinstance(record, RunEnded):
            self.ended = record
        elif isinstance(record, RunPruned):
            self.marked = True
        elif not isinstance(record, ReceiptIssued):
            self.ended = None


def read_chain(ledger: Ledger, row: RunRow) -> Plan:
    """Read a chain once, and check it. Raises what the ledger does where it cannot be read."""
    plan = Plan(row=row, head=Head.of_nothing(), latest=row.created_at)
    plan.in_doubt = bool(open_calls(_records(ledger, plan)))
    if plan.broken is None and plan.head != row.head and plan.head.count:
        plan.broken = f"{plan.head.count} entries are there, its head counts {row.head.count}"
    return plan


def _records(ledger: Ledger, plan: Plan) -> Iterator[Record]:
    """The records of a chain, each noted. Ends at an entry that does not hold."""
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
        if plan.goes(record):
            plan.seqs.append(seq)
            plan.bytes += len(entry.salt) + len(entry.body)
            plan.mentioned.update(ref.id for ref in mentions(entry))
        plan.note(record)
        yield record


def record_in(entry: Sealed) -> Record | None:
    """What an entry says, if that is still there and can be read."""
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
    """How large the file of a ledger is, with its log."""
    log = ledger.path.with_name(f"{ledger.path.name}-wal")
    return sum(path.stat().st_size for path in (ledger.path, log) if path.exists())


# Pruning: the bodies of runs that have ended go; what proves them and what they cost stays.


_AGE = re.compile(r"(0|[1-9][0-9]{0,5})([hdw])")
_HOURS = {"h": 1, "d": 24, "w": 7 * 24}
_HOUR_MS = 3_600_000
_TOGETHER = 256
_FREE_SHARE = 8
# A file that is written anew in no time.
_SMALL_BYTES = 16 << 20
_UNERASED = RunFilter(unerased=True)
_OUTERMOST = RunFilter(outermost=True)
_INSIDE = RunFilter(inside=True, unerased=True)
# Smaller than every id.
_BEFORE_ALL = "0"


def age_ms(text: str) -> int:
    """An age in milliseconds, from hours, days or weeks: 12h, 30d, 2w."""
    found = _AGE.fullmatch(text)
    if found is None:
        raise InvalidLimit(
            field="older-than", given=text, why="a number of hours, days or weeks: 12h, 30d, 2w"
        )
    return int(found[1]) * _HOURS[found[2]] * _HOUR_MS


def _first_id_after(ms: int) -> str:
    """Return the first id that a run of a later millisecond could have."""
    return ulid(time_ms=max(0, ms + 1), entropy=bytes(10))


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is not pruned, and why; `pruned` is that it was before."""

    run: str
    why: str
    pruned: bool = False


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was pruned, or would be: what goes of it.

    `bytes` are those of the bodies. `attachments` are those that nobody else holds; `note` says so
    if their bytes could not be freed.
    """

    run: str
    bodies: int
    bytes: int
    attachments: int = 0
    attachment_bytes: int = 0
    note: str | None = None


class Pruner:
    """Prunes runs of one ledger."""

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
        # What was pruned; and with it what a look found fit to be.
        self._gone: set[str] = set()
        self._would: set[str] = set()
        self._letting: set[str] = set()

    # -- looking -------------------------------------------------------------------------------

    def chosen(
        self, *, older_than_ms: int | None = None, keep: int | None = None
    ) -> Iterator[Pruned | Kept]:
        """Look at each run that is old enough and not among the newest `keep`, the newest first.

        So a fork comes before what it grew from, and does not need it any more. A run is as old as
        the last thing that is known to have happened to it. What was pruned before is passed over.
        """
        cutoff = None if older_than_ms is None else self._clock() - older_than_ms
        kept_from = self._oldest_kept(keep) if keep else None
        for row in self._candidates(created_by=cutoff, kept_from=kept_from):
            if kept_from is not None and self._is_kept(row, kept_from):
                continue
            found = self._looked(row, gone=self._would)
            if isinstance(found, Kept):
                if not found.pruned:
                    yield found
            elif cutoff is None or found.latest <= cutoff:
                yield self._going(found)

    def _candidates(self, *, created_by: int | None, kept_from: str | None) -> Iterator[RunRow]:
        """Yield the runs that have their bodies and may be old enough, the newest first."""
        after = "" if created_by is None else _first_id_after(created_by)
        if kept_from is not None:
            # Of those that are newer, only what a program of an older one began may go.
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
        """Return the oldest of the newest runs and steps that no program began."""
        found = self._ledger.runs(_OUTERMOST, skip=keep - 1, most=1, newest_first=True)
        return found[0].run if found else _BEFORE_ALL

    def _is_kept(self, row: RunRow, kept_from: str) -> bool:
        """Tell whether a run, or the one that it stands inside of, is among the newest."""
        seen = {row.run}
        while row.caller is not None and row.caller not in seen:
            seen.add(row.caller)
            around = self._ledger.row(row.caller)
            if around is None:
                return False
            row = around
        return row.caller is None and row.run >= kept_from

    def look(self, run: str) -> Pruned | Kept:
        """What pruning a run would take out, or why it is kept."""
        found = self._looked(self._row(run), gone=self._would)
        return found if isinstance(found, Kept) else self._going(found)

    def _going(self, plan: Plan) -> Pruned:
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

    def _looked(self, row: RunRow, *, gone: Collection[str], locked: bool = False) -> Plan | Kept:
        run = row.run
        if not locked and is_running(self._ledger, run):
            return Kept(run=run, why="is running")
        try:
            plan = read_chain(self._ledger, row)
            if plan.head.count and not plan.seqs and plan.broken is None:
                return Kept(run=run, why="was pruned before", pruned=True)
            why = self._needed(plan, gone)
        except LedgerCorrupt as error:
            why = f"does not hold: {error.why}"
        return plan if why is None else Kept(run=run, why=why)

    def _needed(self, plan: Plan, gone: Collection[str]) -> str | None:
        """Why a run is not to be pruned."""
        if plan.broken is not None:
            return f"does not hold: {plan.broken}"
        if plan.of_steps:
            return "has steps that are open" if plan.steps_open else None
        if plan.owned and plan.ended is None:
            return "has not ended: it can be gone on with, or removed"
        if plan.owned and plan.in_doubt:
            return "has calls in doubt: tally ls --in-doubt lists them"
        computed = plan.owned and isinstance(plan.begun, RunStarted)
        if plan.ended is not None and not (plan.issued or computed):
            return "has no receipt that could be kept"
        return self._needed_by_others(plan, gone)

    def _needed_by_others(self, plan: Plan, gone: Collection[str]) -> str | None:
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
        if caller is not None and self._goes_on(caller.run):
            return f"was begun by run {caller.run[:40]}, which has not ended"
        return None

    def _is_open(self, steps: str) -> bool:
        """Whether a chain of steps that is here has one that was not left."""
        row = None if steps in self._left else self._ledger.row(steps)
        if row is None:
            return False
        plan = read_chain(self._ledger, row)
        if plan.steps_open or plan.broken is not None:
            return True
        self._left.add(steps)
        return False

    def _goes_on(self, caller: str) -> bool:
        """Whether a run that is here has no end, and may be gone on with."""
        row = self._ledger.row(caller)
        if row is None or row.moved or row.imported:
            return False
        last = last_tag(self._ledger, row)
        return last is None or last[0] not in ("run.ended", "run.pruned")

    def _own_session(self, plan: Plan) -> str | None:
        """Return the session that is this run's alone."""
        session = plan.session
        if session is None or not is_ulid(session):
            return None
        return None if other_run_of(self._ledger, session, plan.run) else session

    # -- doing ---------------------------------------------------------------------------------

    def prune(self, run: str, *, why: str) -> Pruned | Kept:
        """Prune a run, or say why it is kept. Its lock is held, so nobody goes on with it.

        What an earlier look found is not believed.
        """
        if not is_ulid(run):
            raise RunNotFound(run=run)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(held_run(self._ledger, run))
            except UsageError:
                return Kept(run=run, why="is running")
            try:
                plan = self._looked(self._row(run), gone=self._gone, locked=True)
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
        """Write that a run is pruned and let go of its attachments. Returns those, by their ids."""
        session = self._own_session(plan)
        ids = [] if session is None else self._held_by(session)
        if plan.marked or not plan.owned:
            if session is not None:
                self._letting_go(session)(None)
            # If it was marked before, the rows that named them are gone.
            return [*ids, *(plan.mentioned - set(ids))] if session is not None else []
        records: list[Record] = [StepLeft(receipt=each) for each in plan.to_issue.values()]
        if not plan.issued and not plan.of_steps:
            # From before there were receipts.
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
            [_drafted(each) for each in records],
            expected=plan.head,
            fence=self._ledger.claim(plan.run, create=False),
            forced=True,
            also=None if session is None else self._letting_go(session),
        )
        return ids

    def _held_by(self, session: str) -> list[str]:
        holders = (session, snapshots_of(session))
        return [each.ref.id for held in holders for each in self._attachments.references(held)]

    def _letting_go(self, session: str) -> Also:
        def let_go(db: Transaction) -> None:
            for held in (session, snapshots_of(session)):
                self._attachments.forget_session(held, within=db)

        return let_go

    def erase(self, plan: Plan) -> None:
        """Take the bodies out."""
        self._ledger.erase(plan.run, plan.seqs)

    def free(self, plan: Plan, ids: Sequence[str]) -> Pruned:
        """Free the bytes of attachments that nobody names any more. If it fails, a sweep does."""
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
        """Give the room of what went back to the system. Says why, if that is not done now.

        The file is written anew, which takes as long as it is large. A large one therefore only
        when an eighth of it is free: then it costs in proportion to what was taken out. `whole`
        does it in any case.
        """
        # Who works on a run could not write meanwhile, and would give up.
        working = next(running_runs(self._ledger), None)
        if working is not None:
            return f"the ledger's file keeps its size for now: run {working} is running"
        try:
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


def _drafted(record: Record) -> Draft:
    return Draft(tag=tag_of(record), intent=intent_of(record), body=encode_record(record))
