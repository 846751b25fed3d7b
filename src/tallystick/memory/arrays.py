"""Arrays that grow, and names by number.

Needs the extra `memory`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Column", "Names"]

_CAPACITY_MIN = 1_024
_NOBODY = -2

Scalar = TypeVar("Scalar", bound="np.generic")


class Column(Generic[Scalar]):
    """Numbers of one type, one after the other. Room is doubled when it is full."""

    def __init__(self, kind: type[Scalar]) -> None:
        import numpy as np

        self._room: NDArray[Scalar] = np.zeros(_CAPACITY_MIN, dtype=kind)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def values(self) -> NDArray[Scalar]:
        """All of them. To be used before the next are added."""
        return self._room[: self._count]

    def extend(self, values: Sequence[Any] | NDArray[Any]) -> None:
        import numpy as np

        end = self._count + len(values)
        if end > len(self._room):
            room = np.zeros(max(end, 2 * len(self._room)), dtype=self._room.dtype)
            room[: self._count] = self.values
            self._room = room
        self._room[self._count : end] = values
        self._count = end


class Names:
    """Texts by number, and those that have a word."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._codes: dict[str, int] = {}

    def code(self, name: str | None) -> int:
        """The number of a name, which it is given now if it is new. No name is -1."""
        if name is None:
            return -1
        code = self._codes.get(name)
        if code is None:
            code = self._codes[name] = len(self.names)
            self.names.append(name)
        return code

    def known(self, name: str) -> int:
        """The number of a name that some note may have."""
        return self._codes.get(name, _NOBODY)
