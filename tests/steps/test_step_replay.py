"""Programs of steps that run again with nothing live: whether they still do what they did."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import pytest
from tests.steps.step_processes import JournalLedger, Lives, provider

from tallystick.client import Session
from tallystick.core.charge import RunLimits
from tallystick.core.errors import LedgerError
from tallystick.core.machine import prompt
from tallystick.core.records import ErrorBoundary, ModelReplied, Record, RunStarted, StepLeft
from tallystick.core.step import StepBudgetError, StepsDiverged, StepsNotReplayed
from tallystick.ledger.port import EVERY_RUN, RunFilter, RunRow
from tallystick.runtime.context.inputs import given_text
from tallystick.runtime.runs.history import records_of, runs_inside
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.steps.decorator import charge_step, enter_step, step, step_log
from tallystick.steps.replay import StepHistory, StepsReport

Program = Callable[[Session], object]


@pytest.fixture
def lives(sandbox: WasmSandbox) -> Lives:
    return Lives(sandbox)


def begin(lives: Lives, program: Program) -> object:
    with lives.session() as session, step_log():
        return program(session)


def replayed(lives: Lives, program: Program) -> StepsReport:
    """Replay in a session that has no model to ask. Nothing is written."""
    assert isinstance(lives.ledger, JournalLedger)
    before, sent = len(lives.ledger.journal), list(lives.provider.keys)
    session = Session(ledger=lives.ledger, attachments=lives.attachments, sandbox=lives.sandbox)
    with session, step_log(), session.replay_steps(lives.chain) as report:
        program(session)
    assert len(lives.ledger.journal) == before
    assert lives.provider.keys == sent
    return report


def program(
    session: Session,
    *,
    goal: str = "task a in 2",
    argument: object = 1,
    more: bool = False,
    value: object = "x",
    fewer: bool = False,
) -> object:
    @step
    def inner(given: object) -> object:
        run = session.run(goal, inputs=[given_text("a text", name="t")])
        return [value, run]

    @step
    def empty() -> None: ...

    @step
    def plan() -> object:
        with enter_step(None):
            found = inner(argument)
        if not fewer:
            empty()
            session.run("task b in 1")
        if more:
            session.run("task c in 1")
        return found

    return plan()


def test_a_program_that_does_what_it_did_holds_and_every_step_of_it_ran(lives: Lives) -> None:
    begin(lives, program)

    report = replayed(lives, program)

    assert (report.held, report.steps, report.runs) == (True, 3, 2)
    assert report.chain == lives.chain
    assert report.divergence is None


@pytest.mark.parametrize(
    ("change", "field", "where", "now"),
    [
        ({"goal": "task d in 2"}, "goal", "plan/inner", "task d in 2"),
        ({"more": True}, "run", "plan", "task c in 1"),
        ({"value": "y"}, "value", "plan/inner", None),
        ({"argument": 2}, "arguments_sha256", "plan/inner", None),
        ({"argument": object()}, "arguments_sha256", "plan/inner", ""),
        ({"fewer": True}, "run", "plan", None),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_program_that_was_changed_does_not_hold_and_the_first_difference_is_named(
    lives: Lives, change: dict[str, object], field: str, where: str, now: object
) -> None:
    begin(lives, program)

    report = replayed(lives, lambda session: program(session, **change))  # type: ignore[arg-type]

    assert not report.held
    assert report.divergence is not None
    assert (report.divergence.field, report.divergence.step) == (field, where)
    assert report.divergence.recorded != report.divergence.now
    if now is not None:
        assert report.divergence.now == now


def test_a_chain_that_was_cut_off_is_a_divergence_where_it_ends(lives: Lives) -> None:
    begin(lives, program)
    assert isinstance(lives.ledger, JournalLedger)

    def replied(run: str, record: Record) -> bool:
        return isinstance(record, ModelReplied)

    cut_off = lives.cut(lives.ledger.where(replied))
    report = replayed(cut_off, program)
    assert report.divergence is not None
    assert (report.divergence.field, report.divergence.step) == ("end", "plan/inner")
    (run,) = runs_inside(cut_off.ledger, cut_off.chain)
    assert report.divergence.run == run

    def left(run: str, record: Record) -> bool:
        return isinstance(record, StepLeft)

    report = replayed(lives.cut(lives.ledger.where(left)), program)
    assert report.divergence is not None
    assert (report.divergence.field, report.divergence.now) == ("step", "plan/empty")


def test_a_run_whose_record_does_not_hold_when_it_runs_again_is_a_divergence(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(lives, program)
    # As another version of the prompts would do.
    monkeypatch.setattr(prompt, "WRITE", "Write it down.")
    report = replayed(lives, program)

    assert report.divergence is not None
    assert report.divergence.field.startswith("entry ")
    assert report.divergence.run in runs_inside(lives.ledger, lives.chain)


def test_a_program_that_fails_as_it_failed_holds(lives: Lives) -> None:
    def failing(session: Session, boundary: ErrorBoundary = "continue") -> object:
        @step
        def poor() -> Run:
            return session.run("task a in 9", limits=RunLimits(turns=2))

        @step(budget={"max_tokens": 0}, error_boundary=boundary)
        def none() -> Run:
            return session.run("task b in 1")

        @step
        def plan() -> object:
            charge_step(1, 1, 0)
            assert poor().stop == "max_turns"
            with contextlib.suppress(StepBudgetError):
                none()
            raise ValueError("as ever")

        with pytest.raises(ValueError, match="as ever"):
            plan()
        return None

    begin(lives, failing)
    report = replayed(lives, failing)
    assert (report.held, report.steps, report.runs) == (True, 3, 2)

    report = replayed(lives, lambda session: failing(session, "fail"))
    assert report.divergence is not None
    assert (report.divergence.field, report.divergence.step) == ("status", "plan/none")


def test_tasks_side_by_side_hold_whatever_their_order(lives: Lives) -> None:
    def side_by_side(session: Session, order: list[int]) -> object:
        @step(key=lambda number: str(number))
        async def one(number: int) -> str | None:
            asked = (session.arun(f"task t{number}{each} in 1") for each in order)
            return "".join(sorted(str(each.answer) for each in await asyncio.gather(*asked)))

        @step
        async def plan() -> list[str]:
            return sorted(str(each) for each in await asyncio.gather(*map(one, order)))

        return asyncio.run(plan())

    begin(lives, lambda session: side_by_side(session, [1, 2, 3]))

    report = replayed(lives, lambda session: side_by_side(session, [3, 1, 2]))
    assert (report.held, report.steps, report.runs) == (True, 4, 9)


def test_nothing_live_happens_whatever_the_program_asks_for(lives: Lives) -> None:
    begin(lives, program)
    (run, *_) = runs_inside(lives.ledger, lives.chain)

    def outside(session: Session) -> object:
        return session.run("task c in 1")

    def a_second_step(session: Session) -> object:
        program(session)
        return step(lambda: session.run("task c in 1"))()

    def gone_on_with(session: Session) -> object:
        return session.resume(run)

    def in_a_step(session: Session) -> object:
        @step
        def plan() -> object:
            return session.fork(run, turn=1)

        return plan()

    for live in (outside, a_second_step, gone_on_with, in_a_step):
        report = replayed(lives, live)
        assert not report.held, live


def test_a_group_of_tasks_that_diverge_is_in_the_report_too(lives: Lives) -> None:
    def grouped(session: Session, goal: str) -> object:
        @step
        async def plan() -> None:
            async with asyncio.TaskGroup() as group:
                for each in range(3):
                    group.create_task(session.arun(f"task {goal}{each} in 1"))

        return asyncio.run(plan())

    begin(lives, lambda session: grouped(session, "a"))

    assert replayed(lives, lambda session: grouped(session, "a")).held
    report = replayed(lives, lambda session: grouped(session, "b"))
    assert report.divergence is not None
    assert report.divergence.field == "goal"


def test_what_a_program_hides_from_its_caller_is_in_the_report(lives: Lives) -> None:
    begin(lives, program)

    def hiding(session: Session) -> object:
        with pytest.raises(StepsDiverged):
            program(session, goal="task d in 2")
        return None

    assert not replayed(lives, hiding).held


def test_a_program_that_does_not_enter_its_step_is_a_divergence(lives: Lives) -> None:
    begin(lives, program)

    report = replayed(lives, lambda session: None)

    assert report.divergence is not None
    assert (report.divergence.recorded, report.divergence.now) == ("plan", None)


def test_an_error_of_the_program_goes_through(lives: Lives) -> None:
    begin(lives, program)

    with pytest.raises(ZeroDivisionError):
        replayed(lives, lambda session: 1 // 0)


def test_a_chain_that_does_not_hold_proves_nothing(lives: Lives) -> None:
    begin(lives, program)
    entries = lives.ledger._entries[lives.chain]  # type: ignore[attr-defined]
    entries[1] = entries[0]

    with pytest.raises(LedgerError, match="do not hold at entry 1"):
        replayed(lives, program)


def test_the_command_says_how_steps_are_replayed(lives: Lives) -> None:
    begin(lives, program)

    with lives.session() as session, pytest.raises(StepsNotReplayed, match="replay_steps"):
        session.replay(lives.chain)


def test_a_model_that_is_at_hand_is_not_asked(lives: Lives) -> None:
    begin(lives, program)
    other = provider(name="fake:other")
    with lives.session(model=other) as session, session.replay_steps(lives.chain) as report:
        program(session)

    assert report.held
    assert other.keys == []
    starts = [
        next(records_of(lives.ledger, each)) for each in runs_inside(lives.ledger, lives.chain)
    ]
    assert all(isinstance(each, RunStarted) for each in starts)


def test_a_run_that_begins_while_its_steps_are_read_is_part_of_what_was_read(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(lives, program)
    *_, late = runs_inside(lives.ledger, lives.chain)
    chain, listed = lives.chain, lives.ledger.runs

    def runs(which: RunFilter = EVERY_RUN) -> Sequence[RunRow]:
        return [row for row in listed(which) if which != EVERY_RUN or row.run != late]

    # The whole ledger is listed before the run begins, the runs of the steps after that.
    monkeypatch.setattr(lives.ledger, "runs", runs)

    assert late in StepHistory.read(lives.ledger, chain).ids
