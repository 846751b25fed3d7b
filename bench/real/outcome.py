"""What a run of a task is allowed, and what came of it, whichever runtime ran it."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.real.task import Task

__all__ = ["ROOT", "Allowed", "Exchange", "Outcome", "Runner", "Server", "about", "solved"]

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """An OpenAI-compatible endpoint: its URL up to `/v1`, the model's name there, and a key."""

    url: str
    model: str
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """Limits of one run. A runtime that cannot hold one of them is said to in its notes."""

    turns: int = 6
    reply_tokens: int = 400
    tokens: int = 200_000
    seconds: int = 600
    temperature: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request as the model got it, and what it replied."""

    messages: list[tuple[str, str]]
    reply: str
    tokens_in: int = 0
    tokens_out: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a run. `answered` says that the runtime itself took it for an answer."""

    answer: str | None
    answered: bool
    stop: str
    turns: int
    tokens_in: int
    tokens_out: int
    seconds: float
    detail: str = ""
    exchanges: list[Exchange] = field(default_factory=list)
    # What the runtime saw beside the exchanges: outputs of programs, errors.
    notes: list[str] = field(default_factory=list)


Runner = Callable[[Task], Outcome]


def solved(task: Task, outcome: Outcome) -> bool:
    """Given as an answer, and right. A right value that was only shown last does not count."""
    return outcome.answered and outcome.answer is not None and task.check(outcome.answer)


def about(runtime: str, version: str, server: Server, allowed: Allowed) -> dict[str, Any]:
    """Where, when and with what something was run. The key is not in it."""
    return {
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "commit": _commit(),
        "runtime": runtime,
        "version": version,
        "model": server.model,
        "url": server.url,
        "limits": {
            "turns": allowed.turns,
            "reply_tokens": allowed.reply_tokens,
            "tokens": allowed.tokens,
            "seconds": allowed.seconds,
            "temperature": allowed.temperature,
        },
    }


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()
