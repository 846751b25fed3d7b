"""Calls in doubt: found without reading every run, and closed so that a resume asks again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.ledger.builders import draft, drafted, run_id
from tests.upkeep.transfer_builders import started

from tallystick.client import Session
from tallystick.core.budget.amount import Budget
from tallystick.core.chain import Head
from tallystick.core.charge import Charge, Reserved
from tallystick.core.errors import UsageError
from tallystick.core.records import (
    DOUBTED,
    AskModel,
    CallHost,
    ModelFailed,
    QueryAsked,
    QueryFailed,
    Record,
    RunEnded,
    RunResumed,
)
from tallystick.core.resume_errors import ResumeRefused, RunInDoubt
from tallystick.core.views.open_calls import open_calls, open_intents
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.port import Ledger
from tallystick.ledger.scopes import SharedScopes
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger
from tallystick.runtime.calls.functions import host_function
from tallystick.runtime.runs.history import records_of
from tallystick.runtime.runs.in_doubt import close_calls, doubtful_run, runs_in_doubt, status_of
from tallystick.runtime.runs.lock import lock_run
from tallystick.runtime.spend.scopes import DEPLOYMENT
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import PRICING, ModelDouble, block, by_prompt

# They take long: CI runs them.
AT = 1_700_000_000_000
SENT: list[str] = []


@host_function(policy="effect")
def send(what: str) -> int:
    """Send it."""
    SENT.append(what)
    return len(SENT)


REPLIES = [
    block("n = 20\nprint(llm_query('what?'))"),
    block("print(send('x'))"),
    block("out = llm_query_batched(['a', 'b', 'c'])\nn += len(out)\nprint(out)"),
    block("FINAL(n)"),
]


def turns() -> ModelDouble:
    """A model that answers the run by its turn, and programs with a word."""
    return ModelDouble(
        lambda call: REPLIES[call.turn], queries=by_prompt(lambda prompt: f"said {prompt}")
    )


def opened(sandbox: WasmSandbox, ledger: Ledger, like: Session | None = None) -> Session:
    return Session(
        model=turns(),
        functions=[send],
        ledger=ledger,
        attachments=None if like is None else like.attachments,
        sandbox=sandbox,
        pricing=PRICING,
    )


def cut(records: Sequence[Record], run: str) -> MemoryLedger:
    """A ledger that has these records, as if a process had died behind them."""
    ledger = MemoryLedger()
    fence = ledger.claim(run, create=True)
    drafts = [drafted(each) for each in records]
    ledger.append(run, drafts, expected=Head.of_nothing(), fence=fence, forced=False)
    return ledger


@pytest.mark.parametrize("charge", [True, False])
def test_wherever_a_run_was_cut_off_its_paid_calls_can_be_closed(
    sandbox: WasmSandbox, charge: bool
) -> None:
    SENT.clear()
    first = opened(sandbox, MemoryLedger())
    run = first.run("what is it, in the end of all this?")
    records = list(records_of(first.ledger, run.run))
    closed_at = []
    for at in range(1, len(records)):
        before = records[:at]
        paid = [each for each in open_calls(before) if isinstance(each, AskModel | QueryAsked)]
        if not paid:
            continue
        ledger = cut(before, run.run)
        session = opened(sandbox, ledger, first)
        with pytest.raises(RunInDoubt):
            session.resume(run.run)

        closed = close_calls(ledger, run.run, charge=charge, scopes=None, at=AT)

        assert closed.calls == len(paid)
        written = list(records_of(ledger, run.run))[at:]
        assert isinstance(written[0], RunResumed)
        for event in written[1:]:
            assert isinstance(event, ModelFailed | QueryFailed)
            assert event.settled is not None
            assert (event.reason, event.kind, event.billed) == (DOUBTED, "transient", charge)
            assert event.settled.figures == ("reserved" if charge else "returned")
            assert event.settled.flags == (("cancelled",) if charge else ())
        assert runs_in_doubt(ledger) == []
        again = session.resume(run.run)
        assert again.answer == run.answer == "23"
        reserved = sum((call.reserved.usd or 0) for call in paid if call.reserved is not None)
        assert (again.charge.usd or 0) == (run.charge.usd or 0) + charge * reserved
        assert verify_ledger(ledger, [run.run]).first_bad is None
        report = session.replay(run.run)
        assert report.held, report
        closed_at.append(at)
    assert len(closed_at) >= 7


def test_an_effect_stays_in_doubt_until_a_resume_decides(sandbox: WasmSandbox) -> None:
    SENT.clear()
    first = opened(sandbox, MemoryLedger())
    run = first.run("what is it, in the end of all this?")
    records = list(records_of(first.ledger, run.run))
    at = next(place for place, each in enumerate(records) if isinstance(each, CallHost)) + 1
    ledger = cut(records[:at], run.run)

    closed = close_calls(ledger, run.run, charge=True, scopes=None, at=AT)

    assert (closed.calls, [each.what for each in closed.effects]) == (0, ["send"])
    assert len(list(records_of(ledger, run.run))) == at
    assert [each.run for each in runs_in_doubt(ledger)] == [run.run]
    session = opened(sandbox, ledger, first)
    with pytest.raises(RunInDoubt):
        session.resume(run.run)
    session.resume(run.run, in_doubt="abandon")
    assert SENT == ["x"]
    assert runs_in_doubt(ledger) == []


# -- what is found -------------------------------------------------------------------------------


def asked(intent: int = 1, price: str = "published") -> AskModel:
    reserved = Reserved(tokens_in=10, tokens_out=90, usd=5_000, price=price)
    return AskModel(
        intent=intent, turn=1, base=None, added=(), request_sha256="0", reserved=reserved
    )


def ended(stop: str = "answered") -> RunEnded:
    return RunEnded(stop=stop, detail="", answer="7", partial=False, charge=Charge(turns=1))  # type: ignore[arg-type]


def made(ledger: Ledger, run: str, *records: Record) -> None:
    fence = ledger.claim(run, create=True)
    drafts = [started(run_id(99), []), *map(drafted, records)]
    ledger.append(run, drafts, expected=Head.of_nothing(), fence=fence, forced=False)


def test_only_runs_that_were_left_are_in_doubt(tmp_path: Path) -> None:
    effect = CallHost(intent=1, program=1, index=0, name="s", request_sha256="0", policy="effect")
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        made(ledger, run_id(1), asked())
        made(ledger, run_id(2), asked(), ended())
        made(ledger, run_id(3), asked(price="in_process"))
        made(ledger, run_id(4), effect, ended("in_doubt"))
        made(ledger, run_id(5), asked())
        made(ledger, run_id(6), asked())
        ledger.claim(run_id(7), create=True)
        ledger.release(run_id(6))

        with lock_run(ledger, run_id(5)):
            found = runs_in_doubt(ledger)
            rows = {row.run: status_of(ledger, row) for row in ledger.runs()}

    assert [each.run for each in found] == [run_id(1), run_id(4)]
    (call,) = found[0].open
    assert (call.kind, call.turn, call.tokens, call.usd) == ("model", 1, 100, 5_000)
    assert [each.kind for each in found[1].open] == ["effect"]
    assert rows[run_id(1)] == "in doubt"
    assert rows[run_id(3)] == "cut off"
    assert rows[run_id(7)] == "not begun"
    assert rows[run_id(5)] == "running"
    assert rows[run_id(6)] == "moved"


def test_a_run_that_is_running_is_not_closed(tmp_path: Path) -> None:
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        made(ledger, run_id(1), asked())

        with lock_run(ledger, run_id(1)), pytest.raises(UsageError, match="is running"):
            close_calls(ledger, run_id(1), charge=True, scopes=None, at=AT)

        assert len(list(records_of(ledger, run_id(1)))) == 2


def test_a_chain_that_does_not_hold_is_not_gone_on_with(tmp_path: Path) -> None:
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        made(ledger, run_id(1), asked())
        with ledger.file.writing(forced=False) as db:
            db.execute("UPDATE body SET body = ? WHERE seq = 1", (draft(1).body,))

        with pytest.raises(ResumeRefused, match="does not hold at entry 1"):
            close_calls(ledger, run_id(1), charge=True, scopes=None, at=AT)


@pytest.mark.slow
def test_a_thousand_runs_are_looked_through_in_a_second(tmp_path: Path) -> None:
    bulk = [draft(number, text="x" * 2_000) for number in range(5)]
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        for number in range(1_000):
            run = run_id(number)
            fence = ledger.claim(run, create=True)
            end = drafted(asked() if number % 100 == 0 else ended())
            ledger.append(run, [*bulk, end], expected=Head.of_nothing(), fence=fence, forced=False)
        began = time.perf_counter()

        found = runs_in_doubt(ledger)

        took = time.perf_counter() - began
        row = ledger.row(run_id(500))
        assert row is not None
        assert doubtful_run(ledger, row) in found
    assert len(found) == 10
    # A fifth of this on a quiet machine; reading every body takes several times as long.
    assert took < 2


# -- what was held of the total ------------------------------------------------------------------

# Runs until its third call to the model, and dies in it.
DIES = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.runtime.runs.test_in_doubt import send, turns
from tallystick.core.budget.amount import Budget
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.client import Session
from tallystick.testing.models import PRICING
model = turns()
model.before = lambda call: os._exit(9) if call.number == 2 else None
ledger = SqliteLedger(Path(sys.argv[1]))
session = Session(model=model, functions=[send], ledger=ledger, pricing=PRICING,
                  total=Budget.of(usd=1))
session.run("what is it, in the end of all this?")
"""
ROOT = Path(__file__).parents[3]


def total(ledger: SqliteLedger) -> tuple[int, int]:
    """What is spent and what is held of the total, in nano-dollars."""
    with SharedScopes(ledger.file) as scopes:
        (row,) = [row for row in scopes.rows() if row.scope.id == DEPLOYMENT]
    return row.spent.usd or 0, row.reserved.usd or 0


@pytest.mark.slow
@pytest.mark.parametrize("charge", [True, False])
def test_what_was_held_is_closed_with_the_calls_of_a_killed_run(
    wasm_sandbox: WasmSandbox, tmp_path: Path, charge: bool
) -> None:
    path = tmp_path / "data" / "ledger.db"
    path.parent.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", DIES, str(path), str(ROOT)],
        env={**os.environ, "TALLYSTICK_DATA_DIR": str(path.parent)},
        check=False,
        timeout=120,
    )
    assert done.returncode == 9
    with SqliteLedger(path) as ledger, SharedScopes(ledger.file) as scopes:
        (doubt,) = runs_in_doubt(ledger)
        spent, held = total(ledger)
        assert held == sum(each.usd or 0 for each in doubt.open) > 0

        closed = close_calls(ledger, doubt.run, charge=charge, scopes=scopes, at=AT)

        assert (closed.calls, closed.holds) == (1, 1)
        assert total(ledger) == (spent + charge * held, 0)
        again = close_calls(ledger, doubt.run, charge=charge, scopes=scopes, at=AT)
        assert (again.calls, again.holds) == (0, 0)
        session = Session(
            model=turns(),
            functions=[send],
            ledger=ledger,
            sandbox=wasm_sandbox,
            pricing=PRICING,
            total=Budget.of(usd=1),
        )
        with session:
            ended_run = session.resume(doubt.run)
            assert session.replay(doubt.run).held
        assert ended_run.answer == "23"
        assert total(ledger) == (ended_run.charge.usd, 0)
        assert open_intents(records_of(ledger, doubt.run)) == ()


def test_a_process_that_dies_before_the_end_of_the_transaction_has_closed_nothing(
    tmp_path: Path,
) -> None:
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        made(ledger, run_id(1), asked())

        class Dying(SqliteLedger):
            def append(self, run: str, drafts: object, **more: object) -> Head:
                raise KeyboardInterrupt

        with Dying(ledger.path) as dying, pytest.raises(KeyboardInterrupt):
            close_calls(dying, run_id(1), charge=True, scopes=None, at=AT)

        assert [each.run for each in runs_in_doubt(ledger)] == [run_id(1)]
        assert close_calls(ledger, run_id(1), charge=True, scopes=None, at=AT).calls == 1
