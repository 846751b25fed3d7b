"""What somebody who can be asked says of a call that was begun: it never came, or nobody knows."""

from __future__ import annotations

from enum import Enum

__all__ = ["NOT_RECEIVED", "UNKNOWN", "Lookup", "call_key"]


class Lookup(Enum):
    """An answer about a call that is not its outcome."""

    NOT_RECEIVED = "not_received"
    UNKNOWN = "unknown"


NOT_RECEIVED = Lookup.NOT_RECEIVED
UNKNOWN = Lookup.UNKNOWN


def call_key(run: str, intent: int, *, item: int | None = None, attempt: int = 1) -> str:
    """The name under which a call of a run is known outside. No other call has it."""
    place = f"{run}-{intent}" if item is None else f"{run}-{intent}.{item}"
    return place if attempt == 1 else f"{place}-{attempt}"
