"""Gives one task to rlms: reads it as JSON on stdin, prints one JSON line of what came of it.

Run by a Python that has rlms. It uses nothing of ours. The texts are the `context` of its REPL, as
its `completion(prompt, root_prompt)` has it; everything else is as it ships.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from typing import Any

from rlm import RLM  # type: ignore[import-not-found]
from rlm.logger import RLMLogger  # type: ignore[import-not-found]


def main() -> None:
    if sys.argv[1:] == ["version"]:
        print(json.dumps({"version": importlib.metadata.version("rlms")}))
        return
    task: dict[str, Any] = json.load(sys.stdin)
    logger = RLMLogger()
    rlm = RLM(
        backend="openai",
        backend_kwargs={
            "model_name": task["model"],
            "base_url": task["url"],
            "api_key": "none",
            "timeout": float(task["seconds"]),
            "max_retries": 0,
        },
        environment="local",
        max_iterations=task["turns"],
        max_tokens=task["tokens"],
        max_timeout=float(task["seconds"]),
        sampling_args={"temperature": task["temperature"], "max_tokens": task["reply_tokens"]},
        logger=logger,
    )
    files: dict[str, str] = task["files"]
    context = next(iter(files.values())) if len(files) == 1 else files
    came: dict[str, Any] = {"answer": None, "stop": "answered", "detail": ""}
    try:
        came["answer"] = str(rlm.completion(context, root_prompt=task["question"]).response)
    except Exception as error:
        came.update(stop="error", detail=f"{type(error).__name__}: {error}"[:1_000])
    # The request after the last turn is one more to its logger.
    if logger.iteration_count > task["turns"]:
        came["stop"] = "max_turns"
    print(json.dumps({**came, "turns": min(logger.iteration_count, task["turns"])}))


if __name__ == "__main__":
    main()
