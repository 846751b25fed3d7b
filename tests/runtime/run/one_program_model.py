"""A model that writes one program again and again, for so many tokens, and sessions with it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from tests.runtime.run.priced_model import NANO_IN, NANO_OUT, PRICING, Costed
from tests.scripted_run import block

from tallystick.client import Session
from tallystick.core.charge import ModelUsage, RunLimits
from tallystick.ledger.memory import MemoryLedger
from tallystick.model.port import ModelReply, ModelRequest
from tallystick.sandbox.wasm.sandbox import WasmSandbox

TURN_IN, TURN_OUT = 100, 10
TURN_NANO = TURN_IN * NANO_IN + TURN_OUT * NANO_OUT
ROOMY = RunLimits(tokens=10_000_000)


class Writer(Costed):
    """Writes one program again and again, for so many tokens; answers what programs ask."""

    def __init__(self, program: str = "FINAL(42)", *, used: int = TURN_IN, **more: Any) -> None:
        super().__init__(**more)
        self.program = program
        self.used = used
        self.turns = 0
        self.may_reply = threading.Event()
        self.may_reply.set()

    async def ask(self, request: ModelRequest, *, heard: object = None) -> ModelReply:
        if request.messages[0].role != "system":
            return await super().ask(request)
        await asyncio.to_thread(self.may_reply.wait, 10)
        self.turns += 1
        usage = ModelUsage(tokens_in=self.used, tokens_out=TURN_OUT, reported=True)
        self.billed += self.used * NANO_IN + TURN_OUT * NANO_OUT
        return ModelReply(text=block(self.program), usage=usage)


def opened(sandbox: WasmSandbox, model: Costed, **more: Any) -> Session:
    settings: dict[str, Any] = {"ledger": MemoryLedger(), "pricing": PRICING, **more}
    return Session(model=model, sandbox=sandbox, **settings)
