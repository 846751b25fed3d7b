"""`tally ls` and `tally resolve`: list runs, and settle the calls that dead processes left."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator, Sequence
from typing import Literal

import click
import msgspec

from tallystick.cli.exit_codes import IN_DOUBT, OK
from tallystick.cli.parts import JSON, echo_json, echo_line, stdout_columns
from tallystick.cli.progress import fit
from tallystick.cli.show import plain, quantity
from tallystick.core.chain import Header, Sealed
from tallystick.core.charge import shown_usd
from tallystick.core.errors import LedgerError, RunNotFound, UsageError
from tallystick.core.records import (
    ReceiptIssued,
    Record,
    RunEnded,
    RunForked,
    RunPruned,
    RunStarted,
    decode_record,
)
from tallystick.core.records.receipts import holds_reservations
from tallystick.core.views.call_text import open_call_text
from tallystick.core.views.open_calls import OpenIntent
from tallystick.core.views.receipt import StepLine, step_lines, step_totals
from tallystick.ledger.port import Ledger, RunFilter, RunRow
from tallystick.ledger.scopes import Hold, Scopes
from tallystick.runtime.runs.history import UNREADABLE, records_of, resolve_run
from tallystick.runtime.runs.in_doubt import (
    ClosedCalls,
    DoubtfulRun,
    close_calls,
    is_unsent,
    release_unsent,
    runs_in_doubt,
    status_of,
)
from tallystick.runtime.runs.waiting import waiting_in
from tallystick.settings.paths import ledger_path
from tallystick.storage.clock import now_ms
from tallystick.stores import FileStores, open_stores

_GOAL_CHARS_MAX = 60
_MODEL_CHARS_MAX = 32
_SHORT_MODEL_CHARS = 14
# Below so many columns of a terminal, ids, dates and names of models are shortened. The beginning
# of an id is a time in milliseconds, and enough for every command.
_WIDE_COLUMNS = 120
_SHORT_ID_CHARS = 14
_WITHOUT_END = ("running", "in doubt", "cut off", "moved", "unfinished", "unreadable")
# The last entries to read for the end of a run: a receipt, the end, and a prune after it.
_END_ENTRIES = 3
# How much of a call in doubt is shown.
_CALL_CHARS_MAX = 400
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


class _Listed(msgspec.Struct, frozen=True, kw_only=True):
    """One chain of the list: a run, or steps.

    Of steps, `goal` is the name of the outermost one, and `stop` its status. `created_at` is in
    milliseconds since 1970. `usd` is in nano-dollars, None if it is unknown; with `at_most`, it
    counts reservations of calls without a reported cost. A pruned run has no goal and no answer.
    `waits` is the first thing that a run waits for a person to decide about.
    """

    kind: Literal["run", "steps"]
    run: str
    created_at: int
    entries: int
    goal: str
    model: str
    stop: str
    answer: str | None
    usd: int | None
    pruned: bool = False
    at_most: bool = False
    waits: str = ""


@click.command("ls")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="List at most N runs, the newest.",
)
@click.option(
    "--in-doubt",
    is_flag=True,
    help="List the calls whose outcome is unknown, of all runs, and what they reserve.",
)
@click.option("--children", is_flag=True, help="List also the runs that programs started.")
@JSON
def ls_command(limit: int, in_doubt: bool, children: bool, as_json: bool) -> int:
    r"""List the runs of the ledger, the newest last.

    Chains of steps are listed too. A run that has not ended is `running` or `cut off`: continue it
    with tally resume. If it is `in doubt`, it was cut off during a call whose outcome is unknown.
    If it was `not begun`, its process ended before its first record, and nothing can be resumed.
    --in-doubt also lists what dead processes have reserved of the total.

    \b
    Example:
        tally ls --limit 5
        tally ls --in-doubt
    """
    with open_stores(ledger_path()) as stores:
        ledger = stores.ledger
        if in_doubt:
            return _list_doubts(stores, as_json=as_json)
        rows = [_row_of(ledger, row) for row in _newest(ledger, limit, children=children)]
        rows = _with_steps_marked(ledger, rows)
    if as_json:
        echo_json(rows)
        return 0
    for line in table_of(rows, width=stdout_columns()):
        click.echo(line)
    return 0


def table_of(rows: Sequence[_Listed], *, width: int | None) -> list[str]:
    """Write the runs as a table that fits `width` columns, with a line of headings.

    With None for the width, the table is for programs: whole ids, and no headings.
    """
    if not rows:
        return []
    narrow = width is not None and width < _WIDE_COLUMNS
    id_chars = _SHORT_ID_CHARS if narrow else len(rows[0].run)
    cells = [
        [
            row.run[:id_chars],
            _when(row.created_at)[len("2026-") if narrow else 0 :],
            row.stop,
            _cost(row),
            _short_model(row.model) if narrow else plain(row.model, chars_max=_MODEL_CHARS_MAX),
        ]
        for row in rows
    ]
    head = ["RUN", "WHEN", "STATE", "COST", "MODEL"]
    if width is not None:
        cells.insert(0, head)
    wide = [max(len(row[column]) for row in cells) for column in range(len(head))]
    goals = [_goal_text(row) for row in rows]
    if width is not None:
        goals.insert(0, "GOAL")
    lines = []
    for row, goal in zip(cells, goals, strict=True):
        line = "  ".join(f"{each:<{size}}" for each, size in zip(row, wide, strict=True))
        line = f"{line}  {goal}".rstrip()
        lines.append(line if width is None else fit(line, width).rstrip())
    return lines


def _cost(row: _Listed) -> str:
    """Write what a run cost; `-` for a run that has not ended."""
    if row.usd is None:
        return "-" if row.stop in _WITHOUT_END else "unknown"
    return f"{'<= ' if row.at_most else ''}{shown_usd(row.usd)}"


def _short_model(name: str) -> str:
    """Return the last part of the name of a model, at most 14 characters."""
    return plain(name.rpartition(":")[2].rpartition("/")[2], chars_max=_SHORT_MODEL_CHARS)


def _newest(ledger: Ledger, limit: int, *, children: bool) -> list[RunRow]:
    """Return the newest chains, the oldest of them first."""
    which = RunFilter(outermost=not children)
    return list(ledger.runs(which, most=limit, newest_first=True))[::-1]


def _goal_text(row: _Listed) -> str:
    goal = plain(row.goal, chars_max=_GOAL_CHARS_MAX)
    if row.pruned:
        goal = f"{goal} (pruned)".strip()
    if row.waits:
        goal = f"{goal}: waits for {row.waits}"
    return goal if row.kind == "run" else f"steps {goal}"


# -- a chain ------------------------------------------------------------------------------------


def _row_of(ledger: Ledger, row: RunRow) -> _Listed:
    """Read what the list shows of one chain. One that cannot be read becomes `unreadable`."""
    try:
        return _read(ledger, row)
    except (LedgerError, *UNREADABLE):
        return _Listed(
            kind="run",
            run=row.run,
            created_at=row.created_at,
            entries=row.head.count,
            goal="",
            model="",
            stop="unreadable",
            answer=None,
            usd=None,
        )


def _read(ledger: Ledger, row: RunRow) -> _Listed:
    first = next(ledger.read(row.run, stop=1), None)
    if first is not None and _is_of_steps(first):
        lines = step_lines(records := list(records_of(ledger, row.run)))
        # Without one, every record of the steps was erased: listed as any chain that was pruned.
        if lines:
            return _steps_row(row, lines, pruned=isinstance(records[-1], RunPruned))
    # The first record and the last ones are enough for a run that has ended. Reading all of each
    # run would make the list as slow as the ledger is long.
    tail = list(ledger.read(row.run, start=max(0, row.head.count - _END_ENTRIES)))
    end = [decode_record(each.body) for each in tail if each.body is not None]
    if tail and (tail[-1].body is None or isinstance(end[-1], RunPruned)):
        return _pruned_row(row, end)
    started = None if first is None else _start_of(ledger, first)
    ended = end[-1] if end and isinstance(end[-1], RunEnded) else None
    return _Listed(
        kind="run",
        run=row.run,
        created_at=row.created_at,
        entries=row.head.count,
        goal=started.goal if started else "",
        model=started.model if started else "",
        stop=ended.stop if ended else status_of(ledger, row),
        answer=ended.answer if ended else None,
        usd=ended.charge.usd if ended else None,
        at_most=ended is not None and _has_reservations(end),
        waits=_waits(ledger, row.run) if ended is not None and ended.stop == "waiting" else "",
    )


def _waits(ledger: Ledger, run: str) -> str:
    found = waiting_in(ledger, run)
    more = f" and {len(found) - 1:,} more" if len(found) > 1 else ""
    return f"{plain(found[0].text(), chars_max=_CALL_CHARS_MAX)}{more}" if found else ""


def _with_steps_marked(ledger: Ledger, rows: list[_Listed]) -> list[_Listed]:
    """Mark the cost of steps as `at_most` where that of a run in them is.

    A run is newer than the steps around it, so it is listed wherever they are.
    """
    chains: set[str | None] = set()
    for row in rows:
        if row.kind == "run" and row.at_most:
            issued = [
                each for each in records_of(ledger, row.run) if isinstance(each, ReceiptIssued)
            ]
            chains.add(issued[-1].receipt.parent)
    return [
        msgspec.structs.replace(row, at_most=True)
        if row.kind == "steps" and row.run in chains
        else row
        for row in rows
    ]


def _has_reservations(end: Sequence[Record]) -> bool:
    """Return True if the last receipt of a run counts reservations."""
    issued = [each.receipt for each in end if isinstance(each, ReceiptIssued)]
    return bool(issued) and holds_reservations(issued[-1])


def _pruned_row(row: RunRow, end: list[Record]) -> _Listed:
    """Return what the receipt of a pruned run still says."""
    issued = next((each for each in reversed(end) if isinstance(each, ReceiptIssued)), None)
    receipt = None if issued is None else issued.receipt
    return _Listed(
        kind="run",
        run=row.run,
        created_at=row.created_at,
        entries=row.head.count,
        goal="",
        model=receipt.models[0].model if receipt and receipt.models else "",
        stop=plain(receipt.stop) if receipt else _state_without_end(row),
        answer=None,
        usd=receipt.charge.usd if receipt else None,
        pruned=True,
        at_most=receipt is not None and holds_reservations(receipt),
    )


def _state_without_end(row: RunRow) -> str:
    return "moved" if row.moved else "unfinished" if row.imported else "ended"


def _start_of(ledger: Ledger, first: Sealed) -> RunStarted | None:
    """Return the start of a run; for a fork, that of its first ancestor, with the fork's model.

    Return None if it cannot be found.
    """
    model: str | None = None
    seen: set[str] = set()
    begun = _record_in(first)
    while isinstance(begun, RunForked) and begun.parent not in seen:
        seen.add(begun.parent)
        model = model or begun.model
        try:
            begun = _record_in(next(ledger.read(begun.parent, stop=1), None))
        except RunNotFound:
            return None
    if not isinstance(begun, RunStarted):
        return None
    return begun if model is None else msgspec.structs.replace(begun, model=model)


def _record_in(entry: Sealed | None) -> Record | None:
    return None if entry is None or entry.body is None else decode_record(entry.body)


def _is_of_steps(first: Sealed) -> bool:
    return msgspec.json.decode(first.header, type=Header).tag.startswith("step.")


def _steps_row(row: RunRow, lines: Sequence[StepLine], *, pruned: bool) -> _Listed:
    outermost, totals = lines[0], step_totals(lines)
    unpriced = totals.unpriced and totals.unpriced == totals.llm_calls
    ended = outermost.receipt is not None
    return _Listed(
        kind="steps",
        run=row.run,
        created_at=row.created_at,
        entries=row.head.count,
        goal=outermost.name,
        model=(outermost.receipt.model or "") if outermost.receipt else "",
        stop=outermost.status if ended else ("moved" if row.moved else "unfinished"),
        answer=None,
        usd=None if unpriced else totals.usd,
        pruned=pruned,
    )


# -- calls in doubt -----------------------------------------------------------------------------


def _list_doubts(stores: FileStores, *, as_json: bool) -> int:
    found = runs_in_doubt(stores.ledger)
    holds = [each for each in _holds(stores.ledger, stores.scopes) if each.owner_dead]
    if as_json:
        fields = {"runs": found, "holds": [hold_fields(each) for each in holds]}
        echo_json(fields)
        return 0
    for line in doubt_lines(found):
        echo_line(line)
    for each in holds:
        echo_line(f"{hold_line(each)} of the total, by a dead process")
    if not found and not holds:
        click.echo("nothing is in doubt", err=True)
    return 0


def _holds(ledger: Ledger, scopes: Scopes) -> list[Hold]:
    """List the reservations in the total, after releasing those of calls that were never sent.

    If the ledger cannot be written, those are left out all the same.
    """
    # If the ledger cannot be written, list it all the same; the unsent calls are left out below.
    with contextlib.suppress(LedgerError):
        release_unsent(ledger, scopes)
    return [each for each in scopes.holds() if not is_unsent(ledger, each)]


def doubt_lines(found: Sequence[DoubtfulRun]) -> Iterator[str]:
    """Write each run with calls in doubt, and a line for each of its calls."""
    now = now_ms()
    for each in found:
        yield f"{each.run}  started {_when(each.since)}, {_age(now - each.since)} ago"
        for call in each.open:
            yield f"    {_call_line(call)}"


def _call_line(call: OpenIntent) -> str:
    place = f"turn {call.turn}  {_said(call)}"
    if call.kind == "effect":
        return f"{place}  an effect: it may have happened"
    many = max(1, len(call.items))
    cost = f"at most {shown_usd(call.usd)}" if call.usd is not None else "price unknown"
    calls = quantity(many, "call")
    return f"{place}  {calls}, {cost}, at most {call.tokens:,} tokens (reserved)"


def _said(call: OpenIntent) -> str:
    """Write what is called, with its arguments if the record has them."""
    return plain(open_call_text(call), chars_max=_CALL_CHARS_MAX)


def hold_line(hold: Hold) -> str:
    """Write a reservation in the shared total: its run, dollars and tokens."""
    row = hold.row
    usd = "price unknown" if row.amount.usd is None else shown_usd(row.amount.usd)
    return f"{plain(row.run)}  {usd}, {row.amount.tokens:,} tokens reserved"


def hold_fields(hold: Hold) -> dict[str, object]:
    """Return a reservation as JSON fields; `usd` is in nano-dollars."""
    row = hold.row
    return {
        "run": row.run,
        "number": row.intent,
        "usd": row.amount.usd,
        "tokens": row.amount.tokens,
        "held_at_ms": row.held_at_ms,
        "owner_dead": hold.owner_dead,
    }


def _when(at_ms: int) -> str:
    try:
        return f"{datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError):
        # The id of an imported run may contain any time, also beyond the calendar.
        return "unknown date"


def _age(ms: int) -> str:
    for size, unit in _UNITS:
        if ms >= size:
            return f"{ms // size:,} {unit}"
    return "less than a second"


# `tally resolve`: settle the calls that dead processes left open.


@click.command("resolve")
@click.argument("run", required=False)
@click.option(
    "--charge", is_flag=True, help="Charge what is reserved: the calls may have been billed."
)
@click.option(
    "--release", is_flag=True, help="Release what is reserved: the calls were not billed."
)
@JSON
def resolve_command(run: str | None, charge: bool, release: bool, as_json: bool) -> int:
    r"""Settle model calls that dead processes left open.

    If a process dies during a model call, it is unknown whether the call was billed, and its
    reservation stays. Record with --charge that the call may have been billed. Record with
    --release that it was not. The reservation in the total is settled with it, and tally resume
    then repeats the call. Without --charge or --release, open calls and reservations are listed.
    Other calls with an effect are not settled here, but by tally resume. Exit code 7 if the run has
    such a call.

    \b
    Example:
        tally resolve 01M7H9059YPYTCBKVW1YQJBKX4 --charge
    """
    if charge and release:
        raise UsageError("--charge and --release contradict each other; leave out one of them")
    if (charge or release) and run is None:
        raise UsageError("name the run whose calls to settle: tally resolve lists them")
    with open_stores(ledger_path()) as stores:
        ledger, scopes = stores.ledger, stores.scopes
        named = None if run is None else _find_run(ledger, scopes, run)
        if named is None or not (charge or release):
            return _list(ledger, scopes, named, as_json=as_json)
        closed = _close(ledger, scopes, named, charge=charge)
    if as_json:
        echo_json(closed)
    else:
        _echo_closed(closed, charge=charge)
    return IN_DOUBT if closed.effects else OK


def _find_run(ledger: Ledger, scopes: Scopes, run: str) -> str:
    """Return the id of a run in the ledger, or of one that only has a reservation.

    A process can die between a reservation and the first record of its run. Raise `UsageError` if
    several ids begin with `run`, and `RunNotFound` if none does.
    """
    try:
        return resolve_run(ledger, run)
    except RunNotFound:
        names = {each.row.run for each in scopes.holds()}
    found = [name for name in names if run and name.startswith(run.upper())]
    if len(found) > 1:
        raise UsageError(
            f"{run!r} matches {len(found)} runs; type more characters of the id (tally resolve "
            f"lists them)"
        )
    if not found:
        raise RunNotFound(run=run)
    return found[0]


def _close(ledger: Ledger, scopes: Scopes, run: str, *, charge: bool) -> ClosedCalls:
    """Close the open model calls of a run, and its reservations in the total.

    They are charged with `charge`, else released. A run that is gone has reservations only. Raise
    what `close_calls` raises, but for `RunNotFound`.
    """
    try:
        return close_calls(ledger, run, charge=charge, scopes=scopes, at=now_ms())
    except RunNotFound:
        holds = scopes.holds(run=run)
    for each in holds:
        scopes.resolve(each.row, settle_at=each.row.amount if charge else None)
    return ClosedCalls(run=run, calls=0, holds=len(holds), effects=())


def _echo_closed(closed: ClosedCalls, *, charge: bool) -> None:
    if closed.calls or closed.holds:
        calls = quantity(closed.calls, "call")
        held = "1 reservation" if closed.holds == 1 else f"{closed.holds:,} reservations"
        of_total = f", with {held} of the total" if closed.holds else ""
        how = "settled at its reservation" if charge else "released, nothing is charged"
        if charge and closed.calls != 1:
            how = "settled at their reservations"
        echo_line(f"{closed.run}  {calls} {how}{of_total}")
    elif not closed.effects:
        click.echo(f"run {closed.run} has no open calls and no reservations", err=True)
    for each in closed.effects:
        click.echo(
            f"{_said(each)} (turn {each.turn}) is an effect, which may have happened; to "
            f"decide about it: tally resume {closed.run} --in-doubt retry or abandon",
            err=True,
        )


def _list(ledger: Ledger, scopes: Scopes, run: str | None, *, as_json: bool) -> int:
    holds = [each for each in _holds(ledger, scopes) if run is None or each.row.run == run]
    found = [each for each in runs_in_doubt(ledger) if run is None or each.run == run]
    if as_json:
        fields = {"runs": found, "holds": [hold_fields(each) for each in holds]}
        echo_json(fields)
        return OK
    for line in doubt_lines(found):
        echo_line(line)
    for each in holds:
        echo_line(f"{hold_line(each)} of the total, {_state(each)}")
    if not holds and not found:
        click.echo("nothing is reserved, and nothing is in doubt", err=True)
    return OK


def _state(hold: Hold) -> str:
    return "by a dead process" if hold.owner_dead else "for a call in progress"
