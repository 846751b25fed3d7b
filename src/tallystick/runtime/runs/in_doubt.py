"""Find the runs with calls in doubt, whose outcome is unknown, and close such calls.

Rule 1: a call is in doubt if it was begun, has no outcome, and no living process works on its run.
The lock of the run proves the last. A model in this process sends no bill: its calls do not count.
Rule 2: the search is cheap. The last entry of a run shows whether it may have an open call. Only
then are its bodies read.
Rule 3: calls are closed in one forced transaction. It holds the resume of the run, the outcome of
each call, and the end of its reservation in the shared total. The run is then as after a resume
with `retry`: it asks again, in the next attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import msgspec

from tallystick.core.budget.amount import ReservationClosed
from tallystick.core.budget.billing import AttemptCancelled, settlement
from tallystick.core.chain import Sealed, draft_of, read_header
from tallystick.core.charge import Charge, Reserved, Settled
from tallystick.core.errors import LedgerError, RecordUnreadable, RunNotFound, UsageError
from tallystick.core.history import History
from tallystick.core.records import (
    DOUBTED,
    AskModel,
    ChildBegun,
    ModelFailed,
    QueryAsked,
    QueryFailed,
    Record,
    RunEnded,
    RunForked,
    RunResumed,
    RunStarted,
    decode_record,
)
from tallystick.core.resume_errors import ResumeRefused
from tallystick.core.views.open_calls import OpenIntent, left_calls, open_calls, open_intents
from tallystick.ledger.port import Ledger, RunFilter, RunRow
from tallystick.ledger.scopes import Hold, Scopes
from tallystick.ledger.verify import verify_ledger
from tallystick.runtime.runs.history import UNREADABLE, records_of
from tallystick.runtime.runs.lock import is_running, lock_run
from tallystick.storage.transaction import Transaction

# The states of a run without an end. `unfinished` is a copy of a run that another ledger owns.
# `not begun` is one whose process ended before the first entry: there is nothing to resume.
RunStatus = Literal["running", "not begun", "in doubt", "cut off", "moved", "unfinished"]
_Paid = AskModel | QueryAsked
_CHARGED = "its outcome is unknown; it was charged, and is made again"
_RELEASED = "it was not billed; it is made again"


class DoubtfulRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run with calls in doubt. `since` is the time of its start or last resume, in Unix ms."""

    run: str
    since: int
    open: tuple[OpenIntent, ...]


class ClosedCalls(msgspec.Struct, frozen=True, kw_only=True):
    """The result of closing a run's calls: the number of calls and of reservations.

    `effects` are the effects that stay in doubt.
    """

    run: str
    calls: int
    holds: int
    effects: tuple[OpenIntent, ...]


# -- looking ------------------------------------------------------------------------------------


def last_tag(ledger: Ledger, row: RunRow) -> tuple[str, Sealed] | None:
    """Return the tag of a run's last entry, and the entry; None if there is none to read."""
    seq = row.head.count - 1
    last = next(ledger.read(row.run, start=seq, stop=seq + 1), None) if seq >= 0 else None
    if last is None:
        return None
    header = read_header(last.header, run=row.run, seq=seq)
    return None if isinstance(header, str) else (header.tag, last)


def status_of(ledger: Ledger, row: RunRow) -> RunStatus:
    """Return the state of a run that has not ended. Do not call it for one that has.

    Raise `LedgerUnavailable` if its lock, and `RecordUnreadable` if its records cannot be read.
    """
    if row.moved:
        return "moved"
    if row.imported:
        return "unfinished"
    if is_running(ledger, row.run):
        return "running"
    if not row.head.count:
        return "not begun"
    return "in doubt" if open_intents(_drop_unbilled(records_of(ledger, row.run))) else "cut off"


def runs_in_doubt(ledger: Ledger) -> list[DoubtfulRun]:
    """Return every run of this ledger with calls in doubt, the newest last.

    Runs are left out as in `doubtful_run`, and its errors are raised.
    """
    found = (doubtful_run(ledger, row) for row in ledger.runs(RunFilter(open_only=True)))
    return [each for each in found if each is not None]


def doubtful_run(ledger: Ledger, row: RunRow) -> DoubtfulRun | None:
    """Return the calls in doubt of a run; None if there are none.

    None also for a run that is running, was moved away, imported or removed, or has a record of
    another version. Other errors of the ledger are raised.
    """
    try:
        if (
            row.moved
            or row.imported
            or not _may_have_open_call(ledger, row)
            or is_running(ledger, row.run)
        ):
            return None
        records = list(records_of(ledger, row.run))
    except (RunNotFound, RecordUnreadable, *UNREADABLE):
        return None  # Removed just now, or written by another version, which has to check it.
    open = open_intents(_drop_unbilled(records))
    return DoubtfulRun(run=row.run, since=_since(row, records), open=open) if open else None


def _may_have_open_call(ledger: Ledger, row: RunRow) -> bool:
    """Return True if a run may have an open call, by its last entry; False for an empty run.

    Raise what `decode_record` raises if that entry is an end that cannot be read.
    """
    found = last_tag(ledger, row)
    if found is None:
        return False
    tag, last = found
    if tag == "run.ended":
        # A run can end during an effect, whose outcome then stays unknown.
        ended = None if last.body is None else decode_record(last.body)
        return isinstance(ended, RunEnded) and ended.stop in ("in_doubt", "cancelled")
    return tag != "run.pruned" and not tag.startswith("step.")


def _drop_unbilled(records: Iterable[Record]) -> Iterator[Record]:
    """Yield the records, without the calls that cost nothing: a resume repeats those anyway."""
    for record in records:
        reserved = record.reserved if isinstance(record, _Paid) else None
        if reserved is None or reserved.price != "in_process":
            yield record


def _since(row: RunRow, records: Iterable[Record]) -> int:
    since = row.created_at
    for record in records:
        if isinstance(record, RunStarted):
            since = record.started_at
        elif isinstance(record, RunForked | RunResumed):
            since = record.at
    return since


def require_no_doubt(ledger: Ledger, run: str, scopes: Scopes) -> None:
    """Raise `UsageError` if calls of a run, or of a run inside it, are in doubt and may be paid.

    Reservations that are open in `scopes` count too. A child run that stays behind could be found
    only by its id, and so could its calls.
    """
    for each in _with_children(ledger, run):
        row = ledger.row(each)
        doubt = None if row is None else doubtful_run(ledger, row)
        paid = [] if doubt is None else [call for call in doubt.open if call.kind != "effect"]
        if paid or scopes.holds(run=each):
            whose = f"run {run}" if each == run else f"run {each}, which run {run} began,"
            raise UsageError(
                f"{whose} has calls in doubt, which may have been paid; close them first with "
                f"tally resolve {each} --charge or --release"
            )


def _with_children(ledger: Ledger, run: str) -> Iterator[str]:
    """Yield a run, and every run that it or one of those began.

    One that is gone or cannot be read is yielded; what it began is not.
    """
    waiting, seen = [run], {run}
    while waiting:
        each = waiting.pop()
        yield each
        try:
            begun = [one.run for one in records_of(ledger, each) if isinstance(one, ChildBegun)]
        except (LedgerError, *UNREADABLE):
            continue  # Removed or damaged: its children are unknown.
        waiting += [child for child in begun if child not in seen]
        seen.update(begun)


# -- closing ------------------------------------------------------------------------------------


def is_unsent(ledger: Ledger, hold: Hold) -> bool:
    """Return True if a dead process made this reservation, and its run has no entry or is gone.

    Nothing was sent for it then: a call is recorded before it is sent.
    """
    if not hold.owner_dead:
        return False
    row = ledger.row(hold.row.run)
    return row is None or not row.head.count


def release_unsent(ledger: Ledger, scopes: Scopes) -> None:
    """Release the reservations of runs that have no entry and whose process is dead."""
    for hold in scopes.holds():
        if is_unsent(ledger, hold):
            # Another process may release it at the same time.
            with suppress(ReservationClosed):
                scopes.resolve(hold.row, settle_at=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """The records to write, and the reservations to settle or to release with them."""

    run: str
    scopes: Scopes | None
    holds: Sequence[Hold]
    charge: bool
    records: Sequence[Record]

    def close_holds(self, within: Transaction | None) -> None:
        """Settle or release each reservation, in the transaction that records the outcomes.

        One with an outcome in `records` is settled at its cost; with `charge`, one that is open
        there at its amount. Others are released. Without `scopes` nothing is done.
        """
        ended, begun = History(self.records).holds
        if self.scopes is None:
            return
        for hold in self.holds:
            row = hold.row
            if row.intent in ended:
                actual = ended[row.intent]
            elif row.intent in begun and self.charge:
                actual = row.amount
            else:
                # Released by the caller, or never sent: a call is recorded before it is sent.
                self.scopes.release(within, run=self.run, intent=row.intent)
                continue
            self.scopes.settle(within, run=self.run, intent=row.intent, actual=actual)


def close_calls(
    ledger: Ledger, run: str, *, charge: bool, scopes: Scopes | None, at: int
) -> ClosedCalls:
    """Record an outcome for each paid call in doubt of a run, and close its reservations.

    With `charge`, the calls cost what was reserved, since they may have been billed. Without it,
    they cost nothing. `at` is the time to record, in Unix ms. `scopes` has the reservations, None
    for a ledger without them. Effects stay in doubt. Without calls in doubt, only the reservations
    are closed, and nothing is recorded.

    Raise `UsageError` while a living process works on the run, and `RunNotFound` if there is none.
    Raise `ResumeRefused` if its chain of entries is damaged, and the errors of the ledger if it
    cannot be written, such as `RunNotOwned`.
    """
    with lock_run(ledger, run):
        row = ledger.row(run)
        if row is None:
            raise RunNotFound(run=run)
        bad = verify_ledger(ledger, [run]).first_bad
        if bad is not None:
            raise ResumeRefused(run=run, why=f"does not hold at entry {bad.seq}: {bad.why}")
        records = list(records_of(ledger, run))
        holds = [] if scopes is None else scopes.holds(run=run)
        plan = _Plan(run=run, scopes=scopes, holds=holds, charge=charge, records=records)
        paid = [call for call in open_calls(_drop_unbilled(records)) if isinstance(call, _Paid)]
        # Calls that a cancel left are settled as charged already, so a release cannot change them.
        left = left_calls(_drop_unbilled(records)) if charge else []
        if paid or left:
            _write(ledger, row, plan, at=at)
        elif holds and scopes is not None:
            with scopes.writing(forced=True) as within:
                plan.close_holds(within)
    effects = tuple(each for each in open_intents(records) if each.kind == "effect")
    return ClosedCalls(run=run, calls=len(paid) + len(left), holds=len(holds), effects=effects)


def _write(ledger: Ledger, row: RunRow, plan: _Plan, *, at: int) -> None:
    """Append a resume of the run, and outcomes for its open calls.

    A call that was left when its program was stopped is ended by the resume itself.
    """
    fence = ledger.claim(row.run, create=False)
    resumed = RunResumed(at=at, fence=fence, in_doubt="retry")
    events: list[Record] = [resumed]
    for call in open_calls(_drop_unbilled([*plan.records, resumed])):
        if isinstance(call, _Paid):
            events.append(_outcome(call, charge=plan.charge))
    ledger.append(
        row.run,
        [draft_of(each, at=at) for each in events],
        expected=row.head,
        fence=fence,
        forced=True,
        also=plan.close_holds,
    )


def _outcome(call: _Paid, *, charge: bool) -> ModelFailed | QueryFailed:
    """Return the outcome of a call in doubt: a transient failure, so the call is repeated."""
    settled = _settlement_of(call.reserved or Reserved(tokens_in=0, tokens_out=0), charge=charge)
    message = _CHARGED if charge else _RELEASED
    if isinstance(call, AskModel):
        return ModelFailed(
            intent=call.intent,
            turn=call.turn,
            reason=DOUBTED,
            message=message,
            kind="transient",
            billed=charge,
            settled=settled,
        )
    return QueryFailed(
        intent=call.intent,
        item=call.item,
        attempt=call.attempt,
        reason=DOUBTED,
        message=message,
        kind="transient",
        billed=charge,
        settled=settled,
    )


def _settlement_of(reserved: Reserved, *, charge: bool) -> Settled:
    """Return the charge of a call in doubt, by the rules for one that was cancelled.

    With `charge`, it counts as sent.
    """
    worst = Charge(
        usd=reserved.usd,
        tokens_in=reserved.tokens_in,
        tokens_out=reserved.tokens_out,
        model_calls=1,
    )
    found = settlement(worst, AttemptCancelled(sent=charge), priced=lambda usage, details: None)
    assert found.figures != "held"
    return Settled(
        figures=found.figures,
        tokens_in=found.charge.tokens_in,
        tokens_out=found.charge.tokens_out,
        usd=found.charge.usd,
        flags=found.flags,
    )
