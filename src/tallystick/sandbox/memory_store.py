"""Snapshots kept in memory: for tests, and for sessions that end with their process."""

from __future__ import annotations

from collections.abc import Sequence

from tallystick.core.errors import SnapshotNotFound
from tallystick.sandbox.snapshot import Image, SnapshotId, SnapshotStore

__all__ = ["MemorySnapshotStore"]


class MemorySnapshotStore:
    """Images by session and name."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], tuple[SnapshotId, Image]] = {}

    def save(self, snapshot: SnapshotId, image: Image) -> None:
        self._kept[snapshot.session_id, snapshot.name] = (snapshot, image)

    def load(self, session_id: str, name: str) -> tuple[SnapshotId, Image]:
        return self._kept[self._find(session_id, name)]

    def list(self, session_id: str) -> Sequence[SnapshotId]:
        mine = [each for each, _ in self._kept.values() if each.session_id == session_id]
        return sorted(mine, key=lambda each: each.id)

    def delete(self, session_id: str, name: str) -> None:
        del self._kept[self._find(session_id, name)]

    def _find(self, session_id: str, name: str) -> tuple[str, str]:
        for snapshot in reversed(self.list(session_id)):
            if name in (snapshot.name, str(snapshot)):
                return session_id, snapshot.name
        raise SnapshotNotFound(name=name)


_: type[SnapshotStore] = MemorySnapshotStore
