"""Models whose programs begin runs, and a ledger that remembers what was written in which order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.runtime.run.priced_model import PRICING, Costed
from tests.scripted_run import block

from tallystick.attachments.memory import MemoryAttachments
from tallystick.client import Session
from tallystick.core.chain import Draft
from tallystick.core.charge import RunLimits
from tallystick.ledger.memory import MemoryLedger
from tallystick.model.port import ModelReply, ModelRequest
from tallystick.sandbox.wasm.sandbox import WasmSandbox

WIDE = RunLimits(tokens=10_000_000)


class Tree(Costed):
    """Splits a count in two until it is one, then answers. Keeps the key of every call."""

    keys: list[str]

    async def _reply(self, request: ModelRequest) -> ModelReply:
        self.__dict__.setdefault("keys", []).append(request.key)
        goal = next(each.text for each in request.messages if "count " in each.text)
        size = int(goal.split("count ")[1].split()[0])
        program = "FINAL(1)"
        if size > 1:
            program = (
                f"parts = rlm_query_batched(['count {size // 2} now'] * 2)\n"
                "FINAL(sum(int(each) for each in parts))"
            )
        self.answer = lambda prompt: block(program)
        return await super()._reply(request)


class Says(Costed):
    """The root runs one program; every other run, and every call of a program, answers alike."""

    def __init__(self, program: str, child: str = "FINAL(context.upper())") -> None:
        super().__init__()
        self.program, self.child = program, child

    async def _reply(self, request: ModelRequest) -> ModelReply:
        direct = len(request.messages) == 1
        root = any("the root" in each.text for each in request.messages)
        said = "said directly" if direct else block(self.program if root else self.child)
        self.answer = lambda prompt: said
        return await super()._reply(request)


class Logged(MemoryLedger):
    """Remembers everything that was written, in the order in which it was, over all chains."""

    def __init__(self, acts: Sequence[Callable[[MemoryLedger], object]] = ()) -> None:
        super().__init__(salts=bytes)
        self.acts: list[Callable[[MemoryLedger], object]] = []
        for act in acts:
            act(self)

    def claim(self, run: str, **how: Any) -> int:
        fence = super().claim(run, **how)
        # One that is refused is no act.
        self.acts.append(lambda ledger: MemoryLedger.claim(ledger, run, **how))
        return fence

    def submit(self, run: str, drafts: Sequence[Draft], **more: Any) -> Any:
        fresh = {**more, "also": None}
        self.acts.append(lambda ledger: MemoryLedger.submit(ledger, run, drafts, **fresh))
        return super().submit(run, drafts, **more)


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
