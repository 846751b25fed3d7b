"""What time it is in a run: for its programs, for its model, and when it is replayed."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tallystick.client import Session
from tallystick.core.charge import RunLimits
from tallystick.core.clock import FIXED_CLOCK_NS
from tallystick.core.errors import UsageError
from tallystick.core.machine import prompt
from tallystick.core.records import RunStarted, decode_record, encode_record
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.model.scripted import ScriptedModel, ScriptedReply
from tallystick.runtime.run.clock import run_clock
from tallystick.runtime.runs.history import records_of
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import block

# The clock is the guest's.
NEEDS_GUEST = True

NOW = block("import datetime\nFINAL(datetime.datetime.now().isoformat())")
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC).replace(tzinfo=None)
DAY = datetime.timedelta(days=1)


def session_of(
    sandbox: WasmSandbox, replies: list[str], ledger: Any = None, **more: Any
) -> Session:
    model = ScriptedModel([ScriptedReply(text=each) for each in replies])
    return Session(model=model, ledger=ledger or MemoryLedger(), sandbox=sandbox, **more)


def start_of(session: Session, run: str) -> RunStarted:
    started = next(iter(records_of(session.ledger, run)))
    assert isinstance(started, RunStarted)
    return started


def told(started: RunStarted, *, direct: bool = False) -> str:
    messages = prompt.direct(started, ()) if direct else prompt.opening(started)
    assert "It is " not in messages[0].text, "the fixed part is the same at every time"
    return next(line for line in messages[-1].text.splitlines() if line.startswith("It is "))


def test_a_run_starts_at_the_present_and_replays_to_the_byte(sandbox: WasmSandbox) -> None:
    before = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    with session_of(sandbox, [NOW]) as session:
        result = session.run("what day is it?")

        seen = datetime.datetime.fromisoformat(str(result.answer))
        assert before - DAY < seen < before + DAY
        assert session.replay(result.run).held
        at = datetime.datetime.fromtimestamp(
            start_of(session, result.run).clock_ns / 1e9, datetime.UTC
        )
        assert told(start_of(session, result.run)) == f"It is {at:%A}, {at:%Y-%m-%d %H:%M} UTC."


@pytest.mark.parametrize("direct", [False, True])
def test_the_model_is_told_the_time_to_the_minute_beside_the_task(direct: bool) -> None:
    def started(clock: str) -> RunStarted:
        return msgspec.structs.replace(OF_BEFORE, template=prompt.TEMPLATE, clock_ns=ns(clock))

    def ns(clock: str) -> int:
        return run_clock(clock).clock_ns

    early, late = started("2026-03-01T09:30:01"), started("2026-03-01T09:30:59")
    assert told(early, direct=direct) == "It is Sunday, 2026-03-01 09:30 UTC."
    assert told(early, direct=direct) == told(late, direct=direct)


@pytest.mark.parametrize(
    ("clock", "timezone", "shown"),
    [
        ("2026-03-01T23:30Z", "Europe/Berlin", "Monday, 2026-03-02 00:30 (UTC+01:00)"),
        ("2026-07-01T12:00Z", "Europe/Berlin", "Wednesday, 2026-07-01 14:00 (UTC+02:00)"),
        ("2026-07-01T12:00", "Asia/Kathmandu", "Wednesday, 2026-07-01 12:00 (UTC+05:45)"),
        ("2026-01-01T02:00Z", "America/New_York", "Wednesday, 2025-12-31 21:00 (UTC-05:00)"),
        ("1970-01-01", None, "Thursday, 1970-01-01 00:00 UTC"),
        ("2259-12-31T23:59:59Z", None, "Saturday, 2259-12-31 23:59 UTC"),
    ],
)  # fmt: skip
def test_a_run_tells_the_time_of_its_zone(
    clock: str,
    timezone: str | None,
    shown: str,
    sandbox: WasmSandbox,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    time.tzset()
    try:
        with session_of(sandbox, [NOW], timezone=timezone) as session:
            result = session.run("what day is it?", clock=clock)
            started = start_of(session, result.run)
            assert session.replay(result.run).held
    finally:
        monkeypatch.undo()
        time.tzset()

    zone = "" if timezone is None else f" in {timezone}"
    assert told(started).startswith(f"It is {shown.replace(' (', f'{zone} (')}.")
    at = EPOCH + datetime.timedelta(microseconds=started.clock_ns // 1000)
    seen = datetime.datetime.fromisoformat(str(result.answer))
    assert at <= seen < at + datetime.timedelta(seconds=1)


def test_a_program_that_comes_after_a_far_time_still_works(sandbox: WasmSandbox) -> None:
    programs = [block("import datetime\nprint(datetime.datetime.now())"), block("FINAL(6 * 7)")]
    with session_of(sandbox, programs, clock="2259-12-31T23:59:59Z") as session:
        assert session.run("what is it?").answer == "42"


@pytest.mark.parametrize(
    "bad", ["later", "", " ", "2026-13-01", "1969-12-31", "2260-01-01", "9999-12-31", 12, "x" * 500]
)
def test_a_clock_that_is_none_is_refused_in_one_line(bad: Any, sandbox: WasmSandbox) -> None:
    with session_of(sandbox, []) as session, pytest.raises(UsageError, match=r"^clock: .{1,160}$"):
        session.run("what day is it?", clock=bad)


@pytest.mark.parametrize("bad", ["Mars/Olympus", "../etc/passwd", "", "europe\0", "x" * 500, 7])
def test_an_unknown_time_zone_is_refused_in_one_line(bad: Any, sandbox: WasmSandbox) -> None:
    with pytest.raises(UsageError, match=r"^timezone: .{1,250}$"):
        session_of(sandbox, [], timezone=bad)


def test_a_child_has_the_clock_and_the_zone_of_its_run(sandbox: WasmSandbox) -> None:
    replies = [block("FINAL(rlm_query('what day is it?', 'some text'))"), NOW]
    with session_of(sandbox, replies, clock="2027-05-06T07:08Z", timezone="Asia/Tokyo") as session:
        result = session.run("what day is it?", strategy="recursive")

        (child,) = (each.run for each in session.ledger.runs() if each.run != result.run)
        assert str(result.answer).startswith("2027-05-06T07:08")
        assert told(start_of(session, child)) == told(start_of(session, result.run))


def test_a_fork_and_a_resume_keep_the_clock_of_their_run(sandbox: WasmSandbox) -> None:
    replies = [block("x = 1\nprint(x)"), NOW, NOW]
    with session_of(sandbox, replies) as session:
        result = session.run("what day is it?", clock="2027-05-06T07:08Z")
        fork = session.fork(result.run, turn=1)

        assert str(fork.answer).startswith("2027-05-06T07:08")
        assert session.replay(fork.run).held


def test_a_run_of_a_session_starts_at_its_own_time(sandbox: WasmSandbox, tmp_path: Path) -> None:
    """The interpreter that it finds was left at another time."""
    with (
        SqliteLedger(tmp_path / "ledger.db") as ledger,
        session_of(sandbox, [NOW, NOW, NOW, NOW], ledger) as session,
    ):
        kept = session.sessions.new().id
        first = session.run("what day is it?", session=kept, clock="2027-05-06T07:08Z")
        second = session.run("what day is it?", session=kept, clock="2026-02-03T04:05Z")
        third = session.run("what day is it?", session=kept, clock="fixed")

        assert str(first.answer).startswith("2027-05-06T07:08")
        assert str(second.answer).startswith("2026-02-03T04:05")
        assert str(third.answer).startswith("2026-02-03T04:05"), "a fixed clock continues"
        assert all(session.replay(each.run).held for each in (first, second, third))


OF_BEFORE = RunStarted(
    goal="g", model="m", limits=RunLimits(),
    grants=(), contexts=(), functions=(), texts=(), seed=0, session_id="s", template="python@2",
    guest="g", engine="e", started_at=0,
)  # fmt: skip


def test_a_record_without_a_start_means_the_first_of_january() -> None:
    body = msgspec.json.decode(encode_record(OF_BEFORE))
    assert not {"timezone", "utc_offset_s"} & set(body)
    del body["clock_ns"]

    read = decode_record(msgspec.json.encode(body))

    assert isinstance(read, RunStarted)
    assert read.clock_ns == FIXED_CLOCK_NS
    assert "It is " not in prompt.opening(read)[-1].text, "its prompts told no time"
