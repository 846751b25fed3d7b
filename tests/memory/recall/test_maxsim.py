"""Fixed-point vectors, their cosines, and how well tokens are found."""

from __future__ import annotations

import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.errors import UsageError
from tallystick.memory.recall import codes
from tallystick.memory.recall.codes import (
    cosines,
    pack_tokens,
    pack_vector,
    passage_cosines,
    token_similarities,
)
from tallystick.memory.recall.rank import rerank
from tallystick.memory.recall.scope import Embedded

np = pytest.importorskip("numpy")

components = st.floats(-1, 1, allow_nan=False)
vectors = st.lists(components, min_size=8, max_size=8)


@given(vectors, st.lists(vectors, max_size=5))
def test_cosines_are_the_same_with_and_without_numpy(
    query: list[float], others: list[list[float]]
) -> None:
    asked, packed = pack_vector(query), [pack_vector(other) for other in others]
    fast = cosines(asked, packed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codes, "has_numpy", lambda: False)
        slow = cosines(asked, packed)

    assert fast == slow
    exact = [sum(a * b for a, b in zip(query, other, strict=True)) for other in others]
    assert fast == pytest.approx(exact, abs=1e-3)


@given(vectors, st.lists(vectors, min_size=1, max_size=6), st.integers(0, 5))
def test_a_cosine_does_not_depend_on_what_stands_beside_it(
    query: list[float], others: list[list[float]], at: int
) -> None:
    packed = [pack_vector(other) for other in others]
    at %= len(packed)

    assert cosines(pack_vector(query), packed)[at] == cosines(pack_vector(query), [packed[at]])[0]


@given(vectors)
def test_arrays_and_lists_are_packed_alike(values: list[float]) -> None:
    array = np.array(values, dtype=np.float32)
    same = [float(value) for value in array]

    assert pack_vector(array) == pack_vector(same)
    assert pack_tokens(array) == pack_tokens(same)


@given(st.lists(vectors, max_size=3), st.lists(st.lists(vectors, max_size=3), max_size=3))
def test_tokens_are_found_the_same_with_and_without_numpy(
    query: list[list[float]], notes: list[list[list[float]]]
) -> None:
    asked = b"".join(map(pack_tokens, query))
    packed = [b"".join(map(pack_tokens, note)) for note in notes]
    fast = token_similarities(asked, packed, dimensions=8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codes, "has_numpy", lambda: False)
        slow = token_similarities(asked, packed, dimensions=8)

    assert fast == slow
    assert all(score >= 0 and math.isfinite(score) for score in fast)


def test_a_note_with_the_tokens_of_the_query_is_found_best() -> None:
    lake = [0.25] * 16
    rain = [0.25, -0.25] * 8
    query = Embedded(vector=pack_vector(lake), tokens=pack_tokens(lake))

    scores = rerank(query, [pack_tokens(rain), pack_tokens([*rain, *lake]), b""])

    assert scores == [0.0, pytest.approx(1.0, abs=0.05), 0.0]


def test_what_is_too_large_is_cut_and_not_wrapped() -> None:
    assert pack_vector([2.0, -2.0]) == pack_vector([1.0, -1.0])
    assert pack_tokens([0.9, -0.9]) == pack_tokens([0.5, -0.5])


@pytest.mark.parametrize(("query", "others"), [(b"", []), (b"\0", []), (b"\0\0", [b"\0"])])
def test_vectors_of_other_lengths_are_refused(query: bytes, others: list[bytes]) -> None:
    with pytest.raises(UsageError, match="cannot be compared"):
        cosines(query, others)


def test_tokens_of_another_length_are_refused() -> None:
    with pytest.raises(UsageError, match="cannot be compared"):
        token_similarities(b"\0" * 8, [b"\0" * 9], dimensions=8)


@given(
    query=st.lists(st.integers(-300, 300), min_size=2, max_size=2),
    rows=st.lists(st.tuples(st.integers(-127, 127), st.integers(-127, 127)), max_size=30),
)
def test_passages_are_equal_with_and_without_numpy(
    query: list[int], rows: list[tuple[int, int]]
) -> None:
    vector = array("h", query).tobytes()
    note = array("b", [each for row in rows for each in row]).tobytes()
    (quick,) = passage_cosines(vector, [note])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codes, "has_numpy", lambda: False)
        (plain,) = passage_cosines(vector, [note])

    assert quick == plain
    assert 0.0 <= max(plain, 0.0) <= 1.0 + 1e-12


def test_passages_of_another_length_are_refused() -> None:
    with pytest.raises(UsageError, match="cannot be compared"):
        passage_cosines(array("h", [1, 2]).tobytes(), [b"abc"])
    assert passage_cosines(array("h", [1, 2]).tobytes(), [b""]) == [0.0]
