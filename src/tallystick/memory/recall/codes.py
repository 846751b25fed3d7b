"""The vectors as numbers: in fixed point, equal on every machine, and as codes of one bit each.

A code has one bit for each component of its vector. A scan of all codes gives the same answer for
the same notes, in whatever order they were added. Other stored notes do not matter: a filter or an
earlier position is a mask. A graph index gives none of that. The nearest codes are only candidates;
the caller compares their whole vectors. All candidates as near as the last one are returned, or
those of them that the caller's `first` chooses. So the candidates do not depend on the order
either.

Needs the extra `memory`.
"""

from __future__ import annotations

import importlib.util
import math
import operator
import sys
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tallystick.core.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tallystick.memory.recall.postings import First


# Vectors in fixed point, so that a cosine is the same number however it is computed.
#
# A sum of floats depends on its order, and fast libraries order by size, position and processor.
# Here components are whole numbers: a text's vector has 16 bits for each, a token's 8, and every
# sum of products fits exactly into the floats that fast libraries use (53 and 24 bits). So a note
# has one score, with numpy or without, and whatever other notes are compared with it.


# Type codes of `array` and of numpy. Little-endian in bytes.
VECTOR_CODE, TOKEN_CODE = "h", "b"

_VECTOR_UNIT = 32_767
# The components of token vectors are small. Those beyond a half are cut.
_TOKEN_UNIT = 254
_TOKEN_MOST = 127


def has_numpy() -> bool:
    """Return True if numpy is installed. It is not imported."""
    return importlib.util.find_spec("numpy") is not None


def pack_vector(values: Sequence[float] | NDArray[np.float32]) -> bytes:
    """Encode a vector of length one, two bytes for each component. Beyond 1 it is cut."""
    return _pack(values, unit=_VECTOR_UNIT, most=_VECTOR_UNIT, code=VECTOR_CODE)


def pack_tokens(values: Sequence[float] | NDArray[np.float32]) -> bytes:
    """Encode the vectors of tokens, one after the other, one byte for each component.

    Each has length one. A component beyond a half is cut.
    """
    return _pack(values, unit=_TOKEN_UNIT, most=_TOKEN_MOST, code=TOKEN_CODE)


def _pack(
    values: Sequence[float] | NDArray[np.float32], *, unit: int, most: int, code: str
) -> bytes:
    # A half is rounded to the even neighbour, by numpy as by Python.
    if hasattr(values, "dtype"):
        import numpy as np

        whole = np.rint(np.asarray(values, dtype=np.float64) * unit)
        return np.clip(whole, -most, most).astype(f"<{code}").tobytes()
    numbers = array(code, (max(-most, min(most, round(value * unit))) for value in values))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def cosines(query: bytes, vectors: Sequence[bytes]) -> list[float]:
    """Return the cosine of a vector with each of some others, exactly as their bytes have it.

    All have length one. Raise `UsageError` if the numbers of bytes differ or are odd, or if `query`
    is empty.
    """
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


def token_similarities(query: bytes, notes: Sequence[bytes], *, dimensions: int) -> list[float]:
    """Return for each note how well the tokens of the query are found among the note's, on average.

    A token counts by the most similar token of the note, and never below 0. A note or a query
    without tokens gets 0. Raise `UsageError` if a length is not a multiple of `dimensions`, or that
    is below 1.
    """
    if dimensions < 1 or any(len(each) % dimensions for each in (query, *notes)):
        raise UsageError("token vectors of different models or lengths cannot be compared")
    if not query:
        return [0.0] * len(notes)
    share = float(len(query) // dimensions * _TOKEN_UNIT * _TOKEN_UNIT)
    best = _best_numpy if has_numpy() else _best
    return [best(query, note, dimensions) / share if note else 0.0 for note in notes]


# A passage is two such pieces that follow each other, so that half of each two passages overlap.
_PIECE_TOKENS = 4


def passage_cosines(query: bytes, notes: Sequence[bytes]) -> list[float]:
    """Return for each note the cosine of a vector and the note's nearest passage.

    A passage is the sum of the vectors of 8 tokens that follow each other, beginning at every
    fourth; the last one of a note may have fewer. `notes` have the token
    vectors of each note; without any, it gets 0. Raise `UsageError` if a length is not a multiple
    of that of the vector.
    """
    asked = list(_numbers(query, VECTOR_CODE))
    if not asked or any(len(each) % len(asked) for each in notes):
        raise UsageError("token vectors of different models or lengths cannot be compared")
    size = math.sqrt(sum(map(operator.mul, asked, asked)))
    if not size:
        return [0.0] * len(notes)
    nearest = _nearest_passages_numpy if has_numpy() else _nearest_passages
    held = [note for note in notes if note]
    found = iter(nearest(asked, size, held) if held else ())
    return [next(found) if note else 0.0 for note in notes]


def _nearest_passages_numpy(
    asked: Sequence[int], size: float, notes: Sequence[bytes]
) -> list[float]:
    import numpy as np

    width = len(asked) * _PIECE_TOKENS
    firsts: list[int] = []
    padded: list[bytes] = []
    count = 0
    for note in notes:
        firsts.append(count)
        padded.extend((note, bytes(-len(note) % width)))
        count += -(-len(note) // width)
    tokens = np.frombuffer(b"".join(padded), dtype="i1").reshape(count, _PIECE_TOKENS, len(asked))
    sums = tokens[:, 0].astype(np.int16)
    for each in range(1, _PIECE_TOKENS):
        sums += tokens[:, each]
    # Whole numbers far below 2 to the power of 53: sums of doubles are exact in any order.
    pieces = sums.astype(np.float64)
    dots = pieces @ np.array(asked, dtype=np.float64)
    squares = np.einsum("ij,ij->i", pieces, pieces)
    # Each piece with the next one, unless that is of another note. Slices and not index arrays:
    # those would copy every piece twice.
    inner = np.ones(count, dtype=np.bool_)
    inner[[first - 1 for first in firsts]] = False
    products = np.einsum("ij,ij->i", pieces[:-1], pieces[1:])
    squares[:-1] += np.where(inner[:-1], squares[1:] + 2 * products, 0.0)
    dots[:-1] += np.where(inner[:-1], dots[1:], 0.0)
    cosines = np.zeros(len(dots))
    np.divide(dots, size * np.sqrt(squares), out=cosines, where=squares > 0)
    # The last piece of a note alone is no passage, unless the note has no other.
    cosines[1:][inner[:-1] & ~inner[1:]] = -1.0
    nearest: list[float] = np.maximum.reduceat(cosines, firsts).tolist()
    return nearest


def _nearest_passages(asked: Sequence[int], size: float, notes: Sequence[bytes]) -> list[float]:
    found = []
    for note in notes:
        rows = _rows(note, len(asked))
        nearest = -1.0
        for at in range(0, max(1, len(rows) - _PIECE_TOKENS), _PIECE_TOKENS):
            passage = rows[at : at + 2 * _PIECE_TOKENS]
            total = [sum(column) for column in zip(*passage, strict=True)]
            square = sum(map(operator.mul, total, total))
            dot = sum(map(operator.mul, asked, total))
            nearest = max(nearest, dot / (size * math.sqrt(square)) if square else 0.0)
        found.append(nearest)
    return found


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


# Codes: one bit for each component of a vector, scanned from end to end.


_WORD_BITS = 64
# This number of rows stays in the processor's cache while their words are compared. The first batch
# is small: it gives a distance above which no other row has to be kept.
_ROWS, _ROWS_FIRST = 65_536, 4_096
_CAPACITY_MIN = 1_024
_WORDS_AT_ONCE = 3


class Codes:
    """Codes by number, from 0 on, in the order in which they are added.

    Raise `UsageError` for 0 dimensions.
    """

    def __init__(self, *, dimensions: int) -> None:
        import numpy as np

        if dimensions < 1:
            raise UsageError(f"vectors have at least 1 dimension, not {dimensions}")
        self._dimensions = dimensions
        self._count = 0
        # One row for each word of a code, so that a scan reads each from one end to the other.
        words = -(-dimensions // _WORD_BITS)
        self._words = np.zeros((words, _CAPACITY_MIN), dtype=np.uint64)
        # A distance is at most the number of dimensions. 16 bits hold 65,535, and a store may have
        # 65,536.
        wide = dimensions >= 1 << 16
        self._total: np.dtype[np.unsignedinteger] = np.dtype("u4" if wide else "u2")

    def __len__(self) -> int:
        return self._count

    def add(self, vectors: bytes) -> None:
        """Add the codes of vectors in fixed point, one after the other.

        Raise `ValueError` if the bytes are not whole vectors.
        """
        import numpy as np

        rows = np.frombuffer(vectors, dtype="<i2").reshape(-1, self._dimensions)
        self._add(self._code(rows).T)

    def packed(self) -> bytes:
        """Return all codes as bytes, for a block."""
        return self._words[:, : self._count].astype("<u8").tobytes()

    def add_packed(self, data: bytes) -> None:
        """Add the codes of a block.

        Raise `ValueError` if the bytes are not whole codes.
        """
        import numpy as np

        self._add(np.frombuffer(data, dtype="<u8").reshape(len(self._words), -1))

    def reserve(self, count: int) -> None:
        """Make room for that many codes, if there is less. Room that is not used costs nothing."""
        import numpy as np

        if count > self._words.shape[1]:
            grown = np.zeros((self._words.shape[0], count), dtype=np.uint64)
            grown[:, : self._count] = self._words[:, : self._count]
            self._words = grown

    def _add(self, words: NDArray[np.uint64]) -> None:
        end = self._count + words.shape[1]
        if end > self._words.shape[1]:
            self.reserve(max(end, 2 * self._count))
        self._words[:, self._count : end] = words
        self._count = end

    def near(
        self,
        vector: bytes,
        *,
        count: int,
        mask: NDArray[np.bool_] | None = None,
        first: First | None = None,
    ) -> NDArray[np.int64]:
        """Return the numbers of the nearest codes under the mask, ascending.

        They are `count`, or more if some are equally near, or fewer if there are no more. With
        `first`, there are no more than `count`: it is called at most once, at the end, and chooses
        among the farthest, which are equally near. Raise `UsageError` if the mask or the vector has
        another length than the codes need.
        """
        import numpy as np

        if mask is not None and len(mask) != self._count:
            raise UsageError(f"a mask of {len(mask):,} for {self._count:,} codes")
        if len(vector) != 2 * self._dimensions:
            raise UsageError("vectors of different models or lengths cannot be compared")
        query = self._code(np.frombuffer(vector, dtype="<i2").reshape(1, self._dimensions))[0]
        if count < 1 or not self._count:
            return np.empty(0, dtype=np.int64)
        # The distance of the last candidate so far: a farther row is not kept.
        most = self._dimensions
        numbers = np.empty(0, dtype=np.int64)
        distances: NDArray[np.unsignedinteger] = np.empty(0, dtype=self._total)
        room = _Room(min(self._count, _ROWS), self._total)
        start, end = 0, min(self._count, _ROWS, _ROWS_FIRST)
        while start < self._count:
            found = self._distances(query, start, end, room)
            close = found <= most
            if mask is not None:
                close &= mask[start:end]
            places = np.flatnonzero(close)
            if len(places):
                numbers = np.concatenate([numbers, places + start])
                distances = np.concatenate([distances, found[places]])
            if len(numbers) > count:
                most = int(np.partition(distances, count - 1)[count - 1])
                kept = distances <= most
                numbers, distances = numbers[kept], distances[kept]
            start, end = end, min(self._count, end + _ROWS)
        if first is None or len(numbers) <= count:
            return numbers
        nearer, equal = numbers[distances < most], numbers[distances == most]
        return np.sort(np.concatenate([nearer, first(equal, count - len(nearer))]))

    def _code(self, rows: NDArray[np.int16]) -> NDArray[np.uint64]:
        import numpy as np

        bits = np.packbits(rows > 0, axis=1, bitorder="little")
        # The padding is the same in every code, so it adds nothing to a distance.
        missing = len(self._words) * _WORD_BITS // 8 - bits.shape[1]
        whole = np.pad(bits, ((0, 0), (0, missing))) if missing else bits
        return np.ascontiguousarray(whole).view("<u8").astype(np.uint64)

    def _distances(
        self, query: NDArray[np.uint64], start: int, end: int, room: _Room
    ) -> NDArray[np.unsignedinteger]:
        """Return how many bits of each code from `start` up to `end` differ from the query's.

        The array is part of `room`: the next call overwrites it.
        """
        import numpy as np

        total, some, counted = (each[: end - start] for each in (room.total, room.some, room.one))
        differing = room.differing[: end - start]
        total.fill(0)
        # Three words differ in at most 192 bits, so their sum is in the narrow type, which is fast.
        for at in range(0, len(query), _WORDS_AT_ONCE):
            some.fill(0)
            for word in range(at, min(at + _WORDS_AT_ONCE, len(query))):
                np.bitwise_xor(self._words[word, start:end], query[word], out=differing)
                np.bitwise_count(differing, out=counted)
                some += counted
            total += some
        return total


class _Room:
    """Memory for the rows that are compared at once.

    Allocated once for a scan, since that costs.
    """

    def __init__(self, rows: int, total: np.dtype[np.unsignedinteger]) -> None:
        import numpy as np

        self.differing = np.empty(rows, dtype=np.uint64)
        self.one, self.some = np.empty(rows, dtype=np.uint8), np.empty(rows, dtype=np.uint8)
        self.total = np.empty(rows, dtype=total)
