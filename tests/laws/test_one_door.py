"""A law: a model call of a turn and one of a program meet the same misfortune alike."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from tallystick.core.charge import ModelUsage, RunLimits
from tallystick.core.records import (
    AskModel,
    ModelFailed,
    ModelReplied,
    QueryAsked,
    QueryFailed,
    QueryReplied,
)
from tallystick.model.port import ModelError, ModelReason, ModelReply
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import PRICING, ModelDouble, block, reported
from tallystick.testing.runs import Played, play

pytestmark = pytest.mark.slow

LIMITS = RunLimits(tokens=10_000_000, usd=10_000_000_000, retries=1)
USAGE = ModelUsage(tokens_in=3, tokens_out=2, reported=True)
Misfortune = ModelReply | Exception


def failing(error: Exception) -> Misfortune:
    return error


def replying(**usage: Any) -> Misfortune:
    return ModelReply(text=block("FINAL(1)"), usage=ModelUsage(**usage))


MISFORTUNES: dict[str, Misfortune] = {
    **{
        f"{reason}, {'billed' if billed else 'not billed'}": failing(
            ModelError(reason=reason, message="no", billed=billed, status=499, usage=usage)
        )
        for reason in get_args(ModelReason)
        for billed, usage in ((True, None), (False, None))
    },
    "usage in spite of the failure": failing(
        ModelError(reason="unknown", message="cut", usage=USAGE)
    ),
    "asked to wait": failing(
        ModelError(reason="rate_limit", message="later", billed=False, retry_after_ms=300)
    ),
    "a backend that breaks": failing(KeyError("sk-a-key-of-the-user")),
    "a backend that times out by itself": failing(TimeoutError()),
    "no report": replying(tokens_in=0, tokens_out=0, reported=False),
    "a report of nothing": replying(tokens_in=0, tokens_out=0, reported=True),
    "a negative report": replying(tokens_in=-5, tokens_out=3, reported=True),
    "a report far above its bound": replying(tokens_in=9, tokens_out=10**7, reported=True),
}


def unlucky(misfortune: Misfortune, *, in_turns: bool) -> ModelDouble:
    """A model that meets its misfortune in turns, or only where programs ask."""
    program = "try:\n    llm_query('q')\nexcept HostError as error:\n    pass\nFINAL(1)"
    lucky = ModelReply(text=block(program), usage=reported(1, 1))
    return ModelDouble(misfortune if in_turns else lucky, queries=misfortune)


def recorded(
    played: Played, begun: type[AskModel | QueryAsked], ended: tuple[type, ...]
) -> list[object]:
    """What the ledger says of each attempt, but for what names its place and its size."""
    asked = [each for each in played.records if isinstance(each, begun)]
    outcomes: list[Any] = [each for each in played.records if isinstance(each, ended)]
    assert len(asked) == len(outcomes)
    said: list[object] = []
    for call, outcome in zip(asked, outcomes, strict=True):
        settled, reserved = outcome.settled, call.reserved
        assert reserved is not None
        shares = (
            settled.tokens_in == reserved.tokens_in,
            settled.tokens_out == reserved.tokens_out,
        )
        names = ("reason", "message", "kind", "status", "retry_after_ms", "billed", "usage")
        facts = [getattr(outcome, name, None) for name in names]
        said.append((call.wait_ms, facts, settled.figures, settled.flags, shares))
    return said


@pytest.mark.parametrize("name", MISFORTUNES)
def test_a_turns_call_and_a_programs_call_fail_settle_and_are_recorded_alike(
    name: str, sandbox: WasmSandbox
) -> None:
    misfortune = MISFORTUNES[name]
    turn, query = (
        play(sandbox, unlucky(misfortune, in_turns=in_turns), limits=LIMITS, pricing=PRICING)
        for in_turns in (True, False)
    )

    # The call of the turn that asks is lucky: only those of the program are compared.
    of_turn = recorded(turn, AskModel, (ModelReplied, ModelFailed))
    of_program = recorded(query, QueryAsked, (QueryReplied, QueryFailed))
    assert of_turn[: len(of_program)] == of_program
    assert len(of_turn) == len(of_program) or isinstance(turn.records[2], ModelReplied)
    stored = b"".join(
        entry.body or b"" for row in turn.ledger.runs() for entry in turn.ledger.read(row.run)
    )
    assert b"sk-a-key" not in stored
    assert turn.replayed().held
    assert query.replayed().held
