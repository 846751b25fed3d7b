"""What every ledger promises, tried on each of them."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.ledger.builders import (
    EMPTY,
    LEDGERS,
    OTHER,
    RUN,
    bodies,
    draft,
    drafted,
    drafts,
    filled,
    fork_record,
    grown,
    run_id,
)

from tallystick.core.chain import Draft, Head
from tallystick.core.errors import (
    InvalidLimit,
    InvalidName,
    LedgerConflict,
    RunExists,
    RunNotFound,
    RunNotOwned,
    TransferRefused,
    UsageError,
)
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.port import BODY_BYTES_MAX, ExportHeader, Ledger, TransferLedger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger

BODIES = [each.body for each in drafts(15)]


@pytest.fixture(params=sorted(LEDGERS))
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TransferLedger]:
    made = LEDGERS[request.param](tmp_path)
    yield made
    if isinstance(made, SqliteLedger):
        made.close()


def test_a_new_run_is_empty_and_belongs_to_whoever_made_it(ledger: Ledger) -> None:
    fence = ledger.claim(RUN, create=True)

    (row,) = ledger.runs()

    assert (row.run, row.head, row.fence, row.created_at) == (RUN, EMPTY, fence, 1)
    assert not row.moved
    assert list(ledger.read(RUN)) == []


def test_the_row_of_one_run_is_the_one_among_all(ledger: Ledger) -> None:
    for number in range(3):
        ledger.claim(run_id(number), create=True)

    assert [ledger.row(each.run) for each in ledger.runs()] == list(ledger.runs())
    assert ledger.row(run_id(9)) is None


def test_what_is_appended_is_read_in_its_order(ledger: Ledger) -> None:
    head = filled(ledger, count=5)

    entries = list(ledger.read(RUN))

    assert [entry.body for entry in entries] == [each.body for each in drafts(5)]
    assert head == Head(count=5, hash=entries[-1].hash)
    assert verify_ledger(ledger).ok


@pytest.mark.parametrize("start", [0, 1, 4, 5, 99])
def test_a_read_begins_where_it_is_told_to(ledger: Ledger, start: int) -> None:
    filled(ledger, count=5)

    assert bodies(ledger, start=start) == [each.body for each in drafts(5)][start:]


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (0, 1), (1, 3), (3, 2), (0, 5), (4, 99)])
def test_a_read_ends_where_it_is_told_to(ledger: Ledger, start: int, stop: int) -> None:
    filled(ledger, count=5)

    read = [entry.body for entry in ledger.read(RUN, start=start, stop=stop)]

    assert read == [each.body for each in drafts(5)][start:stop]


def test_forced_and_committed_entries_make_one_chain(ledger: Ledger) -> None:
    fence = ledger.claim(RUN, create=True)
    head = EMPTY

    for number in range(6):
        head = ledger.append(
            RUN, [draft(number)], expected=head, fence=fence, forced=number % 2 == 0
        )

    assert (head.count, verify_ledger(ledger).entries) == (6, 6)


@pytest.mark.parametrize("forced", [False, True])
def test_appending_nothing_changes_nothing(ledger: Ledger, forced: bool) -> None:
    head = filled(ledger)

    again = ledger.append(RUN, [], expected=head, fence=1, forced=forced)

    assert again == head == ledger.runs()[0].head
    assert verify_ledger(ledger).ok


def test_appending_nothing_is_refused_where_an_append_would_be(ledger: Ledger) -> None:
    filled(ledger)

    with pytest.raises(LedgerConflict):
        ledger.append(RUN, [], expected=EMPTY, fence=1, forced=True)


def test_an_append_behind_another_head_is_refused_and_changes_nothing(ledger: Ledger) -> None:
    head = filled(ledger)
    elsewhere = Head(count=head.count, hash="00" * 32)

    with pytest.raises(LedgerConflict, match="its head is 4 entries ending in") as caught:
        ledger.append(RUN, drafts(2), expected=elsewhere, fence=1, forced=False)

    assert caught.value.field == "head"
    assert ledger.runs()[0].head == head
    assert len(bodies(ledger)) == 4


@pytest.mark.parametrize("fence", [0, 1, 3])
def test_an_append_with_another_fence_is_refused_and_changes_nothing(
    ledger: Ledger, fence: int
) -> None:
    head = filled(ledger)
    assert ledger.claim(RUN, create=False) == 2

    with pytest.raises(LedgerConflict, match=f"its fence is 2, not {fence}") as caught:
        ledger.append(RUN, drafts(2), expected=head, fence=fence, forced=True)

    assert caught.value.field == "fence"
    assert ledger.runs()[0].head == head
    assert len(bodies(ledger)) == 4


def test_of_two_that_claim_a_run_the_later_one_writes(ledger: Ledger) -> None:
    head = filled(ledger)
    first = ledger.claim(RUN, create=False)
    second = ledger.claim(RUN, create=False)

    with pytest.raises(LedgerConflict):
        ledger.append(RUN, drafts(1), expected=head, fence=first, forced=False)
    ledger.append(RUN, drafts(1), expected=head, fence=second, forced=False)

    assert ledger.runs()[0].head.count == 5


def test_of_many_threads_each_entry_is_written_by_one(ledger: Ledger) -> None:
    fence = ledger.claim(RUN, create=True)
    written = []

    def write() -> None:
        for _ in range(20):
            head = ledger.runs()[0].head
            try:
                ledger.append(RUN, drafts(1), expected=head, fence=fence, forced=False)
            except LedgerConflict:
                continue
            written.append(head.count)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(written) == list(range(ledger.runs()[0].head.count))
    assert verify_ledger(ledger).entries == len(written)


def test_a_submission_says_at_once_which_head_the_run_will_have(ledger: Ledger) -> None:
    fence = ledger.claim(RUN, create=True)

    head, written = ledger.submit(RUN, drafts(3), expected=EMPTY, fence=fence, forced=True)
    written.result()

    assert ledger.runs()[0].head == head
    assert bodies(ledger) == [each.body for each in drafts(3)]


def test_submissions_that_nobody_waits_for_in_between_make_one_chain(ledger: Ledger) -> None:
    fence = ledger.claim(RUN, create=True)
    head, futures = EMPTY, []

    for number in range(50):
        head, written = ledger.submit(
            RUN, [draft(number)], expected=head, fence=fence, forced=number % 7 == 0
        )
        futures.append(written)

    assert [written.result() for written in futures] == [None] * 50
    assert ledger.runs()[0].head == head
    assert bodies(ledger) == [each.body for each in drafts(50)]
    assert verify_ledger(ledger).ok


def test_an_append_comes_behind_what_was_submitted_before_it(ledger: Ledger) -> None:
    fence = ledger.claim(RUN, create=True)

    head, _ = ledger.submit(RUN, drafts(1), expected=EMPTY, fence=fence, forced=False)
    head = ledger.append(RUN, drafts(1, start=1), expected=head, fence=fence, forced=False)

    assert ledger.runs()[0].head == head
    assert verify_ledger(ledger).entries == 2


def failing(db: object) -> None:
    raise UsageError("no")


def test_a_submission_that_fails_takes_along_those_that_build_on_it_and_no_others(
    ledger: Ledger,
) -> None:
    fences = {run: ledger.claim(run, create=True) for run in (RUN, OTHER)}

    first, refused = ledger.submit(
        RUN, drafts(2), expected=EMPTY, fence=fences[RUN], forced=False, also=failing
    )
    _, behind = ledger.submit(RUN, drafts(1), expected=first, fence=fences[RUN], forced=True)
    _, beside = ledger.submit(OTHER, drafts(3), expected=EMPTY, fence=fences[OTHER], forced=False)

    with pytest.raises(UsageError, match="no"):
        refused.result()
    with pytest.raises(LedgerConflict) as caught:
        behind.result()
    beside.result()
    assert (caught.value.field, caught.value.run) == ("head", RUN)
    assert [row.head.count for row in ledger.runs()] == [0, 3]
    assert ledger.append(RUN, drafts(1), expected=EMPTY, fence=fences[RUN], forced=True).count == 1


@pytest.mark.parametrize("forced", [False, True])
def test_a_submission_with_another_fence_is_refused_when_it_is_waited_for(
    ledger: Ledger, forced: bool
) -> None:
    head = filled(ledger)
    ledger.claim(RUN, create=False)

    _, refused = ledger.submit(RUN, drafts(1), expected=head, fence=1, forced=forced)

    with pytest.raises(LedgerConflict, match="its fence is 2, not 1"):
        refused.result()
    assert len(bodies(ledger)) == 4


def test_what_was_submitted_cannot_be_cancelled(ledger: Ledger) -> None:
    fence = ledger.claim(RUN, create=True)

    _, written = ledger.submit(RUN, drafts(1), expected=EMPTY, fence=fence, forced=False)

    assert not written.cancel()
    written.result()
    assert len(bodies(ledger)) == 1


def test_what_goes_with_a_submission_is_done_once_and_in_its_order(ledger: Ledger) -> None:
    fence = ledger.claim(RUN, create=True)
    head, done, futures = EMPTY, [], []

    for number in range(20):
        head, written = ledger.submit(
            RUN,
            [draft(number)],
            expected=head,
            fence=fence,
            forced=False,
            also=lambda db, number=number: done.append((number, db is None)),  # type: ignore[misc]
        )
        futures.append(written)
    for written in futures:
        written.result()

    assert done == [(number, isinstance(ledger, MemoryLedger)) for number in range(20)]


def test_a_body_over_the_limit_is_refused_before_it_is_queued(ledger: Ledger) -> None:
    fence = ledger.claim(RUN, create=True)
    over = Draft(tag="t", intent=None, body=bytes(BODY_BYTES_MAX + 1))

    with pytest.raises(InvalidLimit, match=f"at most {BODY_BYTES_MAX} bytes"):
        ledger.submit(RUN, [over], expected=EMPTY, fence=fence, forced=False)


def test_many_threads_submit_to_runs_of_their_own(ledger: Ledger) -> None:
    def write(run: str) -> None:
        head, futures = EMPTY, []
        fence = ledger.claim(run, create=True)
        for number in range(15):
            head, written = ledger.submit(
                run, [draft(number)], expected=head, fence=fence, forced=number % 5 == 0
            )
            futures.append(written)
        for written in futures:
            written.result()

    threads = [threading.Thread(target=write, args=(run_id(number),)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert all(list(bodies(ledger, row.run)) == BODIES for row in ledger.runs())
    assert (verify_ledger(ledger).runs, verify_ledger(ledger).entries) == (8, 8 * 15)


def test_runs_do_not_see_each_other(ledger: Ledger) -> None:
    head = filled(ledger, run=RUN, count=2)
    filled(ledger, run=OTHER, count=3)

    ledger.append(RUN, [draft(9)], expected=head, fence=1, forced=False)

    assert (len(bodies(ledger, RUN)), len(bodies(ledger, OTHER))) == (3, 3)
    assert verify_ledger(ledger).runs == 2


def test_runs_are_listed_by_age(ledger: Ledger) -> None:
    for number in (3, 1, 2):
        ledger.claim(run_id(number), create=True)

    assert [row.run for row in ledger.runs()] == [run_id(1), run_id(2), run_id(3)]
    assert [row.created_at for row in ledger.runs()] == [1, 2, 3]


def test_a_removed_run_is_gone_and_the_others_are_whole(ledger: Ledger) -> None:
    filled(ledger, run=RUN)
    filled(ledger, run=OTHER)

    ledger.remove(RUN)

    assert [row.run for row in ledger.runs()] == [OTHER]
    assert verify_ledger(ledger).entries == 4
    with pytest.raises(RunNotFound):
        ledger.read(RUN)


def test_a_run_cannot_be_made_twice(ledger: Ledger) -> None:
    filled(ledger)

    with pytest.raises(RunExists, match="already in the ledger"):
        ledger.claim(RUN, create=True)

    assert ledger.runs()[0].fence == 1


@pytest.mark.parametrize("name", ["", "last", "../../etc/passwd", RUN.lower(), RUN + "0"])
def test_the_id_of_a_run_is_a_ulid(ledger: Ledger, name: str) -> None:
    with pytest.raises(InvalidName, match="ULID"):
        ledger.claim(name, create=True)

    assert list(ledger.runs()) == []


def test_a_run_that_is_not_there_is_refused_by_name(ledger: Ledger) -> None:
    actions: list[Callable[[], object]] = [
        lambda: ledger.claim(RUN, create=False),
        lambda: ledger.append(RUN, drafts(1), expected=EMPTY, fence=1, forced=False),
        lambda: ledger.read(RUN),
        lambda: ledger.remove(RUN),
    ]

    for action in actions:
        with pytest.raises(RunNotFound, match=RUN):
            action()
    assert list(ledger.runs()) == []


def test_a_body_over_the_limit_is_refused_and_one_at_the_limit_kept(ledger: Ledger) -> None:
    fence = ledger.claim(RUN, create=True)
    most = Draft(tag="t", intent=None, body=bytes(BODY_BYTES_MAX))
    over = Draft(tag="t", intent=None, body=bytes(BODY_BYTES_MAX + 1))

    with pytest.raises(InvalidLimit, match=f"at most {BODY_BYTES_MAX} bytes"):
        ledger.append(RUN, [over], expected=EMPTY, fence=fence, forced=False)
    head = ledger.append(RUN, [most], expected=EMPTY, fence=fence, forced=False)

    assert head.count == 1


def test_a_run_that_was_given_away_can_be_read_and_not_written(ledger: TransferLedger) -> None:
    head = filled(ledger)

    row = ledger.release(RUN)

    assert (row.moved, row.fence, row.head) == (True, 2, head)
    with pytest.raises(RunNotOwned, match="moved away"):
        ledger.claim(RUN, create=False)
    with pytest.raises(LedgerConflict, match="its fence is 2, not 1"):
        ledger.append(RUN, drafts(1), expected=head, fence=1, forced=False)
    with pytest.raises(RunNotOwned):
        ledger.append(RUN, drafts(1), expected=head, fence=2, forced=False)
    assert len(bodies(ledger)) == 4


def test_giving_a_run_away_twice_is_the_same_as_once(ledger: TransferLedger) -> None:
    filled(ledger)

    assert ledger.release(RUN) == ledger.release(RUN) == ledger.runs()[0]


def test_a_copy_can_be_read_and_not_written(ledger: TransferLedger) -> None:
    source = MemoryLedger()
    head = filled(source)
    header = ExportHeader(format=1, run=RUN, count=head.count, hash=head.hash, fence=0, moved=False)

    ledger.adopt(header, source.read(RUN))

    assert list(ledger.read(RUN)) == list(source.read(RUN))
    assert ledger.runs()[0].imported
    for action in (
        lambda: ledger.claim(RUN, create=False),
        lambda: ledger.append(RUN, drafts(1), expected=head, fence=0, forced=False),
        lambda: ledger.release(RUN),
    ):
        with pytest.raises(RunNotOwned, match="is a copy"):
            action()


def arriving() -> tuple[ExportHeader, MemoryLedger]:
    source = MemoryLedger()
    head = filled(source)
    header = ExportHeader(format=2, run=RUN, count=head.count, hash=head.hash, fence=0, moved=False)
    return header, source


def test_what_goes_with_an_import_is_done_whether_or_not_the_run_is_here(
    ledger: TransferLedger,
) -> None:
    header, source = arriving()
    done: list[object] = []

    for _ in range(2):
        ledger.adopt(header, source.read(RUN), also=done.append)

    assert len(done) == 2
    assert all((db is None) == isinstance(ledger, MemoryLedger) for db in done)
    assert verify_ledger(ledger).entries == 4


def test_an_import_does_not_happen_if_what_goes_with_it_fails(ledger: TransferLedger) -> None:
    header, source = arriving()

    with pytest.raises(UsageError):
        ledger.adopt(header, source.read(RUN), also=failing)

    assert list(ledger.runs()) == []


def test_what_goes_with_an_import_is_not_done_if_the_run_is_refused(
    ledger: TransferLedger,
) -> None:
    filled(ledger, count=2)
    header, source = arriving()
    done: list[object] = []

    with pytest.raises(TransferRefused):
        ledger.adopt(header, source.read(RUN), also=done.append)

    assert done == []


def test_a_removal_does_not_happen_if_what_goes_with_it_fails(ledger: Ledger) -> None:
    filled(ledger)

    with pytest.raises(UsageError):
        ledger.remove(RUN, also=failing)

    assert verify_ledger(ledger).entries == 4


def test_an_erased_body_is_gone_and_the_chain_holds(ledger: TransferLedger) -> None:
    filled(ledger)

    ledger.erase(RUN, [1, 3])

    entries = list(ledger.read(RUN))
    assert [entry.body is None for entry in entries] == [False, True, False, True]
    assert [entry.salt is None for entry in entries] == [False, True, False, True]
    report = verify_ledger(ledger)
    assert (report.ok, report.entries, report.erased) == (True, 4, 2)


@pytest.mark.parametrize("seq", [-1, 4])
def test_only_entries_that_are_there_can_be_erased(ledger: TransferLedger, seq: int) -> None:
    filled(ledger)

    with pytest.raises(UsageError, match=f"no entry {seq}"):
        ledger.erase(RUN, [0, seq])

    assert verify_ledger(ledger).erased == 0


def test_a_run_grows_from_an_entry_of_another(ledger: Ledger) -> None:
    filled(ledger)
    shared = list(ledger.read(RUN))[1]

    fence = ledger.claim(OTHER, create=True, grown_from=shared.hash)
    root = ledger.runs()[1].head
    empty = verify_ledger(ledger)
    head = ledger.append(
        OTHER,
        [drafted(fork_record(RUN, 2, shared.hash)), *drafts(2)],
        expected=root,
        fence=fence,
        forced=True,
    )

    assert root == Head(count=0, hash=shared.hash)
    assert (empty.ok, empty.notes) == (True, ())
    assert ledger.runs()[1].head == head
    report = verify_ledger(ledger)
    assert (report.ok, report.runs, report.entries, report.notes) == (True, 2, 7, ())


@pytest.mark.parametrize("grown_from", ["", "zz" * 32, "AB" * 32, "ab" * 31])
def test_a_run_grows_from_a_hash_and_from_nothing_else(ledger: Ledger, grown_from: str) -> None:
    with pytest.raises(UsageError, match="from a hash of it"):
        ledger.claim(RUN, create=True, grown_from=grown_from)

    assert list(ledger.runs()) == []


def test_only_a_new_run_grows_from_another(ledger: Ledger) -> None:
    head = filled(ledger)

    with pytest.raises(UsageError, match="only a new run grows from another"):
        ledger.claim(RUN, create=False, grown_from=head.hash)

    assert ledger.runs()[0].fence == 1


def test_a_run_that_others_grew_from_stays_until_they_are_gone(ledger: Ledger) -> None:
    filled(ledger, run=RUN)
    for number in (4, 3):
        grown(ledger, run=run_id(number), parent=RUN)
    grown(ledger, run=run_id(5), parent=run_id(3))
    # One that is about to grow from it has no entry yet that says so.
    ledger.claim(run_id(6), create=True, grown_from=ledger.runs()[0].head.hash)
    # One that nobody began to write grows from nothing.
    ledger.claim(run_id(2), create=True)
    done: list[object] = []

    with pytest.raises(UsageError, match=f"run {RUN} stays: run {run_id(3)} grew from it") as told:
        ledger.remove(RUN, also=done.append)

    assert "\n" not in str(told.value)
    assert done == []
    assert ledger.forks_of(RUN) == [run_id(3), run_id(4), run_id(6)]
    assert ledger.forks_of(run_id(3)) == [run_id(5)]
    assert ledger.forks_of(run_id(77)) == []
    for number in (5, 4, 3):
        ledger.remove(run_id(number))
    with pytest.raises(UsageError, match=f"run {RUN} stays: run {run_id(6)} grew from it"):
        ledger.remove(RUN)
    ledger.remove(run_id(6))
    ledger.remove(RUN)
    assert [row.run for row in ledger.runs()] == [run_id(2)]


@pytest.mark.parametrize("shared", [1, 2, 3])
def test_a_run_that_is_about_to_grow_keeps_the_one_whose_entry_it_names(
    ledger: Ledger, shared: int
) -> None:
    """Also where that is no longer, or not only, the last one; and no other."""
    filled(ledger, run=RUN)
    filled(ledger, run=OTHER)
    *_, named = ledger.read(RUN, stop=shared)
    fork = run_id(9)

    ledger.claim(fork, create=True, grown_from=named.hash)

    assert (ledger.forks_of(RUN), ledger.forks_of(OTHER)) == ([fork], [])
    ledger.remove(OTHER)
    with pytest.raises(UsageError, match=f"run {fork} grew from it"):
        ledger.remove(RUN)
    ledger.remove(fork)
    ledger.remove(RUN)
    assert list(ledger.runs()) == []


def test_the_first_entry_of_a_fork_cannot_be_erased(ledger: TransferLedger) -> None:
    filled(ledger)
    grown(ledger, count=3)

    with pytest.raises(UsageError, match=f"entry 0 of run {OTHER} stays"):
        ledger.erase(OTHER, [1, 0])
    none = verify_ledger(ledger).erased
    ledger.erase(OTHER, [1, 2])
    ledger.erase(RUN, [0, 1])

    report = verify_ledger(ledger)
    assert (none, report.ok, report.erased) == (0, True, 4)


def test_salts_come_from_where_the_ledger_was_told(tmp_path: Path) -> None:
    def salts(count: int) -> bytes:
        return b"s" * count

    heads = []
    with SqliteLedger(tmp_path / "l.db", salts=salts) as in_file:
        for ledger in (MemoryLedger(salts=salts), in_file):
            heads.append(filled(ledger))

    assert heads[0] == heads[1]
