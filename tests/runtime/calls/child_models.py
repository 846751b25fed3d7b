"""Models whose programs begin runs, and sessions with them."""

from __future__ import annotations

from typing import Any

from tallystick.attachments.memory import MemoryAttachments
from tallystick.client import Session
from tallystick.core.charge import RunLimits
from tallystick.ledger.memory import MemoryLedger
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import PRICING, ModelCall, ModelDouble, block

WIDE = RunLimits(tokens=10_000_000)


def tree(**more: Any) -> ModelDouble:
    """A model that splits a count in two until it is one, then answers."""

    def answer(call: ModelCall) -> str:
        goal = next(each.text for each in call.request.messages if "count " in each.text)
        size = int(goal.split("count ")[1].split()[0])
        if size == 1:
            return block("FINAL(1)")
        return block(
            f"parts = rlm_query_batched(['count {size // 2} now'] * 2)\n"
            "FINAL(sum(int(each) for each in parts))"
        )

    return ModelDouble(answer, **more)


def is_root(call: ModelCall) -> bool:
    return "the root" in call.text


def says(*programs: str, child: str = "FINAL(context.upper())", **more: Any) -> ModelDouble:
    """A model whose root runs these programs, the last of them in all further turns.

    Every other run runs `child`, and every call of a program is answered alike.
    """

    def answer(call: ModelCall) -> str:
        return block(programs[min(call.turn, len(programs) - 1)] if is_root(call) else child)

    return ModelDouble(answer, queries="said directly", **more)


def opened(
    sandbox: WasmSandbox,
    model: Any,
    ledger: Any = None,
    attachments: MemoryAttachments | None = None,
) -> Session:
    return Session(
        model=model,
        ledger=ledger or MemoryLedger(),
        attachments=attachments,
        sandbox=sandbox,
        pricing=PRICING,
    )
