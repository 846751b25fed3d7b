"""A model with a price that keeps the bill: what it was asked, what it charged, how it failed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field

from tallystick.core.charge import ModelUsage
from tallystick.model.port import Heard, ModelError, ModelReply, ModelRequest
from tallystick.model.price_table import PriceTable, Pricing

# A dollar for a million tokens of input is a thousand nano-dollars each.
NANO_IN, NANO_OUT = 1_000, 4_000
PRICES = PriceTable.of_user({"fake:*": {"input": "1", "output": "4"}})
PRICING = Pricing(declared=PRICES)
Answer = Callable[[str], str]


@dataclass
class Costed:
    """Answers by a function of the last message, and bills a token for every four bytes."""

    answer: Answer = lambda prompt: "ok"
    name: str = "fake:model"
    delay: float = 0.0
    failures: list[ModelError] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    caps: list[int] = field(default_factory=list)
    billed: int = 0
    most_at_once: int = 0
    begun: threading.Event = field(default_factory=threading.Event)
    _at_once: int = 0

    def admitted(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def ask(self, request: ModelRequest, *, heard: Heard = lambda chars: None) -> ModelReply:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            return await self._reply(request)
        finally:
            self._at_once -= 1

    async def _reply(self, request: ModelRequest) -> ModelReply:
        prompt = request.messages[-1].text
        self.asked.append(prompt)
        self.begun.set()
        self.caps.append(request.tokens_out_max)
        if self.delay:
            await asyncio.sleep(self.delay)
        if self.failures:
            raise self.failures.pop(0)
        text = self.answer(prompt)
        sent = sum(len(message.text.encode()) for message in request.messages)
        usage = ModelUsage(
            tokens_in=max(1, sent // 4), tokens_out=max(1, len(text.encode()) // 4), reported=True
        )
        self.billed += usage.tokens_in * NANO_IN + usage.tokens_out * NANO_OUT
        return ModelReply(text=text, usage=usage)

    async def close(self) -> None: ...
