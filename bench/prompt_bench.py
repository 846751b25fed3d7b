"""The fixed part of a prompt: what every run pays for before its task is read.

Question: is it at most 400 tokens?

Sketch before measuring. The system message is about a thousand characters of plain English, which
is 200 to 250 tokens of any tokenizer in use.

Tokens are counted by a server, as the difference of two prompts' lengths in its usage reports, if
TALLYSTICK_MODEL_URL names one. Without it they are a quarter of the bytes, and the row says so.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable

import httpx
from bench.measure import Bench, Row, World

from tallystick.core.charge import RunLimits
from tallystick.core.machine.prompt import opening
from tallystick.core.records import RunStarted

__all__ = ["BENCHES"]

_RLMS = """
from rlm.utils import prompts
print(prompts.RLM_SYSTEM_PROMPT)
"""
_SMOLAGENTS = """
from smolagents import CodeAgent
from smolagents.models import Model
print(CodeAgent(tools=[], model=Model(model_id="none")).system_prompt)
"""
_PEERS = (
    ("rlms", "TALLYSTICK_BENCH_RLMS", _RLMS),
    ("smolagents", "TALLYSTICK_BENCH_SMOLAGENTS", _SMOLAGENTS),
)


def prompt(world: World) -> Iterable[Row]:
    counted = _Counted.of_environment()
    yield _row("tallystick", _own(), counted, target=400.0)
    for who, variable, program in _PEERS:
        python = os.environ.get(variable)
        if not python:
            yield Row(
                bench="prompt", name=_NAME, unit="tokens", samples=[], who=who,
                skipped=f"set {variable} to a Python that has it",
            )  # fmt: skip
            continue
        done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
        yield _row(who, done.stdout.strip(), counted, target=None)


_NAME = "fixed part of the prompt"


def _row(who: str, text: str, counted: _Counted | None, *, target: float | None) -> Row:
    tokens = counted(text) if counted is not None else len(text.encode()) / 4
    how = "counted by a model's server" if counted is not None else "a quarter of the bytes"
    return Row(
        bench="prompt", name=_NAME, unit="tokens", samples=[float(tokens)], target=target, who=who,
        against=f"{how}; {len(text.encode()):,} bytes",
    )  # fmt: skip


class _Counted:
    """Asks a server how long a prompt is."""

    def __init__(self, url: str, key: str, model: str) -> None:
        self._url = url.rstrip("/") + "/chat/completions"
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._model = model

    @classmethod
    def of_environment(cls) -> _Counted | None:
        url = os.environ.get("TALLYSTICK_MODEL_URL")
        if not url:
            return None
        key = os.environ.get("TALLYSTICK_MODEL_KEY", "")
        models = httpx.get(
            url.rstrip("/") + "/models", headers={"Authorization": f"Bearer {key}"} if key else {}
        ).json()
        return cls(url, key, models["data"][0]["id"])

    def __call__(self, text: str) -> int:
        return self._tokens(text) - self._tokens("")

    def _tokens(self, text: str) -> int:
        reply = httpx.post(
            self._url,
            headers=self._headers,
            timeout=600,
            json={
                "model": self._model,
                "max_tokens": 1,
                "messages": [
                    {"role": "system", "content": text},
                    {"role": "user", "content": "x"},
                ],
            },
        )
        return int(reply.raise_for_status().json()["usage"]["prompt_tokens"])


def _own() -> str:
    started = RunStarted(
        goal="", model="", limits=RunLimits(), grants=(), contexts=(), functions=(), values={},
        texts=(), seed=0, clock_ns=0, session_id="", template="", guest="", engine="", started_at=0,
    )  # fmt: skip
    # The words around an empty task are fixed too.
    return "\n\n".join(message.text for message in opening(started))


BENCHES: dict[str, Bench] = {"prompt": prompt}
