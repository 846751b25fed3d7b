"""What every book of sessions promises, in a file and in memory: limits, refusals and its law."""

from __future__ import annotations

import functools
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tallystick.core.errors import (
    ContextVariableRefused,
    InvalidLimit,
    InvalidName,
    InvalidSessionState,
    MaxExtensionsReached,
    MaxSnapshotsReached,
    RecursionDepthExceeded,
    SessionBusy,
    SessionExpired,
    SessionNotFound,
    SnapshotExists,
    SnapshotNotFound,
    TallystickError,
)
from tallystick.core.records import AttachmentRef
from tallystick.sessions.book import SessionBook
from tallystick.sessions.rows import NO_END_MS, REFERENCE, Left, Period, RunOfSession, SessionRow
from tallystick.stores import open_stores

MINUTES = 60_000
BEGAN = 1_800_000_000_000
UNKNOWN = "01M7H9059YPYTCBKVW1YQJBKX4"


class Clock:
    """Stands still until it is told to go."""

    def __init__(self) -> None:
        self.now = BEGAN

    def __call__(self) -> int:
        return self.now

    def go(self, ms: int) -> None:
        self.now += ms


# Where nothing waits for a disk, if there is such a place: what is tested here is not the disk.
QUICK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@pytest.fixture
def clock() -> Clock:
    return Clock()


BookMaker = Callable[[Path, Clock], SessionBook]
BOOKS: dict[str, BookMaker] = {
    "file": lambda folder, clock: (
        open_stores(folder / "data" / "ledger.db", clock=clock).sessions.book
    ),
    "memory": lambda folder, clock: open_stores("memory:", clock=clock).sessions.book,
}


@pytest.fixture(params=sorted(BOOKS))
def book(request: pytest.FixtureRequest, clock: Clock) -> Iterator[SessionBook]:
    with tempfile.TemporaryDirectory(dir=QUICK) as folder:
        yield BOOKS[request.param](Path(folder), clock)


def image(number: int) -> AttachmentRef:
    return AttachmentRef(id=f"{number:064x}", media_type="application/x", byte_len=number)


# -- time --------------------------------------------------------------------------------------


def test_a_new_session_has_no_end(book: SessionBook, clock: Clock) -> None:
    made = book.create()
    clock.go(1_000_000 * MINUTES)

    assert book.is_valid(made.id)
    assert book.cleanup_expired() == []
    assert (made.expires_at, made.has_end, made.period) == (NO_END_MS, False, None)
    assert not book.get(made.id).is_ending(clock.now)
    with pytest.raises(InvalidSessionState, match="it has no end"):
        book.extend(made.id)


def test_a_session_lasts_as_long_as_it_is_told_and_is_extended_by_as_much(
    book: SessionBook, clock: Clock
) -> None:
    session = book.create(period=Period(lifetime_ms=100 * MINUTES)).id

    ends = [book.extend(session).expires_at for _ in range(5)]

    assert ends == [BEGAN + number * 100 * MINUTES for number in range(2, 7)]
    clock.go(601 * MINUTES)
    assert book.get(session).state == "expired"
    assert book.reopen(session).expires_at == clock.now + 100 * MINUTES


@pytest.mark.parametrize("lifetime_ms", [0, 999, -1, 1.5, True, 1 << 63, "1h"])
def test_a_period_that_makes_no_sense_is_refused_and_nothing_is_made(
    book: SessionBook, lifetime_ms: Any
) -> None:
    with pytest.raises(InvalidLimit, match="expires"):
        book.create(period=Period(lifetime_ms=lifetime_ms))
    session = book.create(period=REFERENCE)
    with pytest.raises(InvalidLimit, match="expires"):
        book.set_period(session.id, Period(lifetime_ms=lifetime_ms))
    assert book.list() == [session]


def test_a_period_is_set_and_taken_away_later(book: SessionBook, clock: Clock) -> None:
    session = book.create(period=REFERENCE).id
    book.extend(session)
    clock.go(61 * MINUTES)

    assert book.set_period(session, None).state == "ready"
    assert not book.get(session).has_end
    set_again = book.set_period(session, Period(lifetime_ms=MINUTES, extensions_max=0))
    assert (set_again.expires_at, set_again.extension_count) == (clock.now + MINUTES, 0)
    with pytest.raises(MaxExtensionsReached, match="0 times"):
        book.extend(session)
    book.update_state(session, "terminated")
    with pytest.raises(InvalidSessionState, match="terminated"):
        book.set_period(session, None)
    named = book.open_named("crew", seed=0, clock_ns=0).session
    with pytest.raises(InvalidSessionState, match="the name crew, and no end"):
        book.set_period(named, REFERENCE)


def test_the_last_tenth_of_a_period_is_its_ending(book: SessionBook, clock: Clock) -> None:
    session = book.create(period=Period(lifetime_ms=100 * MINUTES)).id

    def ending() -> bool:
        return book.get(session).is_ending(clock.now)

    assert not ending()
    clock.go(90 * MINUTES - 1)
    assert not ending()
    clock.go(1)
    assert ending()
    book.update_state(session, "paused")
    assert not ending()
    book.reopen(session)
    clock.go(10 * MINUTES)
    assert ending()
    clock.go(1)
    assert not ending()


def test_the_time_of_a_paused_session_stands_still(book: SessionBook, clock: Clock) -> None:
    session = book.create(period=REFERENCE).id
    clock.go(20 * MINUTES)
    book.update_state(session, "paused")
    clock.go(500 * MINUTES)

    paused = book.get(session)
    assert (paused.state, paused.expires_at - clock.now) == ("paused", 10 * MINUTES)
    assert book.cleanup_expired() == []
    attempts: tuple[Callable[[], object], ...] = (
        lambda: book.validate(session),
        lambda: book.extend(session),
        lambda: book.set_variable(session, "a", "b"),
        lambda: book.kept.begin_run(session, "R1"),
        lambda: book.kept.record_snapshot(session, "a"),
        lambda: book.kept.start_from(session, Left()),
    )
    for attempt in attempts:
        with pytest.raises(InvalidSessionState, match=f"tally session resume {session}"):
            attempt()
    assert not book.is_valid(session)

    resumed = book.reopen(session)
    assert (resumed.state, resumed.expires_at - clock.now) == ("ready", 10 * MINUTES)
    clock.go(10 * MINUTES + 1)
    assert book.get(session).state == "expired"


def test_a_session_without_an_end_is_paused_and_goes_on(book: SessionBook, clock: Clock) -> None:
    session = book.create().id
    book.update_state(session, "paused")
    book.update_state(session, "paused")
    clock.go(MINUTES)

    assert book.get(session).expires_at == NO_END_MS
    assert book.reopen(session).expires_at == NO_END_MS


def test_a_period_that_is_set_while_paused_begins_when_it_goes_on(
    book: SessionBook, clock: Clock
) -> None:
    session = book.create(period=REFERENCE).id
    book.update_state(session, "paused")
    clock.go(100 * MINUTES)
    book.set_period(session, Period(lifetime_ms=5 * MINUTES))
    clock.go(100 * MINUTES)

    assert book.get(session).state == "paused"
    assert book.reopen(session).expires_at == clock.now + 5 * MINUTES


def test_what_a_session_keeps_is_counted_once_in_its_bytes(book: SessionBook) -> None:
    session = book.create().id
    book.kept.start_from(session, Left(image=image(1_000), values=image(30)))
    book.kept.record_snapshot(session, "a")
    book.kept.start_from(session, Left(image=image(200)))
    book.kept.prepare(session, Left(image=image(5), run="R1"))

    assert book.get(session).bytes == 1_235
    book.kept.clear(session)
    assert (book.get(session).bytes, book.get(session).snapshot_count) == (0, 0)


def test_a_session_was_used_last_when_its_last_run_began(book: SessionBook, clock: Clock) -> None:
    session = book.create().id
    clock.go(MINUTES)
    assert book.get(session).used_at == BEGAN
    book.kept.begin_run(session, "R1")
    clock.go(MINUTES)

    assert book.get(session).used_at == BEGAN + MINUTES


def test_the_preset_of_the_reference_is_half_an_hour(book: SessionBook) -> None:
    made = book.create(period=REFERENCE)

    assert (made.state, made.created_at, made.expires_at) == (
        "initializing", BEGAN, BEGAN + 30 * MINUTES,
    )  # fmt: skip
    assert (made.extension_count, made.recursion_depth, made.snapshot_count) == (0, 0, 0)
    assert made.vm_instance_id is None
    assert made.current_snapshot_id is None
    assert made.context_variables == {}
    assert book.get(made.id) == made


def test_exactly_at_its_end_a_session_can_be_used(book: SessionBook, clock: Clock) -> None:
    session = book.create(period=REFERENCE).id
    clock.go(30 * MINUTES)

    assert book.is_valid(session)
    clock.go(1)
    assert not book.is_valid(session)
    with pytest.raises(SessionExpired, match=f"tally session resume {session}"):
        book.validate(session)


def test_an_extension_counts_from_the_old_end_and_there_are_three(
    book: SessionBook, clock: Clock
) -> None:
    session = book.create(period=REFERENCE).id
    clock.go(10 * MINUTES)

    ends = [book.extend(session).expires_at for _ in range(3)]

    assert ends == [BEGAN + minutes * MINUTES for minutes in (60, 90, 120)]
    with pytest.raises(MaxExtensionsReached, match="3 times"):
        book.extend(session)


def test_that_there_are_no_more_extensions_is_said_before_that_it_expired(
    book: SessionBook, clock: Clock
) -> None:
    session, other = book.create(period=REFERENCE).id, book.create(period=REFERENCE).id
    for _ in range(3):
        book.extend(session)
    clock.go(1_000 * MINUTES)

    with pytest.raises(MaxExtensionsReached):
        book.extend(session)
    with pytest.raises(SessionExpired):
        book.extend(other)


def test_reopening_gives_a_new_period_and_keeps_what_there_is(
    book: SessionBook, clock: Clock
) -> None:
    session = book.create(period=REFERENCE).id
    book.set_variable(session, "a", "1")
    book.kept.record_snapshot(session, "s")
    book.extend(session)
    clock.go(61 * MINUTES)

    reopened = book.reopen(session)

    assert (reopened.state, reopened.extension_count) == ("ready", 0)
    assert reopened.expires_at == clock.now + 30 * MINUTES
    assert reopened.context_variables == {"a": "1"}
    assert reopened.snapshot_count == 1
    assert book.reopen(session) == reopened


def test_cleaning_up_lets_go_of_what_lives_and_of_nothing_else(
    book: SessionBook, clock: Clock
) -> None:
    session, young = book.create(period=REFERENCE).id, ""
    book.assign_vm(session, "vm-1")
    book.set_variable(session, "a", "1")
    clock.go(30 * MINUTES + 1)
    young = book.create(period=REFERENCE).id

    freed = book.cleanup_expired()

    assert [(each.id, each.vm_instance_id) for each in freed] == [(session, "vm-1")]
    assert book.get(session).vm_instance_id is None
    assert book.get(session).context_variables == {"a": "1"}
    assert book.get(young).state == "initializing"
    assert book.cleanup_expired() == []
    assert (book.stats().total_created, book.stats().active, book.stats().with_vm) == (2, 1, 0)


# -- states ------------------------------------------------------------------------------------


def test_not_found_comes_before_expired_and_that_before_terminated(
    book: SessionBook, clock: Clock
) -> None:
    session = book.create(period=REFERENCE).id
    with pytest.raises(SessionNotFound):
        book.validate(UNKNOWN)
    book.update_state(session, "terminated")
    with pytest.raises(InvalidSessionState, match="terminated"):
        book.validate(session)
    expired = book.create(period=REFERENCE).id
    clock.go(31 * MINUTES)
    for each in (expired, session):
        with pytest.raises(SessionExpired):
            book.validate(each)
    with pytest.raises(InvalidSessionState, match="terminated"):
        book.reopen(session)
    assert book.get(session).state == "terminated"


@pytest.mark.parametrize("named", ["\ud800", "", "\0", 5, None, b"x", ["x"]])
def test_what_is_no_id_is_not_found(book: SessionBook, named: str) -> None:
    for attempt in (book.get, book.validate, book.extend, book.remove, book.variables):
        with pytest.raises(SessionNotFound) as raised:
            attempt(named)
        assert str(raised.value).isprintable()
    assert not book.is_valid(named)


def test_a_terminated_session_comes_to_life_by_nothing(book: SessionBook, clock: Clock) -> None:
    session = book.create(period=REFERENCE).id
    book.update_state(session, "terminated")

    attempts: tuple[Callable[[], object], ...] = (
        lambda: book.update_state(session, "ready"),
        lambda: book.reopen(session),
        lambda: book.extend(session),
        lambda: book.set_variable(session, "a", "b"),
        lambda: book.kept.record_snapshot(session, "a"),
    )
    for attempt in attempts:
        with pytest.raises(InvalidSessionState):
            attempt()


def test_nobody_says_that_a_session_has_expired(book: SessionBook) -> None:
    with pytest.raises(InvalidSessionState, match="when its time is over"):
        book.update_state(book.create(period=REFERENCE).id, "expired")


def test_a_removed_session_is_not_found_and_still_counted(book: SessionBook) -> None:
    session = book.create(period=REFERENCE).id
    book.set_variable(session, "a", "1")
    book.kept.record_snapshot(session, "s")
    book.kept.begin_run(session, "R1")

    book.remove(session)

    attempts: tuple[Callable[[], object], ...] = (
        lambda: book.get(session),
        lambda: book.validate(session),
        lambda: book.remove(session),
        lambda: book.extend(session),
        lambda: book.reopen(session),
        lambda: book.variables(session),
        lambda: book.kept.snapshots(session),
        lambda: book.kept.runs(session),
        lambda: book.kept.leave(session, Left(run="R1")),
    )
    for attempt in attempts:
        with pytest.raises(SessionNotFound):
            attempt()
    assert not book.is_valid(session)
    assert book.kept.needed_attachments(session) == frozenset()
    assert book.stats().total_created == 1


def test_depth_stops_at_ten_and_never_falls_below_none(book: SessionBook) -> None:
    session = book.create(period=REFERENCE).id

    assert [book.increase_depth(session) for _ in range(10)] == list(range(1, 11))
    with pytest.raises(RecursionDepthExceeded):
        book.increase_depth(session)
    assert book.get(session).budget_status.recursion_depth == 10
    assert [book.decrease_depth(session) for _ in range(11)][-2:] == [0, 0]


def test_a_budget_is_nearly_exhausted_beyond_eighty_per_cent(book: SessionBook) -> None:
    session = book.create(token_budget=1_000).id
    book.kept.begin_run(session, "R1")

    book.kept.end_run(session, "R1", tokens=800, wall_ms=5, ended=True)
    assert not book.get(session).budget_status.near_exhaustion
    book.kept.end_run(session, "R1", tokens=801, wall_ms=5, ended=True)
    status = book.get(session).budget_status
    assert status.near_exhaustion
    assert (status.tokens_used, status.token_budget, status.time_used_ms) == (801, 1_000, 5)
    book.update_budget(session, token_budget=None, time_budget_ms=7)
    assert book.get(session).budget_status.token_budget is None
    for bad in (-1, 1.5, True, "9", 1 << 70):
        with pytest.raises(InvalidLimit):
            book.create(token_budget=bad)  # type: ignore[arg-type]


# -- variables ---------------------------------------------------------------------------------


def test_variables_are_set_listed_and_taken_away(book: SessionBook) -> None:
    session = book.create(period=REFERENCE).id

    book.set_variable(session, "b", "two")
    book.set_variable(session, "a", "one")
    book.set_variable(session, "a", "uno")

    assert dict(book.variables(session)) == {"a": "uno", "b": "two"}
    with pytest.raises(ContextVariableRefused):
        book.set_variables(session, {"c": "kept with the other", "": "refused"})
    assert (book.variable(session, "a"), book.variable(session, "c")) == ("uno", None)
    assert book.delete_variable(session, "a")
    assert not book.delete_variable(session, "a")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("", "x"), ("a\nb", "x"), ("x" * 257, "x"), ("a\0", "x"), ("a", "\0"), ("a", "\udc80")],
        *[("\ud800", "x"), (5, "x"), (None, "x"), (b"a", "x"), ("a", 5), ("a", None), ("a", b"x")],
    ],
)
def test_a_variable_that_is_no_text_or_has_no_name_is_refused(
    book: SessionBook, key: str, value: str
) -> None:
    session = book.create(period=REFERENCE).id

    with pytest.raises(ContextVariableRefused) as raised:
        book.set_variable(session, key, value)
    assert str(raised.value).isprintable()
    assert book.variables(session) == {}
    assert not book.delete_variable(session, key)


def test_there_are_a_hundred_variables_and_64_kib_of_them_at_most(book: SessionBook) -> None:
    session, other = book.create(period=REFERENCE).id, book.create(period=REFERENCE).id
    book.set_variables(session, {f"k{number}": "" for number in range(100)})
    with pytest.raises(ContextVariableRefused, match="at most 100"):
        book.set_variable(session, "one more", "")
    book.set_variable(session, "k5", "another")

    book.set_variable(other, "k", "ü" * 32_767)
    with pytest.raises(ContextVariableRefused, match="65,536"):
        book.set_variable(other, "m", "x")


# -- snapshots ---------------------------------------------------------------------------------


def test_ten_snapshots_and_deleting_one_makes_room(book: SessionBook) -> None:
    session = book.create(period=REFERENCE).id
    for number in range(10):
        book.kept.record_snapshot(session, f"s{number}")

    with pytest.raises(MaxSnapshotsReached):
        book.kept.record_snapshot(session, "s10")
    book.kept.delete_snapshot(session, "s3")
    assert book.get(session).snapshot_count == 9
    book.kept.record_snapshot(session, "s10")
    assert book.get(session).snapshot_count == 10


def test_a_snapshot_is_found_by_name_and_by_name_and_id(book: SessionBook) -> None:
    session = book.create(period=REFERENCE).id
    taken = book.kept.record_snapshot(session, "a:b").snapshot

    assert (taken.name, taken.session_id) == ("a:b", session)
    assert book.get(session).current_snapshot_id == taken.id
    assert book.kept.restore_snapshot(session, "a:b").snapshot == taken
    assert book.kept.restore_snapshot(session, str(taken)).snapshot == taken
    for unknown in ("a", taken.id, f"x:{taken.id}", ""):
        with pytest.raises(SnapshotNotFound):
            book.kept.restore_snapshot(session, unknown)
    with pytest.raises(SnapshotExists):
        book.kept.record_snapshot(session, "a:b")
    book.kept.delete_snapshot(session, str(taken))
    assert book.get(session).current_snapshot_id is None


@pytest.mark.parametrize("name", ["", "a/b", "a\\b", "..", "a\0b", "x" * 257])
def test_a_name_that_could_be_a_path_is_refused(book: SessionBook, name: str) -> None:
    session = book.create(period=REFERENCE).id

    with pytest.raises(InvalidName):
        book.kept.record_snapshot(session, name)
    assert book.get(session).snapshot_count == 0


def test_snapshots_of_an_expired_session_are_listed_and_deleted_but_not_made(
    book: SessionBook, clock: Clock
) -> None:
    session = book.create(period=REFERENCE).id
    book.kept.record_snapshot(session, "a")
    clock.go(31 * MINUTES)

    assert [each.snapshot.name for each in book.kept.snapshots(session)] == ["a"]
    attempts: tuple[Callable[[], object], ...] = (
        lambda: book.kept.record_snapshot(session, "b"),
        lambda: book.kept.restore_snapshot(session, "a"),
    )
    for attempt in attempts:
        with pytest.raises(SessionExpired):
            attempt()
    book.kept.delete_snapshot(session, "a")
    assert book.kept.snapshots(session) == []


def test_a_snapshot_of_another_session_is_not_found(book: SessionBook) -> None:
    mine, other = book.create(period=REFERENCE).id, book.create(period=REFERENCE).id
    taken = book.kept.record_snapshot(other, "a")

    with pytest.raises(SnapshotNotFound):
        book.kept.restore_snapshot(mine, str(taken.snapshot))


# -- what runs leave ---------------------------------------------------------------------------


def test_a_run_leaves_its_interpreter_and_a_snapshot_brings_an_older_one_back(
    book: SessionBook,
) -> None:
    session = book.create(period=REFERENCE).id
    book.kept.begin_run(session, "R1")
    assert book.get(session).state == "executing"
    assert book.kept.leave(session, Left(image=image(1), run="R1"))
    book.kept.end_run(session, "R1", tokens=1, wall_ms=2, ended=True)
    book.kept.record_snapshot(session, "one")
    book.kept.begin_run(session, "R2")
    assert book.kept.leave(session, Left(image=image(2), run="R2"))

    assert book.kept.needed_attachments(session) == {image(1).id, image(2).id}
    book.kept.restore_snapshot(session, "one")
    assert book.get(session).left == Left(image=image(1), run="R1")
    assert book.kept.needed_attachments(session) == {image(1).id}
    assert [each.run for each in book.kept.runs(session)] == ["R1", "R2"]


def test_a_run_that_was_overtaken_leaves_nothing(book: SessionBook) -> None:
    session = book.create(period=REFERENCE).id
    book.kept.begin_run(session, "R1")  # and its process dies
    book.kept.begin_run(session, "R2")
    assert book.kept.leave(session, Left(image=image(2), run="R2"))

    book.kept.begin_run(session, "R1")  # it is gone on with

    assert not book.kept.leave(session, Left(image=image(1), run="R1"))
    assert book.get(session).left.image == image(2)
    assert not book.kept.leave(session, Left(image=image(3), run="never begun"))


def test_a_run_that_is_gone_on_with_replaces_what_it_left_itself(book: SessionBook) -> None:
    session = book.create(period=REFERENCE).id
    book.kept.begin_run(session, "R1")
    assert book.kept.leave(session, Left(image=image(1), run="R1"))

    book.kept.begin_run(session, "R1")

    assert book.kept.leave(session, Left(image=image(2), run="R1"))
    assert book.get(session).left.image == image(2)


def test_a_run_that_is_gone_on_with_has_not_ended(book: SessionBook) -> None:
    session = book.create(period=REFERENCE).id
    book.kept.begin_run(session, "R1")
    book.kept.end_run(session, "R1", tokens=7, wall_ms=8, ended=True)

    book.kept.begin_run(session, "R1")

    (run,) = book.kept.runs(session)
    assert (run.ended, run.tokens, run.wall_ms) == (False, 7, 8)


# -- names -------------------------------------------------------------------------------------


def test_a_session_with_a_name_is_made_once_and_has_no_end(book: SessionBook, clock: Clock) -> None:
    made = book.open_named("work", seed=3, clock_ns=7)
    clock.go(10**12)

    assert book.open_named("work", seed=4, clock_ns=8) == made == book.find_named("work")
    info = book.validate(made.session)
    assert (info.name, info.state, info.left) == ("work", "ready", Left())
    assert book.names() == {made.session: "work"}
    assert book.get(book.create(period=REFERENCE).id).name is None
    assert book.stats().total_created == 2
    with pytest.raises(InvalidSessionState, match="it has no end"):
        book.extend(made.session)
    assert book.find_named("Work") is book.find_named("\ud800") is None


def test_a_name_goes_with_its_session(book: SessionBook) -> None:
    made = book.open_named("work", seed=0, clock_ns=0)
    book.remove(made.session)

    assert (book.find_named("work"), book.names()) == (None, {})
    assert book.open_named("work", seed=1, clock_ns=0).session != made.session


def test_a_session_is_made_with_an_id_and_an_interpreter(book: SessionBook) -> None:
    made = book.open_named("work", seed=2**80, clock_ns=0, session=UNKNOWN, left=Left(names="x"))

    assert (made.session, made.seed) == (UNKNOWN, 2**80)
    assert book.get(UNKNOWN).left == Left(names="x")


# -- who works in a session ----------------------------------------------------------------------


def test_one_client_holds_a_session_and_others_are_refused(book: SessionBook) -> None:
    session, other = book.create(period=REFERENCE).id, book.create(period=REFERENCE).id

    with book.hold(session), book.hold(other):
        assert book.is_held(session)
        with pytest.raises(SessionBusy, match=f"session {session} is in use"), book.hold(session):
            pass
        assert book.is_held(session)
    assert not book.is_held(session)
    with book.hold(session):
        pass


def test_a_session_that_is_removed_meanwhile_is_still_held(book: SessionBook) -> None:
    session = book.create(period=REFERENCE).id
    with book.hold(session):
        book.remove(session)
        assert book.is_held(session)
    assert not book.is_held(session)


def test_a_client_that_waits_gets_the_session_when_it_is_free(book: SessionBook) -> None:
    session = book.create(period=REFERENCE).id
    begun, over = threading.Event(), threading.Event()

    def other() -> None:
        with book.hold(session):
            begun.set()
            over.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    assert begun.wait(60)
    timer = threading.Timer(0.1, over.set)
    timer.start()
    with book.hold(session, wait_seconds=60):
        assert over.is_set()
    thread.join()


@pytest.mark.parametrize("named", ["", "../evil", "x" * 26, "\ud800"])
def test_what_is_no_id_cannot_be_held(book: SessionBook, named: str) -> None:
    with pytest.raises(SessionNotFound), book.hold(named):
        pass
    assert not book.is_held(named)


# -- transactions ------------------------------------------------------------------------------


def test_a_transaction_that_fails_changes_nothing(book: SessionBook) -> None:
    session = book.create(period=REFERENCE).id
    book.set_variable(session, "a", "1")
    before = book.get(session)

    def fail() -> None:
        with book._store.writing() as rows:
            rows.put(session, state="paused", generation=7)
            rows.set_variables(session, {"a": "2", "b": "3"})
            rows.put_run(session, RunOfSession(run="R1", begun_at=0, generation=0))
            rows.add(SessionRow(id=UNKNOWN, backend="", state="ready", created_at=0, expires_at=0))
            rows.remove(session)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert book.get(session) == before
    assert book.kept.runs(session) == []
    assert book.stats().total_created == 1


def test_what_was_read_does_not_change(book: SessionBook) -> None:
    session = book.create(period=REFERENCE).id
    book.set_variable(session, "a", "1")
    info, listed = book.get(session), book.list()
    book.set_variable(session, "a", "2")
    book.update_state(session, "paused")

    assert (info.context_variables, info.state) == ({"a": "1"}, "initializing")
    assert listed == [info]


def test_threads_that_write_together_lose_nothing(book: SessionBook) -> None:
    session = book.create(period=REFERENCE).id

    def write(name: str) -> None:
        for number in range(10):
            book.set_variable(session, f"{name}{number}", "x")

    threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert len(book.variables(session)) == 20


def test_nothing_is_damaged_and_what_is_deleted_can_be_taken_out(book: SessionBook) -> None:
    session = book.create(period=REFERENCE).id
    book.set_variables(session, {"a": "secret", "b": "kept"})

    assert book.forget_variables(lambda key, value: value == "secret") == 1
    assert book.variables(session) == {"b": "kept"}
    assert book.scrub()
    assert list(book.damage()) == []


# -- the law -----------------------------------------------------------------------------------


class Model(RuleBasedStateMachine):
    """One session and the book, told the same things as a few plain variables."""

    kind = "file"

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory(dir=QUICK)
        self.clock = Clock()
        self.book = BOOKS[self.kind](Path(self.folder.name), self.clock)
        self.session = self.book.create(period=REFERENCE).id
        self.expires_at = BEGAN + 30 * MINUTES
        self.period: Period | None = REFERENCE
        self.extensions = 0
        self.terminated = self.removed = self.paused = False
        self.variables: dict[str, str] = {}
        self.snapshots: dict[str, int | None] = {}
        self.current: int | None = None
        self.runs: list[str] = []
        self.replaced: dict[str, int] = {}
        self.generation = 0

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def _refusal(self) -> type[TallystickError] | None:
        if self.removed:
            return SessionNotFound
        if self.clock.now > self.expires_at:
            return SessionExpired
        return InvalidSessionState if self.terminated or self.paused else None

    def _told(self, act: object, *, refused: type[TallystickError] | None) -> bool:
        """Do it in the book; says whether it was done, as was to be expected."""
        assert callable(act)
        if refused is None:
            act()
            return True
        with pytest.raises(refused):
            act()
        return False

    @rule(minutes=st.integers(0, 20))
    def wait(self, minutes: int) -> None:
        self.clock.go(minutes * MINUTES)
        if self.paused:
            self.expires_at += minutes * MINUTES

    @rule()
    def pause(self) -> None:
        refused = None if self.paused else self._refusal()
        act = functools.partial(self.book.update_state, self.session, "paused")
        if self._told(act, refused=InvalidSessionState if refused is SessionExpired else refused):
            self.paused = True

    @rule(minutes=st.none() | st.integers(1, 60))
    def set_period(self, minutes: int | None) -> None:
        refused = self._refusal() if self.removed or self.terminated else None
        if self.terminated and not self.removed:
            refused = InvalidSessionState
        period = None if minutes is None else Period(lifetime_ms=minutes * MINUTES)
        act = functools.partial(self.book.set_period, self.session, period)
        if self._told(act, refused=refused):
            self.period, self.extensions = period, 0
            self.expires_at = NO_END_MS if period is None else self.clock.now + period.lifetime_ms

    @rule()
    def extend(self) -> None:
        refused = self._refusal()
        if self.extensions == 3 and self.period == REFERENCE and not self.removed:
            refused = MaxExtensionsReached
        elif refused is None and self.period is None:
            refused = InvalidSessionState
        if self._told(lambda: self.book.extend(self.session), refused=refused):
            assert self.period is not None
            self.extensions += 1
            self.expires_at += self.period.lifetime_ms

    @rule()
    def reopen(self) -> None:
        refused = self._refusal()
        expected = None if refused is SessionExpired or self.paused else refused
        if self.terminated and not self.removed:
            expected = InvalidSessionState
        if self._told(lambda: self.book.reopen(self.session), refused=expected):
            if refused is SessionExpired:
                assert self.period is not None
                self.extensions = 0
                self.expires_at = self.clock.now + self.period.lifetime_ms
            self.paused = False

    @rule(key=st.sampled_from("abc"), value=st.text("xyz", max_size=3))
    def set_variable(self, key: str, value: str) -> None:
        act = functools.partial(self.book.set_variable, self.session, key, value)
        if self._told(act, refused=self._refusal()):
            self.variables[key] = value

    @rule(key=st.sampled_from("abc"))
    def delete_variable(self, key: str) -> None:
        act = functools.partial(self.book.delete_variable, self.session, key)
        if self._told(act, refused=self._refusal()):
            self.variables.pop(key, None)

    @rule(number=st.integers(0, 12))
    def snapshot(self, number: int) -> None:
        name = f"s{number}"
        refused = self._refusal()
        if refused is None and name in self.snapshots:
            refused = SnapshotExists
        elif refused is None and len(self.snapshots) == 10:
            refused = MaxSnapshotsReached
        act = functools.partial(self.book.kept.record_snapshot, self.session, name)
        if self._told(act, refused=refused):
            self.snapshots[name] = self.current

    @rule(number=st.integers(0, 12))
    def restore(self, number: int) -> None:
        name = f"s{number}"
        refused = self._refusal() or (None if name in self.snapshots else SnapshotNotFound)
        act = functools.partial(self.book.kept.restore_snapshot, self.session, name)
        if self._told(act, refused=refused):
            self.current = self.snapshots[name]
            self.generation += 1

    @rule(number=st.integers(0, 12))
    def delete_snapshot(self, number: int) -> None:
        name = f"s{number}"
        refused: type[TallystickError] | None = SnapshotNotFound
        if self.removed:
            refused = SessionNotFound
        elif name in self.snapshots:
            refused = None
        act = functools.partial(self.book.kept.delete_snapshot, self.session, name)
        if self._told(act, refused=refused):
            del self.snapshots[name]

    @rule(number=st.integers(1, 3))
    def begin_run(self, number: int) -> None:
        run = f"R{number}"
        act = functools.partial(self.book.kept.begin_run, self.session, run)
        if self._told(act, refused=self._refusal()) and run not in self.runs:
            self.runs.append(run)
            self.replaced[run] = self.generation

    @rule(number=st.integers(1, 3))
    def leave(self, number: int) -> None:
        run, new = f"R{number}", len(self.runs) * 10 + self.generation + 1
        left = Left(image=image(new), run=run)
        if self.removed:
            self._told(lambda: self.book.kept.leave(self.session, left), refused=SessionNotFound)
            return
        taken = self.replaced.get(run) == self.generation and not self.terminated
        assert self.book.kept.leave(self.session, left) is taken
        if taken:
            self.current = new
            self.generation += 1
            self.replaced[run] = self.generation

    @precondition(lambda self: len(self.runs) > 2)
    @rule(terminate=st.booleans())
    def end(self, terminate: bool) -> None:
        if self.removed:
            return
        if terminate:
            self.book.update_state(self.session, "terminated")
            self.terminated, self.paused = True, False
        else:
            self.book.remove(self.session)
            self.removed = True

    @rule()
    def clean_up(self) -> None:
        self.book.cleanup_expired()

    @invariant()
    def the_book_says_what_was_told(self) -> None:
        if not hasattr(self, "book"):
            return
        refused = self._refusal()
        assert self.book.is_valid(self.session) is (refused is None)
        if self.removed:
            assert self.book.list() == []
            return
        info = self.book.get(self.session)
        assert (info.state == "terminated") is self.terminated
        assert (info.state == "paused") is self.paused
        if not self.terminated:
            assert (info.state == "expired") is (refused is SessionExpired)
        assert (info.expires_at, info.extension_count) == (self.expires_at, self.extensions)
        assert dict(info.context_variables) == self.variables
        assert info.snapshot_count == len(self.snapshots) <= 10
        now = None if info.left.image is None else info.left.image.byte_len
        assert now == self.current
        kept = {self.current, *self.snapshots.values()} - {None}
        assert self.book.kept.needed_attachments(self.session) == {
            image(each).id for each in kept if each
        }
        assert [each.run for each in self.book.kept.runs(self.session)] == self.runs


class InMemory(Model):
    """The same, of a book in memory."""

    kind = "memory"


for each in (Model, InMemory):
    each.TestCase.settings = settings(
        max_examples=settings().max_examples // 3, stateful_step_count=25
    )
test_the_book_and_a_few_variables_agree = Model.TestCase
test_a_book_in_memory_and_a_few_variables_agree = InMemory.TestCase
