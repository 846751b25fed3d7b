"""A few notes to recall, and recall programs run over them, for tests."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import pytest

from tallystick.core.errors import Refused
from tallystick.memory.code_mode.operations import (
    PYTHON_FORM,
    Budget,
    Bundle,
    CodeModeError,
    Host,
    RecallHit,
    Tokenizer,
)
from tallystick.memory.code_mode.python import run_python
from tallystick.sandbox.wasm.sandbox import WasmSandbox

Ended = TypeVar("Ended", bound=Exception)

NOTES = (
    "Ada works for Brunel",
    "Brunel has an office in Leeds",
    "the key is under the mat",
    "tea is at four",
)


class WordStore:
    """A store that ranks by shared words. It writes down what it was asked."""

    def __init__(self, *notes: str) -> None:
        self.notes = notes or NOTES
        self.asked: list[str] = []
        self.given: set[str] = set()

    def recall(self, query: str, k: int) -> list[RecallHit]:
        self.asked.append(f"recall {query} {k}")
        words = set(query.lower().split())
        shared = [len(words & set(note.lower().split())) for note in self.notes]
        best = sorted(range(len(self.notes)), key=lambda n: (-shared[n], n))[:k]
        self.given |= {f"m{n}" for n in best}
        return [
            RecallHit(id=f"m{n}", content=self.notes[n], score=shared[n] / (1 + len(words)))
            for n in best
        ]

    def score(self, memory_id: str) -> float:
        self.asked.append(f"score {memory_id}")
        return 0.25 if memory_id == "m0" else 0.75

    def cite(self, memory_id: str) -> str:
        self.asked.append(f"cite {memory_id}")
        if memory_id not in self.given:
            raise Refused(f"note {memory_id} was not recalled here")
        return f"receipt of {memory_id}"


def play(
    sandbox: WasmSandbox,
    source: str,
    host: Host | None = None,
    *,
    budget: Budget = PYTHON_FORM,
    tokenizer: Tokenizer | None = None,
    seed: int = 0,
) -> Bundle:
    """Run a program to its end."""
    return asyncio.run(
        run_python(
            source,
            WordStore() if host is None else host,
            sandbox=sandbox,
            budget=budget,
            tokenizer=tokenizer,
            seed=seed,
        )
    )


def ends(
    kind: type[Ended],
    sandbox: WasmSandbox,
    source: str,
    host: Host | None = None,
    *,
    budget: Budget = PYTHON_FORM,
) -> Ended:
    """What a program ends with that must end with this."""
    with pytest.raises(kind) as raised:
        play(sandbox, source, host, budget=budget)
    return raised.value


def partial(error: CodeModeError) -> Bundle:
    """What a program had gathered; it carries as much fuel as the error says."""
    assert error.partial is not None
    assert error.partial.fuel_used == error.fuel_used
    return error.partial
