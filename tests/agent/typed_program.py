"""A program as users write it, for type checkers: each right line is inferred, each wrong refused.

A line that ends in `# refused` has to be an error; any other line must not be one.
"""

import dataclasses
from decimal import Decimal
from typing import Any, Literal

from typing_extensions import assert_type

import tallystick as tally


@dataclasses.dataclass
class Total:
    euro: float


@dataclasses.dataclass
class Refused:
    why: str


@tally.tool(reads=True)
def rate(currency: str) -> float:
    """The rate of a currency in euro."""
    return 0.92


@tally.tool
async def send(to: str) -> None:
    """Send a mail."""


async def awaited() -> None:
    agent = tally.Agent("openai:gpt-5-mini", tools=[rate, send], budget={"usd": "5"})
    assert_type((await agent.arun("x", answer=Total)).value, Total)
    handle = await agent.astart("x", answer=list[Total])
    assert_type((await handle).value, list[Total])
    async for event in agent.stream("x"):
        print(event)


def right() -> None:
    run = tally.run("x", files=["books/"], tools=[rate], answer=Total, max_usd="0.50")
    assert_type(run.value, Total)
    assert_type(run.value.euro, float)
    assert_type(run.cost, Decimal | None)
    assert_type(run.answer, str | None)
    assert_type(run.checked().value, Total)
    assert_type(tally.run("x").value, str)
    assert_type(tally.run("x", answer=list[Total]).value, list[Total])
    assert_type(tally.run("x", answer=Total | Refused).value, Total | Refused)
    assert_type(tally.run("x", answer=Literal["yes", "no"]).value, Literal["yes", "no"])
    assert_type(tally.run("x", answer={"type": "object"}).value, Any)
    agent = tally.Agent(lambda messages: "text", tools=[rate], max_usd=Decimal("0.5"))
    assert_type(agent.resume(run).value, Total)
    assert_type(agent.fork(run, turn=1).value, Total)
    stream = agent.stream("x", answer=Total)
    assert_type(stream.run.value, Total)
    assert_type(agent.chat().run("x", answer=bool).value, bool)
    assert_type(rate("usd"), float)


def wrong() -> None:
    run = tally.run("x", answer=Total)
    print(run.value.dollars)  # refused
    tally.run("x", max_usd=0.5)  # refused
    tally.run("x", max_dollars="0.5")  # refused
    tally.run(5)  # refused
    tally.run("x").value.euro  # refused
    tally.Agent(max_usd=0.5)  # refused
    rate(5)  # refused
    text: str = tally.run("x", answer=list[Total]).value  # refused
    print(text)
