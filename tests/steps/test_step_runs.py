"""Runs inside steps: who pays, what is counted, and what an exhausted budget becomes."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.runtime.run.one_program_model import ROOMY, TURN_IN, TURN_NANO, TURN_OUT, opened, writer

from tallystick.cli.errors import exit_code_of
from tallystick.cli.exit_codes import BUDGET
from tallystick.client import Session
from tallystick.core.budget.amount import Budget
from tallystick.core.charge import RunLimits, nano_usd
from tallystick.core.step import CompletedStep, StepBudgetError, StepExhaustion
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger
from tallystick.runtime.calls.functions import host_function
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.steps.decorator import charge_step, current_step, step, step_log
from tallystick.testing.models import NANO_IN, NANO_OUT, when_set


def figures(record: CompletedStep) -> tuple[int, int, int, int]:
    return record.input_tokens, record.output_tokens, record.usd, record.llm_calls


def test_a_step_has_what_the_runs_in_it_used(sandbox: WasmSandbox) -> None:
    model = writer("FINAL(llm_query('x' * 40))", queries="y" * 20)
    with opened(sandbox, model) as session, step_log() as log:

        @step("plan", budget={"max_usd": 1})
        def plan() -> str | None:
            session.run("one", limits=ROOMY)
            return session.run("two", limits=ROOMY).answer

        assert plan() == "y" * 20

    (record,) = log.drain()
    assert figures(record) == (2 * (TURN_IN + 10), 2 * (TURN_OUT + 5), model.billed, 4)
    assert (record.model, record.status, record.unpriced) == ("fake:model", "completed", 0)


def test_a_run_that_a_step_does_not_pay_for_raises_before_anything_is_sent(
    sandbox: WasmSandbox,
) -> None:
    model = writer()
    with opened(sandbox, model) as session, step_log() as log:

        @step("plan", budget={"max_tokens": 0})
        def plan() -> Run:
            return session.run("one")

        with pytest.raises(StepBudgetError) as caught:
            plan()

    assert model.turns == model.billed == 0
    facts = caught.value.to_dict()
    assert set(facts) == {
        "category", "kind", "reason", "limit", "limit_value", "projected_cost_usd",
        "session_cost_usd", "projected_input_tokens", "projected_output_tokens", "provider",
        "model", "message",
    }  # fmt: skip
    assert facts["category"] == "budget_exceeded"
    assert (facts["kind"], facts["reason"]) == ("terminal", "budget_exceeded")
    assert (facts["limit"], facts["limit_value"]) == ("max_tokens", 0.0)
    assert (facts["provider"], facts["model"]) == ("fake", "fake:model")
    assert facts["session_cost_usd"] == 0.0
    assert facts["projected_output_tokens"] == RunLimits().reply_tokens
    bound = facts["projected_input_tokens"]
    assert isinstance(bound, int)
    worst = bound * NANO_IN + RunLimits().reply_tokens * NANO_OUT
    assert facts["projected_cost_usd"] == worst / 10**9
    assert "0 left in step plan" in str(facts["message"])
    assert exit_code_of(caught.value) == BUDGET
    assert [(each.status, each.llm_calls) for each in log.peek()] == [("failed", 0)]


def test_the_boundaries_see_it(sandbox: WasmSandbox) -> None:
    with opened(sandbox, writer()) as session, step_log() as log:

        @step("skips", budget={"max_tokens": 0}, error_boundary="continue")
        def skips() -> Run:
            return session.run("one")

        @step("hands over", budget={"max_tokens": 0}, error_boundary="escalate")
        def hands_over() -> Run:
            return session.run("one")

        assert skips() is None
        with pytest.raises(StepBudgetError) as caught:
            hands_over()

    assert caught.value.to_dict()["step"] == "hands over"
    assert caught.value.to_dict()["function"] == "hands_over"
    assert [each.status for each in log.peek()] == ["skipped", "escalated"]


def test_the_money_that_is_billed_never_passes_the_cap_of_a_step(sandbox: WasmSandbox) -> None:
    model = writer()
    cap = 12 * TURN_NANO
    with opened(sandbox, model) as session, step_log() as log:

        @step("all", budget={"max_usd": cap / 10**9}, error_boundary="continue")
        def everything() -> None:
            for _ in range(100):
                session.run("one", limits=ROOMY)

        everything()

    (record,) = log.peek()
    assert 0 < model.turns < 100
    assert record.usd == model.billed <= cap
    assert record.status == "skipped"


def test_runs_side_by_side_in_one_step_hold_one_cap(sandbox: WasmSandbox) -> None:
    model = writer()
    with opened(sandbox, model) as session, step_log() as log:

        @step(key=lambda number: str(number), error_boundary="continue")
        async def one(number: int) -> str | None:
            return (await session.arun(f"goal {number}", limits=ROOMY)).answer

        @step("all", budget={"max_usd": 0.1})
        async def everything() -> list[str | None]:
            return list(await asyncio.gather(*(one(number) for number in range(20))))

        answers = asyncio.run(everything())

    *inner, outer = log.peek()
    done = [each for each in inner if each.status == "completed"]
    assert answers.count("42") == len(done) > 0
    assert outer.usd == sum(each.usd for each in inner) == model.billed <= nano_usd("0.1")
    assert all(figures(each) == (TURN_IN, TURN_OUT, TURN_NANO, 1) for each in done)


def test_runs_in_a_pool_of_a_step_are_paid_by_it(sandbox: WasmSandbox) -> None:
    model = writer()
    with opened(sandbox, model) as session, step_log() as log, ThreadPoolExecutor(2) as pool:
        # The threads of the pool are older than the step.
        list(pool.map(lambda each: each, range(8)))

        @step("all", budget={"max_tokens": 1_200})
        def everything() -> list[str | None]:
            def one(number: int) -> str | None:
                try:
                    return session.run(f"goal {number}", limits=ROOMY).answer
                except StepBudgetError:
                    return "refused"

            return list(pool.map(one, range(20)))

        answers = everything()

    (record,) = log.peek()
    assert answers.count("42") == record.llm_calls
    assert 0 < record.llm_calls <= 10
    assert answers.count("refused") == 20 - record.llm_calls
    assert record.input_tokens + record.output_tokens <= 1_200
    assert record.usd == model.billed


def test_a_run_that_begins_after_its_outermost_step_ended_is_paid_by_it(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    """Nothing is written to the chain, which may be read and verified as before."""
    may_go, begun = threading.Event(), []
    said: list[str | None] = []

    def late(session: Session) -> None:
        may_go.wait(10)
        for _ in range(10):
            try:
                said.append(session.run("late", limits=ROOMY).answer)
            except StepBudgetError:
                said.append("refused")

    with (
        SqliteLedger(tmp_path / "ledger.sqlite") as ledger,
        opened(sandbox, writer(), ledger=ledger) as session,
    ):

        @step("plan", budget={"max_tokens": 1_100})
        def plan() -> Run:
            begun.append(threading.Thread(target=late, args=(session,)))
            begun[0].start()
            return session.run("in time", limits=ROOMY)

        chain = str(plan().parent)
        before = len(list(ledger.read(chain)))
        may_go.set()
        begun[0].join(20)
        assert said[0] == "42"
        assert said[-1] == "refused"
        assert len(list(ledger.read(chain))) == before
        assert verify_ledger(ledger).ok


def test_the_limits_of_the_run_itself_return_as_they_do_outside(sandbox: WasmSandbox) -> None:
    with opened(sandbox, writer()) as session:

        @step("plan", budget={"max_tokens": 1_000_000})
        def plan() -> Run:
            return session.run("one", limits=RunLimits(tokens=50))

        assert plan().stop == "budget"


def test_a_sessions_budget_raises_inside_steps_and_returns_outside(sandbox: WasmSandbox) -> None:
    budget = Budget.of(usd="0.0001")
    with opened(sandbox, writer(), budget=budget) as session:

        @step
        def plan() -> Run:
            return session.run("one")

        assert session.run("one").stop == "budget"
        with pytest.raises(StepBudgetError) as caught:
            plan()

    facts = caught.value.to_dict()
    assert (facts["limit"], facts["limit_value"]) == ("max_usd", 0.0001)
    assert "left in this session" in str(caught.value)


def test_what_the_session_has_spent_is_in_the_error(sandbox: WasmSandbox) -> None:
    with opened(sandbox, writer()) as session:
        session.run("before")

        @step(budget={"max_tokens": 0})
        def plan() -> Run:
            return session.run("one")

        with pytest.raises(StepBudgetError) as caught:
            plan()

    assert caught.value.to_dict()["session_cost_usd"] == TURN_NANO / 10**9


def test_a_cap_that_is_shared_with_others_raises_inside_steps(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    total = Budget.of(usd="0.0002")
    ledger = SqliteLedger(tmp_path / "ledger.sqlite")
    with opened(sandbox, writer(), total=total, ledger=ledger) as session:

        @step
        def plan() -> Run:
            return session.run("one")

        with pytest.raises(StepBudgetError) as caught:
            plan()

    assert caught.value.to_dict()["limit_value"] == 0.0002


def test_a_call_without_a_price_is_not_made_where_a_step_limits_money(
    sandbox: WasmSandbox,
) -> None:
    model = writer(name="nobody:knows")
    with opened(sandbox, model) as session:

        @step(budget={"max_usd": 1})
        def plan() -> Run:
            return session.run("one")

        with pytest.raises(StepBudgetError) as caught:
            plan()

    facts = caught.value.to_dict()
    assert (facts["limit"], facts["limit_value"]) == ("max_usd", 1.0)
    assert facts["projected_cost_usd"] is None
    assert model.turns == 0


def test_a_call_without_a_price_is_counted_as_unpriced(sandbox: WasmSandbox) -> None:
    with opened(sandbox, writer(name="nobody:knows")) as session, step_log() as log:
        step(lambda: session.run("one"))()

    (record,) = log.peek()
    assert figures(record) == (TURN_IN, TURN_OUT, 0, 1)
    assert record.unpriced == 1


def test_a_bill_that_is_higher_than_was_reserved_raises_with_what_the_run_had(
    sandbox: WasmSandbox,
) -> None:
    model = writer(used=1_000_000)
    with opened(sandbox, model) as session, step_log() as log:

        @step("plan", budget={"max_tokens": 50_000})
        def plan() -> Run:
            return session.run("one", limits=ROOMY)

        with pytest.raises(StepBudgetError) as caught:
            plan()

    facts = caught.value.facts
    assert isinstance(facts, StepExhaustion)
    assert (facts.step, facts.limit, facts.consumed_tokens) == ("plan", "max_tokens", 1_004_096)
    assert caught.value.answer == "42"
    assert caught.value.run is not None
    assert figures(log.peek()[0])[0] == 1_000_000


def test_a_step_names_the_model_unless_the_call_does(sandbox: WasmSandbox) -> None:
    models = {"small": writer("FINAL('small')", name="fake:s"), "large": writer("FINAL('large')")}
    with opened(sandbox, writer("FINAL('own')"), models=models) as session, step_log() as log:

        @step(model="small")
        def plan(model: str | None = None) -> str | None:
            return session.run("one", model=model).answer

        assert session.run("one").answer == "own"
        assert session.run("one", model="large").answer == "large"
        assert plan() == "small"
        assert plan("large") == "large"
        assert step(lambda: session.run("one").answer)() == "own"

    assert [each.model for each in log.peek()] == ["fake:s", "fake:model", "fake:model"]


def test_a_step_that_a_program_reaches_through_a_function_is_inside(sandbox: WasmSandbox) -> None:
    @step("look up")
    def look_up() -> str:
        charge_step(7, 0, 0)
        found = current_step()
        assert found is not None
        return found.path

    @host_function(policy="read")
    def looked_up() -> str:
        """Look it up."""
        return look_up()

    @host_function(policy="read")
    async def awaited() -> str:
        """Look it up."""
        return look_up()

    program = "FINAL([looked_up(), awaited()])"
    functions = [looked_up, awaited]
    with opened(sandbox, writer(program), functions=functions) as session, step_log() as log:

        @step
        def plan() -> str | None:
            return session.run("one").answer

        assert plan() == '["plan/look_up","plan/look_up#2"]'

    assert [(each.name, each.input_tokens) for each in log.peek()] == [
        ("look up", 7),
        ("look up", 7),
        ("plan", TURN_IN + 14),
    ]


def test_a_run_that_outlives_its_step_is_paid_for_to_its_end(sandbox: WasmSandbox) -> None:
    model = writer("print(1)")
    may_reply = threading.Event()
    model.before = when_set(may_reply)
    with opened(sandbox, model) as session, step_log() as log:

        async def main() -> None:
            begun: list[asyncio.Task[Run]] = []

            @step("short")
            async def short() -> None:
                begun.append(asyncio.create_task(session.arun("one", limits=RunLimits(turns=4))))
                await asyncio.sleep(0)

            @step("outer")
            async def outer() -> None:
                await short()
                may_reply.set()
                await begun[0]
                found = current_step()
                assert found is not None
                assert [row.scope.name for row in found.rows()] == ["outer"]

            await outer()

        asyncio.run(main())

    short, outer = log.peek()
    assert (short.llm_calls, outer.llm_calls) == (0, model.turns)
    assert model.turns > 1


@pytest.mark.parametrize("tokens", [1_100, 1_400, 1_800])
def test_a_run_that_waited_for_money_and_answered_does_not_raise(
    sandbox: WasmSandbox, tokens: int
) -> None:
    """The step pays for one call at a time: the second run waits for what the first gives back."""
    with opened(sandbox, writer()) as session, step_log() as log:

        @step("both", budget={"max_tokens": tokens})
        async def both() -> list[Run]:
            runs = (session.arun(f"goal {number}", limits=ROOMY) for number in range(2))
            return list(await asyncio.gather(*runs))

        found = asyncio.run(both())

    assert [each.answer for each in found] == ["42", "42"]
    assert [each.status for each in log.peek()] == ["completed"]


def test_a_run_that_waited_for_money_in_vain_raises(sandbox: WasmSandbox) -> None:
    model = writer(used=400)
    with opened(sandbox, model) as session, step_log():

        @step("both", budget={"max_tokens": 700})
        async def both() -> list[Run | BaseException]:
            runs = (session.arun(f"goal {number}", limits=ROOMY) for number in range(2))
            return list(await asyncio.gather(*runs, return_exceptions=True))

        found = asyncio.run(both())

    (answered,) = [each for each in found if isinstance(each, Run)]
    (raised,) = [each for each in found if isinstance(each, StepBudgetError)]
    assert (answered.answer, model.turns) == ("42", 1)
    assert raised.to_dict()["limit"] == "max_tokens"
