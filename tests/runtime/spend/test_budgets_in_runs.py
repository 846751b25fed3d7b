"""Budgets of runs: nothing is sent that is not paid for, whoever's the limit is."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tallystick.cli.commands.inspect import _receipt_lines
from tallystick.client import Session
from tallystick.core.budget.amount import Budget
from tallystick.core.charge import ModelUsage, Reserved, RunLimits, nano_usd
from tallystick.core.errors import UsageError
from tallystick.core.records import (
    AskModel,
    ModelFailed,
    ModelRefused,
    ModelReplied,
    QueryAsked,
    ReceiptIssued,
    Record,
    RunEnded,
)
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.model.port import ModelError
from tallystick.model.price_table import Pricing
from tallystick.runtime.runs.history import records_of
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import (
    NANO_IN,
    NANO_OUT,
    PRICES,
    PRICING,
    ModelDouble,
    block,
    by_prompt,
    reported,
)

ROOMY = 10_000_000


def limits(dollars: str | None = None, **more: int) -> RunLimits:
    usd = None if dollars is None else nano_usd(dollars)
    return RunLimits(**{"tokens": ROOMY, "usd": usd, **more})  # type: ignore[arg-type]


class Ran:
    """A run on a ledger of its own, and what it left."""

    def __init__(self, session: Session, run: Run) -> None:
        self.session = session
        self.run = run
        self.records: list[Record] = list(records_of(session.ledger, run.run))

    def only(self, kind: type) -> list:  # type: ignore[type-arg]
        return [each for each in self.records if isinstance(each, kind)]


def ran(
    sandbox: WasmSandbox, model: ModelDouble, allowed: RunLimits, pricing: Pricing = PRICING
) -> Ran:
    session = Session(model=model, ledger=MemoryLedger(), sandbox=sandbox, pricing=pricing)
    return Ran(session, session.run("what is it?", limits=allowed))


def counting(turns: int = 100) -> ModelDouble:
    """Writes a program each turn that answers nothing."""
    made = iter(range(turns))
    return ModelDouble(by_prompt(lambda prompt: block(f"n = {next(made)}\nn")))


def test_a_run_stops_before_the_call_that_might_pass_its_cap(sandbox: WasmSandbox) -> None:
    model = counting()
    found = ran(sandbox, model, limits("0.03", reply_tokens=1_000))

    assert found.run.stop == "budget"
    assert found.run.partial
    assert 1 < len(model.asked) < 30
    assert model.billed <= nano_usd("0.03")
    assert found.run.charge.usd == model.billed
    (refused,) = found.only(ModelRefused)
    assert (refused.dimension, refused.scope) == ("usd", "this run")
    assert found.session.replay(found.run.run).held


def test_what_is_reserved_is_the_worst_and_is_written_before_the_call(
    sandbox: WasmSandbox,
) -> None:
    found = ran(sandbox, ModelDouble(block("FINAL(1)")), limits("1"))
    (asked,), (replied,) = found.only(AskModel), found.only(ModelReplied)

    reserved = asked.reserved
    assert reserved is not None
    assert reserved.usd == reserved.tokens_in * NANO_IN + reserved.tokens_out * NANO_OUT
    assert reserved.price == "declared"
    assert replied.settled.figures == "reported"
    assert replied.settled.tokens_in <= reserved.tokens_in


def test_the_reply_is_capped_by_what_is_left_and_the_request_says_so(sandbox: WasmSandbox) -> None:
    model = ModelDouble(block("FINAL(1)"))
    found = ran(sandbox, model, limits("0.004", reply_tokens=4_096))
    (asked,) = found.only(AskModel)

    assert model.caps == [asked.tokens_out_max]
    assert 16 <= asked.tokens_out_max < 1_000
    assert found.session.replay(found.run.run).held


@pytest.mark.parametrize(
    ("usage", "flag"),
    [
        (ModelUsage(tokens_in=0, tokens_out=0, reported=True), "usage_zero"),
        (ModelUsage(tokens_in=-1, tokens_out=5, reported=True), "usage_negative"),
        (ModelUsage(tokens_in=9, tokens_out=9, reported=False), "usage_missing"),
        (
            ModelUsage(
                tokens_in=9,
                tokens_out=9,
                reported=True,
                raw={
                    "prompt_tokens": 9,
                    "completion_tokens": 9,
                    "prompt_tokens_details": {"cached_tokens": 50},
                },
            ),
            "usage_impossible",
        ),
    ],
)
def test_a_report_that_cannot_be_true_settles_at_what_was_reserved(
    sandbox: WasmSandbox, usage: ModelUsage, flag: str
) -> None:
    found = ran(sandbox, ModelDouble(block("FINAL(1)"), usage=usage), limits("1"))
    (asked,), (replied,) = found.only(AskModel), found.only(ModelReplied)

    assert (replied.settled.figures, replied.settled.flags) == ("reserved", (flag,))
    assert found.run.charge.usd == asked.reserved.usd


def test_a_report_beyond_the_reservation_is_recorded_and_the_next_call_refused(
    sandbox: WasmSandbox,
) -> None:
    found = ran(sandbox, ModelDouble(block("n = 1\nn"), usage=reported(900_000, 1)), limits("0.5"))
    (replied,) = found.only(ModelReplied)

    assert replied.settled.flags == ("over_reserved",)
    assert found.run.charge.usd == 900_000 * NANO_IN + NANO_OUT
    assert found.run.stop == "budget"


def test_what_was_refused_before_any_work_costs_nothing(sandbox: WasmSandbox) -> None:
    failures = [ModelError(reason="rate_limit", message="later", status=429, billed=False)]
    model = ModelDouble(block("FINAL(1)"), failures=failures)
    found = ran(sandbox, model, limits("1"))
    (failed,) = found.only(ModelFailed)

    assert failed.settled.figures == "returned"
    assert found.run.charge.usd == model.billed


def test_the_time_of_a_failed_attempt_counts_as_a_resume_would_count_it(
    sandbox: WasmSandbox,
) -> None:
    failures = [ModelError(reason="rate_limit", message="later", status=429, billed=False)]
    model = ModelDouble(block("FINAL(1)"), failures=failures, before=lambda call: time.sleep(0.05))
    found = ran(sandbox, model, limits("1"))
    (row,) = [each for each in found.session.engine.scopes.rows() if each.scope.kind == "session"]
    (failed,) = found.only(ModelFailed)

    assert failed.wall_ms >= 50
    assert row.spent.wall_ms == found.run.charge.wall_ms


def test_what_may_have_been_billed_is_charged_as_reserved(sandbox: WasmSandbox) -> None:
    failures = [ModelError(reason="timeout", message="no reply")]
    model = ModelDouble(block("FINAL(1)"), failures=failures)
    found = ran(sandbox, model, limits("1"))
    (failed,) = found.only(ModelFailed)
    first = found.only(AskModel)[0]

    assert failed.settled.usd == first.reserved.usd
    assert failed.settled.flags == ("unknown_outcome",)


def test_a_cancelled_call_is_written_and_charged(sandbox: WasmSandbox) -> None:
    model = ModelDouble(delay=30)
    ledger = MemoryLedger()

    async def cancelled() -> None:
        with Session(model=model, ledger=ledger, sandbox=sandbox, pricing=PRICING) as session:
            work = asyncio.ensure_future(session.arun("?", limits=limits("1")))
            await asyncio.to_thread(model.begun.wait)
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work

    asyncio.run(cancelled())
    (row,) = ledger.runs()
    records = list(records_of(ledger, row.run))
    (asked,) = [each for each in records if isinstance(each, AskModel)]
    (left,) = [each for each in records if isinstance(each, ModelFailed)]
    (ended,) = [each for each in records if isinstance(each, RunEnded)]

    assert (left.reason, left.settled and left.settled.flags) == ("cancelled", ("cancelled",))
    assert ended.stop == "cancelled"
    assert asked.reserved is not None
    assert ended.charge.usd == asked.reserved.usd
    with Session(ledger=ledger, sandbox=sandbox) as session:
        assert session.replay(row.run).held


# -- prices ------------------------------------------------------------------------------------


def test_under_a_cap_in_dollars_an_unknown_price_is_refused(sandbox: WasmSandbox) -> None:
    model = ModelDouble(name="nobody:knows")
    found = ran(sandbox, model, limits("1"))

    assert (found.run.stop, model.asked) == ("budget", [])
    assert 'declare input and output in [prices."nobody:knows"]' in found.run.detail


@pytest.mark.parametrize(
    ("pricing", "cap", "price"),
    [(Pricing(waived=True), "1", "waived"), (Pricing(), None, "unknown")],
)
def test_without_a_price_the_cost_is_unknown_and_not_zero(
    sandbox: WasmSandbox, pricing: Pricing, cap: str | None, price: str
) -> None:
    model = ModelDouble(name="nobody:knows", answers=block("FINAL(1)"))
    found = ran(sandbox, model, limits(cap), pricing)
    (issued,) = found.only(ReceiptIssued)

    assert found.run.answered
    assert found.run.charge.usd is None
    (line,) = issued.receipt.models
    assert (line.unpriced, line.usd, line.price) == (1, 0, price)


def rate_limited(name: str = "fake:model") -> ModelDouble:
    """Is refused once with 429, then answers."""
    limit = ModelError(
        reason="rate_limit", message="slow", kind="transient", status=429, billed=False
    )
    return ModelDouble(name=name, answers=block("FINAL(1)"), failures=[limit])


@pytest.mark.parametrize(("pricing", "cap"), [(Pricing(waived=True), "1"), (Pricing(), None)])
def test_without_a_price_the_cost_is_unknown_also_after_a_rate_limit(
    sandbox: WasmSandbox, pricing: Pricing, cap: str | None
) -> None:
    model = rate_limited("nobody:knows")
    found = ran(sandbox, model, limits(cap), pricing)
    (issued,) = found.only(ReceiptIssued)
    (line,) = issued.receipt.models

    assert found.run.answered
    assert [each.settled.figures for each in found.only(ModelFailed)] == ["returned"]
    assert found.run.charge.usd is None
    assert (line.calls, line.failed, line.unpriced) == (2, 1, 1)
    shown = "\n".join(_receipt_lines("R", issued.receipt))
    assert "cost      price unknown" in shown
    assert "$0" not in shown


def test_with_a_price_a_rate_limit_costs_nothing(sandbox: WasmSandbox) -> None:
    found = ran(sandbox, rate_limited(), limits("1"))

    assert [each.settled.usd for each in found.only(ModelFailed)] == [0]
    assert found.run.charge.usd == found.only(ModelReplied)[0].settled.usd


def test_with_its_own_tokenizer_a_models_prompts_are_counted_and_nobody_elses(
    sandbox: WasmSandbox,
) -> None:
    class Words:
        def count(self, text: str) -> int:
            return len(text.split())

    answer = block("FINAL(llm_query('one two three'))")
    reserved: dict[str, list[Reserved]] = {}
    for name in ("fake:model", "fake:other"):
        model = ModelDouble(
            name=name, answers=by_prompt(lambda prompt: "ok" if "one two" in prompt else answer)
        )
        pricing = Pricing(declared=PRICES, tokenizer=Words(), tokenizer_of="fake:model")
        found = ran(sandbox, model, limits("1"), pricing)
        asked = [each for each in found.records if isinstance(each, AskModel | QueryAsked)]
        reserved[name] = [each.reserved for each in asked if each.reserved is not None]

    assert [each.counted for each in reserved["fake:model"]] == [True, True]
    assert [each.counted for each in reserved["fake:other"]] == [False, False]
    for counted, bounded in zip(reserved["fake:model"], reserved["fake:other"], strict=True):
        assert counted.tokens_in < bounded.tokens_in


# -- what the model is told --------------------------------------------------------------------


def test_the_model_is_told_at_half_and_more_once_each(sandbox: WasmSandbox) -> None:
    model = counting()
    found = ran(sandbox, model, limits("0.012", reply_tokens=100))
    said = "\n".join(model.asked)

    assert said.count("You have used 50 % of your budget ($0.0") == 1
    assert found.session.replay(found.run.run).held


# -- scopes around a run -----------------------------------------------------------------------


def test_all_runs_of_a_session_share_its_budget(sandbox: WasmSandbox) -> None:
    model = counting(1_000)
    session = Session(
        model=model,
        ledger=MemoryLedger(),
        sandbox=sandbox,
        pricing=PRICING,
        budget=Budget.of(usd="0.006"),
    )
    asked: Any = {"limits": limits(reply_tokens=200, turns=3), "strategy": "code"}
    runs = [session.run("?", **asked) for _ in range(8)]

    assert [each.stop for each in runs].count("budget") > 1
    assert "left in this session" in runs[-1].detail
    assert model.billed <= nano_usd("0.006")
    assert sum(each.charge.usd or 0 for each in runs) == model.billed


def test_all_runs_on_a_file_share_the_total_also_those_of_others(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    total = Budget.of(usd="0.006")
    models = [counting(1_000), counting(1_000)]
    stops = []
    for model in models * 4:
        ledger = SqliteLedger(tmp_path / "ledger.db")
        with Session(
            model=model, ledger=ledger, sandbox=sandbox, pricing=PRICING, total=total
        ) as session:
            stops.append(session.run("?", limits=limits(reply_tokens=200, turns=3)))

    assert "left in this deployment" in stops[-1].detail
    assert sum(each.billed for each in models) <= nano_usd("0.006")


def test_a_total_needs_a_ledger_that_others_can_see(sandbox: WasmSandbox) -> None:
    with (
        Session(
            model=ModelDouble(), ledger=MemoryLedger(), sandbox=sandbox, total=Budget.of(usd=1)
        ) as session,
        pytest.raises(UsageError, match="a ledger in a file"),
    ):
        session.run("?")


# -- receipts ----------------------------------------------------------------------------------


def test_a_receipt_is_issued_with_the_end_and_adds_up(sandbox: WasmSandbox) -> None:
    model = counting()
    found = ran(sandbox, model, limits("0.03", reply_tokens=1_000))
    (issued,) = found.only(ReceiptIssued)
    receipt = issued.receipt

    assert receipt.schema == "tallystick.receipt.v1"
    assert (receipt.status, receipt.stop) == ("denied", "budget")
    assert sum(each.usd for each in receipt.models) == model.billed == receipt.charge.usd
    assert sum(each.calls for each in receipt.models) == receipt.charge.model_calls
    assert receipt.refused_calls == 1
    assert receipt.usd_cap == nano_usd("0.03")
    assert isinstance(found.records[-1], RunEnded)
    assert isinstance(found.records[-2], ReceiptIssued)
