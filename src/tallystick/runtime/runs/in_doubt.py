"""Runs that were left: which of them wait for calls whose outcome nobody knows, and what closes it.

Rule 1: a call is in doubt if it was begun, has no outcome, and nobody works on its run any more.
The lock of the run proves the last. A model in this process sends no bill, and is not waited for.
Rule 2: looking is cheap. The last entry of a run says whether there is anything to look for; only
then its bodies are read.
Rule 3: calls are closed in one transaction, forced: that the run is gone on with, what came of each
call, and what was held for it of the total. The run is then as a resume with `retry` leaves it: it
asks again, in the next attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import msgspec

from tallystick.core.budget.amount import ReservationClosed
from tallystick.core.budget.billing import AttemptCancelled, settlement
from tallystick.core.chain import Draft, Sealed, read_header
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
    encode_record,
    intent_of,
    tag_of,
)
from tallystick.core.resume_errors import ResumeRefused
from tallystick.core.views.open_calls import OpenIntent, left_calls, open_calls, open_intents
from tallystick.ledger.port import Ledger, RunFilter, RunRow
from tallystick.ledger.scopes import Hold, Scopes
from tallystick.ledger.verify import verify_ledger
from tallystick.runtime.runs.history import UNREADABLE, records_of
from tallystick.runtime.runs.lock import held_run, is_running
from tallystick.storage.transaction import Transaction

# How a run that has no end stands: `unfinished` is a copy of what another ledger goes on with, and
# `not begun` one whose process ended before anything of it was written. There is nothing to resume.
RunStatus = Literal["running", "not begun", "in doubt", "cut off", "moved", "unfinished"]
_Paid = AskModel | QueryAsked
_CHARGED = "its outcome is unknown; it was charged, and is made again"
_RELEASED = "it was not billed; it is made again"


class DoubtfulRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run with calls in doubt. `since` is when it was begun, or gone on with last, in ms."""

    run: str
    since: int
    open: tuple[OpenIntent, ...]


class ClosedCalls(msgspec.Struct, frozen=True, kw_only=True):
    """What was closed of a run: how many calls, what was held for it, and what stays in doubt."""

    run: str
    calls: int
    holds: int
    effects: tuple[OpenIntent, ...]


# -- looking ------------------------------------------------------------------------------------


def last_tag(ledger: Ledger, row: RunRow) -> tuple[str, Sealed] | None:
    """The tag of a run's last entry, and the entry; None where there is none that can be read."""
    seq = row.head.count - 1
    last = next(ledger.read(row.run, start=seq, stop=seq + 1), None) if seq >= 0 else None
    if last is None:
        return None
    header = read_header(last.header, run=row.run, seq=seq)
    return None if isinstance(header, str) else (header.tag, last)


def status_of(ledger: Ledger, row: RunRow) -> RunStatus:
    """How a run stands that has no end."""
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
    """Every run of this ledger with calls in doubt, the newest last."""
    found = (doubt_of(ledger, row) for row in ledger.runs(RunFilter(open_only=True)))
    return [each for each in found if each is not None]


def doubt_of(ledger: Ledger, row: RunRow) -> DoubtfulRun | None:
    """What of a run is in doubt, if anything is."""
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
        return None  # removed just now, or of a version that has to look itself
    open = open_intents(_drop_unbilled(records))
    return DoubtfulRun(run=row.run, since=_since(row, records), open=open) if open else None


def _may_have_open_call(ledger: Ledger, row: RunRow) -> bool:
    """Whether the last entry leaves room for a call that is open."""
    found = last_tag(ledger, row)
    if found is None:
        return False
    tag, last = found
    if tag == "run.ended":
        # One that was left in the middle of an effect has an end that says so.
        ended = None if last.body is None else decode_record(last.body)
        return isinstance(ended, RunEnded) and ended.stop in ("in_doubt", "cancelled")
    return tag != "run.pruned" and not tag.startswith("step.")


def _drop_unbilled(records: Iterable[Record]) -> Iterator[Record]:
    """Without the calls that nobody sends a bill for: a resume simply makes those again."""
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

    A child that is left behind could be found only by its id, and its calls with it.
    """
    for each in _with_children(ledger, run):
        row = ledger.row(each)
        doubt = None if row is None else doubt_of(ledger, row)
        paid = [] if doubt is None else [call for call in doubt.open if call.kind != "effect"]
        if paid or scopes.holds(run=each):
            whose = f"run {run}" if each == run else f"run {each}, which run {run} began,"
            raise UsageError(
                f"{whose} has calls in doubt, which may have been paid; close them first with "
                f"tally resolve {each} --charge or --release"
            )


def _with_children(ledger: Ledger, run: str) -> Iterator[str]:
    """Yield a run, and every run that it or one of those began."""
    waiting, seen = [run], {run}
    while waiting:
        each = waiting.pop()
        yield each
        try:
            begun = [one.run for one in records_of(ledger, each) if isinstance(one, ChildBegun)]
        except (LedgerError, *UNREADABLE):
            continue  # removed, or damaged: then it names no children
        waiting += [child for child in begun if child not in seen]
        seen.update(begun)


# -- closing ------------------------------------------------------------------------------------


def is_unsent(ledger: Ledger, hold: Hold) -> bool:
    """Whether a dead process made this reservation and sent nothing.

    A call is written before it is sent, so for a run without an entry nothing was.
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
    """What is written, and what becomes of each hold: it is settled at an amount, or released."""

    run: str
    scopes: Scopes | None
    holds: Sequence[Hold]
    charge: bool
    records: Sequence[Record]

    def close_holds(self, within: Transaction | None) -> None:
        """In the transaction that writes what came of the calls."""
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
                # Given back, or never sent: calls are written before they are.
                self.scopes.release(within, run=self.run, intent=row.intent)
                continue
            self.scopes.settle(within, run=self.run, intent=row.intent, actual=actual)


def close_calls(
    ledger: Ledger, run: str, *, charge: bool, scopes: Scopes | None, at: int
) -> ClosedCalls:
    """Write what came of the paid calls of a run that are in doubt, and close what is held for it.

    With `charge` they may have been billed, and cost what was reserved; without, they cost nothing.
    Effects stay as they are. Raises `UsageError` while a living process works on the run, and
    `ResumeRefused` if its chain does not hold.
    """
    with held_run(ledger, run):
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
        left = left_calls(_drop_unbilled(records)) if charge else []
        if paid or left:
            _write(ledger, row, plan, at=at)
        elif holds and scopes is not None:
            with scopes.writing(forced=True) as within:
                plan.close_holds(within)
    effects = tuple(each for each in open_intents(records) if each.kind == "effect")
    return ClosedCalls(run=run, calls=len(paid) + len(left), holds=len(holds), effects=effects)


def _write(ledger: Ledger, row: RunRow, plan: _Plan, *, at: int) -> None:
    """Go on with the run, and end its open calls. Those that nobody waits for end by that alone."""
    fence = ledger.claim(row.run, create=False)
    resumed = RunResumed(at=at, fence=fence, in_doubt="retry")
    events: list[Record] = [resumed]
    for call in open_calls(_drop_unbilled([*plan.records, resumed])):
        if isinstance(call, _Paid):
            events.append(_outcome(call, charge=plan.charge))
    ledger.append(
        row.run,
        [
            Draft(tag=tag_of(each), intent=intent_of(each), body=encode_record(each))
            for each in events
        ],
        expected=row.head,
        fence=fence,
        forced=True,
        also=plan.close_holds,
    )


def _outcome(call: _Paid, *, charge: bool) -> ModelFailed | QueryFailed:
    """What is written of a call in doubt: a failure that makes whoever asked ask again."""
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
    """As the rules of billing have it for a call that was left, sent or not."""
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
