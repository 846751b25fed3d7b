"""Vectors in fixed point, so that a cosine is the same number wherever and however it is computed.

A sum of floats depends on its order, and fast libraries order by size, position and processor. Here
components are whole numbers: a text's vector has 16 bits for each, a token's 8, and every sum of
products fits exactly into the floats that fast libraries use (53 and 24 bits). So a note has one
score, whichever notes stand beside it, with numpy or without.
"""

from __future__ import annotations

import importlib.util
import operator
import sys
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tallystick.core.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "TOKEN_CODE",
    "VECTOR_CODE",
    "cosines",
    "has_numpy",
    "pack_tokens",
    "pack_vector",
    "tokens_found",
]

# Type codes of `array` and of numpy. Little-endian in bytes.
VECTOR_CODE, TOKEN_CODE = "h", "b"

_VECTOR_UNIT = 32_767
# Components of token vectors are small; beyond a half they are cut.
_TOKEN_UNIT = 254
_TOKEN_MOST = 127


def has_numpy() -> bool:
    return importlib.util.find_spec("numpy") is not None


def pack_vector(values: Sequence[float] | NDArray[np.float32]) -> bytes:
    """A vector of length one as bytes, two for each component."""
    return _packed(values, unit=_VECTOR_UNIT, most=_VECTOR_UNIT, code=VECTOR_CODE)


def pack_tokens(values: Sequence[float] | NDArray[np.float32]) -> bytes:
    """Vectors of tokens, each of length one, one after the other: one byte for each component."""
    return _packed(values, unit=_TOKEN_UNIT, most=_TOKEN_MOST, code=TOKEN_CODE)


def _packed(
    values: Sequence[float] | NDArray[np.float32], *, unit: int, most: int, code: str
) -> bytes:
    # Half goes to the even neighbour, here and there.
    if hasattr(values, "dtype"):
        import numpy as np

        whole = np.rint(np.asarray(values, dtype=np.float64) * unit)
        return np.clip(whole, -most, most).astype(f"<{code}").tobytes()
    numbers = array(code, (max(-most, min(most, round(value * unit))) for value in values))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def cosines(query: bytes, vectors: Sequence[bytes]) -> list[float]:
    """The cosine of a vector with each of some others, exactly as their bytes have it."""
    if not query or len(query) % 2 or any(len(vector) != len(query) for vector in vectors):
        raise UsageError("vectors of different models or lengths cannot be compared")
    if not vectors:
        return []
    unit = float(_VECTOR_UNIT * _VECTOR_UNIT)
    if has_numpy():
        import numpy as np

        rows = np.frombuffer(b"".join(vectors), dtype="<i2").reshape(len(vectors), -1)
        products = rows.astype(np.float64) @ np.frombuffer(query, dtype="<i2").astype(np.float64)
        quotients: list[float] = (products / unit).tolist()
        return quotients
    asked = _numbers(query, VECTOR_CODE)
    return [
        sum(map(operator.mul, asked, _numbers(vector, VECTOR_CODE))) / unit for vector in vectors
    ]


def tokens_found(query: bytes, notes: Sequence[bytes], *, dimensions: int) -> list[float]:
    """For each note: how well each token of the query is found among the note's, on average.

    A token is found as well as its most similar one, and never worse than not at all.
    """
    if dimensions < 1 or any(len(each) % dimensions for each in (query, *notes)):
        raise UsageError("token vectors of different models or lengths cannot be compared")
    if not query:
        return [0.0] * len(notes)
    share = float(len(query) // dimensions * _TOKEN_UNIT * _TOKEN_UNIT)
    best = _best_numpy if has_numpy() else _best
    return [best(query, note, dimensions) / share if note else 0.0 for note in notes]


def _best_numpy(query: bytes, note: bytes, dimensions: int) -> int:
    import numpy as np

    asked = np.frombuffer(query, dtype="i1").reshape(-1, dimensions).astype(np.float32)
    found = np.frombuffer(note, dtype="i1").reshape(-1, dimensions).astype(np.float32)
    return int(np.maximum((asked @ found.T).max(axis=1), 0).astype(np.int64).sum())


def _best(query: bytes, note: bytes, dimensions: int) -> int:
    asked, found = _rows(query, dimensions), _rows(note, dimensions)
    return sum(
        max(0, *(sum(map(operator.mul, token, other)) for other in found)) for token in asked
    )


def _rows(data: bytes, dimensions: int) -> list[array[int]]:
    return [
        _numbers(data[at : at + dimensions], TOKEN_CODE) for at in range(0, len(data), dimensions)
    ]


def _numbers(data: bytes, code: str) -> array[int]:
    values = array(code)
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values
