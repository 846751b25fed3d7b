"""Programs of steps that go on: what was spent, ends without an answer, what programs reached."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from tests.steps.step_processes import (
    CALL_NANO,
    CALL_TOKENS,
    Lives,
    Trip,
    begin,
    journal,
    left,
    paid,
    provider,
    receipts,
    resume,
    runs_of,
    task_program,
    told,
)

from tallystick.client import Session
from tallystick.core.budget.amount import Budget
from tallystick.core.charge import RunLimits
from tallystick.core.records import AskModel, ModelReplied, Record, RunEnded
from tallystick.core.resume_errors import RunInDoubt
from tallystick.core.step import StepBudgetError
from tallystick.core.views.open_calls import UNKNOWN
from tallystick.model.port import ModelError
from tallystick.runtime.calls.functions import FunctionPolicy, host_function
from tallystick.runtime.runs.history import records_of, runs_inside
from tallystick.runtime.spend.door import REPLY_TOKENS_LEAST
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.steps.decorator import charge_step, step, step_log
from tallystick.testing.models import NANO_IN, NANO_OUT, ModelCall, block

# They take long: CI runs them.
pytestmark = pytest.mark.slow


@pytest.fixture
def lives(sandbox: WasmSandbox) -> Lives:
    return Lives(sandbox)


# -- what it costs -------------------------------------------------------------------------------


ROOMY = RunLimits(tokens=10**6)


def enough_for(sandbox: WasmSandbox, calls: int) -> tuple[int, int]:
    """Tokens and nano-dollars that pay for so many calls, `task x in 1` each, and for no more."""
    lives = Lives(sandbox)
    with lives.session() as session:
        run = session.run("task x in 1", limits=ROOMY)
    (asked,) = (each for each in records_of(lives.ledger, run.run) if isinstance(each, AskModel))
    assert asked.reserved is not None
    bound, least = asked.reserved.tokens_in, REPLY_TOKENS_LEAST
    before = calls - 1
    return (
        bound + least + before * CALL_TOKENS,
        bound * NANO_IN + least * NANO_OUT + before * CALL_NANO,
    )


@pytest.mark.parametrize("value", ["kept", ("not kept",)])
@pytest.mark.parametrize("dimension", ["max_tokens", "max_usd"])
def test_what_was_spent_before_counts_in_every_budget_around(
    lives: Lives, value: object, dimension: str
) -> None:
    tokens, nano = enough_for(lives.sandbox, 5)
    budget = {"max_tokens": tokens} if dimension == "max_tokens" else {"max_usd": nano / 10**9}
    begun: list[str] = []

    def program(session: Session) -> object:
        @step
        def costly() -> object:
            for each in "abcd":
                session.run(f"task {each} in 1", limits=ROOMY)
            return value

        @step(budget=budget, error_boundary="continue")
        def plan() -> None:
            costly()
            for each in "efg":
                begun.append(each)
                session.run(f"task {each} in 1", limits=ROOMY)

        return plan()

    begin(lives, program)
    assert begun == ["e", "f"]
    for at in range(journal(lives).where(left("plan/costly")), len(journal(lives).journal)):
        after = lives.cut(at)
        begun.clear()
        resume(after, program)
        assert begun == ["e", "f"]
        assert paid(after) == (5, 5 * CALL_NANO)
        assert receipts(after)["plan"].status == "skipped"


def test_what_was_spent_before_counts_in_the_budget_of_the_session(lives: Lives) -> None:
    tokens, _ = enough_for(lives.sandbox, 5)
    budget = Budget.of(tokens=tokens)

    def program(session: Session) -> object:
        @step
        def costly() -> None:
            for each in "abcd":
                session.run(f"task {each} in 1")

        @step
        def plan() -> None:
            costly()
            session.run("task e in 1")
            session.run("task f in 1")

        return plan()

    with pytest.raises(StepBudgetError):
        begin(lives, program, budget=budget)
    for path in ("plan/costly", "plan"):
        after = lives.cut(journal(lives).where(left(path)))
        with (
            after.session(budget=budget) as session,
            step_log(),
            session.resume_steps(after.chain),
            pytest.raises(StepBudgetError),
        ):
            program(session)
        assert paid(after) == (5, 5 * CALL_NANO)


def test_charges_made_by_hand_are_made_again_and_count_once(lives: Lives) -> None:
    def program(session: Session) -> object:
        @step
        def inner() -> tuple[str, ...]:
            charge_step(1_000, 0, "0.5")
            session.run("task a in 1")
            return ()

        @step
        def done() -> int:
            charge_step(10, 0, "0.25")
            return 1

        @step
        def plan() -> str | None:
            done()
            inner()
            charge_step(1, 0, "0.125")
            return session.run("task b in 1").answer

        return plan()

    begin(lives, program)
    whole = receipts(lives)["plan"]
    assert whole.usd == 2 * CALL_NANO + 875_000_000
    for at in range(1, len(journal(lives).journal) + 1):
        after = lives.cut(at)
        resume(after, program)
        found = receipts(after)["plan"]
        assert (found.usd, found.input_tokens, found.llm_calls) == (
            whole.usd, whole.input_tokens, whole.llm_calls,
        )  # fmt: skip


def test_what_is_recorded_and_not_asked_for_again_still_counts(lives: Lives) -> None:
    flaky = True

    def program(session: Session) -> object:
        @step
        def attempt(number: int) -> str | None:
            answer = session.run("task a in 2").answer
            if flaky:
                raise ConnectionError("nobody there")
            return answer

        @step
        def plan() -> object:
            for number in range(3):
                try:
                    return [attempt(number), session.run("task b in 1").answer]
                except ConnectionError:
                    pass
            raise TimeoutError

        return plan()

    with pytest.raises(TimeoutError):
        begin(lives, program)
    flaky = False
    after = lives.cut(len(journal(lives).journal))

    assert resume(after, program) == ["a done", "b done"]
    # Three attempts were paid for, and the first was served.
    assert len(after.provider.keys) == 1
    assert paid(after) == (7, 7 * CALL_NANO)


def test_a_run_that_is_not_asked_for_again_counts_where_it_was_begun(lives: Lives) -> None:
    def program(session: Session, goals: str) -> object:
        @step
        def inner(goals: str) -> list[str | None]:
            return [session.run(f"task {each} in 1").answer for each in goals]

        @step
        def plan() -> object:
            return [inner(goals), session.run("task z in 1").answer]

        return plan()

    begin(lives, lambda session: program(session, "abc"))
    after = lives.cut(journal(lives).where(left("plan/inner")))

    assert resume(after, lambda session: program(session, "ac")) == [["a done", "c done"], "z done"]
    assert receipts(after)["plan/inner"].usd == 3 * CALL_NANO
    assert receipts(after)["plan/inner"].runs_begun == 2
    assert paid(after) == (4, 4 * CALL_NANO)


def test_an_attempt_that_cost_nothing_is_not_counted_in_any_life(lives: Lives) -> None:
    busy = ModelError(
        reason="rate_limit", message="busy", kind="transient", billed=False, retry_after_ms=0
    )
    lives.provider = provider(failures=[busy])

    def program(session: Session) -> object:
        @step
        def plan() -> list[str | None]:
            return [session.run(f"task {each} in 1").answer for each in "ab"]

        return plan()

    whole = begin(lives, program)
    assert paid(lives) == (2, 2 * CALL_NANO)
    after = lives.cut(journal(lives).where(lambda _, record: isinstance(record, RunEnded)))

    assert resume(after, program) == whole
    assert paid(after) == (2, 2 * CALL_NANO)


def test_runs_that_programs_begin_count_too(lives: Lives) -> None:
    def answer(call: ModelCall) -> str:
        child = "FINAL(str(rlm_query('task kid in 2')) +"
        return task_program(call).replace("FINAL('up ' +", child)

    lives.provider = provider(answer)

    def program(session: Session) -> object:
        @step
        def plan() -> list[str | None]:
            return [session.run(f"task {each} in 1").answer for each in ("up", "b")]

        return plan()

    whole = begin(lives, program)
    assert paid(lives) == (4, 4 * CALL_NANO)
    (up, _) = runs_inside(lives.ledger, lives.chain)
    after = lives.cut(
        journal(lives).where(lambda run, record: run == up and isinstance(record, RunEnded))
    )

    assert resume(after, program) == whole
    assert len(after.provider.keys) == 1
    assert paid(after) == (4, 4 * CALL_NANO)


def test_calls_of_programs_to_models_count_too(lives: Lives) -> None:
    def answer(call: ModelCall) -> str:
        if call.number == 0:
            return block("print(llm_query_batched(['task x in 1', 'task y in 1']))")
        return task_program(call)

    lives.provider = provider(answer)

    def program(session: Session) -> object:
        @step
        def plan() -> list[str | None]:
            return [session.run("task a in 2").answer, session.run("task b in 1").answer]

        return plan()

    whole = begin(lives, program)
    cost = paid(lives)
    assert cost == (5, 5 * CALL_NANO)
    ended = journal(lives).where(lambda _, record: isinstance(record, RunEnded))
    after = lives.cut(ended)

    assert resume(after, program) == whole
    assert paid(after) == cost


# -- ends without an answer ----------------------------------------------------------------------


def test_a_run_that_was_returned_without_an_answer_is_served_as_it_ended(lives: Lives) -> None:
    def program(session: Session) -> object:
        @step
        def plan() -> list[object]:
            run = session.run("task a in 9", limits=RunLimits(turns=2))
            return [run.stop, run.turns, session.run("task b in 1").answer]

        return plan()

    whole = begin(lives, program)
    assert whole == ["max_turns", 2, "b done"]
    assert told(lives.ledger, lives.chain) == ["+plan", "+plan noted", "-plan completed"]
    for at in range(1, len(journal(lives).journal) + 1):
        after = lives.cut(at)
        assert resume(after, program) == whole
        assert paid(after) == (3, 3 * CALL_NANO)


def test_a_run_that_was_not_paid_for_raises_the_same_error_again(lives: Lives) -> None:
    errors: list[dict[str, object]] = []
    tokens, _ = enough_for(lives.sandbox, 2)

    def program(session: Session) -> object:
        @step("poor", budget={"max_tokens": tokens})
        def poor() -> None:
            for each in "xyz":
                session.run(f"task {each} in 1", limits=ROOMY)

        @step
        def plan() -> str | None:
            try:
                poor()
            except StepBudgetError as error:
                errors.append({**error.to_dict(), "run": error.run, "answer": error.answer})
            return session.run("task b in 1").answer

        return plan()

    assert begin(lives, program) == "b done"
    cost = paid(lives)
    assert cost == (3, 3 * CALL_NANO)
    refused = journal(lives).where(
        lambda _, record: isinstance(record, RunEnded) and record.stop == "budget"
    )
    for at in range(refused, len(journal(lives).journal)):
        after = lives.cut(at)
        assert resume(after, program) == "b done"
        assert paid(after) == cost
        assert receipts(after)["plan/poor"].status == "failed"
    assert len(errors) > 2
    assert all(each == errors[0] for each in errors)


def test_a_run_that_was_not_paid_for_goes_on_where_the_budget_is_another(lives: Lives) -> None:
    tokens, _ = enough_for(lives.sandbox, 2)

    def program(session: Session, tokens: int) -> object:
        @step(budget={"max_tokens": tokens})
        def plan() -> list[str | None]:
            return [session.run(f"task {each} in 1", limits=ROOMY).answer for each in "xyz"]

        return plan()

    with pytest.raises(StepBudgetError):
        begin(lives, lambda session: program(session, tokens))
    refused = runs_of(lives)["task z in 1"]
    assert refused is not None
    assert refused.stop == "budget"
    after = lives.cut(len(journal(lives).journal))

    found = resume(after, lambda session: program(session, 10**6))
    assert found == ["x done", "y done", "z done"]
    assert len(after.provider.keys) == 1
    assert len(runs_inside(after.ledger, after.chain)) == 3
    assert told(after.ledger, after.chain)[-2:] == ["+plan", "-plan completed"]
    assert paid(after) == (3, 3 * CALL_NANO)


def test_a_run_that_was_cancelled_with_its_program_goes_on(lives: Lives) -> None:
    async def main(session: Session, *, cancelled: bool) -> object:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        @step
        async def plan() -> str | None:
            def watch(run: str, record: Record) -> None:
                if isinstance(record, ModelReplied):
                    loop.call_soon_threadsafe(begun.set)

            return (await session.arun("task a in 400", watch=watch)).answer

        task = asyncio.create_task(plan())
        await begun.wait()
        if cancelled:
            task.cancel()
        return await task

    def fresh(session: Session) -> object:
        return asyncio.run(main(session, cancelled=False))

    with pytest.raises(asyncio.CancelledError):
        begin(lives, lambda session: asyncio.run(main(session, cancelled=True)))
    (ended,) = runs_of(lives).values()
    assert ended is not None
    assert ended.stop == "cancelled"
    calls = ended.charge.model_calls

    # It goes on and ends by its turns, which are 30.
    resume(lives, fresh)
    (ended,) = runs_of(lives).values()
    assert ended is not None
    assert ended.stop == "max_turns"
    assert ended.charge.turns == 30
    assert calls < 30


def test_a_call_in_doubt_is_for_whoever_resumes_to_decide(lives: Lives) -> None:
    begin(lives, Trip())
    second_turn = journal(lives).where(
        lambda run, record: isinstance(record, AskModel) and record.turn == 2
    )

    async def nobody_knows(name: str, key: str) -> Any:
        return UNKNOWN

    for in_doubt in ("halt", "retry"):
        after = lives.cut(second_turn)
        with (
            after.session(lookup=nobody_knows) as session,
            step_log(),
            session.resume_steps(after.chain, in_doubt=in_doubt),
        ):
            if in_doubt == "halt":
                with pytest.raises(RunInDoubt):
                    Trip()(session)
                assert after.provider.keys == []
            else:
                Trip()(session)
                assert receipts(after)["trip"].llm_calls == 6


def test_who_asks_again_for_a_run_in_doubt_does_not_begin_another(lives: Lives) -> None:
    def program(session: Session) -> object:
        @step
        def plan() -> str | None:
            for _ in range(2):
                with contextlib.suppress(RunInDoubt):
                    return session.run("task a in 2").answer
            return None

        return plan()

    begin(lives, program)
    after = lives.cut(journal(lives).where(lambda _, record: isinstance(record, AskModel)))

    async def nobody_knows(name: str, key: str) -> Any:
        return UNKNOWN

    with (
        after.session(lookup=nobody_knows) as session,
        step_log(),
        session.resume_steps(after.chain),
    ):
        assert program(session) is None
    assert after.provider.keys == []


def test_a_failed_step_runs_again_and_its_last_receipt_counts(lives: Lives) -> None:
    broken = True

    def program(session: Session) -> object:
        @step
        def inner() -> str | None:
            answer = session.run("task a in 1").answer
            if broken:
                raise ValueError("broken")
            return answer

        @step
        def plan() -> list[str | None]:
            return [inner(), session.run("task b in 1").answer]

        return plan()

    with pytest.raises(ValueError, match="broken"):
        begin(lives, program)
    broken = False

    assert resume(lives, program) == ["a done", "b done"]
    assert told(lives.ledger, lives.chain) == [
        "+plan", "+plan/inner", "-plan/inner failed", "-plan failed",
        "+plan", "+plan/inner", "-plan/inner completed", "-plan completed",
    ]  # fmt: skip
    assert {path: each.status for path, each in receipts(lives).items()} == {
        "plan": "completed", "plan/inner": "completed",
    }  # fmt: skip
    assert len(lives.provider.keys) == 2


# -- what programs reach -------------------------------------------------------------------------


def calls_twice(call: ModelCall) -> str:
    """Do `task calls in 1` by a program that calls a function twice."""
    return task_program(call).replace("FINAL('calls ' + 'done')", "FINAL([reach('x'), reach('x')])")


class Reaching:
    """A program of steps whose run calls a function that enters a step, which asks for a run."""

    def __init__(self, lives: Lives, policy: FunctionPolicy) -> None:
        self.entered = 0
        self._lives = lives
        self._policy = policy

    def __call__(self, **more: Any) -> object:
        sessions: list[Session] = []

        @step("look up")
        def look_up(what: str) -> str:
            self.entered += 1
            charge_step(7, 0, 0)
            return f"{what} {sessions[0].run('task found in 2').answer}"

        @host_function(policy=self._policy, idempotent=True)
        def reach(what: str) -> str:
            """Reach for it."""
            direct = sessions[0].run("task direct in 1").answer
            return f"{look_up(what)}, {direct}"

        @step
        def plan() -> list[str | None]:
            before = look_up("own")
            run = sessions[0].run("task calls in 1")
            return [before, run.answer, look_up("own"), look_up("x")]

        with contextlib.ExitStack() as stack:
            sessions.append(stack.enter_context(self._lives.session(functions=[reach])))
            stack.enter_context(step_log())
            if "resumed" in more:
                stack.enter_context(sessions[0].resume_steps(more["resumed"]))
            if "replayed" in more:
                report = stack.enter_context(sessions[0].replay_steps(more["replayed"]))
            found = plan()
        if "replayed" in more:
            assert report.held, report
        return found


@pytest.mark.parametrize("policy", ["read", "effect"])
def test_what_programs_reached_is_known_by_the_call_and_is_never_taken_for_another(
    lives: Lives, policy: FunctionPolicy
) -> None:
    lives.provider = provider(calls_twice)
    reaching = Reaching(lives, policy)
    whole = reaching()
    cost = receipts(lives)["plan"]
    assert reaching.entered == 5
    assert (cost.llm_calls, cost.usd) == (1 + 2 + 5 * 3, 13 * CALL_NANO)
    runs = len(runs_inside(lives.ledger, lives.chain))
    assert runs == 8
    Reaching(lives, policy)(replayed=lives.chain)

    for at in range(1, len(journal(lives).journal) + 1, 3):
        after = lives.cut(at)
        calling = provider(calls_twice)
        calling.replies = dict(lives.provider.replies)
        after.provider = calling
        assert Reaching(after, policy)(resumed=after.chain) == whole
        found = receipts(after)["plan"]
        assert (found.llm_calls, found.usd) == (cost.llm_calls, cost.usd), at
        assert len(runs_inside(after.ledger, after.chain)) == runs
        assert Reaching(after, policy)(replayed=after.chain) == whole
