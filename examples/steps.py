"""A plan of two steps, each with a run inside. What every step came to is on the ledger."""

from tallystick import Agent, step
from tallystick.inputs import read_inputs
from tallystick.model import ScriptedModel, ScriptedReply

PROGRAMS = ["FINAL(len(lines))", "FINAL(max(lines, key=len))"]
model = ScriptedModel([ScriptedReply(text=f"```python\n{each}\n```") for each in PROGRAMS])
books = read_inputs(["examples/books.csv"])


@step("count", budget={"max_tokens": 20_000})
def count() -> str | None:
    return agent.run("how many lines?", inputs=books).answer


@step("longest", budget={"max_tokens": 20_000})
def longest() -> str | None:
    return agent.run("which line is the longest?", inputs=books).answer


@step("plan", budget={"max_usd": 1})
def plan() -> None:
    print(count(), longest())


with Agent(model) as agent:
    plan()
