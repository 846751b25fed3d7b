"""The states of sessions, their ends, and what they keep on the disk, from Python."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tallystick
from tallystick.core.errors import (
    InvalidLimit,
    InvalidSessionState,
    SessionBusy,
    SessionExpired,
    SessionNotFound,
    SessionsFull,
)
from tallystick.ledger import MemoryLedger
from tallystick.sessions import Period, Sessions
from tallystick.sessions.rows import NO_END_MS, REFERENCE, SessionRow
from tallystick.sessions.surroundings import enter_session
from tallystick.stores import open_stores

HOUR = 3_600_000


class Clock:
    now = 1_790_000_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(clock: Clock) -> Iterator[Sessions]:
    with open_stores("memory:", clock=clock) as stores:
        yield stores.sessions


def fill(sessions: Sessions, session: str, size: int) -> None:
    """Have a session keep an interpreter of so many bytes."""
    with sessions.working(session):
        sessions.put_interpreter(session, bytes([size % 251]) * size)  # type: ignore[arg-type]


# -- ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expires", "period"),
    [
        (None, None),
        ("never", None),
        ("reference", REFERENCE),
        ("90s", Period(lifetime_ms=90_000)),
        ("12h", Period(lifetime_ms=12 * HOUR)),
        (datetime.timedelta(days=2), Period(lifetime_ms=48 * HOUR)),
    ],
)
def test_a_session_expires_when_its_maker_says_so(
    sessions: Sessions, clock: Clock, expires: Any, period: Period | None
) -> None:
    made = sessions.new(expires=expires)

    assert made.period == period
    assert made.expires_at == (NO_END_MS if period is None else clock.now + period.lifetime_ms)


@pytest.mark.parametrize("expires", ["", "0s", "soon", "1.5h", "-1h", "30", 30, True, "999ms"])
def test_an_end_that_makes_no_sense_is_refused_and_nothing_is_made(
    sessions: Sessions, expires: Any
) -> None:
    with pytest.raises(InvalidLimit, match="expires"):
        sessions.new(expires=expires)
    assert sessions.list() == []


def test_a_session_of_an_earlier_version_keeps_the_end_that_it_was_made_with(
    sessions: Sessions, clock: Clock
) -> None:
    old = "01M7H9059YPYTCBKVW1YQJBKX4"
    with sessions.book._store.writing() as rows:
        rows.add(
            SessionRow(
                id=old,
                backend="wasm",
                state="ready",
                created_at=clock.now,
                expires_at=clock.now + HOUR // 2,
            )
        )

    assert sessions.get(old).period == REFERENCE
    assert sessions.extend(old).expires_at == clock.now + HOUR
    clock.now += HOUR + 1
    assert sessions.get(old).state == "expired"
    assert sessions.resume(old).expires_at == clock.now + HOUR // 2
    assert sessions.set_expiry(old, None).expires_at == NO_END_MS


# -- states --------------------------------------------------------------------------------------


def test_nothing_runs_in_a_paused_session_until_it_is_resumed(
    sessions: Sessions, clock: Clock
) -> None:
    session = sessions.new(expires="1h", variables={"a": "1"}).id
    assert sessions.pause(session).state == "paused"
    assert sessions.pause(session).state == "paused"
    clock.now += 100 * HOUR

    with (
        pytest.raises(InvalidSessionState, match=f"tally session resume {session}"),
        enter_session(sessions, session, "01M7H9059YPYTCBKVW1YQJBKX5"),
    ):
        pass
    assert sessions.runs(session) == []
    for refused in (sessions.extend, lambda each: sessions.snapshot(each, "s")):
        with pytest.raises(InvalidSessionState, match="is paused"):
            refused(session)
    assert sessions.get(session).context_variables == {"a": "1"}

    resumed = sessions.resume(session)
    assert (resumed.state, resumed.expires_at) == ("ready", clock.now + HOUR)


def test_a_session_is_not_paused_while_a_run_is_in_it(sessions: Sessions) -> None:
    session = sessions.new().id
    with sessions.book.hold(session), pytest.raises(SessionBusy):
        sessions.pause(session)
    assert sessions.get(session).state == "ready"


def test_an_expired_or_terminated_session_cannot_be_paused(
    sessions: Sessions, clock: Clock
) -> None:
    expired, over = sessions.new(expires="1h").id, sessions.new().id
    sessions.terminate(over)
    clock.now += 2 * HOUR

    with pytest.raises(SessionExpired):
        sessions.pause(expired)
    with pytest.raises(InvalidSessionState, match="terminated"):
        sessions.pause(over)


def test_a_terminated_session_keeps_its_history_and_nothing_else(sessions: Sessions) -> None:
    session = sessions.new(variables={"a": "1"}).id
    fill(sessions, session, 100)
    sessions.snapshot(session, "before")
    sessions.book.kept.begin_run(session, "R1")
    sessions.book.kept.end_run(session, "R1", tokens=7, wall_ms=8, ended=True)
    assert sessions.disk_bytes() == 100

    over = sessions.terminate(session)

    assert (over.state, over.bytes, over.snapshot_count) == ("terminated", 0, 0)
    assert sessions.terminate(session) == over
    assert sessions.disk_bytes() == 0
    assert over.budget_status.tokens_used == 7
    assert [each.run for each in sessions.runs(session)] == ["R1"]
    attempts: tuple[Callable[[], object], ...] = (
        lambda: sessions.resume(session),
        lambda: sessions.set_expiry(session, None),
        lambda: sessions.snapshot(session, "s"),
        lambda: enter_session(sessions, session, "R2").__enter__(),
    )
    for attempt in attempts:
        with pytest.raises(InvalidSessionState, match="terminated"):
            attempt()
    sessions.remove(session)
    with pytest.raises(SessionNotFound):
        sessions.terminate(session)


def test_a_run_that_ends_after_its_session_was_terminated_leaves_nothing(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallystick.sessions.sessions._TEARDOWN_SECONDS", 0.01)
    session = sessions.new().id
    with enter_session(sessions, session, "01M7H9059YPYTCBKVW1YQJBKX5") as lease:
        fill_image: Any = b"x" * 50
        lease.prepare(fill_image, names="x")
        with pytest.raises(SessionBusy, match="terminated, but its run has not ended"):
            sessions.terminate(session)
        assert lease.gone
        lease.keep()
        assert lease.session_lost
    assert sessions.disk_bytes() == 0
    assert sessions.get(session).state == "terminated"


# -- the last tenth ------------------------------------------------------------------------------


def entered(sessions: Sessions, session: str) -> list[str]:
    said: list[str] = []
    with enter_session(sessions, session, "01M7H9059YPYTCBKVW1YQJBKX5", say=said.append):
        pass
    return said


def test_a_run_in_the_last_tenth_says_so_and_how_to_have_more_time(
    sessions: Sessions, clock: Clock
) -> None:
    session = sessions.new(expires="reference").id
    endless = sessions.new().id
    assert entered(sessions, session) == []
    clock.now += 1_620_000 - 1
    assert entered(sessions, session) == []
    clock.now += 1
    (line,) = entered(sessions, session)
    assert line == (
        f"session {session} expires in 3 min 0 s; what it keeps stays; for more time: tally "
        f"session extend {session}"
    )
    for _ in range(3):
        sessions.extend(session)
    clock.now += 3 * 1_800_000
    (line,) = entered(sessions, session)
    assert line.endswith(f"tally session resume {session} --expires never")
    assert entered(sessions, endless) == []


def test_a_run_that_comes_into_the_last_tenth_says_so_at_its_end(
    sessions: Sessions, clock: Clock
) -> None:
    said: list[str] = []
    session = sessions.new(expires="1h").id
    with enter_session(sessions, session, "01M7H9059YPYTCBKVW1YQJBKX5", say=said.append):
        assert said == []
        clock.now += 55 * 60_000
    assert [line.partition(";")[0] for line in said] == [f"session {session} expires in 5 min 0 s"]


# -- depth ---------------------------------------------------------------------------------------


def test_the_depth_is_that_of_the_deepest_live_child_and_not_their_number(
    sessions: Sessions,
) -> None:
    session, seen = sessions.new().id, []

    def depth() -> int:
        return sessions.get(session).recursion_depth

    with enter_session(sessions, session, "01M7H9059YPYTCBKVW1YQJBKX5") as lease:
        with lease.deeper(1), lease.deeper(1):
            seen.append(depth())
            with lease.deeper(2):
                seen.append(depth())
            seen.append(depth())
        seen.append(depth())
    assert seen == [1, 2, 1, 0]


def test_a_session_allows_ten_levels_whatever_a_run_asks_for(sessions: Sessions) -> None:
    session = sessions.new().id
    with enter_session(sessions, session, "01M7H9059YPYTCBKVW1YQJBKX5") as lease:
        assert lease.limits(tallystick.RunLimits(depth=50)).depth == 10
        assert lease.limits(tallystick.RunLimits(depth=3)).depth == 3


# -- the disk ------------------------------------------------------------------------------------


def test_what_sessions_share_is_counted_once(sessions: Sessions) -> None:
    one, two = sessions.new().id, sessions.new().id
    for each in (one, two):
        fill(sessions, each, 1_000)

    assert (sessions.get(one).bytes, sessions.get(two).bytes) == (1_000, 1_000)
    assert sessions.disk_bytes() == 1_000


def test_above_the_limit_no_session_and_no_snapshot_is_made(sessions: Sessions) -> None:
    session = sessions.new().id
    fill(sessions, session, 100)
    sessions.bytes_max = 100
    other = sessions.new().id
    sessions.bytes_max = 99

    with pytest.raises(SessionsFull, match=r"keep 100 bytes.*at most 99.*tally session prune"):
        sessions.new()
    with pytest.raises(SessionsFull):
        sessions.snapshot(session, "s")
    assert {each.id for each in sessions.list()} == {session, other}
    assert "keep 100 bytes" in entered(sessions, other)[0]


def test_those_that_were_used_longest_ago_are_offered(sessions: Sessions, clock: Clock) -> None:
    made = []
    for number in range(4):
        made.append(sessions.new().id)
        fill(sessions, made[-1], 100 + number)
        clock.now += HOUR
    named = sessions.book.open_named("crew", seed=0, clock_ns=0).session
    sessions.book.kept.begin_run(made[0], "R1")
    sessions.book.kept.end_run(made[0], "R1", tokens=0, wall_ms=0, ended=True)
    oldest = [*made[1:], made[0]]

    def offered(**how: Any) -> list[str]:
        return [each.id for each in sessions.oldest(**how)]

    assert offered() == []
    assert offered(keep=0) == oldest
    assert offered(keep=3) == oldest[:1]
    assert offered(keep=9) == []
    assert offered(unused_ms=2 * HOUR) == oldest[:1]
    assert offered(unused_ms=0) == oldest[:3]
    assert offered(bytes_max=406) == []
    assert offered(bytes_max=405) == oldest[:1]
    assert offered(bytes_max=305) == oldest[:1]
    assert offered(bytes_max=304) == oldest[:2]
    assert offered(bytes_max=0) == oldest
    assert named not in offered(keep=0, unused_ms=0, bytes_max=0)
    with enter_session(sessions, made[2], "01M7H9059YPYTCBKVW1YQJBKX5"):
        assert made[2] not in offered(keep=0)


def test_the_limit_comes_from_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    with tallystick.Agent(ledger=MemoryLedger(), config=None) as client:
        assert client.sessions.bytes_max == 2_048 * 2**20
    monkeypatch.setenv("TALLYSTICK_SESSION_MB", "3")
    with tallystick.Agent(ledger=MemoryLedger()) as client:
        assert client.sessions.bytes_max == 3 * 2**20
