"""Hello: one question, one tool."""

import tallystick as tally


@tally.tool(reads=True)
def weather(city: str) -> str:
    """Tell the weather in a city today."""
    return {"Bern": "rain, 12 degrees"}.get(city, "sun")


run = tally.run(
    "Do I need an umbrella in Bern?",
    tools=[weather],
    model="scripted:examples/agents/hello.jsonl",
)
print(run)
