"""Gives one task to smolagents: reads it as JSON on stdin, prints one JSON line of what came of it.

Run by a Python that has smolagents and its openai extra. It uses nothing of ours. `additional_args`
would write the whole text into the prompt, which no model here can hold, so the text is put
into the agent's state, where its programs find it by name, and the task says that it is there.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from typing import Any

from smolagents import (  # type: ignore[import-not-found]
    ActionStep,
    CodeAgent,
    LogLevel,
    OpenAIModel,
)

_IMPORTS = ["csv", "io", "json", "re", "datetime", "collections", "statistics", "math"]


def main() -> None:
    if sys.argv[1:] == ["version"]:
        print(json.dumps({"version": importlib.metadata.version("smolagents")}))
        return
    task: dict[str, Any] = json.load(sys.stdin)
    model = OpenAIModel(
        model_id=task["model"],
        api_base=task["url"],
        api_key="none",
        client_kwargs={"timeout": float(task["seconds"]), "max_retries": 0},
        max_tokens=task["reply_tokens"],
        temperature=task["temperature"],
    )
    agent = CodeAgent(
        tools=[],
        model=model,
        max_steps=task["turns"],
        additional_authorized_imports=_IMPORTS,
        verbosity_level=LogLevel.OFF,
    )
    files: dict[str, str] = task["files"]
    if len(files) == 1:
        agent.state["context"] = next(iter(files.values()))
        where = "The text is in the variable `context`, a str."
    else:
        agent.state["context"] = files
        where = f"The texts are in the variable `context`, a dict of str by name: {list(files)}."
    came: dict[str, Any] = {"answer": None, "stop": "answered", "detail": "", "turns": 0}
    try:
        result = agent.run(f"{task['question']}\n{where}", return_full_result=True)
        came["answer"] = None if result.output is None else str(result.output)
        came["stop"] = "answered" if result.state == "success" else "max_turns"
    except Exception as error:
        came.update(stop="error", detail=f"{type(error).__name__}: {error}"[:1_000])
    # The request after the last turn is one more step to its memory.
    steps = sum(isinstance(step, ActionStep) for step in agent.memory.steps)
    came["turns"] = min(steps, task["turns"])
    print(json.dumps(came))


if __name__ == "__main__":
    main()
