"""A fan-out over a hundred documents, all of them under one budget."""

import asyncio

import tallystick as tally

DOCUMENTS = [f"Report {number}: {number % 7 + 1} ships were late." for number in range(100)]


async def main() -> None:
    async with tally.Agent(
        "scripted:examples/agents/fan_out.jsonl", budget={"usd": "1", "tokens": 200_000}
    ) as agent:
        runs = await asyncio.gather(
            *(
                agent.arun("How many ships were late?", inputs=each, answer=int)
                for each in DOCUMENTS
            )
        )
        print(len(runs), sum(run.value for run in runs))


asyncio.run(main())
