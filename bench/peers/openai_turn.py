"""A loop over the bare `openai` client and `exec`: run by the peer's own Python.

Reads lines of JSON, {"url", "turns", "stream"}; makes one run for each, and answers with a line:
the milliseconds of processor time of a turn, the answer, and the version.
"""

import contextlib
import io
import json
import re
import sys
import time
from importlib.metadata import version
from typing import Any

from openai import OpenAI

# About as long as what the model is told elsewhere.
_SYSTEM = (
    "You answer by writing Python. Put one program into a ```python block; what it prints is shown "
    "to you, and its variables are kept. Call FINAL(value) with the answer once you have it.\n"
) * 6
_BLOCK = re.compile(r"```python\n(.*?)\n?```", re.DOTALL)


def run(client: OpenAI, *, turns: int, stream: bool) -> object:
    found: list[object] = []
    namespace: dict[str, object] = {"FINAL": found.append}
    messages: list[dict[str, str]] = [
        {"role": "system", "content": _SYSTEM},
        {"role": "user", "content": "sum them"},
    ]
    for _ in range(turns):
        text = _asked(client, messages, stream=stream)
        messages.append({"role": "assistant", "content": text})
        block = _BLOCK.search(text)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block[1] if block else "", "<turn>", "exec"), namespace)
        if found:
            return found[0]
        messages.append({"role": "user", "content": printed.getvalue()})
    return None


def _asked(client: OpenAI, messages: list[Any], *, stream: bool) -> str:
    if not stream:
        whole = client.chat.completions.create(model="m", messages=messages, temperature=0)
        return str(whole.choices[0].message.content)
    pieces = client.chat.completions.create(
        model="m",
        messages=messages,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    return "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)


def main() -> None:
    clients: dict[str, OpenAI] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        url = asked["url"]
        client = clients.get(url) or clients.setdefault(url, OpenAI(api_key="k", base_url=url))
        began = time.process_time()
        answer = run(client, turns=asked["turns"], stream=asked["stream"])
        took = (time.process_time() - began) * 1000 / asked["turns"]
        told = {"cpu_ms": took, "answer": answer, "version": f"openai {version('openai')}"}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
