"""Models that write given programs for so many tokens each, and sessions with them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

from tallystick.client import Session
from tallystick.core.charge import RunLimits
from tallystick.ledger.memory import MemoryLedger
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import (
    NANO_IN,
    NANO_OUT,
    PRICING,
    Answer,
    AnswerTo,
    ModelCall,
    ModelDouble,
    block,
    each_turn,
    first,
)

TURN_IN, TURN_OUT = 100, 10
TURN_NANO = TURN_IN * NANO_IN + TURN_OUT * NANO_OUT
ROOMY = RunLimits(tokens=10_000_000)


def writer(program: str = "FINAL(42)", *, used: int = TURN_IN, **more: Any) -> ModelDouble:
    """A model that writes one program again and again, for so many tokens."""
    return ModelDouble(
        block(program), **{"queries": "ok", "usage": each_turn(used, TURN_OUT), **more}
    )


def root(
    *programs: str,
    queries: Answer | AnswerTo = "ok",
    failures: Sequence[BaseException] = (),
    delay: float = 0.0,
    **more: Any,
) -> ModelDouble:
    """A model that writes these programs, one after the other, each for so many tokens.

    Only the calls of programs are delayed, and fail first.
    """

    def wait(call: ModelCall) -> Awaitable[object] | None:
        return asyncio.sleep(delay) if call.by_program and delay else None

    return ModelDouble(
        [block(each) for each in programs],
        queries=first(failures, queries),
        usage=each_turn(TURN_IN, TURN_OUT),
        before=wait,
        **more,
    )


def opened(sandbox: WasmSandbox, model: ModelDouble, **more: Any) -> Session:
    settings: dict[str, Any] = {"ledger": MemoryLedger(), "pricing": PRICING, **more}
    return Session(model=model, sandbox=sandbox, **settings)
