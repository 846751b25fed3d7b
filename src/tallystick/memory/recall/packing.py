"""Arrays of numbers as few bytes, for the blocks of an index.

Whole numbers are stored as their distance from the smallest, in the narrowest type that holds the
largest; a column of equal numbers as one of them. Reading gives the same numbers in the type that
is asked for.

Needs the extra `memory`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Scalar = TypeVar("Scalar", bound=np.generic)


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """Numbers: how many they are, the smallest of whole ones, and the rest in a type of numpy."""

    count: int
    base: int
    kind: str
    data: bytes


def pack(values: NDArray[Any] | Sequence[int]) -> Packed:
    """Pack an array of whole numbers, or of floats."""
    import numpy as np

    given = np.asarray(values)
    count = len(given)
    if not count:
        return Packed(0, 0, "u1", b"")
    equal = bool((given == given[0]).all())
    if given.dtype.kind == "f":
        return Packed(count, 0, "<f8", given[: 1 if equal else count].astype("<f8").tobytes())
    base = given.min()
    if equal:
        return Packed(count, int(base), "u1", b"")
    rest = given - base
    kind = next(kind for kind in ("u1", "<u2", "<u4", "<u8") if rest.max() <= np.iinfo(kind).max)
    return Packed(count, int(base), kind, rest.astype(kind).tobytes())


def unpack(
    packed: Packed, kind: type[Scalar], begin: int = 0, end: int | None = None
) -> NDArray[Scalar]:
    """Return the numbers from `begin` up to `end` as an array of a type that can hold them."""
    import numpy as np

    count = (packed.count if end is None else end) - begin
    if not packed.data:
        return np.full(count, packed.base, dtype=kind)
    rest = np.frombuffer(packed.data, dtype=packed.kind)
    if len(rest) == 1:
        return np.full(count, rest[0], dtype=kind)
    values = rest[begin:end].astype(kind)
    if packed.base:
        values += kind(packed.base)
    return values
