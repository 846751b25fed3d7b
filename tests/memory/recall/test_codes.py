"""Codes: a scan of all notes for those that may be near."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.errors import UsageError
from tallystick.memory.recall import codes as codes_module
from tallystick.memory.recall.codes import Codes

np = pytest.importorskip("numpy")

_DIMENSIONS = 128


def vectors(count: int, *, seed: int = 1) -> bytes:
    drawn = np.random.default_rng(seed).integers(-32_767, 32_767, (count, _DIMENSIONS))
    data: bytes = drawn.astype("<i2").tobytes()
    return data


def row(data: bytes, number: int) -> bytes:
    return data[number * 2 * _DIMENSIONS : (number + 1) * 2 * _DIMENSIONS]


def coded(data: bytes) -> Codes:
    codes = Codes(dimensions=_DIMENSIONS)
    codes.add(data)
    return codes


def distances(query: bytes, data: bytes) -> list[int]:
    rows = np.frombuffer(data, dtype="<i2").reshape(-1, _DIMENSIONS) > 0
    asked = np.frombuffer(query, dtype="<i2") > 0
    found: list[int] = (rows != asked).sum(axis=1).tolist()
    return found


@given(st.integers(0, 60), st.integers(1, 12), st.integers(0, 5), st.data())
def test_the_nearest_under_the_mask_are_found_with_all_that_are_as_near(
    notes: int, count: int, seed: int, data: st.DataObject
) -> None:
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=notes, max_size=notes)), dtype=bool)
    drawn, query = vectors(notes, seed=seed), vectors(1, seed=99)
    with pytest.MonkeyPatch.context() as patch:
        # Blocks so small that a set has several.
        patch.setattr(codes_module, "_ROWS", 7)

        found = coded(drawn).near(query, count=count, mask=mask)

    kept = {at: far for at, far in enumerate(distances(query, drawn)) if mask[at]}
    last = sorted(kept.values())[:count][-1:]
    assert found.tolist() == [at for at, far in kept.items() if last and far <= last[0]]


@given(st.integers(1, 40), st.integers(1, 40))
def test_adding_in_parts_is_adding_at_once(first: int, second: int) -> None:
    drawn, query = vectors(first + second), vectors(1, seed=3)
    parts = coded(drawn[: first * 2 * _DIMENSIONS])

    parts.add(drawn[first * 2 * _DIMENSIONS :])

    assert len(parts) == first + second
    assert parts.near(query, count=5).tolist() == coded(drawn).near(query, count=5).tolist()


def test_more_codes_than_the_first_room_holds_are_kept() -> None:
    drawn = vectors(3_000)

    assert 2_999 in coded(drawn).near(row(drawn, 2_999), count=1)


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 1 dimension"):
        Codes(dimensions=0)
    with pytest.raises(UsageError, match="different models or lengths"):
        coded(vectors(2)).near(bytes(10), count=1)
    with pytest.raises(UsageError, match="mask of 1 for 2"):
        coded(vectors(2)).near(vectors(1), count=1, mask=np.array([True]))
    assert coded(vectors(2)).near(vectors(1), count=0).tolist() == []
    assert Codes(dimensions=64).near(bytes(128), count=3).tolist() == []


@pytest.mark.parametrize("dimensions", [1, 4, 63, 65, 100, 65_536])
def test_any_number_of_dimensions_has_codes(dimensions: int) -> None:
    codes = Codes(dimensions=dimensions)
    up, down = (32_767).to_bytes(2, "little") * dimensions, bytes(2 * dimensions)

    codes.add(down + up)

    assert codes.near(up, count=1).tolist() == [1]
    assert codes.near(down, count=1).tolist() == [0]


def test_of_equally_near_codes_whoever_asks_says_which() -> None:
    codes = coded(row(vectors(3), 0) * 4 + vectors(3))

    found = codes.near(row(vectors(3), 0), count=2, first=lambda places, wanted: places[-wanted:])

    assert found.tolist() == [3, 4]
