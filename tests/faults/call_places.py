"""Paid calls and effects, told apart by where they stand: the run, the intent, the item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tallystick.core.views.open_calls import open_calls
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.runs.history import records_of

__all__ = ["Place", "Places", "named_in", "open_places", "place_of"]

# A call, by its run, its intent and its item in a batch.
Place = tuple[str, int, int]
Places = frozenset[Place]


def place_of(key: str) -> Place:
    """The run, the intent and the item of a call, by its key."""
    run, place = key.split("-")[:2]
    intent, _, item = place.partition(".")
    return run, int(intent), int(item or -1)


def open_places(data: Path) -> Places:
    """The calls of all runs that were begun and have no outcome."""
    with SqliteLedger(data / "ledger.db") as ledger:
        return frozenset(
            (row.run, call.intent, getattr(call, "item", -1))
            for row in ledger.runs()
            for call in open_calls(records_of(ledger, row.run))
        )


def named_in(doubt: Sequence[Mapping[str, Any]]) -> Places:
    """The calls that a resume has named as being in doubt."""
    return frozenset(
        (each["run"], each["intent"], item) for each in doubt for item in each.get("items") or [-1]
    )
