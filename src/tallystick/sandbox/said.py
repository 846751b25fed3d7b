"""What an interpreter says of a program that it ran, as both sandboxes read it.

It is the program's word: types are checked, lengths are cut, and nothing more is believed.
"""

from __future__ import annotations

import msgspec

from tallystick.sandbox.port import Stop

__all__ = ["KINDS", "NOT_RUN", "Said", "metadata_of", "read_said"]

# What a program that was ended from outside is told to have failed by.
KINDS: dict[Stop, str] = {
    "fuel": "FuelExhausted",
    "memory": "MemoryExhausted",
    "wall": "WallExceeded",
    "deadline": "DeadlineExceeded",
    "output": "OutputExceeded",
    "host_calls": "HostCallsExhausted",
    "cancelled": "Cancelled",
    "trap": "InterpreterTrap",
}
# The exit code of what did not come to its end.
NOT_RUN = -1
_NAMES_MAX = 100
_NAME_CHARS_MAX = 200
_ASSIGNED_CHARS_MAX = 4_000


class Said(msgspec.Struct, kw_only=True):
    """The result of a program."""

    ok: bool
    value: str | None = None
    kind: str = ""
    message: str = ""
    traceback: str = ""
    exit: int = 0
    restored: list[str] = []
    kept: list[str] = []
    assigned: tuple[str, str] | None = None
    capability: str = ""
    answer: str | None = None


_decode = msgspec.json.Decoder(Said).decode


def read_said(result: bytes | None) -> Said | None:
    """The interpreter's result; None if it is none."""
    try:
        return _decode(result or b"")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def metadata_of(said: Said | None, *, finished: bool) -> dict[str, object]:
    """What goes with a result beside its output; an answer only of what came to its own end."""
    metadata: dict[str, object] = {}
    if said is None:
        return metadata
    if said.restored:
        metadata["names_restored"] = [name[:_NAME_CHARS_MAX] for name in said.restored[:_NAMES_MAX]]
    if said.kept:
        metadata["names_kept"] = [name[:_NAME_CHARS_MAX] for name in said.kept[:_NAMES_MAX]]
    if said.assigned is not None and finished:
        metadata["assigned"] = tuple(part[:_ASSIGNED_CHARS_MAX] for part in said.assigned)
    if said.capability:
        metadata["capability"] = said.capability
    if said.answer is not None and finished:
        metadata["answer"] = said.answer
    return metadata
