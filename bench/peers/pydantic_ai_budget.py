"""pydantic-ai's spend limits under a fan-out: run by the peer's own Python.

Reads {"calls", "seconds", "usd_each", "usd_cap"}; prints one line of JSON: what was billed, what
was refused, how long it took. The runs share one cap, as the calls of one program do.
"""

import asyncio
import json
import sys
import time
from decimal import Decimal
from importlib.metadata import version
from typing import Any

from pydantic_ai import Agent, ModelResponse, TextPart  # type: ignore[import-not-found]
from pydantic_ai.models.function import FunctionModel  # type: ignore[import-not-found]
from pydantic_ai.usage import RequestUsage  # type: ignore[import-not-found]
from pydantic_ai_harness.spend import Budget, SpendLimits  # type: ignore[import-not-found]


async def fan_out(calls: int, seconds: float, usd_each: str, usd_cap: str) -> dict[str, Any]:
    each, billed = Decimal(usd_each), 0

    async def model(messages: object, info: object) -> ModelResponse:
        nonlocal billed
        await asyncio.sleep(seconds)
        billed += 1
        usage = RequestUsage(input_tokens=10, output_tokens=100)
        return ModelResponse(parts=[TextPart("ok")], usage=usage)

    budget = Budget(usd=Decimal(usd_cap), window="total")
    limits = SpendLimits(budgets=[budget], price=lambda response: each)
    agent = Agent(FunctionModel(model), capabilities=[limits])
    began = time.perf_counter()
    runs = (agent.run(f"item {number}") for number in range(calls))
    found = await asyncio.gather(*runs, return_exceptions=True)
    return {
        "seconds": time.perf_counter() - began,
        "billed": float(billed * each),
        "refused": sum(isinstance(one, Exception) for one in found),
        "version": f"{version('pydantic-ai-slim')}, harness {version('pydantic-ai-harness')}",
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(fan_out(**json.load(sys.stdin)))))
