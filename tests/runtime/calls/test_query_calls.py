"""The live desk and its teller: what is held is given back, what may be billed is settled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest
from tests.laws.costed_world import Notes, VirtualLoop
from tests.runtime.run.priced_model import PRICING, Costed

from tallystick.attachments.memory import MemoryAttachments
from tallystick.attachments.session import SessionAttachments
from tallystick.core.budget.amount import Amount, Budget
from tallystick.core.charge import ModelUsage, RunLimits, nano_usd
from tallystick.core.machine.prompt import Message
from tallystick.core.records import QueryAsked, QueryFailed
from tallystick.model.port import ModelError, ModelReply, ModelRequest
from tallystick.runtime.calls.queries import LiveDesk, Queries, QueryPlace
from tallystick.runtime.context.attachments import Shelf
from tallystick.runtime.spend.door import Teller
from tallystick.runtime.spend.scopes import Account, Place, Purse

PROMPT = (Message(role="user", part="query", text="x" * 100),)


class Till:
    """A run that costs something, without a session around it."""

    def __init__(self, model: Costed, *, usd: str = "1", reply_tokens: int = 100) -> None:
        self.account = Account()
        budget = Budget(usd=nano_usd(usd))
        self.account.tree.enter("run", parent=None, budget=budget, kind="run", name="")
        self.teller = Teller(Purse([Place(self.account, "run")]), PRICING)
        self.model = model
        self.notes = Notes()
        held = SessionAttachments(MemoryAttachments(), session_id="0" * 32)
        desk = LiveDesk("RUN", self.teller, lambda name: model, Shelf(held))
        desk.written = self.notes
        self.queries = Queries(desk, limits=RunLimits(reply_tokens=reply_tokens, retries=0))
        self.queries.place = QueryPlace(intent=1, program=0)

    @property
    def reserved(self) -> Amount:
        return self.account.tree.rows()[0].reserved

    @property
    def spent(self) -> Amount:
        return self.account.tree.rows()[0].spent


def done(work: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def reply(**raw: object) -> ModelReply:
    counts = {name: count for name, count in raw.items() if isinstance(count, int)}
    usage = ModelUsage(
        tokens_in=counts["prompt_tokens"],
        tokens_out=counts["completion_tokens"],
        reported=True,
        raw=raw,
    )
    return ModelReply(text="ok", usage=usage)


# -- reports ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        {"prompt_tokens_details": {"cached_tokens": 11}},
        {"prompt_tokens_details": {"cached_tokens": -1}},
        {"prompt_tokens_details": {"cached_tokens": 6, "cache_write_tokens": 5}},
        {"completion_tokens_details": "none"},
        {"completion_tokens_details": {"reasoning_tokens": 10**12}},
    ],
)
def test_a_report_that_contradicts_itself_is_charged_as_reserved(raw: dict[str, object]) -> None:
    till = Till(Costed())
    ticket = till.teller.reserve(till.teller.terms(till.model), PROMPT, tokens_out_max=50)

    settled = till.teller.replied(ticket, reply(prompt_tokens=10, completion_tokens=5, **raw))

    assert (settled.figures, settled.flags) == ("reserved", ("usage_impossible",))
    assert (settled.usd, till.spent.usd) == (ticket.reserved.usd, ticket.reserved.usd)


def test_reasoning_that_is_counted_beside_the_output_is_charged_too() -> None:
    till = Till(Costed())
    ticket = till.teller.reserve(till.teller.terms(till.model), PROMPT, tokens_out_max=50)
    apart = {"completion_tokens_details": {"reasoning_tokens": 20}, "total_tokens": 35}

    settled = till.teller.replied(ticket, reply(prompt_tokens=10, completion_tokens=5, **apart))

    assert (settled.figures, settled.tokens_out, settled.usd) == ("reported", 25, 110_000)
    assert till.spent.tokens == 35


def test_a_report_in_a_format_of_its_own_has_its_sums() -> None:
    till = Till(Costed())
    ticket = till.teller.reserve(till.teller.terms(till.model), PROMPT, tokens_out_max=50)
    odd = reply(prompt_tokens=10, completion_tokens=5)
    odd = msgspec.structs.replace(
        odd, usage=msgspec.structs.replace(odd.usage, raw={"read": 10, "made": 5})
    )

    settled = till.teller.replied(ticket, odd)

    assert (settled.figures, settled.usd, settled.flags) == ("reported", 30_000, ())


# -- backends -----------------------------------------------------------------------------------


class Breaking(Costed):
    """Breaks by a fault of its own when it is asked for b."""

    async def ask(self, request: ModelRequest, *, heard: object = None) -> ModelReply:
        if request.messages[-1].text == "b":
            raise RuntimeError("a fault, and the key: sk-secret")
        return await super().ask(request)


def test_a_backend_that_breaks_has_failed_once_and_may_have_been_paid() -> None:
    till = Till(Breaking())

    found = done(till.queries.batched(["a", "b", "c"]))

    (failed,) = [each for each in till.notes.records if isinstance(each, QueryFailed)]
    (asked,) = [
        each for each in till.notes.records if isinstance(each, QueryAsked) and each.prompt == "b"
    ]
    told = [1, "ModelError", "unknown: the backend broke (RuntimeError)"]
    assert found == {"answers": ["ok", None, "ok"], "errors": [told]}
    assert (failed.settled.figures, failed.settled.usd) == ("reserved", asked.reserved.usd)
    assert till.reserved == Amount()


# -- what is held -------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.0, 0.5])
def test_a_whole_batch_that_is_left_gives_back_what_it_had_not_begun(seconds: float) -> None:
    """Cancelled at once, its calls have not even been tried."""
    till = Till(Costed(delay=1.0))

    async def leave() -> None:
        work = till.queries.batched(["x"] * 20, fit="whole")
        task = asyncio.ensure_future(work)
        await asyncio.sleep(0)
        if seconds:
            await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    done(leave())

    charged, _ = till.notes.quiet()
    assert till.reserved == Amount()
    assert till.spent.usd == charged
    assert bool(charged) == bool(seconds)


def test_those_who_wait_are_called_one_at_a_time() -> None:
    """A hundred calls for which three can be paid at once take about a look at the budget each."""
    till = Till(Costed(delay=1.0), usd="0.003")
    looks = 0
    reserve = till.teller.reserve

    def counted(*args: Any, **more: Any) -> Any:
        nonlocal looks
        looks += 1
        return reserve(*args, **more)

    till.teller.reserve = counted  # type: ignore[method-assign]
    found = done(till.queries.batched(["x"] * 100))

    assert found == {"answers": ["ok"] * 100, "errors": []}
    assert till.model.most_at_once < 10
    assert till.model.asked == ["x"] * 100
    assert looks < 300


def test_calls_that_wait_begin_in_their_order() -> None:
    till = Till(Costed(delay=1.0), usd="0.003")
    prompts = [f"{number:03}" for number in range(50)]

    done(till.queries.batched(prompts))

    assert till.model.asked == prompts


def test_one_that_is_refused_does_not_leave_the_others_waiting() -> None:
    """The first asks for more than there is, behind one that is under way."""
    till = Till(Costed(delay=1.0), usd="0.0012")
    found = done(till.queries.batched(["x", "y" * 5_000, "z"]))

    assert found["answers"] == ["ok", None, "ok"]
    assert [(item, kind) for item, kind, _ in found["errors"]] == [(1, "BudgetExhausted")]
    assert till.reserved == Amount()


def test_one_that_fails_calls_the_next() -> None:
    failures = [ModelError(reason="invalid_request", message="no", status=400, billed=False)] * 3
    till = Till(Costed(delay=1.0, failures=failures), usd="0.001")
    found = done(till.queries.batched(["x"] * 6))

    assert found["answers"][3:] == ["ok"] * 3
