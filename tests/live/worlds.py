"""Generated runs with children, effects, failures and calls of models, and readers that look on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from tallystick.attachments.memory import MemoryAttachments
from tallystick.client import Session
from tallystick.core.charge import RunLimits
from tallystick.interop.trajectory_events import TrajectoryEvent, encode_event
from tallystick.ledger.port import TransferLedger
from tallystick.live.follow import Followed
from tallystick.runtime.calls.deltas import TextDelta
from tallystick.runtime.calls.functions import RunFunction, host_function
from tallystick.stores import stores_of
from tallystick.testing.models import PRICING, ModelCall, ModelDouble, block

ROOMY = RunLimits(tokens=10_000_000, turns=8)
GOAL = "the root of all this"
# What a program does in a line; the goal of a child says what it does itself.
LINES = (
    "print(1)",
    "pay('INV-1')",
    "look('a')",
    "print(llm_query('which?'))",
    "print(rlm_query('leaf'))",
    "print(rlm_query_batched(['leaf', 'branch', 'fails']))",
    "1 / 0",
)
CHILDREN = {
    "leaf": "FINAL(7)",
    "branch": "print(pay('INV-2'))\nFINAL(rlm_query('leaf'))",
    "fails": "raise ValueError('no')",
}


def functions() -> list[RunFunction]:
    @host_function()
    def pay(invoice: str) -> str:
        """Pay an invoice."""
        return invoice

    @host_function(policy="read")
    def look(key: str) -> str:
        """Look a key up."""
        return key

    return [pay, look]


def programs() -> st.SearchStrategy[list[str]]:
    """Draw the programs of the first turns of a run."""
    return st.lists(
        st.lists(st.sampled_from(LINES), min_size=1, max_size=3).map("\n".join), max_size=3
    )


def model(sources: Sequence[str]) -> ModelDouble:
    """A model whose root runs these programs and then answers."""

    def answer(call: ModelCall) -> str:
        if GOAL in call.text:
            return block(sources[call.turn] if call.turn < len(sources) else "FINAL('done')")
        goal = next(each for each in CHILDREN if each in call.text)
        return block(CHILDREN[goal] if call.turn == 0 else "FINAL('gave up')")

    return ModelDouble(answer, queries="the second")


def opened(ledger: Any, model: Any, sandbox: Any) -> Session:
    kept = None if hasattr(ledger, "path") else MemoryAttachments()
    return Session(
        config=None,
        model=model,
        ledger=ledger,
        attachments=kept,
        sandbox=sandbox,
        functions=functions(),
        pricing=PRICING,
        clock="fixed",
    )


def told(followed: Followed) -> list[TrajectoryEvent]:
    """All that a reader gets, without the pieces of replies, which have no number."""
    return [each for each in followed if not isinstance(each, TextDelta)]


def on_record(ledger: TransferLedger, run: str, **more: Any) -> list[TrajectoryEvent]:
    return told(Followed(stores_of(ledger), run, is_going=lambda: False, **more))


def lines(events: Sequence[TrajectoryEvent]) -> list[bytes]:
    return [encode_event(each) for each in events]
