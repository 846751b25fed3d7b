"""Calls that were left after they were sent: a resume does not make them again without a word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tallystick.attachments.memory import MemoryAttachments
from tallystick.client import Session
from tallystick.core.chain import Draft
from tallystick.core.charge import ModelUsage
from tallystick.core.errors import LedgerFull
from tallystick.core.records import (
    LEFT,
    ModelFailed,
    QueryAsked,
    QueryFailed,
    Record,
    RunResumed,
    decode_record,
)
from tallystick.core.resume_errors import RunInDoubt
from tallystick.ledger.memory import MemoryLedger
from tallystick.model import NOT_RECEIVED, UNKNOWN
from tallystick.model.port import ModelError, ModelReply
from tallystick.runtime.runs.history import whole_records
from tallystick.runtime.runs.in_doubt import close_calls, runs_in_doubt
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import PRICING, ModelCall, ModelDouble, block

QUERY = block("out = llm_query_batched(['quick', 'slow'])\nFINAL(out)")
TURN = block("FINAL('turn')")
PLACES = ("turn", "query")


def model_for(place: str, *, waits: bool) -> ModelDouble:
    """A model that waits for ever at the call that is to be left, if it `waits`."""

    def answer(call: ModelCall) -> str | None:
        slow = call.prompt == "slow" if place == "query" else not call.by_program
        if slow and waits:
            return None
        return call.prompt if call.by_program else QUERY if place == "query" else TURN

    return ModelDouble(answer)


@dataclass
class Left:
    """A run that was cancelled while a call of it was under way."""

    place: str
    run: str
    ledger: MemoryLedger
    attachments: MemoryAttachments
    sandbox: WasmSandbox

    def opened(self, **more: Any) -> tuple[Session, ModelDouble]:
        model = model_for(self.place, waits=False)
        session = Session(
            model=model,
            ledger=self.ledger,
            attachments=self.attachments,
            sandbox=self.sandbox,
            pricing=PRICING,
            **more,
        )
        return session, model

    @property
    def records(self) -> list[Record]:
        return whole_records(self.ledger, self.run)

    @property
    def answer(self) -> str:
        return '["quick","slow"]' if self.place == "query" else "turn"


def stopped(sandbox: WasmSandbox, place: str) -> Left:
    ledger, attachments = MemoryLedger(), MemoryAttachments()
    model = model_for(place, waits=True)
    session = Session(
        model=model, ledger=ledger, attachments=attachments, sandbox=sandbox, pricing=PRICING
    )
    going = session.engine.loop.submit(session.arun("the goal"))
    assert model.wait_until_hung()
    session.close()
    assert going.done()
    (row,) = ledger.runs()
    made = Left(place, row.run, ledger, attachments, sandbox)
    assert [
        each.billed
        for each in made.records
        if isinstance(each, ModelFailed | QueryFailed) and each.reason == LEFT
    ] == [True]
    return made


@pytest.fixture(params=PLACES)
def left(request: pytest.FixtureRequest, sandbox: WasmSandbox) -> Left:
    return stopped(sandbox, request.param)


def test_a_call_that_was_left_is_named_and_not_made_again(left: Left) -> None:
    session, model = left.opened()

    with pytest.raises(RunInDoubt) as caught:
        session.resume(left.run)

    (named,) = caught.value.open
    assert named.what == ("llm_query" if left.place == "query" else "the model")
    assert named.usd
    assert model.asked == []
    assert not any(isinstance(each, RunResumed) for each in left.records)
    (listed,) = runs_in_doubt(left.ledger)
    assert listed.open == (named,)


def test_with_retry_it_is_made_again(left: Left) -> None:
    session, model = left.opened()

    run = session.resume(left.run, in_doubt="retry")

    assert run.answer == left.answer
    assert len(model.asked) == 1
    assert session.replay(left.run).held
    assert runs_in_doubt(left.ledger) == []


def test_with_abandon_it_is_not_made_again(left: Left) -> None:
    session, model = left.opened()
    paid = _usd(left.records)

    run = session.resume(left.run, in_doubt="abandon")

    assert model.asked == []
    assert "its outcome is unknown and it was not made again" in f"{run.answer} {run.detail}"
    assert run.stop == ("answered" if left.place == "query" else "in_doubt")
    assert run.charge.usd == paid
    assert session.replay(left.run).held


def test_what_the_provider_never_got_is_made_again_without_a_question(left: Left) -> None:
    async def lookup(model: str, key: str) -> Any:
        assert key.startswith(left.run)
        return NOT_RECEIVED

    session, model = left.opened(lookup=lookup)

    run = session.resume(left.run)

    assert (run.answer, len(model.asked)) == (left.answer, 1)
    assert session.replay(left.run).held


def test_a_reply_that_the_provider_has_is_used_and_not_paid_again(left: Left) -> None:
    said = "slow" if left.place == "query" else TURN
    paid = _usd(left.records)

    async def lookup(model: str, key: str) -> Any:
        return ModelReply(text=said, usage=ModelUsage(tokens_in=9, tokens_out=9, reported=True))

    session, model = left.opened(lookup=lookup)

    run = session.resume(left.run)

    assert (run.answer, model.asked) == (left.answer, [])
    assert run.charge.usd == paid
    assert session.replay(left.run).held


def test_a_provider_that_cannot_say_leaves_it_in_doubt(left: Left) -> None:
    async def lookup(model: str, key: str) -> Any:
        return UNKNOWN

    session, model = left.opened(lookup=lookup)

    with pytest.raises(RunInDoubt):
        session.resume(left.run)

    assert model.asked == []


def test_once_it_is_resolved_as_charged_the_run_resumes_without_a_question(left: Left) -> None:
    closed = close_calls(left.ledger, left.run, charge=True, scopes=None, at=1)

    assert closed.calls == 1
    assert runs_in_doubt(left.ledger) == []
    session, model = left.opened()
    assert session.resume(left.run).answer == left.answer
    assert len(model.asked) == 1


class _Full(MemoryLedger):
    """Has no room for the second attempt at a query."""

    full = True

    def submit(self, run: str, drafts: Sequence[Draft], **more: Any) -> Any:
        for draft in drafts:
            record = decode_record(draft.body)
            if self.full and isinstance(record, QueryAsked) and record.attempt == 2:
                raise LedgerFull(where="ledger.db")
        return super().submit(run, drafts, **more)


def test_a_call_that_was_left_when_its_sibling_failed_is_in_doubt(sandbox: WasmSandbox) -> None:
    ledger, attachments = _Full(), MemoryAttachments()
    model = model_for("query", waits=True)
    session = Session(
        model=model, ledger=ledger, attachments=attachments, sandbox=sandbox, pricing=PRICING
    )
    going = session.engine.loop.submit(session.arun("the goal", watch=_fail_quick(model)))
    with pytest.raises(LedgerFull):
        going.result(20)
    ledger.full = False
    (row,) = ledger.runs()
    made = Left("query", row.run, ledger, attachments, sandbox)
    again, asked = made.opened()

    with pytest.raises(RunInDoubt) as caught:
        again.resume(row.run)

    assert asked.asked == []
    assert [each.what for each in caught.value.open] == ["llm_query"]
    assert again.resume(row.run, in_doubt="retry").answer == made.answer


def _fail_quick(model: ModelDouble) -> Any:
    """Let the query beside the slow one fail once, for a moment."""

    def watch(run: str, record: Record) -> None:
        if isinstance(record, QueryAsked) and (record.item, record.attempt) == (0, 1):
            model.failures = [ModelError(reason="server_error", message="later", kind="transient")]

    return watch


def _usd(records: Sequence[Record]) -> int:
    charged = [getattr(each, "settled", None) for each in records]
    return sum(each.usd or 0 for each in charged if each is not None)
