"""rlms under a fan-out, with a budget: run by the peer's own Python.

Reads {"url", "usd_cap"}; prints one line of JSON: how long it took and how it ended. What was
billed, the server knows. Costs come as OpenRouter reports them, which is what the budget reads.
"""

import json
import sys
import time
from importlib.metadata import version

from rlm import RLM  # type: ignore[import-not-found]


def main(url: str, usd_cap: float) -> dict[str, object]:
    rlm = RLM(
        backend="openrouter",
        backend_kwargs={"model_name": "m", "base_url": url, "api_key": "none"},
        max_budget=usd_cap,
        max_iterations=3,
        max_concurrent_subcalls=1_000,
    )
    began = time.perf_counter()
    try:
        ended = str(rlm.completion("do it").response)
    except Exception as error:
        ended = f"{type(error).__name__}: {error}"
    took = time.perf_counter() - began
    return {"seconds": took, "ended": ended[:200], "version": version("rlms")}


if __name__ == "__main__":
    print(json.dumps(main(**json.load(sys.stdin))))
