"""Memory: what one run was told, a later one of another agent recalls."""

import tallystick as tally

with tally.Memory.open("trips") as memory:
    memory.remember("Ann moved to Bern in May", author="Ann")

agent = tally.Agent("scripted:examples/agents/memory.jsonl", memory="trips")
run = agent.run("Which city should the parcel for Ann go to?")
print(run)
