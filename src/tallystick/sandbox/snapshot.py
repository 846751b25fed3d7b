"""Snapshots: the interpreter's memory as pages, with all that is needed to put them back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from tallystick.core.errors import InvalidName

__all__ = [
    "PAGE_BYTES",
    "SNAPSHOTS_MAX",
    "Image",
    "SnapshotId",
    "SnapshotStore",
    "check_snapshot_name",
]

PAGE_BYTES = 4_096
SNAPSHOTS_MAX = 10
_NAME_CHARS_MAX = 256


class SnapshotId(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot's identity. `created_at` is milliseconds since 1970."""

    id: str
    name: str
    session_id: str
    created_at: int

    def __str__(self) -> str:
        return f"{self.name}:{self.id}"


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """Interpreter state between two programs.

    `pages` are those that differ from the guest's own image, in order. `guest` and `engine` name
    what made it; with another, the pages mean nothing. `session` is what the session itself needs.
    """

    guest: str
    engine: str
    memory_bytes: int
    state: Mapping[str, int]
    session: bytes
    indices: Sequence[int]
    pages: Sequence[bytes]


class SnapshotStore(Protocol):
    """Keeps images. A session has at most one current image, and named ones beside it."""

    def save(self, snapshot: SnapshotId, image: Image) -> None: ...

    def load(self, session_id: str, name: str) -> tuple[SnapshotId, Image]: ...

    def list(self, session_id: str) -> Sequence[SnapshotId]: ...

    def delete(self, session_id: str, name: str) -> None: ...


def check_snapshot_name(name: str) -> str:
    """Return `name`, or refuse it: it may end up in a path or a listing."""
    why = None
    if not name:
        why = "it is empty"
    elif len(name) > _NAME_CHARS_MAX:
        why = f"it is longer than {_NAME_CHARS_MAX} characters"
    elif "/" in name or "\\" in name:
        why = "it holds a path separator"
    elif ".." in name:
        why = "it holds '..'"
    elif "\0" in name:
        why = "it holds a NUL"
    if why is not None:
        raise InvalidName(what="snapshot name", given=name, why=why)
    return name
