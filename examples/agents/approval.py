"""Approval: a dangerous tool waits for a person's word, and no process waits with it."""

import tallystick as tally

deleted: list[str] = []


@tally.tool(ask=True)
def delete(path: str) -> str:
    """Delete a file for ever."""
    deleted.append(path)
    return f"{path} is gone"


agent = tally.Agent("scripted:examples/agents/approval.jsonl", tools=[delete])
run = agent.run("Tidy up the old log.")
print(run.stop, [wait.text() for wait in run.waits], deleted)
run = agent.approve(run, by="ann")
print(run, deleted)
