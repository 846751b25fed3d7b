"""Programs run again from their record: no clock ends them, and they use no fuel beyond it."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.runtime.run.test_replay import replace_in, rewritten

from tallystick.client import Session
from tallystick.core.charge import RunLimits
from tallystick.core.errors import ReplayDiverged, ReplayStopped
from tallystick.core.json_text import digest
from tallystick.core.records import ModelReplied, ProgramFinished, Record, RunProgram
from tallystick.model.scripted import ScriptedModel, ScriptedReply
from tallystick.runtime.calls.functions import host_function
from tallystick.sandbox import output
from tallystick.sandbox.wasm import execution, namespace
from tallystick.sandbox.wasm.instance import Instance
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import block
from tallystick.testing.runs import Played, play

# Each starts processes or waits for them: CI runs them.
pytestmark = pytest.mark.slow

# Fuel, limits and repeated programs are the guest's.
NEEDS_GUEST = True

LONG = "total = 0\nfor number in range(3_000_000):\n    total += number\n"
REPLIES = [block(f"print(look('a'))\n{LONG}print(look('b'))"), block("FINAL(total)")]
ENDLESS = "while True: pass"


@host_function(policy="read")
def look(key: str) -> str:
    """Look something up."""
    return key.upper()


@pytest.fixture
def played(sandbox: WasmSandbox) -> Played:
    return play(
        sandbox,
        REPLIES,
        functions=[look],
        limits=RunLimits(wall_ms=20_000),
    )


class PausedClock:
    """A clock that jumps by an hour at each look: the machine sleeps in between."""

    def __init__(self) -> None:
        self.looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return time.monotonic() + 3_600 * self.looks


def paused(monkeypatch: pytest.MonkeyPatch) -> PausedClock:
    clock = PausedClock()
    for module in (execution, namespace):
        monkeypatch.setattr(module, "time", clock)
    return clock


def test_a_replay_on_a_machine_that_sleeps_in_between_holds(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = paused(monkeypatch)

    report = played.replayed()

    assert clock.looks > 3
    assert report.held
    assert (report.programs, report.served) == (2, 0)


def test_a_run_resumes_on_a_machine_that_sleeps_while_its_programs_run_again(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = next(
        index
        for index, each in enumerate(played.records)
        if isinstance(each, ModelReplied) and each.turn == 2
    )
    session, run = cut_copy(played, second + 1)
    clock = PausedClock()
    at_end: list[str] = []

    def watch(run: str, record: Record) -> None:
        if isinstance(record, RunProgram):
            at_end.append(run)
            monkeypatch.setattr(execution, "time", time)

    monkeypatch.setattr(execution, "time", clock)
    again = session.resume(run, watch=watch)

    assert clock.looks > 3
    assert again.answer == played.run.answer


def test_the_part_of_a_program_that_is_on_the_record_takes_no_time_on_resume(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off behind the last answer of the first program: that much is done again."""
    finished = next(
        index for index, each in enumerate(played.records) if isinstance(each, ProgramFinished)
    )
    session, run = cut_copy(played, finished)
    clock = PausedClock()
    monkeypatch.setattr(execution, "time", clock)
    begin_live = execution.Execution._begin_live

    def awake(self: execution.Execution) -> None:
        monkeypatch.setattr(execution, "time", time)
        begin_live(self)

    monkeypatch.setattr(execution.Execution, "_begin_live", awake)
    again = session.resume(run)

    assert clock.looks > 3
    assert again.answer == played.run.answer
    assert again.charge.wall_ms < 60_000
    assert session.replay(run).held


def cut_copy(played: Played, count: int) -> tuple[Session, str]:
    """The first records of the run in a ledger of their own, and a session that can resume it."""
    kept = Played(
        run=played.run, records=played.records[:count], ledger=played.ledger, session=played.session
    )
    session, run = forged(kept, lambda record: record)
    return Session(
        model=ScriptedModel([ScriptedReply(text=each) for each in REPLIES]),
        functions=[look],
        ledger=session.ledger,
        attachments=session.attachments,
        sandbox=session.engine.backends.wasm(),
    ), run


def forged(played: Played, change: Callable[[Record], Record]) -> tuple[Session, str]:
    session = rewritten(played, change)
    return session, session.run_id  # type: ignore[attr-defined]


def endless(record: Record) -> Record:
    """A program that was recorded to end, and does not."""
    if isinstance(record, ModelReplied) and record.turn == 1:
        return msgspec.structs.replace(record, text=block(ENDLESS))
    if isinstance(record, RunProgram) and record.turn == 1:
        return msgspec.structs.replace(record, sha256=digest(ENDLESS.encode()))
    return record


def test_a_program_that_passes_the_fuel_on_its_record_has_diverged_at_once(
    played: Played,
) -> None:
    session, run = forged(played, endless)
    used = next(each.fuel for each in played.records if isinstance(each, ProgramFinished))

    began = time.monotonic()
    report = session.replay(run)

    assert time.monotonic() - began < 15
    assert report.divergence is not None
    assert (report.divergence.field, report.divergence.recorded) == ("fuel", used)


def test_a_cut_off_program_that_does_not_make_its_recorded_calls_has_diverged_at_once(
    played: Played,
) -> None:
    changed = Played(
        run=played.run,
        records=[endless(each) for each in played.records],
        ledger=played.ledger,
        session=played.session,
    )
    finished = next(
        index for index, each in enumerate(played.records) if isinstance(each, ProgramFinished)
    )
    session, run = cut_copy(changed, finished)

    began = time.monotonic()
    with pytest.raises(ReplayDiverged) as caught:
        session.resume(run)

    assert time.monotonic() - began < 15
    assert caught.value.field == "fuel"


@pytest.mark.parametrize("fuel", [2**62, 200_000_000_001])
def test_the_fuel_on_an_imported_record_is_capped_by_the_limits_on_it(
    sandbox: WasmSandbox, monkeypatch: pytest.MonkeyPatch, fuel: int
) -> None:
    given: list[int] = []
    invoke = Instance.invoke

    def noted(self: Any, kind: int, payload: bytes, *, fuel: int) -> None:
        given.append(fuel)
        invoke(self, kind, payload, fuel=fuel)

    short = play(sandbox, [block("FINAL(1)")], limits=RunLimits(wall_ms=2_000))
    session, run = forged(short, replace_in(ProgramFinished, fuel=fuel))
    monkeypatch.setattr(Instance, "invoke", noted)

    report = session.replay(run)

    assert report.divergence is not None
    assert report.divergence.field == "fuel"
    assert max(given) <= 3_000 * 30_000_000 + execution.FUEL_MARGIN or max(given) == 10**11


def test_a_recorded_stop_by_fuel_below_the_limit_does_not_hold(played: Played) -> None:
    """Else a record could say of any program that it ran out of fuel."""
    stopped = replace_in(ProgramFinished, stop="fuel", fuel=1_000_000)
    session, run = forged(played, stopped)

    report = session.replay(run)

    assert report.divergence is not None


def test_a_replay_that_its_timeout_ends_is_stopped_and_not_diverged(played: Played) -> None:
    with pytest.raises(ReplayStopped) as caught:
        played.session.replay(played.run.run, timeout_ms=20)

    assert caught.value.timed_out
    assert played.run.run in str(caught.value)
    assert played.replayed().held


def test_a_replay_whose_program_is_cancelled_is_stopped_and_not_diverged(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = execution.Execution.run

    def cancelled(self: execution.Execution, *args: Any) -> None:
        threading.Timer(0.05, self.cancel).start()
        run(self, *args)

    monkeypatch.setattr(execution.Execution, "run", cancelled)

    with pytest.raises(ReplayStopped) as caught:
        played.replayed()

    assert not caught.value.timed_out


LONG_OUTPUT = "for number in range(20_000):\n    print(number)\nFINAL('printed')"


class _FullDisk:
    """A disk on which programs can keep no output."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refused(*args: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(output, "open_new", refused)


def printed(sandbox: WasmSandbox) -> Played:
    return play(sandbox, [block(LONG_OUTPUT)])


@pytest.fixture
def spilling(sandbox: WasmSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WasmSandbox:
    monkeypatch.setattr(sandbox, "output_directory", tmp_path / "output")
    return sandbox


def test_a_replay_on_a_full_disk_holds(
    spilling: WasmSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = printed(spilling)
    finished = next(each for each in played.records if isinstance(each, ProgramFinished))
    assert len(finished.outputs) == 1
    _FullDisk(monkeypatch)

    report = played.replayed()

    assert report.held
    assert report.programs == 1


def test_a_run_that_was_made_on_a_full_disk_is_replayed_on_another_and_holds(
    spilling: WasmSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        _FullDisk(patched)
        played = printed(spilling)
    finished = next(each for each in played.records if isinstance(each, ProgramFinished))
    assert finished.outputs == ()
    assert "the rest is lost: No space left on device" in finished.stdout

    assert played.replayed().held


def test_output_beyond_what_is_shown_is_still_compared(spilling: WasmSandbox) -> None:
    played = printed(spilling)
    other = replace_in(ProgramFinished, outputs=())
    session, run = forged(played, other)

    report = session.replay(run)

    assert report.divergence is not None
    assert report.divergence.field == "outputs"
