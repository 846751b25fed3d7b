"""Programs of steps that were killed and go on: what is served, what runs again, who may."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.steps.step_processes import (
    CALL_NANO,
    JournalLedger,
    Lives,
    Trip,
    begin,
    chains_in,
    journal,
    left,
    paid,
    receipts,
    resume,
    runs_of,
    told,
)

from tallystick.client import Session
from tallystick.core.chain import Draft, Head
from tallystick.core.charge import RunLimits
from tallystick.core.errors import RunNotFound, UsageError
from tallystick.core.records import (
    AskModel,
    ModelReplied,
    StepEntered,
    decode_record,
    encode_record,
)
from tallystick.core.step import CompletedStep, StepsDiverged
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger
from tallystick.model.scripted import ScriptedModel
from tallystick.runtime.runs.history import records_of, runs_inside
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.settings.paths import cache_directory
from tallystick.steps.decorator import completed_steps, step, step_log, within_step

# They take long: CI runs them.
pytestmark = pytest.mark.slow


@pytest.fixture
def lives(sandbox: WasmSandbox) -> Lives:
    return Lives(sandbox)


# -- killed anywhere -----------------------------------------------------------------------------


def test_killed_behind_any_write_it_comes_to_the_same_and_pays_for_nothing_twice(
    lives: Lives,
) -> None:
    whole = begin(lives, Trip())
    cuts = 0

    for at in range(1, len(journal(lives).journal) + 1):
        after = lives.cut(at)
        known = {
            f"{run}-{each.intent}"
            for run in runs_inside(after.ledger, after.chain)
            for each in records_of(after.ledger, run)
            if isinstance(each, ModelReplied)
        }
        assert resume(after, Trip()) == whole
        assert not known & set(after.provider.keys)
        assert paid(after) == (5, 5 * CALL_NANO)
        assert set(runs_of(after)) == set(runs_of(lives))
        assert verify_ledger(after.ledger).ok
        # Once more: everything is served.
        again, trip = after.cut(len(journal(after).journal)), Trip()
        assert resume(again, trip) == whole
        assert trip.called == again.provider.keys == []
        assert journal(again).journal == journal(after).journal
        cuts += 1
    assert cuts > 15


def test_killed_between_steps_those_that_had_completed_are_not_called_again(lives: Lives) -> None:
    whole = begin(lives, Trip())
    after, trip = lives.cut(journal(lives).where(left("trip/pack"))), Trip()

    assert resume(after, trip) == whole
    assert trip.called == ["trip", "pack more"]
    assert len(after.provider.keys) == 1
    assert told(after.ledger, after.chain)[-3:] == [
        "+trip/pack#2", "-trip/pack#2 completed", "-trip completed",
    ]  # fmt: skip


def test_killed_inside_a_run_it_goes_on_under_the_same_id(lives: Lives) -> None:
    whole = begin(lives, Trip())
    second_turn = journal(lives).where(
        lambda run, record: isinstance(record, AskModel) and record.turn == 2
    )
    after, trip = lives.cut(second_turn), Trip()
    before = set(runs_inside(after.ledger, after.chain))

    assert resume(after, trip) == whole
    assert trip.called == ["trip", "travel", "pack bag", "pack more"]
    # The call that it was killed in had arrived, and its provider was asked for the reply.
    assert len(after.provider.looked_up) == 1
    assert len(after.provider.keys) == 3
    assert before < set(runs_inside(after.ledger, after.chain))


def test_a_life_after_a_life_goes_on_from_where_the_last_one_was_killed(lives: Lives) -> None:
    whole = begin(lives, Trip())
    sent = 0
    world = lives.cut(1)
    for _ in range(20):
        # Each life is killed three writes on.
        at = len(journal(world).journal) + 3
        if at >= len(journal(lives).journal):
            break
        assert resume(world, Trip()) == whole
        sent += len(world.provider.keys)
        world = world.cut(at)

    assert resume(world, Trip()) == whole
    assert paid(world) == (5, 5 * CALL_NANO)


def test_async_steps_go_on_as_others_do(lives: Lives) -> None:
    called: list[str] = []

    def program(session: Session) -> object:
        @step
        async def one(number: int) -> str | None:
            called.append(f"one {number}")
            await asyncio.sleep(0)
            return (await session.arun(f"task t{number} in 2")).answer

        @step
        async def plan() -> list[str | None]:
            return [await one(1), await one(2)]

        return asyncio.run(plan())

    whole = begin(lives, program)
    for at in range(1, len(journal(lives).journal) + 1):
        after = lives.cut(at)
        assert resume(after, program) == whole
        assert paid(after) == (4, 4 * CALL_NANO)
    after = lives.cut(journal(lives).where(left("plan/one")))
    called.clear()
    assert resume(after, program) == whole
    assert called == ["one 2"]


# -- what is served ------------------------------------------------------------------------------


def served(lives: Lives, value: object) -> tuple[int, object]:
    """How often a step was called in two lives that gives a value, and what it gave in the last."""
    calls = 0

    def program(session: Session) -> object:
        @step
        def inner() -> object:
            nonlocal calls
            calls += 1
            session.run("task a in 1")
            return value

        @step
        def plan() -> object:
            found = inner()
            session.run("task b in 1")
            return found

        return plan()

    begin(lives, program)
    found = resume(lives.cut(journal(lives).where(left("plan/inner"))), program)
    return calls, found


@pytest.mark.parametrize(
    "value", [None, True, 7, 10**30, -0.0, "text", [1, [None]], {"a": {"b": [1.5]}, "c": ""}],
    ids=repr,
)  # fmt: skip
def test_a_value_that_can_be_read_back_is_served(lives: Lives, value: object) -> None:
    calls, found = served(lives, value)

    assert calls == 1
    assert repr(found) == repr(value)


@pytest.mark.parametrize(
    "value", [(1, 2), {1, 2}, float("nan"), b"x", {1: 2}, [(1,)], "\ud800", object(), "x" * 70_000],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_a_step_with_any_other_value_runs_again_on_what_is_recorded(
    lives: Lives, value: object
) -> None:
    calls, found = served(lives, value)

    assert calls == 2
    assert found is value
    assert len(lives.provider.keys) == 2


def test_a_run_is_served_as_it_was_wherever_it_stands_in_a_value(lives: Lives) -> None:
    called = 0

    def program(session: Session) -> object:
        @step
        def inner() -> dict[str, list[Run]]:
            nonlocal called
            called += 1
            return {"runs": [session.run(f"task {each} in 1") for each in "ab"]}

        @step
        def plan() -> object:
            return [inner(), session.run("task c in 1").answer]

        return plan()

    whole = begin(lives, program)
    after = lives.cut(journal(lives).where(left("plan/inner")))

    assert resume(after, program) == whole
    assert called == 1


def test_a_value_with_a_run_that_came_to_something_else_since_is_not_served(lives: Lives) -> None:
    called = 0

    def program(session: Session) -> object:
        @step
        def inner() -> Run:
            nonlocal called
            called += 1
            return session.run("task a in 3", limits=RunLimits(turns=2))

        @step
        def plan() -> object:
            found = inner().answer
            session.run("task b in 1")
            return found

        return plan()

    begin(lives, program)
    after = lives.cut(journal(lives).where(left("plan/inner")))
    (run,) = runs_inside(after.ledger, after.chain)
    with after.session() as session:
        assert session.resume(run, limits=RunLimits(turns=9)).answer == "a done"

    assert resume(after, program) == "a done"
    assert called == 2


def test_a_step_that_changed_what_it_was_given_is_not_served(lives: Lives) -> None:
    def program(session: Session) -> object:
        @step
        def fill(into: list[str | None]) -> int:
            into.append(session.run("task a in 1").answer)
            return 1

        @step
        def plan() -> object:
            found: list[str | None] = []
            fill(found)
            session.run("task b in 1")
            return found

        return plan()

    assert begin(lives, program) == ["a done"]
    after = lives.cut(journal(lives).where(left("plan/fill")))
    assert resume(after, program) == ["a done"]


def test_steps_that_ran_again_and_came_to_the_same_leave_nothing(lives: Lives) -> None:
    def program(session: Session) -> object:
        @step
        def inner() -> tuple[str | None]:
            return (session.run("task a in 1").answer,)

        @step
        def plan() -> tuple[object, ...]:
            return (inner(), session.run("task b in 1").answer)

        return plan()

    whole = begin(lives, program)
    entries = list(records_of(lives.ledger, lives.chain))
    after = lives.cut(len(journal(lives).journal))

    assert resume(after, program) == whole
    assert list(records_of(after.ledger, after.chain)) == entries
    assert after.provider.keys == []


def test_a_step_that_goes_on_began_when_it_was_entered_first(lives: Lives) -> None:
    begin(lives, Trip())
    after = lives.cut(journal(lives).where(left("trip/pack")))
    first = receipts(lives)["trip"].started_at
    later = time.time_ns() // 10**6 + 1
    while time.time_ns() // 10**6 <= later:
        pass

    resume(after, Trip())
    found = receipts(after)["trip"]
    assert found.started_at == first
    assert found.completed_at > later


def test_a_step_with_arguments_that_have_no_digest_runs_again(lives: Lives) -> None:
    calls: list[object] = []

    def program(session: Session) -> object:
        @step
        def inner(given: object) -> str | None:
            calls.append(given)
            return session.run("task a in 1").answer

        @step
        def plan() -> object:
            return [inner(object()), session.run("task b in 1").answer]

        return plan()

    whole = begin(lives, program)
    after = lives.cut(journal(lives).where(left("plan/inner")))

    assert resume(after, program) == whole
    assert len(calls) == 2
    assert len(after.provider.keys) == 1


def test_a_step_that_left_something_running_is_not_served(lives: Lives) -> None:
    def program(session: Session) -> object:
        begun: list[asyncio.Task[Run]] = []

        @step
        async def short() -> int:
            begun.append(asyncio.create_task(session.arun("task a in 3")))
            await asyncio.sleep(0)
            return 1

        @step
        async def plan() -> str | None:
            await short()
            return (await begun[0]).answer

        return asyncio.run(plan())

    assert begin(lives, program) == "a done"
    for at in range(journal(lives).where(left("plan/short")), len(journal(lives).journal)):
        after = lives.cut(at)
        assert resume(after, program) == "a done"
        assert receipts(after)["plan"].usd == 3 * CALL_NANO
        assert len(runs_inside(after.ledger, after.chain)) == 1


def test_a_served_step_is_in_the_log_and_in_the_steps_around(lives: Lives) -> None:
    begin(lives, Trip())
    after = lives.cut(journal(lives).where(left("trip/pack")))
    with after.resumed() as session:
        Trip()(session)
        log: list[CompletedStep] = completed_steps().drain()

    assert [(each.path, each.status, each.llm_calls) for each in log] == [
        ("trip/travel", "completed", 3),
        ("trip/pack", "completed", 1),
        ("trip/pack#2", "completed", 1),
        ("trip", "completed", 5),
    ]
    assert receipts(after)["trip"].model == "fake:model"


def test_steps_of_a_record_from_before_there_were_digests_run_again(lives: Lives) -> None:
    begin(lives, Trip())
    older = JournalLedger()
    heads: dict[str, tuple[int, Head]] = {}
    for run, drafts in journal(lives).journal[: journal(lives).where(left("trip/pack"))]:
        fence, head = heads.get(run) or (older.claim(run, create=True), Head.of_nothing())
        bodies = []
        for each in drafts:
            record = decode_record(each.body)
            if isinstance(record, StepEntered):
                record = msgspec.structs.replace(record, arguments_sha256="")
            bodies.append(Draft(tag=each.tag, intent=each.intent, body=encode_record(record)))
        head, _ = older.submit(run, bodies, expected=head, fence=fence, forced=False)
        heads[run] = fence, head
    after = Lives(lives.sandbox, ledger=older, attachments=lives.attachments)
    trip = Trip()

    resume(after, trip)
    assert trip.called == ["trip", "travel", "pack bag", "pack more"]
    assert len(after.provider.keys) == 1


# -- who may -------------------------------------------------------------------------------------


def test_a_chain_whose_owner_lives_is_not_gone_on_with(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    lives = Lives(sandbox, ledger=SqliteLedger(tmp_path / "ledger.sqlite"))
    refused: list[str] = []

    def program(session: Session) -> object:
        @step
        def plan() -> str | None:
            answer = session.run("task a in 1").answer

            def other() -> None:
                with (
                    lives.session() as second,
                    pytest.raises(UsageError, match="is running") as caught,
                    second.resume_steps(lives.chain),
                ):
                    refused.append("entered")
                refused.append(str(caught.value))

            # Taken out of the step: a thread that a step starts belongs to it.
            thread = threading.Thread(target=within_step(None, other))
            thread.start()
            thread.join()
            return answer

        return plan()

    assert begin(lives, program) == "a done"
    assert len(refused) == 1
    assert lives.chain in refused[0]
    assert not list((tmp_path / "ledger.sqlite-runs").iterdir())
    # Now it is over, and anybody may.
    assert resume(lives, program) == "a done"


def test_what_is_no_chain_of_steps_is_refused(lives: Lives) -> None:
    with lives.session() as session:
        run = session.run("task a in 1")
        with pytest.raises(UsageError, match="no chain of steps"), session.resume_steps(run.run):
            pass
        with pytest.raises(RunNotFound), session.resume_steps("0" * 26):
            pass

        @step
        def plan() -> None:
            with pytest.raises(UsageError, match="outside"), session.resume_steps(run.run):
                pass

        plan()


def test_another_ledger_has_nothing_of_the_chain(lives: Lives) -> None:
    begin(lives, Trip())
    after = lives.cut(journal(lives).where(left("trip/travel")))
    elsewhere = Lives(lives.sandbox, ledger=MemoryLedger())

    with (
        after.resumed(),
        elsewhere.session() as session,
        pytest.raises(UsageError, match="another ledger"),
    ):
        Trip()(session)
    assert elsewhere.provider.keys == []


def test_a_run_that_a_receipt_names_and_that_is_gone_is_not_paid_for_again(lives: Lives) -> None:
    def program(session: Session) -> object:
        @step
        def inner() -> tuple[()]:
            session.run("task a in 1")
            return ()

        @step
        def plan() -> object:
            inner()
            return session.run("task b in 1").answer

        return plan()

    begin(lives, program)
    after = lives.cut(journal(lives).where(left("plan/inner")))
    (run,) = runs_inside(after.ledger, after.chain)
    after.ledger.remove(run)

    with pytest.raises(StepsDiverged, match="not in this ledger"):
        resume(after, program)
    assert after.provider.keys == []


def test_steps_that_come_after_the_first_have_chains_of_their_own(lives: Lives) -> None:
    begin(lives, Trip())
    after = lives.cut(journal(lives).where(left("trip/pack")))
    with after.resumed() as session:
        whole = Trip()(session)
        assert len(chains_in(after.ledger)) == 1
        again = Trip()(session)

    assert len(chains_in(after.ledger)) == 2
    assert whole == again
    assert len(runs_inside(after.ledger, chains_in(after.ledger)[1])) == 3


def test_a_model_that_answers_by_position_goes_on_behind_what_it_had_answered(
    lives: Lives,
) -> None:
    def script() -> ScriptedModel:
        return ScriptedModel.of(*(f"```repl\nFINAL('r{each}')\n```" for each in range(3)))

    def program(session: Session) -> object:
        @step
        def one(number: int) -> str | None:
            return session.run(f"task {number}").answer

        @step
        def plan() -> list[str | None]:
            return [one(number) for number in range(3)]

        return plan()

    assert begin(lives, program, model=script()) == ["r0", "r1", "r2"]
    for path in ("plan/one", "plan/one#2"):
        after = lives.cut(journal(lives).where(left(path)))
        with (
            after.session(model=script()) as session,
            step_log(),
            session.resume_steps(after.chain),
        ):
            assert program(session) == ["r0", "r1", "r2"]


# -- a real death --------------------------------------------------------------------------------


def test_a_process_that_is_killed_in_a_paid_call_is_gone_on_with_by_another(tmp_path: Path) -> None:
    def process(directory: Path, order: str) -> tuple[int, dict[str, Any]]:
        directory.mkdir(exist_ok=True)
        done = subprocess.run(
            [sys.executable, "-m", "tests.steps.step_worker", directory / "ledger", order],
            cwd=Path(__file__).parents[2],
            env={
                **os.environ,
                "TALLYSTICK_DATA_DIR": str(directory),
                "TALLYSTICK_CACHE_DIR": str(cache_directory()),
            },
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, json.loads(done.stdout) if done.stdout else {"said": done.stderr}

    _, whole = process(tmp_path / "whole", "begin")
    ended, _ = process(tmp_path / "killed", "killed")
    _, resumed = process(tmp_path / "killed", "resume")

    assert ended == -signal.SIGKILL
    assert whole["value"] == resumed["value"] == ["a done", "b done", "c done"]
    assert resumed["called"] == ["all", "second", "first"]
    assert resumed["status"] == "completed"
    assert resumed["replay_held"] is True
    paid_for = (tmp_path / "killed" / "paid").read_text().splitlines()
    # Five calls; the one that the process died in was made again, under a key of its own.
    assert (len(paid_for), len(set(paid_for))) == (6, 6)
    assert (whole["calls"], resumed["calls"]) == (5, 6)
