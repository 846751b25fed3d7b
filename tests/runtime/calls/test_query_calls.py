"""Live model calls of programs: what is held is given back, what may be billed is settled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest
from tests.call_scopes import ProgramCalls
from tests.laws.costed_world import VirtualLoop, charged_quietly

from tallystick.core.budget.amount import Amount, Budget
from tallystick.core.charge import ModelUsage, RunLimits, nano_usd
from tallystick.core.machine.prompt import Message
from tallystick.core.records import QueryAsked, QueryFailed
from tallystick.model.port import ModelError, ModelReply
from tallystick.runtime.spend.door import ModelDoor
from tallystick.runtime.spend.scopes import RunScopes, ScopeRef, ScopeTree
from tallystick.testing.models import PRICING, ModelDouble

PROMPT = (Message(role="user", part="query", text="x" * 100),)


class PricedWorld:
    """A run that costs something, without a session around it."""

    def __init__(self, model: ModelDouble, *, usd: str = "1", reply_tokens: int = 100) -> None:
        self.scope_tree = ScopeTree()
        budget = Budget(usd=nano_usd(usd))
        self.scope_tree.tree.enter("run", parent=None, budget=budget, kind="run", name="")
        self.model_door = ModelDoor(RunScopes([ScopeRef(self.scope_tree, "run")]), PRICING)
        self.model = model
        self.calls = ProgramCalls(
            self.model_door,
            lambda name: model,
            limits=RunLimits(reply_tokens=reply_tokens, retries=0),
        )

    async def batched(self, prompts: list[str], fit: str = "part") -> dict[str, object]:
        """Ask as a program does, by one host call."""
        call = self.calls.call("llm_query_batched")
        return await self.calls.queries.query_batch(call, prompts, fit=fit)

    @property
    def reserved(self) -> Amount:
        return self.scope_tree.tree.rows()[0].reserved

    @property
    def spent(self) -> Amount:
        return self.scope_tree.tree.rows()[0].spent


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
    client_scopes = PricedWorld(ModelDouble())
    reserved_call = client_scopes.model_door.reserve(
        client_scopes.model_door.terms(client_scopes.model), PROMPT, tokens_out_max=50
    )

    settled = client_scopes.model_door.settle_reply(
        reserved_call, reply(prompt_tokens=10, completion_tokens=5, **raw)
    )

    assert (settled.figures, settled.flags) == ("reserved", ("usage_impossible",))
    assert (settled.usd, client_scopes.spent.usd) == (
        reserved_call.reserved.usd,
        reserved_call.reserved.usd,
    )


def test_reasoning_that_is_counted_beside_the_output_is_charged_too() -> None:
    client_scopes = PricedWorld(ModelDouble())
    reserved_call = client_scopes.model_door.reserve(
        client_scopes.model_door.terms(client_scopes.model), PROMPT, tokens_out_max=50
    )
    apart = {"completion_tokens_details": {"reasoning_tokens": 20}, "total_tokens": 35}

    settled = client_scopes.model_door.settle_reply(
        reserved_call, reply(prompt_tokens=10, completion_tokens=5, **apart)
    )

    assert (settled.figures, settled.tokens_out, settled.usd) == ("reported", 25, 110_000)
    assert client_scopes.spent.tokens == 35


def test_a_report_in_a_format_of_its_own_has_its_sums() -> None:
    client_scopes = PricedWorld(ModelDouble())
    reserved_call = client_scopes.model_door.reserve(
        client_scopes.model_door.terms(client_scopes.model), PROMPT, tokens_out_max=50
    )
    odd = reply(prompt_tokens=10, completion_tokens=5)
    odd = msgspec.structs.replace(
        odd, usage=msgspec.structs.replace(odd.usage, raw={"read": 10, "made": 5})
    )

    settled = client_scopes.model_door.settle_reply(reserved_call, odd)

    assert (settled.figures, settled.usd, settled.flags) == ("reported", 30_000, ())


# -- backends -----------------------------------------------------------------------------------


def test_a_backend_that_breaks_has_failed_once_and_may_have_been_paid() -> None:
    broken = RuntimeError("a fault, and the key: sk-secret")
    client_scopes = PricedWorld(ModelDouble(lambda call: broken if call.prompt == "b" else "ok"))

    found = done(client_scopes.batched(["a", "b", "c"]))

    (failed,) = client_scopes.calls.of(QueryFailed)
    (asked,) = [each for each in client_scopes.calls.of(QueryAsked) if each.prompt == "b"]
    told = [1, "ModelError", "unknown: the backend broke (RuntimeError)"]
    assert found == {"answers": ["ok", None, "ok"], "errors": [told]}
    assert (failed.settled.figures, failed.settled.usd) == ("reserved", asked.reserved.usd)
    assert client_scopes.reserved == Amount()


# -- what is held -------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.0, 0.5])
def test_a_whole_batch_that_is_left_gives_back_what_it_had_not_begun(seconds: float) -> None:
    """Cancelled at once, its calls have not even been tried."""
    client_scopes = PricedWorld(ModelDouble(delay=1.0))

    async def leave() -> None:
        work = client_scopes.batched(["x"] * 20, fit="whole")
        task = asyncio.ensure_future(work)
        await asyncio.sleep(0)
        if seconds:
            await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    done(leave())

    charged, _ = charged_quietly(client_scopes.calls.records)
    assert client_scopes.reserved == Amount()
    assert client_scopes.spent.usd == charged
    assert bool(charged) == bool(seconds)


def test_those_who_wait_are_called_one_at_a_time() -> None:
    """A hundred calls for which three can be paid at once take about a look at the budget each."""
    client_scopes = PricedWorld(ModelDouble(delay=1.0), usd="0.003")
    looks = 0
    reserve = client_scopes.model_door.reserve

    def counted(*args: Any, **more: Any) -> Any:
        nonlocal looks
        looks += 1
        return reserve(*args, **more)

    client_scopes.model_door.reserve = counted  # type: ignore[method-assign]
    found = done(client_scopes.batched(["x"] * 100))

    assert found == {"answers": ["ok"] * 100, "errors": []}
    assert client_scopes.model.most_at_once < 10
    assert client_scopes.model.asked == ["x"] * 100
    assert looks < 300


def test_calls_that_wait_begin_in_their_order() -> None:
    client_scopes = PricedWorld(ModelDouble(delay=1.0), usd="0.003")
    prompts = [f"{number:03}" for number in range(50)]

    done(client_scopes.batched(prompts))

    assert client_scopes.model.asked == prompts


def test_one_that_is_refused_does_not_leave_the_others_waiting() -> None:
    """The first asks for more than there is, behind one that is under way."""
    client_scopes = PricedWorld(ModelDouble(delay=1.0), usd="0.0012")
    found = done(client_scopes.batched(["x", "y" * 5_000, "z"]))

    assert found["answers"] == ["ok", None, "ok"]
    assert [(item, kind) for item, kind, _ in found["errors"]] == [(1, "BudgetExhausted")]
    assert client_scopes.reserved == Amount()


def test_one_that_fails_calls_the_next() -> None:
    failures = [ModelError(reason="invalid_request", message="no", status=400, billed=False)] * 3
    client_scopes = PricedWorld(ModelDouble(delay=1.0, failures=failures), usd="0.001")
    found = done(client_scopes.batched(["x"] * 6))

    assert found["answers"][3:] == ["ok"] * 3
