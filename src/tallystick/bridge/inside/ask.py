"""Ask models from inside a sandbox: `llm_query` and `llm_query_batched` for a native Python.

One file that needs only the standard library, so that it can be copied into any sandbox. The
environment says where to ask: TALLYSTICK_BRIDGE is `unix:PATH`, `tcp:HOST:PORT` or `fd:N`, an
inherited connection for one process; TALLYSTICK_BRIDGE_TOKEN is the token.

From a shell: `python3 ask.py "what is it?"`, or with the question on standard input.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

_ADDRESS, _TOKEN = "TALLYSTICK_BRIDGE", "TALLYSTICK_BRIDGE_TOKEN"
# The default of the server's limit for a batch.
_BATCH_MAX = 10
# Longer than the server's own limit, so that the server answers first and says why.
_SECONDS = 60.0
_WAITS_MAX = 20


class BridgeError(Exception):
    """The bridge gave no answer. `type` and `code` say why; `retryable` if it may later."""

    def __init__(self, error: dict[str, Any], left: dict[str, Any] | None = None) -> None:
        super().__init__(str(error.get("message", "")))
        self.type = str(error.get("type", "Internal"))
        self.code = int(error.get("code", -32000))
        self.retryable = bool(error.get("retryable", False))
        self.retry_after_ms = error.get("retry_after_ms")
        self.tokens_remaining = (left or {}).get("tokens_remaining")
        self.time_remaining_ms = (left or {}).get("time_remaining_ms")

    def __repr__(self) -> str:
        """Return the message with the error's kind."""
        return f"BridgeError({self.type}: {self})"


def llm_query(
    prompt: str,
    model: str | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
) -> str:
    """Ask a model and return its text. Wait and raise `BridgeError` as `query` does."""
    return str(query(prompt, model, temperature, max_tokens)["response"])


def query(
    prompt: str,
    model: str | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
) -> dict[str, Any]:
    """Ask a model and return all of the bridge's reply; `response` is the text.

    The rest is tokens used and left, usage, time, and where the text and the figures come from.
    If the bridge was asked too often, sleep as long as it says and ask again, up to 20 times.
    Raise `BridgeError` if there is no answer.
    """
    return _ask("/query", _question(prompt, model, temperature, max_tokens))


def llm_query_batched(
    prompts: Sequence[str],
    model: str | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
) -> list[str | BridgeError]:
    """Ask many questions, ten at a time; return the answers in order.

    The answer to a question that failed is a `BridgeError`. Each batch waits as `query` does. Raise
    `BridgeError` if a whole batch fails; the answers of the batches before it are lost.
    """
    questions = [_question(each, model, temperature, max_tokens) for each in prompts]
    found: list[str | BridgeError] = []
    for first in range(0, len(questions), _BATCH_MAX):
        reply = _ask("/query_batched", {"queries": questions[first : first + _BATCH_MAX]})
        for each, error in zip(reply["responses"], reply["errors"]):  # noqa: B905 (old Pythons too)
            found.append(each["Ok"]["response"] if error is None else BridgeError(error, reply))
    return found


def _question(
    prompt: str, model: str | None, temperature: float | None, max_tokens: int | None
) -> dict[str, Any]:
    given = {
        "prompt": prompt,
        "model": model,
        "temperature": temperature,
        "max_tokens": max_tokens,
    }
    return {name: value for name, value in given.items() if value is not None}


def _ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Ask, and ask again after a pause when the bridge says that it was asked too often.

    A pause is as long as the bridge says, or a second. Raise `BridgeError` for any other refusal,
    if the bridge cannot be used, or after 20 pauses.
    """
    for waited in range(_WAITS_MAX + 1):
        status, reply = _send(path, json.dumps(body).encode())
        if status == 200:
            return reply
        error = BridgeError(reply.get("error", {}), reply)
        if status != 429 or waited == _WAITS_MAX:
            raise error
        time.sleep((error.retry_after_ms or 1_000) / 1000)
    raise AssertionError


class _Connection(http.client.HTTPConnection):
    """A connection over the socket that the environment names."""

    def __init__(self, address: str) -> None:
        super().__init__("localhost", timeout=_SECONDS)
        self._address = address

    def connect(self) -> None:
        kind, _, where = self._address.partition(":")
        if kind == "unix":
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(_SECONDS)
            self.sock.connect(where)
        elif kind == "tcp":
            host, _, port = where.rpartition(":")
            self.sock = socket.create_connection((host, int(port)), timeout=_SECONDS)
        elif kind == "fd":
            self.sock = socket.socket(fileno=os.dup(int(where)))
            self.sock.settimeout(_SECONDS)
        else:
            raise _unusable(f"{_ADDRESS} is unix:PATH, tcp:HOST:PORT or fd:N")


# There is only one inherited connection, and one thread at a time may use it.
_inherited: dict[str, _Connection] = {}
_guard = threading.Lock()


def _send(path: str, body: bytes) -> tuple[int, dict[str, Any]]:
    """Send a request; return the status and the body of the reply.

    Raise `BridgeError` if there is no bridge, or if it cannot be used.
    """
    address, token = os.environ.get(_ADDRESS, ""), os.environ.get(_TOKEN, "")
    if not address:
        raise _unusable(f"no bridge here: {_ADDRESS} is not set")
    try:
        if not address.startswith("fd:"):
            connection = _Connection(address)
            try:
                return _exchange(connection, path, body, token)
            finally:
                connection.close()
        with _guard:
            return _exchange(
                _inherited.setdefault(address, _Connection(address)), path, body, token
            )
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _unusable(f"the bridge cannot be used: {type(error).__name__}: {error}") from error


def _exchange(
    connection: _Connection, path: str, body: bytes, token: str
) -> tuple[int, dict[str, Any]]:
    headers = {"X-Session-Token": token, "Content-Type": "application/json"}
    # The bridge may refuse a request by its head, before the body is sent. Its reply says why.
    with contextlib.suppress(BrokenPipeError):
        connection.request("POST", path, body, headers)
    response = connection.getresponse()
    reply = json.loads(response.read())
    if not isinstance(reply, dict):
        raise ValueError("the reply is no object")
    return response.status, reply


def _unusable(message: str) -> BridgeError:
    return BridgeError({"type": "Io", "code": -32000, "message": message})


def _main(arguments: list[str]) -> int:
    try:
        print(llm_query(" ".join(arguments) or sys.stdin.read()))
    except BridgeError as error:
        print(f"{error.type}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
