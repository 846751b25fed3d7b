"""Receipts of steps: what is on the ledger of the steps that runs were begun in."""

from __future__ import annotations

import asyncio
import contextvars
import io
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.run.one_program_model import ROOMY, TURN_NANO, opened, writer

from tallystick.attachments.memory import MemoryAttachments
from tallystick.core.errors import LedgerError, LedgerFull, UsageError
from tallystick.core.records import (
    FIGURE_MAX,
    STEP_SCHEMA,
    ErrorBoundary,
    Receipt,
    ReceiptIssued,
    Record,
    RunStarted,
    StepEntered,
    StepLeft,
    StepReceipt,
)
from tallystick.core.step import StepBudgetError, StepRegistry, StepsNotReplayed
from tallystick.core.views.receipt import step_lines, step_totals
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.port import Ledger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger
from tallystick.runtime.calls.functions import host_function
from tallystick.runtime.runs.history import recorded_model, records_of, resolve_run, runs_inside
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.steps import active
from tallystick.steps.active import StepLog
from tallystick.steps.decorator import charge_step, reset_steps, step, step_log
from tallystick.testing.models import when_set
from tallystick.upkeep.transfer import export_run_with_attachments, import_run_with_attachments


@pytest.fixture(autouse=True)
def log() -> Iterator[StepLog]:
    """A log for each test: paths count how often a step was entered in one."""
    with step_log() as opened:
        yield opened


class Failing(MemoryLedger):
    """Takes nothing of steps while it is full."""

    full = False

    def submit(self, run: str, drafts: Any, **more: Any) -> Any:
        if self.full and any(each.tag.startswith("step.") for each in drafts):
            failed: Future[None] = Future()
            failed.set_exception(LedgerFull(where="memory"))
            return more["expected"], failed
        return super().submit(run, drafts, **more)


def chains_in(ledger: Ledger) -> list[str]:
    return [
        row.run
        for row in ledger.runs()
        if isinstance(next(records_of(ledger, row.run), None), StepEntered)
    ]


def chain_in(ledger: Ledger) -> list[Record]:
    (chain,) = chains_in(ledger)
    assert verify_ledger(ledger).ok
    return list(records_of(ledger, chain))


def told(records: Sequence[Record]) -> list[str]:
    """The records of a chain, shortly."""
    said = []
    for record in records:
        if isinstance(record, StepEntered):
            said.append(f"+{record.path}")
        elif isinstance(record, StepLeft):
            said.append(f"-{record.receipt.path} {record.receipt.status}")
    return said


def receipts(records: Sequence[Record]) -> dict[str, StepReceipt]:
    return {each.receipt.path: each.receipt for each in records if isinstance(each, StepLeft)}


def run_receipts(ledger: Ledger, chain: str) -> list[Receipt]:
    return [
        record.receipt
        for run in runs_inside(ledger, chain)
        for record in records_of(ledger, run)
        if isinstance(record, ReceiptIssued)
    ]


def test_a_run_inside_steps_names_their_chain_and_its_step(sandbox: WasmSandbox) -> None:
    ledger = MemoryLedger()
    with opened(sandbox, writer(), ledger=ledger) as session:

        @step("inner", model="fake:model", budget={"max_tokens": 50_000, "max_usd": 1}, key="k/1")
        def inner() -> Run:
            return session.run("one", limits=ROOMY)

        @step("outer", error_boundary="escalate")
        def outer() -> Run:
            return inner()

        run = outer()
        outside = session.run("two")

    records = chain_in(ledger)
    assert told(records) == [
        "+outer",
        "+outer/inner[k%2F1]",
        "-outer/inner[k%2F1] completed",
        "-outer completed",
    ]
    entered = records[1]
    assert isinstance(entered, StepEntered)
    assert (entered.name, entered.function, entered.key) == ("inner", "inner", "k/1")
    assert (entered.model, entered.tokens_max, entered.usd_max) == ("fake:model", 50_000, 10**9)
    assert entered.error_boundary == "fail"
    assert run.parent == chains_in(ledger)[0]
    assert run.step == entered.path
    started, *_, issued, _ended = records_of(ledger, run.run)
    assert isinstance(started, RunStarted)
    assert (started.parent, started.step) == (run.parent, run.step)
    assert isinstance(issued, ReceiptIssued)
    assert (issued.receipt.parent, issued.receipt.step) == (run.parent, run.step)
    assert (outside.parent, outside.step) == (None, None)


def test_a_receipt_says_what_the_step_came_to(sandbox: WasmSandbox, log: StepLog) -> None:
    ledger = MemoryLedger()
    with opened(sandbox, writer(), ledger=ledger) as session:

        @step
        def plan() -> list[str]:
            charge_step(5, 6, None, "elsewhere")
            return [session.run("one").run, session.run("two").run]

        runs = plan()

    found = receipts(chain_in(ledger))["plan"]
    (record,) = log.peek()
    assert found.schema == STEP_SCHEMA
    assert found.chain == chains_in(ledger)[0]
    assert (found.name, found.function, found.model) == ("plan", "plan", "fake:model")
    assert (found.input_tokens, found.output_tokens) == (record.input_tokens, record.output_tokens)
    assert (found.usd, found.llm_calls, found.unpriced) == (2 * TURN_NANO, 3, 1)
    assert (found.runs, found.runs_begun, found.unfinished) == (tuple(runs), 2, 0)
    assert found.started_at <= found.completed_at
    assert found.error is None


def test_steps_without_a_run_are_written_with_the_others(sandbox: WasmSandbox) -> None:
    ledger = MemoryLedger()
    with opened(sandbox, writer(), ledger=ledger) as session:

        @step
        def charged() -> None:
            charge_step(1, 1, 1)

        @step
        def plan() -> None:
            charged()
            session.run("one")
            charged()

        charged()
        plan()

    records = chain_in(ledger)
    assert told(records) == [
        "+plan",
        "+plan/charged",
        "-plan/charged completed",
        "+plan/charged#2",
        "-plan/charged#2 completed",
        "-plan completed",
    ]
    assert receipts(records)["plan"].usd == TURN_NANO + 2 * 10**9


def test_steps_without_any_run_leave_no_chain(sandbox: WasmSandbox) -> None:
    ledger = MemoryLedger()
    with opened(sandbox, writer(), ledger=ledger) as session:
        step(lambda: charge_step(1, 1, 1))()
        session.run("one")

    assert chains_in(ledger) == []


def test_of_very_many_steps_before_the_first_run_the_last_are_kept(
    sandbox: WasmSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(active, "STEPS_HELD_MAX", 3)
    ledger = MemoryLedger()
    with opened(sandbox, writer(), ledger=ledger) as session:

        @step
        def nothing() -> None: ...

        @step
        def plan() -> None:
            for _ in range(5):
                nothing()
            session.run("one")

        plan()

    records = chain_in(ledger)
    assert [line.path for line in step_lines(records)] == [
        "plan", "plan/nothing#3", "plan/nothing#4", "plan/nothing#5",
    ]  # fmt: skip
    assert isinstance(records[0], StepEntered)
    assert records[0].missed == 2


def test_the_receipts_of_steps_add_up_to_those_of_their_runs(sandbox: WasmSandbox) -> None:
    model = writer("FINAL(llm_query('x' * 40))", queries="y" * 20)
    ledger = MemoryLedger()
    with opened(sandbox, model, ledger=ledger) as session:

        @step(key=lambda number: str(number))
        async def one(number: int) -> None:
            await session.arun(f"goal {number}", limits=ROOMY)
            if number % 2:
                await one(number // 2)

        @step
        async def everything() -> None:
            await session.arun("first", limits=ROOMY)
            await asyncio.gather(*(one(number) for number in range(8)))

        asyncio.run(everything())
        (chain,) = chains_in(ledger)
        held = [session.replay(run).held for run in runs_inside(ledger, chain)]

    lines = step_lines(chain_in(ledger))
    of_runs = run_receipts(ledger, chain)
    totals = step_totals(lines)
    assert len(of_runs) == sum(line.receipt.runs_begun for line in lines if line.receipt)
    assert totals.usd == sum(each.usd for run in of_runs for each in run.models) == model.billed
    assert totals.llm_calls == sum(run.charge.model_calls for run in of_runs)
    assert totals.input_tokens == sum(run.charge.tokens_in for run in of_runs)
    assert totals.output_tokens == sum(run.charge.tokens_out for run in of_runs)
    for line in lines:
        assert line.receipt is not None
        inside = [run for run in of_runs if f"{run.step}/".startswith(f"{line.path}/")]
        assert line.receipt.usd == sum(each.usd for run in inside for each in run.models)
    assert all(held)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_threads_write_into_one_chain(sandbox: WasmSandbox, kind: str, tmp_path: Path) -> None:
    ledger = MemoryLedger() if kind == "memory" else SqliteLedger(tmp_path / "ledger.sqlite")
    with opened(sandbox, writer(), ledger=ledger) as session:

        @step(key=lambda number: str(number))
        def one(number: int) -> None:
            session.run(f"goal {number}", limits=ROOMY)

        @step
        def everything() -> None:
            threads = [
                threading.Thread(target=contextvars.copy_context().run, args=(one, number))
                for number in range(12)
            ]
            for each in threads:
                each.start()
            for each in threads:
                each.join()

        everything()

    records = chain_in(ledger)
    said = told(records)
    assert len(said) == len(set(said)) == 2 * 13
    assert (said[0], said[-1]) == ("+everything", "-everything completed")
    inner = [each for path, each in receipts(records).items() if path != "everything"]
    assert [len(each.runs) for each in inner] == [1] * 12


def test_steps_that_nothing_encloses_have_chains_of_their_own(sandbox: WasmSandbox) -> None:
    ledger = MemoryLedger()
    with opened(sandbox, writer(), ledger=ledger) as session:

        @step
        async def plan() -> Run:
            return await session.arun("one", limits=ROOMY)

        async def main() -> list[Run]:
            return list(await asyncio.gather(plan(), plan()))

        runs = asyncio.run(main())

    assert {each.parent for each in runs} == set(chains_in(ledger))
    assert {each.step for each in runs} == {"plan", "plan#2"}


def test_two_sessions_on_one_file_share_the_chain_of_a_step(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.sqlite"
    elsewhere = MemoryLedger()

    @step
    def plan() -> list[Run]:
        runs = []
        for ledger in (SqliteLedger(path), SqliteLedger(path), elsewhere):
            with opened(sandbox, writer(), ledger=ledger) as session:
                runs.append(session.run("one"))
        return runs

    first, second, third = plan()

    assert first.parent == second.parent != third.parent
    assert third.parent == chains_in(elsewhere)[0]
    named = (first.run, second.run, third.run)
    assert receipts(chain_in(elsewhere))["plan"].runs == named
    with SqliteLedger(path) as ledger:
        assert receipts(chain_in(ledger))["plan"].runs == named


@pytest.mark.parametrize(
    ("boundary", "status"), [("fail", "failed"), ("continue", "skipped"), ("escalate", "escalated")]
)
def test_a_boundary_is_in_the_receipt(
    sandbox: WasmSandbox, boundary: ErrorBoundary, status: str
) -> None:
    ledger = MemoryLedger()
    with opened(sandbox, writer(), ledger=ledger) as session:

        @step(budget={"max_tokens": 0}, error_boundary=boundary)
        def poor() -> Run:
            return session.run("one")

        @step(error_boundary="continue")
        def plan() -> None:
            poor()

        plan()

    found = receipts(chain_in(ledger))
    outer = "completed" if boundary == "continue" else "skipped"
    assert (found["plan/poor"].status, found["plan"].status) == (status, outer)
    assert "0 left in step poor" in (found["plan/poor"].error or "")
    # The run was begun and ended, though its first call was refused.
    assert len(found["plan/poor"].runs) == len(runs_inside(ledger, found["plan"].chain)) == 1


def test_any_other_error_is_in_the_receipt_and_goes_through(sandbox: WasmSandbox) -> None:
    ledger = MemoryLedger()
    with opened(sandbox, writer(), ledger=ledger) as session:

        @step
        def plan() -> None:
            session.run("one")
            raise ValueError("\ud800" + "x" * 10_000)

        with pytest.raises(ValueError, match="xxx"):
            plan()

    found = receipts(chain_in(ledger))["plan"]
    assert found.status == "failed"
    assert found.error is not None
    assert found.error.startswith("ValueError: \\ud800xxx")
    assert len(found.error) < 5_000


def test_a_step_that_is_cancelled_has_a_receipt(sandbox: WasmSandbox) -> None:
    ledger = MemoryLedger()
    with opened(sandbox, writer(), ledger=ledger) as session:

        @step
        async def plan(ran: asyncio.Event) -> None:
            await session.arun("one")
            ran.set()
            await asyncio.Event().wait()

        async def main() -> None:
            ran = asyncio.Event()
            task = asyncio.create_task(plan(ran))
            await ran.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())

    assert receipts(chain_in(ledger))["plan"].error == "CancelledError"


def test_a_run_that_never_began_is_in_no_receipt(sandbox: WasmSandbox) -> None:
    ledger = MemoryLedger()
    with opened(sandbox, writer(), ledger=ledger) as session:

        @step
        def plan() -> str:
            with pytest.raises(UsageError):
                session.run("one", model="no:such model")
            return session.run("two").run

        run = plan()
        with pytest.raises(UsageError):
            step(lambda: session.run("one", model="no:such model"))()

    found = receipts(chain_in(ledger))["plan"]
    assert (found.runs, found.runs_begun) == ((run,), 1)


def test_a_run_that_outlives_its_step_is_named_by_it_and_counted_around(
    sandbox: WasmSandbox,
) -> None:
    ledger, model = MemoryLedger(), writer()
    may_reply = threading.Event()
    model.before = when_set(may_reply)
    with opened(sandbox, model, ledger=ledger) as session:

        @step
        async def short(begun: list[asyncio.Task[Run]]) -> None:
            begun.append(asyncio.create_task(session.arun("one")))
            await asyncio.sleep(0)

        @step
        async def outer() -> Run:
            begun: list[asyncio.Task[Run]] = []
            await short(begun)
            may_reply.set()
            return await begun[0]

        run = asyncio.run(outer())

    found = receipts(chain_in(ledger))
    assert run.step == "outer/short"
    assert found["outer/short"].runs == (run.run,)
    assert (found["outer/short"].usd, found["outer/short"].unfinished) == (0, 1)
    assert (found["outer"].usd, found["outer"].unfinished) == (TURN_NANO, 0)


def test_a_run_that_outlives_all_steps_is_still_in_their_chain(sandbox: WasmSandbox) -> None:
    ledger, model = MemoryLedger(), writer()
    may_reply = threading.Event()
    model.before = when_set(may_reply)
    with opened(sandbox, model, ledger=ledger) as session:

        @step
        async def short() -> asyncio.Task[Run]:
            task = asyncio.create_task(session.arun("one"))
            await asyncio.sleep(0)
            return task

        async def main() -> Run:
            task = await short()
            may_reply.set()
            return await task

        run = asyncio.run(main())

    assert run.parent == chains_in(ledger)[0]
    assert told(chain_in(ledger)) == ["+short", "-short completed"]


def test_a_step_that_a_program_reaches_is_inside_the_one_that_began_the_run(
    sandbox: WasmSandbox,
) -> None:
    @step("look up")
    def look_up() -> str:
        charge_step(7, 0, 0)
        return "found"

    @host_function(policy="read")
    def looked_up() -> str:
        """Look it up."""
        return look_up()

    ledger = MemoryLedger()
    model = writer("FINAL(looked_up())")
    with opened(sandbox, model, ledger=ledger, functions=[looked_up]) as session:

        @step
        def plan() -> Run:
            return session.run("one")

        run = plan()
        report = session.replay(run.run)

    assert told(chain_in(ledger)) == [
        "+plan", "+plan/look_up", "-plan/look_up completed", "-plan completed",
    ]  # fmt: skip
    assert report.held
    # Replay unplugs the host: nothing was entered again.
    assert len(chains_in(ledger)) == 1


def test_what_cannot_be_written_is_raised_where_the_step_ended_well(
    sandbox: WasmSandbox, log: StepLog
) -> None:
    ledger = Failing()
    with opened(sandbox, writer(), ledger=ledger) as session:

        @step
        def inner() -> str | None:
            answer = session.run("one").answer
            ledger.full = True
            return answer

        @step
        def plan() -> None:
            with pytest.raises(LedgerFull):
                inner()
            ledger.full = False

        with pytest.raises(LedgerError, match="could not be written before"):
            plan()

    # It was left all the same, and what is on the ledger holds.
    assert [each.status for each in log.peek()] == ["completed", "completed"]
    assert told(chain_in(ledger)) == ["+plan", "+plan/inner"]
    assert step_totals(step_lines(chain_in(ledger))).usd == 0


@pytest.mark.parametrize("boundary", ["fail", "escalate"])
def test_what_cannot_be_written_never_masks_the_error_of_a_step(
    sandbox: WasmSandbox, boundary: ErrorBoundary
) -> None:
    ledger = Failing()
    with opened(sandbox, writer(), ledger=ledger) as session:

        @step(budget={"max_tokens": 20_000}, error_boundary=boundary)
        def poor() -> None:
            session.run("one")
            ledger.full = True
            charge_step(30_000, 0, 0)

        @step
        def wrong() -> None:
            session.run("one")
            ledger.full = True
            raise ValueError("wrong")

        with pytest.raises(StepBudgetError) as exhausted:
            poor()
        ledger.full = False
        with pytest.raises(ValueError, match="wrong") as failed:
            wrong()

    assert exhausted.value.escalated == (boundary == "escalate")
    for caught in (exhausted.value, failed.value):
        (note,) = caught.__notes__
        assert "was not written: memory cannot grow" in note


def test_a_boundary_that_ends_an_error_does_not_hide_that_of_the_ledger(
    sandbox: WasmSandbox,
) -> None:
    ledger = Failing()
    with opened(sandbox, writer(), ledger=ledger) as session:

        @step(budget={"max_tokens": 20_000}, error_boundary="continue")
        def poor() -> None:
            session.run("one")
            ledger.full = True
            charge_step(30_000, 0, 0)

        with pytest.raises(LedgerFull) as caught:
            poor()

    assert isinstance(caught.value.__context__, StepBudgetError)


def test_no_run_begins_in_steps_that_cannot_be_written_and_a_later_one_tries_again(
    sandbox: WasmSandbox,
) -> None:
    ledger, model = Failing(), writer()
    ledger.full = True
    with opened(sandbox, model, ledger=ledger) as session:

        @step
        def plan() -> Run:
            with pytest.raises(LedgerFull):
                session.run("one")
            assert model.turns == 0
            ledger.full = False
            return session.run("two")

        run = plan()

    # The first was claimed, and nothing could be written to it.
    assert told(chain_in(ledger)) == ["+plan", "-plan completed"]
    assert run.parent == chains_in(ledger)[0]
    assert receipts(chain_in(ledger))["plan"].runs == (run.run,)


def test_a_chain_is_no_run(sandbox: WasmSandbox) -> None:
    ledger = MemoryLedger()
    with opened(sandbox, writer(), ledger=ledger) as session:

        @step
        def plan() -> list[Run]:
            return [session.run("one"), session.run("two")]

        runs = [each.run for each in plan()]
        (chain,) = chains_in(ledger)

        with pytest.raises(StepsNotReplayed) as caught:
            session.replay(chain)
        with pytest.raises(UsageError, match="name one of its runs"):
            recorded_model(ledger, chain)

    assert sorted(caught.value.runs) == sorted(runs)
    assert all(run in str(caught.value) for run in runs)
    assert resolve_run(ledger, "last") == max(runs)
    assert resolve_run(ledger, chain) == chain


def test_a_chain_is_exported_and_imported_without_attachments(sandbox: WasmSandbox) -> None:
    ledger, kept = MemoryLedger(), MemoryAttachments()
    with opened(sandbox, writer(), ledger=ledger, attachments=kept) as session:
        step(lambda: session.run("one"))()
    (chain,) = chains_in(ledger)
    file, other = io.BytesIO(), MemoryLedger()

    sent = export_run_with_attachments(ledger, kept, chain, file)
    file.seek(0)
    import_run_with_attachments(other, MemoryAttachments(), file)

    assert sent.attachments == 0
    assert verify_ledger(other).ok
    assert list(records_of(other, chain)) == list(records_of(ledger, chain))


def test_absurd_figures_are_written_as_the_largest_there_are(sandbox: WasmSandbox) -> None:
    ledger = MemoryLedger()
    with opened(sandbox, writer(), ledger=ledger) as session:

        @step(key="\ud800")
        def plan() -> Run:
            run = session.run("one")
            charge_step(10**30, 10**30, 10**30, "\udfff")
            return run

        run = plan()

    (found,) = receipts(chain_in(ledger)).values()
    assert found.path == run.step == "plan[\\ud800]"
    assert found.model == "\\udfff"
    assert (found.input_tokens, found.output_tokens) == (FIGURE_MAX, FIGURE_MAX)


def test_a_step_that_is_forgotten_stays_open_on_the_ledger(sandbox: WasmSandbox) -> None:
    ledger = MemoryLedger()
    with opened(sandbox, writer(), ledger=ledger) as session:

        @step
        def plan() -> None:
            session.run("one")
            reset_steps(StepRegistry())

        plan()

    assert told(chain_in(ledger)) == ["+plan"]
