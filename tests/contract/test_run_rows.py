"""What the row of a run says of its records, and how runs are found by it, on every ledger."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ledger.builders import (
    LEDGERS,
    drafted,
    end_records,
    filled,
    grown,
    made,
    run_id,
    session_of,
    start_record,
)

from tallystick.core.chain import Head
from tallystick.core.records import Record, RunPruned, RunResumed, StepEntered
from tallystick.ledger.facts import FACTS, row_differences
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.port import Ledger, RunFilter, RunRow, TransferLedger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.transfer import export_run, import_run

STEPS = run_id(90)


@pytest.fixture(params=sorted(LEDGERS))
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TransferLedger]:
    opened = LEDGERS[request.param](tmp_path)
    yield opened
    if isinstance(opened, SqliteLedger):
        opened.close()


def row_of(ledger: Ledger, run: str) -> RunRow:
    row = ledger.row(run)
    assert row is not None
    return row


def appended(ledger: Ledger, run: str, *records: Record) -> Head:
    row = row_of(ledger, run)
    return ledger.append(
        run, list(map(drafted, records)), expected=row.head, fence=row.fence, forced=False
    )


def found(ledger: Ledger, **asked: object) -> list[str]:
    return [row.run for row in ledger.runs(RunFilter(**asked))]  # type: ignore[arg-type]


def test_the_row_of_a_run_that_ended_says_who_began_it_and_when_it_was(ledger: Ledger) -> None:
    outer = made(ledger, 1)
    run = made(ledger, 2, caller=outer, parent=STEPS, stop="max_turns")

    row = row_of(ledger, run)

    assert (row.caller, row.parent, row.session) == (outer, STEPS, session_of(2))
    assert (row.started_at, row.ended_at, row.stop) == (3, 3, "max_turns")
    assert (row.steps, row.grown_from, row.erased, row.is_open) == (False, None, False, False)


def test_a_run_without_an_entry_has_no_more_than_its_place(ledger: Ledger) -> None:
    ledger.claim(run_id(1), create=True)

    row = row_of(ledger, run_id(1))

    assert (row.session, row.started_at, row.stop, row.is_open) == (None, None, None, True)


def test_a_run_that_is_gone_on_with_is_open_until_it_ends_again(ledger: Ledger) -> None:
    run = made(ledger, 1, stop="max_turns")
    assert not row_of(ledger, run).is_open

    appended(ledger, run, RunResumed(at=9, fence=1))
    resumed = row_of(ledger, run)
    appended(ledger, run, *end_records(start_record(1), "answered"))

    assert (resumed.stop, resumed.ended_at, resumed.is_open) == (None, None, True)
    assert row_of(ledger, run).stop == "answered"


@pytest.mark.parametrize(("stop", "is_open"), [("cancelled", True), ("in_doubt", True),
                                               ("answered", False), ("budget", False)])  # fmt: skip
def test_a_run_that_was_stopped_in_a_call_is_open(ledger: Ledger, stop: str, is_open: bool) -> None:
    run = made(ledger, 1, stop=stop)  # type: ignore[arg-type]

    assert row_of(ledger, run).is_open == is_open
    assert found(ledger, open_only=True) == ([run] if is_open else [])


def test_a_fork_says_what_it_grew_from(ledger: Ledger) -> None:
    filled(ledger)
    grown(ledger)

    assert row_of(ledger, run_id(2)).grown_from == run_id(1)
    assert found(ledger, grown_from=run_id(1)) == [run_id(2)] == list(ledger.forks_of(run_id(1)))


def test_a_chain_of_steps_is_one_and_never_open(ledger: Ledger) -> None:
    entered = StepEntered(
        path="1", name="plan", function="f", key="", model=None, tokens_max=None, usd_max=None,
        error_boundary="fail", entered_at=5,
    )  # fmt: skip
    ledger.claim(STEPS, create=True)
    appended(ledger, STEPS, entered)
    appended(ledger, STEPS, entered)

    row = row_of(ledger, STEPS)

    assert (row.steps, row.started_at, row.is_open) == (True, 5, False)
    assert found(ledger, open_only=True) == []


def test_the_row_of_a_pruned_run_still_says_who_began_it(ledger: TransferLedger) -> None:
    outer = made(ledger, 1)
    run = made(ledger, 2, caller=outer)
    appended(ledger, run, RunPruned(at=9, before=5, removed=3, bytes=9, why="a test", caller=outer))

    ledger.erase(run, [0, 1, 2])

    row = row_of(ledger, run)
    assert (row.erased, row.caller, row.stop) == (True, outer, "answered")
    assert found(ledger, unerased=True) == [outer]


def test_runs_are_found_by_what_their_rows_say(ledger: Ledger) -> None:
    first, second = made(ledger, 1), made(ledger, 2, parent=STEPS, stop=None)
    inside = [made(ledger, number, caller=first) for number in (3, 4)]

    assert found(ledger) == [first, second, *inside]
    assert found(ledger, caller=first) == inside
    assert found(ledger, parent=STEPS) == [second]
    assert found(ledger, session=session_of(4)) == [inside[1]]
    assert found(ledger, outermost=True) == [first, second]
    assert found(ledger, inside=True) == inside
    assert found(ledger, open_only=True) == [second]
    assert found(ledger, outermost=True, open_only=True) == [second]
    assert found(ledger, caller=second) == found(ledger, session="x") == []


def test_runs_are_found_by_the_beginning_of_their_id(ledger: Ledger) -> None:
    runs = [made(ledger, number) for number in (1, 2, 40)]

    assert found(ledger, prefix=runs[0][:10]) == runs[:1]
    assert found(ledger, prefix=runs[0][:9]) == runs[:2]
    assert found(ledger, prefix=runs[2], outermost=True) == runs[2:]
    assert found(ledger, prefix="Z") == found(ledger, prefix="%") == []


@pytest.mark.parametrize("newest_first", [False, True])
def test_runs_are_read_page_by_page_in_either_order(ledger: Ledger, newest_first: bool) -> None:
    runs = [made(ledger, number) for number in range(1, 8)]
    seen: list[str] = []

    while page := ledger.runs(
        RunFilter(outermost=True),
        after=seen[-1] if seen else "",
        most=3,
        newest_first=newest_first,
    ):
        assert len(page) <= 3
        seen += [row.run for row in page]

    assert seen == (runs[::-1] if newest_first else runs)
    assert list(ledger.runs(most=0)) == []
    rest = [row.run for row in ledger.runs(skip=5, newest_first=newest_first)]
    assert rest == seen[5:]
    assert [row.run for row in ledger.runs(skip=2, most=2, newest_first=newest_first)] == seen[2:4]


def test_a_row_says_who_claimed_it_last_if_they_said_so(ledger: Ledger) -> None:
    first = ledger.claim(run_id(1), create=True, owner="one")
    before = row_of(ledger, run_id(1)).owner
    second = ledger.claim(run_id(1), create=False, owner="two")

    assert (before, row_of(ledger, run_id(1)).owner) == ("one", "two")
    assert second > first
    ledger.claim(run_id(1), create=False)
    assert row_of(ledger, run_id(1)).owner is None


def facts(row: RunRow) -> tuple[object, ...]:
    return tuple(getattr(row, each) for each in FACTS)


def carried_over(source: TransferLedger, run: str, target: TransferLedger) -> RunRow:
    file = io.BytesIO()
    export_run(source, run, file)
    file.seek(0)
    import_run(target, file)
    return row_of(target, run)


def test_a_run_that_arrives_says_what_it_said_where_it_was(ledger: TransferLedger) -> None:
    elsewhere = MemoryLedger()
    run = made(elsewhere, 2, caller=run_id(1), parent=STEPS, stop="max_turns")
    there = row_of(elsewhere, run)

    here = carried_over(elsewhere, run, ledger)

    assert facts(here) == facts(there)
    assert (here.imported, found(ledger, caller=run_id(1))) == (True, [run])


def test_a_copy_that_becomes_longer_says_how_it_stands_now(ledger: TransferLedger) -> None:
    elsewhere = MemoryLedger()
    run = made(elsewhere, 2, caller=run_id(1), stop="max_turns")
    before = carried_over(elsewhere, run, ledger)
    appended(elsewhere, run, RunResumed(at=9, fence=1))

    here = carried_over(elsewhere, run, ledger)

    assert (before.stop, here.stop, here.caller) == ("max_turns", None, run_id(1))
    assert facts(here) == facts(row_of(elsewhere, run))


def test_a_fork_that_arrives_brings_the_rows_of_what_it_grew_from(ledger: TransferLedger) -> None:
    elsewhere = MemoryLedger()
    outer = made(elsewhere, 1, stop=None)
    grown(elsewhere, parent=outer)

    here = carried_over(elsewhere, run_id(2), ledger)

    assert (here.grown_from, list(ledger.forks_of(outer))) == (outer, [run_id(2)])
    assert row_of(ledger, outer).session == session_of(1)
    assert row_differences(ledger, here) == row_differences(ledger, row_of(ledger, outer)) == []
